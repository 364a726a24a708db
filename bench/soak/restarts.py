"""How soon a worker is as fast as before, after the server itself was killed and started again.

`python -m bench.soak.restarts [--store redis]`: one worker process, no kills but the server's. The
rate of some seconds from the first commit after a restart, against as many before the kill.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable

import psycopg
from psycopg.rows import dict_row

import ulak
from bench import postgres, redis_speed
from bench.measure import ROOT, Figure
from bench.postgres_claims import copy
from ulak.cli import speed
from ulak.engine.worker import settle_in

RESTARTS = 3
WINDOW_S = 10.0
WARM_UP_S = 3.0
LOOK_EVERY_S = 0.02
# More than a worker of this machine drains in all windows together; running dry is an error.
SUPPLY = 1_000_000
# All of it is in memory, and a server reads it before it answers.
REDIS_SUPPLY, REDIS_WINDOW_S = 240_000, 3.0
STAYS = 0.9
PATIENCE_S = 60.0

URL = "ULAK_BENCH_RESTARTS"


class Watch:
    """Counts what is done, while the server is there."""

    def __init__(self, url: str) -> None:
        self._engine = ulak.connect(url)

    def done(self) -> int | None:
        """Return how many jobs are durably done, None while nobody answers."""
        try:
            return sum(c.jobs for c in self._engine.inspect.counts() if c.role == "done")
        except ulak.StoreError:
            return None

    def rate(self, window_s: float) -> float:
        """Return the jobs a second of the time to come."""
        began, before = time.monotonic(), self.done()
        time.sleep(window_s)
        after, ended = self.done(), time.monotonic()
        assert before is not None
        assert after is not None
        return (after - before) / (ended - began)

    def wait_for_more(self, than: int) -> None:
        """Return with the first commit that adds to this number."""
        deadline = time.monotonic() + PATIENCE_S
        while (self.done() or 0) <= than:
            assert time.monotonic() < deadline, "nothing was committed after the restart"
            time.sleep(LOOK_EVERY_S)

    def close(self) -> None:
        """Give back what was opened."""
        self._engine.close()


def restarts_figure(supply: int = SUPPLY, window_s: float = WINDOW_S) -> Figure:
    """PostgreSQL."""
    with postgres.durable() as bench:
        return _figure("PostgreSQL", "restarts", bench, load, supply, window_s)


def redis_restarts_figure(supply: int = REDIS_SUPPLY, window_s: float = REDIS_WINDOW_S) -> Figure:
    """Redis with `appendfsync always`."""
    with redis_speed.durable() as bench:
        return _figure("Redis", "redis-restarts", bench, submit, supply, window_s)


def _figure(
    store: str,
    name: str,
    bench: postgres.Bench | redis_speed.Bench,
    supply_with: Callable[[str, int], None],
    supply: int,
    window_s: float,
) -> Figure:
    """Kill the server three times while a worker drains, and compare the rates around each."""
    shares, told, outages = [], [], []
    url = bench.fresh()
    supply_with(url, supply)
    watch = Watch(url)
    worker = subprocess.Popen(
        [sys.executable, "-m", "bench.soak.restarts", "--worker"],
        cwd=ROOT, env={**os.environ, URL: url},
    )  # fmt: skip
    try:
        watch.wait_for_more(0)
        time.sleep(WARM_UP_S)
        for _ in range(RESTARTS):
            before = watch.rate(window_s)
            bench.server.kill()
            began = time.monotonic()
            bench.server.start()
            watch.wait_for_more(_wait_for_an_answer(watch))
            outages.append(time.monotonic() - began)
            after = watch.rate(window_s)
            shares.append(after / before)
            told.append(f"{after:,.0f} of {before:,.0f}")
        assert (watch.done() or supply) < supply, "the worker has run dry: raise SUPPLY"
        assert worker.poll() is None, "the worker has ended by itself"
    finally:
        watch.close()
        worker.send_signal(signal.SIGTERM)
        worker.wait()
    worst = min(shares)
    return Figure(
        f"rate in the {window_s:g} s from the first commit after {store} was killed, of the "
        f"{window_s:g} s before, worst of {RESTARTS}",
        f">= {STAYS}",
        f"{worst:.2f} ({', '.join(told)} jobs/s; first commit after at most {max(outages):.1f} s)",
        worst >= STAYS,
        f"python -m bench.figures {name}",
    )


def _wait_for_an_answer(watch: Watch) -> int:
    while (done := watch.done()) is None:
        time.sleep(LOOK_EVERY_S)
    return done


def load(url: str, jobs: int) -> None:
    """Make jobs that are due by SQL, copies of one that was submitted, with their payloads."""
    flow = speed.flow_of("restarts")
    with ulak.connect(url, flows=[flow]) as engine:
        model = engine.submit(flow, speed.PAYLOAD).id
    new_id = "lpad(to_hex(n), 32, '0')::uuid"
    with psycopg.connect(url, autocommit=True, row_factory=dict_row) as db:
        copy(db, f"id = '{model}'", 1, jobs, {})
        for table in ("payloads", "events"):
            row = db.execute(f"SELECT * FROM ulak.{table}").fetchone()  # noqa: S608 - our own
            assert row is not None
            chosen = ", ".join(new_id if name == "job_id" else f"m.{name}" for name in row)
            db.execute(
                f"INSERT INTO ulak.{table} SELECT {chosen} FROM generate_series(1, {jobs}) AS n, "  # noqa: S608 - our own
                f"(SELECT * FROM ulak.{table}) AS m"
            )
        db.execute("UPDATE ulak.count_deltas SET jobs = jobs + %s", (jobs,))
        db.execute("VACUUM ANALYZE")
        db.execute("CHECKPOINT")


def submit(url: str, jobs: int) -> None:
    """Submit jobs that are due."""
    flow = speed.flow_of("restarts")
    with ulak.connect(url, flows=[flow]) as engine:
        speed.fill(engine, flow, jobs)


def work() -> None:
    """Be the worker, until SIGTERM."""
    with ulak.connect(os.environ[URL], flows=[speed.flow_of("restarts")]) as engine:
        settle_in()
        worker = engine.worker()
        signal.signal(signal.SIGTERM, lambda *_: worker.stop())
        asyncio.run(worker.run())


def main() -> None:
    """Be the worker, or measure and print."""
    parser = argparse.ArgumentParser(prog="bench.soak.restarts", description=__doc__)
    parser.add_argument("--worker", action="store_true", help="what the measurement starts")
    parser.add_argument("--store", choices=["postgres", "redis"], default="postgres")
    parser.add_argument("--supply", type=int, help="how many jobs there are")
    parser.add_argument("--window", type=float, help="how many seconds each rate is measured")
    given = parser.parse_args()
    if given.worker:
        work()
        return
    is_redis = given.store == "redis"
    supply = given.supply or (REDIS_SUPPLY if is_redis else SUPPLY)
    window = given.window or (REDIS_WINDOW_S if is_redis else WINDOW_S)
    figure = (redis_restarts_figure if is_redis else restarts_figure)(supply, window)
    print(f"{'ok' if figure.ok else 'MISSED'} {figure.name}: {figure.value}; bound {figure.bound}")


if __name__ == "__main__":
    main()
