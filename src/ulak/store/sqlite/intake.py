"""New jobs: the row, the first event, the payload, the key.

A batch is decided in the order of its caller, so that of two with one key the first is stored,
and written in the order of every write.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Sequence
from operator import itemgetter

from ulak.core.job import JobRow, NewJob, Payload
from ulak.store.flow_control import NO_STOPS, Stops
from ulak.store.protocol import Added
from ulak.store.sql.rows import JOB_COLUMNS, as_job
from ulak.store.sql.session import Row
from ulak.store.sqlite import trail
from ulak.store.sqlite.order import Rest
from ulak.store.sqlite.rows import (
    ABSENT_TEXT,
    NULLABLE_NUMBER,
    NULLABLE_TEXT,
    Batch,
    Lone,
    Spread,
    inserting,
    or_absent,
)
from ulak.store.sqlite.stops import find_stops
from ulak.store.sqlite.writer import Transaction

_OWN = {
    "id": "?",
    "created_at": "?",
    "dedup_key": NULLABLE_TEXT,
    "expires_at": NULLABLE_NUMBER,
    "scheduled_for": NULLABLE_NUMBER,
    "keys": NULLABLE_TEXT,
    "changed_at": "?",
    "not_before": "?",
    "deadline_at": NULLABLE_NUMBER,
    "wake_at": NULLABLE_NUMBER,
}
_SHARED = tuple(name for name in JobRow._fields if name not in _OWN)
_shared = itemgetter(*(JobRow._fields.index(name) for name in _SHARED))

INSERT_JOBS = Spread(_SHARED, inserting("jobs", _OWN))
INSERT_PAYLOADS = Batch(
    "INSERT OR FAIL INTO payloads (job_id, data, schema, trace) VALUES",
    f"(?, ?, ?, {NULLABLE_TEXT})",
)
TAKE_FREE_KEYS = Batch(
    "INSERT INTO dedup (tenant, flow, key, job_id, expires_at) VALUES",
    f"(?, ?, ?, ?, {NULLABLE_NUMBER})",
    "ON CONFLICT (tenant, flow, key) DO NOTHING",
)
# One job: what a batch saves by sharing values it spends on sorting them out.
INSERT_JOB = Lone("jobs", JobRow._fields)
INSERT_PAYLOAD = Lone("payloads", ("job_id", *Payload._fields))
INSERT_PAYLOAD_IF_PLAIN = f"""
    INSERT INTO payloads (job_id, data, schema, trace)
    VALUES (?, ?, CASE WHEN EXISTS (SELECT 1 FROM stops) THEN NULL
        WHEN EXISTS (SELECT 1 FROM handlers WHERE flow = ?) THEN NULL ELSE ? END, {NULLABLE_TEXT})
"""
OWN = """
    INSERT INTO owners (job_id, owner, at) SELECT id, ?, ? FROM jobs WHERE id = ?
    ON CONFLICT DO NOTHING
