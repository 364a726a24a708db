"""`submit(connection=)`: a job is part of the caller's own transaction, on PostgreSQL."""

import asyncio
import threading
import uuid
from collections.abc import Iterator
from contextlib import closing
from datetime import timedelta
from typing import Any

import psycopg
import pytest
import sqlalchemy
from psycopg import errors
from psycopg.adapt import Loader
from psycopg.rows import dict_row

import ulak
from tests.databases import Databases
from tests.scenario.callers import OWN_TABLE, POSTGRES, Caller, on_postgres
from tests.scenario.doubles import SOON, eventually, settings
from ulak import BadInput, Dedup, Flow, Lifecycle, Until
from ulak.errors import NotSupported

each_kind = pytest.mark.parametrize("kind", POSTGRES)


def shipping(**options: Any) -> Flow[Any]:
    """A flow whose jobs are one for each order number."""
    dedup = Dedup(key=lambda payload: str(payload["order"]), until=Until.FAILED_FOR_GOOD)
    made: Flow[Any] = Flow(
        "shipping", Lifecycle("asked", {"asked": ["done"]}), **{"dedup": dedup} | options
    )

    @made.stage("asked")
    def ship(run: Any) -> Any:
        return run.payload["order"]

    return made


def prepare(url: str) -> None:
    with psycopg.connect(url) as db:
        db.execute(OWN_TABLE)
    ulak.connect(url).open().close()


class Shop:
    """A program with a table of its own in the database of its jobs."""

    def __init__(self, url: str, flow: Flow[Any]) -> None:
        self.url = url
        self.flow = flow
        self.engine = ulak.connect(url, flows=[flow])

    def orders(self) -> list[int]:
        with psycopg.connect(self.url) as db:
            return [n for (n,) in db.execute("SELECT number FROM orders ORDER BY number")]

    def is_untouched(self) -> bool:
        """Nothing was stored, not even a half."""
        return (
            self.orders() == []
            and self.engine.jobs() == self.engine.inspect.counts() == []
            and self.engine.inspect.verify() == []
        )


@pytest.fixture
def url(databases: Databases) -> Iterator[str]:
    with databases.lend(prepare) as lent:
        yield lent


@pytest.fixture
def shop(url: str) -> Iterator[Shop]:
    made = Shop(url, shipping())
    with made.engine:
        yield made


@pytest.fixture
def mine(url: str, kind: str) -> Iterator[Caller]:
    made = on_postgres(kind, url)
    yield made
    made.close()


# --- what is promised -----------------------------------------------------------------


@each_kind
@pytest.mark.shows("E-33")
def test_a_commit_stores_the_job_with_the_callers_rows(shop: Shop, mine: Caller) -> None:
    mine.order(1)
    job = mine.submit(shop.engine, shop.flow, {"order": 1}, tenant="acme", actor="ada")
    assert (job.created, job.state, job.tenant) == (True, "asked", "acme")
    assert shop.is_untouched()
    mine.commit()
    assert shop.orders() == [1]
    assert shop.engine.get(job.id) == job
    assert shop.engine.inspect.payload(job.id) == {"order": 1}
    assert [e.kind for e in shop.engine.inspect.trail(job.id)] == ["submitted"]
    assert shop.engine.inspect.verify() == []
    with shop.engine.working(settings()):
        assert shop.engine.wait(job.id, timeout=SOON).state == "done"
    assert shop.engine.inspect.verify() == []


@each_kind
@pytest.mark.shows("E-33")
def test_a_submit_may_be_what_begins_the_transaction(shop: Shop, mine: Caller) -> None:
    job = mine.submit(shop.engine, shop.flow, {"order": 1})
    assert shop.is_untouched()
    mine.commit()
    assert shop.engine.get(job.id) == job


@each_kind
@pytest.mark.shows("E-33")
def test_a_rollback_takes_the_job_with_it(shop: Shop, mine: Caller) -> None:
    lost = mine.submit(shop.engine, shop.flow, {"order": 1})
    mine.order(1)
    mine.rollback()
    assert shop.is_untouched()
    again = shop.engine.submit(shop.flow, {"order": 1})
    assert again.created
    assert again.id != lost.id


