"""New jobs: the row, the first event, the payload, the key."""

from __future__ import annotations

import sqlite3
from collections.abc import Sequence
from operator import itemgetter

from ulak.core.job import JobRow, NewJob
from ulak.store.protocol import Added
from ulak.store.sqlite import keys, trail
from ulak.store.sqlite.rows import (
    ABSENT_TEXT,
    JOB_COLUMNS,
    NULLABLE_NUMBER,
    NULLABLE_TEXT,
    Batch,
    Row,
    Spread,
    as_job,
    inserting,
    or_absent,
)
from ulak.store.sqlite.writer import Transaction

_OWN = {
    "id": "?",
    "created_at": "?",
    "dedup_key": NULLABLE_TEXT,
    "expires_at": NULLABLE_NUMBER,
    "scheduled_for": NULLABLE_NUMBER,
    "changed_at": "?",
    "not_before": "?",
    "deadline_at": NULLABLE_NUMBER,
    "wake_at": NULLABLE_NUMBER,
}
_SHARED = tuple(name for name in JobRow._fields if name not in _OWN)
_shared = itemgetter(*(JobRow._fields.index(name) for name in _SHARED))

INSERT_JOBS = Spread(_SHARED, inserting("jobs", _OWN))
INSERT_PAYLOADS = Batch("INSERT OR FAIL INTO payloads (job_id, data, schema) VALUES", "(?, ?, ?)")
TAKE_FREE_KEYS = Batch(
    "INSERT INTO dedup (tenant, flow, key, job_id, expires_at) VALUES",
    f"(?, ?, ?, ?, {NULLABLE_NUMBER})",
    "ON CONFLICT (tenant, flow, key) DO NOTHING",
)
FIND_JOB = f"SELECT {JOB_COLUMNS} FROM jobs WHERE id = ?"


def add(t: Transaction, jobs: Sequence[NewJob]) -> list[Added]:
    """Store the jobs, all at once when every id is new and every key is free."""
    try:
        if _take_free_keys(t, jobs):
            _insert(t, jobs)
            return [Added(job.row, True) for job in jobs]
    except sqlite3.IntegrityError:
        # An id that is stored already, or data that no table takes: one by one it is known which.
        pass
    t.start_over()
    return [add_one(t, job) for job in jobs]


def _take_free_keys(t: Transaction, jobs: Sequence[NewJob]) -> bool:
    keyed = [
        (row.tenant, row.flow, row.dedup_key, bytearray(row.id), or_absent(expires_at))
        for row, _, _, expires_at, _ in jobs
        if row.dedup_key is not None
    ]
    return not keyed or TAKE_FREE_KEYS.write(t.db, keyed) == len(keyed)


def _insert(t: Transaction, jobs: Sequence[NewJob]) -> None:
    groups: dict[Row, list[Row]] = {}
    for job in jobs:
        row = job.row
        own = (
            bytearray(row.id), row.created_at,
            ABSENT_TEXT if row.dedup_key is None else row.dedup_key,
            or_absent(row.expires_at), or_absent(row.scheduled_for), row.changed_at,
            row.not_before, or_absent(row.deadline_at), or_absent(row.wake_at),
        )  # fmt: skip
        groups.setdefault(_shared(row), []).append(own)
        t.count((row.flow, row.flow_version, row.state, row.role), 1)
        if row.lane:
            t.made_due = True
    INSERT_JOBS.write(t.db, groups)
    INSERT_PAYLOADS.write(
        t.db,
        [(bytearray(j.row.id), bytearray(j.payload.data), j.payload.schema) for j in jobs],
    )
    trail.append(t.db, [job.event for job in jobs])
    for job in jobs:
        if job.proof is not None:
            t.prove(job.row.tenant, [job.event], [job.proof])


def add_one(t: Transaction, job: NewJob) -> Added:
    """Store one job, or answer the one that is there in its place."""
    stored = find_job(t.db, job.row.id)
    if stored is not None:
        return Added(stored, True)
    holder = keys.holder_of(t, job.row)
    if holder is not None and (first := find_job(t.db, holder)) is not None:
        return Added(first, False)
    keys.take_key(t, job.row, job.key_expires_at)
    _insert(t, [job])
    return Added(job.row, True)


def find_job(db: sqlite3.Connection, job_id: bytes) -> JobRow | None:
    """Answer the job as it is stored."""
    row = db.execute(FIND_JOB, (job_id,)).fetchone()
    return None if row is None else as_job(row)
