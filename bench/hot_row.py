"""`python -m bench.hot_row`: what a claim and a commit cost in three shapes of the hot row.

A sketch for decision 0017, with nothing of the engine but its columns: 10,000 jobs are claimed
eight at a time and ended. `wide` is the table as it is. `lease` keeps leases in a narrow table of
their own, written by the claim and removed by the commit. `split` moves what never changes into a
second table, so that both rewrite fewer columns. Nothing waits for the disk: what differs is the
work and the bytes, and the bytes of the WAL do not depend on how busy the machine is.
"""

# ruff: noqa: S608 - no statement has a word from outside
from __future__ import annotations

import sqlite3
import statistics
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, NamedTuple

import psycopg

from bench import postgres
from bench.measure import commit, machine, scratch
from ulak.core.job import FIRST_MUTABLE, JobRow

JOBS, AT_ONCE, ROUNDS = 10_000, 8, 9
NOW = 1_800_000_000_000_000
LEASE = ("leased_by", "leased_at", "token", "stood", "lapsed")
COLUMNS = JobRow._fields
FIXED = COLUMNS[1:FIRST_MUTABLE]
NUMBERS = {
    "flow_version", "created_at", "priority", "expires_at", "scheduled_for", "version", "seq",
    "round", "attempt", "lapses", "changed_at", "permanent", "has_results", "not_before", "cost",
    "deadline_at", "wake_at", "leased_at", "token", "stood", "lapsed", "requests",
}  # fmt: skip
VALUES = {
    "tenant": "acme", "flow": "orders", "flow_version": 1, "created_at": NOW, "submitter": "shop",
    "priority": 2, "state": "received", "role": "ready", "version": 1, "seq": 1, "round": 1,
    "attempt": 0, "lapses": 0, "changed_at": NOW, "permanent": 0, "started": "", "has_results": 0,
    "lane": "default/orders/1", "not_before": NOW, "cost": 0, "token": 0, "stood": 0, "lapsed": 0,
    "requests": 0,
}  # fmt: skip
ENDED = {"state": "done", "role": "done", "version": 2, "seq": 2, "changed_at": NOW + 9, "lane": ""}


class Shape(NamedTuple):
    """Which columns are where, and what a claim and a commit say."""

    hot: Sequence[str]
    """The columns of `jobs`."""
    beside: Sequence[str]
    """The columns of `facts`, read by every claim."""
    has_leases: bool


SHAPES = {
    "wide": Shape(COLUMNS, (), False),
    "lease": Shape([c for c in COLUMNS if c not in LEASE], (), True),
    "split": Shape(["id", *(c for c in COLUMNS[1:] if c not in FIXED or c == "priority")],
                   [c for c in FIXED if c != "priority"], False),
}  # fmt: skip


# --- statements ---------------------------------------------------------------------


def _tables(shape: Shape, *, is_postgres: bool) -> Iterator[str]:
    number, text, key = ("bigint", 'text COLLATE "C"', "uuid") if is_postgres else (
        "INTEGER", "TEXT", "BLOB")  # fmt: skip
    end = "WITH (fillfactor = 80, autovacuum_enabled = off)" if is_postgres else "WITHOUT ROWID"

    def table(name: str, columns: Sequence[str]) -> str:
        rest = "".join(f", {c} {number if c in NUMBERS else text}" for c in columns if c != "id")
        return f"CREATE TABLE {name} (id {key} NOT NULL PRIMARY KEY{rest}) {end}"

    free = "parked_on IS NULL AND lane <> ''"
    yield table("jobs", shape.hot)
    if shape.beside:
        yield table("facts", shape.beside)
    if shape.has_leases:
        yield table("leases", LEASE)
        yield "CREATE INDEX leases_worker ON leases (leased_by)"
    else:
        free += " AND leased_by IS NULL"
        yield "CREATE INDEX jobs_leased ON jobs (leased_by) WHERE leased_by IS NOT NULL"
    yield f"CREATE INDEX jobs_claimable ON jobs (lane, priority, not_before, id) WHERE {free}"
    yield "CREATE INDEX jobs_ended ON jobs (changed_at) WHERE lane = '' AND role <> 'held'"


