"""What keeps the store tidy in SQLite's own words; the rest is in `ulak.store.sql.reads`."""

from __future__ import annotations

from collections.abc import Sequence

from ulak.clock import Instant
from ulak.core.job import JobRow, Request, is_of_state
from ulak.store.flow_control import ON_KEY, ON_RATE, Page
from ulak.store.protocol import jobs
from ulak.store.sql.reads import ASKED, PARKED_NAMES, requests
from ulak.store.sql.session import as_job, write_audit
from ulak.store.sqlite import keys
from ulak.store.sqlite.commits import settle
from ulak.store.sqlite.rows import PACKED_IDS, pack
from ulak.store.sqlite.session import Session, SharedTransaction
from ulak.store.sqlite.tokens import Buckets
from ulak.store.sqlite.writer import Transaction

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
FORGET_KEY = "DELETE FROM dedup WHERE tenant = ? AND flow = ? AND key = ? AND job_id = ?"
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
    """Pass on what a commit has missed, and look after what nobody will look at again.

    Looks at a page of what jobs are parked on. Returns how many jobs were unparked, and the next
    page.
    """
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
            places = limit if is_of_state(name) else keys.free_places(t, name)
        unparked += keys.pass_on(t, name, min(places, limit - unparked))
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
    t.db.executemany(FORGET_KEY, held)
    if ended and actor:
        details = jobs.prune_details(len(ended), before)
        write_audit(SharedTransaction(t), actor, jobs.PRUNE, jobs.PRUNE_SUBJECT, note, details)
    return len(ended)
