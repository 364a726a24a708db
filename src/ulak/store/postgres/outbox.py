"""Outgoing messages: written by the commit that emits them, taken by relays in order per key.

Who is the head of a key follows from what others post and settle at the same time, so whoever
does either holds the keys that he touches until he has committed.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from ulak.clock import Instant
from ulak.core.job import Message
from ulak.store import messages
from ulak.store.postgres import audit
from ulak.store.postgres.connections import Session, Transaction
from ulak.store.postgres.values import (
    OUTBOX_COLUMNS,
    Blobs,
    Id,
    Ids,
    Numbers,
    Texts,
    as_message_row,
)
from ulak.store.protocol import OutboxRow

HOLD_KEYS = """
    SELECT pg_advisory_xact_lock(hash) FROM (
        SELECT DISTINCT hashtextextended('ulak ' || key, 0) AS hash
        FROM unnest(%s::text[]) AS k (key) ORDER BY hash
    ) AS hashes
"""
POST = """
    INSERT INTO ulak.outbox (job_id, seq, n, key, topic, data, at, not_before, head)
    SELECT m.job_id, m.seq, m.n, m.key, m.topic, m.data, m.at, m.at,
        (first_of_key AND NOT EXISTS (
            SELECT FROM ulak.outbox AS o
            WHERE o.key = m.key AND o.sent_at IS NULL AND o.dead = 0
        ))::integer
    FROM (
        SELECT *, row_number() OVER (PARTITION BY key ORDER BY line) = 1 AS first_of_key
        FROM unnest(
            %s::uuid[], %s::bigint[], %s::bigint[], %s::text[], %s::text[], %s::bytea[],
            %s::bigint[]
        ) WITH ORDINALITY AS m (job_id, seq, n, key, topic, data, at, line)
    ) AS m
    ORDER BY m.line
"""
TAKE = f"""
    UPDATE ulak.outbox SET not_before = %s::bigint WHERE position = ANY (ARRAY(
        SELECT position FROM ulak.outbox WHERE head = 1 AND not_before <= %s::bigint
        ORDER BY not_before, position LIMIT %s::bigint FOR UPDATE SKIP LOCKED
    ))
    RETURNING {OUTBOX_COLUMNS}, position
"""
# What another relay settles at this moment is passed over: nobody waits in a circle.
HOLD = f"""
    UPDATE ulak.outbox SET not_before = %s::bigint WHERE position = ANY (ARRAY(
        SELECT o.position
        FROM unnest(%s::uuid[], %s::bigint[], %s::bigint[], %s::bigint[])
            AS m (job_id, seq, n, not_before)
        JOIN ulak.outbox AS o ON o.job_id = m.job_id AND o.seq = m.seq AND o.n = m.n
        WHERE o.not_before = m.not_before AND o.sent_at IS NULL AND o.dead = 0
        FOR UPDATE OF o SKIP LOCKED
    ))
    RETURNING {OUTBOX_COLUMNS}
"""
SENT = """
    UPDATE ulak.outbox AS o SET sent_at = %s::bigint, dead = 0, head = 0
    FROM unnest(%s::uuid[], %s::bigint[], %s::bigint[]) AS m (job_id, seq, n)
    WHERE o.job_id = m.job_id AND o.seq = m.seq AND o.n = m.n AND o.sent_at IS NULL
"""
FAILED = """
    UPDATE ulak.outbox AS o SET tries = tries + 1, not_before = m.not_before, dead = m.dead,
                                head = CASE WHEN m.dead = 1 THEN 0 ELSE head END
    FROM unnest(%s::uuid[], %s::bigint[], %s::bigint[], %s::bigint[], %s::bigint[])
        AS m (job_id, seq, n, not_before, dead)
    WHERE o.job_id = m.job_id AND o.seq = m.seq AND o.n = m.n AND o.sent_at IS NULL
"""
REVIVE = """
    UPDATE ulak.outbox SET dead = 0, tries = 0, not_before = %s::bigint
    WHERE job_id = %s::uuid AND seq = %s::bigint AND n = %s::bigint AND dead = 1
