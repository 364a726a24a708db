"""What a follower costs: the drain of no-op jobs with one, of the drain without.

A flow that nobody follows must not notice that another one is followed. Of one that is followed the
drain ends when its follower, which counts events into a table, has got them all.

`python -m bench.followers URL KIND JOBS` drains once and prints jobs per second.
"""

from __future__ import annotations

import asyncio
import statistics
import sys
import time
from collections.abc import Callable, Sequence
from typing import Any

import ulak
from bench.measure import Figure, in_child, scratch
from bench.postgres import durable
from ulak.cli.speed import nothing
from ulak.engine.worker import settle_in

JOBS = 20_000
ROUNDS = 9
EVENTS = 2
"""Those of a no-op job: it is submitted, and moved to its end."""
BOUND = 0.97
PLAIN, BESIDE, FOLLOWED = "plain", "beside", "followed"

MAKE = "CREATE TABLE bench_totals (state TEXT PRIMARY KEY, n INTEGER NOT NULL)"
ADD = """
    INSERT INTO bench_totals VALUES ({mark}, {mark})
    ON CONFLICT (state) DO UPDATE SET n = bench_totals.n + excluded.n
"""
TOTAL = "SELECT sum(n) FROM bench_totals"


def drain(url: str, kind: str, jobs: int) -> float:
    """Submit that many jobs and drain them; return how many a second."""
    flow: ulak.Flow[Any] = ulak.Flow.steps("noop", ("only", nothing))
    add = ADD.format(mark="?" if url.startswith("sqlite") else "%s")

    def count(events: Sequence[Any], connection: Any) -> None:
        totals: dict[str, int] = {}
        for event in events:
            totals[event.to_state] = totals.get(event.to_state, 0) + 1
        for total in totals.items():
            connection.execute(add, total)

    with ulak.connect(url, flows=[flow]) as engine:
        with engine.transaction() as connection:
            connection.execute(MAKE)
        if kind != PLAIN:
            followed = "noop" if kind == FOLLOWED else "another"
            engine.follow(name="bench-totals", flow=followed)(count)
        for n in range(0, jobs, 500):
            engine.submit_many(flow, range(n, min(n + 500, jobs)))
        settle_in()  # as `ulak worker` does
        began = time.perf_counter()
        asyncio.run(engine.worker().run(until_idle=True))
        took = time.perf_counter() - began
        with engine.reading() as connection:
            total = connection.execute(TOTAL).fetchone()[0] or 0
        assert total == (EVENTS * jobs if kind == FOLLOWED else 0), f"{total} events were counted"
    return jobs / took


def costs(name: str, fresh: Callable[[], str], jobs: int) -> list[Figure]:
    """Drain in each way in turn; return what is left of the plain rate, the median of the turns."""
    rates: dict[str, list[float]] = {kind: [] for kind in (PLAIN, BESIDE, FOLLOWED)}
    for _ in range(ROUNDS):
        for kind, taken in rates.items():
            taken.append(in_child("bench.followers", fresh(), kind, jobs))
    plain, command = statistics.median(rates[PLAIN]), "python -m bench.figures followers"
    beside, followed = (
        statistics.median(rate / of for rate, of in zip(rates[kind], rates[PLAIN], strict=True))
        for kind in (BESIDE, FOLLOWED)
    )
    return [
        Figure(
            f"drain of {jobs:,} no-op jobs while another flow is followed, of the plain one, "
            f"{name}", f">= {BOUND}", f"{beside:.3f} (of {plain:,.0f} jobs/s)", beside >= BOUND,
            command,
        ),
        Figure(
            f"drain of {jobs:,} no-op jobs until their follower has all events, of the plain one, "
            f"{name}", "published", f"{followed:.2f} (of {plain:,.0f} jobs/s)", True, command,
        ),
    ]  # fmt: skip


def followers_figures(jobs: int = JOBS) -> list[Figure]:
    """On SQLite and on PostgreSQL."""
    with scratch() as folder:
        numbers = iter(range(1_000))
        sqlite = costs("SQLite", lambda: f"sqlite:///{folder / f'{next(numbers)}.db'}", jobs)
    with durable() as server:
        postgres = costs("PostgreSQL", server.fresh, jobs)
    return [*sqlite, *postgres]


if __name__ == "__main__":
    print(drain(sys.argv[1], sys.argv[2], int(sys.argv[3])))
