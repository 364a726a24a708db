"""The buckets of rates while a claim is made: read once, counted here, written at its end."""

from __future__ import annotations

from operator import itemgetter

from ulak.core.policy import RateTerms
from ulak.store.bucket import Bucket, Order, opened
from ulak.store.flow_control import ON_RATE, stage_of
from ulak.store.sqlite import keys
from ulak.store.sqlite.control import BUCKET, PUT_BUCKET
from ulak.store.sqlite.writer import Transaction

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


class Buckets:
    """The buckets that one claim has to do with."""

    def __init__(self, t: Transaction) -> None:
        self._t = t
        self._open: dict[str, Bucket | None] = {}

    def can_pay(self, name: str, cost: int, order: Order) -> bool:
        """Tell whether there are tokens for a run, and nobody more urgent is parked there."""
        bucket = self._bucket(name)
        return bucket is not None and bucket.can_pay(cost, order)

    def pay(self, name: str, cost: int) -> None:
        """Take the tokens of a run that can be paid."""
        bucket = self._bucket(name)
        if bucket is not None:
            bucket.pay(cost)

    def park(self, name: str, cost: int, order: Order) -> None:
        """Know of one more that is parked, and when the first of them can be paid."""
        bucket = self._bucket(name)
        if bucket is not None:
            bucket.park(cost, order)

    def look_after(self, name: str) -> None:
        """Say when the first of those who are parked can be paid, if nobody has said so."""
        bucket = self._bucket(name)
        if bucket is not None and bucket.ready_at is None:
            bucket.look_after()

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
        unparked = bucket.let_go(self._t.db.execute(PARKED, (ON_RATE + name,)))
        return keys.pass_on(self._t, ON_RATE + name, unparked)

    def _bucket(self, name: str) -> Bucket | None:
        if name not in self._open:
            self._open[name] = self._read(name)
        return self._open[name]

    def _read(self, name: str) -> Bucket | None:
        db = self._t.db
        terms = db.execute(TERMS, (stage_of(name),)).fetchone()
        if terms is None:
            return None
        stored = db.execute(BUCKET, (name,)).fetchone()
        head = db.execute(f"{PARKED} LIMIT 1", (ON_RATE + name,)).fetchone()
        return opened(RateTerms(*terms), stored and stored[1:], head, self._t.now)
