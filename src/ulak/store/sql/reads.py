"""Reads, what is due, and the side columns of jobs that no guard protects."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from functools import partial
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
    filters,
)
from ulak.store.sql.session import (
    EVENT_COLUMNS,
    JOB_COLUMNS,
    OUTBOX_COLUMNS,
    REQUEST_COLUMNS,
    RESULT_COLUMNS,
    Id,
    Session,
    Transaction,
    as_message_row,
    fetch,
    fetch_one,
    select,
)

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
PROGRESS = select("progress", Progress, "WHERE job_id = %s::uuid")
REQUESTS = select("requests", Request, "WHERE job_id = %s::uuid ORDER BY at, kind, name")
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
FIRST_JOBS = select("jobs", JobRow, "ORDER BY id LIMIT %s::bigint")
JOBS_UPWARD = select("jobs", JobRow, "WHERE id > %s::uuid ORDER BY id LIMIT %s::bigint")
MESSAGES_OF = f"""
    SELECT {OUTBOX_COLUMNS} FROM ulak.deliveries WHERE job_id = %s::uuid ORDER BY seq, n, handler
"""
_AFTER = "(tenant, flow, key) > (%s::text, %s::text, %s::text)"
KEYS = select("dedup", DedupRow, f"WHERE {_AFTER} ORDER BY tenant, flow, key LIMIT %s::bigint")
PROOFS = select(
    "proofs",
    ProofRow,
    "WHERE tenant = %s::text AND proof_id > %s::bigint ORDER BY proof_id LIMIT %s::bigint",
)
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

# Nothing but tests has ever so many orphans; `verify` needs to know that there are some.
MOST_ORPHANS = 1000
KEYS_PER_PAGE = 1000

WITHOUT_DATE = "get_byte(uuid_send(id), 6) >> 4 <> 7"
"""What the index `jobs_unordered` says of its ids: they are no UUIDv7."""

CONDITIONS = {
    filters.BY_ROLE: [f"role <> '{role}'" for role in filters.UNREMARKABLE],
    filters.BY_END: ["lane = ''", "role <> 'held'", "role <> 'waiting'"],
}
"""What an index says of its jobs, word for word, so that it serves a plan without the values."""
_TYPES = {"id": "uuid", "job_id": "uuid", "created_at": "bigint", "changed_at": "bigint"}

FIRST_ID = bytes(16)

DUE = f"""
    SELECT {JOB_COLUMNS} FROM ulak.jobs /* INDEXED BY jobs_waking */
    WHERE wake_at <= %s::bigint AND leased_by IS NULL AND (wake_at, id) > (%s::bigint, %s::uuid)
    ORDER BY wake_at, id LIMIT %s::bigint
"""
CLAIMABLE_IN = f"""
    SELECT {JOB_COLUMNS} FROM ulak.jobs /* INDEXED BY jobs_claimable */
    WHERE leased_by IS NULL AND parked_on IS NULL AND lane <> '' AND lane = %s::text
    AND priority IN (0, 1, 2, 3) AND not_before <= %s::bigint
    ORDER BY priority, not_before, id LIMIT %s::bigint
"""
# Few are leased, and any number may be due.
OVERDUE_LEASED = f"""
    SELECT {JOB_COLUMNS} FROM ulak.jobs /* INDEXED BY jobs_leased */
    WHERE wake_at <= %s::bigint AND leased_by IS NOT NULL
    AND NOT EXISTS (SELECT FROM ulak.requests WHERE job_id = jobs.id AND kind = 'expire')
    ORDER BY wake_at, id LIMIT %s::bigint
"""
ASKED = f"""
    SELECT {JOB_COLUMNS} FROM ulak.jobs
    WHERE id IN (SELECT job_id FROM ulak.requests WHERE job_id > %s::uuid) AND leased_by IS NULL
    ORDER BY id LIMIT %s::bigint
"""
OF_STATE = f"""
    SELECT {JOB_COLUMNS} FROM ulak.jobs /* INDEXED BY jobs_ended */
    WHERE lane = '' AND role <> 'held' AND role <> 'waiting' AND changed_at < %s::bigint
      AND flow = %s::text AND state = %s::text AND id > %s::uuid
    ORDER BY id LIMIT %s::bigint
