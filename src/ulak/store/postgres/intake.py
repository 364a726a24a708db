"""New jobs: the row, the first event, the payload, the key.

Keys are taken first, in their order, and then every job is stored that has its key or needs none.
That is not the order of other writes, and no circle can come of it: nobody else can wait for the
row of a job that is not stored yet.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from operator import itemgetter
from typing import Any, get_type_hints

from ulak.core.job import Event, JobRow, NewJob
from ulak.store.postgres import keys, trail
from ulak.store.postgres.connections import Session, Transaction
from ulak.store.postgres.months import month_of
from ulak.store.postgres.values import (
    EVENT_COLUMNS,
    JOB_COLUMNS,
    Groups,
    Id,
    Ids,
    Sheet,
    as_job,
)
from ulak.store.protocol import Added

_TYPES: Mapping[Any, str] = {bytes: "uuid", int: "bigint", int | None: "bigint"}

JOB_TYPES = {name: _TYPES.get(hint, "text") for name, hint in get_type_hints(JobRow).items()}
"""The type of every column of a job."""

_OWN = (
    "id", "created_at", "dedup_key", "expires_at", "scheduled_for", "changed_at", "not_before",
    "deadline_at", "wake_at",
)  # fmt: skip
_SHARED = tuple(name for name in JobRow._fields if name not in _OWN)
_own_of = itemgetter(*(JobRow._fields.index(name) for name in _OWN))
_shared_of = itemgetter(*(JobRow._fields.index(name) for name in _SHARED))

_EVENT = {f"event_{name}": kind for name, kind in (trail.OWN | trail.SHARED).items()}
_EVENT_OWN = {name: _EVENT[name] for name in _EVENT if name.removeprefix("event_") in trail.OWN}
_EVENT_SHARED = {name: _EVENT[name] for name in _EVENT if name not in _EVENT_OWN}

NEW = Sheet(
    "n",
    {name: JOB_TYPES[name] for name in _OWN} | _EVENT_OWN | {"data": "bytea", "trace": "text"},
    {name: JOB_TYPES[name] for name in _SHARED}
    | _EVENT_SHARED
    | {"schema": "bigint", "month": "bigint"},
)
INSERT = f"""
    WITH n AS (SELECT * FROM {NEW.source}),
    new_jobs AS (
        INSERT INTO ulak.jobs ({JOB_COLUMNS}, month)
        SELECT {NEW.columns(JobRow._fields)}, {NEW["month"]} FROM n
    ),
    new_payloads AS (
        INSERT INTO ulak.payloads (month, job_id, data, schema, trace)
        SELECT {NEW.columns(("month", "id", "data", "schema", "trace"))} FROM n
    ),
    new_counts AS (
        INSERT INTO ulak.count_deltas (flow, flow_version, state, role, jobs)
        SELECT {NEW.columns(("flow", "flow_version", "state", "role"))}, count(*) FROM n
        GROUP BY 1, 2, 3, 4
    )
    INSERT INTO ulak.events (month, {EVENT_COLUMNS})
    SELECT {NEW["month"]}, {NEW.columns(f"event_{name}" for name in Event._fields)} FROM n
"""
# A lone job, with plain values: arrays of one would cost more than the rows.
_ONE = JOB_TYPES | {"month": "bigint", "data": "bytea", "schema": "bigint", "trace": "text"}
_ONE |= {f"event_{name}": _EVENT[f"event_{name}"] for name in Event._fields[1:]}
_PLACES = {name: f"${n}::{kind}" for n, (name, kind) in enumerate(_ONE.items(), 1)}
_PLACES["event_job_id"] = _PLACES["id"]


def _places(*names: str) -> str:
    return ", ".join(_PLACES[name] for name in names)


INSERT_ONE = f"""
    WITH new_job AS (
        INSERT INTO ulak.jobs ({JOB_COLUMNS}, month)
        VALUES ({_places(*JobRow._fields, "month")})
    ),
    new_payload AS (
        INSERT INTO ulak.payloads (month, job_id, data, schema, trace)
        VALUES ({_places("month", "id", "data", "schema", "trace")})
    ),
    new_count AS (
        INSERT INTO ulak.count_deltas (flow, flow_version, state, role, jobs)
        VALUES ({_places("flow", "flow_version", "state", "role")}, 1)
    )
    INSERT INTO ulak.events (month, {EVENT_COLUMNS})
    VALUES ({_places("month", *(f"event_{name}" for name in Event._fields))})
