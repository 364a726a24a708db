"""From the end of a stage until two handlers in two other processes have its message.

The clock begins before the commit, so that its flush is part of the time. The machine should be
idle. `python -m bench.deliveries URL NAME COUNT` is such a process.
"""

from __future__ import annotations

import random
import statistics
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import ulak
from bench import postgres
from bench.measure import Figure, in_child, scratch

MESSAGES = 200
BOUND_MS = 100.0
TOPIC = "bench.delivered"
NAMES = ("first", "second")
PATIENCE_S = 60.0


def deliveries_figures(messages: int = MESSAGES) -> list[Figure]:
    """Measure on SQLite and on PostgreSQL; the slower of both handlers counts."""
    with scratch() as folder:
        figures = [_figure("SQLite", deliver(f"sqlite:///{folder / 'd.db'}", messages))]
    with postgres.durable() as server:
        figures.append(_figure("PostgreSQL", deliver(server.fresh(), messages)))
    return figures


def _figure(store: str, p95: float) -> Figure:
    return Figure(
        f"from a stage's end to two handlers in two other processes, {store}: p95",
        f"<= {BOUND_MS:g} ms", f"{p95:.1f} ms", p95 <= BOUND_MS,
        "python -m bench.figures deliveries",
    )  # fmt: skip


def deliver(url: str, messages: int) -> float:
    """Send messages one at a time; return the 95th percentile of the slower handler, in ms."""

    async def send(run: ulak.Run[Any]) -> None:
        run.emit(TOPIC, time.monotonic())

    flow: ulak.Flow[Any] = ulak.Flow.steps("sends", ("send", send))
    dice = random.Random(1)
    with (
        ThreadPoolExecutor(len(NAMES)) as pool,
        ulak.connect(url, flows=[flow]) as engine,
        engine.working(),
    ):
        children = [
            pool.submit(in_child, "bench.deliveries", url, name, messages) for name in NAMES
        ]
        deadline = time.monotonic() + PATIENCE_S
        while set(engine.outbox.handlers()) != set(NAMES):
            assert time.monotonic() < deadline, "the handlers did not start"
            time.sleep(0.1)
        for _ in range(messages):
            time.sleep(dice.uniform(0.02, 0.06))
            engine.submit(flow)
        return max(child.result() for child in children)


def serve(url: str, name: str, messages: int) -> float:
    """Be a program with one handler; return the 95th percentile of its delays in milliseconds."""
    engine, delays, is_done = ulak.connect(url), list[float](), threading.Event()

    @engine.on(TOPIC, name=name)
    async def receive(message: ulak.Message) -> None:
        delays.append((time.monotonic() - message.data) * 1000)
        if len(delays) == messages:
            is_done.set()

    with engine, engine.working():
        is_done.wait()
    return statistics.quantiles(delays, n=100)[94]


if __name__ == "__main__":
    print(serve(sys.argv[1], sys.argv[2], int(sys.argv[3])))
