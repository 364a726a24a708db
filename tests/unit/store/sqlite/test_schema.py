"""The schema has a version, and a file of another one is refused with the cure."""

import sqlite3
from importlib.resources import files
from pathlib import Path

import pytest

from ulak.core.job import Event, JobRow, Request, Result
from ulak.errors import StoreError
from ulak.store.protocol import CredentialRow, Progress, ScheduleRow, TickRow, WorkerRow
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
    db = sqlite3.connect(path)
    db.execute("UPDATE schema_version SET oldest = 98")
    db.commit()
    db.close()
    knows = f"knows {migrations.NEWEST}"
    with pytest.raises(StoreError, match=rf"jobs\.db is at schema 99, .* {knows}.*`ulak migrate`"):
        SqliteStore(path).open()


def test_an_older_file_is_refused_with_both_versions(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = SqliteStore(path)
    made.open()
    made.close()
    now, later = migrations.NEWEST, migrations.NEWEST + 1
    monkeypatch.setattr(migrations, "NEWEST", later)
    cure = f"at schema {now}, this ulak needs {later}; run `ulak migrate`"
    with pytest.raises(StoreError, match=cure):
        SqliteStore(path).open()


def test_migrating_runs_the_files_that_are_missing(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = SqliteStore(path)
    now, later = migrations.NEWEST, migrations.NEWEST + 1
    assert made.migrate() == (0, now)
    assert made.migrate() == (now, now)
    known = migrations.script
    monkeypatch.setattr(migrations, "NEWEST", later)
    monkeypatch.setattr(
        migrations,
        "script",
        lambda version: "CREATE TABLE later (n INTEGER);" if version == later else known(version),
    )
    assert made.migrate() == (now, later)


def test_a_file_of_the_first_release_is_brought_to_this_one(path: Path) -> None:
    db = sqlite3.connect(path, isolation_level=None)
    for statement in migrations.statements(1):
        db.execute(statement)
    db.execute("PRAGMA user_version = 1")
    before = _tables(db)
    made = SqliteStore(path)
    assert made.migrate() == (1, migrations.NEWEST)
    made.open()
    made.close()
    new = sqlite3.connect(":memory:", isolation_level=None)
    migrations.upgrade(new)
    assert before < _tables(db) == _tables(new)
    db.close()
    new.close()


def _tables(db: sqlite3.Connection) -> set[str]:
    return {name for (name,) in db.execute("SELECT name FROM sqlite_master")}


def test_a_migration_that_fails_leaves_the_file_as_it_was(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = SqliteStore(path)
    made.migrate()
    now = migrations.NEWEST
    monkeypatch.setattr(migrations, "NEWEST", now + 1)
    monkeypatch.setattr(
        migrations, "statements", lambda _: ["CREATE TABLE later (n INTEGER)", "CREATE nonsense"]
    )
    with pytest.raises(StoreError, match="syntax error"):
        made.migrate()
    db = sqlite3.connect(path)
    assert migrations.version_of(db) == now
    assert db.execute("SELECT 1 FROM sqlite_master WHERE name = 'later'").fetchone() is None
    db.close()


def test_a_foreign_database_is_refused(path: Path) -> None:
    db = sqlite3.connect(path)
    db.execute("CREATE TABLE theirs (n INTEGER)")
    db.commit()
    db.close()
    with pytest.raises(StoreError, match=f"at schema 0, this ulak needs {migrations.NEWEST}"):
        SqliteStore(path).open()


def test_a_foreign_database_with_a_number_of_its_own_is_refused(path: Path) -> None:
    db = sqlite3.connect(path)
    db.execute("CREATE TABLE theirs (n INTEGER)")
    db.commit()
    db.close()
    set_version(path, 99)
    with pytest.raises(StoreError, match=r"at schema 99, .* only releases that know 99 or later"):
        SqliteStore(path).open()


def test_every_schema_file_up_to_the_newest_is_there() -> None:
    folder = files("ulak.store.sqlite") / "schema"
    names = sorted(f.name for f in folder.iterdir() if f.name.endswith(".sql"))
    assert names == [f"{n:04}.sql" for n in range(1, migrations.NEWEST + 1)]


@pytest.mark.parametrize(
    ("table", "record"),
    [
        ("events", Event),
        ("results", Result),
        ("requests", Request),
        ("progress", Progress),
        ("schedules", ScheduleRow),
        ("ticks", TickRow),
        ("credentials", CredentialRow),
    ],
)
def test_a_table_has_the_columns_of_its_record_in_their_order(
    store: SqliteStore, path: Path, table: str, record: type[tuple[object, ...]]
) -> None:
    db = sqlite3.connect(path)
    columns = tuple(row[1] for row in db.execute(f"PRAGMA table_info({table})"))
    db.close()
    assert columns == record._fields


def test_a_lease_has_the_columns_of_its_record_and_its_end_by_uptime(
    store: SqliteStore, path: Path
) -> None:
    db = sqlite3.connect(path)
    columns = tuple(row[1] for row in db.execute("PRAGMA table_info(workers)"))
    db.close()
    assert columns == (*WorkerRow._fields, "boot", "ends_us")


def test_the_jobs_have_the_columns_of_their_record(store: SqliteStore, path: Path) -> None:
    # Every statement names them: a column that came later stands at the end of the table.
    db = sqlite3.connect(path)
    columns = [row[1] for row in db.execute("PRAGMA table_info(jobs)")]
    db.close()
    assert sorted(columns) == sorted(JobRow._fields)


def test_a_file_of_the_first_schema_keeps_its_jobs_and_its_limits(path: Path) -> None:
    db = sqlite3.connect(path, isolation_level=None)
    for statement in migrations.statements(1):
        db.execute(statement)
    db.execute("PRAGMA user_version = 1")
    db.execute("INSERT INTO slots (limit_name, n, closed) VALUES ('a/b', 1, 0), ('a/b', 2, 1)")
    columns = db.execute("SELECT name, type, \"notnull\" FROM pragma_table_info('jobs')").fetchall()
    values = {
        name: bytes(16) if kind == "BLOB" else "x" if kind == "TEXT" else 1
        for name, kind, needed in columns
        if needed
    }
    names, bound = ", ".join(values), ", ".join("?" * len(values))
    statement = f"INSERT INTO jobs ({names}) VALUES ({bound})"  # noqa: S608 - its own columns
    db.execute(statement, tuple(values.values()))
    db.close()
    old = SqliteStore(path)
    assert old.migrate() == (1, migrations.NEWEST)
    old.open()
    row = old.find_job(bytes(16))
    assert row is not None
    assert (row.keys, row.rate, row.cost) == (None, None, 0)
    assert [(limit.name, limit.n, limit.actor) for limit in old.limits()] == [("a/b", 1, None)]
    old.close()