@each_kind
@pytest.mark.shows("E-33", "E-30")
def test_a_duplicate_is_answered_with_the_first_job_and_harms_nothing(
    shop: Shop, mine: Caller
) -> None:
    first = shop.engine.submit(shop.flow, {"order": 1}, tenant="Ä", actor="çelebi")
    mine.order(1)
    same = mine.submit(shop.engine, shop.flow, {"order": 1}, tenant="Ä")
    assert not same.created
    assert same.id == first.id
    assert (same.submitter, same.tenant) == ("çelebi", "Ä")
    own = mine.submit(shop.engine, shop.flow, {"order": 2})
    twin = mine.submit(shop.engine, shop.flow, {"order": 2})
    assert (own.created, twin.created, twin.id) == (True, False, own.id)
    mine.commit()
    assert shop.orders() == [1]
    assert {job.id for job in shop.engine.jobs()} == {first.id, own.id}
    assert shop.engine.inspect.verify() == []


@each_kind
@pytest.mark.shows("E-30", "E-33")
@pytest.mark.parametrize("ends", ["commit", "rollback"])
def test_a_key_in_an_open_foreign_transaction_is_waited_for(
    shop: Shop, mine: Caller, ends: str
) -> None:
    with psycopg.connect(shop.url) as other:
        theirs = shop.engine.submit(shop.flow, {"order": 1}, connection=other)

        def end() -> None:
            with psycopg.connect(shop.url) as watcher:
                eventually(lambda: watcher.execute(WAITING).fetchone() == (True,))
                watcher.rollback()
            getattr(other, ends)()

        ending = threading.Thread(target=end)
        ending.start()
        mine.order(1)
        job = mine.submit(shop.engine, shop.flow, {"order": 1})
        ending.join()
        assert (job.created, job.id == theirs.id) == (
            (False, True) if ends == "commit" else (True, False)
        )
        mine.commit()
    assert shop.orders() == [1]
    assert [j.id for j in shop.engine.jobs()] == [job.id]
    assert shop.engine.inspect.verify() == []


WAITING = "SELECT EXISTS (SELECT FROM pg_locks WHERE NOT granted)"


@pytest.mark.shows("E-33")
def test_the_row_of_a_key_that_is_held_is_not_locked(shop: Shop) -> None:
    first = shop.engine.submit(shop.flow, {"order": 1})
    with psycopg.connect(shop.url) as mine:
        assert not shop.engine.submit(shop.flow, {"order": 1}, connection=mine).created
        # Frees its key while the other transaction is open; it would wait for ever otherwise.
        assert shop.engine.cancel(first.id, actor="ada").state == "cancelled"
        assert shop.engine.submit(shop.flow, {"order": 1}, connection=mine).created
        mine.rollback()


@pytest.mark.shows("E-33")
@pytest.mark.parametrize("level", ["REPEATABLE READ", "SERIALIZABLE"])
def test_above_read_committed_the_drivers_own_error_comes_through(shop: Shop, level: str) -> None:
    with psycopg.connect(shop.url) as mine:
        mine.execute(f"SET TRANSACTION ISOLATION LEVEL {level}")
        mine.execute("SELECT * FROM orders")
        shop.engine.submit(shop.flow, {"order": 1})
        with pytest.raises(errors.SerializationFailure):
            shop.engine.submit(shop.flow, {"order": 1}, connection=mine)
        mine.rollback()
        mine.execute(f"SET TRANSACTION ISOLATION LEVEL {level}")
        same = shop.engine.submit(shop.flow, {"order": 1}, connection=mine)
        other = shop.engine.submit(shop.flow, {"order": 2}, connection=mine)
        assert (same.created, other.created) == (False, True)
        mine.commit()
    assert len(shop.engine.jobs()) == 2


@each_kind
@pytest.mark.shows("E-30", "E-33")
def test_an_expired_key_is_taken_over(url: str, mine: Caller) -> None:
    dedup = Dedup(key=lambda payload: "one", until=Until.FORGOTTEN, keep=timedelta(milliseconds=50))
    shop = Shop(url, shipping(dedup=dedup))
    with shop.engine:
        first = shop.engine.submit(shop.flow, {"order": 1})
        jobs: list[Any] = []

        def is_another() -> bool:
            jobs.append(mine.submit(shop.engine, shop.flow, {"order": 2}))
            return jobs[-1].created

        eventually(is_another)
        mine.commit()
        assert jobs[-1].id != first.id
        assert {j.id for j in jobs[:-1]} <= {first.id}
        assert shop.engine.inspect.verify() == []


