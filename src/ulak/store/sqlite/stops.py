"""What keeps new jobs out: operators' stops, and how many jobs wait already.

A job in a caller's transaction is judged as well, so that this is read as steps, with the care for
a caller's connection that `ulak.store.sqlite.caller` explains. How stops are set is in
`ulak.store.sql.control`.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Sequence
from typing import Any

from ulak.core.admission import EVERY_TENANT, StopRow, Waiting
from ulak.core.job import NewJob
from ulak.store.caller import Rows, Steps, take
from ulak.store.flow_control import NO_STOPS, Stops

ANY_STOP = "SELECT 1 FROM main.stops LIMIT 1"
_STOPS = """
    SELECT CAST(flow AS BLOB), CAST(tenant AS BLOB), +retry_after_us, CAST(actor AS BLOB),
        CAST(note AS BLOB), +at
    FROM main.stops
"""
# Its own stop is said before that of all tenants.
STOP_FOR = f"""{_STOPS} WHERE flow = ? AND (tenant = ? OR tenant = '{EVERY_TENANT}')
    ORDER BY tenant = '{EVERY_TENANT}' LIMIT 1
"""
# The conditions of the indexes are repeated word by word.
COUNT_STANDING = """
    SELECT count(*) FROM (
        SELECT 1 FROM main.jobs INDEXED BY jobs_claimable
        WHERE leased_by IS NULL AND parked_on IS NULL AND lane <> '' AND lane = ? AND tenant = ?
        LIMIT ?
    )
"""
# Everything that begins with `flow/state`, or with that and a slash: a slash is followed by a zero.
COUNT_PARKED = """
    SELECT count(*) FROM (
        SELECT 1 FROM main.jobs INDEXED BY jobs_parked
        WHERE parked_on IS NOT NULL AND parked_on >= ?1 AND parked_on < ?1 || '0'
          AND lane = ?2 AND tenant = ?3
        LIMIT ?4
    )
"""


def find_stops(db: sqlite3.Connection, jobs: Sequence[NewJob]) -> Stops:
    """Return the stops of these new jobs, by flow and tenant."""
    if db.execute(ANY_STOP).fetchone() is None:
        return NO_STOPS
    pairs = {(job.row.flow, job.row.tenant) for job in jobs if not job.is_admitted}
    found = {pair: db.execute(STOP_FOR, pair).fetchone() for pair in sorted(pairs)}
    return {pair: _stop(row) for pair, row in found.items() if row is not None}


def find_steps(flow: str, tenant: str) -> Steps[StopRow | None]:
    """Find the stop that keeps a new job out."""
    found: Rows = yield STOP_FOR, (flow, tenant)
    return _stop(found[0]) if found else None


def count_waiting(db: sqlite3.Connection, waiting: Waiting) -> int:
    """Count the jobs that wait, up to the limit."""
    steps = waiting_steps(waiting)
    return take(steps, lambda sql, values: Rows(db.execute(sql, values).fetchall()))


def waiting_steps(waiting: Waiting) -> Steps[int]:
    """Count the jobs that wait, up to the limit."""
    count = 0
    for lane in waiting.lanes:
        standing: Rows = yield COUNT_STANDING, (lane, waiting.tenant, waiting.limit)
        count += standing[0][0]
        for name in waiting.parked_on:
            parked: Rows = yield COUNT_PARKED, (name, lane, waiting.tenant, waiting.limit)
            count += parked[0][0]
    return min(count, waiting.limit)


def _stop(values: tuple[Any, ...]) -> StopRow:
    return StopRow._make(v.decode() if isinstance(v, bytes) else v for v in values)
