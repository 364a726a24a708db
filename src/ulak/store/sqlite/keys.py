"""Dedup keys and slots: what only one job may have at a time."""

from __future__ import annotations

from ulak.clock import Instant
from ulak.core.job import JobRow
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
FREE_PLACES = "SELECT total(closed = 0) - count(job_id) FROM slots WHERE limit_name = ?"
TAKE_SLOT = """
    UPDATE slots SET job_id = ?2 WHERE limit_name = ?1 AND n = (
        SELECT min(n) FROM slots WHERE limit_name = ?1 AND job_id IS NULL AND closed = 0
    )
"""
HOLDS_SLOT = "SELECT count(*) FROM slots WHERE job_id = ? AND limit_name = ?"
FREE_SLOT = "UPDATE slots SET job_id = NULL WHERE job_id = ? AND limit_name = ?"
UNPARK = """
    UPDATE jobs SET parked_on = NULL WHERE id IN (
        SELECT id FROM jobs INDEXED BY jobs_parked WHERE parked_on = ?
        ORDER BY priority, not_before, id LIMIT ?
    )
"""


def key_of(row: JobRow) -> Key | None:
    """Answer the dedup key of a job, if it has one."""
    return None if row.dedup_key is None else (row.tenant, row.flow, row.dedup_key)


def holder_of(t: Transaction, key: Key) -> bytes | None:
    """Answer the job that holds this dedup key now; an expired key is held by nobody."""
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
    """Answer how many more jobs may run under this limit."""
    return int(t.db.execute(FREE_PLACES, (limit,)).fetchone()[0])


def take_slot(t: Transaction, limit: str, job_id: bytes) -> bool:
    """Take a slot if one is free."""
    if free_places(t, limit) <= 0:
        return False
    t.db.execute(TAKE_SLOT, (limit, job_id))
    return True


def holds_slot(t: Transaction, limit: str, job_id: bytes) -> int:
    """Answer how many slots of this limit a job holds: one, or none."""
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
