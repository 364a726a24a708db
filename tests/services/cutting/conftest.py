"""Cutting on either database."""

from collections.abc import Iterator
from pathlib import Path

import pytest

import ulak
from tests.conformance.stores import make_schema
from tests.services.cutting.desk import Desk, OpenDesk
from ulak.services.cutting import SCHEMA
from ulak.tables import Tables


def make_cutting(url: str) -> None:
    """Make the tables of the engine and of cutting in an empty database."""
    make_schema(url)
    with ulak.connect(url) as engine:
        Tables(engine, SCHEMA).ensure()


@pytest.fixture(params=["sqlite", "postgres"])
def url(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[str]:
    if request.param == "sqlite":
        yield f"sqlite:///{tmp_path / 'cutting.db'}"
        return
    with request.getfixturevalue("databases").lend(make_cutting) as url:
        yield url


@pytest.fixture
def open_desk(tmp_path: Path) -> Iterator[OpenDesk]:
    """Cutting on SQLite, with rules of a test, and its API at both addresses."""
    made: list[Desk] = []

    def start(**rules: object) -> Desk:
        made.append(Desk(f"sqlite:///{tmp_path / 'cutting.db'}", tmp_path / "data", **rules))
        return made[-1]

    yield start
    for desk in made:
        desk.engine.close()


@pytest.fixture
def desk(open_desk: OpenDesk) -> Desk:
    return open_desk()


@pytest.fixture
def any_desk(url: str, tmp_path: Path) -> Iterator[Desk]:
    """Cutting on either database; the customer of the orders is known."""
    desk = Desk(url, tmp_path / "data")
    desk.know()
    yield desk
    desk.engine.close()
