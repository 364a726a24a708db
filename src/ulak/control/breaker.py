"""A circuit breaker: what fails too often is left alone for a while, and then tried again."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass
from enum import StrEnum
from threading import Lock
from typing import Final

SLOT_MS: Final = 1_000
"""Outcomes are kept by the second: the window slides in such steps."""


class BreakerState(StrEnum):
    CLOSED = "closed"
    OPEN = "open"
    HALF_OPEN = "half-open"


@dataclass(frozen=True, slots=True)
class BreakerTerms:
    """When a breaker opens, and how it closes."""

    failure_pct: float = 50.0
    """Of the outcomes in the window: as many or more open it."""
    window_ms: int = 60_000
    min_events: int = 10
    """Fewer outcomes than these never open it."""
    open_ms: int = 30_000
    probes: int = 3
    """So many are let through before it closes; the first that fails opens it again."""


class FailureRateBreaker:
    """One breaker; time is passed in. Any thread may use it."""

    def __init__(self, terms: BreakerTerms) -> None:
        self._terms = terms
        self._lock = Lock()
        self._slots: deque[list[int]] = deque()
        """A second, its outcomes, and how many of them failed."""
        self._total = self._failed = 0
        self._state = BreakerState.CLOSED
        self._since_ms = 0
        self._round = 0
        """Moves with the state: an outcome of an earlier one does not count in this one."""
        self._probes = self._passed = 0

    def admit(self, now_ms: int) -> int | None:
        """Return a pass for one request, to be given to `record` or `release`; None: not now."""
        with self._lock:
            if self._state is BreakerState.CLOSED:
                return self._round
            if self._is_over(now_ms):
                self._enter(BreakerState.HALF_OPEN, now_ms)
            if self._state is BreakerState.OPEN or self._probes >= self._terms.probes:
                return None
            self._probes += 1
            return self._round

    def record(self, given: int, now_ms: int, *, failed: bool) -> None:
        """Take the outcome of a request that had a pass."""
        with self._lock:
            if given != self._round:
                return
            if self._state is BreakerState.CLOSED:
                self._count(now_ms, failed)
            elif failed:
                self._enter(BreakerState.OPEN, now_ms)
            else:
                self._passed += 1
                if self._passed >= self._terms.probes:
                    self._enter(BreakerState.CLOSED, now_ms)

    def release(self, given: int) -> None:
        """Take back a pass whose request does not count for the dependency."""
        with self._lock:
            if given == self._round and self._state is BreakerState.HALF_OPEN:
                self._probes -= 1

    def state(self, now_ms: int) -> BreakerState:
        """Return how it stands; it is half open as soon as a request could be a probe."""
        with self._lock:
            is_due = self._state is BreakerState.OPEN and self._is_over(now_ms)
            return BreakerState.HALF_OPEN if is_due else self._state

    def retry_after_ms(self, now_ms: int) -> int:
        """Return for how long it stays open."""
        with self._lock:
            return max(0, self._since_ms + self._terms.open_ms - now_ms)

    def _is_over(self, now_ms: int) -> bool:
        """Tell whether it is time for other probes. Those of a half open one may never end."""
        return now_ms - self._since_ms >= self._terms.open_ms

    def _enter(self, state: BreakerState, now_ms: int) -> None:
        self._state, self._since_ms = state, now_ms
        self._round += 1
        self._probes = self._passed = self._total = self._failed = 0
        self._slots.clear()

    def _count(self, now_ms: int, failed: bool) -> None:
        terms, slots, second = self._terms, self._slots, now_ms // SLOT_MS
        oldest = (now_ms - terms.window_ms) // SLOT_MS
        while slots and slots[0][0] <= oldest:
            _, total, lost = slots.popleft()
            self._total -= total
            self._failed -= lost
        if not slots or slots[-1][0] != second:
            slots.append([second, 0, 0])
        slots[-1][1] += 1
        self._total += 1
        if not failed:
            return
        slots[-1][2] += 1
        self._failed += 1
        if (
            self._total >= terms.min_events
            and self._failed * 100 >= terms.failure_pct * self._total
        ):
            self._enter(BreakerState.OPEN, now_ms)
