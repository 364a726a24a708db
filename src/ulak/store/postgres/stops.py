"""What keeps new jobs out: operators' stops, and how many jobs wait already.

A job in a caller's transaction is judged as well, so that this is read as steps. How stops are set
is in `ulak.store.sql.stops`.
"""

from __future__ import annotations

from collections.abc import Sequence

from ulak.core.admission import EVERY_TENANT, StopRow, Waiting
from ulak.core.job import NewJob
from ulak.store.caller import Rows, Steps, take
from ulak.store.flow_control import Stops
from ulak.store.postgres.connections import Session
from ulak.store.postgres.values import Texts
from ulak.store.sql.session import columns

# Its own stop is said before that of all tenants.
STOP_FOR = f"""
    SELECT {columns(StopRow)} FROM ulak.stops
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


def find_steps(flow: str, tenant: str) -> Steps[StopRow | None]:
    """Find the stop that keeps a new job out."""
    found: Rows = yield STOP_FOR, (flow, tenant)
    return StopRow(*found[0]) if found else None


def count_waiting(db: Session, waiting: Waiting) -> int:
    """Count the jobs that wait, up to the limit."""
    return take(waiting_steps(waiting), lambda sql, values: Rows(db.rows(sql, values)))


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
