"""Everything that only reads."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from ulak.clock import Instant
from ulak.core.change import Change
from ulak.core.job import Event, JobRow, Payload, Request, Result
from ulak.ids import to_text
from ulak.store.postgres.commits import REQUESTS_OF
from ulak.store.postgres.connections import Session
from ulak.store.postgres.intake import JOB_TYPES
from ulak.store.postgres.values import (
    EVENT_COLUMNS,
    JOB_COLUMNS,
    OUTBOX_COLUMNS,
    RESULT_COLUMNS,
    Blobs,
    Id,
    Ids,
    Numbers,
    as_event,
    as_job,
    as_message_row,
    as_request,
    as_result,
)
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

_OF_JOB = "job_id = %(id)s::uuid AND month = (SELECT month FROM ulak.jobs WHERE id = %(id)s::uuid)"
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
WRITTEN = """
    SELECT e.job_id FROM unnest(%s::uuid[], %s::bigint[], %s::bytea[]) AS c (job_id, seq, commit_id)
    JOIN ulak.jobs AS j ON j.id = c.job_id
    JOIN ulak.events AS e ON e.job_id = c.job_id AND e.seq = c.seq AND e.commit_id = c.commit_id
                         AND e.month = j.month
"""
OWNERS = "SELECT owner FROM ulak.owners WHERE job_id = %s::uuid ORDER BY at, owner"
OWNED_BY = """
    SELECT at, job_id FROM ulak.owners
    WHERE owner = %s::text AND (at, job_id) < (%s::bigint, %s::uuid)
    ORDER BY at DESC, job_id DESC LIMIT %s::bigint
"""
PROGRESS = "SELECT job_id, fraction, note, at FROM ulak.progress WHERE job_id = %s::uuid"
COUNTS = """
    SELECT flow, flow_version, state, role, sum(jobs)::bigint FROM (
        SELECT flow, flow_version, state, role, jobs FROM ulak.counts
        UNION ALL SELECT flow, flow_version, state, role, jobs FROM ulak.count_deltas
    ) AS both_of_them
    GROUP BY flow, flow_version, state, role HAVING sum(jobs) <> 0
    ORDER BY flow, flow_version, state, role
"""
WORKERS = (
    "SELECT id, started_at, renewed_at, expires_at, lanes, about FROM ulak.workers ORDER BY id"
)
SLOTS = "SELECT limit_name, n, job_id, closed, of_state FROM ulak.slots ORDER BY limit_name, n"
SLOTS_OF = """
    SELECT limit_name, n, job_id, closed, of_state FROM ulak.slots
    WHERE limit_name = %s::text ORDER BY n
"""
JOBS_UPWARD = f"""
    SELECT {JOB_COLUMNS} FROM ulak.jobs WHERE id > %s::uuid ORDER BY id LIMIT %s::bigint
"""
FIRST_JOBS = f"SELECT {JOB_COLUMNS} FROM ulak.jobs ORDER BY id LIMIT %s::bigint"
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

DATED = ("events", "payloads", "results")
# The names of tables are our own, from the lines above.
ORPHANS = {
    table: f"""
    SELECT DISTINCT job_id, NULL::integer FROM ulak.{table} WHERE job_id IS NOT NULL
    {"AND seq > 0" if table == "deliveries" else ""}
    AND NOT EXISTS (SELECT FROM ulak.jobs WHERE jobs.id = job_id)
    ORDER BY job_id LIMIT %s::bigint
"""
    for table in OWNED.values()
    if table not in DATED
}
# What a retired month still holds goes with the month.
DATED_ORPHANS = {
    table: f"""
    SELECT DISTINCT job_id, month FROM ulak.{table} AS r
    WHERE month NOT IN (SELECT month FROM ulak.retired_months)
    AND NOT EXISTS (SELECT FROM ulak.jobs WHERE jobs.id = r.job_id AND jobs.month = r.month)
    ORDER BY job_id, month LIMIT %s::bigint
