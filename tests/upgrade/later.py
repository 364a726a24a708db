"""The release after this one: the same code, which knows one more migration.

python -m tests.upgrade.later migrate --app app:engine      # as `ulak migrate` of that release
"""

import sqlite3
from collections.abc import Callable
from contextlib import closing
from functools import partial
from types import ModuleType
from typing import Any

from ulak.cli import main
from ulak.store.postgres import migrations as postgres
from ulak.store.sqlite import migrations as sqlite

Set = Callable[[object, str, Any], object]
"""How a name of a module is set: `setattr`, or that of `MonkeyPatch`, which takes it back."""


def teach(set_name: Set, *, oldest: int | None = None, word: str = "later") -> None:
    """Have this process know one migration more, on either database.

    The migration is additive wherever a migration can be: every table gets a column, and there is
    a new table and a new index, all of this name. It names `oldest`, by default the release before.
    """
    tables = _tables()
    for migrations, schema in ((sqlite, ""), (postgres, "ulak.")):
        later = migrations.NEWEST + 1
        named = later - 1 if oldest is None else oldest
        lines = [
            f"-- oldest: {named}",
            *(f"ALTER TABLE {schema}{table} ADD COLUMN {word} TEXT;" for table in tables),
            f"CREATE TABLE {schema}{word} (n INTEGER NOT NULL PRIMARY KEY);",
            f"CREATE INDEX jobs_{word} ON {schema}jobs ({word}) WHERE {word} IS NOT NULL;",
        ]
        known = migrations.script
        set_name(migrations, "script", partial(_script, known, later, "\n".join(lines)))
        set_name(migrations, "NEWEST", later)


def newest(url: str) -> int:
    """Return the newest schema that this process knows for a database."""
    return migrations_of(url).NEWEST


def migrations_of(url: str) -> ModuleType:
    """Return the module that migrates a database."""
    return sqlite if url.startswith("sqlite") else postgres


def _script(known: Callable[[int], str], later: int, text: str, version: int) -> str:
    return text if version == later else known(version)


def _tables() -> list[str]:
    """Every table of this release; both databases have the same, PostgreSQL one more."""
    with closing(sqlite3.connect(":memory:", isolation_level=None)) as db:
        sqlite.upgrade(db)
        names = db.execute("SELECT name FROM sqlite_master WHERE type = 'table' ORDER BY name")
        return [name for (name,) in names if not name.startswith("sqlite_")]


if __name__ == "__main__":
    teach(setattr)
    main()
