"""`engine.transaction()` and `engine.reading()`: rows of the program in the store's database."""

import asyncio
import sqlite3
import threading
from collections.abc import Callable, Iterator
from contextlib import closing
from datetime import timedelta
from operator import methodcaller
from pathlib import Path
from typing import Any, cast

import psycopg
import pytest

import ulak
from ulak import BadInput, Engine
from ulak.errors import Contended, NotSupported
from ulak.store.sqlite import SqliteStore

ROWS = "CREATE TABLE orders (number INTEGER)"
READ = "SELECT number FROM orders ORDER BY number"


@pytest.fixture
def engine(shared_url: str) -> Iterator[Engine]:
    engine = ulak.connect(shared_url)

    @engine.job
    def ship(order: int) -> int:
        return order

    engine.ship = ship  # type: ignore[attr-defined] # the one job of these stories
    with engine:
        with engine.transaction() as connection:
            connection.execute(ROWS)
        yield engine
        assert engine.inspect.verify() == []


def orders(engine: Engine) -> list[int]:
    with engine.reading() as connection:
        return [n for (n,) in connection.execute(READ).fetchall()]


def order(engine: Engine, connection: Any, number: int) -> ulak.Job:
    connection.execute(f"INSERT INTO orders VALUES ({number})")  # noqa: S608 - a number of ours
    return engine.submit(engine.ship, number, connection=connection)  # type: ignore[attr-defined]


def order_and(engine: Engine, spoil: Callable[[Any], object]) -> None:
    """Order something in a transaction, and do something else there."""
    with engine.transaction() as connection:
        order(engine, connection, 1)
        spoil(connection)


def leave(_: Any) -> None:
    raise RuntimeError("the customer has gone")


def swallow(connection: Any) -> None:
    with pytest.raises(psycopg.Error):
        connection.execute("SELECT nonsense")


def test_rows_and_jobs_are_one_commit(engine: Engine) -> None:
    with engine.transaction() as connection:
        job = order(engine, connection, 1)
        assert orders(engine) == [], "nobody else sees it before the commit"
    assert orders(engine) == [1]
    assert engine.get(job.id).state == "queued"


def test_an_exception_takes_rows_and_jobs_back(engine: Engine) -> None:
    with pytest.raises(RuntimeError, match="gone"):
        order_and(engine, leave)
    assert orders(engine) == []
    assert engine.jobs() == []


def test_a_worker_is_told_of_a_job_in_a_transaction(engine: Engine) -> None:
    rung = threading.Event()
    engine.store.on_commit(rung.set)
    with engine.transaction() as connection:
        order(engine, connection, 1)
        rung.clear()
    assert rung.is_set()


def test_a_worker_runs_what_was_submitted_in_a_transaction(engine: Engine) -> None:
    with engine.working():
        with engine.transaction() as connection:
            job = order(engine, connection, 7)
        engine.wait(job.id, timeout=timedelta(seconds=20))
    assert engine.result(job.id) == 7


def test_ending_the_transaction_by_hand_is_refused(engine: Engine) -> None:
    for end in ("commit", "rollback"):
        with pytest.raises((psycopg.ProgrammingError, sqlite3.DatabaseError)):
            order_and(engine, methodcaller(end))
    assert orders(engine) == []
    assert engine.jobs() == []


def test_a_statement_that_failed_and_was_swallowed_takes_everything_back(engine: Engine) -> None:
    if engine.store.features.dialect == "sqlite":
        pytest.skip("on SQLite a statement that fails leaves the transaction whole")
    with pytest.raises(BadInput, match="a statement failed"):
        order_and(engine, swallow)
    assert orders(engine) == []


def test_what_is_set_on_a_connection_does_not_surprise_the_next(engine: Engine) -> None:
    with engine.transaction() as connection:
        connection.row_factory = (
            sqlite3.Row if isinstance(connection, sqlite3.Connection) else psycopg.rows.dict_row
        )
        order(engine, connection, 1)
    with engine.transaction() as connection:
        assert connection.execute(READ).fetchall() == [(1,)]


def test_a_connection_for_reading_writes_nothing(engine: Engine) -> None:
    with (
        pytest.raises((psycopg.Error, sqlite3.OperationalError), match=r"read-?only"),
        engine.reading() as connection,
    ):
        connection.execute("INSERT INTO orders VALUES (1)")
    assert orders(engine) == []


def test_what_is_read_is_of_one_moment(engine: Engine) -> None:
    with engine.reading() as reading:
        assert reading.execute(READ).fetchall() == []
        with engine.transaction() as connection:
            order(engine, connection, 1)
        assert reading.execute(READ).fetchall() == []
    assert orders(engine) == [1]


def test_code_that_has_the_only_turn_is_not_left_waiting_for_it(engine: Engine) -> None:
    if not engine.store.features.one_writer:
        pytest.skip("here others write meanwhile")
    waits = "inside of an open transaction.*connection="
    with engine.transaction() as connection:
        order(engine, connection, 1)
        with pytest.raises(BadInput, match=waits):
            engine.submit(engine.ship, 2)  # type: ignore[attr-defined]
        with pytest.raises(BadInput, match=waits):
            asyncio.run(engine.aio.submit(engine.ship, 2))  # type: ignore[attr-defined]
        with pytest.raises(BadInput, match=waits):
            engine.flow_control.pause(queue="ship", actor="ada")
        with pytest.raises(BadInput, match=waits), engine.transaction():
            pass
        with pytest.raises(BadInput, match=waits):
            engine.store.close()
    assert engine.submit(engine.ship, 2).created  # type: ignore[attr-defined]
    assert orders(engine) == [1]


def test_a_task_that_outlives_the_transaction_writes_again(engine: Engine) -> None:
    async def later(ended: asyncio.Event) -> bool:
        await ended.wait()
        job: ulak.Job = await engine.aio.submit(engine.ship, 3)  # type: ignore[attr-defined]
        return job.created

    async def story() -> bool:
        ended = asyncio.Event()
        with engine.transaction():
            task = asyncio.create_task(later(ended))
            await asyncio.sleep(0)
        ended.set()
        return await task

    assert asyncio.run(story())


def test_a_store_without_transactions_says_so() -> None:
    with ulak.connect("memory://") as engine:
        for verb in (engine.transaction, engine.reading):
            said = rf"engine\.{verb.__name__}\(\).* memory store.*SQLite or PostgreSQL"
            with pytest.raises(NotSupported, match=said), verb():
                pass


def test_a_writer_outside_of_ulak_is_waited_for_only_so_long(tmp_path: Path) -> None:
    with ulak.connect(f"sqlite:///{tmp_path}/jobs.db") as engine:
        engine.open()
        with closing(sqlite3.connect(tmp_path / "jobs.db", isolation_level=None)) as shell:
            shell.execute("BEGIN IMMEDIATE")
            for patience_ms in (0, 20):
                with pytest.raises(Contended, match="others are writing"):
                    cast(SqliteStore, engine.store).begin(patience_ms=patience_ms)
            shell.execute("ROLLBACK")
        with engine.transaction() as connection:
            connection.execute(ROWS)
        assert orders(engine) == []
