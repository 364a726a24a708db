"""Tables of a service: numbered SQL files, and statements in the words of either database.

A statement is written once: values as `?`, tables as `{schema}.name`, `{for_update}` where a row is
to be locked, and `{skip_locked}` after it where locked rows are passed over. How the connection is
set up - row factories above all - does not matter.
"""

from __future__ import annotations

import re
import sqlite3
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import KW_ONLY, dataclass
from hashlib import sha256
from importlib.resources.abc import Traversable
from threading import Lock
from types import MappingProxyType
from typing import Any, Final
from uuid import UUID

from ulak.clock import Instant
from ulak.engine.engine import Engine
from ulak.errors import BadInput, NotSupported, StoreError
from ulak.ids import from_text
from ulak.store.protocol import Features
from ulak.store.schemas import find_oldest
from ulak.tables.views import NAME, PLAIN, DeliveryView, JobView, TrailView

Row = tuple[Any, ...]


class Database(ABC):
    """One of the two; `database_of` tells which."""

    name: str
    mark: str
    words: Mapping[str, str]
    """What a statement or a file that is written for both has in braces."""

    def __init__(self) -> None:
        self._written: dict[str, str] = {}

    def execute(self, connection: Any, statement: str, *values: Any) -> list[Row]:
        """Run one statement and return its rows; `StoreError`: the database cannot answer now,
        or a lock was not to be had in time."""
        text = self._written.get(statement)
        if text is None:
            text = statement.format_map(self.words).replace("?", self.mark)
            self._written[statement] = text
        return self._run(connection, text, values)

    def write_script(self, script: str) -> str:
        """Return a file that is written for both as it is for this one."""
        return script.format_map(self.words)

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
    mark = "?"
    words = MappingProxyType(
        {
            "schema": "main", "for_update": "", "skip_locked": "", "bigint": "INTEGER",
            "smallint": "INTEGER", "real": "REAL", "uuid": "BLOB", "bytewise": "",
            "serial": "INTEGER PRIMARY KEY AUTOINCREMENT", "strict": " STRICT",
            "by_key": " STRICT, WITHOUT ROWID", "json": "", "json_quote": "json_quote",
        }
    )  # fmt: skip

    def write_script(self, script: str) -> str:
        # SQLite has the schema of an index before the name of the index, and needs none.
        return super().write_script(script.replace("{schema}.", ""))

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
    mark = "%s"
    words = MappingProxyType(
        {
            "schema": "ulak", "for_update": " FOR UPDATE", "skip_locked": " SKIP LOCKED",
            "bigint": "BIGINT", "smallint": "SMALLINT", "real": "DOUBLE PRECISION", "uuid": "UUID",
            "bytewise": ' COLLATE "C"', "serial": "BIGINT GENERATED ALWAYS AS IDENTITY PRIMARY KEY",
            "strict": "", "by_key": "", "json": "::json", "json_quote": "to_json",
        }
    )  # fmt: skip

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


def shares_store(one: Engine, other: Engine) -> bool:
    """Tell whether two engines are on one store, so that a transaction of one holds for both: as
    far as their URLs say; nothing is opened."""
    place: str | None = getattr(one.store, "place", None)
    is_same = place is not None and place == getattr(other.store, "place", None)
    return one.store is other.store or is_same


_FILE: Final = re.compile(r"([0-9]{4})\.sql")

_EXISTS: Final = {
    "sqlite": "SELECT count(*) FROM {schema}.sqlite_master WHERE name = ?",
    # Not `to_regclass`: asked again behind a lock, it remembers that there was no such table.
    "postgresql": "SELECT count(*) FROM pg_catalog.pg_tables "
    "WHERE schemaname = '{schema}' AND tablename = ?",
}
# A version table that the first releases made has no such column.
_NAMES_OLDEST: Final = {
    "sqlite": "SELECT count(*) FROM pragma_table_info(?) WHERE name = 'oldest'",
    "postgresql": "SELECT count(*) FROM information_schema.columns "
    "WHERE table_schema = '{schema}' AND table_name = ? AND column_name = 'oldest'",
}


