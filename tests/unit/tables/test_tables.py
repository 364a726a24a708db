"""Rows of a service are read and written on the connections of its engine."""

from pathlib import Path

import pytest

import ulak
from tests.unit.tables.conftest import Service
from ulak.clock import ManualClock
from ulak.engine.engine import Engine
from ulak.errors import StoreError
from ulak.store.sqlite import SqliteStore
from ulak.tables import Row, Tables

ADD = "INSERT INTO {schema}.acme_notes (text) VALUES (?)"
TEXTS = "SELECT text FROM {schema}.acme_notes ORDER BY text"


class Regret(Exception):
    """Somebody thinks better of it."""


def test_what_is_written_in_a_block_is_there_after_it(service: Service) -> None:
    tables, other = service.start(), service.start()
    other.ensure()
    with tables.writing() as connection:
        for text in ("a", "b"):
            tables.execute(connection, ADD, text)
        assert tables.execute(connection, TEXTS) == [("a",), ("b",)]
        assert other.read(TEXTS) == []
    assert other.read(TEXTS) == [("a",), ("b",)]


def test_one_statement_is_written_in_a_transaction_of_its_own(service: Service) -> None:
    tables, other = service.start(), service.start()
    assert tables.write(ADD, "a") == []
    assert tables.write(f"{ADD} RETURNING text", "b") == [("b",)]
    assert other.read(TEXTS) == [("a",), ("b",)]


def test_what_is_raised_in_a_block_takes_everything_back(service: Service) -> None:
    tables = service.start()

    def regret() -> None:
        with tables.writing() as connection:
            tables.execute(connection, ADD, "a")
            raise Regret

    with pytest.raises(Regret):
        regret()
    assert tables.read(TEXTS) == []


# Each is what the driver raises of a database that cannot answer.
FAULTS = {
    "sqlite": ["SELECT * FROM nowhere"],
    "postgresql": ["SET LOCAL statement_timeout = 1", "SELECT pg_sleep(60)"],
}


def test_a_driver_that_others_use_in_the_transaction_is_translated(service: Service) -> None:
    tables = service.start()

    def fail() -> None:
        with tables.writing() as connection, tables.database.translated():
            tables.execute(connection, ADD, "a")
            for statement in FAULTS[tables.database.name]:
                connection.execute(statement)

    with pytest.raises(StoreError, match="the database cannot answer"):
        fail()
    assert tables.read(TEXTS) == []


def test_rows_and_jobs_are_one_commit(service: Service) -> None:
    engine = service.engine()
    tables = Tables(engine, service.schema())

    @engine.job
    def remind(text: str) -> None: ...

    def regret() -> None:
        with tables.writing() as connection:
            tables.execute(connection, ADD, "never")
            engine.submit(remind, "never", connection=connection)
            raise Regret

    with pytest.raises(Regret):
        regret()
    with tables.writing() as connection:
        tables.execute(connection, ADD, "once")
        job = engine.submit(remind, "once", connection=connection)
    assert tables.read(TEXTS) == [("once",)]
    assert [found.id for found in engine.jobs()] == [job.id]


def test_who_finds_the_tables_there_waits_for_nobody_who_writes(service: Service) -> None:
    first, second = service.start(), service.start()
    first.ensure()
    service.engines[1].open()
    with first.writing() as connection:
        first.execute(connection, ADD, "a")
        assert second.read(TEXTS) == []


def test_tables_can_be_used_in_a_transaction_of_somebody_else(service: Service) -> None:
    engine = service.engine()
    tables = Tables(engine, service.schema())
    tables.ensure()
    with engine.transaction() as connection:
        tables.execute(connection, ADD, "a")
    assert tables.read(TEXTS) == [("a",)]


@pytest.mark.parametrize("url", ["postgres"], indirect=True)
def test_a_row_is_locked_until_the_transaction_ends(service: Service) -> None:
    """A file of SQLite has one writer: there the words are left out, and no row needs a lock."""
    tables, other = service.start(), service.start()
    with tables.writing() as connection:
        tables.execute(connection, ADD, "a")

    def free() -> list[Row]:
        with other.writing() as connection:
            return other.execute(connection, f"{TEXTS}{{for_update}} SKIP LOCKED")

    with tables.writing() as connection:
        assert tables.execute(connection, TEXTS + "{for_update}") == [("a",)]
        assert free() == []
    assert free() == [("a",)]


@pytest.mark.parametrize("url", ["sqlite"], indirect=True)
def test_the_words_of_a_lock_are_left_out_where_there_is_one_writer(service: Service) -> None:
    assert service.start().read(TEXTS + "{for_update}") == []


def test_the_time_is_that_of_the_store(tmp_path: Path, service: Service) -> None:
    clock = ManualClock()
    with Engine(SqliteStore(str(tmp_path / "other.db"), clock=clock)) as engine:
        assert Tables(engine, service.schema()).now == clock.now()


def test_nothing_is_opened_before_the_first_use(tmp_path: Path, service: Service) -> None:
    Tables(ulak.connect(f"sqlite:///{tmp_path / 'other.db'}"), service.schema())
    assert not (tmp_path / "other.db").exists()
