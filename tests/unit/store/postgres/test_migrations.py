"""The schema is made once, whoever comes first; another version is refused with its cure."""

from concurrent.futures import ThreadPoolExecutor

import psycopg
import pytest

from ulak.errors import StoreError
from ulak.store.postgres import PostgresStore, migrations
from ulak.testing import faults


def begin(url: str) -> None:
    """Open the store and migrate it; runs in a child."""
    store = PostgresStore(url)
    store.open()
    before, after = store.migrate()
    store.close()
    print(before, after, flush=True)  # noqa: T201 - the child's only way to tell


@pytest.mark.shows("E-55")
def test_processes_that_create_the_schema_at_once_create_it_once(postgres_url: str) -> None:
    with ThreadPoolExecutor(3) as pool:
        ended = list(pool.map(lambda _: faults.run(begin, postgres_url), range(3)))
    assert [(child.code, child.lines) for child in ended] == [
        (0, (f"{migrations.NEWEST} {migrations.NEWEST}",))
    ] * 3, [child.errors for child in ended]
    with psycopg.connect(postgres_url) as db:
        versions = db.execute("SELECT version FROM ulak.schema_version").fetchall()
        assert versions == [(migrations.NEWEST,)]


@pytest.mark.parametrize(
    ("version", "cure"),
    [
        (migrations.NEWEST + 1, "a newer release has run `ulak migrate` on it; install that"),
        (migrations.NEWEST - 1, "run `ulak migrate`"),
    ],
)
def test_another_version_is_refused_with_its_cure(url: str, version: int, cure: str) -> None:
    with psycopg.connect(url, autocommit=True) as db:
        db.execute("UPDATE ulak.schema_version SET version = %s, oldest = %s", [version, version])
        with pytest.raises(StoreError, match=f"is at schema {version}, this ulak .*{cure}"):
            PostgresStore(url).open()
        db.execute("UPDATE ulak.schema_version SET version = %s", [migrations.NEWEST])
        db.execute("UPDATE ulak.schema_version SET oldest = %s", [migrations.NEWEST - 1])


def test_a_migration_that_fails_leaves_what_was(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    now, later = migrations.NEWEST, migrations.NEWEST + 1
    scripts = {later: "CREATE TABLE ulak.half (id integer); SELECT 1 / 0"}
    monkeypatch.setattr(migrations, "NEWEST", later)
    monkeypatch.setattr(migrations, "script", scripts.__getitem__)
    with pytest.raises(StoreError, match="division by zero"):
        PostgresStore(url).migrate()
    with psycopg.connect(url) as db:
        assert db.execute("SELECT version FROM ulak.schema_version").fetchall() == [(now,)]
        assert db.execute("SELECT to_regclass('ulak.half')").fetchone() == (None,)
    monkeypatch.setattr(migrations, "script", lambda version: "SELECT 1")
    assert PostgresStore(url).migrate() == (now, later)
    with psycopg.connect(url, autocommit=True) as db:
        db.execute("UPDATE ulak.schema_version SET version = %s", [now])


@pytest.fixture
def migrating(postgres_url: str, monkeypatch: pytest.MonkeyPatch) -> PostgresStore:
    """A store whose next migration needs the table of jobs for itself, and has little patience."""
    store = PostgresStore(postgres_url)
    store.migrate()
    later, known = migrations.NEWEST + 1, migrations.script
    change = "ALTER TABLE ulak.jobs ADD COLUMN later text"
    monkeypatch.setattr(migrations, "NEWEST", later)
    monkeypatch.setattr(migrations, "script", lambda n: change if n == later else known(n))
    monkeypatch.setattr(migrations, "PATIENCE_MS", 50)
    return store


@pytest.mark.shows("E-90")
def test_a_migration_that_must_wait_for_a_table_gives_way_and_tries_again(
    migrating: PostgresStore, postgres_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    pauses: list[float] = []
    with psycopg.connect(postgres_url) as stage, psycopg.connect(postgres_url) as worker:
        stage.execute("SELECT FROM ulak.jobs")  # and its transaction stays open

        def others_go_on(seconds: float) -> None:
            worker.execute("SET statement_timeout = 5000")
            worker.execute("UPDATE ulak.jobs SET lapses = 0")
            worker.commit()
            pauses.append(seconds)
            if len(pauses) == 3:
                stage.commit()

        monkeypatch.setattr(migrations, "sleep", others_go_on)
        assert migrating.migrate() == (migrations.NEWEST - 1, migrations.NEWEST)
    assert len(pauses) == 3


@pytest.mark.shows("E-90")
def test_a_migration_that_has_waited_in_vain_changes_nothing_and_says_so(
    migrating: PostgresStore, postgres_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(migrations, "MOST_TRIES", 2)
    with psycopg.connect(postgres_url) as stage:
        stage.execute("SELECT FROM ulak.jobs")
        with pytest.raises(StoreError, match=r"the schema was not changed: .* run `ulak migrate`"):
            migrating.migrate()
    assert migrating.migrate() == (migrations.NEWEST - 1, migrations.NEWEST)


def test_a_database_of_the_first_release_is_brought_to_this_one(
    postgres_url: str, url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as before:
        before.setattr(migrations, "NEWEST", 1)
        assert PostgresStore(postgres_url).migrate() == (0, 1)
    with pytest.raises(StoreError, match=f"at schema 1, this ulak needs {migrations.NEWEST}"):
        PostgresStore(postgres_url).open()
    assert PostgresStore(postgres_url).migrate() == (1, migrations.NEWEST)
    assert _columns(postgres_url) == _columns(url)


def _columns(url: str) -> set[tuple[object, ...]]:
    with psycopg.connect(url) as db:
        return set(
            db.execute(
                "SELECT table_name, column_name, data_type FROM information_schema.columns "
                "WHERE table_schema = 'ulak' AND table_name !~ '_[0-9]{6}$'"
            )
        )


@pytest.mark.shows("E-55")
def test_hot_tables_leave_room_are_cleaned_often_and_have_no_gin(url: str) -> None:
    with psycopg.connect(url) as db:
        options = dict(
            db.execute(
                "SELECT relname, reloptions FROM pg_class "
                "WHERE relnamespace = 'ulak'::regnamespace AND reloptions IS NOT NULL"
            ).fetchall()
        )
        kinds = db.execute(
            "SELECT DISTINCT amname FROM pg_class JOIN pg_am ON pg_am.oid = relam "
            "WHERE relnamespace = 'ulak'::regnamespace AND relkind IN ('i', 'I')"
        ).fetchall()
        width = db.execute(
            "SELECT attname FROM pg_attribute WHERE attrelid = 'ulak.jobs'::regclass "
            "AND attnum > 0 AND atttypid IN ('bytea'::regtype, 'jsonb'::regtype, 'json'::regtype)"
        ).fetchall()
    hot = set(options["jobs"])
    assert {"fillfactor=80", "autovacuum_vacuum_scale_factor=0.02"} <= hot
    assert "autovacuum_vacuum_cost_delay=0" in hot
    for table in ("slots", "workers", "buckets", "turns"):
        assert any(option.startswith("fillfactor=") for option in options[table])
    assert {name for (name,) in kinds} == {"btree", "brin"}
    assert width == [], "payloads and results are not in the row that is claimed"
