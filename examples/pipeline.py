"""A pipeline with 2,000 concurrent awaits in one worker: jobs that wait cost next to nothing.

Run it: `python examples/pipeline.py`
"""

import asyncio
import tempfile
import time
from dataclasses import dataclass

import ulak
from ulak import Run, WorkerSettings

JOBS = 2_000
WAIT_S = 1.0
AT_MOST_S = 30  # far above the few seconds it takes, for machines that are busy


@dataclass(frozen=True)
class Page:
    number: int


async def fetch(run: Run[Page]) -> str:
    """Wait for a slow server."""
    in_flight.begin()
    await asyncio.sleep(WAIT_S)
    in_flight.end()
    return f"page {run.payload.number}"


async def store(run: Run[Page]) -> None:
    """Wait for another one."""
    await asyncio.sleep(WAIT_S)


class InFlight:
    """Counts how many stages wait at once."""

    now = most = 0

    def begin(self) -> None:
        self.now += 1
        self.most = max(self.most, self.now)

    def end(self) -> None:
        self.now -= 1


in_flight = InFlight()
pipeline: ulak.Flow[Page] = ulak.Flow.steps("pipeline", fetch, store, payload=Page)


async def main() -> None:
    with tempfile.TemporaryDirectory() as folder:
        engine = ulak.connect(f"sqlite:///{folder}/pipeline.db", flows=[pipeline])
        with engine:
            await engine.aio.submit_many(pipeline, [Page(n) for n in range(JOBS)])
            began = time.monotonic()
            worker = engine.worker(WorkerSettings(loop=JOBS))
            await worker.run(until_idle=True)
            took = time.monotonic() - began
            done = sum(row.jobs for row in await engine.aio.inspect.counts() if row.state == "done")

    print(f"{done:,} of {JOBS:,} jobs are done, each after two waits of {WAIT_S:g} s")
    print(f"in one worker, more than half of them waiting at once: {in_flight.most > JOBS / 2}")
    print(f"{JOBS * 2 * WAIT_S:,.0f} s of waiting in less than {AT_MOST_S} s: {took < AT_MOST_S}")


if __name__ == "__main__":
    asyncio.run(main())
