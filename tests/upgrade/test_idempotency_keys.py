"""The view of idempotency keys, and the migration that puts it before a table of another name."""

import re
import sqlite3
import threading
from collections.abc import Iterator
from contextlib import closing, contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import psycopg
import pytest

from tests.conformance.places import place_of
from tests.docs.pages import DOCS
from ulak.clock import SECOND
from ulak.errors import InProgress, StoreError
from ulak.idempotency import Answer, Asked, Execution, Guard, Scope
from ulak.store.postgres import PostgresStore
from ulak.store.postgres import migrations as postgres
from ulak.store.postgres import records as postgres_records
from ulak.store.protocol import Store
from ulak.store.records import RecordRow
from ulak.store.sqlite import migrations as sqlite
from ulak.store.sqlite import records as sqlite_records
from ulak.wiring import store_of

HOUR = 3600 * SECOND
VIEW, TABLE = "hos_idempotency_keys", "idempotency_records"
STATEMENTS = (
    "CLAIM", "FIND", "FIND_LIVING", "RENEW", "MARK", "FINISH", "REMOVE", "FORGET", "CLEAN"
)  # fmt: skip


class Site:
    """A store, and a connection of somebody else's who knows the view."""

    def __init__(self, name: str, where: str) -> None:
        self.name = name
        self.where = where
        self.url = where if name == "postgres" else f"sqlite:///{where}"

    def store(self) -> Store:
        return store_of(self.url)

    def ask(self, statement: str, *values: Any) -> tuple[int, list[tuple[Any, ...]]]:
        """Run a statement; return how many rows it touched, and those that it returned."""
        with closing(self.connect()) as db:
            cursor = db.execute(self.write(statement), values)
            rows = [] if cursor.description is None else cursor.fetchall()
            db.commit()
            return cursor.rowcount, rows

    def connect(self) -> Any:
        return psycopg.connect(self.url) if self.name == "postgres" else sqlite3.connect(self.where)

    def write(self, statement: str) -> str:
        """Return a statement as this database has it."""
        if self.name == "postgres":
            words = {
                "view": f"public.{VIEW}",
                "table": f"ulak.{TABLE}",
                "now": "now()",
                "mark": "%s",
            }
        else:
            words = {"view": VIEW, "table": TABLE, "now": "datetime('now')", "mark": "?"}
        return statement.format(**words)

    def delete(self) -> int:
        """Delete what has expired, as the specification writes it."""
        return self.ask("DELETE FROM {view} WHERE expires_at < {now}")[0]

    def keys(self) -> list[str]:
        return [key for (key,) in self.ask("SELECT key FROM {view} ORDER BY key")[1]]


@pytest.fixture(params=["sqlite", "postgres"])
def site(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Site]:
    with place_of(request.param, request, tmp_path) as where:
        yield Site(request.param, where)


@pytest.fixture
def store(site: Site) -> Iterator[Store]:
    store = site.store()
    store.open()
    yield store
    store.close()


def execute(store: Store, key: str, **options: Any) -> bool:
    """Execute under a key; tell whether it was executed before."""
    asked = Asked(Scope("orders", **options), key, request_hash="a" * 64)
    return Guard(store).execute(asked, lambda run: Answer(body=b"%d" % run.attempt)).is_replay


def begin(store: Store, key: str) -> Execution:
    """Claim a key by a lease, for as long as the process lives."""
    asked = Asked(Scope("orders", mode="lease"), key, request_hash="a" * 64)
    begun = Guard(store).begin(asked)
    assert isinstance(begun, Execution)
    return begun


def expire(site: Site, *keys: str) -> None:
    """Let these have expired an hour ago."""
    for key in keys:
        site.ask("UPDATE {table} SET expires_at = created_at - 3600000000 WHERE key = {mark}", key)


def columns_of_the_specification() -> list[str]:
    page = (DOCS / "spec" / "idempotency.md").read_text(encoding="utf-8")
    table = page.partition("## 3. Record")[2].partition("\n## ")[0]
    names = re.findall(r"^\| ([a-z_, +]+) \| (?:pk|text|int|datetime)", table, re.M)
    return [name.strip(" +") for cell in names for name in cell.split(",")]


