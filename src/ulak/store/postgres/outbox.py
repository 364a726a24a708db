"""Deliveries: written by the commit that sends a message, taken in order per key by relays, and by
the transactions in which followers get events.

Which delivery is the head of its line follows from what others post and settle at the same time,
so a transaction that does either holds the keys that it touches until it has committed. A caller's
own transaction holds none: its deliveries find their place when they are taken. What both databases
say in the same words is in `ulak.store.sql.outbox`.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

from ulak.clock import Instant
from ulak.core.delivery import KEPT_US, MOST_EVENTS, PENDING, SENT, make_delivery
from ulak.core.job import Event, Message
from ulak.store.postgres.values import Array, Blobs, Ids, Numbers, Texts, as_arrays
from ulak.store.protocol import OutboxRow, Settled, outbox
from ulak.store.protocol.outbox import Followed
from ulak.store.sql.outbox import OLD_LINES, UNKNOWN_HANDLERS, UNRANKED, Line, Outbox, identity
from ulak.store.sql.session import JOB_COLUMNS, OUTBOX_COLUMNS, as_event, as_job, as_message_row

if TYPE_CHECKING:
    from ulak.store.postgres.session import Session, Transaction


HOLD_KEYS = """
    SELECT pg_advisory_xact_lock(hash) FROM (
        SELECT DISTINCT hashtextextended('ulak ' || key, 0) AS hash
        FROM unnest(%s::text[]) AS k (key) ORDER BY hash
    ) AS hashes
"""
RAISE_HEADS = """
    UPDATE ulak.deliveries SET head = 1 WHERE head <> 1 AND state = 'pending' AND position IN (
        SELECT (
            SELECT min(position) FROM ulak.deliveries
            WHERE handler = l.handler AND key = l.key AND open = 1
        ) FROM unnest(%s::text[], %s::text[]) AS l (handler, key)
    )
"""


def posting(wanted: str, *, ranked: bool) -> str:
    """Write the statement that posts deliveries; `wanted` joins messages `m` with handlers `h`.

    Without `ranked` no keys are held, and their places are found when they are taken.
    """
    head = """(m.is_first AND NOT EXISTS (
        SELECT FROM ulak.deliveries AS d
        WHERE d.handler = m.handler AND d.key = m.key AND d.open = 1
    ))::integer"""
    return f"""
        INSERT INTO ulak.deliveries (
            job_id, seq, n, key, topic, data, at, handler, not_before, give_up_at, head
        )
        SELECT m.job_id, m.seq, m.n, m.key, m.topic, m.data, m.at, m.handler, m.at,
            m.at + m.give_up_us, {head if ranked else -1}
        FROM (
            SELECT m.*, coalesce(h.name, '') AS handler, h.give_up_us,
                row_number() OVER (PARTITION BY h.name, m.key ORDER BY line) = 1 AS is_first
            FROM unnest(
                %s::uuid[], %s::bigint[], %s::bigint[], %s::text[], %s::text[], %s::bytea[],
                %s::bigint[]
            ) WITH ORDINALITY AS m (job_id, seq, n, key, topic, data, at, line)
            {wanted}
        ) AS m
        ORDER BY m.line, m.handler
    """


def bind(messages: Sequence[Message]) -> tuple[Array, ...]:
    return as_arrays(messages, Ids, Numbers, Numbers, Texts, Texts, Blobs, Numbers)


_WANTED = "LEFT JOIN ulak.handlers AS h ON h.topic = m.topic OR h.topic = '*'"
POST, POST_UNRANKED = (posting(_WANTED, ranked=ranked) for ranked in (True, False))

LOOK = """
    SELECT EXISTS (
        SELECT FROM ulak.deliveries
        WHERE head = 1 AND handler = %(handler)s::text AND not_before <= %(now)s::bigint
    ), EXISTS (SELECT FROM ulak.deliveries WHERE head = -1 AND handler = %(handler)s::text)
"""
RANK = """
    UPDATE ulak.deliveries SET head = 0
    WHERE head = -1 AND handler = %s::text AND key = ANY (%s::text[])
"""
TAKE = f"""
    UPDATE ulak.deliveries SET not_before = %s::bigint WHERE position = ANY (ARRAY(
        SELECT position FROM ulak.deliveries
        WHERE head = 1 AND handler = %s::text AND not_before <= %s::bigint
        ORDER BY not_before, position LIMIT %s::bigint FOR UPDATE SKIP LOCKED
    ))
    RETURNING {OUTBOX_COLUMNS}
