"""What only reads."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

from ulak.clock import Instant
from ulak.core.job import Event, JobRow, Payload, Request, Result
from ulak.store.protocol import (
    CountRow,
    DedupRow,
    JobFilter,
    OutboxRow,
    Progress,
    ProofRow,
    SlotRow,
)
from ulak.store.protocol.filters import (
    BY_END,
    BY_OWNER,
    BY_ROLE,
    LATEST,
    UNREMARKABLE,
    Term,
    find_parts,
)
from ulak.store.sql.rows import (
    EVENT_COLUMNS,
    JOB_COLUMNS,
    OUTBOX_COLUMNS,
    REQUEST_COLUMNS,
    RESULT_COLUMNS,
    as_event,
    as_job,
    as_message_row,
    as_request,
    as_result,
)
from ulak.store.sql.session import Id, Session, columns

IN_ITS_MONTH = "AND month = (SELECT month FROM ulak.jobs WHERE id = %(id)s::uuid)"
"""Finds the partition of what hangs on a job; SQLite has none."""
_OF_JOB = f"job_id = %(id)s::uuid {IN_ITS_MONTH}"
PAYLOAD = f"SELECT data, schema, trace FROM ulak.payloads WHERE {_OF_JOB}"
RESULTS = f"SELECT {RESULT_COLUMNS} FROM ulak.results WHERE {_OF_JOB} ORDER BY round, stage, name"
TRAIL = f"""
    SELECT {EVENT_COLUMNS} FROM ulak.events WHERE {_OF_JOB} AND seq > %(after)s::bigint
    ORDER BY seq LIMIT %(limit)s::bigint
"""
KEY = """
    SELECT job_id FROM ulak.dedup WHERE tenant = %s::text AND flow = %s::text AND key = %s::text
    AND (expires_at IS NULL OR expires_at > %s::bigint)
"""
OWNERS = "SELECT owner FROM ulak.owners WHERE job_id = %s::uuid ORDER BY at, owner"
OWNED_BY = """
    SELECT at, job_id FROM ulak.owners /* INDEXED BY owners_since */
    WHERE owner = %s::text AND (at, job_id) < (%s::bigint, %s::uuid)
    ORDER BY at DESC, job_id DESC LIMIT %s::bigint
"""
PROGRESS = f"SELECT {columns(Progress)} FROM ulak.progress WHERE job_id = %s::uuid"
REQUESTS = f"""
    SELECT {REQUEST_COLUMNS} FROM ulak.requests WHERE job_id = %s::uuid ORDER BY at, kind, name
"""
COUNTS = """
    SELECT flow, flow_version, state, role, sum(jobs)::bigint FROM (
        SELECT flow, flow_version, state, role, jobs FROM ulak.counts
        UNION ALL SELECT flow, flow_version, state, role, jobs FROM ulak.count_deltas
    ) AS both_of_them
    GROUP BY flow, flow_version, state, role HAVING sum(jobs) <> 0
    ORDER BY flow, flow_version, state, role
"""
_SLOTS = "SELECT limit_name, n, job_id, closed, of_state FROM ulak.slots"
SLOTS = f"{_SLOTS} ORDER BY limit_name, n"
SLOTS_OF = f"{_SLOTS} WHERE limit_name = %s::text ORDER BY n"
FIRST_JOBS = f"SELECT {JOB_COLUMNS} FROM ulak.jobs ORDER BY id LIMIT %s::bigint"
JOBS_UPWARD = f"""
    SELECT {JOB_COLUMNS} FROM ulak.jobs WHERE id > %s::uuid ORDER BY id LIMIT %s::bigint
"""
MESSAGES_OF = f"""
    SELECT {OUTBOX_COLUMNS} FROM ulak.deliveries WHERE job_id = %s::uuid ORDER BY seq, n, handler
"""
_KEYS = """
    SELECT tenant, flow, key, job_id, expires_at FROM ulak.dedup
    WHERE (tenant, flow, key) {after} (%s::text, %s::text, %s::text)
    ORDER BY tenant, flow, key LIMIT %s::bigint
"""
FIRST_KEYS = _KEYS.format(after=">=")
NEXT_KEYS = _KEYS.format(after=">")
PROOFS = """
    SELECT tenant, proof_id, job_id, seq, body, hash FROM ulak.proofs
    WHERE tenant = %s::text AND proof_id > %s::bigint ORDER BY proof_id LIMIT %s::bigint
