"""Keys, slots, buckets and pauses in SQLite's own words; the rest is in `ulak.store.sql`."""

from __future__ import annotations

import sqlite3
from collections.abc import Sequence

from ulak.clock import Instant
from ulak.core.job import OF_STATE, OF_UNDO, held_slot
from ulak.core.lifecycle import BUSY, READY, UNDOING
from ulak.core.policy import LimitTerms, RateTerms
from ulak.store import flow_control
from ulak.store.batches import Key
from ulak.store.flow_control import ON_RATE, Bucket, is_keyed, open_bucket, stage_of
from ulak.store.sql import control
from ulak.store.sql.control import Control
from ulak.store.sqlite.rows import PACKED_IDS, pack
from ulak.store.sqlite.session import (
    SharedTransaction,
    Transaction,
    own,
    own_read,
    shared,
    translate,
)

HOLDER = "SELECT job_id, expires_at FROM dedup WHERE tenant = ? AND flow = ? AND key = ?"
TAKE_KEY = """
    INSERT INTO main.dedup (tenant, flow, key, job_id, expires_at) VALUES (?, ?, ?, ?, ?)
    ON CONFLICT (tenant, flow, key)
    DO UPDATE SET job_id = excluded.job_id, expires_at = excluded.expires_at
"""
FREE_KEY = "DELETE FROM dedup WHERE tenant = ? AND flow = ? AND key = ? AND job_id = ?"

# One in a closed slot counts until it has drained: never more run than the limit says.
FREE_PLACES = "SELECT total(closed = 0) - count(job_id), count(*) FROM slots WHERE limit_name = ?"
# A key that has a limit of its own comes after its stage by name.
PLACES_OF_KEY = "SELECT n FROM limits WHERE name IN (?, ?) ORDER BY name DESC LIMIT 1"
OPEN_SLOTS = """
    WITH RECURSIVE numbers (n) AS (SELECT 1 UNION ALL SELECT n + 1 FROM numbers WHERE n < ?2)
    INSERT INTO slots (limit_name, n) SELECT ?1, n FROM numbers
"""
TAKE_SLOT = """
    UPDATE slots SET job_id = ?2, of_state = ?3 WHERE limit_name = ?1 AND n = (
        SELECT min(n) FROM slots WHERE limit_name = ?1 AND job_id IS NULL AND closed = 0
    )
"""
HOLDS_SLOT = "SELECT count(*) FROM slots WHERE job_id = ? AND limit_name = ?"
FREE_SLOT = "UPDATE slots SET job_id = NULL, of_state = 0 WHERE job_id = ? AND limit_name = ?"
KEEP_SLOTS = f"UPDATE slots SET of_state = 1 WHERE job_id IN {PACKED_IDS}"
MARK_SLOTS = f"UPDATE jobs SET slot = '{OF_STATE}' || slot WHERE id IN {PACKED_IDS}"
SLOT_NUMBERS = """
    SELECT min(n) FILTER (WHERE job_id = ?2),
        min(n) FILTER (WHERE job_id IS NULL AND closed = 0), coalesce(max(n), 0)
    FROM slots WHERE limit_name = ?1
"""
FREE_OTHER_SLOTS = """
    UPDATE slots SET job_id = NULL, of_state = 0 WHERE job_id = ? AND limit_name <> ?
"""
OCCUPY_SLOT = """
    INSERT INTO slots (limit_name, n, job_id, closed, of_state) VALUES (?, ?, ?, 1, 1)
    ON CONFLICT (limit_name, n) DO UPDATE SET job_id = excluded.job_id, of_state = 1
"""
UNPARK = """
    UPDATE jobs SET parked_on = NULL WHERE id IN (
        SELECT id FROM jobs INDEXED BY jobs_parked WHERE parked_on = ?
        ORDER BY priority, not_before, id LIMIT ?
    )
"""


def holder_of(t: Transaction, key: Key) -> bytes | None:
    """Return the job that holds this dedup key now; an expired key is held by nobody."""
    held = t.db.execute(HOLDER, key).fetchone()
    if held is None or (held[1] is not None and held[1] <= t.now):
        return None
    job_id: bytes = held[0]
    return job_id


def take_key(t: Transaction, key: Key, job_id: bytes, expires_at: Instant | None) -> None:
    """Take a key that nobody holds, or that has expired."""
    t.db.execute(TAKE_KEY, (*key, job_id, expires_at))


def free_key(t: Transaction, key: Key, job_id: bytes) -> None:
    t.db.execute(FREE_KEY, (*key, job_id))


