"""Deliveries of events: written by the transaction that writes the events, removed by the one in
which a follower has got them."""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Iterable, Sequence

from ulak.clock import Instant
from ulak.core.delivery import MOST_EVENTS, make_delivery
from ulak.core.job import Event
from ulak.store.protocol import outbox
from ulak.store.protocol.outbox import Followed
from ulak.store.sql.session import JOB_COLUMNS, OUTBOX_COLUMNS, as_event, as_job, as_message_row
from ulak.store.sqlite.rows import PACKED_IDS, pack

FLOWS = "(SELECT group_concat(flow, ' ') FROM main.handlers WHERE flow IS NOT NULL)"
"""The flows that are followed, as one value: part of a statement that is run anyway."""
READ_FLOWS = f"SELECT {FLOWS}"
POST = """
    INSERT INTO main.deliveries (
        job_id, seq, n, key, topic, data, at, handler, not_before, head
    )
    SELECT ?1, ?2, ?3, ?4, ?5, ?6, ?7, h.name, ?7,
        NOT EXISTS (
            SELECT 1 FROM main.deliveries AS d
            WHERE d.handler = h.name AND d.key = ?4 AND d.open = 1
        )
    FROM main.handlers AS h WHERE h.flow = ?5
"""
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
RAISE_HEAD = """
    UPDATE main.deliveries SET head = 1 WHERE head <> 1 AND state = 'pending' AND position = (
        SELECT min(position) FROM main.deliveries WHERE handler = ? AND key = ? AND open = 1
    )
"""


def read_flows(db: sqlite3.Connection) -> frozenset[str]:
    """Return the flows that are followed."""
    return outbox.read_flows(db.execute(READ_FLOWS).fetchone()[0])


def post(db: sqlite3.Connection, events: Iterable[tuple[str, Event]]) -> None:
    """Write the deliveries of events, each with its flow, in their order."""
    db.executemany(POST, [make_delivery(flow, event) for flow, event in events])


def take(db: sqlite3.Connection, now: Instant, handler: str, limit: int) -> list[Followed]:
    """Read the events that are due; nobody else writes before they are finished."""
    due = db.execute(DUE_HEADS, (handler, now, limit)).fetchall()
    heads = outbox.choose_heads(list(map(as_message_row, due)))
    found = db.execute(LINES, (handler, json.dumps(list(heads)))).fetchall()
    lines = [(row[0], row[1], as_event(row[2:])) for row in found]
    ids = pack({event.job_id: None for *_, event in lines})
    jobs = {row[0]: as_job(row) for row in db.execute(JOBS, (ids,)).fetchall()}
    return outbox.gather_events(lines, heads, jobs)


def finish(db: sqlite3.Connection, taken: Sequence[Followed]) -> None:
    """Remove what a follower has got, and let the next of each job come forward."""
    db.executemany(REMOVE, [(position,) for one in taken for position in one.positions])
    db.executemany(RAISE_HEAD, [(one.head.handler, one.head.message.key) for one in taken])