"""
    for table in DATED
}

MOST_ORPHANS = 1000
WITHOUT_DATE = "get_byte(uuid_send(id), 6) >> 4 <> 7"
"""What the index `jobs_unordered` says of its ids: they are no UUIDv7."""

CONDITIONS = {
    BY_ROLE: [f"role <> '{role}'" for role in UNREMARKABLE],
    BY_END: ["lane = ''", "role <> 'held'", "role <> 'waiting'"],
}
"""What an index says of its jobs, word for word, so that it serves a plan without the values."""
KEYS_PER_PAGE = 1000


def payload(db: Session, job_id: bytes) -> Payload | None:
    row = db.row(PAYLOAD, {"id": Id(job_id)})
    return None if row is None else Payload(*row)


def results(db: Session, job_id: bytes) -> list[Result]:
    return [as_result(row) for row in db.rows(RESULTS, {"id": Id(job_id)})]


def key(db: Session, facts: tuple[str, str, str], now: Instant) -> bytes | None:
    row = db.row(KEY, (*facts, now))
    return None if row is None else row[0]


def owners(db: Session, job_id: bytes) -> list[str]:
    return [name for (name,) in db.rows(OWNERS, (Id(job_id),))]


def owned(
    db: Session, owner: str, before: tuple[Instant, bytes] | None = None, limit: int = 100
) -> list[tuple[Instant, bytes]]:
    at, job_id = before or LATEST
    return [(since, id) for since, id in db.rows(OWNED_BY, (owner, at, Id(job_id), limit))]


def commits(db: Session, changes: Sequence[Change]) -> list[bool]:
    facts = (
        Ids([change.row.id for change in changes]),
        Numbers([change.row.seq for change in changes]),
        Blobs([change.commit_id for change in changes]),
    )
    written = {row[0] for row in db.rows(WRITTEN, facts)}
    return [change.row.id in written for change in changes]


def progress(db: Session, job_id: bytes) -> Progress | None:
    row = db.row(PROGRESS, (Id(job_id),))
    return None if row is None else Progress(*row)


def trail(db: Session, job_id: bytes, after: int = 0, limit: int = 1000) -> list[Event]:
    facts = {"id": Id(job_id), "after": after, "limit": limit}
    return [as_event(row) for row in db.rows(TRAIL, facts)]


def list_jobs(
    db: Session, where: JobFilter, after: bytes | None = None, limit: int = 100
) -> list[JobRow]:
    """Walk the jobs of each part downward by id."""
    found: list[JobRow] = []
    for statement, facts in list_statements(where, after, limit):
        found += map(as_job, db.rows(statement, tuple(facts)))
    return sorted(found, reverse=True)[:limit]


def list_statements(
    where: JobFilter, after: bytes | None, limit: int
) -> Iterator[tuple[str, list[Any]]]:
    """Write the query for each part of a filter; values are bound, never written into it."""
    for index, matching, facts in _matching(where, after):
        matches = f"SELECT {JOB_COLUMNS} FROM {matching}"
        if index in (BY_END, UNORDERED):
            # Not in the order of ids: what is found is sorted, whatever the planner thinks of it.
            matches = f"SELECT * FROM ({matches} OFFSET 0) AS jobs"
        yield f"{matches} ORDER BY id DESC LIMIT %s::bigint", [*facts, limit]


def count_jobs(db: Session, where: JobFilter, after: bytes | None = None) -> int:
    """Count what `list_jobs` would walk."""
    jobs = 0
    for _, matching, facts in _matching(where, after):
        row = db.row(f"SELECT count(*) FROM {matching}", tuple(facts))
        jobs += 0 if row is None else int(row[0])
    return jobs


def _matching(where: JobFilter, after: bytes | None) -> Iterator[tuple[str, str, list[Any]]]:
    for index, terms in find_parts(where):
        source, own_id = "ulak.jobs", "id"
        conditions, facts = list[str](), list[Any]()
        if index == BY_OWNER:
            source, own_id = "ulak.owners JOIN ulak.jobs ON id = job_id", "job_id"
            conditions.append("owner = %s::text")
            facts.append(where.owner)
        if after is not None:
            conditions.append(f"{own_id} < %s::uuid")
            facts.append(Id(after))
        conditions += CONDITIONS.get(index, ())
        for term in terms:
            conditions.append(_write_term(term))
            if term.value is not None:
                facts.append(Id(term.value) if term.column == "id" else term.value)
        condition = f" WHERE {' AND '.join(conditions)}" if conditions else ""
        yield index, f"{source}{condition}", facts


def _write_term(term: Term) -> str:
    match term.operator:
        case "begins":
            return f"starts_with({term.column}, %s::text)"
        case "ordered":
            return f"NOT ({WITHOUT_DATE})"
        case "unordered":
            return WITHOUT_DATE
        case operator:
            return f"{term.column} {operator} %s::{JOB_TYPES[term.column]}"


def counts(db: Session) -> list[CountRow]:
    return [CountRow(*row) for row in db.rows(COUNTS)]


def workers(db: Session) -> list[WorkerRow]:
    return [WorkerRow(*row) for row in db.rows(WORKERS)]


def requests(db: Session, job_id: bytes) -> list[Request]:
    return [as_request(row) for row in db.rows(REQUESTS_OF, (Ids([job_id]),))]


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


def orphans(db: Session) -> list[str]:
    """Name what belongs to no job, by table and then by job."""
    found: list[str] = []
    for name, table in OWNED.items():
        # A row in a month that is not its job's is nobody's as well: no trail would show it.
        rows = db.rows(DATED_ORPHANS[table] if table in DATED else ORPHANS[table], (MOST_ORPHANS,))
        for job_id, month in rows:
            where = "" if month is None else f" in {month}"
            found.append(f"{name} of job {to_text(job_id)}: there is no such job{where}")
    return found
