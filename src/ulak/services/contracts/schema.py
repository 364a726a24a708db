"""The tables of contracts: numbered SQL files, forward only, run by whoever comes first."""

from __future__ import annotations

from importlib.resources import files
from threading import Lock
from typing import Any, Final

from ulak.engine.engine import Engine
from ulak.errors import StoreError
from ulak.services.contracts.database import Database

NEWEST: Final = 2
"""The number of the last file of `sql/sqlite` and `sql/postgresql`."""

# Whoever creates or upgrades does it alone; the number is "hos" in letters.
_ALONE = "SELECT pg_advisory_xact_lock(6844275)"
_EXISTS: Final = {
    "sqlite": "SELECT count(*) FROM {schema}.sqlite_master WHERE name = 'hos_contract_schema'",
    # Not `to_regclass`: asked again behind a lock, it remembers that there was no such table.
    "postgresql": "SELECT count(*) FROM pg_catalog.pg_tables "
    "WHERE schemaname = '{schema}' AND tablename = 'hos_contract_schema'",
}
_CREATE = "CREATE TABLE IF NOT EXISTS {schema}.hos_contract_schema (version INTEGER NOT NULL)"
_BEGIN = "INSERT INTO {schema}.hos_contract_schema (version) VALUES (?)"
_VERSION = "SELECT version FROM {schema}.hos_contract_schema"
_ADVANCE = "UPDATE {schema}.hos_contract_schema SET version = ?"


class Schema:
    """Creates the tables before they are first used, and remembers that they are there."""

    def __init__(self, engine: Engine, database: Database) -> None:
        self._engine = engine
        self._database = database
        self._is_there = False
        self._one = Lock()

    def ensure(self) -> None:
        """Create or upgrade the tables; safe where many processes do so at once.

        Raises:
            StoreError: it cannot be done now, or a newer release has been here.
        """
        if self._is_there:
            return
        with self._one:
            if not self._is_there:
                # Where one writes at a time, a process that starts must not wait for its turn
                # only to find the tables there: it has requests to answer meanwhile.
                with self._engine.reading() as connection:
                    version = _version(self._database, connection)
                if version != NEWEST:
                    with self._engine.transaction() as connection:
                        upgrade(self._database, connection)
                self._is_there = True


def upgrade(database: Database, connection: Any) -> None:
    """Bring the tables to this release in an open transaction; what is there already stays.

    Raises:
        StoreError: a newer release has been here.
    """
    version = _version(database, connection)
    if version < NEWEST and database.name == "postgresql":
        database.execute(connection, _ALONE)
        version = _version(database, connection)
    if version > NEWEST:
        raise StoreError(
            f"the tables of contracts are at schema {version}, this ulak knows {NEWEST}: a newer "
            "release has been here; install that release"
        )
    if version == 0:
        database.execute(connection, _CREATE)
        database.execute(connection, _BEGIN, 0)
    for number in range(version + 1, NEWEST + 1):
        database.run_script(connection, _script(database, number))
        database.execute(connection, _ADVANCE, number)


def _version(database: Database, connection: Any) -> int:
    """Answer the version of the tables, 0 when there are none."""
    if not database.execute(connection, _EXISTS[database.name])[0][0]:
        return 0
    return int(database.execute(connection, _VERSION)[0][0])


def _script(database: Database, number: int) -> str:
    path = files(__package__) / "sql" / database.name / f"{number:04}.sql"
    return path.read_text(encoding="utf-8")
