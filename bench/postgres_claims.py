"""What a claim costs on PostgreSQL in a table full of jobs that it must not see (E-23)."""

from __future__ import annotations

import asyncio
import statistics
import time
from datetime import timedelta
from typing import Any

import psycopg
from psycopg.rows import dict_row

import ulak
from bench import postgres
from bench.claims import BOUND_MS, CLAIMS, DELAYED, PARKED, UNSERVED, WORKER, flows_of
from bench.measure import Figure, alternate
from ulak.cli.speed import fill, run_dry
from ulak.clock import micros
from ulak.store.protocol import ClaimRequest, Want

BATCH = 200
BATCHES = 25
DRAINED = 20_000
BESIDE_A_SNAPSHOT_MS = 10.0


def claims_figure(scale: float = 1.0) -> Figure:
    """Two hundred claims of one job each, every one committed and flushed; then larger ones."""
    with postgres.durable() as server:
        url = server.fresh()
        with engine_on(url) as engine:
            load(engine, url, scale)
            p50, p99, rate = claims(engine)
    return Figure(
        "claim with 10^6 delayed, 10^5 parked, 5x10^5 jobs of an unserved queue, median of 200, "
        "PostgreSQL",
        f"<= {BOUND_MS:g} ms",
        f"{p50:.2f} ms (p99 {p99:.2f} ms; in claims of {BATCH} {rate:,.0f} jobs/s)",
        p50 <= BOUND_MS,
        "python -m bench.figures postgres-claims",
    )


def snapshot_figure(jobs: int = DRAINED) -> Figure:
    """Claims that find nothing in a lane that was drained while a transaction stayed open.

    The rows that have left the lane cannot be removed meanwhile, and a claim passes them by.
    """
    with postgres.durable() as server:
        quiet, held = server.fresh(), server.fresh()
        drain(quiet, jobs)
        with psycopg.connect(held) as reader:
            reader.execute("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ")
            with engine_on(held):
                reader.execute("SELECT count(*) FROM ulak.jobs")
            drain(held, jobs)
            beside, without = alternate(lambda: empty_claim_ms(held), lambda: empty_claim_ms(quiet))
    return Figure(
        f"claim that finds nothing, PostgreSQL, beside a snapshot older than {jobs:,} drained jobs",
        f"<= {BESIDE_A_SNAPSHOT_MS:g} ms",
        f"{beside:.2f} ms ({without:.2f} ms without it)",
        beside <= BESIDE_A_SNAPSHOT_MS,
        "python -m bench.figures snapshot",
    )


def drain(url: str, jobs: int) -> None:
    """Run so many jobs of the served flow to their end."""
    with engine_on(url) as engine:
        fill(engine, engine.inspect.flows[0], jobs)
        asyncio.run(run_dry(engine))


def empty_claim_ms(url: str) -> float:
    """Return the median of a claim that finds nothing."""
    with engine_on(url) as engine:
        store, lanes = engine.store, tuple(sorted(engine.inspect.flows[0].table.lanes))
        store.register(WORKER, lease_us=micros(timedelta(hours=1)), lanes=lanes, about="bench")
        request, took = ClaimRequest(WORKER, (Want(lanes, 1),)), []
        for _ in range(CLAIMS):
            started = time.perf_counter()
            assert store.claim(request).claims == []
            took.append((time.perf_counter() - started) * 1e3)
    return statistics.median(took)


def engine_on(url: str) -> ulak.Engine:
    """Return an engine with the three flows of this table."""
    return ulak.connect(url, flows=flows_of())


def claims(engine: ulak.Engine) -> tuple[float, float, float]:
    """Return the median and the 99th percentile of a claim, and jobs a second in large ones."""
    served, limited, _ = engine.inspect.flows
    store = engine.store
    for _ in range(BATCHES + 1):
        engine.submit_many(served, [None] * BATCH)
    lanes = tuple(sorted(served.table.lanes | limited.table.lanes))
    store.register(WORKER, lease_us=micros(timedelta(hours=1)), lanes=lanes, about="bench")

    def claim(places: int) -> float:
        started = time.perf_counter()
        taken = store.claim(ClaimRequest(WORKER, (Want(lanes, places),)))
        assert len(taken.claims) == places
        return time.perf_counter() - started

    for _ in range(10):
        claim(1)
    lone = [claim(1) * 1e3 for _ in range(CLAIMS - 10)]
    many = [claim(BATCH) for _ in range(BATCHES)]
    p99 = statistics.quantiles(lone, n=100)[98]
    return statistics.median(lone), p99, BATCH / statistics.median(many)


def load(engine: ulak.Engine, url: str, scale: float) -> None:
    """Fill the table by SQL, each flow with copies of a job that the engine has submitted."""
    for flow in engine.inspect.flows:
        engine.submit(flow)
    tomorrow = engine.store.clock.now() + micros(timedelta(days=1))
    with psycopg.connect(url, autocommit=True, row_factory=dict_row) as db:
        first = 1
        for flow, jobs, others in (
            ("served", DELAYED, {"not_before": f"{tomorrow} + n"}),
            ("limited", PARKED, {"parked_on": "slot"}),
            ("unserved", UNSERVED, {}),
        ):
            last = first + max(1, int(jobs * scale)) - 1
            copy(db, f"flow = '{flow}'", first, last, {"priority": "n % 4", **others})
            first = last + 1
        db.execute("VACUUM ANALYZE ulak.jobs")


def copy(
    db: psycopg.Connection[Any], model: str, first: int, last: int, others: dict[str, str]
) -> None:
    """Copy one job many times, with other ids and these columns."""
    row = db.execute(f"SELECT * FROM ulak.jobs WHERE {model} LIMIT 1").fetchone()  # noqa: S608 - our own
    assert row is not None
    values = {"id": "lpad(to_hex(n), 32, '0')::uuid", **others}
    chosen = ", ".join(values.get(column, f"j.{column}") for column in row)
    db.execute(
        f"INSERT INTO ulak.jobs SELECT {chosen} FROM generate_series({first}, {last}) AS n, "  # noqa: S608 - our own
        f"(SELECT * FROM ulak.jobs WHERE {model} LIMIT 1) AS j"
    )
