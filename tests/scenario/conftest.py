"""What the stories share: each is told on every store that can tell it."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.conformance.stores import make_schema
from tests.scenario.idempotent_servers import Site, site_of


@pytest.fixture(params=["memory", "sqlite", "postgres"])
def jobs_url(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[str]:
    """The URL of an empty store, for `Harness(url=...)` and `store_of`."""
    if request.param == "memory":
        yield "memory://"
    else:
        yield from _shared(request, tmp_path)


@pytest.fixture(params=["sqlite", "postgres"])
def shared_url(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[str]:
    """The URL of an empty store that several processes, or several lives of one, can share."""
    yield from _shared(request, tmp_path)


@pytest.fixture
def site(shared_url: str, tmp_path: Path) -> Iterator[Site]:
    """Where servers of contracts are started, all on one store; they end with the test."""
    with site_of(shared_url, tmp_path) as made:
        yield made


def _shared(request: pytest.FixtureRequest, folder: Path) -> Iterator[str]:
    if request.param == "sqlite":
        yield f"sqlite:///{folder}/jobs.db"
        return
    with request.getfixturevalue("databases").lend(make_schema) as url:
        yield url
