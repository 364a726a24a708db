"""Deliveries: written by the commit that sends a message, taken by relays in order per key."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterable, Sequence

from ulak.clock import Instant
from ulak.core.delivery import GAVE_UP, KEPT_US, PENDING, SENT
from ulak.core.job import Message
from ulak.store import messages
from ulak.store.protocol import DeliveryCount, DeliveryFilter, HandlerRow, OutboxRow, Settled
from ulak.store.sqlite import audit
from ulak.store.sqlite.rows import OUTBOX_COLUMNS, as_message_row
from ulak.store.sqlite.writer import Transaction

Line = tuple[str, str]
"""A handler and a key."""

POST = """
    INSERT INTO main.deliveries (
        job_id, seq, n, key, topic, data, at, handler, not_before, give_up_at, head
    )
    SELECT ?1, ?2, ?3, ?4, ?5, ?6, ?7, coalesce(h.name, ''), ?7, ?7 + h.give_up_us,
        NOT EXISTS (
            SELECT 1 FROM main.deliveries AS d
            WHERE d.handler = coalesce(h.name, '') AND d.key = ?4 AND d.open = 1
        )
    FROM (SELECT 1) LEFT JOIN main.handlers AS h ON h.topic = ?5 OR h.topic = '*'
"""
IS_ANY_DUE = """
    SELECT EXISTS (
        SELECT 1 FROM deliveries INDEXED BY deliveries_heads
        WHERE head = 1 AND handler = ?1 AND not_before <= ?2
    ) OR EXISTS (
        SELECT 1 FROM deliveries INDEXED BY deliveries_unranked WHERE head = -1 AND handler = ?1
    )
"""
UNRANKED = """
    SELECT DISTINCT key FROM deliveries INDEXED BY deliveries_unranked
    WHERE head = -1 AND handler = ?
"""
RANK = "UPDATE deliveries SET head = 0 WHERE head = -1 AND handler = ? AND key = ?"
TAKE = f"""
    UPDATE deliveries SET not_before = ?2 WHERE position IN (
        SELECT position FROM deliveries INDEXED BY deliveries_heads
        WHERE head = 1 AND handler = ?4 AND not_before <= ?1 ORDER BY not_before, position LIMIT ?3
    )
    RETURNING {OUTBOX_COLUMNS}
"""
_ONE = "job_id = ? AND seq = ? AND n = ? AND handler = ?"
HOLD = f"""
    UPDATE deliveries SET not_before = ? WHERE {_ONE} AND not_before = ? AND state = 'pending'
    RETURNING {OUTBOX_COLUMNS}
"""
DELIVERED = f"""
    UPDATE deliveries SET state = 'sent', sent_at = ?, answer = ?, open = 0, head = 0
    WHERE {_ONE} AND state <> 'sent'
"""
TRY_AGAIN = f"""
    UPDATE deliveries SET tries = tries + ?, not_before = ?, error = ?
    WHERE {_ONE} AND state = 'pending'
"""
GIVE_UP = f"""
    UPDATE deliveries
    SET tries = tries + ?, not_before = ?, error = ?, state = ?, open = ?, head = 0
    WHERE {_ONE} AND state = 'pending'
"""
REDRIVE = f"""
    UPDATE deliveries SET state = 'pending', tries = 0, not_before = ?, give_up_at = ?, open = 1
    WHERE {_ONE} AND state IN ('dead', 'refused')
"""
DISCARD = f"""
    UPDATE deliveries SET state = 'discarded', open = 0, head = 0
    WHERE {_ONE} AND state IN ('pending', 'dead', 'refused')
"""
# The first open delivery of a line is its head, if it is pending, and no other is.
DROP_HEAD = """
    UPDATE deliveries SET head = 0 WHERE handler = ? AND key = ? AND open = 1 AND head = 1
"""
RAISE_HEAD = """
    UPDATE deliveries SET head = 1 WHERE head <> 1 AND state = 'pending' AND position = (
        SELECT min(position) FROM deliveries WHERE handler = ? AND key = ? AND open = 1
    )
