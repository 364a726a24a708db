"""Statements over many rows, and rows as the records of the core.

A statement is compiled for a few numbers of rows and reused. One statement that writes a
hundred rows lets go of the interpreter once, where a hundred statements let go of it a hundred
times and must each time win it back from the thread that decides.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Iterable, Sequence
from functools import partial
from itertools import chain
from typing import Any

from ulak.core.job import Event, JobRow, Message, Payload, Request, Result
from ulak.store.protocol import OutboxRow

# Few sizes, so that few statements are compiled; the largest keeps a statement's program small.
SIZES = (128, 32, 8, 2, 1)

Row = tuple[Any, ...]

as_job = partial(tuple.__new__, JobRow)
as_event = partial(tuple.__new__, Event)
as_result = partial(tuple.__new__, Result)
as_request = partial(tuple.__new__, Request)

JOB_COLUMNS = ", ".join(JobRow._fields)
OUTBOX_COLUMNS = ", ".join((*Message._fields, "sent_at", "tries", "not_before", "dead"))


class Batch:
    """One statement with a list of rows in its middle."""

    def __init__(self, head: str, width: int, tail: str = "") -> None:
        row = "(" + ",".join("?" * width) + ")"
        self._statements = [
            (size, f"{head} {','.join([row] * size)} {tail}".strip()) for size in SIZES
        ]

    def write(self, db: sqlite3.Connection, rows: Sequence[Row]) -> int:
        """Run the statement over all rows; answer how many rows of the table it touched."""
        touched = at = 0
        left = len(rows)
        for size, statement in self._statements:
            while left >= size:
                part = tuple(chain.from_iterable(rows[at : at + size]))
                touched += db.execute(statement, part).rowcount
                at += size
                left -= size
        return touched

    def read(self, db: sqlite3.Connection, rows: Sequence[Row]) -> list[Row]:
        """Run the statement over all rows; answer everything that it returned."""
        found: list[Row] = []
        at = 0
        left = len(rows)
        for size, statement in self._statements:
            while left >= size:
                part = tuple(chain.from_iterable(rows[at : at + size]))
                found += db.execute(statement, part).fetchall()
                at += size
                left -= size
        return found


def insert(table: str, columns: Iterable[str], tail: str = "") -> Batch:
    """Make the statement that inserts rows with these columns."""
    names = tuple(columns)
    return Batch(f"INSERT INTO {table} ({', '.join(names)}) VALUES", len(names), tail)


def ones(values: Iterable[Any]) -> list[Row]:
    """Make one-column rows."""
    return [(value,) for value in values]


def as_message_row(row: Row) -> OutboxRow:
    """Read a line of the outbox."""
    return OutboxRow(Message(*row[:7]), *row[7:])


INSERT_JOBS = insert("jobs", JobRow._fields)
INSERT_PAYLOADS = insert("payloads", ("job_id", *Payload._fields))
INSERT_EVENTS = insert("events", Event._fields)
WRITE_RESULTS = insert(
    "results",
    Result._fields,
    "ON CONFLICT (job_id, round, stage, name) DO UPDATE SET data = excluded.data",
)