"""
FIND_JOB = f"SELECT {JOB_COLUMNS} FROM jobs WHERE id = ?"


def add(t: Transaction, jobs: Sequence[NewJob]) -> list[Added]:
    """Store the jobs, all at once when every id is new, every key free and every flow open."""
    lone = jobs[0].row if len(jobs) == 1 else None
    stops = NO_STOPS if lone is not None else find_stops(t.db, jobs)
    # A look at its key costs a lone job little; to write a duplicate and take it back costs much.
    if not stops and (lone is None or lone.dedup_key is None or Rest(t).holder_of(lone) is None):
        if _insert_all(t, jobs):
            return [Added(job.row, True) for job in jobs]
        t.start_over()
    if lone is not None:
        stops = find_stops(t.db, jobs)
    rest = Rest(t)
    added = [admit(t, rest, job, stops) for job in jobs]
    finish(t, rest)
    return added


def _insert_all(t: Transaction, jobs: Sequence[NewJob]) -> bool:
    """Store all the jobs, or return False: the transaction must be started over."""
    try:
        if len(jobs) == 1:
            _insert_one(t, jobs[0], if_plain=True)
            if not jobs[0].owner and jobs[0].row.dedup_key is None:
                return True
        else:
            _insert(t, sorted(jobs, key=_id))
        own(t, [(job.row.id, job.owner) for job in jobs if job.owner])
        return _take_free_keys(t, jobs)
    except sqlite3.IntegrityError:
        # A stop, a follower, an id that is stored, or data that no table takes: look at each.
        return False


def _take_free_keys(t: Transaction, jobs: Sequence[NewJob]) -> bool:
    keyed = [
        (row.tenant, row.flow, row.dedup_key, bytearray(row.id), or_absent(expires_at))
        for row, _, _, expires_at, *_ in jobs
        if row.dedup_key is not None
    ]
    if not keyed:
        return True
    keyed.sort()
    return TAKE_FREE_KEYS.write(t.db, keyed) == len(keyed)


def _insert(t: Transaction, jobs: Sequence[NewJob]) -> None:
    if len(jobs) == 1:
        _insert_one(t, jobs[0])
        return
    groups: dict[Row, list[Row]] = {}
    for job in jobs:
        row = job.row
        own = (
            bytearray(row.id), row.created_at,
            ABSENT_TEXT if row.dedup_key is None else row.dedup_key,
            or_absent(row.expires_at), or_absent(row.scheduled_for),
            ABSENT_TEXT if row.keys is None else row.keys, row.changed_at,
            row.not_before, or_absent(row.deadline_at), or_absent(row.wake_at),
        )  # fmt: skip
        groups.setdefault(_shared(row), []).append(own)
        t.count((row.flow, row.flow_version, row.state, row.role), 1)
        if row.lane:
            t.made_due = True
    INSERT_JOBS.write(t.db, groups)
    INSERT_PAYLOADS.write(
        t.db,
        [
            (bytearray(row.id), bytearray(data), schema, ABSENT_TEXT if trace is None else trace)
            for row, _, (data, schema, trace), *_ in jobs
        ],
    )
    trail.append(t.db, [job.event for job in jobs])
    for job in jobs:
        if job.proof is not None:
            t.prove(job.row.tenant, [job.event], [job.proof])
    t.follow((job.row.flow, [job.event]) for job in jobs)


def _insert_one(t: Transaction, job: NewJob, *, if_plain: bool = False) -> None:
    """Store a job; if `if_plain`, fail where there is a stop or its flow is followed."""
    row, event, (data, schema, trace), _, proof, *_ = job
    job_id, data_bytes = bytearray(row[0]), bytearray(data)
    if if_plain:
        said = ABSENT_TEXT if trace is None else trace
        t.db.execute(INSERT_PAYLOAD_IF_PLAIN, (job_id, data_bytes, row.flow, schema, said))
    else:
        INSERT_PAYLOAD.write(t.db, (job_id, data_bytes, schema, trace))
        t.follow([(row.flow, [event])])
    INSERT_JOB.write(t.db, (job_id, *row[1:]))
    trail.append_one(t.db, event)
    t.count((row.flow, row.flow_version, row.state, row.role), 1)
    if row.lane:
        t.made_due = True
    if proof is not None:
        t.prove(row.tenant, [event], [proof])


def admit(t: Transaction, rest: Rest, job: NewJob, stops: Stops = NO_STOPS) -> Added:
    """Decide to store a job; else return the one in its place, or the stop that keeps it out."""
    stored = rest.find_new(job.row.id) or find_job(t.db, job.row.id)
    if stored is not None:
        return Added(stored, True)
    holder = rest.holder_of(job.row)
    if holder is not None:
        first = rest.find_new(holder) or find_job(t.db, holder)
        if first is not None:
            rest.own(first.id, job.owner)
            return Added(first, False)
    stop = None if job.is_admitted else stops.get((job.row.flow, job.row.tenant))
    if stop is not None:
        return Added(job.row, False, stop)
    rest.add(job)
    return Added(job.row, True)


def finish(t: Transaction, rest: Rest) -> None:
    """Write what a batch leaves besides the jobs that it moves."""
    new = rest.new_jobs()
    if new:
        _insert(t, new)
    rest.write()
    own(t, rest.owned)


def own(t: Transaction, owned: Sequence[tuple[bytes, str]]) -> None:
    """Add owners to jobs, unless they are that already."""
    if owned:
        t.db.executemany(OWN, [(owner, t.now, job_id) for job_id, owner in sorted(owned)])


def _id(job: NewJob) -> bytes:
    return job.row.id


def find_job(db: sqlite3.Connection, job_id: bytes) -> JobRow | None:
    """Return the job as it is stored."""
    row = db.execute(FIND_JOB, (job_id,)).fetchone()
    return None if row is None else as_job(row)