"""
LIST = f"SELECT {OUTBOX_COLUMNS} FROM deliveries WHERE position > ?"
COUNT = """
    SELECT handler, state, count(*), min(at) FROM (
        SELECT handler, state, at FROM deliveries WHERE open = 1 AND state = 'pending'
        UNION ALL SELECT handler, state, at FROM deliveries WHERE state IN ('dead', 'refused')
    ) GROUP BY handler, state ORDER BY handler, state
"""
KEEP_HANDLER = """
    INSERT INTO handlers (name, topic, give_up_us, flow) VALUES (?, ?, ?, ?)
    ON CONFLICT (name) DO UPDATE
    SET topic = excluded.topic, give_up_us = excluded.give_up_us, flow = excluded.flow
"""
HANDLERS = "SELECT name, topic, give_up_us, flow FROM handlers ORDER BY name"
FORGET_HANDLER = "DELETE FROM handlers WHERE name = ?"
DISCARD_ALL = """
    UPDATE deliveries SET state = 'discarded', open = 0, head = 0 WHERE handler = ? AND open = 1
"""
# From one name to the next, past however many deliveries each of them has.
UNKNOWN_HANDLERS = """
    WITH RECURSIVE found (name) AS (
        SELECT min(handler) FROM deliveries WHERE open = 1
        UNION ALL
        SELECT (SELECT min(handler) FROM deliveries WHERE open = 1 AND handler > found.name)
        FROM found WHERE found.name IS NOT NULL
    )
    SELECT name FROM found WHERE name IS NOT NULL AND name NOT IN (SELECT name FROM handlers)
"""
OLD_LINES = """
    SELECT key FROM deliveries INDEXED BY deliveries_heads
    WHERE head = 1 AND handler = ? AND not_before < ? ORDER BY not_before LIMIT ?
"""
EXPIRE = """
    UPDATE deliveries SET state = 'discarded', open = 0, head = 0, data = CAST('null' AS BLOB)
    WHERE handler = ? AND key = ? AND open = 1 AND at < ?
"""
REMOVE_LONE = """
    DELETE FROM deliveries WHERE position IN (
        SELECT position FROM deliveries INDEXED BY deliveries_lone
        WHERE seq = 0 AND open = 0 AND at < ? AND state IN ('sent', 'discarded') LIMIT ?
    )