"""

LOCK_JOB = "SELECT leased_by FROM ulak.jobs WHERE id = %s::uuid FOR NO KEY UPDATE"
ASK = f"""
    INSERT INTO ulak.requests ({REQUEST_COLUMNS})
    VALUES (%s::uuid, %s::text, %s::text, %s::text, %s::text, %s::bytea, %s::bigint)
    ON CONFLICT (job_id, kind, name) DO NOTHING
"""
COUNT_REQUESTS = """
    UPDATE ulak.jobs
    SET requests = (SELECT count(*) FROM ulak.requests WHERE job_id = %(id)s::uuid)
    WHERE id = %(id)s::uuid
"""
REPORT = """
    INSERT INTO ulak.progress (job_id, fraction, note, at)
    SELECT %(id)s::uuid, %(fraction)s::float8, %(note)s::text, %(at)s::bigint
    WHERE EXISTS (SELECT FROM ulak.jobs WHERE id = %(id)s::uuid)
    ON CONFLICT (job_id) DO UPDATE
    SET fraction = excluded.fraction, note = excluded.note, at = excluded.at
"""
# What jobs are parked on, each found by one step along the index.
PARKED_NAMES = """
    WITH RECURSIVE parked (name) AS (
        SELECT (
            SELECT parked_on FROM ulak.jobs /* INDEXED BY jobs_parked */
            WHERE parked_on > %s::text ORDER BY parked_on LIMIT 1
        )
        UNION ALL
        SELECT (
            SELECT parked_on FROM ulak.jobs /* INDEXED BY jobs_parked */
            WHERE parked_on > parked.name ORDER BY parked_on LIMIT 1
        ) FROM parked WHERE parked.name IS NOT NULL
    )
    SELECT name FROM parked WHERE name IS NOT NULL LIMIT %s::bigint
