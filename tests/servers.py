"""The servers that tests ask for by a fixture: `postgres_url`, `pooled_url`, `databases`.

The first test that asks starts them; they serve every test of the process (under xdist each
worker has its own) and end with it, however it ends. A server that is missing is an error.
"""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.conformance.redis_server import RedisServer
from tests.databases import Databases
from tests.secrets_watch import WATCH
from ulak.testing.servers import Pooler, Postgres


@pytest.fixture(scope="session")
def postgres_server() -> Iterator[Postgres]:
    """The PostgreSQL of this process. Who kills or reconfigures one starts its own."""
    with Postgres() as server:
        yield server


@pytest.fixture(scope="session")
def pooler_server(postgres_server: Postgres) -> Iterator[Pooler]:
    """A pgbouncer in front of it, in transaction mode."""
    with Pooler(postgres_server) as pooler:
        yield pooler


@pytest.fixture(scope="session")
def redis_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RedisServer]:
    """The Redis of this process, which writes everything down before it answers."""
    with RedisServer(tmp_path_factory.mktemp("redis")) as server:
        yield server


@pytest.fixture
def redis_url(redis_server: RedisServer) -> str:
    """The URL of an empty database."""
    return redis_server.empty()


@pytest.fixture(scope="session")
def databases(postgres_server: Postgres) -> Iterator[Databases]:
    """Lends databases, with tables in them if you say how they are made."""
    lender = Databases(postgres_server, before_return=WATCH.look_at_postgres)
    yield lender
    lender.close()


@pytest.fixture
def postgres_url(databases: Databases) -> Iterator[str]:
    """The URL of an empty database of the test's own."""
    with databases.lend() as url:
        yield url


@pytest.fixture
def pooled_url(postgres_url: str, pooler_server: Pooler) -> str:
    """The URL of the same database through the pooler."""
    return pooler_server.url(postgres_url.rpartition("/")[2])
