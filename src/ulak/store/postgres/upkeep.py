"""What keeps the store tidy, and the side columns that no guard protects."""

from __future__ import annotations

from collections.abc import Sequence

from ulak.clock import Instant
from ulak.core.job import JobRow, Request, is_of_state
from ulak.store import pruning
from ulak.store.flow_control import ON_KEY, ON_RATE, Page
from ulak.store.postgres import audit, keys, months, slots
from ulak.store.postgres.commits import COUNT_REQUESTS, REQUESTS_OF, settle
from ulak.store.postgres.connections import Session, Transaction
from ulak.store.postgres.tokens import Buckets
from ulak.store.postgres.values import (
    JOB_COLUMNS,
    REQUEST_COLUMNS,
    Id,
    Ids,
    Numbers,
    Texts,
    as_job,
    as_request,
)
from ulak.store.protocol import Progress

_WAKING = f"SELECT {JOB_COLUMNS} FROM ulak.jobs WHERE wake_at <= %s::bigint"
DUE = f"""{_WAKING} AND leased_by IS NULL AND (wake_at, id) > (%s::bigint, %s::uuid)
    ORDER BY wake_at, id LIMIT %s::bigint
"""
OVERDUE_LEASED = f"""{_WAKING} AND leased_by IS NOT NULL
    AND NOT EXISTS (SELECT FROM ulak.requests WHERE job_id = jobs.id AND kind = 'expire')
    ORDER BY wake_at, id LIMIT %s::bigint
"""
ASKED = f"""
    SELECT {JOB_COLUMNS} FROM ulak.jobs
    WHERE id IN (SELECT job_id FROM ulak.requests WHERE job_id > %s::uuid) AND leased_by IS NULL
    ORDER BY id LIMIT %s::bigint
"""
FIRST_ID = bytes(16)

LOCK_JOB = "SELECT leased_by FROM ulak.jobs WHERE id = %s::uuid FOR NO KEY UPDATE"
ASK = f"""
    INSERT INTO ulak.requests ({REQUEST_COLUMNS})
    VALUES (%s::uuid, %s::text, %s::text, %s::text, %s::text, %s::bytea, %s::bigint)
    ON CONFLICT (job_id, kind, name) DO NOTHING
"""
REPORT = """
    INSERT INTO ulak.progress (job_id, fraction, note, at)
    SELECT %(id)s::uuid, %(fraction)s::double precision, %(note)s::text, %(at)s::bigint
    WHERE EXISTS (SELECT FROM ulak.jobs WHERE id = %(id)s::uuid)
    ON CONFLICT (job_id) DO UPDATE
    SET fraction = excluded.fraction, note = excluded.note, at = excluded.at
"""

# What jobs are parked on, each found by one step along the index; so many at once.
MOST_NAMES = 2000
PARKED_NAMES = """
    WITH RECURSIVE parked (name) AS (
        SELECT (
            SELECT parked_on FROM ulak.jobs WHERE parked_on > %s::text ORDER BY parked_on LIMIT 1
        )
        UNION ALL
        SELECT (
            SELECT parked_on FROM ulak.jobs
            WHERE parked_on > parked.name ORDER BY parked_on LIMIT 1
        ) FROM parked WHERE parked.name IS NOT NULL
    )
    SELECT name FROM parked WHERE name IS NOT NULL LIMIT %s::bigint
"""
KNOWN_PAUSES = "SELECT name FROM ulak.pauses WHERE kind = 'key' AND name = ANY (%s::text[])"

# What another fold is taking is left to it; the sums are written in the order of their keys.
MOST_DELTAS = 20_000
FOLD = f"""
    WITH folded AS (
        DELETE FROM ulak.count_deltas WHERE ctid = ANY (ARRAY(
            SELECT ctid FROM ulak.count_deltas LIMIT {MOST_DELTAS} FOR UPDATE SKIP LOCKED
        ))
        RETURNING flow, flow_version, state, role, jobs
    )
    INSERT INTO ulak.counts AS c (flow, flow_version, state, role, jobs)
    SELECT flow, flow_version, state, role, sum(jobs) FROM folded
    GROUP BY flow, flow_version, state, role ORDER BY flow, flow_version, state, role
    ON CONFLICT (flow, flow_version, state, role) DO UPDATE SET jobs = c.jobs + excluded.jobs
"""

