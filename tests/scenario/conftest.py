"""What the stories share: each is told on every store that can tell it."""

import itertools
from collections.abc import Iterator
from pathlib import Path

import psycopg
import pytest

from tests.conformance.stores import make_schema
from tests.scenario.idempotent_servers import Site, site_of
from ulak.testing.servers import Postgres

NUMBERS = itertools.count(1)


@pytest.fixture(
    params=["memory", "sqlite", "postgres", pytest.param("redis", marks=pytest.mark.sampled)]
)
def jobs_url(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[str]:
    """The URL of an empty store, for `Harness(url=...)` and `store_of`."""
    if request.param == "memory":
        yield "memory://"
    elif request.param == "redis":
        yield request.getfixturevalue("redis_url")
    else:
        yield from _shared(request, tmp_path)


@pytest.fixture(params=["sqlite", "postgres"])
def shared_url(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[str]:
    """The URL of an empty store that several processes, or several lives of one, can share."""
    yield from _shared(request, tmp_path)


@pytest.fixture(params=["sqlite", "postgres", "redis"])
def records_url(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[str]:
    """The URL of an empty store of idempotency records, for `records_at`."""
    if request.param == "redis":
        yield request.getfixturevalue("redis_url")
    else:
        yield from _shared(request, tmp_path)


@pytest.fixture
def site(shared_url: str, tmp_path: Path) -> Iterator[Site]:
    """Where servers of contracts are started, all on one store; they end with the test."""
    with site_of(shared_url, tmp_path) as made:
        yield made


@pytest.fixture(scope="module")
def server() -> Iterator[Postgres]:
    """A server that tests may stop, unlike the one that all tests share."""
    with Postgres() as server:
        yield server


@pytest.fixture
def own_url(server: Postgres) -> str:
    """The URL of an empty database of that server, which goes with it."""
    name = f"own_{next(NUMBERS)}"
    with psycopg.connect(server.url(), autocommit=True) as admin:
        admin.execute(f"CREATE DATABASE {name}")
    return server.url(name)


def _shared(request: pytest.FixtureRequest, folder: Path) -> Iterator[str]:
    if request.param == "sqlite":
        yield f"sqlite:///{folder}/jobs.db"
        return
    with request.getfixturevalue("databases").lend(make_schema) as url:
        yield url