@pytest.mark.shows("E-33", "E-47")
def test_proofs_are_refused_by_name_with_the_reason(url: str) -> None:
    shop = Shop(url, shipping(proofs=True))
    with shop.engine, psycopg.connect(url) as mine:
        with pytest.raises(NotSupported, match=r"shipping has proofs.*would wait.*dedup_key"):
            shop.engine.submit(shop.flow, {"order": 1}, connection=mine)
        assert shop.is_untouched()


# --- what the caller has set up does not matter ---------------------------------------


class Refusing(Loader):
    def load(self, data: Any) -> Any:
        raise AssertionError("the caller's own way of reading was used")


@pytest.mark.shows("E-33")
def test_factories_adapters_and_paths_do_not_matter_and_stay(shop: Shop) -> None:
    first = shop.engine.submit(shop.flow, {"order": 1}, actor="ada")
    with psycopg.connect(shop.url, row_factory=dict_row, cursor_factory=psycopg.RawCursor) as mine:
        mine.execute("SET search_path = pg_catalog")
        mine.execute("CREATE TEMP TABLE jobs (mine integer)")
        for name in ("uuid", "text", "int2", "int4", "int8", "bytea"):
            mine.adapters.register_loader(name, Refusing)
            mine.adapters.register_loader(name, type("Bin", (Refusing,), {"format": 1}))
        same = shop.engine.submit(shop.flow, {"order": 1}, connection=mine)
        assert (same.id, same.created, same.submitter) == (first.id, False, "ada")
        own = shop.engine.submit(shop.flow, {"order": 2}, connection=mine)
        mine.commit()
        assert mine.row_factory is dict_row
        assert mine.cursor_factory is psycopg.RawCursor
        with pytest.raises(AssertionError, match="own way of reading"):
            mine.execute("SELECT 1::int4").fetchone()
    assert shop.engine.get(own.id) == own
    assert uuid.UUID(own.id)
    assert shop.engine.inspect.verify() == []


@pytest.mark.shows("E-33")
def test_nothing_but_plain_statements_is_run(shop: Shop, monkeypatch: pytest.MonkeyPatch) -> None:
    said: list[str] = []
    execute = psycopg.Cursor.execute

    def listen(self: Any, statement: Any, *rest: Any, **options: Any) -> Any:
        if self.connection is mine:
            said.append(str(statement).split()[0])
        return execute(self, statement, *rest, **options)

    with psycopg.connect(shop.url) as mine:
        mine.execute("SELECT 1")
        settings_before = dict(mine.execute("SELECT name, setting FROM pg_settings").fetchall())
        monkeypatch.setattr(psycopg.Cursor, "execute", listen)
        shop.engine.submit(shop.flow, {"order": 1}, connection=mine)
        shop.engine.submit(shop.flow, {"order": 1}, connection=mine)
        monkeypatch.undo()
        assert set(said) == {"SELECT", "INSERT", "WITH"}
        after = dict(mine.execute("SELECT name, setting FROM pg_settings").fetchall())
        assert after == settings_before
        mine.rollback()
    assert shop.is_untouched()


@pytest.mark.shows("E-33")
def test_savepoints_of_the_caller_hold_the_job_too(shop: Shop) -> None:
    with psycopg.connect(shop.url) as mine, mine.transaction():
        kept = shop.engine.submit(shop.flow, {"order": 1}, connection=mine)
        with mine.transaction(force_rollback=True):
            shop.engine.submit(shop.flow, {"order": 2}, connection=mine)
    assert [job.id for job in shop.engine.jobs()] == [kept.id]
    assert shop.engine.inspect.verify() == []


@pytest.mark.shows("E-33", "E-55")
def test_the_same_through_a_pooler(shop: Shop, pooler_server: Any) -> None:
    pooled = pooler_server.url(shop.url.rpartition("/")[2])
    with psycopg.connect(pooled, prepare_threshold=None) as mine:
        job = shop.engine.submit(shop.flow, {"order": 1}, connection=mine)
        mine.commit()
    assert shop.engine.get(job.id).state == "asked"


# --- what is refused, with what works -------------------------------------------------


