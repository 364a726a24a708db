"""What keeps new jobs out: operators' stops, and how many jobs wait already.

Stops are set in transactions of ours and of callers, so that they are written as steps.
"""

from __future__ import annotations

from collections.abc import Sequence

from ulak.core.admission import EVERY_TENANT, StopRow, Waiting
from ulak.core.job import NewJob
from ulak.store.caller import Rows, Steps
from ulak.store.postgres import audit
from ulak.store.postgres.connections import Session
from ulak.store.postgres.values import Texts
from ulak.store.stops import Statements, Stops

_COLUMNS = ", ".join(StopRow._fields)
STOPS = f"SELECT {_COLUMNS} FROM ulak.stops ORDER BY flow, tenant"
STOP = f"""
    SELECT {_COLUMNS} FROM ulak.stops WHERE flow = %s::text AND tenant = %s::text FOR UPDATE
"""
# Its own stop is said before that of all tenants.
STOP_FOR = f"""
    SELECT {_COLUMNS} FROM ulak.stops
    WHERE flow = %s::text AND tenant IN (%s::text, '{EVERY_TENANT}')
    ORDER BY tenant = '{EVERY_TENANT}' LIMIT 1
"""
_THEIRS = f"""
    FROM unnest(%(stop_flows)s::text[], %(stop_tenants)s::text[]) AS a (flow, tenant)
    JOIN ulak.stops AS s ON s.flow = a.flow AND s.tenant IN (a.tenant, '{EVERY_TENANT}')
"""
ANY_STOP_FOR = f"SELECT {_THEIRS}"
STOPS_FOR = f"""
    SELECT DISTINCT ON (a.flow, a.tenant) a.flow, a.tenant,
        {", ".join(f"s.{name}" for name in StopRow._fields)} {_THEIRS}
    ORDER BY a.flow, a.tenant, s.tenant = '{EVERY_TENANT}'
"""
PUT_STOP = f"""
    INSERT INTO ulak.stops ({_COLUMNS})
    VALUES (%s::text, %s::text, %s::bigint, %s::text, %s::text, %s::bigint)
    ON CONFLICT (flow, tenant) DO UPDATE SET retry_after_us = excluded.retry_after_us,
        actor = excluded.actor, note = excluded.note, at = excluded.at
"""
END_STOP = "DELETE FROM ulak.stops WHERE flow = %s::text AND tenant = %s::text"

# Each by an index; its conditions are repeated word by word. Parked is everything that begins
# with `flow/state`, or with that and a slash: a slash is followed by a zero.
COUNT_WAITING = """
    SELECT count(*) FROM (
        SELECT FROM ulak.jobs
        WHERE leased_by IS NULL AND parked_on IS NULL AND lane <> ''
          AND lane = ANY (%(lanes)s::text[]) AND tenant = %(tenant)s::text
        LIMIT %(limit)s::bigint
    ) AS standing
"""
COUNT_PARKED = """
    SELECT count(*) FROM (
        SELECT FROM unnest(%(names)s::text[]) AS p (name)
        JOIN ulak.jobs AS j ON j.parked_on IS NOT NULL
          AND j.parked_on >= p.name COLLATE "C" AND j.parked_on < (p.name || '0') COLLATE "C"
        WHERE j.lane = ANY (%(lanes)s::text[]) AND j.tenant = %(tenant)s::text
        LIMIT %(limit)s::bigint
    ) AS parked
"""


def find_stops(db: Session, jobs: Sequence[NewJob]) -> Stops:
    """Return the stops of these new jobs, by flow and tenant."""
    pairs = bind_pairs(jobs)
    found = db.rows(STOPS_FOR, pairs) if pairs["stop_flows"] else []
    return {(flow, tenant): StopRow(*stop) for flow, tenant, *stop in found}


def bind_pairs(jobs: Sequence[NewJob]) -> dict[str, Texts]:
    """Return the flows and tenants of those new jobs that a stop keeps out."""
    pairs = sorted({(job.row.flow, job.row.tenant) for job in jobs if not job.is_admitted})
    flows, tenants = [flow for flow, _ in pairs], [tenant for _, tenant in pairs]
    return {"stop_flows": Texts(flows), "stop_tenants": Texts(tenants)}


def waiting_steps(waiting: Waiting) -> Steps[int]:
    """Count the jobs that wait, up to the limit."""
    facts = {
        "lanes": Texts(waiting.lanes), "tenant": waiting.tenant, "limit": waiting.limit,
        "names": Texts(waiting.parked_on),
    }  # fmt: skip
    standing: Rows = yield COUNT_WAITING, facts
    count: int = standing[0][0]
    if waiting.parked_on:
        parked: Rows = yield COUNT_PARKED, facts
        count += parked[0][0]
    return min(count, waiting.limit)


SQL = Statements(STOP, PUT_STOP, END_STOP, STOPS, audit.NOTE, StopRow._make, waiting_steps)
