"""The buckets of rates while a claim is made: locked once, counted here, written at its end.

A bucket is one row. Whoever takes from it holds it until he has committed, so nobody takes what
another has taken. Which buckets a claim needs it learns one after the other, so there is no order
in which all of them could be held: claims that have to do with buckets follow one another.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from ulak.core.policy import RateTerms
from ulak.store import flow_control
from ulak.store import flow_control as control
from ulak.store.flow_control import ON_RATE, Bucket, open_bucket
from ulak.store.postgres import slots
from ulak.store.postgres.clock import SERVER_TIME
from ulak.store.postgres.connections import Transaction
from ulak.store.postgres.values import Numbers, Texts

# The time is told after the wait: tokens that came in meanwhile count, and no claim is dated before
# the one whose tokens it was left.
ONE_AT_A_TIME = f"""
    SELECT pg_advisory_xact_lock(hashtextextended('ulak buckets', 0)), {SERVER_TIME}
"""
TERMS = "SELECT n, per_us, burst FROM ulak.rates WHERE name = %s::text FOR SHARE"
# One that nobody has taken from has no row; it is made before it is held.
MAKE = """
    INSERT INTO ulak.buckets (name, level, filled_at) VALUES (%s::text, %s::bigint, %s::bigint)
    ON CONFLICT (name) DO NOTHING
"""
HOLD = "SELECT level, filled_at, ready_at FROM ulak.buckets WHERE name = %s::text FOR UPDATE"
READY = """
    SELECT name FROM ulak.buckets WHERE ready_at <= %s::bigint
    ORDER BY ready_at, name LIMIT %s::bigint
"""
FORGOTTEN = """
    SELECT p.name FROM unnest(%s::text[]) AS p (name) LEFT JOIN ulak.buckets AS b ON b.name = p.name
    WHERE b.ready_at IS NULL LIMIT %s::bigint
"""
PARKED = """
    SELECT priority, not_before, id, cost FROM ulak.jobs WHERE parked_on = %s::text
    ORDER BY priority, not_before, id LIMIT %s::bigint
"""
WRITE = """
    UPDATE ulak.buckets AS b
    SET level = w.level, filled_at = w.filled_at, ready_at = w.ready_at
    FROM unnest(%s::text[], %s::bigint[], %s::bigint[], %s::bigint[])
        AS w (name, level, filled_at, ready_at)
    WHERE b.name = w.name
"""

# As many as one claim looks at: a few milliseconds. The next claim goes on with the rest.
MOST_BUCKETS = 100


class Buckets(flow_control.Buckets):
    """The buckets that one claim has to do with."""

    def __init__(self, t: Transaction) -> None:
        super().__init__()
        self._t = t
        self._is_alone = False

    def hold(self, names: Iterable[str]) -> None:
        """Take hold of buckets before anything is taken from them."""
        for name in sorted(set(names) - self._open.keys()):
            self._be_alone()
            self._open[name] = self._read(name)

    def _be_alone(self) -> None:
        if not self._is_alone:
            told = self._t.db.rows(ONE_AT_A_TIME)
            self._t.hear(told[0][1])
            self._is_alone = True

    def look_after_all(self, names: Sequence[str]) -> None:
        """Say when the first of those who are parked can be paid, where nobody has said so."""
        forgotten = [row[0] for row in self._t.db.rows(FORGOTTEN, (Texts(names), MOST_BUCKETS))]
        self.hold(forgotten)
        for name in forgotten:
            self.look_after(name)

    def unpark_paid(self) -> int:
        """Unpark, from every bucket that has filled, as many as it pays for."""
        self._be_alone()
        ready = [row[0] for row in self._t.db.rows(READY, (self._t.now, MOST_BUCKETS))]
        self.hold(ready)
        return sum(self._unpark_from(name) for name in ready)

    def write(self) -> int:
        """Write every bucket that has changed; answer how many have."""
        changed = self._changed()
        if changed:
            names, levels, dates, ready = zip(*changed, strict=True)
            facts = (Texts(names), Numbers(levels), Numbers(dates), Numbers(ready))
            self._t.db.execute(WRITE, facts)
        return len(changed)

    def _unpark_from(self, name: str) -> int:
        found = self._open[name]
        if found is None:
            return 0
        most = control.MOST_UNPARKED + 1
        unparked = found.let_go(self._t.db.rows(PARKED, (ON_RATE + name, most)))
        return slots.pass_on(self._t, ON_RATE + name, unparked)

    def _read(self, name: str) -> Bucket | None:
        db, now = self._t.db, self._t.now
        row = db.row(TERMS, (control.stage_of(name),))
        if row is None:
            return None
        terms = RateTerms(*row)
        stored = db.row(HOLD, (name,))
        if stored is None:
            db.execute(MAKE, (name, *control.full(terms, now)))
            stored = db.row(HOLD, (name,))
        return open_bucket(terms, stored, db.row(PARKED, (ON_RATE + name, 1)), now)
