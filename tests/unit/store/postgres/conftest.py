"""A store in a database of its own, reached directly or through the pooler."""

from collections.abc import Iterator

import pytest

from tests.conformance.stores import make_schema
from tests.databases import Databases
from ulak.clock import ManualClock
from ulak.store.postgres import PostgresStore
from ulak.store.postgres.pipeline import Pipeline
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


class RoundTrips:
    """How often an answer of the server was waited for since the last `take`."""

    def __init__(self) -> None:
        self._waits = 0

    def note(self) -> None:
        self._waits += 1

    def take(self) -> int:
        waits, self._waits = self._waits, 0
        return waits


@pytest.fixture
def round_trips(monkeypatch: pytest.MonkeyPatch) -> RoundTrips:
    """Counts them from now on."""
    counted, wait = RoundTrips(), Pipeline.wait

    def noted(self: Pipeline) -> object:
        counted.note()
        return wait(self)

    monkeypatch.setattr(Pipeline, "wait", noted)
    return counted


def store_at(reached: str) -> PostgresStore:
    conninfo, _, pooled = reached.partition("?")
    return PostgresStore(conninfo, clock=ManualClock(), pooled=bool(pooled))
