"""Everything that only reads. No statement outlives the call that made it."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator, Sequence
from typing import Any

from ulak.clock import Clock, Instant
from ulak.core.change import Change
from ulak.core.job import Event, JobRow, Payload, Request, Result
from ulak.ids import to_text
from ulak.store.protocol import (
    CountRow,
    DedupRow,
    JobFilter,
    OutboxRow,
    Progress,
    ProofRow,
    SlotRow,
    WorkerRow,
)
from ulak.store.protocol.filters import (
    BY_END,
    BY_OWNER,
    BY_ROLE,
    LATEST,
    UNORDERED,
    UNREMARKABLE,
    Term,
    find_parts,
)
from ulak.store.sqlite.commits import REQUESTS_OF, is_in_trail
from ulak.store.sqlite.rows import (
    EVENT_COLUMNS,
    JOB_COLUMNS,
    OUTBOX_COLUMNS,
    RESULT_COLUMNS,
    as_event,
    as_job,
    as_message_row,
    as_request,
    as_result,
)

PAYLOAD = "SELECT data, schema, trace FROM payloads WHERE job_id = ?"
RESULTS = f"SELECT {RESULT_COLUMNS} FROM results WHERE job_id = ? ORDER BY round, stage, name"
KEY = """
    SELECT job_id FROM dedup
    WHERE tenant = ? AND flow = ? AND key = ? AND (expires_at IS NULL OR expires_at > ?)
"""
OWNERS = "SELECT owner FROM owners WHERE job_id = ? ORDER BY at, owner"
OWNED_BY = """
    SELECT at, job_id FROM owners INDEXED BY owners_since
    WHERE owner = ? AND (at, job_id) < (?, ?) ORDER BY at DESC, job_id DESC LIMIT ?
"""
PROGRESS = f"SELECT {', '.join(Progress._fields)} FROM progress WHERE job_id = ?"
TRAIL = f"SELECT {EVENT_COLUMNS} FROM events WHERE job_id = ? AND seq > ? ORDER BY seq LIMIT ?"
COUNTS = """
    SELECT flow, flow_version, state, role, sum(jobs) FROM (
        SELECT flow, flow_version, state, role, jobs FROM counts
        UNION ALL SELECT flow, flow_version, state, role, jobs FROM count_deltas
    )
    GROUP BY flow, flow_version, state, role HAVING sum(jobs) <> 0
    ORDER BY flow, flow_version, state, role
"""
WORKERS = f"SELECT boot, ends_us, {', '.join(WorkerRow._fields)} FROM workers ORDER BY id"
SLOTS = "SELECT limit_name, n, job_id, closed, of_state FROM slots ORDER BY limit_name, n"
SLOTS_OF = (
    "SELECT limit_name, n, job_id, closed, of_state FROM slots WHERE limit_name = ? ORDER BY n"
)
JOBS_UPWARD = f"SELECT {JOB_COLUMNS} FROM jobs WHERE id > ? ORDER BY id LIMIT ?"
MESSAGES_OF = f"""
    SELECT {OUTBOX_COLUMNS} FROM deliveries WHERE job_id = ? ORDER BY seq, n, handler
"""
_KEYS = """
    SELECT tenant, flow, key, job_id, expires_at FROM dedup
    WHERE (tenant, flow, key) {after} (?, ?, ?) ORDER BY tenant, flow, key LIMIT ?
"""
FIRST_KEYS = _KEYS.format(after=">=")
NEXT_KEYS = _KEYS.format(after=">")
PROOFS = """
    SELECT tenant, proof_id, job_id, seq, body, hash FROM proofs
    WHERE tenant = ? AND proof_id > ? ORDER BY proof_id LIMIT ?
