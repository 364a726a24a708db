"""A bucket while a claim is made: read by a store, counted here, written by the store."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from operator import itemgetter

from ulak.clock import Instant
from ulak.core.policy import RateTerms
from ulak.store import flow_control as control
from ulak.store.flow_control import Level

Order = tuple[int, Instant, bytes]
"""Priority, date and id: the order in which jobs are unparked."""

Parked = tuple[int, Instant, bytes, int]
"""The order of a job that is parked, and its cost."""


@dataclass(slots=True)
class Bucket:
    """How much is in it, and who waits for more."""

    terms: RateTerms
    level: Level
    ready_at: Instant | None
    first: Order | None
    """The most urgent of those who are parked on it."""
    cost: int
    """What that one costs."""
    has_changed: bool = False

    def can_pay(self, cost: int, order: Order) -> bool:
        """Tell whether there are tokens for a run, and nobody more urgent is parked here."""
        if self.level.parts < control.price(cost, self.terms):
            return False
        return self.first is None or order < self.first

    def pay(self, cost: int) -> None:
        """Take the tokens of a run that can be paid."""
        left = self.level.parts - control.price(cost, self.terms)
        self.level = Level(left, self.level.at)
        self.has_changed = True

    def park(self, cost: int, order: Order) -> None:
        """Know of one more that is parked."""
        if self.first is None or order < self.first:
            self.first, self.cost = order, cost
        self.look_after()

    def look_after(self) -> None:
        """Say when the first of those who are parked can be paid."""
        self.ready_at = None
        self.has_changed = True
        if self.first is not None:
            parts = control.price(self.cost, self.terms)
            self.ready_at = control.payable_at(self.level, parts, self.terms)

    def let_go(self, parked: Iterable[Parked]) -> int:
        """Return how many of those who are parked, the most urgent first, can be paid now.

        They take their tokens by their own claims.
        """
        left, unparked = self.level, 0
        self.ready_at = self.first = None
        self.has_changed = True
        for priority, not_before, job_id, cost in parked:
            parts = control.price(cost, self.terms)
            if left.parts < parts or unparked >= control.MOST_UNPARKED:
                self.first, self.cost = (priority, not_before, job_id), cost
                self.ready_at = control.payable_at(left, parts, self.terms)
                break
            left = Level(left.parts - parts, left.at)
            unparked += 1
        return unparked


class Buckets:
    """The buckets that one claim has to do with, each read once."""

    def __init__(self) -> None:
        self._open: dict[str, Bucket | None] = {}

    def _find(self, name: str) -> Bucket | None:
        """Return a bucket that was read, or None when there is no such rate."""
        return self._open[name]

    def can_pay(self, name: str, cost: int, order: Order) -> bool:
        """Tell whether there are tokens for a run, and nobody more urgent is parked there."""
        bucket = self._find(name)
        return bucket is not None and bucket.can_pay(cost, order)

    def pay(self, name: str, cost: int) -> None:
        """Take the tokens of a run that can be paid."""
        bucket = self._find(name)
        if bucket is not None:
            bucket.pay(cost)

    def park(self, name: str, cost: int, order: Order) -> None:
        """Know of one more that is parked, and when the first of them can be paid."""
        bucket = self._find(name)
        if bucket is not None:
            bucket.park(cost, order)

    def look_after(self, name: str) -> None:
        """Say when the first of those who are parked can be paid, if nobody has said so."""
        bucket = self._find(name)
        if bucket is not None and bucket.ready_at is None:
            bucket.look_after()

    def _changed(self) -> list[tuple[str, int, Instant, Instant | None]]:
        """Return the rows of the buckets that have changed, by name."""
        return [
            (name, *bucket.level, bucket.ready_at)
            for name, bucket in sorted(self._open.items(), key=itemgetter(0))
            if bucket is not None and bucket.has_changed
        ]


def opened(
    terms: RateTerms,
    stored: tuple[int, Instant, Instant | None] | None,
    head: Parked | None,
    now: Instant,
) -> Bucket:
    """Make a bucket of its row - level, date and when it is ready - and of the first who waits."""
    level, ready_at = control.full(terms, now), None
    if stored is not None:
        level, ready_at = control.fill(Level(stored[0], stored[1]), terms, now), stored[2]
    if head is None:
        return Bucket(terms, level, ready_at, None, 0)
    return Bucket(terms, level, ready_at, head[:3], head[3])
