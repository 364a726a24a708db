"""A program of its own, for tests that need real processes: `python -m tests.scenario.program`.

    program work URL [LEASE_S [DRAIN_S]]     works until SIGTERM, then drains

Every stage writes a line into the file `ledger` of its folder, and waits while `hold` is there.
"""

import asyncio
import os
import signal
import subprocess
import sys
import time
from datetime import timedelta
from pathlib import Path
from typing import Any

import ulak

FOLDER = "ULAK_TEST_FOLDER"
"""Names the folder of the ledger. A test that runs these flows in its own process must set it:
without it a stage fails, instead of writing where the tests happen to be run."""


def tell(*words: object) -> None:
    """Write a line into the ledger."""
    with Path(os.environ[FOLDER], "ledger").open("a") as ledger:
        ledger.write(" ".join(map(str, words)) + "\n")


def is_held() -> bool:
    return Path(os.environ[FOLDER], "hold").exists()


async def on_the_loop(run: ulak.Run[Any]) -> str:
    tell("start", "loop", os.getpid())
    try:
        while is_held():
            await asyncio.sleep(0.02)
    except asyncio.CancelledError:
        tell("cancelled", "loop", run.cancelled)
        raise
    return "loop"


def in_a_thread(run: ulak.Run[Any]) -> str:
    tell("start", "thread", os.getpid())
    while is_held():
        if run.cancelled:
            tell("asked", "thread")
            raise InterruptedError("asked to stop")
        time.sleep(0.02)
    return "thread"


def deaf(run: ulak.Run[Any]) -> str:
    tell("start", "deaf", os.getpid())
    while is_held():
        time.sleep(0.02)
    return "deaf"


def _flow(name: str, work: Any, **options: Any) -> ulak.Flow[Any]:
    flow: ulak.Flow[Any] = ulak.Flow(
        name, ulak.Lifecycle("queued", {"queued": ["done"]}), retry=0, queue="all"
    )
    flow.stage("queued", **options)(work)
    return flow


loop_flow = _flow("loop", on_the_loop)
thread_flow = _flow("thread", in_a_thread)
deaf_flow = _flow("deaf", deaf)
narrow_flow = _flow("narrow", on_the_loop, limit=ulak.Limit(2))

oven_flow: ulak.Flow[Any] = ulak.Flow(
    "oven", ulak.Lifecycle("raw", {"raw": ["baking"], "baking": ["done"]}), queue="all"
)
oven_flow.stage(
    "raw", during="baking", limit=ulak.Limit(2, key=lambda loaf: loaf["key"], of="state")
)(on_the_loop)

isolated_flow: ulak.Flow[Any] = ulak.Flow(
    "isolated", ulak.Lifecycle("queued", {"queued": ["done"]}), retry=0
)


@isolated_flow.stage("queued", isolate="process", timeout=timedelta(seconds=30))
def isolated(run: ulak.Run[str]) -> str:
    tell("start", "isolated", os.getpid(), run.payload)
    while is_held():
        if run.cancelled:
            tell("asked", "isolated")
        time.sleep(0.02)
    return "isolated"


FLOWS = (loop_flow, thread_flow, deaf_flow, narrow_flow, oven_flow, isolated_flow)


def engine_at(url: str) -> ulak.Engine:
    return ulak.connect(url, flows=FLOWS)


def start(url: str, folder: Path, *options: object) -> subprocess.Popen[bytes]:
    """Start a worker of this program on a store; its ledger is in the folder."""
    return subprocess.Popen(
        [sys.executable, "-m", __name__, "work", url, *map(str, options)],
        env={**os.environ, FOLDER: str(folder)},
        cwd=Path(__file__).parents[2],
    )


def ledger(folder: Path) -> list[str]:
    """Every line written so far."""
    path = folder / "ledger"
    return path.read_text().splitlines() if path.exists() else []


def work(url: str, lease_s: float = 30.0, drain_s: float = 5.0) -> None:
    engine = engine_at(url)
    worker = engine.worker(
        ulak.WorkerSettings(
            lease=timedelta(seconds=lease_s),
            drain=timedelta(seconds=drain_s),
            poll=timedelta(seconds=0.1),
            glance=timedelta(seconds=0.02),
        )
    )
    signal.signal(signal.SIGTERM, lambda *_: worker.stop())
    asyncio.run(worker.run())
    engine.close()


if __name__ == "__main__":
    work(sys.argv[2], *map(float, sys.argv[3:]))
