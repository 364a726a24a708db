"""The buckets of rates while a claim is made: read once, counted here, written at its end."""

from __future__ import annotations

from ulak.core.policy import RateTerms
from ulak.store import flow_control
from ulak.store.flow_control import ON_RATE, Bucket, open_bucket, stage_of
from ulak.store.sql import control
from ulak.store.sqlite import keys
from ulak.store.sqlite.session import translate
from ulak.store.sqlite.writer import Transaction

BUCKET, PUT_BUCKET = translate(control.BUCKET), translate(control.PUT_BUCKET)
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


class Buckets(flow_control.Buckets):
    """The buckets that one claim has to do with."""

    def __init__(self, t: Transaction) -> None:
        super().__init__()
        self._t = t

    def unpark_paid(self) -> int:
        """Unpark, from every bucket that has filled, as many as it pays for."""
        ready = self._t.db.execute(READY, (self._t.now, MOST_BUCKETS)).fetchall()
        return sum(self._unpark_from(name) for (name,) in ready)

    def write(self) -> int:
        """Write every bucket that has changed; answer how many have."""
        changed = self._changed()
        self._t.db.executemany(PUT_BUCKET, changed)
        return len(changed)

    def _unpark_from(self, name: str) -> int:
        found = self._find(name)
        if found is None:
            return 0
        unparked = found.let_go(self._t.db.execute(PARKED, (ON_RATE + name,)))
        return keys.pass_on(self._t, ON_RATE + name, unparked)

    def _find(self, name: str) -> Bucket | None:
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
        return open_bucket(RateTerms(*terms), stored and stored[1:], head, self._t.now)
