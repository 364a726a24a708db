"""Deliveries of events: written by the transaction that writes the events, removed by the one in
which a follower has got them.

Only the head of a line is locked while a follower has its events: that keeps every other follower
of the name away, and nobody who writes further events waits for it.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

from ulak.clock import Instant
from ulak.core.delivery import MOST_EVENTS, make_delivery
from ulak.core.job import Event
from ulak.store.postgres.deliveries import HOLD_KEYS, RAISE_HEADS, bind, posting
from ulak.store.postgres.values import (
    JOB_COLUMNS,
    OUTBOX_COLUMNS,
    Ids,
    Numbers,
    Texts,
    as_event,
    as_job,
    as_message_row,
)
from ulak.store.protocol import outbox
from ulak.store.protocol.outbox import Followed

if TYPE_CHECKING:
    from ulak.store.postgres.connections import Session

FLOWS = "(SELECT string_agg(flow, ' ') FROM ulak.handlers WHERE flow IS NOT NULL)"
"""The flows that are followed, as one value: part of a statement that is run anyway."""

_WANTED = "JOIN ulak.handlers AS h ON h.flow = m.topic"
POST, POST_UNRANKED = (posting(_WANTED, ranked=ranked) for ranked in (True, False))

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
REMOVE = "DELETE FROM ulak.deliveries WHERE position = ANY (%s::bigint[])"


def post(db: Session, events: Iterable[tuple[str, Event]], *, ranked: bool) -> None:
    """Write the deliveries of events, each with its flow, in their order.

    The first event of a job is written with it (`intake.INSERT`).
    """
    deliveries = [make_delivery(flow, event) for flow, event in events]
    if ranked:
        db.execute(HOLD_KEYS, (Texts(list({delivery.key: None for delivery in deliveries})),))
    db.execute(POST if ranked else POST_UNRANKED, bind(deliveries))


def take(db: Session, now: Instant, handler: str, limit: int) -> list[Followed]:
    """Take the events that are due, past those that others have taken."""
    due = db.rows(DUE_HEADS, (handler, now, limit))
    heads = outbox.choose_heads(list(map(as_message_row, due)))
    if not heads:
        return []
    found = db.rows(LINES, (handler, Texts(list(heads))))
    lines = [(row[0], row[1], as_event(row[2:])) for row in found]
    ids = Ids(list({event.job_id: None for *_, event in lines}))
    jobs = {row[0]: as_job(row) for row in db.rows(JOBS, (ids,))}
    return outbox.gather_events(lines, heads, jobs)


def finish(db: Session, taken: Sequence[Followed]) -> None:
    """Remove what a follower has got, and let the next of each job come forward."""
    keys = Texts([one.head.message.key for one in taken])
    db.execute(HOLD_KEYS, (keys,))
    db.execute(REMOVE, (Numbers([position for one in taken for position in one.positions]),))
    db.execute(RAISE_HEADS, (Texts([one.head.handler for one in taken]), keys))
