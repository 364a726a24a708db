"""Time, through one door: instants are whole microseconds since 1970 in UTC.

Inside, an instant is an `int`: it is compared, stored and indexed as it is, and costs nothing
to read back. At the edge it becomes an aware `datetime`.
"""

from __future__ import annotations

import time
from datetime import UTC, datetime, timedelta
from functools import cache
from pathlib import Path
from typing import NamedTuple, Protocol

from ulak.errors import BadInput

Instant = int
"""Microseconds since 1970-01-01T00:00:00Z."""

SECOND = 1_000_000

Duration = timedelta | float
"""How programs say how long: a timedelta, or a number of seconds."""

LONGEST_DURATION = timedelta(days=36_500)

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_MICROSECOND = timedelta(microseconds=1)


class Uptime(NamedTuple):
    """How long a machine has been running: nobody can set it, unlike the time of day."""

    boot: str
    """Which start of the machine it is counted from; empty where the machine does not tell."""
    us: int
    """Microseconds since then, those in which the machine slept too."""


class Clock(Protocol):
    """Tells the time that decides. A store owns one; nobody else asks the machine."""

    def now(self) -> Instant:
        """Return the present instant."""

    def uptime(self) -> Uptime:
        """Return how long the machine has been running, to compare with others of that machine."""


class SystemClock:
    """The machine's clock."""

    def now(self) -> Instant:
        return time.time_ns() // 1000

    def uptime(self) -> Uptime:
        boot = _read_boot_id()
        # The time of day stands in where a machine has no such clock, as on macOS.
        return Uptime(boot, time.clock_gettime_ns(_BOOTTIME) // 1000 if boot else self.now())


class ServerClock:
    """Tells the time of a database server; before it has answered, that of this machine.

    Claims and renewals bring its time along: to ask each time would cost a round trip.
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


class ManualClock:
    """A clock that stands still until it is turned."""

    def __init__(
        self, start: datetime = datetime(2026, 1, 1, tzinfo=UTC), *, boot: str = "manual"
    ) -> None:
        self._now = self._uptime_us = to_instant(start)
        self._boot = boot

    def now(self) -> Instant:
        return self._now

    def uptime(self) -> Uptime:
        return Uptime(self._boot, self._uptime_us)

    def advance(self, by: timedelta) -> Instant:
        """Let time pass; return the new instant."""
        self._uptime_us += micros(by)
        return self.step(by)

    def step(self, by: timedelta) -> Instant:
        """Set the time of day without any time passing; return the new instant."""
        self._now += micros(by)
        return self._now


_BOOTTIME = getattr(time, "CLOCK_BOOTTIME", 0)


@cache
def _read_boot_id() -> str:
    try:
        return Path("/proc/sys/kernel/random/boot_id").read_text().strip() if _BOOTTIME else ""
    except OSError:
        return ""


def micros(span: Duration) -> int:
    """Return a duration in whole microseconds; a number is seconds."""
    if not isinstance(span, timedelta):
        span = timedelta(seconds=span)
    return span // _MICROSECOND


def seconds(span: Duration) -> float:
    return span.total_seconds() if isinstance(span, timedelta) else float(span)


def duration_complaint(value: object) -> str | None:
    """Return why a value that a program has given is no duration, or None; it may be negative."""
    if isinstance(value, bool) or not isinstance(value, timedelta | int | float):
        return f"{value!r} is not a duration; give a timedelta or a number of seconds"
    try:
        span = value if isinstance(value, timedelta) else timedelta(seconds=value)
    except ValueError:
        return f"{value} is not a duration; give a timedelta or a number of seconds"
    except OverflowError:
        span = timedelta.max
    if span > LONGEST_DURATION:
        return "it is longer than a hundred years; give a shorter duration"
    return None


def read_micros(value: Duration, name: str) -> int:
    """Return a duration that a caller has given, in whole microseconds. Raises `BadInput`: it is
    none, is negative or too long; `name` is what the caller calls it."""
    wrong = duration_complaint(value)
    if wrong is None and micros(value) < 0:
        wrong = f"{value} is negative; give a duration of nothing or more"
    if wrong is not None:
        raise BadInput(f"{name} cannot be used: {wrong}")
    return micros(value)


def to_instant(moment: datetime) -> Instant:
    """Turn an aware datetime into an instant; a naive one is refused by ValueError."""
    if moment.tzinfo is None:
        raise ValueError(f"{moment.isoformat()} has no time zone; pass an aware datetime")
    return (moment - _EPOCH) // _MICROSECOND


def rfc3339(moment: datetime, timespec: str = "microseconds") -> str:
    """Write a time as every surface does: in UTC, 2026-01-31T12:00:00.000000Z."""
    return moment.astimezone(UTC).isoformat(timespec=timespec).replace("+00:00", "Z")


def to_datetime(instant: Instant) -> datetime:
    return _EPOCH + timedelta(0, 0, instant)
