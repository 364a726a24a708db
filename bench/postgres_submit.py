"""A submit on PostgreSQL against a bare loop that writes exactly the rows of one, and commits.

The rows are not guessed: an engine submits, what its store holds afterwards is read back, table by
table, and written again, job by job, into a store that was freshly created the same way.
"""

from __future__ import annotations

import itertools
import time
from typing import Any

import psycopg

import ulak
from bench import postgres
from bench.measure import Figure, alternate
from ulak.cli import speed

SUBMITS = 500
THREADS = 32
FROM_THREADS = 3_200
OF_THE_BARE_LOOP = 0.6
OF_ONE_THREAD = 3.0

TABLES = ("jobs", "payloads", "events", "count_deltas")
COLUMNS = """
    SELECT attname::text, format_type(atttypid, atttypmod) FROM pg_attribute
    WHERE attrelid = %s::regclass AND attnum > 0 AND NOT attisdropped ORDER BY attnum
"""


def submit_figures(submits: int = SUBMITS, from_threads: int = FROM_THREADS) -> list[Figure]:
    """One thread against the bare loop, and many threads against one."""
    with postgres.durable() as server:
        statement, rows = rows_of_submits(server.fresh(), submits)
        ours, bare, crowd = alternate(
            lambda: speed.submit(server.fresh(), submits),
            lambda: bare_rate(server.fresh(), statement, rows),
            lambda: speed.submit_from_threads(server.fresh(), from_threads, THREADS),
        )
    command = "python -m bench.figures postgres-submit"
    return [
        Figure(
            "single submit, PostgreSQL, of a loop that writes the same rows with psycopg and "
            "commits",
            f">= {OF_THE_BARE_LOOP}", f"{ours / bare:.2f} ({ours:,.0f}/s of {bare:,.0f}/s)",
            ours / bare >= OF_THE_BARE_LOOP, command,
        ),
        Figure(
            f"submit from {THREADS} threads, PostgreSQL, of one thread's", f">= {OF_ONE_THREAD:g}",
            f"{crowd / ours:.1f} ({crowd:,.0f}/s of {ours:,.0f}/s)",
            crowd / ours >= OF_ONE_THREAD, command,
        ),
    ]  # fmt: skip


def bare_rate(url: str, statement: str, jobs: list[tuple[Any, ...]]) -> float:
    """Write the rows of one job after the other, each durable before the next.

    Fair, since nothing that waits for each commit can be quicker with this driver: the four rows
    are one prepared statement, sent and committed in one round trip, and psycopg need not look for
    placeholders in it. It makes no id, checks no payload, and encodes nothing.
    """
    with ulak.connect(url, flows=[speed.flow_of("submit")]) as engine:
        engine.open()  # makes the tables
    with psycopg.connect(url, autocommit=True) as db:
        cursor = psycopg.RawCursor(db)
        cursor.execute(statement, jobs[0], prepare=True)
        started = time.perf_counter()
        for job in jobs[1:]:
            cursor.execute(statement, job, prepare=True)
        return (len(jobs) - 1) / (time.perf_counter() - started)


def rows_of_submits(url: str, submits: int) -> tuple[str, list[tuple[Any, ...]]]:
    """Submit, and answer the statement that writes as much, and its values for each job."""
    flow = speed.flow_of("submit")
    with (
        ulak.connect(url, flows=[flow]) as engine,
        psycopg.connect(url, autocommit=True) as db,
    ):
        for _ in range(submits):
            engine.submit(flow, speed.PAYLOAD)
        parts: list[str] = []
        numbers = itertools.count(1)
        values: list[list[Any]] = [[] for _ in range(submits)]
        for table in TABLES:
            columns = db.execute(COLUMNS, (f"ulak.{table}",)).fetchall()
            names = ", ".join(name for name, _ in columns)
            places = ", ".join(f"${next(numbers)}::{kind}" for _, kind in columns)
            parts.append(f"INSERT INTO ulak.{table} ({names}) VALUES ({places})")  # noqa: S608 - our own
            rows = db.execute(f"SELECT {names} FROM ulak.{table}").fetchall()  # noqa: S608 - our own
            assert len(rows) == submits, f"{len(rows)} rows of {table} for {submits} submits"
            for job, row in zip(values, rows, strict=True):
                job += row
    first, last = parts[:-1], parts[-1]
    chained = ", ".join(f"w{n} AS ({part})" for n, part in enumerate(first))
    return f"WITH {chained} {last}", [tuple(job) for job in values]
