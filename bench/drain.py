"""How fast one worker process drains no-op jobs from SQLite, every commit flushed, trail on.

`python -m bench.drain FOLDER async|plain JOBS STAGES`: stages per second, from the start of the
worker's run until the last job is durably done.
"""

from __future__ import annotations

import argparse
import asyncio
import time
from pathlib import Path
from typing import Any

import ulak
from bench.ceiling import ceiling
from bench.measure import Figure, alternate, in_child, scratch
from ulak.engine.process import settle_in

JOBS = 10_000
LONG_JOBS = 2_000
LONG_STAGES = 8
OF_THE_CEILING = 0.06


def drain(kind: str = "async", jobs: int = JOBS, stages: int = 1) -> float:
    """Answer stages per second of a worker in a process of its own."""
    with scratch() as folder:
        return in_child("bench.drain", folder, kind, jobs, stages)


def drain_figure() -> Figure:
    """No-op jobs against the bare loop that moves rows."""
    ours, bare = alternate(drain, ceiling)
    plain = drain("plain")
    return Figure(
        "drain of 10,000 no-op jobs, one worker process, SQLite FULL, of `sqlite_rate`",
        f">= {OF_THE_CEILING}",
        f"{ours / bare:.4f} ({ours:,.0f} jobs/s of {bare:,.0f}; plain def {plain:,.0f} jobs/s)",
        ours / bare >= OF_THE_CEILING,
        "python -m bench.figures drain",
    )


def stages_figure() -> Figure:
    """Stages of long jobs against no-op jobs."""
    long, short = alternate(lambda: drain("async", LONG_JOBS, LONG_STAGES), drain)
    return Figure(
        "stages/s of 2,000 jobs of 8 stages, of the no-op jobs/s",
        ">= 1",
        f"{long / short:.2f} ({long:,.0f} stages/s of {short:,.0f} jobs/s)",
        long >= short,
        "python -m bench.figures stages",
    )


async def nothing(run: ulak.Run[Any]) -> None:
    """On the loop."""


def nothing_in_a_thread(run: ulak.Run[Any]) -> None:
    """In a thread."""


def flow_of(kind: str, stages: int) -> ulak.Flow[Any]:
    """A linear flow of stages that do nothing."""
    function = nothing if kind == "async" else nothing_in_a_thread
    return ulak.Flow.steps("noop", *[(f"s{n}", function) for n in range(stages)])


def fill(engine: ulak.Engine, flow: ulak.Flow[Any], jobs: int) -> None:
    """Submit that many jobs."""
    for start in range(0, jobs, 500):
        engine.submit_many(flow, [None] * min(500, jobs - start))


async def run_dry(engine: ulak.Engine) -> float:
    """Run a worker until nothing is left; answer the seconds until the last move was durable."""
    moved_at = [0.0]

    def moved() -> None:
        moved_at[0] = time.perf_counter()

    worker = engine.worker()
    stop = engine.on_move(moved)
    started = time.perf_counter()
    await worker.run(until_idle=True)
    stop()
    return moved_at[0] - started


def main() -> None:
    """Be the worker process."""
    parser = argparse.ArgumentParser()
    parser.add_argument("folder", type=Path)
    parser.add_argument("kind", choices=["async", "plain"])
    parser.add_argument("jobs", type=int)
    parser.add_argument("stages", type=int)
    given = parser.parse_args()
    flow = flow_of(given.kind, given.stages)
    with ulak.connect(f"sqlite:///{given.folder / 'drain.db'}", flows=[flow]) as engine:
        fill(engine, flow, given.jobs)
        settle_in()  # as `ulak worker` does
        took = asyncio.run(run_dry(engine))
        done = sum(c.jobs for c in engine.counts() if c.role == "done")
        assert done == given.jobs, f"{done} of {given.jobs} are done"
    print(given.jobs * given.stages / took)


if __name__ == "__main__":
    main()
