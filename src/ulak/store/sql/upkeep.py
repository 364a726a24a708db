"""What is due, and the side columns of jobs that no guard protects."""

from __future__ import annotations

from collections.abc import Sequence

from ulak.clock import Instant
from ulak.core.job import JobRow, Request
from ulak.store.protocol import Progress
from ulak.store.sql.rows import JOB_COLUMNS, REQUEST_COLUMNS, as_job
from ulak.store.sql.session import Id, Session, Transaction

FIRST_ID = bytes(16)

DUE = f"""
    SELECT {JOB_COLUMNS} FROM ulak.jobs /* INDEXED BY jobs_waking */
    WHERE wake_at <= %s::bigint AND leased_by IS NULL AND (wake_at, id) > (%s::bigint, %s::uuid)
    ORDER BY wake_at, id LIMIT %s::bigint
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


def due(
    db: Session, now: Instant, limit: int, after: tuple[Instant, bytes] = (0, b"")
) -> list[JobRow]:
    wake_at, job_id = after
    return [as_job(row) for row in db.rows(DUE, (now, wake_at, Id(job_id or FIRST_ID), limit))]


def overdue_leased(db: Session, now: Instant, limit: int) -> list[JobRow]:
    return [as_job(row) for row in db.rows(OVERDUE_LEASED, (now, limit))]


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
    """Return finished jobs of a state."""
    facts = (before, flow, state, Id(after or FIRST_ID), limit)
    return [as_job(row) for row in db.rows(OF_STATE, facts)]
