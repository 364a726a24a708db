"""Lines of the trail and results, as they are written by claims, commits and intake."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterable, Sequence
from operator import itemgetter

from ulak.core.change import proof_body
from ulak.core.job import Event, JobRow, Result
from ulak.store.sql.session import Row
from ulak.store.sqlite.rows import (
    NULLABLE_NUMBER,
    PACKED_IDS,
    Batch,
    Lone,
    Spread,
    inserting,
    or_absent,
    pack,
)
from ulak.store.sqlite.writer import Transaction

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


def append_own(t: Transaction, written: Sequence[tuple[JobRow, Event]]) -> None:
    """Write events that no change brought, each with its job, and prove what must be proved.

    A store knows no flows. A job whose first event has a proof is of a flow with proofs.
    """
    if not written:
        return
    events = [event for _, event in written]
    append(t.db, events)
    t.follow((job.flow, [event]) for job, event in written)
    if not t.db.execute(ANY_PROOFS).fetchone()[0]:
        return
    ids = pack(event.job_id for event in events)
    proven = {job_id for (job_id,) in t.db.execute(JOBS_WITH_PROOFS, (ids,)).fetchall()}
    for job, event in written:
        if event.job_id in proven:
            t.prove(job.tenant, [event], [proof_body(event)])


def keep(db: sqlite3.Connection, results: Sequence[Result]) -> None:
    """Write results; a later one of the same name takes the place of the earlier."""
    rows = [(bytearray(r.job_id), r.round, r.stage, r.name, bytearray(r.data)) for r in results]
    WRITE_RESULTS.write(db, rows)
