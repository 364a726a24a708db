"""Two thousand async stages that wait two seconds, all at once in one worker (E-41)."""

from __future__ import annotations

import asyncio
import time
from typing import Any

import ulak
from bench.measure import Figure, scratch
from ulak.cli.speed import LastCommit, fill

STAGES = 2_000
WAIT_S = 2.0
MOST = 1.25


def crowd_figure() -> Figure:
    """From the worker's start to the last durable end, without the time that claims took."""
    total, claims = crowd()
    factor = (total - claims) / WAIT_S
    return Figure(
        "2,000 concurrent async stages that wait 2 s, in one worker: end within, beside claims",
        f"<= {MOST} x 2 s",
        f"{factor:.2f} x 2 s (all of it {total:.2f} s, claims {claims:.2f} s)",
        factor <= MOST,
        "python -m bench.figures crowd",
    )


def crowd(stages: int = STAGES) -> tuple[float, float]:
    """Return the seconds until the last is durably done, and until the last was claimed."""
    begun: list[float] = []
    last = LastCommit()

    async def wait(run: ulak.Run[Any]) -> None:
        begun.append(time.perf_counter())
        await asyncio.sleep(WAIT_S)

    async def work(engine: ulak.Engine) -> float:
        settings = ulak.WorkerSettings(loop=stages)
        started = time.perf_counter()
        await engine.worker(settings).run(until_idle=True)
        return started

    flow: ulak.Flow[Any] = ulak.Flow.steps("crowd", ("wait", wait))
    with (
        scratch() as folder,
        ulak.connect(f"sqlite:///{folder / 'crowd.db'}", flows=[flow]) as engine,
    ):
        fill(engine, flow, stages)
        engine.kernel.telemetry.add(last)
        started = asyncio.run(work(engine))
        assert len(begun) == stages
    return last.at - started, max(begun) - started
