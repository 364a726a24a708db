"""What keeps the store tidy in PostgreSQL's own words; the rest is in `ulak.store.sql.reads`."""

from __future__ import annotations

from collections.abc import Sequence

from ulak.clock import Instant
from ulak.core.job import JobRow, Request, is_of_state
from ulak.store.flow_control import ON_KEY, ON_RATE, Page
from ulak.store.postgres import intake, months, slots
from ulak.store.postgres.commits import REQUESTS_OF, settle
from ulak.store.postgres.session import Session, Transaction
from ulak.store.postgres.slots import Buckets
from ulak.store.postgres.values import Ids, Numbers, Texts, as_arrays
from ulak.store.protocol import jobs
from ulak.store.sql.reads import ASKED, FIRST_ID, LOCK_JOB, PARKED_NAMES
from ulak.store.sql.session import Id, as_job, as_request, write_audit

# As many names that jobs are parked on as one look takes.
MOST_NAMES = 2000
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
_OWN = ("requests", "progress", "deliveries", "ticks")
FORGET = [
    *(f"DELETE FROM ulak.{table} WHERE job_id = ANY (%s::uuid[])" for table in _OWN),
    "DELETE FROM ulak.jobs WHERE id = ANY (%s::uuid[])",
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


def asked(db: Session, limit: int, after: bytes = b"") -> list[tuple[JobRow, list[Request]]]:
    rows = [as_job(row) for row in db.rows(ASKED, (Id(after or FIRST_ID), limit))]
    found: dict[bytes, list[Request]] = {row.id: [] for row in rows}
    for row in db.rows(REQUESTS_OF, (Ids(list(found)),)):
        found[row[0]].append(as_request(row))
    return [(row, found[row.id]) for row in rows]


def dismiss(t: Transaction, job_id: bytes, answers: Sequence[tuple[str, str]]) -> None:
    t.db.execute(LOCK_JOB, (Id(job_id),))
    settle(t.db, job_id, answers)


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
        facts = as_arrays(dated, Ids, Numbers)
        for statement in FORGET_DATED:
            t.db.execute(statement, facts)
    for statement in FORGET:
        t.db.execute(statement, (ids,))
    intake.free_keys(t.db, [((r[5], r[1], r[6]), r[0]) for r in ended if r[6] is not None])
    if actor:
        details = jobs.prune_details(len(ended), before)
        write_audit(t, actor, jobs.PRUNE, jobs.PRUNE_SUBJECT, note, details)
    return len(ended)


def retire(t: Transaction, candidates: Sequence[int], before: Instant) -> None:
    facts = {"months": Numbers(candidates), "before": before, "now": t.now}
    t.db.execute(RETIRE, facts)


def empty_months(db: Session) -> list[int]:
    return [row[0] for row in db.rows(EMPTY)]
