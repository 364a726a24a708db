"""Deliveries: written by the commit that sends a message, taken by relays in order per key.

Which delivery is the head of its line follows from what others post and settle at the same time,
so a transaction that does either holds the keys that it touches until it has committed. A caller's
own transaction holds none: its deliveries find their place when they are taken.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from ulak.clock import Instant
from ulak.core.delivery import EVENT, GAVE_UP, KEPT_US, PENDING, SENT
from ulak.core.job import Message
from ulak.store import messages
from ulak.store.postgres import audit
from ulak.store.postgres.connections import Session, Transaction
from ulak.store.postgres.deliveries import HOLD_KEYS, RAISE_HEADS, bind, posting
from ulak.store.postgres.values import (
    OUTBOX_COLUMNS,
    Blobs,
    Id,
    Ids,
    Numbers,
    Row,
    Texts,
    as_message_row,
)
from ulak.store.protocol import DeliveryCount, DeliveryFilter, HandlerRow, OutboxRow, Settled

Line = tuple[str, str]
"""A handler and a key."""

_WANTED = "LEFT JOIN ulak.handlers AS h ON h.topic = m.topic OR h.topic = '*'"
POST, POST_UNRANKED = (posting(_WANTED, ranked=ranked) for ranked in (True, False))

LOOK = """
    SELECT EXISTS (
        SELECT FROM ulak.deliveries
        WHERE head = 1 AND handler = %(handler)s::text AND not_before <= %(now)s::bigint
    ), EXISTS (SELECT FROM ulak.deliveries WHERE head = -1 AND handler = %(handler)s::text)
"""
UNRANKED = "SELECT DISTINCT key FROM ulak.deliveries WHERE head = -1 AND handler = %s::text"
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
_ONE = "job_id = %s::uuid AND seq = %s::bigint AND n = %s::bigint AND handler = %s::text"
REDRIVE = f"""
    UPDATE ulak.deliveries SET state = 'pending', tries = 0, not_before = %s::bigint,
                               give_up_at = %s::bigint, open = 1
    WHERE {_ONE} AND state IN ('dead', 'refused')
"""
DISCARD = f"""
    UPDATE ulak.deliveries SET state = 'discarded', open = 0, head = 0
    WHERE {_ONE} AND state IN ('pending', 'dead', 'refused')
"""
# The first open delivery of a line is its head, if it is pending, and no other is.
DROP_HEAD = """
    UPDATE ulak.deliveries SET head = 0
    WHERE handler = %s::text AND key = %s::text AND open = 1 AND head = 1
"""
LIST = f"SELECT {OUTBOX_COLUMNS} FROM ulak.deliveries WHERE position > %s::bigint"
COUNT = """
    SELECT handler, state, count(*), min(at) FROM (
        SELECT handler, state, at FROM ulak.deliveries WHERE open = 1 AND state = 'pending'
        UNION ALL SELECT handler, state, at FROM ulak.deliveries WHERE state IN ('dead', 'refused')
    ) AS d GROUP BY handler, state ORDER BY handler, state
"""
KEEP_HANDLER = """
    INSERT INTO ulak.handlers AS h (name, topic, give_up_us, flow)
    VALUES (%s::text, %s::text, %s::bigint, %s::text)
    ON CONFLICT (name) DO UPDATE
    SET topic = excluded.topic, give_up_us = excluded.give_up_us, flow = excluded.flow
    WHERE (h.topic, h.give_up_us, h.flow)
        IS DISTINCT FROM (excluded.topic, excluded.give_up_us, excluded.flow)
"""
HANDLERS = "SELECT name, topic, give_up_us, flow FROM ulak.handlers ORDER BY name"
FORGET_HANDLER = "DELETE FROM ulak.handlers WHERE name = %s::text"
# A follower locks the head of a line, and later takes its key and then the rest of the line: so
# does everybody else who touches a line of events that may be taken.
HOLD_HEADS = "SELECT FROM ulak.deliveries WHERE head = 1 AND handler = %s::text FOR UPDATE"
HOLD_HEAD = """
    SELECT FROM ulak.deliveries
    WHERE handler = %s::text AND key = %s::text AND open = 1 AND head = 1 FOR UPDATE
