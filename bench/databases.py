"""What a database of its own costs a test: a new copy, or one that is cleaned and lent again.

    python -m bench.databases

This is how `tests/databases.py` came to clean them.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from contextlib import closing, contextmanager
from statistics import median
from time import perf_counter

import psycopg

from tests.databases import Databases
from ulak.testing.servers import Postgres

TESTS = 50


def prepare(url: str) -> None:
    """Make twenty tables, three of them with four partitions, as a store has them."""
    with psycopg.connect(url) as db:
        for n in range(17):
            db.execute(
                f"CREATE TABLE plain_{n} (id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY, "
                f"a text, b bytea, c bigint); CREATE INDEX ON plain_{n} (a, c)"
            )
        for n in range(3):
            db.execute(
                f"CREATE TABLE parted_{n} (id bytea, month int, b bytea, PRIMARY KEY (id, month)) "
                "PARTITION BY LIST (month)"
            )
            for month in range(4):
                db.execute(
                    f"CREATE TABLE parted_{n}_{month} PARTITION OF parted_{n} "
                    f"FOR VALUES IN ({month})"
                )


def use(url: str) -> None:
    """Write some rows, as a test does."""
    with psycopg.connect(url) as db:
        for n in range(10):
            db.execute(f"INSERT INTO plain_{n} (a, c) SELECT 'a', generate_series(1, 20)")
        for n in range(3):
            db.execute(f"INSERT INTO parted_{n} SELECT 'a', generate_series(0, 3), 'b'")


@contextmanager
def copied(lender: Databases, admin: psycopg.Connection) -> Iterator[str]:
    """A new copy of the template, dropped afterwards."""
    template = lender._shelf(prepare).template
    name = f"copy_{next(COPIES)}"
    admin.execute(f"CREATE DATABASE {name} TEMPLATE {template} STRATEGY file_copy")
    yield lender.server.url(name)
    lender._cut_off(name)
    admin.execute(f"DROP DATABASE {name} WITH (FORCE)")


COPIES = itertools.count()


def main() -> None:
    with Postgres() as server, closing(Databases(server)) as lender:
        admin = psycopg.connect(server.url(), autocommit=True)
        ways = {
            "a new copy": lambda: copied(lender, admin),
            "cleaned and lent again": lambda: lender.lend(prepare),
            "an empty one": lender.lend,
        }
        costs: dict[str, list[float]] = {name: [] for name in ways}
        # In turns, so that whatever else the machine does falls on each of them.
        for _ in range(TESTS):
            for name, lend in ways.items():
                began = perf_counter()
                with lend() as url:
                    lent = perf_counter()
                    if name != "an empty one":
                        use(url)
                    used = perf_counter()
                costs[name].append(perf_counter() - used + lent - began)
        for name, each in costs.items():
            print(f"{name:24} {median(each) * 1e3:6.1f} ms  (worst {max(each) * 1e3:.1f})")
        admin.close()


if __name__ == "__main__":
    main()
