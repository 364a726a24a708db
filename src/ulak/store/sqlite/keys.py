"""Dedup keys and slots: what only one job may have at a time."""

from __future__ import annotations

from ulak.clock import Instant
from ulak.core.job import JobRow
from ulak.store.sqlite.writer import Transaction

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
FREE_SLOT = "UPDATE slots SET job_id = NULL WHERE job_id = ? AND limit_name = ?"
UNPARK = """
    UPDATE jobs SET parked_on = NULL WHERE id IN (
        SELECT id FROM jobs INDEXED BY jobs_parked WHERE parked_on = ?
        ORDER BY priority, not_before, id LIMIT ?
    )
"""


def holder_of(t: Transaction, row: JobRow) -> bytes | None:
    """Answer the job that holds this job's dedup key now; an expired key is held by nobody."""
    if row.dedup_key is None:
        return None
    held = t.db.execute(HOLDER, (row.tenant, row.flow, row.dedup_key)).fetchone()
    if held is None or (held[1] is not None and held[1] <= t.now):
        return None
    job_id: bytes = held[0]
    return job_id


def take_key(t: Transaction, row: JobRow, expires_at: Instant | None) -> None:
    """Take a key that nobody holds, or that has expired."""
    if row.dedup_key is not None:
        t.db.execute(TAKE_KEY, (row.tenant, row.flow, row.dedup_key, row.id, expires_at))


def free_key(t: Transaction, row: JobRow) -> None:
    """Give the key back, unless another job has taken it over since."""
    if row.dedup_key is not None:
        t.db.execute(FREE_KEY, (row.tenant, row.flow, row.dedup_key, row.id))


def free_places(t: Transaction, limit: str) -> int:
    """Answer how many more jobs may run under this limit."""
    return int(t.db.execute(FREE_PLACES, (limit,)).fetchone()[0])


def take_slot(t: Transaction, limit: str, job_id: bytes) -> bool:
    """Take a slot if one is free."""
    if free_places(t, limit) <= 0:
        return False
    t.db.execute(TAKE_SLOT, (limit, job_id))
    return True


def free_slot(t: Transaction, limit: str, job_id: bytes) -> int:
    """Free the slot that this job holds and pass it on; answer how many were unparked."""
    if t.db.execute(FREE_SLOT, (job_id, limit)).rowcount == 0:
        return 0
    return pass_on(t, limit, min(1, free_places(t, limit)))


def pass_on(t: Transaction, limit: str, places: int) -> int:
    """Unpark so many jobs, the most urgent and then the oldest; they take the slot by claim."""
    if places <= 0:
        return 0
    unparked = t.db.execute(UNPARK, (limit, places)).rowcount
    t.made_due = t.made_due or unparked > 0
    return unparked
