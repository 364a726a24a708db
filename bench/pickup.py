"""From the moment before `engine.submit` until the stage starts: in this process, or in another."""

from __future__ import annotations

import random
import statistics
import threading
import time
from typing import Any

import ulak
from bench import postgres
from bench.measure import Figure, scratch
from ulak.cli import speed

JOBS = 200
BEST_OF = 3
BOUND_MS = 2.0
POSTGRES_P50_MS = 3.0
POSTGRES_P99_MS = 15.0


def pickup_figure() -> Figure:
    """One job at a time, at random moments; the machine should be idle, hence the best of three."""
    taken = [pickup() for _ in range(BEST_OF)]
    p50, p99 = min(taken)
    return Figure(
        "pickup p50 in one process, best of three",
        f"<= {BOUND_MS:g} ms",
        f"{p50:.2f} ms (p99 {p99:.2f} ms)",
        p50 <= BOUND_MS,
        "python -m bench.figures pickup",
    )


def postgres_pickup_figures(jobs: int = 2 * JOBS) -> list[Figure]:
    """The worker is another process, and hears by a notification."""
    with postgres.durable() as server:
        taken = [speed.pickup(server.fresh(), jobs) for _ in range(BEST_OF)]
    p50, p99 = min(taken)
    what = "pickup from one process to another, PostgreSQL, best of three"
    command = "python -m bench.figures postgres-pickup"
    return [
        Figure(
            f"{what}: p50", f"<= {POSTGRES_P50_MS:g} ms", f"{p50:.2f} ms",
            p50 <= POSTGRES_P50_MS, command,
        ),
        Figure(
            f"{what}: p99", f"<= {POSTGRES_P99_MS:g} ms", f"{p99:.2f} ms",
            p99 <= POSTGRES_P99_MS, command,
        ),
    ]  # fmt: skip


def pickup(jobs: int = JOBS) -> tuple[float, float]:
    """Return the median and the 99th percentile in milliseconds."""
    started: list[float] = []
    begun = threading.Event()

    async def handle(run: ulak.Run[Any]) -> None:
        started.append(time.perf_counter())
        begun.set()

    flow: ulak.Flow[Any] = ulak.Flow.steps("pickup", ("handle", handle))
    dice = random.Random(1)
    waits: list[float] = []
    with (
        scratch() as folder,
        ulak.connect(f"sqlite:///{folder / 'pickup.db'}", flows=[flow]) as engine,
        engine.working(),
    ):
        for _ in range(jobs):
            time.sleep(dice.uniform(0.005, 0.040))
            begun.clear()
            before = time.perf_counter()
            job = engine.submit(flow)
            assert begun.wait(10), f"job {job.id} was not picked up"
            waits.append((started[-1] - before) * 1000)
    return statistics.median(waits), statistics.quantiles(waits, n=100)[98]