"""
PROOF_HEADS = "SELECT tenant, proof_id, hash FROM ulak.proof_heads ORDER BY tenant"

OWNED = {
    "events": "events",
    "payload": "payloads",
    "results": "results",
    "requests": "requests",
    "progress": "progress",
    "messages": "deliveries",
    "dedup key": "dedup",
    "slot": "slots",
    "tick": "ticks",
    "owner": "owners",
}
"""What hangs on a job, and the table it is in."""

# Nothing but tests has ever so many orphans; `verify` needs to know that there are some.
MOST_ORPHANS = 1000
KEYS_PER_PAGE = 1000

WITHOUT_DATE = "get_byte(uuid_send(id), 6) >> 4 <> 7"
"""What the index `jobs_unordered` says of its ids: they are no UUIDv7."""

CONDITIONS = {
    BY_ROLE: [f"role <> '{role}'" for role in UNREMARKABLE],
    BY_END: ["lane = ''", "role <> 'held'", "role <> 'waiting'"],
}
"""What an index says of its jobs, word for word, so that it serves a plan without the values."""
_TYPES = {"id": "uuid", "job_id": "uuid", "created_at": "bigint", "changed_at": "bigint"}

Statement = tuple[str, dict[str, Any]]


def payload(db: Session, job_id: bytes) -> Payload | None:
    row = db.row(PAYLOAD, {"id": Id(job_id)})
    return None if row is None else Payload(*row)


def results(db: Session, job_id: bytes) -> list[Result]:
    return [as_result(row) for row in db.rows(RESULTS, {"id": Id(job_id)})]


def key(db: Session, now: Instant, tenant: str, flow: str, key: str) -> bytes | None:
    row = db.row(KEY, (tenant, flow, key, now))
    return None if row is None else row[0]


def owners(db: Session, job_id: bytes) -> list[str]:
    return [name for (name,) in db.rows(OWNERS, (Id(job_id),))]


def owned(
    db: Session, owner: str, before: tuple[Instant, bytes] | None = None, limit: int = 100
) -> list[tuple[Instant, bytes]]:
    at, job_id = before or LATEST
    return [(since, id) for since, id in db.rows(OWNED_BY, (owner, at, Id(job_id), limit))]


def progress(db: Session, job_id: bytes) -> Progress | None:
    row = db.row(PROGRESS, (Id(job_id),))
    return None if row is None else Progress(*row)


def trail(db: Session, job_id: bytes, after: int = 0, limit: int = 1000) -> list[Event]:
    facts = {"id": Id(job_id), "after": after, "limit": limit}
    return [as_event(row) for row in db.rows(TRAIL, facts)]


def read_jobs(db: Session, statements: Iterable[Statement], limit: int) -> list[JobRow]:
    """Walk the jobs of each part of a filter downward by id."""
    found: list[JobRow] = []
    for statement, facts in statements:
        found += map(as_job, db.rows(statement, facts))
    return sorted(found, reverse=True)[:limit]


def count_jobs(db: Session, where: JobFilter, after: bytes | None = None) -> int:
    """Count the jobs of a filter, part by part."""
    jobs = 0
    for _, matching, facts in find_matching(where, after):
        row = db.row(f"SELECT count(*) FROM {matching}", facts)
        jobs += 0 if row is None else int(row[0])
    return jobs


def find_matching(
    where: JobFilter, after: bytes | None
) -> Iterator[tuple[str, str, dict[str, Any]]]:
    """Return the index of each part of a filter, with the tables, the conditions and the values."""
    for index, terms in find_parts(where, after):
        # The planner may not choose another one, nor owners and jobs the other way round.
        by = f" /* INDEXED BY {index} */" if index else ""
        source = f"ulak.jobs{by}"
        if index == BY_OWNER:
            source = f"ulak.owners{by} /* CROSS */ JOIN ulak.jobs ON id = job_id"
        conditions, facts = list(CONDITIONS.get(index, ())), dict[str, Any]()
        for n, term in enumerate(terms):
            conditions.append(_write_term(term, f"%(term_{n})s"))
            if term.value is not None:
                is_id = _TYPES.get(term.column) == "uuid"
                facts[f"term_{n}"] = Id(term.value) if is_id else term.value
        condition = f" WHERE {' AND '.join(conditions)}" if conditions else ""
        yield index, f"{source}{condition}", facts


def _write_term(term: Term, place: str) -> str:
    match term.operator:
        case "begins":
            return f"starts_with({term.column}, {place}::text)"
        case "ordered":
            return f"NOT ({WITHOUT_DATE})"
        case "unordered":
            return WITHOUT_DATE
        case operator:
            return f"{term.column} {operator} {place}::{_TYPES.get(term.column, 'text')}"


def counts(db: Session) -> list[CountRow]:
    return [CountRow(*row) for row in db.rows(COUNTS)]


def requests(db: Session, job_id: bytes) -> list[Request]:
    return [as_request(row) for row in db.rows(REQUESTS, (Id(job_id),))]


def slots(db: Session, limit: str | None = None) -> list[SlotRow]:
    found = db.rows(SLOTS) if limit is None else db.rows(SLOTS_OF, (limit,))
    return [SlotRow(*row) for row in found]


def jobs_upward(db: Session, after: bytes = b"", limit: int = 1000) -> list[JobRow]:
    if not after:
        return [as_job(row) for row in db.rows(FIRST_JOBS, (limit,))]
    return [as_job(row) for row in db.rows(JOBS_UPWARD, (Id(after), limit))]


def messages_of(db: Session, job_id: bytes) -> list[OutboxRow]:
    return [as_message_row(row) for row in db.rows(MESSAGES_OF, (Id(job_id),))]


def keys(db: Session, last: DedupRow | None) -> list[DedupRow]:
    """Return the page of dedup keys that follows this one."""
    after = ("", "", "") if last is None else last[:3]
    statement = FIRST_KEYS if last is None else NEXT_KEYS
    return [DedupRow(*row) for row in db.rows(statement, (*after, KEYS_PER_PAGE))]


def proofs(db: Session, tenant: str, after: int = 0, limit: int = 1000) -> list[ProofRow]:
    return [ProofRow(*row) for row in db.rows(PROOFS, (tenant, after, limit))]


def proof_heads(db: Session) -> dict[str, tuple[int, bytes]]:
    return {row[0]: (row[1], row[2]) for row in db.rows(PROOF_HEADS)}
