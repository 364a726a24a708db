"""How fast one worker process drains no-op jobs, every commit flushed, trail on."""

from __future__ import annotations

from bench import postgres
from bench.ceiling import asyncpg_one, ceiling, psycopg_rate
from bench.measure import Figure, alternate, scratch
from ulak.cli import speed

JOBS = 10_000
LONG_JOBS = 2_000
LONG_STAGES = 8
OF_THE_CEILING = 0.06
OF_PSYCOPG = 0.22
OF_ONE_BY_ONE = 5.0


def drain(kind: str = "async", jobs: int = JOBS, stages: int = 1) -> float:
    """Return stages per second on SQLite."""
    with scratch() as folder:
        return speed.drain(f"sqlite:///{folder / 'drain.db'}", jobs, stages=stages, kind=kind)


def drain_figure() -> Figure:
    """No-op jobs against the bare loop that moves rows."""
    ours, bare = alternate(drain, ceiling)
    plain = drain("plain")
    return Figure(
        "drain of 10,000 no-op jobs, one worker process, SQLite FULL, of `sqlite_rate`",
        f">= {OF_THE_CEILING}",
        f"{ours / bare:.4f} ({ours:,.0f} jobs/s of {bare:,.0f}; plain def {plain:,.0f} jobs/s)",
        ours / bare >= OF_THE_CEILING,
        "python -m bench.figures drain",
    )


def stages_figure() -> Figure:
    """Stages of long jobs against no-op jobs."""
    long, short = alternate(lambda: drain("async", LONG_JOBS, LONG_STAGES), drain)
    return _stages("SQLite FULL", long, short, "stages")


def postgres_drain_figures(jobs: int = JOBS) -> list[Figure]:
    """No-op jobs against loops over one connection: in batches of 200, and one by one."""
    with postgres.durable() as server:
        ours, batches, ones = alternate(
            lambda: speed.drain(server.fresh(), jobs),
            lambda: psycopg_rate(server.env),
            lambda: asyncpg_one(server.env),
        )
    what = f"drain of {jobs:,} no-op jobs, one worker process, PostgreSQL"
    command = "python -m bench.figures postgres-drain"
    return [
        Figure(
            f"{what}, of `psycopg_rate`", f">= {OF_PSYCOPG}",
            f"{ours / batches:.3f} ({ours:,.0f} jobs/s of {batches:,.0f})",
            ours / batches >= OF_PSYCOPG, command,
        ),
        Figure(
            f"{what}, of `asyncpg_one(1500, 1)`", f">= {OF_ONE_BY_ONE:g}",
            f"{ours / ones:.1f} ({ours:,.0f} jobs/s of {ones:,.0f})",
            ours / ones >= OF_ONE_BY_ONE, command,
        ),
    ]  # fmt: skip


def postgres_stages_figure(jobs: int = LONG_JOBS) -> Figure:
    """Stages of long jobs against no-op jobs."""
    with postgres.durable() as server:
        long, short = alternate(
            lambda: speed.drain(server.fresh(), jobs, stages=LONG_STAGES),
            lambda: speed.drain(server.fresh(), jobs * JOBS // LONG_JOBS),
        )
    return _stages("PostgreSQL", long, short, "postgres-stages")


def _stages(store: str, long: float, short: float, name: str) -> Figure:
    return Figure(
        f"stages/s of 2,000 jobs of 8 stages, of the no-op jobs/s, {store}",
        ">= 1",
        f"{long / short:.2f} ({long:,.0f} stages/s of {short:,.0f} jobs/s)",
        long >= short,
        f"python -m bench.figures {name}",
    )
