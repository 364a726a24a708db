"""The tables are created by whoever comes first, once, and kept by whoever comes later."""

from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from importlib.resources import files
from pathlib import Path
from threading import Barrier

import pytest

from tests.conformance.stores import make_schema
from tests.services.contracts.house import TENANT, House, backdoor
from ulak.errors import StoreError
from ulak.services.contracts.ledger import SCHEMA
from ulak.tables import Tables

CROWD = 6
NEWEST = 3


@pytest.fixture(params=["sqlite", "postgres"])
def url(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[str]:
    """A store that has never heard of contracts."""
    if request.param == "sqlite":
        yield f"sqlite:///{tmp_path / 'contracts.db'}"
        return
    with request.getfixturevalue("databases").lend(make_schema) as url:
        yield url


def test_many_who_start_at_once_make_the_tables_once(open_house: Callable[..., House]) -> None:
    houses = [open_house() for _ in range(CROWD)]
    for house in houses:
        house.engine.open()
    together = Barrier(CROWD)

    def begin(house: House) -> int:
        together.wait()
        return house.move("a", from_="pending", to="paid").status_code

    with ThreadPoolExecutor(CROWD) as threads:
        assert set(threads.map(begin, houses)) == {200}
    assert len(houses[0].proofs()) == 1
    assert houses[0].sql("SELECT version FROM {schema}.hos_contract_schema") == [(NEWEST,)]


def test_another_start_keeps_what_is_there(open_house: Callable[..., House]) -> None:
    first = open_house()
    first.move("a", from_="pending", to="paid")
    first.close()
    second = open_house()
    assert second.subject()["status"] == "paid"


def test_who_finds_the_tables_there_waits_for_nobody_who_writes(
    open_house: Callable[..., House],
) -> None:
    first = open_house()
    first.move("a", from_="pending", to="paid")
    second = open_house()
    second.engine.open()
    with first.engine.transaction():
        assert second.subject()["status"] == "paid"


def test_tables_of_a_newer_release_are_left_alone(open_house: Callable[..., House]) -> None:
    house = open_house()
    house.move("a", from_="pending", to="paid")
    house.sql("UPDATE {schema}.hos_contract_schema SET version = 99, oldest = 98")
    older = open_house()
    with pytest.raises(StoreError, match=f"at schema 99, this release knows {NEWEST}"):
        older.contracts.find_subject("a", "b", "c")
    assert older.move("a", from_="pending", to="paid").status_code == 503


@pytest.mark.parametrize("version", [1, 2])
def test_a_database_of_an_earlier_release_goes_on(
    open_house: Callable[..., House], version: int
) -> None:
    """By the names and numbers that were stored then, whoever makes the tables now."""
    house = open_house()
    house.engine.open()
    make_by_hand(house, version)
    assert house.subject()["status"] == "pending"
    assert house.move("a", from_="pending", to="paid").status_code == 200
    assert house.subject()["status"] == "paid"
    assert house.contracts.verify().broken == ()
    assert house.sql("SELECT version FROM {schema}.hos_contract_schema") == [(NEWEST,)]
    assert house.sql("SELECT count(*) FROM {schema}.hos_outbox_events") == [(0,)]


@pytest.mark.parametrize("url", ["postgres"], indirect=True)
def test_an_earlier_release_that_starts_at_the_same_time_waits_for_this_one(
    open_house: Callable[..., House],
) -> None:
    """Both make the tables behind one lock, by the number that the first release had."""
    house = open_house()
    tables = Tables(house.engine, SCHEMA)
    with tables.writing() as connection:
        tables.take_turns(connection)
        assert house.sql("SELECT pg_try_advisory_xact_lock(6844275)") == [(False,)]
    assert house.sql("SELECT pg_try_advisory_xact_lock(6844275)") == [(True,)]


def make_by_hand(house: House, version: int) -> None:
    """Make the tables as they were at a version, with one subject in them."""
    scripts = files("ulak.services.contracts") / "sql"
    house.sql("CREATE TABLE {schema}.hos_contract_schema (version INTEGER NOT NULL)")
    house.sql("INSERT INTO {schema}.hos_contract_schema VALUES (?)", version)
    with backdoor(house.url) as (db, schema, _):
        for number in range(1, version + 1):
            if schema == "main":
                db.executescript((scripts / "sqlite" / f"{number:04}.sql").read_text())
            else:
                db.execute((scripts / "postgresql" / f"{number:04}.sql").read_text())
        db.commit()
    house.sql(
        "INSERT INTO {schema}.hos_contract_subjects "
        "VALUES (?, 'order', '1', 'pending', 0, NULL, 0, 0)",
        TENANT,
    )
