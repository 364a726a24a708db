"""The schema has a version, and a file of another one is refused with the cure."""

import sqlite3
from importlib.resources import files
from pathlib import Path

import pytest

from ulak.core.job import Event, JobRow, Request, Result
from ulak.errors import StoreError
from ulak.store.protocol import Progress, WorkerRow
from ulak.store.sqlite import SqliteStore, migrations


def set_version(path: Path, version: int) -> None:
    db = sqlite3.connect(path)
    db.execute(f"PRAGMA user_version = {version}")
    db.close()


def test_a_new_file_is_created_at_the_newest_version(store: SqliteStore) -> None:
    assert store.about()["schema"] == migrations.NEWEST


def test_a_newer_file_is_refused_with_both_versions(path: Path) -> None:
    made = SqliteStore(path)
    made.open()
    made.close()
    set_version(path, 99)
    with pytest.raises(StoreError, match=r"jobs\.db is at schema 99, .* knows 1.*`ulak migrate`"):
        SqliteStore(path).open()


def test_an_older_file_is_refused_with_both_versions(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = SqliteStore(path)
    made.open()
    made.close()
    monkeypatch.setattr(migrations, "NEWEST", 2)
    with pytest.raises(StoreError, match=r"at schema 1, this ulak needs 2; run `ulak migrate`"):
        SqliteStore(path).open()


def test_migrating_runs_the_files_that_are_missing(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = SqliteStore(path)
    assert made.migrate() == (0, 1)
    assert made.migrate() == (1, 1)
    known = migrations.statements
    monkeypatch.setattr(migrations, "NEWEST", 2)
    monkeypatch.setattr(
        migrations,
        "statements",
        lambda version: ["CREATE TABLE later (n INTEGER)"] if version == 2 else known(version),
    )
    assert made.migrate() == (1, 2)


def test_a_migration_that_fails_leaves_the_file_as_it_was(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = SqliteStore(path)
    made.migrate()
    monkeypatch.setattr(migrations, "NEWEST", 2)
    monkeypatch.setattr(
        migrations, "statements", lambda _: ["CREATE TABLE later (n INTEGER)", "CREATE nonsense"]
    )
    with pytest.raises(StoreError, match="syntax error"):
        made.migrate()
    db = sqlite3.connect(path)
    assert migrations.version_of(db) == 1
    assert db.execute("SELECT 1 FROM sqlite_master WHERE name = 'later'").fetchone() is None
    db.close()


def test_a_foreign_database_is_refused(path: Path) -> None:
    db = sqlite3.connect(path)
    db.execute("CREATE TABLE theirs (n INTEGER)")
    db.commit()
    db.close()
    with pytest.raises(StoreError, match="at schema 0, this ulak needs 1"):
        SqliteStore(path).open()


def test_every_schema_file_up_to_the_newest_is_there() -> None:
    folder = files("ulak.store.sqlite") / "schema"
    names = sorted(f.name for f in folder.iterdir() if f.name.endswith(".sql"))
    assert names == [f"{n:04}.sql" for n in range(1, migrations.NEWEST + 1)]


@pytest.mark.parametrize(
    ("table", "record"),
    [
        ("jobs", JobRow),
        ("events", Event),
        ("results", Result),
        ("requests", Request),
        ("progress", Progress),
        ("workers", WorkerRow),
    ],
)
def test_a_table_has_the_columns_of_its_record_in_their_order(
    store: SqliteStore, path: Path, table: str, record: type[tuple[object, ...]]
) -> None:
    db = sqlite3.connect(path)
    columns = tuple(row[1] for row in db.execute(f"PRAGMA table_info({table})"))
    db.close()
    assert columns == record._fields
