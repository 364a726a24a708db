"""The PostgreSQL that figures are taken on: durable, on the disk of the repository, one per figure.

`fsync`, `synchronous_commit` and `full_page_writes` are on. The rest is what anybody sets who runs
it in earnest; the baselines run on the same server.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from contextlib import contextmanager

import psycopg

from bench.measure import DATA
from ulak.testing.servers import Postgres

SETTINGS = {"shared_buffers": "256MB", "max_wal_size": "4GB"}

URL = "BENCH_PG_URL"
"""Where the baselines look for their server; no database name."""


class Bench:
    """A running server, and new databases on it."""

    def __init__(self, server: Postgres) -> None:
        self.server = server
        self._names = (f"figure_{n}" for n in itertools.count())

    def fresh(self) -> str:
        """Make an empty database, and let the server write down what came before."""
        name = next(self._names)
        with psycopg.connect(self.server.url(), autocommit=True) as db:
            db.execute(f"CREATE DATABASE {name}")
            db.execute("CHECKPOINT")
        return self.server.url(name)

    @property
    def env(self) -> dict[str, str]:
        """What the baselines are told."""
        return {URL: self.server.url("").rstrip("/")}


@contextmanager
def durable(*, preload: str = "") -> Iterator[Bench]:
    """Start a server of our own, and remove it afterwards."""
    DATA.mkdir(exist_ok=True)
    more = {"shared_preload_libraries": preload, "pg_stat_statements.track_planning": "on"}
    server = Postgres(durable=True, settings=SETTINGS | (more if preload else {}))
    server.place = DATA
    with server:
        yield Bench(server)
