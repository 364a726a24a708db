"""A worker as somebody's child: it reports to its parent, and does not outlive it."""

from __future__ import annotations

import asyncio
import ctypes
import os
import signal
import socket
import stat

from ulak.engine.worker import Worker
from ulak.errors import BadInput

# From <linux/prctl.h>: the signal that a process gets when its parent has ended.
PR_SET_PDEATHSIG = 1
# A guess: short beside the time a process takes to start, long beside a turn of the loop.
GLANCE_S = 0.02
# How often a child looks whether its lease was renewed; a lease lasts a second at least.
REPORT_EVERY_S = 0.2


class Parent:
    """The process that has started this one and holds the other end of its standard input.

    From now on the kernel kills this process when the parent ends, however that happens and
    whatever this process does just then.

    Raises:
        BadInput: standard input is no such line, so a person has typed this.
    """

    def __init__(self) -> None:
        if not stat.S_ISSOCK(os.fstat(0).st_mode):
            raise BadInput("--child is how `ulak up` starts its children; leave it out")
        # Under another number, which what stages start does not inherit.
        self._line = socket.socket(fileno=os.dup(0))
        self._line.setblocking(False)
        nothing = os.open(os.devnull, os.O_RDONLY)
        os.dup2(nothing, 0)
        os.close(nothing)
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)

    async def tell_of(self, worker: Worker) -> None:
        """Report that the worker is registered, and then each renewal of its lease."""
        told = None
        while True:
            lease = worker.lease if worker.is_registered else None
            if lease is not None and lease.renewed_at != told:
                told = lease.renewed_at
                self._report()
            await asyncio.sleep(GLANCE_S if told is None else REPORT_EVERY_S)

    def _report(self) -> None:
        try:
            self._line.send(b"r")
        except BlockingIOError:
            pass  # a parent that stands still has enough to read
        except ConnectionError:
            # It had ended before the kernel was asked to watch it.
            os._exit(1)

    def close(self) -> None:
        """Give up the line."""
        self._line.close()