def free_places(t: Transaction, limit: str) -> int:
    """Return how many more jobs may run under this limit."""
    free, slots = t.db.execute(FREE_PLACES, (limit,)).fetchone()
    return int(free) if slots or not is_keyed(limit) else _places_of_key(t, limit)


def open_slots(t: Transaction, limit: str) -> int:
    """Open the slots of a key that has none yet; answer how many more jobs may run there."""
    free, slots = t.db.execute(FREE_PLACES, (limit,)).fetchone()
    if not slots and is_keyed(limit):
        free = _places_of_key(t, limit)
        if free > 0:
            t.db.execute(OPEN_SLOTS, (limit, free))
    return int(free)


def take_slot(t: Transaction, limit: str, job_id: bytes, *, of_state: bool = False) -> None:
    """Take a slot of which `open_slots` knows that it is free.

    It is not counted again: of a thousand slots that would be a thousand rows for each job.
    """
    t.db.execute(TAKE_SLOT, (limit, job_id, of_state))


def keep_slots(t: Transaction, job_ids: Sequence[bytes]) -> None:
    """Make the slots that these jobs hold those of the busy state that they have entered."""
    t.db.execute(KEEP_SLOTS, (pack(job_ids),))
    t.db.execute(MARK_SLOTS, (pack(job_ids),))


def occupy(t: Transaction, limit: str, job_id: bytes) -> None:
    """Give a job in a busy state a slot: its own, a free one, or a closed one beyond the limit."""
    open_slots(t, limit)
    t.db.execute(FREE_OTHER_SLOTS, (job_id, limit))
    own, free, last = t.db.execute(SLOT_NUMBERS, (limit, job_id)).fetchone()
    t.db.execute(OCCUPY_SLOT, (limit, own or free or last + 1, job_id))


def _places_of_key(t: Transaction, limit: str) -> int:
    row = t.db.execute(PLACES_OF_KEY, (stage_of(limit), limit)).fetchone()
    return 0 if row is None else row[0]


def holds_slot(t: Transaction, limit: str, job_id: bytes) -> int:
    held: int = t.db.execute(HOLDS_SLOT, (job_id, limit)).fetchone()[0]
    return held


def free_slot(t: Transaction, limit: str, job_id: bytes) -> int:
    """Free the slot that this job holds; answer how many were freed: one, or none."""
    return t.db.execute(FREE_SLOT, (job_id, limit)).rowcount


def pass_on(t: Transaction, limit: str, places: int) -> int:
    """Unpark so many jobs, the most urgent and then the oldest; they take the slot by claim."""
    if places <= 0:
        return 0
    unparked = t.db.execute(UNPARK, (limit, places)).rowcount
    t.made_due = t.made_due or unparked > 0
    return unparked


BUCKET, PUT_BUCKET = translate(control.BUCKET), translate(control.PUT_BUCKET)
TERMS = "SELECT n, per_us, burst FROM rates WHERE name = ?"
READY_BUCKETS = """
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
        ready = self._t.db.execute(READY_BUCKETS, (self._t.now, MOST_BUCKETS)).fetchall()
        return sum(self._unpark_from(name) for (name,) in ready)

    def write(self) -> int:
        changed = self._changed()
        self._t.db.executemany(PUT_BUCKET, changed)
        return len(changed)

    def _unpark_from(self, name: str) -> int:
        found = self._find(name)
        if found is None:
            return 0
        unparked = found.let_go(self._t.db.execute(PARKED, (ON_RATE + name,)))
        return pass_on(self._t, ON_RATE + name, unparked)

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


OPEN_SLOT = """
    INSERT INTO slots (limit_name, n, closed) VALUES (?, ?, 0)
    ON CONFLICT (limit_name, n) DO UPDATE SET closed = 0
"""
CLOSE_SLOTS = "UPDATE slots SET closed = 1 WHERE limit_name = ? AND n > ?"
# The jobs whose slot is not what it must be where a limit counts the jobs in a busy state. Each of
# them stands in one of these indexes, and nothing that has ended does.
_UNFINISHED = {
    "jobs_claimable": "leased_by IS NULL AND parked_on IS NULL AND lane <> ''",
    "jobs_leased": "leased_by IS NOT NULL",
    "jobs_parked": "parked_on IS NOT NULL",
}
_MUST_BE = f"""
    CASE WHEN state = :source THEN :mark WHEN role = '{BUSY}' THEN '{OF_STATE}' ELSE '{OF_UNDO}' END
    || :name || CASE WHEN :keyed
        THEN '/' || coalesce(json_extract(keys, '$."' || :source || '".slot'), '') ELSE '' END
