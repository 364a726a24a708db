"""The tables are created by whoever comes first, once, and kept by whoever comes later."""

from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from threading import Barrier

import pytest

from tests.conformance.stores import make_schema
from tests.services.contracts.house import House
from ulak.errors import StoreError
from ulak.services.contracts.schema import NEWEST

CROWD = 6


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
    house.sql("UPDATE {schema}.hos_contract_schema SET version = 99")
    older = open_house()
    with pytest.raises(StoreError, match=f"at schema 99, this ulak knows {NEWEST}"):
        older.contracts.find_subject("a", "b", "c")
    assert older.move("a", from_="pending", to="paid").status_code == 503