@dataclass(frozen=True, slots=True)
class Schema:
    """The tables of one service, as it declares them; nothing is read before they are needed.

    Args:
        what: What they hold, in the sentences that are raised: `letters`.
        folder: Where their SQL is: `sqlite/0001.sql` and so on, `postgresql/0001.sql` and so on,
            without a gap. PostgreSQL's files name the schema `ulak`. Or `0001.sql` and so on, each
            for both, with words of `Database.words` in braces. A file that was released stays as
            it is. One that earlier releases can live with says so in its head:
            `-- oldest: 1` lets those that know file 1 run on; without the line none may.
        version_table: The table that holds the number of the last file that was run, and the
            oldest that a release must know. A stored name: begin it with the service's own.
        why: Why they need a database with transactions, where the store has none.
        lock: The number of the advisory lock behind which they are made on PostgreSQL; by default
            one that follows from `version_table`.
        deliveries: A view of the engine's deliveries, made before the first file that is run.
        jobs: A view of the jobs of one of the service's flows, made then too.
        trail: A view of their trails.

    Raises:
        BadInput: `version_table` is no plain name in lower case.
    """

    what: str
    _: KW_ONLY
    folder: Traversable
    version_table: str
    why: str
    lock: int | None = None
    deliveries: DeliveryView | None = None
    jobs: JobView | None = None
    trail: TrailView | None = None

    def __post_init__(self) -> None:
        # It becomes part of statements.
        if not NAME.fullmatch(self.version_table):
            raise BadInput(f"{self.version_table!r} cannot be the table of a version: {PLAIN}")