def _due(shape: Shape, *, is_postgres: bool) -> str:
    free = "j.parked_on IS NULL AND j.lane <> ''"
    if shape.has_leases:
        free += " AND NOT EXISTS (SELECT 1 FROM leases AS l WHERE l.id = j.id)"
    else:
        free += " AND j.leased_by IS NULL"
    lock = " FOR NO KEY UPDATE SKIP LOCKED" if is_postgres else ""
    return (
        "SELECT j.id FROM jobs AS j "
        f"WHERE j.lane = 'default/orders/1' AND j.priority = 2 AND {free} "
        f"ORDER BY j.not_before, j.id LIMIT {AT_ONCE}{lock}"
    )


def _claim(shape: Shape, *, is_postgres: bool) -> list[str]:
    """Return what finds and leases jobs, then what reads the rest of them by their ids."""
    due, these = _due(shape, is_postgres=is_postgres), _these(is_postgres=is_postgres)
    if shape.has_leases:
        insert = f"INSERT INTO leases (id, {', '.join(LEASE)})"
        return [
            f"{insert} SELECT id, 'worker-1', {NOW}, 1, 1, 0 FROM ({due}) AS due RETURNING id",
            f"SELECT * FROM jobs WHERE {these}",
        ]
    lease = f"leased_by = 'worker-1', leased_at = {NOW}, token = token + 1, stood = 1"
    claim = [f"UPDATE jobs SET {lease} WHERE id IN ({due}) RETURNING *"]
    return [*claim, f"SELECT * FROM facts WHERE {these}"] if shape.beside else claim


def _commit(shape: Shape, *, is_postgres: bool) -> list[str]:
    """Return what ends jobs by their ids, if they are still leased."""
    these = _these(is_postgres=is_postgres)
    changed = {c: ENDED.get(c, VALUES.get(c)) for c in COLUMNS[FIRST_MUTABLE:] if c in shape.hot}
    sets = ", ".join(f"{c} = {_literal(v)}" for c, v in changed.items() if c != "token")
    if not shape.has_leases:
        return [f"UPDATE jobs SET {sets} WHERE {these} AND token = 1"]
    held = "EXISTS (SELECT 1 FROM leases AS l WHERE l.id = jobs.id AND l.token = 1)"
    return [
        f"UPDATE jobs SET {sets} WHERE {these} AND {held}",
        f"DELETE FROM leases WHERE {these} AND token = 1",
    ]


def _these(*, is_postgres: bool) -> str:
    return "id = ANY (%s)" if is_postgres else f"id IN ({', '.join('?' * AT_ONCE)})"


def _literal(value: object) -> str:
    if value is None:
        return "NULL"
    return str(value) if isinstance(value, int) else f"'{value}'"


def _fill(table: str, columns: Sequence[str], ids: str, source: str) -> str:
    values = ", ".join(_literal(VALUES.get(c)) for c in columns if c != "id")
    names = ", ".join(c for c in columns if c != "id")
    return f"INSERT INTO {table} (id, {names}) SELECT {ids}, {values} FROM {source}"


# --- the two databases --------------------------------------------------------------


Transact = Callable[[Sequence[str], list[Any]], list[Any]]
"""Runs statements in a transaction, the later ones with the ids that the first has returned."""


class Taken(NamedTuple):
    """One round: microseconds and bytes of WAL for each job."""

    micros: float
    bytes: float


