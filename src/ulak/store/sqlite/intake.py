"""New jobs: the row, the first event, the payload, the key."""

from __future__ import annotations

import sqlite3
from collections.abc import Sequence

from ulak.core.job import JobRow, NewJob
from ulak.store.protocol import Added
from ulak.store.sqlite import keys
from ulak.store.sqlite.rows import (
    INSERT_EVENTS,
    INSERT_JOBS,
    INSERT_PAYLOADS,
    JOB_COLUMNS,
    as_job,
    insert,
)
from ulak.store.sqlite.writer import Transaction

FIND_JOB = f"SELECT {JOB_COLUMNS} FROM jobs WHERE id = ?"
TAKE_FREE_KEYS = insert(
    "dedup", ("tenant", "flow", "key", "job_id", "expires_at"),
    "ON CONFLICT (tenant, flow, key) DO NOTHING",
)  # fmt: skip


def add(t: Transaction, jobs: Sequence[NewJob]) -> list[Added]:
    """Store the jobs, all at once when every id is new and every key is free."""
    try:
        if _add_together(t, jobs):
            return [Added(job.row, True) for job in jobs]
    except sqlite3.IntegrityError:
        # An id that is stored already, or data that no table takes: one by one it is known which.
        pass
    t.db.execute("ROLLBACK")
    t.db.execute("BEGIN IMMEDIATE")
    t.counts.clear()
    t.made_due = False
    return [add_one(t, job) for job in jobs]


def _add_together(t: Transaction, jobs: Sequence[NewJob]) -> bool:
    keyed = [
        (job.row.tenant, job.row.flow, job.row.dedup_key, job.row.id, job.key_expires_at)
        for job in jobs
        if job.row.dedup_key is not None
    ]
    if keyed and TAKE_FREE_KEYS.write(t.db, keyed) < len(keyed):
        return False
    INSERT_JOBS.write(t.db, [job.row for job in jobs])
    INSERT_PAYLOADS.write(t.db, [(job.row.id, *job.payload) for job in jobs])
    INSERT_EVENTS.write(t.db, [job.event for job in jobs])
    for job in jobs:
        _count(t, job.row)
        if job.proof is not None:
            keys.chain(t, job.row.tenant, [job.event], [job.proof])
    return True


def add_one(t: Transaction, job: NewJob) -> Added:
    """Store one job, or answer the one that is there in its place."""
    stored = find_job(t.db, job.row.id)
    if stored is not None:
        return Added(stored, True)
    holder = keys.holder_of(t, job.row)
    if holder is not None and (first := find_job(t.db, holder)) is not None:
        return Added(first, False)
    INSERT_JOBS.write(t.db, [job.row])
    INSERT_PAYLOADS.write(t.db, [(job.row.id, *job.payload)])
    keys.take_key(t, job.row, job.key_expires_at)
    INSERT_EVENTS.write(t.db, [job.event])
    if job.proof is not None:
        keys.chain(t, job.row.tenant, [job.event], [job.proof])
    _count(t, job.row)
    return Added(job.row, True)


def find_job(db: sqlite3.Connection, job_id: bytes) -> JobRow | None:
    """Answer the job as it is stored."""
    row = db.execute(FIND_JOB, (job_id,)).fetchone()
    return None if row is None else as_job(row)


def _count(t: Transaction, row: JobRow) -> None:
    t.count((row.flow, row.flow_version, row.state, row.role), 1)
    if row.lane:
        t.made_due = True
