"""The clock of a server, as far as it was heard."""

from __future__ import annotations

import time

from ulak.clock import Instant, SystemClock, Uptime


class ServerClock:
    """Tells the time of the database server; before it has answered, that of this machine.

    Each claim and each renewal brings its time along: to ask each time would cost a round trip.
    """

    def __init__(self) -> None:
        # One tuple, replaced whole: every thread reads it.
        self._heard = (SystemClock().now(), time.monotonic_ns())

    def hear(self, now: Instant) -> None:
        self._heard = (now, time.monotonic_ns())

    def now(self) -> Instant:
        said, heard_at = self._heard
        return said + (time.monotonic_ns() - heard_at) // 1000

    def uptime(self) -> Uptime:
        return SystemClock().uptime()
