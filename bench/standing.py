"""What people ask of a store with a million jobs (E-74, E-75): how they stand, and a page of them.

Most jobs have ended; many are delayed, due, parked and leased, more than are counted of each kind.
They are loaded with plain SQL, under ids that begin with their time.
"""

from __future__ import annotations

import sqlite3
import statistics
import time
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from functools import partial
from pathlib import Path

import psycopg
from psycopg.rows import dict_row

import ulak
from bench import claims, postgres, postgres_claims
from bench.measure import Figure, scratch
from ulak.clock import micros, to_datetime
from ulak.ids import time_ordered_id, to_text

BOUND_MS = 10.0
TIMES = 100
A_PAGE = 100
BEGAN = datetime(2026, 1, 1, tzinfo=UTC)
BEGAN_MS = int(BEGAN.timestamp()) * 1000

_ENDED = {"lane": "''", "state": "'done'", "changed_at": "{now} + n", "dedup_key": "'key ' || n"}
KINDS = (
    ("served", 300_000, {"not_before": "{later} + n"}),
    ("served", 50_000, {}),
    ("served", 2_000, {"leased_by": "'worker ' || n % 20", "leased_at": "{at}"}),
    ("limited", 100_000, {"parked_on": "'limited/work'"}),
    ("unserved", 100_000, {}),
    ("unserved", 8_000, _ENDED | {"role": "'failed'"}),
    ("unserved", 440_000, _ENDED | {"role": "'done'"}),
)
"""Flow, number of jobs, and the columns in which they differ from one that was submitted."""
JOBS = sum(number for _, number, _ in KINDS)
IS_MODEL = f"created_at > {(BEGAN_MS + JOBS) * 1000}"
"""Tells the jobs that were submitted from those that were copied."""


def standing_figures(scale: float = 1.0) -> list[Figure]:
    """Count how jobs stand, and read pages by every filter that an index serves."""
    with scratch() as folder:
        path = folder / "standing.db"
        figures = measure("SQLite", f"sqlite:///{path}", partial(load_sqlite, path, scale))
    with postgres.durable() as server:
        url = server.fresh()
        return figures + measure("PostgreSQL", url, partial(load_postgres, url, scale))


def measure(store: str, url: str, load: Callable[[int], None]) -> list[Figure]:
    """Measure on one store."""
    with ulak.connect(url, flows=claims.flows_of()) as engine:
        for flow in engine.inspect.flows:
            engine.submit(flow)
        # Within the last minute, however long it takes to load them.
        now = engine.store.clock.now() + micros(timedelta(minutes=10))
        load(now)
        counted = quantiles(engine.inspect.backlog)
        pages = {}
        for name, where in filters(now).items():
            page = engine.jobs(where, limit=A_PAGE)
            after = page[-1].id if page else None
            pages[name] = quantiles(lambda where=where: engine.jobs(where, limit=A_PAGE))
            following = quantiles(
                lambda where=where, after=after: engine.jobs(where, after=after, limit=A_PAGE)
            )
            pages[name] = max(pages[name], following)
    slowest = max(pages, key=lambda name: pages[name])
    return [
        Figure(
            f"count due, delayed, parked, leased and held of {JOBS:,} jobs, {store}: p95 of "
            f"{TIMES} (E-74)",
            f"<= {BOUND_MS:g} ms", "{1:.1f} ms (median {0:.1f} ms)".format(*counted),
            counted[1] <= BOUND_MS, "python -m bench.figures standing",
        ),
        Figure(
            f"a page of {A_PAGE} of {JOBS:,} jobs by a filter that an index serves, the slowest of "
            f"{len(pages)}, {store}: p95 of {TIMES} (E-75)",
            f"<= {BOUND_MS:g} ms",
            f"{pages[slowest][1]:.1f} ms ({slowest}; "
            + ", ".join(f"{name} {found[1]:.1f}" for name, found in pages.items()) + ")",
            pages[slowest][1] <= BOUND_MS, "python -m bench.figures standing",
        ),
    ]  # fmt: skip


