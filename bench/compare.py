"""`python -m bench.compare COMMIT [MEASURE ...]`: this tree's speed against that of a commit.

Each tree is measured by its own benchmarks, since names change, each time in a process of its
own, in turns; the figure is the median of the ratios of the pairs. Above 1, this tree is quicker.
With `--runs`, each side of a pair is the quickest of some runs: a neighbour only slows it down.
"""

from __future__ import annotations

import argparse
import os
import shutil
import statistics
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from bench import claims, crowd, drain, http, idempotency, pickup, postgres, postgres_claims
from bench.measure import ROOT, commit, in_child, machine, scratch, wait_for_quiet
from bench.served import CONNECTIONS
from ulak.cli import speed

PAIRS = 9
MOST_BUSY, PATIENCE_S = 0.1, 60.0
A_TENTH = 0.1


def _post(url: str) -> float:
    with http.serving(url, with_store=True) as jobs:
        jobs.rate(CONNECTIONS * 10)
        return jobs.rate(http.REQUESTS)


def _first(url: str) -> float:
    with idempotency.serving(url) as orders:
        orders.first(CONNECTIONS * 10)
        return orders.first(idempotency.REQUESTS)


def _postgres_claims(url: str) -> tuple[float, float]:
    with postgres_claims.engine_on(url) as engine:
        postgres_claims.load(engine, url, A_TENTH)
        p50, _, rate = postgres_claims.claims(engine)
    return p50, rate


BOTH: Mapping[str, Callable[[str], float]] = {
    "submit": lambda url: speed.submit(url, 1_500),
    "submit-threads": lambda url: speed.submit_from_threads(url, 3_200, 32),
    "drain": lambda url: speed.drain(url, drain.JOBS),
    "drain-plain": lambda url: speed.drain(url, drain.JOBS, kind="plain"),
    "stages": lambda url: speed.drain(url, drain.LONG_JOBS, stages=drain.LONG_STAGES),
    "pickup": lambda url: 1 / speed.pickup(url, 200).p50,
    "claim": lambda url: 1 / speed.claim(url, 400).p50,
    "http": _post,
    "idempotency": _first,
}
"""What is measured on either store: how much a second, so that more is better."""

MEASURES: Mapping[str, Callable[[str], float]] = {
    **{f"sqlite-{name}": take for name, take in BOTH.items()},
    "sqlite-pickup-inside": lambda _: 1 / pickup.pickup()[0],
    "sqlite-claims": lambda url: 1 / claims.claims(_path(url), A_TENTH)[0],
    "sqlite-crowd": lambda _: 1 / crowd.crowd()[0],
    **{f"postgres-{name}": take for name, take in BOTH.items()},
    "postgres-claims": lambda url: 1 / _postgres_claims(url)[0],
    "postgres-claims-200": lambda url: _postgres_claims(url)[1],
}


def _path(url: str) -> Path:
    return Path(url.removeprefix("sqlite:///"))


# --- the two trees ------------------------------------------------------------------


@contextmanager
def tree_of(commit: str) -> Iterator[Path]:
    """Check the package and the benchmarks of a commit out for as long as the block lasts."""
    git = shutil.which("git") or "git"
    with scratch() as folder:
        packed = folder / "tree.tar"
        subprocess.run([git, "archive", "-o", packed, commit, "src", "bench"], cwd=ROOT, check=True)
        shutil.unpack_archive(packed, folder, filter="data")
        for ours in ("compare.py", "measure.py"):
            shutil.copy(ROOT / "bench" / ours, folder / "bench" / ours)
        yield folder


def ratios(name: str, before: Path, pairs: int, runs: int) -> list[float]:
    """Return the ratio of each pair; the runs of a pair are taken in turns."""

    def take(tree: Path, url: str) -> float:
        path = os.pathsep.join((str(tree / "src"), str(tree)))
        words = ("bench.compare", "--take", name, url)
        return in_child(*words, env={"PYTHONPATH": path}, folder=tree)

    found = []
    with _urls(name) as fresh:
        for n in range(pairs):
            trees = [before, ROOT] if n % 2 else [ROOT, before]
            turns = [[take(tree, fresh()) for tree in trees] for _ in range(runs)]
            rates = {t: max(r) for t, r in zip(trees, zip(*turns, strict=True), strict=True)}
            found.append(rates[ROOT] / rates[before])
    return found


@contextmanager
def _urls(name: str) -> Iterator[Callable[[], str]]:
    if name.startswith("postgres"):
        with postgres.durable() as server:
            yield server.fresh
        return
    with scratch() as folder:
        numbers = iter(range(1_000))
        yield lambda: f"sqlite:///{folder / f'{next(numbers)}.db'}"


def main() -> int:
    """Compare what is named, or everything."""
    parser = argparse.ArgumentParser(prog="bench.compare", description=__doc__)
    parser.add_argument("commit", nargs="?", default="HEAD")
    parser.add_argument("names", nargs="*", choices=[*MEASURES, []], metavar="measure")
    parser.add_argument("--pairs", type=int, default=PAIRS)
    parser.add_argument("--runs", type=int, default=1, help="of each side of a pair")
    parser.add_argument("--take", nargs=2, metavar=("MEASURE", "URL"), help="measure once")
    given = parser.parse_args()
    if given.take:
        name, url = given.take
        print(MEASURES[name](url))
        return 0
    print(f"{commit()} against {given.commit}, {machine()}, {given.pairs} pairs of {given.runs}")
    with tree_of(given.commit) as before:
        for name in given.names or MEASURES:
            others = wait_for_quiet(MOST_BUSY, PATIENCE_S)
            found = sorted(ratios(name, before, given.pairs, given.runs))
            print(
                f"{name:22} {statistics.median(found):.3f}  "
                f"({found[0]:.2f} to {found[-1]:.2f}; machine {others:.0%} busy before)",
                flush=True,
            )
    return 0


if __name__ == "__main__":
    sys.exit(main())