"""


def keep_handlers(t: Transaction, rows: Sequence[HandlerRow]) -> None:
    t.db.executemany(KEEP_HANDLER, rows)


def handlers(db: sqlite3.Connection) -> list[HandlerRow]:
    return [HandlerRow(*row) for row in db.execute(HANDLERS).fetchall()]


def forget_handler(t: Transaction, name: str, actor: str, note: str) -> int | None:
    if t.db.execute(FORGET_HANDLER, (name,)).rowcount == 0:
        return None
    discarded = t.db.execute(DISCARD_ALL, (name,)).rowcount
    subject, details = messages.handler_subject(name), messages.handler_details(discarded)
    audit.note(t, actor, messages.FORGET, subject, note, details)
    return discarded


def post(t: Transaction, messages: Sequence[Message]) -> None:
    """Write the deliveries of messages in their order."""
    t.db.executemany(POST, messages)
    t.made_due = True


def is_any_due(db: sqlite3.Connection, handler: str, now: Instant) -> bool:
    """Tell whether there may be something to take."""
    return bool(db.execute(IS_ANY_DUE, (handler, now)).fetchone()[0])


def take(t: Transaction, handler: str, limit: int, hold_us: int) -> list[OutboxRow]:
    """Take due heads, the longest due first, and keep them from every other relay for a while."""
    _rank(t, handler)
    taken = t.db.execute(TAKE, (t.now, t.now + hold_us, limit, handler)).fetchall()
    return sorted(map(as_message_row, taken), key=lambda row: row.position)


def _rank(t: Transaction, handler: str) -> None:
    """Find the place of what others have written."""
    keys = t.db.execute(UNRANKED, (handler,)).fetchall()
    for (key,) in keys:
        t.db.execute(RANK, (handler, key))
    _raise(t, [(handler, key) for (key,) in keys])


def _raise(t: Transaction, lines: Iterable[Line]) -> None:
    t.db.executemany(RAISE_HEAD, dict.fromkeys(lines))


def hold(t: Transaction, rows: Sequence[OutboxRow], hold_us: int) -> list[OutboxRow]:
    """Keep what was taken for longer; return what nobody else has taken since."""
    held: list[OutboxRow] = []
    for row in rows:
        facts = (t.now + hold_us, *_identity(row), row.not_before)
        held += map(as_message_row, t.db.execute(HOLD, facts).fetchall())
    return held


def settle(t: Transaction, settled: Sequence[Settled]) -> None:
    """Record what became of deliveries, and let the next of each line come forward."""
    for end in settled:
        one = _identity(end)
        failed = (end.spends_try, end.not_before, end.error)
        if end.state == SENT:
            t.db.execute(DELIVERED, (t.now, end.answer, *one))
        elif end.state == PENDING:
            t.db.execute(TRY_AGAIN, (*failed, *one))
        else:
            t.db.execute(GIVE_UP, (*failed, end.state, end.blocks, *one))
    _raise(t, [(end.handler, end.message.key) for end in settled if end.state != PENDING])


def _identity(row: OutboxRow | Settled) -> tuple[bytes, int, int, str]:
    return row.message.job_id, row.message.seq, row.message.n, row.handler


def redrive(
    t: Transaction, row: OutboxRow, give_up_at: Instant | None, actor: str, note: str
) -> bool:
    """Let a delivery be tried again; it goes before everything younger of its line."""
    if t.db.execute(REDRIVE, (t.now, give_up_at, *_identity(row))).rowcount == 0:
        return False
    t.db.execute(DROP_HEAD, (row.handler, row.message.key))
    _acted(t, row, (actor, messages.REDRIVE, note))
    return True


def discard(t: Transaction, row: OutboxRow, actor: str, note: str) -> bool:
    """Give a delivery up; its line goes on without it."""
    if t.db.execute(DISCARD, _identity(row)).rowcount == 0:
        return False
    _acted(t, row, (actor, messages.DISCARD, note))
    return True


def _acted(t: Transaction, row: OutboxRow, said: tuple[str, str, str]) -> None:
    _raise(t, [(row.handler, row.message.key)])
    t.made_due = True
    actor, act, note = said
    subject, details = messages.subject_of(row.message), messages.details_of(row)
    audit.note(t, actor, act, subject, note, details)


def listed(
    db: sqlite3.Connection, where: DeliveryFilter, after: int = 0, limit: int = 100
) -> list[OutboxRow]:
    """Return deliveries by position upward."""
    given = {"handler = ?": where.handler, "key = ?": where.key}
    terms = {term: value for term, value in given.items() if value is not None}
    text = LIST + "".join(f" AND {term}" for term in terms)
    if where.states:
        text += f" AND state IN ({', '.join('?' * len(where.states))})"
    if where.states and set(where.states) <= set(GAVE_UP):
        text += " AND state IN ('dead', 'refused')"  # word for word as its index says it
    facts = (after, *terms.values(), *where.states, limit)
    found = db.execute(f"{text} ORDER BY position LIMIT ?", facts).fetchall()
    return list(map(as_message_row, found))


def counted(db: sqlite3.Connection) -> list[DeliveryCount]:
    """Count what is not over, by handler and state."""
    return [DeliveryCount(*row) for row in db.execute(COUNT).fetchall()]


def expire(t: Transaction, limit: int) -> int:
    """Discard what nobody has wanted for long, and remove what is over and has no job."""
    before, expired = t.now - KEPT_US, 0
    removed = t.db.execute(REMOVE_LONE, (before, limit)).rowcount
    for (handler,) in t.db.execute(UNKNOWN_HANDLERS).fetchall():
        _rank(t, handler)
        facts = (handler, before, max(0, limit - expired))
        for (key,) in t.db.execute(OLD_LINES, facts).fetchall():
            expired += t.db.execute(EXPIRE, (handler, key, before)).rowcount
            _raise(t, [(handler, key)])
    return removed + expired
