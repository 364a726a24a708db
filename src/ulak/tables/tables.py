"""Reading and writing the tables of a service, on the connections of its engine."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from threading import Lock
from typing import Any

from ulak.clock import Instant
from ulak.engine.engine import Engine
from ulak.tables.database import Row, database_of
from ulak.tables.schema import (
    Schema,
    must_be_known,
    newest,
    take_turns,
    upgrade,
    version_of,
)


class Tables:
    """A service's own tables in its engine's database, made before they are first used.

    Any number of threads and processes may have one of these for the same tables: whoever comes
    first makes or upgrades them. A statement is written for both databases at once: values as
    `?`, tables as `{schema}.name`, and `{for_update}` at the end of a SELECT that locks its rows.

    Args:
        engine: In whose database they are. Nothing is opened yet.
        schema: What they are.

    Raises:
        NotSupported: the store has no transactions to share.
    """

    def __init__(self, engine: Engine, schema: Schema) -> None:
        self.database = database_of(engine.store.features, schema.what, why=schema.why)
        self._engine = engine
        self._schema = schema
        self._are_there = False
        self._one = Lock()

    @property
    def now(self) -> Instant:
        """The store's time."""
        return self._engine.open().store.clock.now()

    def read(self, statement: str, *values: Any) -> list[Row]:
        """Return the rows of one SELECT; nobody waits for it.

        Raises:
            StoreError: the database does not answer.
        """
        with self.reading() as connection:
            return self.execute(connection, statement, *values)

    @contextmanager
    def reading(self) -> Iterator[Any]:
        """Lend a connection that only reads, for several SELECTs; nobody waits for it.

        Raises:
            StoreError: the database does not answer.
        """
        self.ensure()
        with self._engine.reading() as connection:
            yield connection

    @contextmanager
    def writing(self) -> Iterator[Any]:
        """Open a transaction: it commits at the end of the block, and what is raised takes
        everything back.

        As `Engine.transaction`, whose promises it has: jobs may be submitted in it with
        `connection=`, and on SQLite nobody else writes meanwhile.

        Raises:
            StoreError: nothing was written, or it is not known.
        """
        self.ensure()
        with self._engine.transaction() as connection:
            yield connection

    def execute(self, connection: Any, statement: str, *values: Any) -> list[Row]:
        """Run one statement on a connection of `reading`, of `writing`, or of somebody's open
        transaction before which `ensure` was called; answer its rows.

        Raises:
            StoreError: the database cannot answer now, or a lock was not to be had in time.
        """
        return self.database.execute(connection, statement, *values)

    def take_turns(self, connection: Any) -> None:
        """Let one transaction at a time go on from here, until it ends; making the tables takes
        its turn too."""
        take_turns(self._schema, self.database, connection)

    def ensure(self, connection: Any = None) -> None:
        """Make or upgrade the tables, if need be; safe where many processes do so at once.

        Args:
            connection: An open transaction to make them in; by default one of its own.

        Raises:
            StoreError: it cannot be done now, or a newer release has been here and this one must
                not use what it made.
        """
        if self._are_there:
            return
        if connection is not None:
            upgrade(self._schema, self.database, connection)
            return
        with self._one:
            if self._are_there:
                return
            # Where one writes at a time, a process that starts must not wait for its turn only
            # to find the tables there: it has requests to answer meanwhile.
            with self._engine.reading() as connection:
                version = version_of(self._schema, self.database, connection)
                must_be_known(self._schema, self.database, connection, version)
            if version < newest(self._schema, self.database):
                with self._engine.transaction() as connection:
                    upgrade(self._schema, self.database, connection)
            self._are_there = True
