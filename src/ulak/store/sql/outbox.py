"""Deliveries and their handlers, as far as both databases say it in the same words."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Generic, TypeVar

from ulak.clock import Instant
from ulak.core.delivery import EVENT, GAVE_UP
from ulak.store.protocol import (
    DeliveryCount,
    DeliveryFilter,
    HandlerRow,
    OutboxRow,
    Settled,
    outbox,
)
from ulak.store.sql.session import (
    OUTBOX_COLUMNS,
    Id,
    Session,
    Transaction,
    as_message_row,
    fetch,
    put,
    select,
    write_audit,
)

Tx = TypeVar("Tx", bound=Transaction)

Line = tuple[str, str]

UNRANKED = """
    SELECT DISTINCT key FROM ulak.deliveries /* INDEXED BY deliveries_unranked */
    WHERE head = -1 AND handler = %s::text
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
KEEP_HANDLER = put("handlers", HandlerRow, "name")
HANDLERS = select("handlers", HandlerRow, "ORDER BY name")
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
    SELECT key FROM ulak.deliveries /* INDEXED BY deliveries_heads */
    WHERE head = 1 AND handler = %s::text AND not_before < %s::bigint
    ORDER BY not_before LIMIT %s::bigint
"""


@dataclass(frozen=True, slots=True)
class Outbox(Generic[Tx]):
    """The acts of operators that change which delivery of a line comes next."""

    hold_keys: Callable[[Tx, Sequence[str]], object]
    """Lets nobody else touch the lines of these keys until the transaction has ended."""
    raise_heads: Callable[[Tx, Sequence[Line]], None]

    def redrive(
        self, t: Tx, row: OutboxRow, give_up_at: Instant | None, actor: str, note: str
    ) -> bool:
        """Let a delivery be tried again; it goes before everything younger of its line."""
        self.hold_keys(t, [row.message.key])
        if t.db.touch(REDRIVE, (t.now, give_up_at, *identity(row))) == 0:
            return False
        t.db.execute(DROP_HEAD, (row.handler, row.message.key))
        self._audit(t, row, actor, outbox.REDRIVE, note)
        return True

    def discard(self, t: Tx, row: OutboxRow, actor: str, note: str) -> bool:
        """Give a delivery up; its line goes on without it."""
        if row.message.n == EVENT:
            t.db.execute(HOLD_HEAD, (row.handler, row.message.key))
        self.hold_keys(t, [row.message.key])
        if t.db.touch(DISCARD, identity(row)) == 0:
            return False
        self._audit(t, row, actor, outbox.DISCARD, note)
        return True

    def _audit(self, t: Tx, row: OutboxRow, actor: str, act: str, note: str) -> None:
        self.raise_heads(t, [(row.handler, row.message.key)])
        t.made_due = True
        subject, details = outbox.message_subject(row.message), outbox.message_details(row)
        write_audit(t, actor, act, subject, note, details)


def identity(row: OutboxRow | Settled) -> tuple[Id, int, int, str]:
    return Id(row.message.job_id), row.message.seq, row.message.n, row.handler


handlers = partial(fetch, record=HandlerRow, statement=HANDLERS)
counted = partial(fetch, record=DeliveryCount, statement=COUNT)


def keep_handlers(t: Transaction, rows: Sequence[HandlerRow]) -> None:
    for row in sorted(set(rows) - set(handlers(t.db)), key=lambda row: row.name):
        t.db.execute(KEEP_HANDLER, tuple(row))


def forget_handler(t: Transaction, name: str, actor: str, note: str) -> int | None:
    if t.db.touch(FORGET_HANDLER, (name,)) == 0:
        return None
    t.db.execute(HOLD_HEADS, (name,))
    discarded = t.db.touch(DISCARD_ALL, (name,))
    subject, details = outbox.handler_subject(name), outbox.handler_details(discarded)
    write_audit(t, actor, outbox.FORGET, subject, note, details)
    return discarded


def listed(db: Session, where: DeliveryFilter, after: int = 0, limit: int = 100) -> list[OutboxRow]:
    given = {"handler = %s::text": where.handler, "key = %s::text": where.key}
    terms = {term: value for term, value in given.items() if value is not None}
    text = LIST + "".join(f" AND {term}" for term in terms)
    if where.states:
        text += f" AND state IN ({', '.join(['%s::text'] * len(where.states))})"
    if where.states and set(where.states) <= set(GAVE_UP):
        text += " AND state IN ('dead', 'refused')"  # word for word as its index says it
    facts = (after, *terms.values(), *where.states, limit)
    found = db.rows(f"{text} ORDER BY position LIMIT %s::bigint", facts)
    return list(map(as_message_row, found))