def _run(shape: Shape, transact: Transact, *, is_postgres: bool) -> float:
    claim, end = (
        _claim(shape, is_postgres=is_postgres),
        _commit(shape, is_postgres=is_postgres),
    )
    began = time.perf_counter()
    for _ in range(JOBS // AT_ONCE):
        transact(end, transact(claim, []))
    return (time.perf_counter() - began) / JOBS * 1e6


def on_postgres(url: str, shape: Shape) -> Taken:
    """Fill a database, and claim and end everything in it."""
    with psycopg.connect(url, autocommit=True) as db:
        db.execute("SET synchronous_commit = off")
        for statement in _tables(shape, is_postgres=True):
            db.execute(statement)
        ids = "lpad(to_hex(n), 32, '0')::uuid"
        for table, columns in (("jobs", shape.hot), ("facts", shape.beside)):
            if columns:
                db.execute(_fill(table, columns, ids, f"generate_series(1, {JOBS}) AS n"))
        db.execute("VACUUM ANALYZE")
        db.execute("CHECKPOINT")

        def transact(statements: Sequence[str], ids: list[Any]) -> list[Any]:
            with db.transaction():
                for statement in statements:
                    found = db.execute(statement, [ids] if ids else None, prepare=True)
                    if found.description and not ids:
                        ids = [row[0] for row in found.fetchall()]
            return ids

        where = "SELECT pg_current_wal_insert_lsn() - '0/0'::pg_lsn"
        before = db.execute(where).fetchone()
        micros = _run(shape, transact, is_postgres=True)
        after = db.execute(where).fetchone()
        left = db.execute("SELECT count(*) FROM jobs WHERE role <> 'done'").fetchone()
        assert left == (0,)
        written = 0.0 if before is None or after is None else float(after[0] - before[0])
        return Taken(micros, written / JOBS)


def on_sqlite(path: str, shape: Shape) -> Taken:
    """Fill a file, and claim and end everything in it."""
    db = sqlite3.connect(path, isolation_level=None)
    db.execute("PRAGMA journal_mode = WAL")
    db.execute("PRAGMA synchronous = OFF")
    db.execute("PRAGMA wal_autocheckpoint = 0")
    for statement in _tables(shape, is_postgres=False):
        db.execute(statement)
    for table, columns in (("jobs", shape.hot), ("facts", shape.beside)):
        if columns:
            fill = _fill(table, columns, "?", "(SELECT 1)")
            db.executemany(fill, ((n.to_bytes(16, "big"),) for n in range(JOBS)))
    db.execute("ANALYZE")
    db.execute("PRAGMA wal_checkpoint(TRUNCATE)")

    def transact(statements: Sequence[str], ids: list[Any]) -> list[Any]:
        db.execute("BEGIN IMMEDIATE")
        for statement in statements:
            found = db.execute(statement, ids).fetchall()
            ids = ids or [row[0] for row in found]
        db.execute("COMMIT")
        return ids

    micros = _run(shape, transact, is_postgres=False)
    pages = db.execute("PRAGMA wal_checkpoint(PASSIVE)").fetchone()[1]
    assert db.execute("SELECT count(*) FROM jobs WHERE role <> 'done'").fetchone() == (0,)
    db.close()
    return Taken(micros, pages * 4096 / JOBS)


@contextmanager
def _takers() -> Iterator[dict[str, Callable[[Shape], Taken]]]:
    with scratch() as folder, postgres.durable() as server:
        numbers = iter(range(1_000))
        yield {
            "sqlite": lambda shape: on_sqlite(str(folder / f"{next(numbers)}.db"), shape),
            "postgres": lambda shape: on_postgres(server.fresh(), shape),
        }


def main() -> None:
    """Measure the shapes in turns, and print the medians and what each is of the first."""
    print(f"{commit()}, {machine()}, {ROUNDS} rounds of {JOBS} jobs, {AT_ONCE} at a time")
    with _takers() as takers:
        for store, take in takers.items():
            rounds = [{name: take(shape) for name, shape in SHAPES.items()} for _ in range(ROUNDS)]
            for name in SHAPES:
                micros = statistics.median(each[name].micros for each in rounds)
                ratio = statistics.median(e[name].micros / e["wide"].micros for e in rounds)
                size = statistics.median(each[name].bytes for each in rounds)
                print(f"{store:9} {name:6} {micros:6.1f} us a job ({ratio:.2f})  {size:6.0f} B WAL")


if __name__ == "__main__":
    main()
