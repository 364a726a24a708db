"""A worker that stops when it is told to: once to drain, twice to hurry, three times to die."""

from __future__ import annotations

import asyncio
import os
import signal
import sys

from ulak.cli.output import complain, some
from ulak.engine.worker import Worker

SIGNALS = (signal.SIGTERM, signal.SIGINT)


async def run_until_told(worker: Worker) -> None:
    """Run a worker until SIGTERM or SIGINT has come and it has drained."""
    loop = asyncio.get_running_loop()
    told = 0

    def hear() -> None:
        nonlocal told
        told += 1
        if told == 1:
            patience = worker.settings.drain.total_seconds()
            busy = (
                f"; {some(worker.running, 'stage')} may take {patience:g} s"
                if worker.running
                else ""
            )
            say(f"draining{busy}; a second signal hurries")
            worker.stop()
        elif told == 2:
            say("hurrying: what can be stopped is stopped now")
            worker.hurry()
            for number in SIGNALS:
                loop.remove_signal_handler(number)

    for number in SIGNALS:
        loop.add_signal_handler(number, hear)
    try:
        await worker.run()
    finally:
        for number in SIGNALS:
            loop.remove_signal_handler(number)


def leave_behind(worker: Worker) -> None:
    """End the process at once if stages are left that would not stop: nothing else can end them.

    Their leases lapse, and other workers take the jobs.
    """
    if worker.running:
        lease_s = worker.settings.lease.total_seconds()
        complain(
            f"{some(worker.running, 'stage')} did not stop in time; other workers may take "
            f"what is left when the lease has lapsed, in {lease_s:g} s"
        )
        sys.stdout.flush()
        os._exit(1)


def say(message: str) -> None:
    """Tell whoever watches; at once, since a pipe would keep it back."""
    print(message, flush=True)