_ENDED = "lane = '' AND role <> 'held' AND role <> 'waiting'"
# A job whose key must still be answered with it stays, and one whose messages are not sent.
_NEEDED = """(
    EXISTS (
        SELECT FROM ulak.dedup AS d WHERE d.tenant = jobs.tenant AND d.flow = jobs.flow
        AND d.key = jobs.dedup_key AND d.job_id = jobs.id AND d.expires_at > %(now)s::bigint)
    OR EXISTS (
        SELECT FROM ulak.deliveries AS d WHERE d.job_id = jobs.id AND d.open = 1)
)"""
ENDED = f"""
    SELECT id, flow, flow_version, state, role, tenant, dedup_key, month FROM ulak.jobs
    WHERE {_ENDED} AND changed_at < %(before)s::bigint AND NOT {_NEEDED}
      AND (%(flow)s::text IS NULL OR (flow = %(flow)s::text AND state = %(state)s::text))
    ORDER BY changed_at, id LIMIT %(limit)s::bigint FOR UPDATE SKIP LOCKED
"""
OF_STATE = f"""
    SELECT {JOB_COLUMNS} FROM ulak.jobs
    WHERE {_ENDED} AND changed_at < %s::bigint AND flow = %s::text AND state = %s::text
      AND id > %s::uuid
    ORDER BY id LIMIT %s::bigint
"""
FORGET = [
    f"DELETE FROM ulak.{table} WHERE {column} = ANY (%s::uuid[])"
    for table, column in (
        ("requests", "job_id"),
        ("progress", "job_id"),
        ("deliveries", "job_id"),
        ("ticks", "job_id"),
        ("jobs", "id"),
    )
]
# Of a month that is retired only the rows of jobs go; the rest goes with the month.
FORGET_DATED = [
    f"DELETE FROM ulak.{table} AS r USING unnest(%s::uuid[], %s::bigint[]) AS j (id, month) "
    "WHERE r.job_id = j.id AND r.month = j.month"
    for table in months.TABLES
]
RETIRED = "SELECT month FROM ulak.retired_months"
# A month may go when it is over, and none of its jobs must stay.
RETIRE = f"""
    INSERT INTO ulak.retired_months
    SELECT m.month FROM unnest(%(months)s::bigint[]) AS m (month)
    WHERE NOT EXISTS (
        SELECT FROM ulak.jobs WHERE jobs.month = m.month
        AND NOT ({_ENDED} AND changed_at < %(before)s::bigint AND NOT {_NEEDED})
    )
    ON CONFLICT (month) DO NOTHING
"""
EMPTY = """
    SELECT month FROM ulak.retired_months AS m
    WHERE NOT EXISTS (SELECT FROM ulak.jobs WHERE jobs.month = m.month)
"""


def due(
    db: Session, now: Instant, limit: int, after: tuple[Instant, bytes] = (0, b"")
) -> list[JobRow]:
    wake_at, job_id = after
    facts = (now, wake_at, Id(job_id or FIRST_ID), limit)
    return [as_job(row) for row in db.rows(DUE, facts)]


def overdue_leased(db: Session, now: Instant, limit: int) -> list[JobRow]:
    return [as_job(row) for row in db.rows(OVERDUE_LEASED, (now, limit))]


def asked(db: Session, limit: int, after: bytes = b"") -> list[tuple[JobRow, list[Request]]]:
    rows = [as_job(row) for row in db.rows(ASKED, (Id(after or FIRST_ID), limit))]
    found: dict[bytes, list[Request]] = {row.id: [] for row in rows}
    for row in db.rows(REQUESTS_OF, (Ids(list(found)),)):
        found[row[0]].append(as_request(row))
    return [(row, found[row.id]) for row in rows]


def request(t: Transaction, request: Request) -> bool:
    """Record a request; answer whether a worker has the job."""
    # The row is taken first, so that what is counted afterwards is all there is.
    held = t.db.row(LOCK_JOB, (Id(request.job_id),))
    if held is None:
        return False
    t.db.execute(ASK, (Id(request.job_id), *request[1:]))
    t.db.execute(COUNT_REQUESTS, (Id(request.job_id),))
    t.made_due = held[0] is None
    return held[0] is not None


