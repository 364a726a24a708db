"""Lines of the trail and results, as they are written by claims, commits and intake."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterable, Sequence
from operator import itemgetter

from ulak.core.job import Event, Result
from ulak.store.sqlite.rows import NULLABLE_NUMBER, Batch, Row, Spread, inserting, or_absent

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
WRITE_RESULTS = Batch(
    "INSERT INTO results (job_id, round, stage, name, data) VALUES",
    "(?, ?, ?, ?, ?)",
    "ON CONFLICT (job_id, round, stage, name) DO UPDATE SET data = excluded.data",
)


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


def keep(db: sqlite3.Connection, results: Sequence[Result]) -> None:
    """Write results; a later one of the same name takes the place of the earlier."""
    rows = [(bytearray(r.job_id), r.round, r.stage, r.name, bytearray(r.data)) for r in results]
    WRITE_RESULTS.write(db, rows)