"""
FIND_JOB = f"SELECT {JOB_COLUMNS} FROM ulak.jobs WHERE id = %s::uuid"
FIND_JOBS = f"SELECT {JOB_COLUMNS} FROM ulak.jobs WHERE id = ANY (%s::uuid[])"


def are_plain(jobs: Sequence[NewJob]) -> bool:
    """Tell whether these jobs need nothing but to be written."""
    return all(job.row.dedup_key is None and job.proof is None for job in jobs)


def add_plain(t: Transaction, jobs: Sequence[NewJob]) -> list[Added]:
    """Store jobs, as if none of them were there, with a statement that nobody waits for."""
    if len(jobs) == 1:
        row, event, payload, _, _ = jobs[0]
        facts = (Id(row.id), *row[1:], month_of(row.created_at), *payload, *event[1:])
        t.db.execute(INSERT_ONE, facts)
    elif jobs:
        t.db.execute(INSERT, bind(jobs))
    t.made_due = any(job.row.lane for job in jobs)
    return [Added(job.row, True) for job in jobs]


def add(t: Transaction, jobs: Sequence[NewJob]) -> list[Added]:
    """Store the jobs, as if none of them were there."""
    return _add(t, jobs, {})


def add_again(t: Transaction, jobs: Sequence[NewJob]) -> list[Added]:
    """Store the jobs that are not stored already: the answer to their first `add` was lost."""
    ids = Ids(sorted({job.row.id for job in jobs}))
    stored = {row[0]: as_job(row) for row in t.db.rows(FIND_JOBS, (ids,))}
    return _add(t, jobs, stored)


def _add(t: Transaction, jobs: Sequence[NewJob], stored: Mapping[bytes, JobRow]) -> list[Added]:
    first: dict[keys.Key, NewJob] = {}
    """Of several with one key, the first."""
    chosen: dict[bytes, NewJob] = {}
    for job in jobs:
        key = keys.key_of(job.row)
        if job.row.id in stored or job.row.id in chosen or key in first:
            continue
        if key is not None:
            first[key] = job
        chosen[job.row.id] = job
    held = keys.take(t, {key: (job.row.id, job.key_expires_at) for key, job in first.items()})
    for key in held:
        del chosen[first[key].row.id]
    insert(t, [chosen[job_id] for job_id in sorted(chosen)])

    def answer(job: NewJob) -> Added:
        if job.row.id in stored:
            return Added(stored[job.row.id], True)
        if job.row.id in chosen:
            return Added(chosen[job.row.id].row, True)
        key = keys.key_of(job.row)
        assert key is not None  # noqa: S101 - nothing but a key makes a job a duplicate
        holder = held[key] if key in held else first[key].row
        # A job that holds its own key was stored by an `add` that lost its answer.
        return Added(holder, holder.id == job.row.id)

    return [answer(job) for job in jobs]


def insert(t: Transaction, jobs: Sequence[NewJob]) -> None:
    """Store new jobs, by id, with payload and first event."""
    if not jobs:
        return
    for row, event, _, _, proof in jobs:
        if row.lane:
            t.made_due = True
        if proof is not None:
            t.prove(row.tenant, [event], [proof])
    t.db.execute(INSERT, bind(jobs))


def bind(jobs: Sequence[NewJob]) -> dict[str, Any]:
    """Return the parameters of `INSERT`."""
    groups = Groups()
    for row, event, payload, _, _ in jobs:
        own = (*_own_of(row), *trail.own_of(event), payload.data, payload.trace)
        shared = (
            *_shared_of(row), *trail.shared_of(event), payload.schema, month_of(row.created_at),
        )  # fmt: skip
        groups.add(shared, own)
    return groups.bind(NEW)


def find_job(db: Session, job_id: bytes) -> JobRow | None:
    """Return the job as it is stored."""
    row = db.row(FIND_JOB, (Id(job_id),))
    return None if row is None else as_job(row)
