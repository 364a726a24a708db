"""Leases: which jobs may be leased, what a lease writes, the worker's row by which it lives."""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from typing import Any

from ulak.clock import Instant
from ulak.core import event as kinds
from ulak.core.job import OF_STATE, Event, JobRow, Payload, Request, Result, wanted_slot
from ulak.core.lifecycle import BUSY, READY
from ulak.store.batches import own_event
from ulak.store.postgres import slots, trail
from ulak.store.postgres.months import month_of
from ulak.store.postgres.session import SERVER_TIME, Session, Transaction
from ulak.store.postgres.values import Ids, Numbers, Texts, name_arrays
from ulak.store.protocol import Claim, ClaimRequest, Renewal
from ulak.store.sql.session import JOB_COLUMNS, RESULT_COLUMNS, Row, as_job, as_request, as_result

# A server that was down has let nobody renew: from its start on every lease has its whole length,
# so that a worker which begins just then does not take the jobs of those that live.
_STARTED = "(extract(epoch FROM pg_postmaster_start_time()) * 1000000)::bigint"
# A standby that was promoted had been started long before, and nothing says when it took over. It
# has replayed transactions since its start, and no other server has. There a worker leaves every
# lease its whole length from its own beginning on.
_BEGAN = "(SELECT started_at FROM ulak.workers WHERE id = %(worker)s::text)"
HAS_LAPSED = f"""
    expires_at <= %(now)s::bigint AND (
        NOT %(by_server)s::boolean OR {_STARTED} + expires_at - renewed_at <= %(now)s::bigint AND (
            pg_last_xact_replay_timestamp() IS NULL
            OR {_BEGAN} + expires_at - renewed_at <= %(now)s::bigint
        )
    )
"""
LAPSED_WORKERS = f"""
    SELECT id FROM ulak.workers WHERE {HAS_LAPSED} ORDER BY id FOR UPDATE SKIP LOCKED
"""
LEASED_BY = f"SELECT {JOB_COLUMNS} FROM ulak.jobs WHERE leased_by = %s::text ORDER BY id"
LOST = f"""
    SELECT {JOB_COLUMNS} FROM ulak.jobs WHERE leased_by = ANY (%s::text[])
    ORDER BY id FOR NO KEY UPDATE SKIP LOCKED
"""
LAPSE = """
    UPDATE ulak.jobs SET leased_by = NULL, token = token + 1, lapses = lapses + 1, lapsed = 1,
                         not_before = %s::bigint, version = version + 1, seq = seq + 1
    WHERE id = ANY (%s::uuid[])
"""
FORGET_WORKERS = """
    DELETE FROM ulak.workers AS w WHERE id = ANY (%s::text[])
    AND NOT EXISTS (SELECT FROM ulak.jobs WHERE leased_by = w.id)
"""
IS_HOLDING = "SELECT 1 FROM ulak.jobs WHERE leased_by = %s::text LIMIT 1"
LOCK_WORKER = "SELECT 1 FROM ulak.workers WHERE id = %s::text FOR UPDATE"
REGISTER = f"""
    INSERT INTO ulak.workers (id, started_at, renewed_at, expires_at, lanes, about)
    VALUES (%(worker)s::text, %(now)s::bigint, %(now)s::bigint, %(until)s::bigint,
            %(lanes)s::text, %(about)s::text)
    ON CONFLICT (id) DO UPDATE SET started_at = excluded.started_at,
        renewed_at = excluded.renewed_at, expires_at = excluded.expires_at,
        lanes = excluded.lanes, about = excluded.about
    RETURNING {SERVER_TIME}
"""
# After a silence that may have been the store's, and everybody's, a worker begins anew.
RENEW = f"""
    UPDATE ulak.workers SET renewed_at = %(now)s::bigint, expires_at = %(until)s::bigint,
        started_at = CASE WHEN 2 * (%(now)s::bigint - renewed_at) > expires_at - renewed_at
                     THEN %(now)s::bigint ELSE started_at END
    WHERE id = %(worker)s::text
    RETURNING {SERVER_TIME}, EXISTS (SELECT FROM ulak.requests)
"""
END_LEASE = "UPDATE ulak.workers SET expires_at = %s::bigint WHERE id = %s::text"
REQUESTS_OF_WORKER = f"""
    SELECT {", ".join(f"r.{name}" for name in Request._fields)}
    FROM ulak.requests AS r JOIN ulak.jobs AS j ON j.id = r.job_id
    WHERE j.leased_by = %s::text ORDER BY r.job_id, r.at, r.kind, r.name
"""


