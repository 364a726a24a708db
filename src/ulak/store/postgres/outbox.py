"""Deliveries: written by the commit that sends a message, taken by relays in order per key.

Which delivery is the head of its line follows from what others post and settle at the same time,
so a transaction that does either holds the keys that it touches until it has committed. A caller's
own transaction holds none: its deliveries find their place when they are taken. What both databases
say in the same words is in `ulak.store.sql.outbox`.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from ulak.clock import Instant
from ulak.core.delivery import KEPT_US, PENDING, SENT
from ulak.core.job import Message
from ulak.store.postgres.connections import Session, Transaction
from ulak.store.postgres.deliveries import HOLD_KEYS, RAISE_HEADS, bind, posting
from ulak.store.postgres.values import Blobs, Ids, Numbers, Texts
from ulak.store.protocol import OutboxRow, Settled
from ulak.store.sql.outbox import OLD_LINES, UNKNOWN_HANDLERS, UNRANKED, Line, Outbox
from ulak.store.sql.rows import OUTBOX_COLUMNS, as_message_row

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
    """Write the deliveries of messages in their order."""
    if not messages:
        return
    _hold(t, (m.key for m in messages))
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
        t.db.execute(RANK, (handler, _hold(t, keys)))
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
        _hold(t, (key for _, key in over))
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