class Tables:
    """A service's own tables in its engine's database, made before they are first used.

    Any number of threads and processes may have one of these for the same tables: the first makes
    or upgrades them. A statement is written for both databases at once: values as `?`, tables as
    `{schema}.name`, and `{for_update}` at the end of a SELECT that locks its rows, before
    `{skip_locked}` if it passes over those that are locked. Nothing is opened before the first use.
    Raises `NotSupported`: the store has no transactions to share.
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
        """Return the rows of one SELECT, as `reading` does."""
        with self.reading() as connection:
            return self.execute(connection, statement, *values)

    def write(self, statement: str, *values: Any) -> list[Row]:
        """Run one statement in a transaction of its own, as `writing` does, and return its rows."""
        with self.writing() as connection:
            return self.execute(connection, statement, *values)

    @contextmanager
    def reading(self) -> Iterator[Any]:
        """Lend a connection that only reads, for several SELECTs; nobody waits for it. Raises
        `StoreError`: the database does not answer."""
        self.ensure()
        with self._engine.reading() as connection:
            yield connection

    @contextmanager
    def writing(self, *, quiet: bool = False) -> Iterator[Any]:
        """Open a transaction: it commits at the end of the block, and what is raised takes
        everything back.

        As `Engine.transaction`, whose promises it has: jobs may be submitted in it with
        `connection=`, and on SQLite nobody else writes meanwhile. Raises `StoreError`: nothing was
        written, or it is not known.
        """
        self.ensure()
        with self._engine.transaction(quiet=quiet) as connection:
            yield connection

    def execute(self, connection: Any, statement: str, *values: Any) -> list[Row]:
        """Run one statement on a connection of `reading`, of `writing`, or of somebody's open
        transaction before which `ensure` was called; return its rows. Raises `StoreError`: the
        database cannot answer now, or a lock was not to be had in time."""
        return self.database.execute(connection, statement, *values)

    def make_key(self, job_id: str) -> Any:
        """Return the id of a job as the column `key` of `JobView` and `TrailView` has it: by it the
        database finds a job at once. Raises `BadInput`: this is no id."""
        key = from_text(job_id)
        return key if self.database.name == "sqlite" else UUID(bytes=key)

    def take_turns(self, connection: Any) -> None:
        """Let one transaction at a time go on from here, until it ends; making the tables takes
        its turn too."""
        # On SQLite a transaction that writes is alone by itself.
        if self.database.name == "postgresql":
            digest = sha256(self._schema.version_table.encode()).digest()
            derived = int.from_bytes(digest[:8], "big", signed=True)
            lock = derived if self._schema.lock is None else self._schema.lock
            self.execute(connection, "SELECT pg_advisory_xact_lock(?)", lock)

    def ensure(self, connection: Any = None) -> None:
        """Make or upgrade the tables, if need be; safe where many processes do so at once. They
        are made in `connection`, an open transaction, or in one of their own. Raises
        `StoreError`: it cannot be done now, or a newer release has been here and this one must
        not use what it made."""
        if self._are_there:
            return
        if connection is not None:
            self._upgrade(connection)
            return
        with self._one:
            if self._are_there:
                return
            # Where one writes at a time, a process that starts must not wait for its turn only
            # to find the tables there: it has requests to answer meanwhile.
            with self._engine.reading() as connection:
                is_old = self._read_version(connection) < self._newest()
            if is_old:
                with self._engine.transaction() as connection:
                    self._upgrade(connection)
            self._are_there = True

    def _folder(self) -> Traversable:
        """Return where the files for this database are: its own folder, or that for both."""
        own = self._schema.folder / self.database.name
        return own if own.is_dir() else self._schema.folder

    def _read_script(self, number: int) -> str:
        """Return the statements of a file, as they are for this database."""
        folder, database = self._folder(), self.database
        text = (folder / f"{number:04}.sql").read_text(encoding="utf-8")
        return text if folder.name == database.name else database.write_script(text)

    def _newest(self) -> int:
        """Return the number of the last file; `BadInput`: there is none, or one is missing."""
        names = [entry.name for entry in self._folder().iterdir()]
        numbers = sorted(int(found[1]) for found in map(_FILE.fullmatch, names) if found)
        if not numbers or numbers != list(range(1, len(numbers) + 1)):
            raise BadInput(
                f"the files of {self._schema.what} for {self.database.name} must be 0001.sql, "
                "0002.sql and so on; there are "
                f"{', '.join(f'{number:04}.sql' for number in numbers) or 'none'}"
            )
        return numbers[-1]

    def _read_version(self, connection: Any) -> int:
        """Return the version of the tables, 0 when there are none; refuse with `StoreError` those
        that a newer release has made and this one must not use."""
        if not self._has(connection, _EXISTS):
            return 0
        table, last = self._schema.version_table, self._newest()
        statement = f"SELECT version FROM {{schema}}.{table}"  # noqa: S608 - checked
        version = int(self.execute(connection, statement)[0][0])
        if version <= last:
            return version
        oldest: int | None = None
        if self._has(connection, _NAMES_OLDEST):
            statement = f"SELECT oldest FROM {{schema}}.{table}"  # noqa: S608 - checked
            oldest = self.execute(connection, statement)[0][0]
        if (oldest or version) > last:
            raise StoreError(
                f"the tables of {self._schema.what} are at schema {version}, this release knows "
                f"{last}, and only releases that know {oldest or version} or later may use them: "
                "a newer one has been here; install that"
            )
        return version

    def _upgrade(self, connection: Any) -> None:
        """Bring the tables to this release in an open transaction; those of a newer one stay."""
        last, database = self._newest(), self.database
        self.take_turns(connection)
        version = self._read_version(connection)
        if version >= last:
            return
        table = f"{{schema}}.{self._schema.version_table}"
        if version == 0:
            columns = "version INTEGER NOT NULL, oldest INTEGER"
            self.execute(connection, f"CREATE TABLE IF NOT EXISTS {table} ({columns})")
            self.execute(connection, f"INSERT INTO {table} (version) VALUES (0)")  # noqa: S608
        elif not self._has(connection, _NAMES_OLDEST):
            self.execute(connection, f"ALTER TABLE {table} ADD COLUMN oldest INTEGER")
        for view in (self._schema.deliveries, self._schema.jobs, self._schema.trail):
            if view is not None:
                database.run_script(connection, view.make_script(database.name))
        for number in range(version + 1, last + 1):
            database.run_script(connection, self._read_script(number))
        statement = f"UPDATE {table} SET version = ?, oldest = ?"  # noqa: S608 - checked
        self.execute(connection, statement, last, find_oldest(self._read_script, last))

    def _has(self, connection: Any, statements: Mapping[str, str]) -> bool:
        statement = statements[self.database.name]
        return bool(self.execute(connection, statement, self._schema.version_table)[0][0])
