"""The clock of a soak's machine: all its processes read it, and a fault may set it.

How far it was set is a number in a file of the soak's folder, which every process has mapped. What
has passed since the start of the machine goes on as it is: nobody can set that.
"""

from __future__ import annotations

import mmap
import os
import time
from datetime import timedelta
from pathlib import Path

from ulak.clock import Instant, SystemClock, Uptime, micros

FILE = "clock"
BYTES = 8

_machine_time_ns = time.time_ns


class SteppedClock:
    """The time of day of the machine, plus what it was set by."""

    def __init__(self, folder: Path) -> None:
        fd = os.open(folder / FILE, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
        try:
            os.ftruncate(fd, BYTES)
            self._set_by = mmap.mmap(fd, BYTES)
        finally:
            os.close(fd)

    def now(self) -> Instant:
        return _machine_time_ns() // 1000 + int.from_bytes(self._set_by, "little", signed=True)

    def uptime(self) -> Uptime:
        return SystemClock().uptime()

    def set_by(self, span: timedelta) -> None:
        """Set the clock of every process: so far from the true time."""
        self._set_by[:] = micros(span).to_bytes(BYTES, "little", signed=True)

    def rule_process(self) -> None:
        """Have this process read the time of day here, whatever asks for it."""
        time.time_ns = lambda: self.now() * 1000
        time.time = lambda: self.now() / 1e6