"""
PROOF_HEADS = "SELECT tenant, proof_id, hash FROM proof_heads ORDER BY tenant"

OWNED = {
    "events": "events",
    "payload": "payloads",
    "results": "results",
    "requests": "requests",
    "progress": "progress",
    "messages": "(SELECT job_id FROM deliveries WHERE seq > 0)",
    "dedup key": "dedup",
    "slot": "slots",
    "tick": "ticks",
    "owner": "owners",
}
"""What hangs on a job, and the table it is in."""

# Nothing but tests has ever so many orphans; `verify` needs to know that there are some.
MOST_ORPHANS = 1000
KEYS_PER_PAGE = 1000

WITHOUT_DATE = "substr(id, 7, 1) NOT BETWEEN x'70' AND x'7f'"
"""What the index `jobs_unordered` says of its ids: they are no UUIDv7."""

CONDITIONS = {
    BY_ROLE: [f"role <> '{role}'" for role in UNREMARKABLE],
    BY_END: ["lane = ''", "role <> 'held'", "role <> 'waiting'"],
}
"""What an index says of its jobs, word for word."""


def payload(db: sqlite3.Connection, job_id: bytes) -> Payload | None:
    row = db.execute(PAYLOAD, (job_id,)).fetchone()
    return None if row is None else Payload(*row)


def results(db: sqlite3.Connection, job_id: bytes) -> list[Result]:
    return list(map(as_result, db.execute(RESULTS, (job_id,)).fetchall()))


def key(db: sqlite3.Connection, facts: tuple[str, str, str], now: Instant) -> bytes | None:
    row = db.execute(KEY, (*facts, now)).fetchone()
    return None if row is None else row[0]


def owners(db: sqlite3.Connection, job_id: bytes) -> list[str]:
    return [name for (name,) in db.execute(OWNERS, (job_id,)).fetchall()]


def owned(
    db: sqlite3.Connection,
    owner: str,
    before: tuple[Instant, bytes] | None = None,
    limit: int = 100,
) -> list[tuple[Instant, bytes]]:
    at, job_id = before or LATEST
    return db.execute(OWNED_BY, (owner, at, job_id, limit)).fetchall()


def commits(db: sqlite3.Connection, changes: Sequence[Change]) -> list[bool]:
    return [is_in_trail(db, change) for change in changes]


def progress(db: sqlite3.Connection, job_id: bytes) -> Progress | None:
    row = db.execute(PROGRESS, (job_id,)).fetchone()
    return None if row is None else Progress(*row)


def trail(db: sqlite3.Connection, job_id: bytes, after: int = 0, limit: int = 1000) -> list[Event]:
    return list(map(as_event, db.execute(TRAIL, (job_id, after, limit)).fetchall()))


def list_jobs(
    db: sqlite3.Connection, where: JobFilter, after: bytes | None = None, limit: int = 100
) -> list[JobRow]:
    """Walk the jobs of each part downward by id."""
    found: list[JobRow] = []
    for statement, facts in list_statements(where, after, limit):
        found += map(as_job, db.execute(statement, facts).fetchall())
    return sorted(found, reverse=True)[:limit]


def list_statements(
    where: JobFilter, after: bytes | None, limit: int
) -> Iterator[tuple[str, list[Any]]]:
    """Write the query for each part of a filter; values are bound, never written into it."""
    order = "id" if where.owner is None else "job_id"
    for by, matching, facts in _matching(where, after):
        source, bound = matching, [*facts, limit]
        if by in (BY_END, UNORDERED):
            # Not in the order of ids: only ids are sorted, and few rows are read whole.
            source = f"jobs WHERE id IN (SELECT id FROM {matching} ORDER BY id DESC LIMIT ?)"
            bound.append(limit)
        yield f"SELECT {JOB_COLUMNS} FROM {source} ORDER BY {order} DESC LIMIT ?", bound


def count_jobs(db: sqlite3.Connection, where: JobFilter, after: bytes | None = None) -> int:
    """Count what `list_jobs` would walk."""
    return sum(
        db.execute(f"SELECT count(*) FROM {matching}", facts).fetchone()[0]
        for _, matching, facts in _matching(where, after)
    )


def _matching(where: JobFilter, after: bytes | None) -> Iterator[tuple[str, str, list[Any]]]:
    for index, terms in find_parts(where):
        # The planner may not choose another one, nor owners and jobs the other way round.
        source = f"jobs INDEXED BY {index}" if index else "jobs"
        conditions, facts = list[str](), list[Any]()
        if index == BY_OWNER:
            source = f"owners INDEXED BY {index} CROSS JOIN jobs ON id = job_id"
            conditions.append("owner = ?")
            facts.append(where.owner)
        if after is not None:
            conditions.append(f"{'job_id' if index == BY_OWNER else 'id'} < ?")
            facts.append(after)
        conditions += CONDITIONS.get(index, ())
        for term in terms:
            conditions.append(_write_term(term))
            facts += [term.value] * conditions[-1].count("?")
        condition = f" WHERE {' AND '.join(conditions)}" if conditions else ""
        yield index, f"{source}{condition}", facts


def _write_term(term: Term) -> str:
    match term.operator:
        case "begins":
            return f"substr({term.column}, 1, length(?)) = ?"
        case "ordered":
            return f"NOT ({WITHOUT_DATE})"
        case "unordered":
            return WITHOUT_DATE
        case operator:
            return f"{term.column} {operator} ?"


def counts(db: sqlite3.Connection) -> list[CountRow]:
    return [CountRow(*row) for row in db.execute(COUNTS).fetchall()]


def workers(db: sqlite3.Connection, clock: Clock) -> list[WorkerRow]:
    now, here = clock.now(), clock.uptime()
    found: list[WorkerRow] = []
    for boot, ends_us, *columns in db.execute(WORKERS).fetchall():
        row = WorkerRow(*columns)
        if boot is not None and here.boot:
            # As the time of day is now: it may have been set since the lease was renewed.
            left_us = ends_us - here.us if boot == here.boot else min(row.expires_at - now, 0)
            row = row._replace(expires_at=now + left_us)
        found.append(row)
    return found


def requests(db: sqlite3.Connection, job_id: bytes) -> list[Request]:
    return list(map(as_request, db.execute(REQUESTS_OF, (job_id,)).fetchall()))


def slots(db: sqlite3.Connection, limit: str | None = None) -> list[SlotRow]:
    found = db.execute(SLOTS) if limit is None else db.execute(SLOTS_OF, (limit,))
    return [SlotRow(*row) for row in found.fetchall()]


def jobs_upward(db: sqlite3.Connection, after: bytes = b"", limit: int = 1000) -> list[JobRow]:
    return list(map(as_job, db.execute(JOBS_UPWARD, (after, limit)).fetchall()))


def messages_of(db: sqlite3.Connection, job_id: bytes) -> list[OutboxRow]:
    return [as_message_row(row) for row in db.execute(MESSAGES_OF, (job_id,)).fetchall()]


def keys(db: sqlite3.Connection, last: DedupRow | None) -> list[DedupRow]:
    """Return the page of dedup keys that follows this one."""
    after = ("", "", "") if last is None else last[:3]
    statement = FIRST_KEYS if last is None else NEXT_KEYS
    return [DedupRow(*row) for row in db.execute(statement, (*after, KEYS_PER_PAGE)).fetchall()]


def proofs(
    db: sqlite3.Connection, tenant: str, after: int = 0, limit: int = 1000
) -> list[ProofRow]:
    return [ProofRow(*row) for row in db.execute(PROOFS, (tenant, after, limit)).fetchall()]


def proof_heads(db: sqlite3.Connection) -> dict[str, tuple[int, bytes]]:
    return {row[0]: (row[1], row[2]) for row in db.execute(PROOF_HEADS).fetchall()}


def orphans(db: sqlite3.Connection) -> list[str]:
    """Name what belongs to no job, by table and then by job."""
    found: list[str] = []
    for name, table in OWNED.items():
        # The names of tables are our own, from the line above.
        rows = db.execute(
            f"SELECT DISTINCT job_id FROM {table} WHERE job_id IS NOT NULL "
            "AND NOT EXISTS (SELECT 1 FROM jobs WHERE jobs.id = job_id) ORDER BY job_id LIMIT ?",
            (MOST_ORPHANS,),
        ).fetchall()
        found += [f"{name} of job {to_text(row[0])}: there is no such job" for row in rows]
    return found