"""
DISCARD_ALL = """
    UPDATE ulak.deliveries SET state = 'discarded', open = 0, head = 0
    WHERE handler = %s::text AND open = 1
"""
# From one name to the next, past however many deliveries each of them has.
UNKNOWN_HANDLERS = """
    WITH RECURSIVE found (name) AS (
        SELECT min(handler) FROM ulak.deliveries WHERE open = 1
        UNION ALL
        SELECT (SELECT min(handler) FROM ulak.deliveries WHERE open = 1 AND handler > found.name)
        FROM found WHERE found.name IS NOT NULL
    )
    SELECT name FROM found WHERE name IS NOT NULL AND name NOT IN (SELECT name FROM ulak.handlers)
"""
OLD_LINES = """
    SELECT key FROM ulak.deliveries
    WHERE head = 1 AND handler = %s::text AND not_before < %s::bigint
    ORDER BY not_before LIMIT %s::bigint
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


def keep_handlers(t: Transaction, rows: Sequence[HandlerRow]) -> None:
    for row in sorted(rows, key=lambda row: row.name):
        t.db.execute(KEEP_HANDLER, row)


def handlers(db: Session) -> list[HandlerRow]:
    return [HandlerRow(*row) for row in db.rows(HANDLERS)]


def forget_handler(t: Transaction, name: str, actor: str, note: str) -> int | None:
    if t.db.touch(FORGET_HANDLER, (name,)) == 0:
        return None
    t.db.execute(HOLD_HEADS, (name,))
    discarded = t.db.touch(DISCARD_ALL, (name,))
    subject, details = messages.handler_subject(name), messages.handler_details(discarded)
    audit.note(t, actor, messages.FORGET, subject, note, details)
    return discarded


def _hold(db: Session, keys: Iterable[str]) -> Texts:
    held = Texts(list(dict.fromkeys(keys)))
    db.execute(HOLD_KEYS, (held,))
    return held


def post(t: Transaction, messages: Sequence[Message]) -> None:
    """Write the deliveries of messages in their order."""
    if not messages:
        return
    _hold(t.db, (m.key for m in messages))
    t.db.execute(POST, bind(messages))
    t.made_due = True


def post_unranked(t: Transaction, messages: Sequence[Message]) -> None:
    """Write deliveries without holding their keys: their places are found when they are taken."""
    t.db.execute(POST_UNRANKED, bind(messages))
    t.made_due = True


def look(db: Session, handler: str, now: Instant) -> tuple[bool, bool]:
    """Tell whether a head is due, and whether there is something without a place."""
    ((is_due, is_unranked),) = db.rows(LOOK, {"handler": handler, "now": now})
    return is_due, is_unranked


def rank(t: Transaction, handler: str) -> None:
    """Find the place of what callers' transactions have written."""
    keys = [key for (key,) in t.db.rows(UNRANKED, (handler,))]
    if keys:
        t.db.execute(RANK, (handler, _hold(t.db, keys)))
        _raise(t, [(handler, key) for key in keys])


def take(t: Transaction, handler: str, limit: int, hold_us: int) -> list[OutboxRow]:
    """Take due heads, the longest due first, and keep them from every other relay for a while."""
    rank(t, handler)
    taken = t.db.rows(TAKE, (t.now + hold_us, handler, t.now, limit))
    return sorted(map(as_message_row, taken), key=lambda row: row.position)


def _raise(t: Transaction, lines: Iterable[Line]) -> None:
    """Let the first of each line come forward; its key is held."""
    names, keys = zip(*sorted(set(lines)), strict=True)
    t.db.execute(RAISE_HEADS, (Texts(names), Texts(keys)))


def hold(t: Transaction, rows: Sequence[OutboxRow], hold_us: int) -> list[OutboxRow]:
    """Keep what was taken for longer; return what nobody else has taken since."""
    dates = Numbers([row.not_before for row in rows])
    facts = (t.now + hold_us, *_identities(rows), dates)
    return [as_message_row(row) for row in t.db.rows(HOLD, facts)]


