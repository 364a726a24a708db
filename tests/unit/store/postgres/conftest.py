"""A store in a database of its own, reached directly or through the pooler."""

from collections.abc import Iterator

import pytest

from tests.conformance.stores import make_schema
from tests.databases import Databases
from ulak.clock import ManualClock
from ulak.store.postgres import PostgresStore
from ulak.testing.servers import Pooler


@pytest.fixture
def url(databases: Databases) -> Iterator[str]:
    with databases.lend(make_schema) as url:
        yield url


@pytest.fixture(params=["direct", "pooled"])
def reached(request: pytest.FixtureRequest, url: str) -> str:
    """The same database, by two ways."""
    if request.param == "direct":
        return url
    pooler: Pooler = request.getfixturevalue("pooler_server")
    return f"{pooler.url(url.rpartition('/')[2])}?pooled"


@pytest.fixture
def store(reached: str) -> Iterator[PostgresStore]:
    store = store_at(reached)
    store.open()
    yield store
    store.close()


def store_at(reached: str) -> PostgresStore:
    conninfo, _, pooled = reached.partition("?")
    return PostgresStore(conninfo, clock=ManualClock(), pooled=bool(pooled))