def give_back_lapsed(t: Transaction, worker: str) -> int:
    """Take lapsed leases away, except of jobs being written; return how many jobs were unparked."""
    facts = {"now": t.now, "by_server": t.by_server, "worker": worker}
    workers = [row[0] for row in t.db.rows(LAPSED_WORKERS, facts)]
    if not workers:
        return 0
    lost = [as_job(row) for row in t.db.rows(LOST, (Texts(workers),))]
    if lost:
        # The token moves, so that the vanished worker cannot write over its successor.
        t.db.execute(LAPSE, (t.now, Ids([row.id for row in lost])))
        t.made_due = True
    written: list[tuple[JobRow, int, Event]] = []
    for row in lost:
        line = row._replace(seq=row.seq + 1)
        event = own_event(line, kinds.LAPSED, row.state, kinds.ENGINE, row.leased_by, t.now)
        written.append((row, month_of(row.created_at), event))
    trail.append_own(t, written)
    t.db.execute(FORGET_WORKERS, (Texts(workers),))
    held = [(slot, row.id) for row in lost if (slot := wanted_slot(row.slot)) is not None]
    freed = slots.leave(t.db, held)
    return slots.let_in(t, freed)


def register(
    t: Transaction, worker: str, *, lease_us: int, lanes: Sequence[str], about: str
) -> Instant:
    facts = {
        "worker": worker, "now": t.now, "until": t.now + lease_us, "lanes": " ".join(lanes),
        "about": about,
    }  # fmt: skip
    t.hear(t.db.rows(REGISTER, facts)[0][0])
    return t.now


def renew(t: Transaction, worker: str, *, lease_us: int) -> Renewal:
    found = t.db.rows(RENEW, {"now": t.now, "until": t.now + lease_us, "worker": worker})
    if not found:
        return Renewal(False, t.now, [])
    t.hear(found[0][0])
    return Renewal(True, t.now, requests_of(t.db, worker) if found[0][1] else [])


def unregister(t: Transaction, worker: str) -> None:
    """End a worker's lease; what it still holds is left, lapsed, to the next claimer."""
    t.db.execute(LOCK_WORKER, (worker,))
    if t.db.row(IS_HOLDING, (worker,)) is None:
        t.db.execute(FORGET_WORKERS, (Texts([worker]),))
    else:
        t.db.execute(END_LEASE, (t.now, worker))
        t.made_due = True


def leased(db: Session, worker: str) -> list[JobRow]:
    return [as_job(row) for row in db.rows(LEASED_BY, (worker,))]


def requests_of(db: Session, worker: str) -> list[Request]:
    return [as_request(row) for row in db.rows(REQUESTS_OF_WORKER, (worker,))]


NOW = "%(now)s::bigint"


def claimable(line: str, priority: str, when: str = "<=", now: str = NOW) -> str:
    return f"{standing(line)} AND priority = {priority}.priority AND not_before {when} {now}"


def standing(line: str) -> str:
    return f"lane = {line}.lane AND leased_by IS NULL AND parked_on IS NULL AND lane <> ''"


# The priorities of a lane in which jobs may stand, from the most urgent that is there. An empty
# lane costs one look at the index, to which the order keeps the planner.
PRIORITIES = f"""
        generate_series(coalesce((
            SELECT priority FROM ulak.jobs
            WHERE {standing("l")}
            ORDER BY priority, not_before, id LIMIT 1
        )::integer, 4), 3)
    """
NEXT_DUE = f"""
        SELECT min(c.not_before) FROM unnest(%(lanes)s::text[]) AS l (lane)
        CROSS JOIN LATERAL {PRIORITIES} AS p (priority)
        CROSS JOIN LATERAL (
            SELECT not_before FROM ulak.jobs
            WHERE {claimable("l", "p", ">")} ORDER BY not_before LIMIT 1
        ) AS c
    """


def urgency(job: str) -> str:
    return f"""
        CASE WHEN %(ageing)s::bigint = 0 THEN {job}.priority ELSE 0 END,
        {job}.not_before + {job}.priority * %(ageing)s::bigint, {job}.priority, {job}.id
    """


def lease(now: str) -> str:
    """Write the statement that leases the jobs which a query `chosen` has selected."""
    return f"""
    UPDATE ulak.jobs AS j SET {_held(now)},
        state = coalesce(e.busy, j.state),
        role = CASE WHEN e.busy IS NULL THEN j.role ELSE '{BUSY}' END,
        version = version + (e.busy IS NOT NULL)::integer,
        seq = seq + (e.busy IS NOT NULL)::integer,
        changed_at = CASE WHEN e.busy IS NULL THEN j.changed_at ELSE {now} END
    FROM chosen LEFT JOIN unnest(
        %(flows)s::text[], %(versions)s::bigint[], %(states)s::text[], %(busy)s::text[]
    ) AS e (flow, flow_version, state, busy)
      ON e.flow = chosen.flow AND e.flow_version = chosen.flow_version
     AND e.state = chosen.state AND chosen.role = '{READY}'
    WHERE j.id = chosen.id
    RETURNING {_taken("CASE WHEN e.busy IS NOT NULL THEN chosen.state END")}
    """