"""

Statement = tuple[str, dict[str, Any]]


def payload(db: Session, job_id: bytes) -> Payload | None:
    return fetch_one(db, Payload, PAYLOAD, {"id": Id(job_id)})


def results(db: Session, job_id: bytes) -> list[Result]:
    return fetch(db, Result, RESULTS, {"id": Id(job_id)})


def key(db: Session, now: Instant, tenant: str, flow: str, key: str) -> bytes | None:
    row = db.row(KEY, (tenant, flow, key, now))
    return None if row is None else row[0]


def owners(db: Session, job_id: bytes) -> list[str]:
    return [name for (name,) in db.rows(OWNERS, (Id(job_id),))]


def owned(
    db: Session, owner: str, before: tuple[Instant, bytes] | None = None, limit: int = 100
) -> list[tuple[Instant, bytes]]:
    at, job_id = before or filters.LATEST
    return [(since, id) for since, id in db.rows(OWNED_BY, (owner, at, Id(job_id), limit))]


def progress(db: Session, job_id: bytes) -> Progress | None:
    return fetch_one(db, Progress, PROGRESS, (Id(job_id),))


def trail(db: Session, job_id: bytes, after: int = 0, limit: int = 1000) -> list[Event]:
    facts = {"id": Id(job_id), "after": after, "limit": limit}
    return fetch(db, Event, TRAIL, facts)


def read_jobs(db: Session, statements: Iterable[Statement], limit: int) -> list[JobRow]:
    found: list[JobRow] = []
    for statement, facts in statements:
        found += fetch(db, JobRow, statement, facts)
    return sorted(found, reverse=True)[:limit]


def count_jobs(db: Session, where: JobFilter, after: bytes | None = None) -> int:
    jobs = 0
    for _, matching, facts in find_matching(where, after):
        row = db.row(f"SELECT count(*) FROM {matching}", facts)
        jobs += 0 if row is None else int(row[0])
    return jobs


def find_matching(
    where: JobFilter, after: bytes | None
) -> Iterator[tuple[str, str, dict[str, Any]]]:
    """Return the index of each part of a filter, with the tables, the conditions and the values."""
    for index, terms in filters.find_parts(where, after):
        # The planner may not choose another one, nor owners and jobs the other way round.
        by = f" /* INDEXED BY {index} */" if index else ""
        source = f"ulak.jobs{by}"
        if index == filters.BY_OWNER:
            source = f"ulak.owners{by} /* CROSS */ JOIN ulak.jobs ON id = job_id"
        conditions, facts = list(CONDITIONS.get(index, ())), dict[str, Any]()
        for n, term in enumerate(terms):
            conditions.append(_write_term(term, f"%(term_{n})s"))
            if term.value is not None:
                is_id = _TYPES.get(term.column) == "uuid"
                facts[f"term_{n}"] = Id(term.value) if is_id else term.value
        condition = f" WHERE {' AND '.join(conditions)}" if conditions else ""
        yield index, f"{source}{condition}", facts


def _write_term(term: filters.Term, place: str) -> str:
    match term.operator:
        case "begins":
            return f"starts_with({term.column}, {place}::text)"
        case "ordered":
            return f"NOT ({WITHOUT_DATE})"
        case "unordered":
            return WITHOUT_DATE
        case operator:
            return f"{term.column} {operator} {place}::{_TYPES.get(term.column, 'text')}"


counts = partial(fetch, record=CountRow, statement=COUNTS)


def requests(db: Session, job_id: bytes) -> list[Request]:
    return fetch(db, Request, REQUESTS, (Id(job_id),))


def slots(db: Session, limit: str | None = None) -> list[SlotRow]:
    return fetch(db, SlotRow, SLOTS) if limit is None else fetch(db, SlotRow, SLOTS_OF, (limit,))


def jobs_upward(db: Session, after: bytes = b"", limit: int = 1000) -> list[JobRow]:
    if not after:
        return fetch(db, JobRow, FIRST_JOBS, (limit,))
    return fetch(db, JobRow, JOBS_UPWARD, (Id(after), limit))


def messages_of(db: Session, job_id: bytes) -> list[OutboxRow]:
    return [as_message_row(row) for row in db.rows(MESSAGES_OF, (Id(job_id),))]


def keys(db: Session, last: DedupRow | None) -> list[DedupRow]:
    after = ("", "", "") if last is None else last[:3]
    return fetch(db, DedupRow, KEYS, (*after, KEYS_PER_PAGE))


def proofs(db: Session, tenant: str, after: int = 0, limit: int = 1000) -> list[ProofRow]:
    return fetch(db, ProofRow, PROOFS, (tenant, after, limit))


def proof_heads(db: Session) -> dict[str, tuple[int, bytes]]:
    return {row[0]: (row[1], row[2]) for row in db.rows(PROOF_HEADS)}


def due(
    db: Session, now: Instant, limit: int, after: tuple[Instant, bytes] = (0, b"")
) -> list[JobRow]:
    wake_at, job_id = after
    return fetch(db, JobRow, DUE, (now, wake_at, Id(job_id or FIRST_ID), limit))


def find_claimable(db: Session, now: Instant, lane: str, limit: int) -> list[JobRow]:
    return fetch(db, JobRow, CLAIMABLE_IN, (lane, now, limit))


def overdue_leased(db: Session, now: Instant, limit: int) -> list[JobRow]:
    return fetch(db, JobRow, OVERDUE_LEASED, (now, limit))


def request(t: Transaction, request: Request) -> bool:
    """Record a request; answer whether a worker has the job."""
    # The row is taken first, so that what is counted afterwards is all there is.
    held = t.db.row(LOCK_JOB, (Id(request.job_id),))
    if held is None:
        return False
    t.db.execute(ASK, (Id(request.job_id), *request[1:]))
    t.db.execute(COUNT_REQUESTS, {"id": Id(request.job_id)})
    t.made_due = held[0] is None
    return held[0] is not None


def report(t: Transaction, progress: Sequence[Progress]) -> None:
    for latest in sorted(progress, key=lambda p: p.job_id):
        t.db.execute(REPORT, {**latest._asdict(), "id": Id(latest.job_id)})


def ended(
    db: Session, flow: str, state: str, before: Instant, limit: int, after: bytes = b""
) -> list[JobRow]:
    facts = (before, flow, state, Id(after or FIRST_ID), limit)
    return fetch(db, JobRow, OF_STATE, facts)