"""
_SAME = "d.job_id = m.job_id AND d.seq = m.seq AND d.n = m.n AND d.handler = m.handler"
_ENDS = "%s::uuid[], %s::bigint[], %s::bigint[], %s::text[]"
# What another relay settles at this moment is passed over: nobody waits in a circle.
HOLD = f"""
    UPDATE ulak.deliveries SET not_before = %s::bigint WHERE position = ANY (ARRAY(
        SELECT d.position
        FROM unnest({_ENDS}, %s::bigint[]) AS m (job_id, seq, n, handler, not_before)
        JOIN ulak.deliveries AS d ON {_SAME}
        WHERE d.not_before = m.not_before AND d.state = 'pending'
        FOR UPDATE OF d SKIP LOCKED
    ))
    RETURNING {OUTBOX_COLUMNS}
"""
DELIVERED = f"""
    UPDATE ulak.deliveries AS d
    SET state = 'sent', sent_at = %s::bigint, answer = m.answer, open = 0, head = 0
    FROM unnest({_ENDS}, %s::bytea[]) AS m (job_id, seq, n, handler, answer)
    WHERE {_SAME} AND d.state <> 'sent'
"""
FAILED = f"""
    UPDATE ulak.deliveries AS d
    SET tries = d.tries + m.spends, not_before = m.not_before, error = m.error, state = m.state,
        open = m.open, head = CASE WHEN m.state = 'pending' THEN d.head ELSE 0 END
    FROM unnest({_ENDS}, %s::bigint[], %s::bigint[], %s::text[], %s::text[], %s::bigint[])
        AS m (job_id, seq, n, handler, spends, not_before, error, state, open)
    WHERE {_SAME} AND d.state = 'pending'
"""
EXPIRE = """
    UPDATE ulak.deliveries SET state = 'discarded', open = 0, head = 0, data = 'null'
    WHERE handler = %s::text AND key = ANY (%s::text[]) AND open = 1 AND at < %s::bigint
"""
REMOVE_LONE = """
    DELETE FROM ulak.deliveries WHERE position = ANY (ARRAY(
        SELECT position FROM ulak.deliveries
        WHERE seq = 0 AND open = 0 AND at < %s::bigint AND state IN ('sent', 'discarded')
        LIMIT %s::bigint
    ))
"""


def _hold(t: Transaction, keys: Iterable[str]) -> Texts:
    held = Texts(list(dict.fromkeys(keys)))
    t.db.execute(HOLD_KEYS, (held,))
    return held


def post(t: Transaction, messages: Sequence[Message]) -> None:
    if not messages:
        return
    _hold(t, (m.key for m in messages))
    t.db.execute(POST, bind(messages))
    t.made_due = True


def post_unranked(t: Transaction, messages: Sequence[Message]) -> None:
    t.db.execute(POST_UNRANKED, bind(messages))
    t.made_due = True


def look(db: Session, handler: str, now: Instant) -> tuple[bool, bool]:
    ((is_due, is_unranked),) = db.rows(LOOK, {"handler": handler, "now": now})
    return is_due, is_unranked


def rank(t: Transaction, handler: str) -> None:
    """Find the place of what callers' transactions have written."""
    keys = [key for (key,) in t.db.rows(UNRANKED, (handler,))]
    if keys:
        t.db.execute(RANK, (handler, _hold(t, keys)))
        _raise(t, [(handler, key) for key in keys])


def take(t: Transaction, handler: str, limit: int, hold_us: int) -> list[OutboxRow]:
    """Take due heads, the longest due first, and keep them from every other relay for a while."""
    rank(t, handler)
    taken = t.db.rows(TAKE, (t.now + hold_us, handler, t.now, limit))
    return sorted(map(as_message_row, taken), key=lambda row: row.position)


def _raise(t: Transaction, lines: Iterable[Line]) -> None:
    t.db.execute(RAISE_HEADS, as_arrays(sorted(set(lines)), Texts, Texts))


def hold(t: Transaction, rows: Sequence[OutboxRow], hold_us: int) -> list[OutboxRow]:
    """Keep what was taken for longer; return what nobody else has taken since."""
    dates = Numbers([row.not_before for row in rows])
    facts = (t.now + hold_us, *_identities(rows), dates)
    return [as_message_row(row) for row in t.db.rows(HOLD, facts)]