def lease_without_entries(now: str) -> str:
    return f"""
    UPDATE ulak.jobs AS j SET {_held(now)} FROM chosen WHERE j.id = chosen.id
    RETURNING {_taken("NULL::text")}
    """


def _held(now: str) -> str:
    return f"leased_by = %(worker)s::text, leased_at = {now}, token = token + 1, stood = 1"


def _taken(origin: str) -> str:
    own = ", ".join(f"j.{name}" for name in JobRow._fields)
    return f"{own}, j.month, {origin}, chosen.data, chosen.schema, chosen.trace"


# What must be known of a job to lease it, besides its payload.
CHOSEN = "id, month, flow, flow_version, state, role"
OWN_PAYLOAD = "JOIN ulak.payloads AS p ON p.job_id = n.id AND p.month = n.month"
LEASE = f"""
    WITH near AS MATERIALIZED (SELECT {CHOSEN} FROM ulak.jobs WHERE id = ANY (%(ids)s::uuid[])),
    chosen AS MATERIALIZED (SELECT n.*, p.data, p.schema, p.trace FROM near AS n {OWN_PAYLOAD})
    {lease(NOW)}
"""
RESULTS = f"""
    SELECT {RESULT_COLUMNS} FROM ulak.results
    WHERE job_id = ANY (%s::uuid[]) AND month = ANY (%s::bigint[])
    ORDER BY job_id, round, stage, name
"""

_WIDTH = len(JobRow._fields)
_DATA = _WIDTH + 2
_END = _DATA + len(Payload._fields)


def count_bytes(leased: Sequence[Row]) -> int:
    return sum(len(found[_DATA]) for found in leased)


def facts_of(request: ClaimRequest) -> dict[str, Any]:
    own = {"worker": request.worker, "ageing": request.ageing_us}
    return _entries(tuple(request.entries.items())) | own


@lru_cache(64)
def _entries(entries: tuple[tuple[tuple[str, int, str], str], ...]) -> dict[str, Any]:
    rows = [(*key, busy) for key, busy in entries]
    kinds = {"flows": Texts, "versions": Numbers, "states": Texts, "busy": Texts}
    return name_arrays(rows, kinds)


def claims_of(request: ClaimRequest, leased: Sequence[Row]) -> list[Claim]:
    claims = [Claim(as_job(found[:_WIDTH]), Payload(*found[_DATA:_END]), ()) for found in leased]
    ageing = request.ageing_us

    def urgency(claim: Claim) -> tuple[int, int, bytes]:
        row = claim.row
        if ageing:
            return (row.not_before + row.priority * ageing, row.priority, row.id)
        return (row.priority, row.not_before, row.id)

    claims.sort(key=urgency)
    return claims


def write_entries(t: Transaction, worker: str, leased: Sequence[Row]) -> None:
    """Write down which of the jobs that were leased have entered a busy state thereby."""
    entered: list[tuple[JobRow, int, Event]] = []
    for found in leased:
        month, origin = found[_WIDTH : _WIDTH + 2]
        if origin is not None:
            row = as_job(found[:_WIDTH])
            event = own_event(row, kinds.ENTERED, origin, worker, worker, t.now)
            entered.append((row, month, event))
            t.count((row.flow, row.flow_version, origin, READY), -1)
            t.count((row.flow, row.flow_version, row.state, BUSY), 1)
    trail.append_own(t, entered)


def keep_slots(
    t: Transaction, claims: list[Claim], leased: Sequence[Row], request: ClaimRequest
) -> list[Claim]:
    """Make the slots of what has entered a busy state with slots of its own those of the state."""
    origins = {found[0]: found[_WIDTH + 1] for found in leased}
    kept: dict[bytes, str] = {}
    for row in (claim.row for claim in claims):
        slot = wanted_slot(row.slot)
        if slot is not None and (row.flow, row.flow_version, origins[row.id]) in request.keeps:
            kept[row.id] = OF_STATE + slot
    if not kept:
        return claims
    slots.keep(t.db, list(kept))
    return [
        claim._replace(row=claim.row._replace(slot=kept.get(claim.row.id, claim.row.slot)))
        for claim in claims
    ]


def has_results(claims: Sequence[Claim]) -> bool:
    return any(claim.row.has_results for claim in claims)


def with_results(db: Session, claims: Sequence[Claim]) -> list[Claim]:
    rows = [claim.row for claim in claims if claim.row.has_results]
    months = sorted({month_of(row.created_at) for row in rows})
    found: dict[bytes, list[Result]] = {}
    for row in db.rows(RESULTS, (Ids([row.id for row in rows]), Numbers(months))):
        found.setdefault(row[0], []).append(as_result(row))
    return [claim._replace(results=tuple(found.get(claim.row.id, ()))) for claim in claims]
