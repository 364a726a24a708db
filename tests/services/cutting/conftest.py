"""Cutting on either database."""

from collections.abc import Iterator
from pathlib import Path

import pytest

import ulak
from tests.conformance.stores import make_schema
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
