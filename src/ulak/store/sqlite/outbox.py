"""Outgoing messages: written by the commit that emits them, taken by relays in order per key."""

from __future__ import annotations

import sqlite3
from collections.abc import Sequence

from ulak.clock import Instant
from ulak.core.job import Message
from ulak.store import messages
from ulak.store.protocol import OutboxRow
from ulak.store.sqlite import audit
from ulak.store.sqlite.rows import OUTBOX_COLUMNS, as_message_row
from ulak.store.sqlite.writer import Transaction

POST = """
    INSERT INTO outbox (job_id, seq, n, key, topic, data, at, not_before, head)
    VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?7, NOT EXISTS (
        SELECT 1 FROM outbox WHERE key = ?4 AND sent_at IS NULL AND dead = 0
    ))
"""
TAKE = f"""
    UPDATE outbox SET not_before = ?2 WHERE position IN (
        SELECT position FROM outbox INDEXED BY outbox_heads
        WHERE head = 1 AND not_before <= ?1 ORDER BY not_before, position LIMIT ?3
    )
    RETURNING {OUTBOX_COLUMNS}, position
"""
HOLD = f"""
    UPDATE outbox SET not_before = ?
    WHERE job_id = ? AND seq = ? AND n = ? AND not_before = ? AND sent_at IS NULL AND dead = 0
    RETURNING {OUTBOX_COLUMNS}
"""
SENT = """
    UPDATE outbox SET sent_at = ?, dead = 0, head = 0
    WHERE job_id = ? AND seq = ? AND n = ? AND sent_at IS NULL
"""
FAILED = """
    UPDATE outbox SET tries = tries + 1, not_before = ?1, dead = ?2,
                      head = CASE WHEN ?2 THEN 0 ELSE head END
    WHERE job_id = ?3 AND seq = ?4 AND n = ?5 AND sent_at IS NULL
"""
REVIVE = """
    UPDATE outbox SET dead = 0, tries = 0, not_before = ?
    WHERE job_id = ? AND seq = ? AND n = ? AND dead = 1
"""
# The oldest message that is neither sent nor dead is the head of its key, and no other is.
DROP_HEAD = "UPDATE outbox SET head = 0 WHERE key = ? AND sent_at IS NULL AND dead = 0 AND head = 1"
RAISE_HEAD = """
    UPDATE outbox SET head = 1 WHERE head = 0 AND position = (
        SELECT min(position) FROM outbox WHERE key = ? AND sent_at IS NULL AND dead = 0
    )
"""
DEAD = f"SELECT {OUTBOX_COLUMNS} FROM outbox WHERE dead = 1 ORDER BY position LIMIT ?"


def post(t: Transaction, messages: Sequence[Message]) -> None:
    """Write messages in their order."""
    t.db.executemany(POST, messages)


def take(t: Transaction, limit: int, hold_us: int) -> list[OutboxRow]:
    """Take due heads, the longest due first, and keep them from every other relay for a while."""
    taken = t.db.execute(TAKE, (t.now, t.now + hold_us, limit)).fetchall()
    taken.sort(key=lambda row: row[-1])
    return [as_message_row(row[:-1]) for row in taken]


def hold(t: Transaction, rows: Sequence[OutboxRow], hold_us: int) -> list[OutboxRow]:
    """Keep taken messages for longer; return those that nobody else has taken since."""
    held: list[OutboxRow] = []
    for row in rows:
        m = row.message
        facts = (t.now + hold_us, m.job_id, m.seq, m.n, row.not_before)
        held += map(as_message_row, t.db.execute(HOLD, facts).fetchall())
    return held


def settle(
    t: Transaction,
    sent: Sequence[Message],
    failed: Sequence[tuple[Message, Instant, bool]],
) -> None:
    """Record what became of messages, and let the next of each key come forward."""
    t.db.executemany(SENT, [(t.now, m.job_id, m.seq, m.n) for m in sent])
    t.db.executemany(FAILED, [(at, int(dead), m.job_id, m.seq, m.n) for m, at, dead in failed])
    done = dict.fromkeys(m.key for m in sent)
    done.update(dict.fromkeys(m.key for m, _, dead in failed if dead))
    t.db.executemany(RAISE_HEAD, [(key,) for key in done])


def revive(t: Transaction, message: Message, actor: str, note: str) -> bool:
    """Let a dead message be tried again; it goes before everything younger of its key."""
    facts = (t.now, message.job_id, message.seq, message.n)
    if t.db.execute(REVIVE, facts).rowcount == 0:
        return False
    t.db.execute(DROP_HEAD, (message.key,))
    t.db.execute(RAISE_HEAD, (message.key,))
    subject, details = messages.subject_of(message), messages.details_of(message)
    audit.note(t, actor, messages.REVIVE, subject, note, details)
    return True


def dead(db: sqlite3.Connection, limit: int) -> list[OutboxRow]:
    """Return messages that gave up, the oldest first."""
    return [as_message_row(row) for row in db.execute(DEAD, (limit,)).fetchall()]