"""
_MISPLACED = f"""
    flow = :flow AND slot IS NOT ({_MUST_BE})
    AND (state = :source AND role = '{READY}' OR state = :busy AND role IN ('{BUSY}', '{UNDOING}'))
"""
MISPLACED = (
    "SELECT id FROM ("
    + " UNION ALL ".join(
        f"SELECT id FROM jobs INDEXED BY {index} WHERE {condition} AND {_MISPLACED}"
        for index, condition in _UNFINISHED.items()
    )
    + ") ORDER BY id LIMIT :most"
)
MUST_BE = f"SELECT {_MUST_BE} FROM jobs WHERE id = :id AND {_MISPLACED}"
SET_SLOT = "UPDATE jobs SET slot = ? WHERE id = ?"
UNPARK_ADOPTED = "UPDATE jobs SET parked_on = NULL WHERE id = ? AND parked_on = ?"
FREE_LEFT = f"""
    UPDATE slots SET job_id = NULL, of_state = 0 WHERE of_state = 1 AND job_id IS NOT NULL
    AND NOT EXISTS (SELECT 1 FROM jobs WHERE id = slots.job_id
        AND slot IN ('{OF_STATE}' || limit_name, '{OF_UNDO}' || limit_name))
"""

CLOSE_KEY = "DELETE FROM slots WHERE limit_name = ?"
# A bucket is full when what was lacking has come in since; nobody may be parked on it.
FULL_BUCKETS = f"""
    DELETE FROM buckets WHERE name IN (
        SELECT b.name FROM buckets AS b JOIN rates AS r
            ON b.name = r.name OR (b.name > r.name || '/' AND b.name < r.name || '0')
        WHERE b.level + (?1 - b.filled_at) * r.n >= r.burst * r.per_us
          AND NOT EXISTS (
            SELECT 1 FROM jobs INDEXED BY jobs_parked
            WHERE parked_on = '{flow_control.ON_RATE}' || b.name)
        ORDER BY b.name LIMIT ?2
    )
"""
WORTHLESS_TURNS = """
    DELETE FROM turns WHERE (lane, tenant) IN (
        SELECT lane, tenant FROM turns AS t
        WHERE passed <= (SELECT max(began) FROM turns WHERE lane = t.lane)
        ORDER BY lane, tenant LIMIT ?
    )
"""


def find_misplaced(db: sqlite3.Connection, name: str, terms: LimitTerms) -> list[bytes]:
    """Return jobs whose slot is not what it must be where a limit counts those of a state."""
    found = db.execute(MISPLACED, flow_control.adoption(name, terms)).fetchall()
    return [job_id for (job_id,) in found]


def adopt(t: Transaction, name: str, terms: LimitTerms, job_ids: Sequence[bytes]) -> None:
    """Give the jobs that stand in a busy state slots, and those before it the need of one."""
    facts = flow_control.adoption(name, terms)
    for job_id in job_ids:
        for (slot,) in t.db.execute(MUST_BE, {**facts, "id": job_id}).fetchall():
            limit = held_slot(slot, leased=False)
            if limit is not None:
                occupy(t, limit, job_id)
                t.db.execute(UNPARK_ADOPTED, (job_id, limit))
            t.db.execute(SET_SLOT, (slot, job_id))


def set_places(t: Transaction, name: str, places: int) -> None:
    """Open the first so many slots of a limit, or of one key of it, and close the rest."""
    t.db.executemany(OPEN_SLOT, [(name, n) for n in range(1, places + 1)])
    t.db.execute(CLOSE_SLOTS, (name, places))


CONTROL: Control[SharedTransaction] = Control(
    own(set_places), own(pass_on), own_read(find_misplaced), own(adopt)
)
end_pauses = shared(CONTROL.end_pauses)
pause_key = shared(control.pause_key)
paused_key = shared(control.paused_key)


def sweep(t: SharedTransaction, limit: int) -> int:
    """Remove what counts for nothing any more."""
    db = t.own.db
    idle = t.db.rows(control.IDLE_KEYS, (limit,))
    db.executemany(CLOSE_KEY, idle)
    left = db.execute(FREE_LEFT).rowcount
    filled = db.execute(FULL_BUCKETS, (t.now, limit)).rowcount
    over = CONTROL.sweep_pauses(t, limit)
    worthless = db.execute(WORTHLESS_TURNS, (limit,)).rowcount
    return len(idle) + left + filled + over + worthless
