"""Databases for tests, each as new, at the cost of removing a few rows."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from time import monotonic, sleep

import psycopg
from psycopg import sql

from ulak.testing.servers import Postgres

Prepare = Callable[[str], object]

# Removing rows leaves their pages; above this a new copy is cheaper for whoever reads them next.
MOST_BYTES = 4_000_000

# Every definition has its transaction in xmin, so that one which was added, changed or removed
# shows in the sums. What ANALYZE learned is written in place and is looked at by itself.
SIGNATURE = """
SELECT array_agg(ARRAY[n, xmins]) FROM (
    SELECT count(*) AS n, sum(xmin::text::bigint) AS xmins FROM pg_class WHERE oid >= 16384
    UNION ALL SELECT count(*), sum(xmin::text::bigint) FROM pg_attribute WHERE attrelid >= 16384
    UNION ALL SELECT count(*), sum(xmin::text::bigint) FROM pg_proc WHERE oid >= 16384
    UNION ALL SELECT count(*), sum(xmin::text::bigint) FROM pg_type WHERE oid >= 16384
    UNION ALL SELECT count(*), sum(xmin::text::bigint) FROM pg_attrdef
    UNION ALL SELECT count(*), sum(xmin::text::bigint) FROM pg_constraint
    UNION ALL SELECT count(*), sum(xmin::text::bigint) FROM pg_extension
    UNION ALL SELECT count(*), sum(xmin::text::bigint) FROM pg_inherits
    UNION ALL SELECT count(*), sum(xmin::text::bigint) FROM pg_namespace
    UNION ALL SELECT count(*), sum(xmin::text::bigint) FROM pg_trigger
    UNION ALL SELECT count(*), sum(xmin::text::bigint) FROM pg_event_trigger
    UNION ALL SELECT sum(relpages), sum(reltuples) FROM pg_class WHERE oid >= 16384
    UNION ALL SELECT count(*), 0 FROM pg_db_role_setting
        WHERE setdatabase = (SELECT oid FROM pg_database WHERE datname = current_database())
) AS catalogs
"""

SIZE = """
SELECT coalesce(sum(pg_relation_size(oid)), 0) FROM pg_class
WHERE oid >= 16384 AND relkind IN ('r', 't')
"""

END_ALL = "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE datname = %s"


class Databases:
    """Lends databases of one server, each to one test at a time.

    The first is a copy of a template. One that comes back is cleaned, renamed and lent again;
    where more than rows has changed it is thrown away. On a disk that others use as well this
    takes a seventh of the time of a new copy, in memory as long (`python -m bench.databases`: 27
    and 197 ms, 34 and 36 ms, at a load of 5.5 on two cores). A name is never used twice, so that
    whoever still holds an old one - a thread, a child, a pool - cannot reach the next test's.

    Args:
        server: Where they are.
        before_return: Gets the URL of each that comes back, with all that is in it.
    """

    def __init__(
        self, server: Postgres, *, before_return: Callable[[str], object] = lambda url: None
    ) -> None:
        self.server = server
        self._before_return = before_return
        self._names = (f"test_{number}" for number in itertools.count(1))
        self._shelves: dict[Prepare, _Shelf] = {}
        self._admin = psycopg.connect(server.url(), autocommit=True)

    def close(self) -> None:
        self._admin.close()

    @contextmanager
    def lend(self, prepare: Prepare | None = None) -> Iterator[str]:
        """Lend the URL of a database that nobody else uses, empty but for what `prepare` makes.

        `prepare` gets the URL of an empty database, once for all who name the same function, and
        closes its connections. Tables, sequences and a few rows are as it left them.
        """
        shelf = None if prepare is None else self._shelf(prepare)
        if shelf is None:
            name = self._create("template0")
        else:
            name = shelf.clean.pop() if shelf.clean else self._create(shelf.template)
        try:
            yield self.server.url(name)
        finally:
            self._cut_off(name)
            self._before_return(self.server.url(name))
            if shelf is None or not self._shelve(name, shelf):
                self._admin.execute(f"DROP DATABASE IF EXISTS {name} WITH (FORCE)")

    def _shelf(self, prepare: Prepare) -> _Shelf:
        if prepare not in self._shelves:
            template = self._create("template0")
            prepare(self.server.url(template))
            with psycopg.connect(self.server.url(template)) as db:
                self._shelves[prepare] = _Shelf(template, _signature(db), way_back(db))
        return self._shelves[prepare]

    def _create(self, template: str) -> str:
        name = next(self._names)
        # Of the two ways to copy, this one takes half the time where nobody waits for a disk.
        self._admin.execute(f"CREATE DATABASE {name} TEMPLATE {template} STRATEGY file_copy")
        return name

    def _cut_off(self, name: str) -> None:
        """End whoever is still connected: a killed child, the pool of pgbouncer."""
        # PostgreSQL looks every 100 ms whether they have gone, and most are just leaving.
        give_up = monotonic() + 5.0
        while monotonic() < give_up and self._admin.execute(END_ALL, [name]).rowcount:
            sleep(0.001)

    def _shelve(self, old: str, shelf: _Shelf) -> bool:
        """Clean a database and put it on its shelf, under a new name; tell whether it could be."""
        name = next(self._names)
        try:
            self._admin.execute(f"ALTER DATABASE {old} RENAME TO {name}")
        except psycopg.Error:
            return False  # somebody was quick to come back, or it is gone
        with psycopg.connect(self.server.url(name)) as db:
            (size,) = db.execute(SIZE).fetchone()
            as_new = size <= MOST_BYTES and _signature(db) == shelf.signature
            if as_new:
                db.execute(shelf.way_back)
        if as_new:
            shelf.clean.append(name)
        else:
            self._admin.execute(f"DROP DATABASE {name} WITH (FORCE)")
        return True


@dataclass(frozen=True, slots=True)
class _Shelf:
    """The databases that one function prepares."""

    template: str
    signature: object
    way_back: sql.Composed
    """What brings a database back to the template, if no definition has changed."""
    clean: list[str] = field(default_factory=list)


def _signature(db: psycopg.Connection) -> object:
    return db.execute(SIGNATURE).fetchone()


def way_back(db: psycopg.Connection) -> sql.Composed:
    """Return the statements that make every table and sequence what it is now."""
    # Neither foreign keys nor triggers have a say in this.
    parts: list[sql.Composable] = [sql.SQL("SET LOCAL session_replication_role = replica")]
    for (text,) in db.execute(
        "SELECT oid::regclass::text FROM pg_class WHERE oid >= 16384 AND relkind = 'r'"
    ).fetchall():
        table = sql.SQL(text)
        parts.append(sql.SQL("DELETE FROM {}").format(table))
        rows = db.execute(sql.SQL("SELECT row::text FROM {} AS row").format(table)).fetchall()
        parts.extend(
            sql.SQL("INSERT INTO {} OVERRIDING SYSTEM VALUE SELECT ({}::{}).*").format(
                table, sql.Literal(row), table
            )
            for (row,) in rows
        )
    for (text,) in db.execute(
        "SELECT seqrelid::regclass::text FROM pg_sequence WHERE seqrelid >= 16384"
    ).fetchall():
        last, called = db.execute(
            sql.SQL("SELECT last_value, is_called FROM {}").format(sql.SQL(text))
        ).fetchone()
        parts.append(
            sql.SQL("SELECT setval({}::regclass, {}, {})").format(
                sql.Literal(text), sql.Literal(last), sql.Literal(called)
            )
        )
    return sql.SQL("; ").join(parts)
