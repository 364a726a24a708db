"""Contracts on either database; a process is closed when its test has ended."""

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.services.contracts.house import House, make_tables


@pytest.fixture(params=["sqlite", "postgres"])
def url(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[str]:
    if request.param == "sqlite":
        yield f"sqlite:///{tmp_path / 'contracts.db'}"
        return
    with request.getfixturevalue("databases").lend(make_tables) as url:
        yield url


@pytest.fixture
def open_house(url: str) -> Iterator[Callable[..., House]]:
    """Start another process on the same store."""
    made: list[House] = []

    def start(**options: object) -> House:
        made.append(House(url, **options))
        return made[-1]

    yield start
    for house in made:
        house.close()


@pytest.fixture
def house(open_house: Callable[..., House]) -> House:
    return open_house()
