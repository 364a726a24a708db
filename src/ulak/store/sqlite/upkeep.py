"""What keeps the store tidy, and the side columns that no guard protects."""

from __future__ import annotations

import sqlite3
from collections.abc import Sequence

from ulak.clock import Instant
from ulak.core.job import JobRow, Request, is_of_state
from ulak.store import pruning
from ulak.store.flow_control import ON_KEY, ON_RATE, Page
from ulak.store.protocol import Progress
from ulak.store.sqlite import audit, keys
from ulak.store.sqlite.commits import COUNT_REQUESTS, REQUESTS_OF, settle
from ulak.store.sqlite.intake import find_job
from ulak.store.sqlite.rows import JOB_COLUMNS, PACKED_IDS, as_job, as_request, pack
from ulak.store.sqlite.tokens import Buckets
from ulak.store.sqlite.writer import Transaction

DUE = f"""
    SELECT {JOB_COLUMNS} FROM jobs INDEXED BY jobs_waking
    WHERE wake_at <= ? AND leased_by IS NULL AND (wake_at, id) > (?, ?)
    ORDER BY wake_at, id LIMIT ?
"""
# Few are leased, and any number may be due.
OVERDUE_LEASED = f"""
    SELECT {JOB_COLUMNS} FROM jobs INDEXED BY jobs_leased
    WHERE leased_by IS NOT NULL AND wake_at <= ?
    AND NOT EXISTS (SELECT 1 FROM requests WHERE job_id = jobs.id AND kind = 'expire')
    ORDER BY wake_at, id LIMIT ?
"""
ASKED = f"""
    SELECT {JOB_COLUMNS} FROM jobs
    WHERE id IN (SELECT job_id FROM requests WHERE job_id > ?) AND leased_by IS NULL
    ORDER BY id LIMIT ?
"""

ASK = """
    INSERT INTO requests (job_id, kind, name, actor, note, data, at) VALUES (?, ?, ?, ?, ?, ?, ?)
    ON CONFLICT (job_id, kind, name) DO NOTHING
"""
REPORT = """
    INSERT INTO progress (job_id, fraction, note, at)
    SELECT ?1, ?2, ?3, ?4 WHERE EXISTS (SELECT 1 FROM jobs WHERE id = ?1)
    ON CONFLICT (job_id) DO UPDATE
    SET fraction = excluded.fraction, note = excluded.note, at = excluded.at
"""

# What jobs are parked on, each found by one step along the index; so many at once: a few
# milliseconds of the one writer.
MOST_NAMES = 500
PARKED_NAMES = """
    WITH RECURSIVE parked (name) AS (
        SELECT (SELECT parked_on FROM jobs INDEXED BY jobs_parked
                WHERE parked_on > ? ORDER BY parked_on LIMIT 1)
        UNION ALL
        SELECT (SELECT parked_on FROM jobs INDEXED BY jobs_parked
                WHERE parked_on > parked.name ORDER BY parked_on LIMIT 1)
        FROM parked WHERE parked.name IS NOT NULL
    )
    SELECT name FROM parked WHERE name IS NOT NULL LIMIT ?
"""
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
OF_STATE = f"""
    SELECT {JOB_COLUMNS} FROM jobs INDEXED BY jobs_ended
    WHERE lane = '' AND role <> 'held' AND role <> 'waiting' AND changed_at < ?1
      AND flow = ?2 AND state = ?3 AND id > ?4
    ORDER BY id LIMIT ?5
"""
FORGET_KEY = "DELETE FROM dedup WHERE tenant = ? AND flow = ? AND key = ? AND job_id = ?"
FORGET = [
    f"DELETE FROM {table} WHERE {column} IN {PACKED_IDS}"
    for table, column in (
        ("jobs", "id"),
        ("payloads", "job_id"),
        ("events", "job_id"),
        ("results", "job_id"),
        ("requests", "job_id"),
        ("progress", "job_id"),
        ("deliveries", "job_id"),
        ("ticks", "job_id"),
    )
]


def due(
    db: sqlite3.Connection, now: Instant, limit: int, after: tuple[Instant, bytes] = (0, b"")
) -> list[JobRow]:
    return list(map(as_job, db.execute(DUE, (now, *after, limit)).fetchall()))


def overdue_leased(db: sqlite3.Connection, now: Instant, limit: int) -> list[JobRow]:
    return list(map(as_job, db.execute(OVERDUE_LEASED, (now, limit)).fetchall()))


def asked(
    db: sqlite3.Connection, limit: int, after: bytes = b""
) -> list[tuple[JobRow, list[Request]]]:
    rows = map(as_job, db.execute(ASKED, (after, limit)).fetchall())
    return [
        (row, list(map(as_request, db.execute(REQUESTS_OF, (row.id,)).fetchall()))) for row in rows
    ]


def request(t: Transaction, request: Request) -> bool:
    """Record a request; answer whether a worker has the job."""
    row = find_job(t.db, request.job_id)
    if row is None:
        return False
    t.db.execute(ASK, request)
    t.db.execute(COUNT_REQUESTS, (row.id,))
    t.made_due = row.leased_by is None
    return row.leased_by is not None


def dismiss(t: Transaction, job_id: bytes, answers: Sequence[tuple[str, str]]) -> None:
    settle(t, job_id, answers)


def report(t: Transaction, progress: Sequence[Progress]) -> None:
    by_job = sorted(progress, key=lambda latest: latest.job_id)
    t.db.executemany(REPORT, by_job)


def unpark(t: Transaction, limit: int, page: Page) -> tuple[int, Page]:
    """Pass on what a commit has missed, and look after what nobody will look at again.

    Looks at a page of what jobs are parked on. Returns how many jobs were unparked, and the next
    page.
    """
    unparked = 0
    buckets = Buckets(t)
    most = limit if page.is_rich else MOST_NAMES
    names = [row[0] for row in t.db.execute(PARKED_NAMES, (page.after, most)).fetchall()]
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
            places = limit if is_of_state(name) else keys.free_places(t, name)
        unparked += keys.pass_on(t, name, min(places, limit - unparked))
    buckets.write()
    return unparked, page.following(names, most, is_rich=unparked >= limit)


def fold_counts(t: Transaction) -> None:
    t.db.execute(FOLD)
    t.db.execute("DELETE FROM count_deltas")


def ended(
    db: sqlite3.Connection, flow: str, state: str, before: Instant, limit: int, after: bytes = b""
) -> list[JobRow]:
    """Return finished jobs of a state."""
    return list(map(as_job, db.execute(OF_STATE, (before, flow, state, after, limit)).fetchall()))


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
    t.db.executemany(FORGET_KEY, held)
    if ended and actor:
        details = pruning.details_of(len(ended), before)
        audit.note(t, actor, pruning.PRUNE, pruning.SUBJECT, note, details)
    return len(ended)
