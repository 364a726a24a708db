"""`python -m bench.soak.faults [NAME ...]`: every fault under a steady load, a line each."""

from __future__ import annotations

import argparse
import shutil
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path

from bench.measure import DATA, commit, keep
from bench.soak.faults import failover, processes, server
from bench.soak.faults.frame import Fault, Outcome, Plan, run_fault
from ulak.testing.networks import NoNetwork
from ulak.testing.servers import ServerFailed

FAULTS: Sequence[Fault] = (*server.FAULTS, *failover.FAULTS, *processes.FAULTS)
RESULTS = {store: DATA / f"soak-faults-{store}.json" for store in ("sqlite", "postgres")}
MOST_SHOWN = 10


def find_faults(store: str) -> dict[str, Fault]:
    """Return the faults that a store can suffer, by name."""
    return {fault.name: fault for fault in FAULTS if store in fault.stores}


def run_in_scratch(fault: Fault, store: str, plan: Plan, *, is_kept: bool = False) -> Outcome:
    """Run a fault in a folder that goes with it, unless it is to be kept."""
    DATA.mkdir(exist_ok=True)
    folder = Path(tempfile.mkdtemp(prefix=f"fault-{fault.name}-", dir=DATA))
    try:
        return run_fault(fault, store, folder, plan)
    except (NoNetwork, ServerFailed, TimeoutError) as error:
        return Outcome(fault.name, store, wrong=[f"the fault could not be made: {error}"])
    finally:
        if is_kept:
            print(f"kept in {folder.relative_to(DATA.parent)}")
        else:
            shutil.rmtree(folder)


def print_outcome(outcome: Outcome) -> None:
    """Print a line of the table, and what is wrong below it."""
    back = "never" if outcome.back_after_s is None else f"{outcome.back_after_s:.1f}"
    print(
        f"{outcome.name:24} {outcome.rate_before:>8.0f} {outcome.rate_during:>8.0f} "
        f"{outcome.lasted_s:>8.1f} {back:>8} "
        f"{outcome.orders:>8} {len(outcome.costs):>6} {len(outcome.wrong):>6}"
    )
    for sentence in outcome.wrong[:MOST_SHOWN]:
        print(f"  wrong: {sentence}")
    if len(outcome.wrong) > MOST_SHOWN:
        print(f"  and {len(outcome.wrong) - MOST_SHOWN} more")
    sys.stdout.flush()


def run_faults(
    names: Sequence[str], store: str, plan: Plan, *, is_kept: bool = False
) -> list[Outcome]:
    """Run faults one after the other and print the table; keep it when it has all of them."""
    known, measured = find_faults(store), commit()
    print(
        f"{'fault':24} {'runs/s':>8} {'during':>8} {'lasted s':>8} {'back s':>8} {'orders':>8} "
        f"{'costs':>6} {'wrong':>6}"
    )
    outcomes = []
    for name in names:
        outcomes.append(run_in_scratch(known[name], store, plan, is_kept=is_kept))
        print_outcome(outcomes[-1])
    if set(names) == known.keys():
        kept = {"seed": plan.seed, "commit": measured, "faults": [asdict(o) for o in outcomes]}
        keep(RESULTS[store], kept)
    return outcomes


def main() -> int:
    """Run what is named, or everything."""
    parser = argparse.ArgumentParser(prog="bench.soak.faults", description=__doc__)
    parser.add_argument("names", nargs="*", metavar="NAME", help="which; all without one")
    parser.add_argument("--store", choices=list(RESULTS), default="sqlite")
    parser.add_argument("--seed", type=int, default=Plan().seed)
    parser.add_argument("--keep", action="store_true", help="keep the databases and the ledgers")
    given = parser.parse_args()
    known = find_faults(given.store)
    if unknown := set(given.names) - known.keys():
        parser.error(f"{given.store} has no fault {min(unknown)}; it has {', '.join(known)}")
    outcomes = run_faults(
        given.names or list(known), given.store, Plan(seed=given.seed), is_kept=given.keep
    )
    passed = not any(outcome.wrong for outcome in outcomes)
    print("PASS" if passed else "FAIL")
    return 0 if passed else 1


if __name__ == "__main__":
    sys.exit(main())