@pytest.mark.shows("I-6")
def test_the_view_has_the_columns_of_the_specification(site: Site, store: Store) -> None:
    execute(store, "k")
    columns = columns_of_the_specification()
    assert len(columns) == 17
    _, ((scope, tenant, body, *times),) = site.ask(
        "SELECT scope, tenant_id, response_json, created_at, updated_at, expires_at, lease_until "
        "FROM {view}"
    )
    assert (scope, tenant, body) == ("orders", None, "1")
    row = store.find_records([_id("k")])[0]
    assert row is not None
    assert times == [
        _written(site, moment) for moment in (row.created_at, row.updated_at, row.expires_at)
    ] + [None]
    with closing(site.connect()) as db:
        cursor = db.execute(site.write("SELECT * FROM {view}"))
        assert sorted(column[0] for column in cursor.description) == sorted(columns)
    site.ask("UPDATE {table} SET scope = '', tenant_id = 'acme'")
    assert site.ask("SELECT scope, tenant_id FROM {view}")[1] == [(None, "acme")]


def _written(site: Site, moment: int) -> Any:
    exact = datetime.fromtimestamp(moment // SECOND, UTC).replace(microsecond=moment % SECOND)
    if site.name == "postgres":
        return exact
    return exact.strftime("%Y-%m-%d %H:%M:%S.%f")[:-3]


def _id(key: str) -> Any:
    return Asked(Scope("orders"), key, request_hash="").id


@pytest.mark.shows("I-22", "I-23")
def test_what_has_expired_is_deleted_through_the_view_and_living_leases_are_spared(
    site: Site, store: Store
) -> None:
    for key in ("old 1", "old 2", "new"):
        execute(store, key)
    alive, dead = begin(store, "alive"), begin(store, "dead")
    site.ask("UPDATE {table} SET lease_until = 1 WHERE key = 'dead'")
    expire(site, "old 1", "old 2", "alive", "dead")
    deleted = site.delete()
    assert site.keys() == ["alive", "new"]
    if site.name == "postgres":  # SQLite does not count what a trigger does
        assert deleted == 3
    alive.settle(Answer(body=b"done"))
    assert execute(store, "alive", mode="lease") is True
    dead.abandon()
    site.ask("DELETE FROM {view} WHERE key = 'new'")
    assert site.keys() == ["alive"]


def test_nothing_is_written_through_the_view(site: Site, store: Store) -> None:
    execute(store, "k")
    refusals = (psycopg.errors.FeatureNotSupported, sqlite3.OperationalError)
    for statement in (
        "UPDATE {view} SET status = 'failed'",
        "INSERT INTO {view} (key, status) VALUES ('x', 'completed')",
    ):
        with pytest.raises(refusals):
            site.ask(statement)
    assert execute(store, "k") is True


@pytest.mark.shows("I-23")
@pytest.mark.parametrize("site", ["postgres"], indirect=True)
def test_what_is_claimed_anew_meanwhile_is_not_deleted(site: Site, store: Store) -> None:
    execute(store, "k")
    expire(site, "k")
    asked = Asked(Scope("orders"), "k", request_hash="b" * 64)
    begun = Guard(store).begin(asked)
    assert isinstance(begun, Execution)
    deleted: list[int] = []
    deleting = threading.Thread(target=lambda: deleted.append(site.delete()))
    deleting.start()
    waits = "SELECT count(*) FROM pg_stat_activity WHERE wait_event_type = 'Lock'"
    while site.ask(waits)[1] == [(0,)]:
        assert deleting.is_alive(), "it waits for the claim"
    begun.settle(Answer(body=b"again"))
    deleting.join()
    assert deleted == [0]
    assert site.keys() == ["k"]


# --- the migration --------------------------------------------------------------------


class Before:
    """The release before: its schemas, and the table that its statements name."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self._patch = monkeypatch

    def makes(self, store: Store) -> None:
        """Open a store as it did."""
        with self._patch.context() as patch:
            patch.setattr(sqlite, "NEWEST", 10)
            patch.setattr(postgres, "NEWEST", 9)
            store.open()

    def opened(self, site: Site) -> Store:
        """Return a store as it opened it, in which it has executed under the key `kept`."""
        store = site.store()
        self.makes(store)
        with self.works():
            assert execute(store, "kept") is False
        return store

    @contextmanager
    def works(self) -> Iterator[None]:
        """Name the table as it did, for the length of a block."""
        with self._patch.context() as patch:
            for module in (sqlite_records, postgres_records):
                for name in STATEMENTS:
                    text = getattr(module, name, "").replace("idempotency_records", VIEW)
                    patch.setattr(module, name, text, raising=False)
            yield


@pytest.fixture
def before(monkeypatch: pytest.MonkeyPatch) -> Before:
    return Before(monkeypatch)


@pytest.fixture
def new(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Site]:
    """A place where nothing is yet."""
    if request.param == "sqlite":
        yield Site("sqlite", str(tmp_path / "jobs.db"))
        return
    with request.getfixturevalue("databases").lend() as url:
        yield Site("postgres", url)


@pytest.mark.shows("E-90", "I-4")
@pytest.mark.parametrize("new", ["postgres"], indirect=True)
def test_processes_of_both_releases_share_their_records(new: Site, before: Before) -> None:
    this, that = new.store(), before.opened(new)
    with before.works():
        running = begin(that, "running")
    with closing(new.connect()) as db:
        db.execute("CREATE ROLE clerk_of_keys")
        db.execute("GRANT SELECT, DELETE ON ulak.hos_idempotency_keys TO clerk_of_keys")
        db.commit()
    assert PostgresStore(new.url).migrate() == (9, postgres.NEWEST)
    this.open()
    assert execute(this, "kept") is True
    with pytest.raises(InProgress):
        begin(this, "running")
    assert execute(this, "ours") is False
    with before.works():
        assert execute(that, "ours") is True
        assert execute(that, "theirs") is False
        with pytest.raises(InProgress):
            begin(that, "running")
        running.settle(Answer(body=b"done"))
        left = begin(that, "left")
        left.abandon()
        expire(new, "ours")
        assert that.clean_records(10) == 1
        assert that.forget_record(_id("kept"), actor="ada", note="") is True
    assert execute(this, "theirs") is True
    assert execute(this, "running", mode="lease") is True
    assert new.keys() == ["running", "theirs"]
    with closing(new.connect()) as db:
        db.execute("GRANT USAGE ON SCHEMA ulak TO clerk_of_keys")
        db.execute("SET ROLE clerk_of_keys")
        db.execute("DELETE FROM ulak.hos_idempotency_keys WHERE key = 'theirs'")
        db.commit()
        db.execute("RESET ROLE")
        db.execute("DROP OWNED BY clerk_of_keys")
        db.execute("DROP ROLE clerk_of_keys")
        db.commit()
    assert new.keys() == ["running"]
    this.close()
    that.close()


@pytest.mark.shows("E-90", "I-4")
@pytest.mark.parametrize("new", ["sqlite"], indirect=True)
def test_a_file_is_migrated_when_the_release_before_has_stopped(new: Site, before: Before) -> None:
    this, that = new.store(), before.opened(new)
    with pytest.raises(StoreError, match=r"is open in another process, .*: stop every process"):
        this.migrate()
    with before.works():
        assert execute(that, "kept") is True, "it goes on as before"
    with pytest.raises(StoreError, match="at schema 10, this ulak needs 11; run `ulak migrate`"):
        this.open()
    that.close()
    assert this.migrate() == (10, sqlite.NEWEST)
    assert this.migrate() == (sqlite.NEWEST, sqlite.NEWEST)
    this.open()
    assert execute(this, "kept") is True
    with pytest.raises(StoreError, match=r"at schema 11, .* only releases that know 11 or later"):
        before.makes(that)
    assert new.keys() == ["kept"]
    this.close()


@pytest.mark.parametrize("new", ["postgres"], indirect=True)
def test_a_role_that_may_not_write_in_public_still_gets_its_schema(new: Site) -> None:
    admin, name = new.url, new.url.rpartition("/")[2]
    with psycopg.connect(admin, autocommit=True) as db:
        db.execute("CREATE ROLE keeper LOGIN")
        db.execute(f"GRANT CREATE ON DATABASE {name} TO keeper")
        db.execute("REVOKE CREATE ON SCHEMA public FROM PUBLIC")
    store = PostgresStore(admin.replace("postgres@", "keeper@", 1))
    try:
        store.open()
        assert execute(store, "k") is False
        assert store.about()["idempotency_view"] is False
        assert new.ask("SELECT ulak.show_idempotency_keys()")[1] == [(True,)]
        assert store.about()["idempotency_view"] is True
        assert new.keys() == ["k"]
    finally:
        store.close()
        with psycopg.connect(admin, autocommit=True) as db:
            db.execute("DROP OWNED BY keeper CASCADE")
            db.execute("DROP ROLE keeper")


@pytest.mark.parametrize("new", ["postgres"], indirect=True)
def test_a_table_of_that_name_stays_what_it_is(new: Site) -> None:
    new.ask("CREATE TABLE public.hos_idempotency_keys (key text)")
    store = PostgresStore(new.url)
    store.open()
    assert store.about()["idempotency_view"] is False
    assert new.ask("SELECT count(*) FROM public.hos_idempotency_keys")[1] == [(0,)]
    store.close()


def test_every_column_of_a_record_is_one_of_the_table(site: Site, store: Store) -> None:
    with closing(site.connect()) as db:
        cursor = db.execute(site.write("SELECT * FROM {table}"))
        assert {column[0] for column in cursor.description} == {"id", *RecordRow._fields}
