"""What it is to lease a job: which ones may be, which is next, and what a lease writes."""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from typing import Any

from ulak.core import event as kinds
from ulak.core.job import OF_STATE, Event, JobRow, Payload, Result, wanted_slot
from ulak.core.lifecycle import BUSY, READY
from ulak.store.batches import own_event
from ulak.store.postgres import slots, trail
from ulak.store.postgres.connections import Session, Transaction
from ulak.store.postgres.months import month_of
from ulak.store.postgres.values import (
    RESULT_COLUMNS,
    Ids,
    Numbers,
    Row,
    Texts,
    as_job,
    as_result,
)
from ulak.store.protocol import Claim, ClaimRequest

NOW = "%(now)s::bigint"
"""The time, where it is a parameter."""


def claimable(line: str, priority: str, when: str = "<=", now: str = NOW) -> str:
    """Write the condition of jobs that may be leased, of the lane and the priority of a line."""
    return f"{standing(line)} AND priority = {priority}.priority AND not_before {when} {now}"


def standing(line: str) -> str:
    """Write the condition of jobs in a lane that wait for nothing but a worker and their time."""
    return f"lane = {line}.lane AND leased_by IS NULL AND parked_on IS NULL AND lane <> ''"


def priorities(line: str = "l") -> str:
    """Write the priorities of a lane in which jobs may stand, from the most urgent that is there.

    An empty lane has none and costs one look at the index. The order keeps to that index, whatever
    the statistics say.
    """
    return f"""
        generate_series(coalesce((
            SELECT priority FROM ulak.jobs
            WHERE {standing(line)}
            ORDER BY priority, not_before, id LIMIT 1
        )::integer, 4), 3)
    """


def urgency(job: str) -> str:
    """Write the order in which jobs are leased: the most urgent, then the longest due."""
    return f"""
        CASE WHEN %(ageing)s::bigint = 0 THEN {job}.priority ELSE 0 END,
        {job}.not_before + {job}.priority * %(ageing)s::bigint, {job}.priority, {job}.id
    """


def next_due(now: str = NOW) -> str:
    """Write the query for the moment at which the next job of these lanes may be leased."""
    return f"""
        SELECT min(c.not_before) FROM unnest(%(lanes)s::text[]) AS l (lane)
        CROSS JOIN LATERAL {priorities()} AS p (priority)
        CROSS JOIN LATERAL (
            SELECT not_before FROM ulak.jobs
            WHERE {claimable("l", "p", ">", now)} ORDER BY not_before LIMIT 1
        ) AS c
    """


def lease(now: str = NOW) -> str:
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


def lease_without_entries(now: str = NOW) -> str:
    """Write the statement that does so where no flow has a busy state to enter."""
    return f"""
    UPDATE ulak.jobs AS j SET {_held(now)} FROM chosen WHERE j.id = chosen.id
    RETURNING {_taken("NULL::text")}
    """


def _held(now: str) -> str:
    return f"leased_by = %(worker)s::text, leased_at = {now}, token = token + 1, stood = 1"


def _taken(origin: str) -> str:
    own = ", ".join(f"j.{name}" for name in JobRow._fields)
    return f"{own}, j.month, {origin}, chosen.data, chosen.schema, chosen.trace"


CHOSEN = "id, month, flow, flow_version, state, role"
"""What must be known of a job to lease it, besides its payload."""

OWN_PAYLOAD = "JOIN ulak.payloads AS p ON p.job_id = n.id AND p.month = n.month"
LEASE = f"""
    WITH near AS MATERIALIZED (SELECT {CHOSEN} FROM ulak.jobs WHERE id = ANY (%(ids)s::uuid[])),
    chosen AS MATERIALIZED (SELECT n.*, p.data, p.schema, p.trace FROM near AS n {OWN_PAYLOAD})
    {lease()}
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
    """Return how many bytes the payloads of leased jobs have."""
    return sum(len(found[_DATA]) for found in leased)


def facts_of(request: ClaimRequest) -> dict[str, Any]:
    """Return the parameters of a lease that are the same for every job."""
    return _entries(tuple(request.entries.items())) | {
        "worker": request.worker,
        "ageing": request.ageing_us,
    }


@lru_cache(64)
def _entries(entries: tuple[tuple[tuple[str, int, str], str], ...]) -> dict[str, Any]:
    return {
        "flows": Texts([key[0] for key, _ in entries]),
        "versions": Numbers([key[1] for key, _ in entries]),
        "states": Texts([key[2] for key, _ in entries]),
        "busy": Texts([busy for _, busy in entries]),
    }


def claims_of(request: ClaimRequest, leased: Sequence[Row]) -> list[Claim]:
    """Read what was leased, in the order of its urgency, without results."""
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
    """Tell whether one of them has results of earlier stages."""
    return any(claim.row.has_results for claim in claims)


def with_results(db: Session, claims: Sequence[Claim]) -> list[Claim]:
    """Return the claims with the results of earlier stages."""
    rows = [claim.row for claim in claims if claim.row.has_results]
    months = sorted({month_of(row.created_at) for row in rows})
    found: dict[bytes, list[Result]] = {}
    for row in db.rows(RESULTS, (Ids([row.id for row in rows]), Numbers(months))):
        found.setdefault(row[0], []).append(as_result(row))
    return [claim._replace(results=tuple(found.get(claim.row.id, ()))) for claim in claims]
