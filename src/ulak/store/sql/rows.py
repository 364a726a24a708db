"""Rows of a database as the records of the core."""

from __future__ import annotations

from functools import partial

from ulak.core.job import Event, JobRow, Message, Request, Result
from ulak.store.protocol import OutboxRow
from ulak.store.sql.session import Row, columns

as_job = partial(tuple.__new__, JobRow)
as_event = partial(tuple.__new__, Event)
as_result = partial(tuple.__new__, Result)
as_request = partial(tuple.__new__, Request)

JOB_COLUMNS = columns(JobRow)
EVENT_COLUMNS = columns(Event)
RESULT_COLUMNS = columns(Result)
REQUEST_COLUMNS = columns(Request)
OUTBOX_COLUMNS = ", ".join((*Message._fields, *OutboxRow._fields[1:]))


def as_message_row(row: Row) -> OutboxRow:
    """Read a delivery."""
    return OutboxRow(Message(*row[:7]), *row[7:])
