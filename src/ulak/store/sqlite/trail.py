"""Events, and what hangs on them: results, chains of proofs, deliveries to followers."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterable, Sequence
from itertools import groupby
from operator import itemgetter

from ulak.core.delivery import make_delivery
from ulak.core.job import Event, Result
from ulak.store.batches import FIRST_HASH, Link, linked
from ulak.store.protocol import outbox
from ulak.store.sql.session import Row
from ulak.store.sqlite.rows import (
    NULLABLE_NUMBER,
    PACKED_IDS,
    Batch,
    Lone,
    Spread,
    inserting,
    or_absent,
)

_SHARED = (
    "kind", "from_state", "to_state", "actor", "code", "message", "details", "round", "attempt",
    "worker", "emitted",
)  # fmt: skip
_shared = itemgetter(*(Event._fields.index(name) for name in _SHARED))

INSERT_EVENTS = Spread(
    _SHARED,
    inserting(
        "events",
        {
            "job_id": "?",
            "seq": "?",
            "token": "?",
            "started_at": NULLABLE_NUMBER,
            "at": "?",
            "commit_id": "?",
        },
    ),
)
INSERT_EVENT = Lone("events", Event._fields)
WRITE_RESULTS = Batch(
    "INSERT INTO results (job_id, round, stage, name, data) VALUES",
    "(?, ?, ?, ?, ?)",
    "ON CONFLICT (job_id, round, stage, name) DO UPDATE SET data = excluded.data",
)

ANY_PROOFS = "SELECT EXISTS (SELECT 1 FROM proof_heads)"
JOBS_WITH_PROOFS = f"SELECT job_id FROM proofs WHERE seq = 1 AND job_id IN {PACKED_IDS}"


def append(db: sqlite3.Connection, events: Iterable[Event]) -> None:
    """Write events; a number that the trail has already is refused by its key."""
    groups: dict[Row, list[Row]] = {}
    for event in events:
        line = (
            bytearray(event.job_id), event.seq, event.token, or_absent(event.started_at),
            event.at, bytearray(event.commit_id),
        )  # fmt: skip
        groups.setdefault(_shared(event), []).append(line)
    INSERT_EVENTS.write(db, groups)


def append_one(db: sqlite3.Connection, event: Event) -> None:
    """Write the only event of a transaction."""
    job_id, *facts, commit_id = event
    INSERT_EVENT.write(db, (bytearray(job_id), *facts, bytearray(commit_id)))


def keep(db: sqlite3.Connection, results: Sequence[Result]) -> None:
    """Write results; a later one of the same name takes the place of the earlier."""
    rows = [(bytearray(r.job_id), r.round, r.stage, r.name, bytearray(r.data)) for r in results]
    WRITE_RESULTS.write(db, rows)


PROOF_HEAD = "SELECT +proof_id, +hash FROM main.proof_heads WHERE tenant = ?"
ADD_PROOF = """
    INSERT INTO main.proofs (tenant, proof_id, job_id, seq, body, hash) VALUES (?, ?, ?, ?, ?, ?)
"""
SET_PROOF_HEAD = """
    INSERT INTO main.proof_heads (tenant, proof_id, hash) VALUES (?, ?, ?)
    ON CONFLICT (tenant) DO UPDATE SET proof_id = excluded.proof_id, hash = excluded.hash
"""


def chain(db: sqlite3.Connection, links: Iterable[Link]) -> None:
    for tenant, own in groupby(sorted(links), key=itemgetter(0)):
        number, link = db.execute(PROOF_HEAD, (tenant,)).fetchone() or (0, FIRST_HASH)
        rows = [(tenant, *facts) for facts in linked(number, link, own)]
        db.executemany(ADD_PROOF, rows)
        db.execute(SET_PROOF_HEAD, (tenant, rows[-1][1], rows[-1][-1]))


FLOWS = "(SELECT group_concat(flow, ' ') FROM main.handlers WHERE flow IS NOT NULL)"
"""The flows that are followed, as one value: part of a statement that is run anyway."""


READ_FLOWS = f"SELECT {FLOWS}"
DELIVER = """
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


def read_flows(db: sqlite3.Connection) -> frozenset[str]:
    return outbox.read_flows(db.execute(READ_FLOWS).fetchone()[0])


def deliver(db: sqlite3.Connection, events: Iterable[tuple[str, Event]]) -> None:
    db.executemany(DELIVER, [make_delivery(flow, event) for flow, event in events])
