"""A server that begins when its store is there, and stops at a signal: the first drains, the second
hurries, the third kills."""

from __future__ import annotations

import asyncio
import logging
import os
import random
import signal
import sys
import time
from collections import Counter
from collections.abc import Sequence
from typing import Protocol

from ulak.clock import Duration, seconds
from ulak.engine.engine import Engine
from ulak.engine.threads import call_on
from ulak.engine.worker import Worker
from ulak.kit.commands.output import complain, say, some
from ulak.store.processes import StoreAway

log = logging.getLogger("ulak.processes")

AGAIN_S = 0.5
SIGNALS = (signal.SIGTERM, signal.SIGINT)


class Part(Protocol):
    """One of the things that a process runs: a worker, or the children that it keeps."""

    @property
    def running(self) -> int: ...

    async def run(self) -> None: ...

    def stop(self) -> None: ...

    def hurry(self) -> None: ...


Parts = Sequence[tuple[str, Part]]
"""The parts of a process, each with the name of what it counts as running."""


class Waiting:
    """The part of a process that has nothing else to run: it waits until it is told to stop."""

    running = 0

    def __init__(self) -> None:
        self._is_told = False
        self._loop: asyncio.AbstractEventLoop | None = None

    async def run(self) -> None:
        self._told = asyncio.Event()
        self._loop = asyncio.get_running_loop()
        if not self._is_told:
            await self._told.wait()

    def stop(self) -> None:
        """End `run`. May be called from any thread, before `run` too."""
        self._is_told = True
        if self._loop is not None:
            call_on(self._loop, self._told.set)

    hurry = stop


def open_when_reached(engine: Engine, *, migrating: bool = False) -> None:
    """Open an engine, after bringing its store to this release if `migrating`. While the store is
    away, wait for it, and say so once. A machine that starts has its processes in any order, and a
    server may come back later than those that need it. Raises `StoreError`: the store was reached
    and refuses; waiting would not help."""
    draw = random.Random()  # noqa: S311 - spreads attempts, decides nothing else
    has_said = False
    while True:
        try:
            if migrating:
                engine.store.migrate()
            engine.open()
            return
        except StoreAway as error:
            if not has_said:
                log.warning("the store is away; waiting for it", extra={"error": str(error)})
            has_said = True
            time.sleep(AGAIN_S * (1 + draw.random()) / 2)


async def run_until_told(parts: Parts, *, drain: Duration, is_child: bool = False) -> None:
    """Run parts until SIGTERM or SIGINT has come and all have drained.

    When one of them ends by itself, the others drain too, and what it raised is raised.

    As a child it prints nothing, since a supervisor speaks for it, and only SIGINT hurries it:
    SIGTERM may come twice, from the supervisor and from whoever stops everybody.
    """
    loop = asyncio.get_running_loop()
    tell = str if is_child else say
    is_told = False

    def hear(number: int) -> None:
        nonlocal is_told
        if number == signal.SIGINT if is_child else is_told:
            if not is_child:
                _hear_no_more(loop)
            tell("hurrying: what can be stopped is stopped now")
            for _, part in parts:
                part.hurry()
            return
        is_told = True
        tell(f"draining{_busy(parts, drain)}; a second signal hurries")
        for _, part in parts:
            part.stop()

    for number in SIGNALS:
        loop.add_signal_handler(number, hear, number)
    running = [asyncio.create_task(part.run()) for _, part in parts]
    try:
        await asyncio.wait(running, return_when=asyncio.FIRST_COMPLETED)
        for _, part in parts:
            part.stop()
        await asyncio.wait(running)
        for ended in running:
            ended.result()
    finally:
        _hear_no_more(loop)


def _hear_no_more(loop: asyncio.AbstractEventLoop) -> None:
    for number in SIGNALS:
        loop.remove_signal_handler(number)


def _busy(parts: Parts, drain: Duration) -> str:
    running: Counter[str] = Counter()
    for what, part in parts:
        running[what] += part.running
    waited = [some(number, what) for what, number in running.items() if number]
    return f"; {' and '.join(waited)} may take {seconds(drain):g} s" if waited else ""


def leave_behind(parts: Parts) -> None:
    """End the process at once if stages are left that would not stop: nothing else can end them.
    Their leases lapse, and other workers take the jobs."""
    left = [part for _, part in parts if isinstance(part, Worker) and part.running]
    for worker in left:
        lease_s = seconds(worker.settings.lease)
        complain(
            f"{some(worker.running, 'stage')} did not stop in time; other workers may take "
            f"what is left when the lease has lapsed, in {lease_s:g} s"
        )
    if left:
        sys.stdout.flush()
        os._exit(1)