"""
# The oldest message that is neither sent nor dead is the head of its key, and no other is.
DROP_HEADS = """
    UPDATE ulak.outbox SET head = 0
    WHERE key = ANY (%s::text[]) AND sent_at IS NULL AND dead = 0 AND head = 1
"""
RAISE_HEADS = """
    UPDATE ulak.outbox SET head = 1 WHERE head = 0 AND position IN (
        SELECT (
            SELECT min(position) FROM ulak.outbox
            WHERE key = k.key AND sent_at IS NULL AND dead = 0
        ) FROM unnest(%s::text[]) AS k (key)
    )
"""
DEAD = f"SELECT {OUTBOX_COLUMNS} FROM ulak.outbox WHERE dead = 1 ORDER BY position LIMIT %s::bigint"


def _hold(db: Session, keys: Iterable[str]) -> Texts:
    held = Texts(list(dict.fromkeys(keys)))
    db.execute(HOLD_KEYS, (held,))
    return held


def post(db: Session, messages: Sequence[Message]) -> None:
    """Write messages in their order."""
    if not messages:
        return
    _hold(db, (m.key for m in messages))
    ids, seqs, numbers, keys, topics, data, dates = zip(*messages, strict=True)
    db.execute(
        POST,
        (
            Ids(ids), Numbers(seqs), Numbers(numbers), Texts(keys), Texts(topics), Blobs(data),
            Numbers(dates),
        ),
    )  # fmt: skip


def take(t: Transaction, limit: int, hold_us: int) -> list[OutboxRow]:
    """Take due heads, the longest due first, and keep them from every other relay for a while."""
    taken = t.db.rows(TAKE, (t.now + hold_us, t.now, limit))
    taken.sort(key=lambda row: row[-1])
    return [as_message_row(row[:-1]) for row in taken]


def hold(t: Transaction, rows: Sequence[OutboxRow], hold_us: int) -> list[OutboxRow]:
    """Keep taken messages for longer; return those that nobody else has taken since."""
    dates = Numbers([row.not_before for row in rows])
    facts = (t.now + hold_us, *_identities([row.message for row in rows]), dates)
    return [as_message_row(row) for row in t.db.rows(HOLD, facts)]


def settle(
    t: Transaction,
    sent: Sequence[Message],
    failed: Sequence[tuple[Message, Instant, bool]],
) -> None:
    """Record what became of messages, and let the next of each key come forward."""
    done = [m.key for m in sent] + [m.key for m, _, dead in failed if dead]
    if done:
        _hold(t.db, done)
    if sent:
        t.db.execute(SENT, (t.now, *_identities(sent)))
    if failed:
        dates = Numbers([at for _, at, _ in failed])
        dead = Numbers([int(gave_up) for _, _, gave_up in failed])
        t.db.execute(FAILED, (*_identities([m for m, _, _ in failed]), dates, dead))
    if done:
        t.db.execute(RAISE_HEADS, (Texts(sorted(set(done))),))


def _identities(messages: Sequence[Message]) -> tuple[Ids, Numbers, Numbers]:
    return (
        Ids([m.job_id for m in messages]),
        Numbers([m.seq for m in messages]),
        Numbers([m.n for m in messages]),
    )


def revive(t: Transaction, message: Message, actor: str, note: str) -> bool:
    """Let a dead message be tried again; it goes before everything younger of its key."""
    key = _hold(t.db, [message.key])
    facts = (t.now, Id(message.job_id), message.seq, message.n)
    if t.db.touch(REVIVE, facts) == 0:
        return False
    t.db.execute(DROP_HEADS, (key,))
    t.db.execute(RAISE_HEADS, (key,))
    subject, details = messages.subject_of(message), messages.details_of(message)
    audit.note(t, actor, messages.REVIVE, subject, note, details)
    return True


def dead(db: Session, limit: int) -> list[OutboxRow]:
    """Return messages that gave up, the oldest first."""
    return [as_message_row(row) for row in db.rows(DEAD, (limit,))]
