"""What the shared statements are run with: a connection, and a write that is under way."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Protocol

from ulak.clock import Instant

Row = tuple[Any, ...]


class Id(bytes):
    """Sixteen bytes that are sent as a UUID where the database has that type."""

    __slots__ = ()


class Session(Protocol):
    """Runs statements on one connection."""

    def execute(self, statement: str, facts: Any = ()) -> None:
        """Run a statement that answers nothing."""

    def rows(self, statement: str, facts: Any = ()) -> list[Row]:
        """Run a query and return its rows."""

    def row(self, statement: str, facts: Any = ()) -> Row | None:
        """Run a query and return its first row."""

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
    """Name the columns of a record, one after the other."""
    return ", ".join(record._fields)  # type: ignore[attr-defined] # every record is a named tuple


def places(record: type[Row]) -> str:
    """Write a place for each value of a record."""
    return ", ".join(f"%s::{_TYPES.get(name, 'text')}" for name in columns(record).split(", "))


def insert(table: str, record: type[Row]) -> str:
    """Write the statement that inserts a record."""
    return f"INSERT INTO ulak.{table} ({columns(record)}) VALUES ({places(record)})"


def put(table: str, record: type[Row], key: str) -> str:
    """Write the statement that inserts a record, or takes the place of the one of its key."""
    setting = ", ".join(f"{name} = excluded.{name}" for name in columns(record).split(", "))
    return f"{insert(table, record)} ON CONFLICT ({key}) DO UPDATE SET {setting}"
