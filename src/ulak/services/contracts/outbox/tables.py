"""Transactions on the table of events."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from ulak import Engine, tables
from ulak.kit.clock import Instant
from ulak.services.contracts.schema import SCHEMA
from ulak.tables import Database, Row


class Session:
    """A connection to the store's database that somebody has opened."""

    def __init__(self, database: Database, connection: Any) -> None:
        self._database = database
        self._connection = connection

    @property
    def skip_locked(self) -> str:
        """What a `SELECT` ends with that takes only rows which nobody else is taking."""
        # Where there is one writer, nobody else is.
        locking = self._database.for_update
        return locking and f"{locking} OF event SKIP LOCKED"

    def execute(self, statement: str, *values: Any) -> list[Row]:
        """Run one statement and answer its rows.

        Raises:
            StoreError: the database cannot answer now.
        """
        return self._database.execute(self._connection, statement, *values)


class Tables:
    """Opens transactions on the table of one engine.

    Raises:
        NotSupported: the store has none whose transactions could be shared.
    """

    def __init__(self, engine: Engine) -> None:
        self._tables = tables.Tables(engine, SCHEMA)

    @property
    def now(self) -> Instant:
        """The store's time."""
        return self._tables.now

    @contextmanager
    def transaction(self) -> Iterator[Session]:
        """Open a transaction in which the table is there; it commits at the end of the block.

        Raises:
            StoreError: nothing was written, or it is not known.
        """
        with self._tables.writing() as connection:
            yield self.joined(connection)

    @contextmanager
    def reading(self) -> Iterator[Session]:
        """Read the table as it stands at one moment; nobody waits for it.

        Raises:
            StoreError: the database does not answer.
        """
        with self._tables.reading() as connection:
            yield self.joined(connection)

    def joined(self, connection: Any) -> Session:
        """Use a connection of somebody else, who has made sure of the table."""
        return Session(self._tables.database, connection)