@pytest.mark.shows("E-33")
def test_autocommit_is_refused_unless_a_transaction_is_open(shop: Shop) -> None:
    with psycopg.connect(shop.url, autocommit=True) as mine:
        with pytest.raises(BadInput, match=r"commits each statement.*connection\.transaction\(\)"):
            shop.engine.submit(shop.flow, {"order": 1}, connection=mine)
        assert shop.is_untouched()
        with mine.transaction():
            job = shop.engine.submit(shop.flow, {"order": 1}, connection=mine)
    assert shop.engine.get(job.id).state == "asked"


@pytest.mark.shows("E-33")
def test_autocommit_of_sqlalchemy_is_refused(shop: Shop) -> None:
    engine = sqlalchemy.create_engine(
        shop.url.replace("postgresql:", "postgresql+psycopg:"), isolation_level="AUTOCOMMIT"
    )
    with engine.connect() as mine:
        with pytest.raises(BadInput, match="commits each statement"):
            shop.engine.submit(shop.flow, {"order": 1}, connection=mine)
        assert not mine.in_transaction()
    engine.dispose()
    assert shop.is_untouched()


@pytest.mark.shows("E-33")
def test_a_failed_transaction_is_refused(shop: Shop) -> None:
    with psycopg.connect(shop.url) as mine:
        with pytest.raises(errors.DivisionByZero):
            mine.execute("SELECT 1 / 0")
        with pytest.raises(BadInput, match="has failed; roll it back"):
            shop.engine.submit(shop.flow, {"order": 1}, connection=mine)
        mine.rollback()
        shop.engine.submit(shop.flow, {"order": 1}, connection=mine)
        mine.rollback()
    assert shop.is_untouched()


@each_kind
@pytest.mark.shows("E-33")
def test_another_database_is_refused(shop: Shop, databases: Databases, kind: str) -> None:
    with databases.lend(prepare) as elsewhere, closing(on_postgres(kind, elsewhere)) as mine:
        mine.order(1)
        with pytest.raises(BadInput, match="to another database than the jobs are in"):
            mine.submit(shop.engine, shop.flow, {"order": 1})
        mine.commit()
        assert Shop(elsewhere, shop.flow).orders() == [1]
    assert shop.is_untouched()


@pytest.mark.shows("E-33")
def test_another_encoding_is_refused(shop: Shop) -> None:
    mine = psycopg.connect(shop.url, client_encoding="latin1")
    with mine, pytest.raises(BadInput, match="client_encoding=utf8"):
        shop.engine.submit(shop.flow, {"order": 1}, connection=mine)
    assert shop.is_untouched()


@pytest.mark.shows("E-33")
def test_another_driver_is_refused_with_what_works(shop: Shop) -> None:
    works = r"cannot be used here; give a psycopg\.Connection.*SQLAlchemy over psycopg"
    with closing(on_sqlite_alchemy()) as mine, pytest.raises(BadInput, match=works) as refused:
        shop.engine.submit(shop.flow, {"order": 1}, connection=mine)
    assert "sqlalchemy.Connection over sqlite3.Connection" in str(refused.value)

    async def with_asyncpg() -> None:
        from sqlalchemy.ext.asyncio import create_async_engine

        engine = create_async_engine(shop.url.replace("postgresql:", "postgresql+asyncpg:"))
        try:
            async with engine.connect() as connection:
                await shop.engine.aio.submit(shop.flow, {"order": 1}, connection=connection)
        finally:
            await engine.dispose()

    with pytest.raises(
        BadInput, match=r"AsyncConnection over asyncpg\.Connection cannot be used here"
    ):
        asyncio.run(with_asyncpg())
    assert shop.is_untouched()


def on_sqlite_alchemy() -> Any:
    return sqlalchemy.create_engine("sqlite://").connect()


@each_kind
@pytest.mark.shows("E-33")
def test_the_verb_must_go_with_the_connection(shop: Shop, mine: Caller) -> None:
    if mine.is_async:
        with pytest.raises(BadInput, match=r"is asynchronous; await engine\.aio\.submit"):
            shop.engine.submit(shop.flow, {"order": 1}, connection=mine.connection)
    else:
        verb = shop.engine.aio.submit(shop.flow, {"order": 1}, connection=mine.connection)
        with pytest.raises(BadInput, match=r"would stop the event loop; .*engine\.submit"):
            asyncio.run(verb)
    mine.rollback()
    assert shop.is_untouched()
