"""`python -m bench.cutting`: measure cutting, see where its time goes, or harm it.

`--profile` prints what one order costs, and the functions that took the time; `--storm` kills
runners while programs and the saw misbehave.
"""

from __future__ import annotations

import argparse
import sys

from bench import postgres
from bench.cutting import cutting_figures, storm
from bench.cutting.figures import print_profile
from bench.cutting.workshop import Workshop
from bench.figures import print_figure
from bench.measure import scratch


def main() -> int:
    """Do what is asked."""
    parser = argparse.ArgumentParser(prog="bench.cutting", description=__doc__)
    parser.add_argument("--profile", action="store_true", help="print where the time goes")
    parser.add_argument("--storm", action="store_true", help="kill runners, and let the saw lie")
    parser.add_argument("--store", choices=["sqlite", "postgres"], default="sqlite")
    parser.add_argument("--orders", type=int, default=100)
    parser.add_argument("--seed", type=int, default=1)
    given = parser.parse_args()
    if not given.profile and not given.storm:
        figures = cutting_figures()
        for figure in figures:
            print_figure(figure, 0.0)
        return 0 if all(figure.ok for figure in figures) else 1
    with scratch() as folder, postgres.durable() as server:
        url = f"sqlite:///{folder / 'cutting.db'}" if given.store == "sqlite" else server.fresh()
        if given.profile:
            print_profile(folder, url)
            return 0
        options = {"rules": storm.RULES, "program": storm.PROGRAM, "manner": storm.MANNER}
        with Workshop(folder, url, **options) as shop:
            verdict = storm.rage(shop, given.orders, seed=given.seed)
    for name, n in verdict.counts.items():
        print(f"{name:32} {n:>10,}")
    for sentence in verdict.wrong[: storm.MOST_SHOWN]:
        print(f"  wrong: {sentence}")
    print("FAIL" if verdict.wrong else "PASS")
    return 1 if verdict.wrong else 0


if __name__ == "__main__":
    sys.exit(main())
