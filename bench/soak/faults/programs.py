"""The programs that stand in for the soak's workers while a fault of processes lasts.

`python -m bench.soak.faults.programs PART FOLDER --lease SECONDS --store URL`. Each serves the
orders of the soak, and something of its own beside them.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import signal
import threading
import time
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import Any

import ulak
from bench.soak.children import engine_of, opened, serve
from bench.soak.clock import SteppedClock
from bench.soak.ledger import Ledger
from ulak.engine import deliverer

SCHEDULE = "minutely"
CALL_S = 0.5
KEYS = 200
PRELOADED = 2
LOOK_EVERY_S = 0.1
PERMIT = "weighing-permit"
# Longer than a fault lasts: what forks is to be killed meanwhile.
FORKED_FOR_S = 600.0

Program = Callable[[Path, ulak.Engine, Ledger], None]
"""Adds to an engine of orders what a program has beside them."""


def scheduled(folder: Path, engine: ulak.Engine, ledger: Ledger) -> None:
    """A report of every minute that catches up on every date."""

    async def report(run: ulak.Run[Any]) -> None: ...

    flow: ulak.Flow[Any] = ulak.Flow.steps("report", ("write", report))
    engine.add(flow)
    engine.schedules.add(SCHEDULE, flow, {}, every=timedelta(minutes=1), catch_up="all")


def forking(folder: Path, engine: ulak.Engine, ledger: Ledger) -> None:
    """A stage that forks a child and waits; the next run of it ends."""
    flow: ulak.Flow[Any] = ulak.Flow("fork", ulak.Lifecycle("fork", {"fork": ["done"]}))

    @flow.stage("fork")
    def fork(run: ulak.Run[Any]) -> None:
        if run.token > 1:
            return
        child = os.fork()
        if child == 0:
            while True:
                signal.pause()  # it has whatever its parent had open
        ledger.append("forked", child)
        time.sleep(FORKED_FOR_S)

    engine.add(flow)


def plainly_slow(folder: Path, engine: ulak.Engine, ledger: Ledger) -> None:
    """A plain publisher of half a second, and a job that emits to many keys."""

    def publish(message: ulak.Message) -> None:
        time.sleep(CALL_S)
        ledger.append("sent", message.id)

    _emit_to_many_keys(engine)
    engine.outbox.publish(publish)


def asynchronously_slow(folder: Path, engine: ulak.Engine, ledger: Ledger) -> None:
    """An async publisher of half a second, and a job that emits to many keys."""

    async def publish(message: ulak.Message) -> None:
        await asyncio.sleep(CALL_S)
        ledger.append("sent", message.id)

    _emit_to_many_keys(engine)
    engine.outbox.publish(publish)


def _emit_to_many_keys(engine: ulak.Engine) -> None:
    async def emit(run: ulak.Run[Any]) -> None:
        for n in range(KEYS):
            run.emit("slow", n, key=f"{run.job_id}-{n}")

    engine.add(ulak.Flow.steps("crowd", ("emit", emit)))


def release_a(folder: Path, engine: ulak.Engine, ledger: Ledger) -> None:
    """The release before: parcels of version 1 are sorted and sent."""
    engine.add(_parcel(1, {"sort": ["send"], "send": ["done"]}, folder))


def release_b(folder: Path, engine: ulak.Engine, ledger: Ledger) -> None:
    """The next release: parcels of version 1 are weighed too, and there is a version 2."""
    weighed = {"sort": ["weigh", "send"], "weigh": ["send"], "send": ["done"]}
    engine.add(_parcel(1, weighed, folder))
    engine.add(_parcel(2, {"wrap": ["send"], "send": ["done"]}, folder))


def _parcel(version: int, moves: dict[str, list[str]], folder: Path) -> ulak.Flow[Any]:
    life = ulak.Lifecycle(next(iter(moves)), moves)
    flow: ulak.Flow[Any] = ulak.Flow("parcel", life, version=version)

    def declare(state: str, following: str) -> None:
        @flow.stage(state)
        async def work(run: ulak.Run[Any]) -> ulak.Goto | ulak.RetryLater:
            if state == "weigh" and not (folder / PERMIT).exists():
                return ulak.RetryLater(0.2, why="the scales are in use")
            await asyncio.sleep(0.02)
            return ulak.Goto(following)

    for state, (following, *_) in moves.items():
        declare(state, following)
    return flow


def preloaded(folder: Path, engine: ulak.Engine, ledger: Ledger, lease_s: float) -> None:
    """Open the engine, fork workers and go on using it, as `gunicorn --preload` does.

    A worker that was killed is forked anew. All of them drain when this process gets SIGTERM, or
    is gone.
    """
    opened(engine).inspect.counts()
    read, write = os.pipe()
    stopping = threading.Event()

    def stop_with_parent() -> None:
        os.read(read, 1)
        os.kill(os.getpid(), signal.SIGTERM)

    def fork() -> int:
        if pid := os.fork():
            return pid
        code = 1
        try:
            os.close(write)
            threading.Thread(target=stop_with_parent, daemon=True).start()
            serve(engine, ledger, lease_s)
            code = 0
        finally:
            os._exit(code)

    workers = {fork() for _ in range(PRELOADED)}
    signal.signal(signal.SIGTERM, lambda *_: stopping.set())
    ledger.append("ready")
    while not stopping.wait(LOOK_EVERY_S):
        try:
            engine.inspect.counts()
        except ulak.StoreError:
            continue
        ended, _ = os.waitpid(-1, os.WNOHANG)
        if ended:
            workers.remove(ended)
            workers.add(fork())
    os.close(write)
    codes = [os.waitstatus_to_exitcode(os.waitpid(worker, 0)[1]) for worker in workers]
    engine.close()
    if any(codes):
        raise SystemExit(f"forked workers have ended with {codes}")


PROGRAMS: dict[str, Program] = {
    "scheduled": scheduled,
    "forking": forking,
    "plainly-slow": plainly_slow,
    "asynchronously-slow": asynchronously_slow,
    "release-a": release_a,
    "release-b": release_b,
}


def make_engine(part: str, folder: Path, url: str) -> tuple[ulak.Engine, Ledger]:
    """Make the engine of one of these programs."""
    engine, ledger = engine_of(folder, url)
    PROGRAMS[part](folder, engine, ledger)
    return engine, ledger


def main() -> None:
    """Be one of them, until SIGTERM."""
    parser = argparse.ArgumentParser(prog="bench.soak.faults.programs", description=__doc__)
    parser.add_argument("part", choices=[*PROGRAMS, "preloaded"])
    parser.add_argument("folder", type=Path)
    parser.add_argument("--lease", type=float, default=2.0)
    parser.add_argument("--store", required=True)
    given, _ = parser.parse_known_args()
    SteppedClock(given.folder).rule_process()
    # A worker that is replaced waits for every call that has begun, so that none is repeated.
    deliverer.PATIENCE_S = 100 * CALL_S
    if given.part == "preloaded":
        preloaded(given.folder, *engine_of(given.folder, given.store), given.lease)
    else:
        serve(*make_engine(given.part, given.folder, given.store), given.lease)


if __name__ == "__main__":
    main()
