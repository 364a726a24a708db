"""`python -m bench.publishing`: measure publishing, or see where its time goes.

`--profile` prints the processor time of each part and the functions that took it; `--storm` runs
sagas while a tenth of all calls is broken.
"""

from __future__ import annotations

import argparse
import sys

from bench import postgres
from bench.figures import print_figure
from bench.measure import scratch
from bench.publishing import postgres_publishing_figures, publishing_figures, storm
from bench.publishing.blog import Blog, Stores
from bench.publishing.figures import SAGAS, print_profile


def main() -> int:
    """Do what is asked."""
    parser = argparse.ArgumentParser(prog="bench.publishing", description=__doc__)
    parser.add_argument("--profile", action="store_true", help="print where the time goes")
    parser.add_argument("--storm", action="store_true", help="break a tenth of all calls")
    parser.add_argument("--store", choices=["sqlite", "postgres"], default="sqlite")
    parser.add_argument("--sagas", type=int, default=SAGAS)
    parser.add_argument("--seed", type=int, default=1)
    given = parser.parse_args()
    if not given.profile and not given.storm:
        measured = {"sqlite": publishing_figures, "postgres": postgres_publishing_figures}
        figures = measured[given.store](given.sagas)
        for figure in figures:
            print_figure(figure, 0.0)
        return 0 if all(figure.ok for figure in figures) else 1
    with scratch() as folder, postgres.durable() as server:
        is_sqlite = given.store == "sqlite"
        urls = [
            f"sqlite:///{folder / f'{n}.db'}" if is_sqlite else server.fresh() for n in range(2)
        ]
        if given.profile:
            print_profile(*urls, given.sagas)
            return 0
        with Blog(folder, Stores(urls[0]), variables=storm.VARIABLES) as blog:
            blog.start(*blog.names)
            verdict = storm.rage(blog, given.sagas, seed=given.seed)
    for name, n in verdict.counts.items():
        print(f"{name:20} {n:>10,}")
    for sentence in verdict.wrong[: storm.MOST_SHOWN]:
        print(f"  wrong: {sentence}")
    print("FAIL" if verdict.wrong else "PASS")
    return 1 if verdict.wrong else 0


if __name__ == "__main__":
    sys.exit(main())