def settle(t: Transaction, settled: Sequence[Settled]) -> None:
    """Record what became of deliveries, and let the next of each line come forward."""
    over = [(end.handler, end.message.key) for end in settled if end.state != PENDING]
    if over:
        _hold(t, (key for _, key in over))
    sent = [end for end in settled if end.state == SENT]
    if sent:
        answers = Blobs([end.answer for end in sent])
        t.db.execute(DELIVERED, (t.now, *_identities(sent), answers))
    failed = [end for end in settled if end.state != SENT]
    if failed:
        changes = [(end.spends_try, end.not_before, end.error, end.state) for end in failed]
        is_open = Numbers([end.state == PENDING or end.blocks for end in failed])
        columns = as_arrays(changes, Numbers, Numbers, Texts, Texts)
        t.db.execute(FAILED, (*_identities(failed), *columns, is_open))
    if over:
        _raise(t, over)


def _identities(rows: Sequence[OutboxRow | Settled]) -> tuple[Array, ...]:
    return as_arrays([identity(row) for row in rows], Ids, Numbers, Numbers, Texts)


def expire(t: Transaction, limit: int) -> int:
    """Discard what nobody has wanted for long, and remove what is over and has no job."""
    before, expired = t.now - KEPT_US, 0
    removed = t.db.touch(REMOVE_LONE, (before, limit))
    for (handler,) in t.db.rows(UNKNOWN_HANDLERS):
        rank(t, handler)
        keys = [key for (key,) in t.db.rows(OLD_LINES, (handler, before, max(0, limit - expired)))]
        if keys:
            expired += t.db.touch(EXPIRE, (handler, _hold(t, keys), before))
            _raise(t, [(handler, key) for key in keys])
    return removed + expired


OUTBOX: Outbox[Transaction] = Outbox(_hold, _raise)


FLOWS = "(SELECT string_agg(flow, ' ') FROM ulak.handlers WHERE flow IS NOT NULL)"
"""The flows that are followed, as one value: part of a statement that is run anyway."""

_FOLLOWERS = "JOIN ulak.handlers AS h ON h.flow = m.topic"
POST_EVENTS, POST_EVENTS_UNRANKED = (posting(_FOLLOWERS, ranked=ranked) for ranked in (True, False))

# Only the head of a line is locked while a follower has its events: that keeps every other follower
# of the name away, and nobody who writes further events waits for it.
DUE_HEADS = f"""
    SELECT {OUTBOX_COLUMNS} FROM ulak.deliveries
    WHERE head = 1 AND handler = %s::text AND not_before <= %s::bigint
    ORDER BY not_before, position LIMIT %s::bigint FOR UPDATE SKIP LOCKED
"""
LINES = f"""
    SELECT d.key, d.position, {", ".join(f"e.{name}" for name in Event._fields)}
    FROM (
        SELECT job_id, seq, key, position FROM ulak.deliveries
        WHERE handler = %s::text AND key = ANY (%s::text[]) AND open = 1
        ORDER BY key, position LIMIT {MOST_EVENTS + 1}
    ) AS d
    JOIN ulak.jobs AS j ON j.id = d.job_id
    JOIN ulak.events AS e ON e.job_id = d.job_id AND e.seq = d.seq AND e.month = j.month
    ORDER BY d.key, d.position
"""
JOBS = f"SELECT {JOB_COLUMNS} FROM ulak.jobs WHERE id = ANY (%s::uuid[])"
REMOVE_EVENTS = "DELETE FROM ulak.deliveries WHERE position = ANY (%s::bigint[])"


def post_events(db: Session, events: Iterable[tuple[str, Event]], *, ranked: bool) -> None:
    """Write the deliveries of events, except the first of a job, which `intake.INSERT` writes."""
    deliveries = [make_delivery(flow, event) for flow, event in events]
    if ranked:
        db.execute(HOLD_KEYS, (Texts(list({delivery.key: None for delivery in deliveries})),))
    db.execute(POST_EVENTS if ranked else POST_EVENTS_UNRANKED, bind(deliveries))


def take_events(db: Session, now: Instant, handler: str, limit: int) -> list[Followed]:
    due = db.rows(DUE_HEADS, (handler, now, limit))
    heads = outbox.choose_heads(list(map(as_message_row, due)))
    if not heads:
        return []
    found = db.rows(LINES, (handler, Texts(list(heads))))
    lines = [(row[0], row[1], as_event(row[2:])) for row in found]
    ids = Ids(list({event.job_id: None for *_, event in lines}))
    jobs = {row[0]: as_job(row) for row in db.rows(JOBS, (ids,))}
    return outbox.gather_events(lines, heads, jobs)


def finish_events(db: Session, taken: Sequence[Followed]) -> None:
    keys = Texts([one.head.message.key for one in taken])
    db.execute(HOLD_KEYS, (keys,))
    db.execute(REMOVE_EVENTS, (Numbers([position for one in taken for position in one.positions]),))
    db.execute(RAISE_HEADS, (Texts([one.head.handler for one in taken]), keys))
