"""How soon a worker is as fast as before, after PostgreSQL itself was killed and started again.

`python -m bench.soak.restarts`: one worker process, no kills but the server's. The rate of the ten
seconds from the first commit after a restart, against the ten seconds before the kill.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import signal
import subprocess
import sys
import time
from typing import Any

import psycopg
from psycopg.rows import dict_row

import ulak
from bench import postgres
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
STAYS = 0.9
PATIENCE_S = 60.0

URL = "ULAK_BENCH_RESTARTS"
DONE = """
    SELECT coalesce(sum(jobs), 0)::bigint FROM (
        SELECT role, jobs FROM ulak.counts UNION ALL SELECT role, jobs FROM ulak.count_deltas
    ) AS c WHERE role = 'done'
"""


class Watch:
    """Counts what is done, over a connection that is made anew when it is lost."""

    def __init__(self, url: str) -> None:
        self._url = url
        self._db: psycopg.Connection[Any] | None = None

    def done(self) -> int | None:
        """Return how many jobs are durably done, None while nobody answers."""
        try:
            if self._db is None:
                self._db = psycopg.connect(self._url, autocommit=True)
            found = self._db.execute(DONE).fetchone()
        except psycopg.OperationalError:
            self._db = None
            return None
        assert found is not None
        return int(found[0])

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
        if self._db is not None:
            self._db.close()


def restarts_figure(supply: int = SUPPLY, window_s: float = WINDOW_S) -> Figure:
    """Kill the server three times while a worker drains, and compare the rates around each."""
    shares, told, outages = [], [], []
    with postgres.durable() as bench:
        url = bench.fresh()
        load(url, supply)
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
        f"rate in the {window_s:g} s from the first commit after PostgreSQL was killed, of the "
        f"{window_s:g} s before, worst of {RESTARTS}",
        f">= {STAYS}",
        f"{worst:.2f} ({', '.join(told)} jobs/s; first commit after at most {max(outages):.1f} s)",
        worst >= STAYS,
        "python -m bench.figures restarts",
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
    parser.add_argument("--supply", type=int, default=SUPPLY)
    parser.add_argument("--window", type=float, default=WINDOW_S)
    given = parser.parse_args()
    if given.worker:
        work()
        return
    figure = restarts_figure(given.supply, given.window)
    print(f"{'ok' if figure.ok else 'MISSED'} {figure.name}: {figure.value}; bound {figure.bound}")


if __name__ == "__main__":
    main()
