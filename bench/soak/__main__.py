"""`python -m bench.soak`: three workers, one store, a hundred kills, and what came of it."""

from __future__ import annotations

import argparse
import json
import shutil
import sys
import tempfile
from pathlib import Path

from bench.growth import VERY_MANY, soak_growth
from bench.measure import commit
from bench.soak.run import Plan, Verdict, soak
from bench.soak.storm import ROOT

RESULTS = {
    "sqlite": ROOT / ".data" / "soak.json",
    "postgres": ROOT / ".data" / "soak-postgres.json",
    "redis": ROOT / ".data" / "soak-redis.json",
}
# A server is killed too, for longer than a lease or shorter.
WITH_SERVER = {"restarts": 3}
MOST_SHOWN = 25


def print_verdict(verdict: Verdict) -> None:
    """Print the table."""
    for name, count in verdict.counts.items():
        print(f"{name:42} {count:>8}")
    for sentence in verdict.wrong[:MOST_SHOWN]:
        print(f"  wrong: {sentence}")
    if len(verdict.wrong) > MOST_SHOWN:
        print(f"  and {len(verdict.wrong) - MOST_SHOWN} more")
    print("PASS" if verdict.passed else "FAIL")


def main() -> int:
    """Run it, print it, and keep the counts for `make figures`."""
    parser = argparse.ArgumentParser(prog="bench.soak", description=__doc__)
    usual = Plan()
    parser.add_argument("--store", choices=list(RESULTS), default=usual.store)
    parser.add_argument(
        "--growth", type=int, default=VERY_MANY, metavar="JOBS",
        help="on PostgreSQL, measure the rate beside so many finished jobs afterwards; 0: do not",
    )  # fmt: skip
    parser.add_argument("--jobs", type=int, default=usual.jobs)
    parser.add_argument("--kills", type=int, default=usual.kills)
    parser.add_argument("--workers", type=int, default=usual.workers)
    parser.add_argument("--seed", type=int, default=usual.seed)
    parser.add_argument("--seconds", type=float, default=usual.seconds, help="the time it may take")
    parser.add_argument("--broken", help="a build of ulak.testing.broken_sqlite: it must fail")
    parser.add_argument("--keep", action="store_true", help="keep the database and the ledger")
    given = vars(parser.parse_args())
    keep, growth = given.pop("keep"), given.pop("growth")
    more = WITH_SERVER if given["store"] != "sqlite" else {}
    plan, measured = Plan(**given, **more), commit()
    result = RESULTS[plan.store]
    result.parent.mkdir(exist_ok=True)
    folder = Path(tempfile.mkdtemp(prefix="soak-", dir=result.parent))
    try:
        verdict = soak(plan, folder)
    finally:
        if keep:
            print(f"kept in {folder.relative_to(ROOT)}")
        else:
            shutil.rmtree(folder)
    print_verdict(verdict)
    if plan.broken is None:
        kept = {"jobs": plan.jobs, "kills": plan.kills, "seed": plan.seed, "commit": measured}
        kept |= {"counts": verdict.counts, "wrong": verdict.wrong}
        result.write_text(json.dumps(kept, indent=1))
    if plan.store == "postgres" and growth:
        figure = soak_growth(growth)
        print(f"{figure.name}: {figure.value}; bound {figure.bound}")
        return 0 if verdict.passed and figure.ok else 1
    return 0 if verdict.passed else 1


if __name__ == "__main__":
    sys.exit(main())