def filters(now: int) -> dict[str, ulak.JobFilter]:
    """Return every kind of filter that an index serves; the last jobs have ended now."""
    last = to_datetime((BEGAN_MS + JOBS) * 1000)
    minute = timedelta(minutes=1)
    some = to_text(time_ordered_id((BEGAN_MS + JOBS // 2) * 1000))
    return {
        "all": ulak.JobFilter(),
        "role": ulak.JobFilter(role="failed"),
        "submitted": ulak.JobFilter(
            submitted_since=BEGAN + minute, submitted_before=last - 4 * minute
        ),
        "submitted and flow": ulak.JobFilter(submitted_since=last - minute, flow="unserved"),
        "changed": ulak.JobFilter(role="done", changed_since=to_datetime(now + JOBS - 1000)),
        "id": ulak.JobFilter(id_prefix=some[:8]),
        "dedup key": ulak.JobFilter(dedup_key=f"key {JOBS - 1}"),
        "owner": ulak.JobFilter(owner="owner 7"),
    }


def quantiles(read: Callable[[], object]) -> tuple[float, float]:
    """Return the median and the 95th percentile of some calls in milliseconds."""
    took = []
    for _ in range(TIMES):
        started = time.perf_counter()
        read()
        took.append((time.perf_counter() - started) * 1e3)
    return statistics.median(took), statistics.quantiles(took, n=20)[18]


def load_sqlite(path: Path, scale: float, now: int) -> None:
    """Fill a file."""
    db = sqlite3.connect(path, isolation_level=None)
    db.row_factory = sqlite3.Row
    db.create_function("ordered_id", 1, lambda n: time_ordered_id((BEGAN_MS + n) * 1000))
    db.execute("PRAGMA synchronous = OFF")
    db.execute("BEGIN")
    first = 0
    for flow, number, columns in KINDS:
        last = first + max(1, int(number * scale)) - 1
        values = {"id": "ordered_id(n)", **written(columns, now)}
        claims.copy(db, f"flow = '{flow}' AND {IS_MODEL}", first, last, values)
        first = last + 1
    db.execute(f"INSERT INTO owners SELECT id, {OWNER} FROM jobs WHERE role = 'done'")  # noqa: S608 - our own
    db.execute(COUNT.format(schema=""))
    db.execute("COMMIT")
    db.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchone()
    db.close()


def load_postgres(url: str, scale: float, now: int) -> None:
    """Fill a database."""
    job_id = f"(lpad(to_hex({BEGAN_MS}::bigint + n), 12, '0') || '7000' || '8000' || "
    job_id += "lpad(to_hex(n), 12, '0'))::uuid"
    with psycopg.connect(url, autocommit=True, row_factory=dict_row) as db:
        first = 1
        for flow, number, columns in KINDS:
            last = first + max(1, int(number * scale)) - 1
            values = {"id": job_id, **written(columns, now)}
            postgres_claims.copy(db, f"flow = '{flow}' AND {IS_MODEL}", first, last, values)
            first = last + 1
        db.execute(f"INSERT INTO ulak.owners SELECT id, {OWNER} FROM ulak.jobs WHERE role = 'done'")  # noqa: S608 - our own
        db.execute(COUNT.format(schema="ulak."))
        db.execute("VACUUM ANALYZE ulak.jobs")
        db.execute("VACUUM ANALYZE ulak.owners")


COUNT = f"""
    INSERT INTO {{schema}}count_deltas (flow, flow_version, state, role, jobs)
    SELECT flow, flow_version, state, role, count(*) FROM {{schema}}jobs
    WHERE NOT ({IS_MODEL}) GROUP BY flow, flow_version, state, role
"""  # noqa: S608 - our own
OWNER = "'owner ' || (created_at / 1000) % 10, created_at"


def written(columns: dict[str, str], now: int) -> dict[str, str]:
    """Return the columns of a kind as expressions of its number."""
    at, later = f"({BEGAN_MS} + n) * 1000", now + micros(timedelta(days=1))
    common = {"created_at": "{at}", "changed_at": "{at}", "priority": "n % 4"}
    return {
        name: value.format(at=at, later=later, now=now)
        for name, value in {**common, **columns}.items()
    }


if __name__ == "__main__":
    for figure in standing_figures():
        print(f"{'ok' if figure.ok else 'MISSED'} {figure.name}: {figure.value}")
