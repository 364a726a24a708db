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
from collections.abc import Mapping

from ulak.cli.process.supervisor import Supervisor
from ulak.clock import Duration, seconds
from ulak.engine.engine import Engine
from ulak.engine.worker import Worker
from ulak.kit.commands.output import complain, some
from ulak.store.processes import StoreAway

log = logging.getLogger("ulak.cli")

AGAIN_S = 0.5
SIGNALS = (signal.SIGTERM, signal.SIGINT)


Part = Worker | Supervisor
"""One of the things that a process runs: a worker, or the children that it keeps."""


def open_when_reached(engine: Engine) -> None:
    """Open an engine. While its store is away, wait for it, and say so once. A machine that starts
    has its processes in any order, and a server may come back later than those that need it. Raises
    `StoreError`: the store was reached and refuses; waiting would not help."""
    draw = random.Random()  # noqa: S311 - spreads attempts, decides nothing else
    has_said = False
    while True:
        try:
            engine.open()
            return
        except StoreAway as error:
            if not has_said:
                log.warning("the store is away; waiting for it", extra={"error": str(error)})
            has_said = True
            time.sleep(AGAIN_S * (1 + draw.random()) / 2)


async def run_until_told(
    parts: Mapping[str, Part], *, drain: Duration, is_child: bool = False
) -> None:
    """Run parts until SIGTERM or SIGINT has come and all have drained.

    When one of them ends by itself, the others drain too, and what it raised is raised.

    Parts are named by what each of them counts as running. As a child it prints nothing, since a
    supervisor speaks for it, and only SIGINT hurries it: SIGTERM may come twice, from the
    supervisor and from whoever stops everybody.
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
            for part in parts.values():
                part.hurry()
            return
        is_told = True
        tell(f"draining{_busy(parts, drain)}; a second signal hurries")
        for part in parts.values():
            part.stop()

    for number in SIGNALS:
        loop.add_signal_handler(number, hear, number)
    running = [asyncio.create_task(part.run()) for part in parts.values()]
    try:
        await asyncio.wait(running, return_when=asyncio.FIRST_COMPLETED)
        for part in parts.values():
            part.stop()
        await asyncio.wait(running)
        for ended in running:
            ended.result()
    finally:
        _hear_no_more(loop)


def _hear_no_more(loop: asyncio.AbstractEventLoop) -> None:
    for number in SIGNALS:
        loop.remove_signal_handler(number)


def _busy(parts: Mapping[str, Part], drain: Duration) -> str:
    waited = [some(part.running, what) for what, part in parts.items() if part.running]
    return f"; {' and '.join(waited)} may take {seconds(drain):g} s" if waited else ""


def leave_behind(worker: Worker) -> None:
    """End the process at once if stages are left that would not stop: nothing else can end them.
    Their leases lapse, and other workers take the jobs."""
    if worker.running:
        lease_s = seconds(worker.settings.lease)
        complain(
            f"{some(worker.running, 'stage')} did not stop in time; other workers may take "
            f"what is left when the lease has lapsed, in {lease_s:g} s"
        )
        sys.stdout.flush()
        os._exit(1)


def say(message: str) -> None:
    """Tell whoever watches; at once, since a pipe would keep it back."""
    print(message, flush=True)