def settle(t: Transaction, settled: Sequence[Settled]) -> None:
    """Record what became of deliveries, and let the next of each line come forward."""
    over = [(end.handler, end.message.key) for end in settled if end.state != PENDING]
    if over:
        _hold(t.db, (key for _, key in over))
    sent = [end for end in settled if end.state == SENT]
    if sent:
        answers = Blobs([end.answer for end in sent])
        t.db.execute(DELIVERED, (t.now, *_identities(sent), answers))
    failed = [end for end in settled if end.state != SENT]
    if failed:
        t.db.execute(
            FAILED,
            (
                *_identities(failed),
                Numbers([int(end.spends_try) for end in failed]),
                Numbers([end.not_before for end in failed]),
                Texts([end.error for end in failed]),
                Texts([end.state for end in failed]),
                Numbers([int(end.state == PENDING or end.blocks) for end in failed]),
            ),
        )
    if over:
        _raise(t, over)


def _identities(rows: Sequence[OutboxRow | Settled]) -> tuple[Ids, Numbers, Numbers, Texts]:
    return (
        Ids([row.message.job_id for row in rows]),
        Numbers([row.message.seq for row in rows]),
        Numbers([row.message.n for row in rows]),
        Texts([row.handler for row in rows]),
    )


def _identity(row: OutboxRow) -> Row:
    return Id(row.message.job_id), row.message.seq, row.message.n, row.handler


def redrive(
    t: Transaction, row: OutboxRow, give_up_at: Instant | None, actor: str, note: str
) -> bool:
    """Let a delivery be tried again; it goes before everything younger of its line."""
    _hold(t.db, [row.message.key])
    if t.db.touch(REDRIVE, (t.now, give_up_at, *_identity(row))) == 0:
        return False
    t.db.execute(DROP_HEAD, (row.handler, row.message.key))
    _acted(t, row, (actor, messages.REDRIVE, note))
    return True


def discard(t: Transaction, row: OutboxRow, actor: str, note: str) -> bool:
    """Give a delivery up; its line goes on without it."""
    if row.message.n == EVENT:
        t.db.execute(HOLD_HEAD, (row.handler, row.message.key))
    _hold(t.db, [row.message.key])
    if t.db.touch(DISCARD, _identity(row)) == 0:
        return False
    _acted(t, row, (actor, messages.DISCARD, note))
    return True


def _acted(t: Transaction, row: OutboxRow, said: tuple[str, str, str]) -> None:
    _raise(t, [(row.handler, row.message.key)])
    t.made_due = True
    actor, act, note = said
    subject, details = messages.subject_of(row.message), messages.details_of(row)
    audit.note(t, actor, act, subject, note, details)


def listed(db: Session, where: DeliveryFilter, after: int = 0, limit: int = 100) -> list[OutboxRow]:
    """Return deliveries by position upward."""
    given = {"handler = %s::text": where.handler, "key = %s::text": where.key}
    terms = {term: value for term, value in given.items() if value is not None}
    text = LIST + "".join(f" AND {term}" for term in terms)
    facts: list[Any] = [after, *terms.values()]
    if where.states:
        text += " AND state = ANY (%s::text[])"
        facts.append(Texts(where.states))
    if where.states and set(where.states) <= set(GAVE_UP):
        text += " AND state IN ('dead', 'refused')"  # word for word as its index says it
    found = db.rows(f"{text} ORDER BY position LIMIT %s::bigint", (*facts, limit))
    return list(map(as_message_row, found))


def counted(db: Session) -> list[DeliveryCount]:
    """Count what is not over, by handler and state."""
    return [DeliveryCount(*row) for row in db.rows(COUNT)]


def expire(t: Transaction, limit: int) -> int:
    """Discard what nobody has wanted for long, and remove what is over and has no job."""
    before, expired = t.now - KEPT_US, 0
    removed = t.db.touch(REMOVE_LONE, (before, limit))
    for (handler,) in t.db.rows(UNKNOWN_HANDLERS):
        rank(t, handler)
        keys = [key for (key,) in t.db.rows(OLD_LINES, (handler, before, max(0, limit - expired)))]
        if keys:
            expired += t.db.touch(EXPIRE, (handler, _hold(t.db, keys), before))
            _raise(t, [(handler, key) for key in keys])
    return removed + expired
