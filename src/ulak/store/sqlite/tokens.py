"""The buckets of rates while a claim is made: read once, counted here, written at its end."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from operator import itemgetter

from ulak.clock import Instant
from ulak.core.policy import RateTerms
from ulak.store import flow_control as control
from ulak.store.flow_control import ON_RATE, Level
from ulak.store.sqlite import keys
from ulak.store.sqlite.control import BUCKET, PUT_BUCKET
from ulak.store.sqlite.writer import Transaction

Order = tuple[int, Instant, bytes]
"""Priority, date and id: the order in which jobs are unparked."""

TERMS = "SELECT n, per_us, burst FROM rates WHERE name = ?"
READY = """
    SELECT name FROM buckets INDEXED BY buckets_ready
    WHERE ready_at <= ? ORDER BY ready_at, name LIMIT ?
"""
PARKED = """
    SELECT priority, not_before, id, cost FROM jobs INDEXED BY jobs_parked
    WHERE parked_on = ? ORDER BY priority, not_before, id
"""

# As many as one claim looks at: a few milliseconds. The next claim goes on with the rest.
MOST_BUCKETS = 100


@dataclass(slots=True)
class _Bucket:
    terms: RateTerms
    level: Level
    ready_at: Instant | None
    first: Order | None
    """The most urgent of those who are parked on it."""
    cost: int
    """What that one costs."""
    has_changed: bool = False


class Buckets:
    """The buckets that one claim has to do with."""

    def __init__(self, t: Transaction) -> None:
        self._t = t
        self._open: dict[str, _Bucket | None] = {}

    def can_pay(self, name: str, cost: int, order: Order) -> bool:
        """Tell whether there are tokens for a run, and nobody more urgent is parked there."""
        bucket = self._bucket(name)
        if bucket is None or bucket.level.parts < control.price(cost, bucket.terms):
            return False
        return bucket.first is None or order < bucket.first

    def pay(self, name: str, cost: int) -> None:
        """Take the tokens of a run that can be paid."""
        bucket = self._bucket(name)
        if bucket is not None:
            left = bucket.level.parts - control.price(cost, bucket.terms)
            bucket.level = Level(left, bucket.level.at)
            bucket.has_changed = True

    def park(self, name: str, cost: int, order: Order) -> None:
        """Know of one more that is parked, and when the first of them can be paid."""
        bucket = self._bucket(name)
        if bucket is None:
            return
        if bucket.first is None or order < bucket.first:
            bucket.first, bucket.cost = order, cost
        self._await(bucket)

    def look_after(self, name: str) -> None:
        """Say when the first of those who are parked can be paid, if nobody has said so."""
        bucket = self._bucket(name)
        if bucket is not None and bucket.ready_at is None:
            self._await(bucket)

    def unpark_paid(self) -> int:
        """Unpark, from every bucket that has filled, as many as it pays for."""
        ready = self._t.db.execute(READY, (self._t.now, MOST_BUCKETS)).fetchall()
        return sum(self._unpark_from(name) for (name,) in ready)

    def write(self) -> int:
        """Write every bucket that has changed; answer how many have."""
        changed = {n: b for n, b in self._open.items() if b is not None and b.has_changed}
        for name, bucket in sorted(changed.items(), key=itemgetter(0)):
            self._t.db.execute(PUT_BUCKET, (name, *bucket.level, bucket.ready_at))
        return len(changed)

    def _unpark_from(self, name: str) -> int:
        bucket = self._bucket(name)
        if bucket is None:
            return 0
        left, unparked = bucket.level, 0
        bucket.ready_at = bucket.first = None
        bucket.has_changed = True
        for priority, not_before, job_id, cost in self._parked(name):
            parts = control.price(cost, bucket.terms)
            if left.parts < parts or unparked >= control.MOST_UNPARKED:
                bucket.first, bucket.cost = (priority, not_before, job_id), cost
                bucket.ready_at = control.payable_at(left, parts, bucket.terms)
                break
            left = Level(left.parts - parts, left.at)
            unparked += 1
        return keys.pass_on(self._t, ON_RATE + name, unparked)

    def _await(self, bucket: _Bucket) -> None:
        bucket.ready_at = None
        bucket.has_changed = True
        if bucket.first is not None:
            parts = control.price(bucket.cost, bucket.terms)
            bucket.ready_at = control.payable_at(bucket.level, parts, bucket.terms)

    def _parked(self, name: str) -> Iterator[tuple[int, Instant, bytes, int]]:
        yield from self._t.db.execute(PARKED, (ON_RATE + name,))

    def _bucket(self, name: str) -> _Bucket | None:
        if name not in self._open:
            self._open[name] = self._read(name)
        return self._open[name]

    def _read(self, name: str) -> _Bucket | None:
        db, now = self._t.db, self._t.now
        row = db.execute(TERMS, (control.stage_of(name),)).fetchone()
        if row is None:
            return None
        terms = RateTerms(*row)
        level, ready_at = control.full(terms, now), None
        stored = db.execute(BUCKET, (name,)).fetchone()
        if stored is not None:
            level, ready_at = control.fill(Level(stored[1], stored[2]), terms, now), stored[3]
        head = db.execute(f"{PARKED} LIMIT 1", (ON_RATE + name,)).fetchone()
        if head is None:
            return _Bucket(terms, level, ready_at, None, 0)
        return _Bucket(terms, level, ready_at, head[:3], head[3])
