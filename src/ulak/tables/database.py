"""Statements on the connection of an open transaction, in the words of either database.

A statement is written once: values as `?`, tables as `{schema}.name`, and `{for_update}` where a
row is to be locked. How the connection is set up - row factories above all - does not matter.
"""

from __future__ import annotations

import sqlite3
from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from typing import Any, Final

from ulak.errors import NotSupported, StoreError
from ulak.store.protocol import Features

Row = tuple[Any, ...]


class Database(ABC):
    """One of the two; `database_of` tells which."""

    name: str
    schema: str
    for_update: str
    """What locks the rows that a SELECT finds, until the transaction ends."""
    mark: str

    def __init__(self) -> None:
        self._written: dict[str, str] = {}

    def execute(self, connection: Any, statement: str, *values: Any) -> list[Row]:
        """Run one statement and return its rows; `StoreError`: the database cannot answer now,
        or a lock was not to be had in time."""
        text = self._written.get(statement)
        if text is None:
            text = statement.format(schema=self.schema, for_update=self.for_update)
            self._written[statement] = text = text.replace("?", self.mark)
        return self._run(connection, text, values)

    @abstractmethod
    def run_script(self, connection: Any, script: str) -> None:
        """Run the statements of a file, as they are written there."""

    @abstractmethod
    def translated(self) -> AbstractContextManager[None]:
        """Raise as StoreError what the driver raises because the database cannot answer, whoever
        uses the connection inside."""

    @abstractmethod
    def _run(self, connection: Any, text: str, values: Sequence[Any]) -> list[Row]: ...


class Sqlite(Database):
    """The file has one writer at a time, and a transaction of ours is it: no row needs a lock."""

    name = "sqlite"
    schema = "main"
    for_update = ""
    mark = "?"

    def run_script(self, connection: Any, script: str) -> None:
        # `executescript` would commit first.
        pending = ""
        for line in script.splitlines(keepends=True):
            pending += line
            if sqlite3.complete_statement(pending):
                self._run(connection, pending, ())
                pending = ""
        # A last statement without its semicolon is one too, as PostgreSQL has it.
        if pending.strip():
            self._run(connection, pending, ())

    @contextmanager
    def translated(self) -> Iterator[None]:
        try:
            yield
        except sqlite3.OperationalError as error:
            raise StoreError(f"the database cannot answer: {error}") from error

    def _run(self, connection: Any, text: str, values: Sequence[Any]) -> list[Row]:
        cursor = sqlite3.Cursor(connection)
        try:
            with self.translated():
                return cursor.execute(text, values).fetchall()
        finally:
            cursor.close()


class Postgresql(Database):
    """Rows are locked, each for as long as the transaction lasts."""

    name = "postgresql"
    schema = "ulak"
    for_update = " FOR UPDATE"
    mark = "%s"

    def run_script(self, connection: Any, script: str) -> None:
        self._run(connection, script, ())

    @contextmanager
    def translated(self) -> Iterator[None]:
        # Here and not above: whoever has SQLite need not have it.
        from psycopg import OperationalError

        try:
            yield
        except OperationalError as error:
            raise StoreError(f"the database cannot answer: {error}") from error

    def _run(self, connection: Any, text: str, values: Sequence[Any]) -> list[Row]:
        from psycopg import Cursor
        from psycopg.rows import tuple_row

        with self.translated(), Cursor(connection, row_factory=tuple_row) as cursor:
            # Without values a script may have many statements.
            cursor.execute(text, values or None)
            return [] if cursor.description is None else cursor.fetchall()


_DATABASES: Final[dict[str, type[Database]]] = {kind.name: kind for kind in (Sqlite, Postgresql)}


def database_of(features: Features, what: str, *, why: str) -> Database:
    """Return the database of a store. `what` cannot be kept without one, and `why`, are for the
    sentence of `NotSupported`: the store has none whose transactions could be shared."""
    if not features.open_transactions or features.dialect not in _DATABASES:
        raise NotSupported(
            f"{what} cannot be kept in the {features.name} store: {why}; connect to SQLite or "
            "PostgreSQL"
        )
    return _DATABASES[features.dialect]()
