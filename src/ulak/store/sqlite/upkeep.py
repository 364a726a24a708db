"""What reads and tidies in SQLite's own words; the rest is in `ulak.store.sql`."""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Iterator, Sequence
from typing import Any

from ulak.clock import Clock, Instant
from ulak.core.backlog import Standing
from ulak.core.change import Change
from ulak.core.job import JobRow, Request, is_of_state
from ulak.ids import to_text
from ulak.store import standing
from ulak.store.flow_control import ON_KEY, ON_RATE, Page
from ulak.store.protocol import JobFilter, WorkerRow, jobs
from ulak.store.protocol.filters import BY_END, UNORDERED, find_id
from ulak.store.sql import reads
from ulak.store.sql.reads import (
    ASKED,
    MOST_ORPHANS,
    OWNED,
    PARKED_NAMES,
    Statement,
    find_matching,
    read_jobs,
    requests,
)
from ulak.store.sql.session import JOB_COLUMNS, as_job, write_audit
from ulak.store.sqlite import control
from ulak.store.sqlite.commits import is_in_trail, settle
from ulak.store.sqlite.control import Buckets
from ulak.store.sqlite.rows import PACKED_IDS, pack
from ulak.store.sqlite.session import Session, SharedTransaction, Transaction

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


STATEMENTS = standing.write_statements(
    "jobs INDEXED BY {index}",
    "(SELECT value AS lane, key AS place FROM json_each({lanes})) AS lanes",
    ":{name}",
)


def count_standing(db: sqlite3.Connection, now: Instant) -> Standing:
    def ask(name: str, **facts: Any) -> list[Any]:
        if "lanes" in facts:
            facts["lanes"] = json.dumps(facts["lanes"])
        return db.execute(STATEMENTS[name], facts).fetchall()

    db.execute("BEGIN")
    try:
        return standing.count(ask, now, reads.counts(Session(db)))
    finally:
        db.execute("ROLLBACK")


# As many names that jobs are parked on as one look takes: a few milliseconds of the one writer.
MOST_NAMES = 500
IS_KNOWN_PAUSE = "SELECT 1 FROM pauses WHERE kind = 'key' AND name = ?"

FOLD = """
    INSERT INTO counts (flow, flow_version, state, role, jobs)
    SELECT flow, flow_version, state, role, sum(jobs) FROM count_deltas WHERE true
    GROUP BY flow, flow_version, state, role
    ON CONFLICT (flow, flow_version, state, role) DO UPDATE SET jobs = jobs + excluded.jobs
"""

# A job whose key must still be answered with it stays, and one whose messages are not sent.
ENDED = """
    SELECT id, flow, flow_version, state, role, tenant, dedup_key
    FROM jobs INDEXED BY jobs_ended
    WHERE lane = '' AND role <> 'held' AND role <> 'waiting' AND changed_at < ?1
      AND NOT EXISTS (
        SELECT 1 FROM dedup WHERE dedup.tenant = jobs.tenant AND dedup.flow = jobs.flow
        AND dedup.key = jobs.dedup_key AND dedup.job_id = jobs.id AND dedup.expires_at > ?2)
      AND NOT EXISTS (
        SELECT 1 FROM deliveries WHERE deliveries.job_id = jobs.id AND open = 1)
      AND (?4 IS NULL OR (flow = ?4 AND state = ?5))
    ORDER BY changed_at, id LIMIT ?3
"""
_OWN = ("payloads", "events", "results", "requests", "progress", "deliveries", "ticks")
FORGET = [
    f"DELETE FROM jobs WHERE id IN {PACKED_IDS}",
    *(f"DELETE FROM {table} WHERE job_id IN {PACKED_IDS}" for table in _OWN),
]


def asked(db: Session, limit: int, after: bytes = b"") -> list[tuple[JobRow, list[Request]]]:
    rows = [as_job(row) for row in db.rows(ASKED, (after, limit))]
    return [(row, requests(db, row.id)) for row in rows]


def dismiss(t: Transaction, job_id: bytes, answers: Sequence[tuple[str, str]]) -> None:
    settle(t, job_id, answers)


def unpark(t: Transaction, limit: int, page: Page) -> tuple[int, Page]:
    """Pass on what commits have missed; return how many jobs were unparked, and the next page."""
    unparked = 0
    buckets = Buckets(t)
    most = limit if page.is_rich else MOST_NAMES
    names = [row[0] for row in Session(t.db).rows(PARKED_NAMES, (page.after, most))]
    for name in names:
        if unparked >= limit:
            break
        if name.startswith(ON_RATE):
            buckets.look_after(name.removeprefix(ON_RATE))
            continue
        if name.startswith(ON_KEY):
            known = t.db.execute(IS_KNOWN_PAUSE, (name.removeprefix(ON_KEY),)).fetchone()
            places = limit if known is None else 0
        else:
            places = limit if is_of_state(name) else control.free_places(t, name)
        unparked += control.pass_on(t, name, min(places, limit - unparked))
    buckets.write()
    return unparked, page.following(names, most, is_rich=unparked >= limit)


def fold_counts(t: Transaction) -> None:
    t.db.execute(FOLD)
    t.db.execute("DELETE FROM count_deltas")


def prune(
    t: Transaction,
    before: Instant,
    limit: int,
    actor: str = "",
    note: str = "",
    of: tuple[str, str] | None = None,
) -> int:
    """Remove ended jobs with everything of their own; proofs stay."""
    ended = t.db.execute(ENDED, (before, t.now, limit, *(of or (None, None)))).fetchall()
    for row in ended:
        t.count(row[1:5], -1)
    ids = pack(row[0] for row in ended)
    for statement in FORGET:
        t.db.execute(statement, (ids,))
    held = sorted((row[5], row[1], row[6], row[0]) for row in ended if row[6] is not None)
    t.db.executemany(control.FREE_KEY, held)
    if ended and actor:
        details = jobs.prune_details(len(ended), before)
        write_audit(SharedTransaction(t), actor, jobs.PRUNE, jobs.PRUNE_SUBJECT, note, details)
    return len(ended)
