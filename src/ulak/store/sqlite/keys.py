"""Dedup keys and slots: what only one job may have at a time."""

from __future__ import annotations

from collections.abc import Sequence

from ulak.clock import Instant
from ulak.core.job import OF_STATE, JobRow
from ulak.store.flow_control import is_keyed, stage_of
from ulak.store.sqlite.rows import PACKED_IDS, pack
from ulak.store.sqlite.writer import Transaction

Key = tuple[str, str, str]
"""Tenant, flow and dedup key."""

HOLDER = "SELECT job_id, expires_at FROM dedup WHERE tenant = ? AND flow = ? AND key = ?"
TAKE_KEY = """
    INSERT INTO dedup (tenant, flow, key, job_id, expires_at) VALUES (?, ?, ?, ?, ?)
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


def key_of(row: JobRow) -> Key | None:
    """Return the dedup key of a job, if it has one."""
    return None if row.dedup_key is None else (row.tenant, row.flow, row.dedup_key)


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
    """Give the key back, unless another job has taken it over since."""
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
    """Give a job that stands in a busy state a slot of it: its own, a free one, or a closed one
    beyond the limit."""
    open_slots(t, limit)
    t.db.execute(FREE_OTHER_SLOTS, (job_id, limit))
    own, free, last = t.db.execute(SLOT_NUMBERS, (limit, job_id)).fetchone()
    t.db.execute(OCCUPY_SLOT, (limit, own or free or last + 1, job_id))


def _places_of_key(t: Transaction, limit: str) -> int:
    row = t.db.execute(PLACES_OF_KEY, (stage_of(limit), limit)).fetchone()
    return 0 if row is None else row[0]


def holds_slot(t: Transaction, limit: str, job_id: bytes) -> int:
    """Return how many slots of this limit a job holds: one, or none."""
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
