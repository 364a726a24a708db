"""What only reads and is said in PostgreSQL's own words; the rest is in `ulak.store.sql.reads`."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import partial
from itertools import starmap
from typing import Any

from ulak.clock import Instant
from ulak.core.backlog import Standing
from ulak.core.change import Change
from ulak.core.job import JobRow
from ulak.ids import to_text
from ulak.store import standing
from ulak.store.postgres.connections import BEGIN_READING
from ulak.store.postgres.months import TABLES
from ulak.store.postgres.session import Session, settings
from ulak.store.postgres.values import Blobs, Ids, Numbers, Texts
from ulak.store.protocol import CountRow, JobFilter, WorkerRow
from ulak.store.protocol.filters import BY_END, UNORDERED
from ulak.store.sql import reads
from ulak.store.sql.reads import MOST_ORPHANS, OWNED, Statement, find_matching, read_jobs
from ulak.store.sql.session import JOB_COLUMNS, fetch, select

WRITTEN = """
    SELECT e.job_id FROM unnest(%s::uuid[], %s::bigint[], %s::bytea[]) AS c (job_id, seq, commit_id)
    JOIN ulak.jobs AS j ON j.id = c.job_id
    JOIN ulak.events AS e ON e.job_id = c.job_id AND e.seq = c.seq AND e.commit_id = c.commit_id
                         AND e.month = j.month
"""
WORKERS = select("workers", WorkerRow, "ORDER BY id")

# The names of tables are our own.
ORPHANS = """
    SELECT DISTINCT job_id, NULL::integer FROM ulak.{table} WHERE job_id IS NOT NULL {sent}
    AND NOT EXISTS (SELECT FROM ulak.jobs WHERE jobs.id = job_id)
    ORDER BY job_id LIMIT %s::bigint
"""
# What a retired month still holds goes with the month.
DATED_ORPHANS = """
    SELECT DISTINCT job_id, month FROM ulak.{table} AS r
    WHERE month NOT IN (SELECT month FROM ulak.retired_months)
    AND NOT EXISTS (SELECT FROM ulak.jobs WHERE jobs.id = r.job_id AND jobs.month = r.month)
    ORDER BY job_id, month LIMIT %s::bigint
"""


def commits(db: Session, changes: Sequence[Change]) -> list[bool]:
    facts = (
        Ids([change.row.id for change in changes]),
        Numbers([change.row.seq for change in changes]),
        Blobs([change.commit_id for change in changes]),
    )
    written = {row[0] for row in db.rows(WRITTEN, facts)}
    return [change.row.id in written for change in changes]


def list_jobs(
    db: Session, where: JobFilter, after: bytes | None = None, limit: int = 100
) -> list[JobRow]:
    return read_jobs(db, list_statements(where, after, limit), limit)


def list_statements(where: JobFilter, after: bytes | None, limit: int) -> Iterator[Statement]:
    """Write the query for each part of a filter; values are bound, never written into it."""
    for index, matching, facts in find_matching(where, after):
        matches = f"SELECT {JOB_COLUMNS} FROM {matching}"
        if index in (BY_END, UNORDERED):
            # Not in the order of ids: what is found is sorted, whatever the planner thinks of it.
            matches = f"SELECT * FROM ({matches} OFFSET 0) AS jobs"
        yield f"{matches} ORDER BY id DESC LIMIT %(limit)s::bigint", {**facts, "limit": limit}


workers = partial(fetch, record=WorkerRow, statement=WORKERS)


def orphans(db: Session) -> list[str]:
    found: list[str] = []
    for name, table in OWNED.items():
        # A row in a month that is not its job's is nobody's as well: no trail would show it.
        statement = DATED_ORPHANS if table in TABLES else ORPHANS
        sent = "AND seq > 0" if table == "deliveries" else ""
        for job_id, month in db.rows(statement.format(table=table, sent=sent), (MOST_ORPHANS,)):
            where = "" if month is None else f" in {month}"
            found.append(f"{name} of job {to_text(job_id)}: there is no such job{where}")
    return found


# Many leased jobs in no order would seem to be found soonest in the table itself.
ALONG_INDEXES = f"SELECT {settings({'enable_seqscan': 'off', 'jit': 'off'})}"
STATEMENTS = standing.write_statements(
    "ulak.jobs", "unnest({lanes}) WITH ORDINALITY AS lanes (lane, place)", "%({name})s::{type}"
)


def count_standing(db: Session, now: Instant) -> Standing:
    def ask(name: str, **facts: Any) -> Iterator[Any]:
        if "lanes" in facts:
            facts["lanes"] = Texts(facts["lanes"])
        return db.pipeline.read(db.pipeline.later(STATEMENTS[name], facts))

    with db.pipeline as pipeline:
        pipeline.send(BEGIN_READING)
        pipeline.send(ALONG_INDEXES)
        states = pipeline.read(pipeline.later(reads.COUNTS))
        found = standing.count(ask, now, starmap(CountRow, states))
        pipeline.send("COMMIT")
    return found
