"""The schema and its versions: numbered SQL files, forward only."""

from __future__ import annotations

import sqlite3
from importlib.resources import files

from ulak.errors import StoreError
from ulak.store.schemas import find_oldest, too_old

NEWEST = 11
"""The schema that this release reads and writes; the number of the last file of `schema/`."""

NAMES_OLDEST = 6
"""The first schema that stores which is the oldest that may run on it."""

RENAMES_RECORDS = 11
"""The schema that takes from releases before it the table of idempotency records."""


def version_of(db: sqlite3.Connection) -> int:
    """Return the version of the schema, 0 when the file is new."""
    version: int = db.execute("PRAGMA user_version").fetchone()[0]
    return version


def oldest_of(db: sqlite3.Connection) -> int:
    """Return the oldest schema whose release may run on the file, as its migrations named it."""
    version = version_of(db)
    # A file of another program may have any number, and no such table.
    if version < NAMES_OLDEST or not _has_tables(db, "schema_version"):
        return version
    oldest: int = db.execute("SELECT oldest FROM schema_version").fetchone()[0]
    return oldest


def create_or_check(db: sqlite3.Connection, name: str) -> None:
    """Create the schema in a new file, or raise `StoreError` if this release must not run on it."""
    version = version_of(db)
    if version == 0 and not _has_tables(db):
        upgrade(db)
    elif version < NEWEST:
        raise StoreError(
            f"{name} is at schema {version}, this ulak needs {NEWEST}; run `ulak migrate`"
        )
    elif version > NEWEST:
        _must_be_known(db, name)


def upgrade(db: sqlite3.Connection, name: str = "the database") -> tuple[int, int]:
    """Bring the schema to this release, whole or not at all; a newer one stays or is refused."""
    before = version_of(db)
    _must_be_known(db, name)
    if 0 < before < RENAMES_RECORDS:
        _must_be_alone(db, name)
    db.execute("BEGIN IMMEDIATE")
    for version in range(before + 1, NEWEST + 1):
        for statement in statements(version):
            db.execute(statement)
        db.execute(f"PRAGMA user_version = {version}")
        if version >= NAMES_OLDEST:
            db.execute("UPDATE schema_version SET oldest = ?", (find_oldest(script, version),))
    db.execute("COMMIT")
    return before, version_of(db)


def _must_be_known(db: sqlite3.Connection, name: str) -> None:
    if (oldest := oldest_of(db)) > NEWEST:
        raise StoreError(too_old(f"{name} is", version_of(db), oldest=oldest, newest=NEWEST))


def _must_be_alone(db: sqlite3.Connection, name: str) -> None:
    """Refuse while the file is open elsewhere: only then may a connection leave the WAL."""
    try:
        db.execute("PRAGMA journal_mode = DELETE").fetchone()
    except sqlite3.OperationalError as error:
        if error.sqlite_errorcode != sqlite3.SQLITE_BUSY:
            raise
        raise StoreError(
            f"{name} is open in another process, and a release before this one cannot keep "
            "idempotency keys after this migration: stop every process that uses the file, and "
            "run `ulak migrate` again"
        ) from error
    db.execute("PRAGMA journal_mode = WAL").fetchone()


def script(version: int) -> str:
    """Return the file that leads from the version before to this one."""
    path = files(__package__) / "schema" / f"{version:04}.sql"
    return path.read_text(encoding="utf-8")


def statements(version: int) -> list[str]:
    found: list[str] = []
    pending = ""
    for line in script(version).splitlines(keepends=True):
        pending += line
        if sqlite3.complete_statement(pending):
            found.append(pending.strip())
            pending = ""
    return found


def _has_tables(db: sqlite3.Connection, name: str = "%") -> bool:
    found = db.execute("SELECT 1 FROM sqlite_master WHERE name LIKE ? LIMIT 1", (name,))
    return found.fetchone() is not None
