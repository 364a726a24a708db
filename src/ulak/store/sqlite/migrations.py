"""The schema and its versions: numbered SQL files, forward only."""

from __future__ import annotations

import sqlite3
from importlib.resources import files

from ulak.errors import StoreError

NEWEST = 5
"""The schema that this release reads and writes; the number of the last file of `schema/`."""


def version_of(db: sqlite3.Connection) -> int:
    """Answer the version of the schema, 0 when the file is new."""
    version: int = db.execute("PRAGMA user_version").fetchone()[0]
    return version


def create_or_check(db: sqlite3.Connection, name: str) -> None:
    """Create the schema in a new file; refuse a file of another version.

    Raises:
        StoreError: naming both versions and the cure.
    """
    version = version_of(db)
    if version == 0 and not _has_tables(db):
        upgrade(db)
    elif version < NEWEST:
        raise StoreError(
            f"{name} is at schema {version}, this ulak needs {NEWEST}; run `ulak migrate`"
        )
    elif version > NEWEST:
        raise StoreError(
            f"{name} is at schema {version}, this ulak knows {NEWEST}: a newer release has run "
            "`ulak migrate` on it; install that release"
        )


def upgrade(db: sqlite3.Connection) -> tuple[int, int]:
    """Bring the schema to this release, all of it or nothing; answer the versions."""
    before = version_of(db)
    db.execute("BEGIN IMMEDIATE")
    for version in range(before + 1, NEWEST + 1):
        for statement in statements(version):
            db.execute(statement)
        db.execute(f"PRAGMA user_version = {version}")
    db.execute("COMMIT")
    return before, version_of(db)


def statements(version: int) -> list[str]:
    """Answer the statements that lead from the version before to this one."""
    script = (files(__package__) / "schema" / f"{version:04}.sql").read_text(encoding="utf-8")
    found: list[str] = []
    pending = ""
    for line in script.splitlines(keepends=True):
        pending += line
        if sqlite3.complete_statement(pending):
            found.append(pending.strip())
            pending = ""
    return found


def _has_tables(db: sqlite3.Connection) -> bool:
    return db.execute("SELECT 1 FROM sqlite_master LIMIT 1").fetchone() is not None
