"""How many requests a principal may make in a minute, by group of routes."""

from __future__ import annotations

from threading import Lock
from typing import Final

from ulak.control.tallies import OTHER

WINDOW_MS: Final = 60_000
MOST_COUNTED: Final = 10_000
"""Principals of one minute that are counted each for itself; those beyond share one count."""


class RateLimiter:
    """Fixed windows of a minute, counted in this process; time is passed in."""

    def __init__(self, *, most: int = MOST_COUNTED) -> None:
        self._most = most
        self._lock = Lock()
        self._window = 0
        self._counts: dict[tuple[str, str], int] = {}

    def take(self, group: str, principal: str, limit: int, now_ms: int) -> int:
        """Count one request; return 0 if it is within the limit, else after how many seconds the
        next window begins."""
        window, passed_ms = divmod(now_ms, WINDOW_MS)
        with self._lock:
            if window != self._window:
                self._window = window
                self._counts.clear()
            counts, key = self._counts, (group, principal)
            if key not in counts and len(counts) >= self._most:
                key = group, OTHER
            counted = counts.get(key, 0)
            if counted >= limit:
                return max(1, -((passed_ms - WINDOW_MS) // 1000))
            counts[key] = counted + 1
            return 0
