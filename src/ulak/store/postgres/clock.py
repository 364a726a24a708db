"""The server's time, on this machine: its last word plus what has passed here since."""

from __future__ import annotations

import time

from ulak.clock import Instant, SystemClock, Uptime

SERVER_TIME = "(extract(epoch FROM clock_timestamp()) * 1000000)::bigint"
"""The server's own time, at the moment when it comes to this expression."""


class ServerClock:
    """Tells the time of the database server; before it has answered, that of this machine.

    Many machines share one store, so the store's clock decides. Asking it each time would cost a
    round trip; each claim and each renewal brings its time along.
    """

    def __init__(self) -> None:
        # One tuple, replaced whole: every thread reads it.
        self._heard = (SystemClock().now(), time.monotonic_ns())

    def hear(self, now: Instant) -> None:
        """Take over what the server says."""
        self._heard = (now, time.monotonic_ns())

    def now(self) -> Instant:
        said, heard_at = self._heard
        return said + (time.monotonic_ns() - heard_at) // 1000

    def uptime(self) -> Uptime:
        return SystemClock().uptime()
