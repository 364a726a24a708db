"""What only reads and is said in SQLite's own words; the rest is in `ulak.store.sql.reads`."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator, Sequence

from ulak.clock import Clock
from ulak.core.change import Change
from ulak.core.job import JobRow
from ulak.ids import to_text
from ulak.store.protocol import JobFilter, WorkerRow
from ulak.store.protocol.filters import BY_END, UNORDERED, find_id
from ulak.store.sql.reads import MOST_ORPHANS, OWNED, Statement, find_matching, read_jobs
from ulak.store.sql.session import JOB_COLUMNS
from ulak.store.sqlite.commits import is_in_trail
from ulak.store.sqlite.session import Session

WORKERS = f"SELECT boot, ends_us, {', '.join(WorkerRow._fields)} FROM workers ORDER BY id"
SENT_BY_JOBS = "(SELECT job_id FROM deliveries WHERE seq > 0)"


def commits(db: sqlite3.Connection, changes: Sequence[Change]) -> list[bool]:
    return [is_in_trail(db, change) for change in changes]


def list_jobs(
    db: Session, where: JobFilter, after: bytes | None = None, limit: int = 100
) -> list[JobRow]:
    return read_jobs(db, list_statements(where, after, limit), limit)


def list_statements(where: JobFilter, after: bytes | None, limit: int) -> Iterator[Statement]:
    """Write the query for each part of a filter; values are bound, never written into it."""
    for by, matching, facts in find_matching(where, after):
        source = matching
        if by in (BY_END, UNORDERED):
            # Not in the order of ids: only ids are sorted, and few rows are read whole.
            few = f"SELECT id FROM {matching} ORDER BY id DESC LIMIT %(limit)s"
            source = f"ulak.jobs WHERE id IN ({few})"
        order = f"ORDER BY {find_id(where)} DESC LIMIT %(limit)s"
        yield f"SELECT {JOB_COLUMNS} FROM {source} {order}", {**facts, "limit": limit}


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


def orphans(db: sqlite3.Connection) -> list[str]:
    """Name what belongs to no job, by table and then by job."""
    found: list[str] = []
    for name, table in OWNED.items():
        # The names of tables are our own.
        source = SENT_BY_JOBS if table == "deliveries" else table
        rows = db.execute(
            f"SELECT DISTINCT job_id FROM {source} WHERE job_id IS NOT NULL "
            "AND NOT EXISTS (SELECT 1 FROM jobs WHERE jobs.id = job_id) ORDER BY job_id LIMIT ?",
            (MOST_ORPHANS,),
        ).fetchall()
        found += [f"{name} of job {to_text(row[0])}: there is no such job" for row in rows]
    return found
