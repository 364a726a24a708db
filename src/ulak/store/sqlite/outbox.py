"""Deliveries: written by the commit that sends a message, taken in order per key by relays, and by
the transactions in which followers get events.

What both databases say in the same words is in `ulak.store.sql.outbox`.
"""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Iterable, Sequence

from ulak.clock import Instant
from ulak.core.delivery import KEPT_US, MOST_EVENTS, PENDING, SENT
from ulak.core.job import Event, Message
from ulak.store.protocol import OutboxRow, Settled
from ulak.store.protocol.outbox import Followed, choose_heads, gather_events
from ulak.store.sql import outbox
from ulak.store.sql.outbox import Line, Outbox, identity
from ulak.store.sql.session import JOB_COLUMNS, OUTBOX_COLUMNS, as_event, as_job, as_message_row
from ulak.store.sqlite.rows import PACKED_IDS, pack
from ulak.store.sqlite.session import SharedTransaction, Transaction, own, translate

UNRANKED, UNKNOWN_HANDLERS, OLD_LINES = map(
    translate, (outbox.UNRANKED, outbox.UNKNOWN_HANDLERS, outbox.OLD_LINES)
)
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
# The first open delivery of a line is its head, if it is pending.
RAISE_HEAD = """
    UPDATE main.deliveries SET head = 1 WHERE head <> 1 AND state = 'pending' AND position = (
        SELECT min(position) FROM main.deliveries WHERE handler = ? AND key = ? AND open = 1
    )
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


def post(t: Transaction, messages: Sequence[Message]) -> None:
    t.db.executemany(POST, messages)
    t.made_due = True


def is_any_due(db: sqlite3.Connection, handler: str, now: Instant) -> bool:
    return bool(db.execute(IS_ANY_DUE, (handler, now)).fetchone()[0])


def take(t: Transaction, handler: str, limit: int, hold_us: int) -> list[OutboxRow]:
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
    held: list[OutboxRow] = []
    for row in rows:
        facts = (t.now + hold_us, *identity(row), row.not_before)
        held += map(as_message_row, t.db.execute(HOLD, facts).fetchall())
    return held


def settle(t: Transaction, settled: Sequence[Settled]) -> None:
    """Record what became of deliveries, and let the next of each line come forward."""
    for end in settled:
        one = identity(end)
        failed = (end.spends_try, end.not_before, end.error)
        if end.state == SENT:
            t.db.execute(DELIVERED, (t.now, end.answer, *one))
        elif end.state == PENDING:
            t.db.execute(TRY_AGAIN, (*failed, *one))
        else:
            t.db.execute(GIVE_UP, (*failed, end.state, end.blocks, *one))
    _raise(t, [(end.handler, end.message.key) for end in settled if end.state != PENDING])


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


OUTBOX: Outbox[SharedTransaction] = Outbox(lambda _t, _keys: None, own(_raise))


DUE_HEADS = f"""
    SELECT {OUTBOX_COLUMNS} FROM main.deliveries INDEXED BY deliveries_heads
    WHERE head = 1 AND handler = ? AND not_before <= ? ORDER BY not_before, position LIMIT ?
"""
LINES = f"""
    SELECT d.key, d.position, {", ".join(f"e.{name}" for name in Event._fields)}
    FROM main.deliveries AS d JOIN main.events AS e ON e.job_id = d.job_id AND e.seq = d.seq
    WHERE d.handler = ? AND d.key IN (SELECT value FROM json_each(?)) AND d.open = 1
    ORDER BY d.key, d.position LIMIT {MOST_EVENTS + 1}
"""
JOBS = f"SELECT {JOB_COLUMNS} FROM main.jobs WHERE id IN {PACKED_IDS}"
REMOVE = "DELETE FROM main.deliveries WHERE position = ?"


def take_events(db: sqlite3.Connection, now: Instant, handler: str, limit: int) -> list[Followed]:
    """Read the events that are due; nobody else writes before they are finished."""
    due = db.execute(DUE_HEADS, (handler, now, limit)).fetchall()
    heads = choose_heads(list(map(as_message_row, due)))
    found = db.execute(LINES, (handler, json.dumps(list(heads)))).fetchall()
    lines = [(row[0], row[1], as_event(row[2:])) for row in found]
    ids = pack({event.job_id: None for *_, event in lines})
    jobs = {row[0]: as_job(row) for row in db.execute(JOBS, (ids,)).fetchall()}
    return gather_events(lines, heads, jobs)


def finish_events(db: sqlite3.Connection, taken: Sequence[Followed]) -> None:
    db.executemany(REMOVE, [(position,) for one in taken for position in one.positions])
    db.executemany(RAISE_HEAD, [(one.head.handler, one.head.message.key) for one in taken])
