"""What a program declares to its engine and workers, and the store's time as a worker tells it."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from contextlib import AbstractAsyncContextManager
from dataclasses import KW_ONLY, dataclass
from datetime import timedelta
from typing import Any

from ulak.clock import Clock, Duration, Instant, ManualClock, read_micros
from ulak.core.delivery import Terms
from ulak.engine.view import JobEvent, Message
from ulak.store.protocol import HandlerRow

ResourceFactory = Callable[[], AbstractAsyncContextManager[Any]]
"""Opens one worker's resource and closes it again when the worker stops."""

Receiver = Callable[[Message], Any]
"""Handles one message, plain or async; raising means it was not delivered."""

FollowFunction = Callable[[Sequence[JobEvent], Any], Any]
"""Gets events and a connection, plain or async; raising takes back what it wrote there."""


@dataclass(frozen=True, slots=True)
class Handler:
    """What `engine.on` and `engine.follow` declare."""

    name: str
    topic: str
    receive: Callable[..., Any]
    """A `Receiver`; of a follower, a `FollowFunction`."""
    terms: Terms
    flow: str | None = None

    @property
    def row(self) -> HandlerRow:
        return HandlerRow(self.name, self.topic, self.terms.give_up_us, self.flow)


@dataclass(frozen=True, slots=True)
class Resource:
    """What workers open for their stages."""

    factory: ResourceFactory
    queue: str | None
    """Opened only by workers that serve this queue; None by every one."""
    places: int | None = None
    """How many jobs of that queue a worker takes at once; None is up to the worker."""
    unready: Callable[[Any], str | None] | None = None
    """Says of what was opened why no job of that queue may be taken now; None when one may."""


@dataclass(frozen=True, slots=True)
class Apart:
    """How a queue is served apart."""

    workers: int
    lease: Duration | None = None
    """How long the jobs of a vanished worker stay taken; None is up to whoever starts it."""


@dataclass(frozen=True, slots=True)
class WorkerSettings:
    """How a worker behaves. Every span is a measured or stated compromise."""

    _: KW_ONLY
    loop: int = 500
    """Async stages at once: they mostly wait, so there may be many."""
    threads: int = 16
    """Plain `def` stages at once."""
    processes: int = 2
    """Stages with `isolate="process"` at once."""
    queues: frozenset[str] | None = None
    """Serve these queues only; None serves all."""
    lease: Duration = timedelta(seconds=30)
    """How long a vanished worker's jobs stay taken."""
    drain: Duration = timedelta(seconds=30)
    """How long a stopping worker waits for its stages."""
    keep_stages: int = 50
    keep_for: Duration = timedelta(seconds=10)
    """So long may one job keep its lease from stage to stage while others wait."""
    ageing: Duration = timedelta(minutes=10)
    """How much waiting one level of priority is worth; 0 makes priorities strict."""
    poll: Duration = timedelta(seconds=1)
    """The longest sleep between two looks at the store."""
    glance: Duration = timedelta(milliseconds=50)
    """How often a shared store is asked whether another process has committed."""

    def __post_init__(self) -> None:
        for name in ("lease", "drain", "keep_for", "ageing", "poll", "glance"):
            read_micros(getattr(self, name), f"{name}=")

    def serves(self, queue: str) -> bool:
        """Tell whether jobs of a queue are taken."""
        return self.queues is None or queue in self.queues


class StoreTime:
    """The store's time: its last answer plus what has passed here, whatever the clock here says."""

    def __init__(self, clock: Clock) -> None:
        self._manual = clock if isinstance(clock, ManualClock) else None
        # One tuple, replaced whole: other threads read it while the loop hears the store.
        self._heard = (clock.now(), time.monotonic_ns())

    def hear(self, now: Instant) -> None:
        """Take over the time of an answer."""
        self._heard = (now, time.monotonic_ns())

    def now(self) -> Instant:
        if self._manual is not None:
            return self._manual.now()
        said, heard_at = self._heard
        return said + (time.monotonic_ns() - heard_at) // 1000

    def passed_us(self) -> int:
        """Return the time that has passed, from any beginning; setting a clock does not move it."""
        if self._manual is not None:
            return self._manual.uptime().us
        return time.monotonic_ns() // 1000