def dismiss(t: Transaction, job_id: bytes, answers: Sequence[tuple[str, str]]) -> None:
    t.db.execute(LOCK_JOB, (Id(job_id),))
    settle(t.db, job_id, answers)


def report(t: Transaction, progress: Sequence[Progress]) -> None:
    for latest in sorted(progress, key=lambda p: p.job_id):
        facts = {"id": Id(latest.job_id), "fraction": latest.fraction, "note": latest.note}
        t.db.execute(REPORT, {**facts, "at": latest.at})


def unpark(t: Transaction, limit: int, page: Page) -> tuple[int, Page]:
    """Pass on what a commit has missed, and look after what nobody will look at again.

    Looks at a page of what jobs are parked on in a few round trips however many there are.
    Returns how many jobs were unparked, and the next page.
    """
    most = limit if page.is_rich else MOST_NAMES
    names = [row[0] for row in t.db.rows(PARKED_NAMES, (page.after, most))]
    rates = [name.removeprefix(ON_RATE) for name in names if name.startswith(ON_RATE)]
    keys_ = [name.removeprefix(ON_KEY) for name in names if name.startswith(ON_KEY)]
    limits = [name for name in names if name[0] != "/" and not is_of_state(name)]
    if rates:
        buckets = Buckets(t)
        buckets.look_after_all(rates)
        buckets.write()
    places: dict[str, int] = {name: limit for name in names if is_of_state(name)}
    if keys_:
        known = {row[0] for row in t.db.rows(KNOWN_PAUSES, (Texts(keys_),))}
        places |= {ON_KEY + key: limit for key in keys_ if key not in known}
    if limits:
        places |= slots.free_places(t.db, limits)
    unparked = slots.pass_on_all(t, places, limit)
    return unparked, page.following(names, most, is_rich=unparked >= limit)


def fold_counts(t: Transaction) -> None:
    t.db.execute(FOLD)


def ended(
    db: Session, flow: str, state: str, before: Instant, limit: int, after: bytes = b""
) -> list[JobRow]:
    """Return finished jobs of a state."""
    facts = (before, flow, state, Id(after or FIRST_ID), limit)
    return list(map(as_job, db.rows(OF_STATE, facts)))


def prune(
    t: Transaction,
    before: Instant,
    limit: int,
    actor: str,
    note: str,
    of: tuple[str, str] | None = None,
) -> int:
    """Remove ended jobs with everything of their own; proofs stay."""
    flow, state = of or (None, None)
    asked = {"before": before, "now": t.now, "limit": limit, "flow": flow, "state": state}
    ended = t.db.rows(ENDED, asked)
    if not ended:
        return 0
    for row in ended:
        t.count((row[1], row[2], row[3], row[4]), -1)
    ended.sort(key=lambda row: bytes(row[0]))
    ids = Ids([row[0] for row in ended])
    retired = {row[0] for row in t.db.rows(RETIRED)}
    dated = [(row[0], row[7]) for row in ended if row[7] not in retired]
    if dated:
        facts = (Ids([i for i, _ in dated]), Numbers([m for _, m in dated]))
        for statement in FORGET_DATED:
            t.db.execute(statement, facts)
    for statement in FORGET:
        t.db.execute(statement, (ids,))
    keys.free(t.db, [((r[5], r[1], r[6]), r[0]) for r in ended if r[6] is not None])
    if actor:
        details = pruning.details_of(len(ended), before)
        audit.note(t, actor, pruning.PRUNE, pruning.SUBJECT, note, details)
    return len(ended)


def retire(t: Transaction, candidates: Sequence[int], before: Instant) -> None:
    """Mark months of which nothing must stay: their jobs are pruned, then they are dropped."""
    facts = {"months": Numbers(candidates), "before": before, "now": t.now}
    t.db.execute(RETIRE, facts)


def empty_months(db: Session) -> list[int]:
    """Return retired months without jobs."""
    return [row[0] for row in db.rows(EMPTY)]
