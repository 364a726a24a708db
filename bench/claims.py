"""What a claim costs in a table full of jobs that it must not see (E-23).

A million delayed jobs and a hundred thousand parked ones in lanes that the worker serves, and
half a million due ones in a queue that nobody serves, loaded with plain SQL.
"""

from __future__ import annotations

import sqlite3
import statistics
import time
from datetime import timedelta
from pathlib import Path
from typing import Any

import ulak
from bench.measure import Figure, scratch
from ulak.cli.speed import nothing
from ulak.clock import micros
from ulak.store.protocol import ClaimRequest, Want
from ulak.store.sqlite import SqliteStore

DELAYED = 1_000_000
PARKED = 100_000
UNSERVED = 500_000
CLAIMS = 200
BOUND_MS = 2.0
WORKER = "bench"

NUMBERS = "WITH RECURSIVE n (n) AS (SELECT :first UNION ALL SELECT n + 1 FROM n WHERE n < :last)"


def claims_figure(scale: float = 1.0) -> Figure:
    """Two hundred claims of one job each, every one committed and flushed."""
    with scratch() as folder:
        p50, p99, empty = claims(folder / "claims.db", scale)
    return Figure(
        "claim with 10^6 delayed, 10^5 parked, 5x10^5 jobs of an unserved queue, median of 200",
        f"<= {BOUND_MS:g} ms",
        f"{p50:.2f} ms (p99 {p99:.2f} ms; finding nothing {empty:.2f} ms)",
        p50 <= BOUND_MS,
        "python -m bench.figures claims",
    )


def flows_of() -> tuple[ulak.Flow[Any], ulak.Flow[Any], ulak.Flow[Any]]:
    """Return a flow that is served, one of its queue with a limit, and one that nobody serves."""
    served: ulak.Flow[Any] = ulak.Flow.steps("served", ("work", nothing))
    limited: ulak.Flow[Any] = ulak.Flow(
        "limited", ulak.Lifecycle("work", {"work": ["done"]}), queue="served"
    )
    limited.stage("work", limit=ulak.Limit(1))(nothing)
    unserved: ulak.Flow[Any] = ulak.Flow.steps("unserved", ("work", nothing))
    return served, limited, unserved


def claims(path: Path, scale: float) -> tuple[float, float, float]:
    """Return the median and the 99th percentile of a claim, and the median of an empty one."""
    flows = served, limited, _ = flows_of()
    engine = ulak.Engine(SqliteStore(path), flows=flows)
    with engine:
        for flow in engine.inspect.flows:
            engine.submit(flow)
        _load(path, scale)
        engine.submit_many(served, [None] * (CLAIMS + 20))
        store = engine.store
        lanes = tuple(sorted(served.table.lanes | limited.table.lanes))
        store.register(WORKER, lease_us=micros(timedelta(hours=1)), lanes=lanes, about="bench")

        def claim(lanes: tuple[str, ...]) -> tuple[float, int]:
            started = time.perf_counter()
            taken = store.claim(ClaimRequest(WORKER, (Want(lanes, 1),)))
            return (time.perf_counter() - started) * 1000, len(taken.claims)

        for _ in range(10):
            claim(lanes)
        full = [claim(lanes) for _ in range(CLAIMS)]
        assert all(taken == 1 for _, taken in full)
        rest = tuple(sorted(limited.table.lanes))
        claim(rest)
        empty = [claim(rest) for _ in range(CLAIMS)]
        assert not any(taken for _, taken in empty)
    took = [ms for ms, _ in full]
    return (
        statistics.median(took),
        statistics.quantiles(took, n=100)[98],
        statistics.median(ms for ms, _ in empty),
    )


def _load(path: Path, scale: float) -> None:
    db = sqlite3.connect(path, isolation_level=None)
    db.row_factory = sqlite3.Row
    try:
        db.execute("PRAGMA synchronous = OFF")
        db.execute("BEGIN")
        first = 0
        for flow, jobs, values in (
            ("served", DELAYED, {"not_before": ":not_before + 86400000000 + n"}),
            ("limited", PARKED, {"parked_on": ":slot"}),
            ("unserved", UNSERVED, {}),
        ):
            last = first + max(1, int(jobs * scale)) - 1
            copy(db, f"flow = '{flow}'", first, last, values)
            first = last + 1
        db.execute("COMMIT")
        db.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchone()
        stored = db.execute("SELECT count(*) FROM jobs").fetchone()[0]
        assert stored == first + 3, f"{stored} jobs were loaded, not {first}"
    finally:
        db.close()


def copy(
    db: sqlite3.Connection, model_is: str, first: int, last: int, values: dict[str, str]
) -> None:
    """Copy one job many times, with other ids and these columns."""
    model = dict(db.execute(f"SELECT * FROM jobs WHERE {model_is}").fetchone())  # noqa: S608 - our own
    values = {"id": "CAST(printf('%016d', n) AS BLOB)", "priority": "n % 4", **values}
    chosen = ", ".join(values.get(column, f":{column}") for column in model)
    db.execute(
        f"{NUMBERS} INSERT INTO jobs SELECT {chosen} FROM n",  # noqa: S608 - our own names
        {**model, "first": first, "last": last},
    )
