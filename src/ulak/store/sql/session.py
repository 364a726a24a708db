"""What the shared statements are written with, and run with: a connection, and a write."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import Any, Protocol, TypeVar

from ulak.clock import Instant
from ulak.core.job import Event, JobRow, Message, Request, Result
from ulak.store.protocol import OutboxRow

Row = tuple[Any, ...]
R = TypeVar("R", bound=Row)


class Id(bytes):
    """Sixteen bytes that are sent as a UUID where the database has that type."""

    __slots__ = ()


class Session(Protocol):
    """Runs statements on one connection."""

    def execute(self, statement: str, facts: Any = ()) -> None: ...
    def rows(self, statement: str, facts: Any = ()) -> list[Row]: ...
    def row(self, statement: str, facts: Any = ()) -> Row | None: ...
    def touch(self, statement: str, facts: Any = ()) -> int:
        """Run a write and return how many rows it touched."""


class Transaction(Protocol):
    """What one write sees and leaves."""

    made_due: bool

    @property
    def db(self) -> Session: ...

    @property
    def now(self) -> Instant: ...


_NUMBERS = (
    "at", "burst", "created_at", "declared", "declared_burst", "declared_n", "declared_per_us",
    "expires_at", "expires_us", "filled_at", "flow_version", "give_up_us", "keyed", "level", "n",
    "next_at", "paused_at", "per_us", "priority", "ready_at", "retry_after_us", "revoked_at",
    "until_at", "used_at", "version", "weight",
)  # fmt: skip
_TYPES: Mapping[str, str] = {**dict.fromkeys(_NUMBERS, "bigint"), "payload": "bytea"}


def columns(record: type[Row]) -> str:
    return ", ".join(record._fields)  # type: ignore[attr-defined] # every record is a named tuple


def places(record: type[Row]) -> str:
    return ", ".join(f"%s::{_TYPES.get(name, 'text')}" for name in columns(record).split(", "))


def select(table: str, record: type[Row], rest: str) -> str:
    return f"SELECT {columns(record)} FROM ulak.{table} {rest}"


def insert(table: str, record: type[Row]) -> str:
    return f"INSERT INTO ulak.{table} ({columns(record)}) VALUES ({places(record)})"


def put(table: str, record: type[Row], key: str) -> str:
    setting = ", ".join(f"{name} = excluded.{name}" for name in columns(record).split(", "))
    return f"{insert(table, record)} ON CONFLICT ({key}) DO UPDATE SET {setting}"


def fetch(db: Session, record: type[R], statement: str, facts: Any = ()) -> list[R]:
    return [tuple.__new__(record, row) for row in db.rows(statement, facts)]


def fetch_one(db: Session, record: type[R], statement: str, facts: Any = ()) -> R | None:
    row = db.row(statement, facts)
    return None if row is None else tuple.__new__(record, row)


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
    return OutboxRow(Message(*row[:7]), *row[7:])


ADD_AUDIT = """
    INSERT INTO ulak.audit (at, actor, act, subject, note, details)
    VALUES (%s::bigint, %s::text, %s::text, %s::text, %s::text, %s::text)
"""


def write_audit(
    t: Transaction, actor: str, act: str, subject: str, note: str | None, details: str
) -> None:
    t.db.execute(ADD_AUDIT, (t.now, actor, act, subject, note or None, details))
