"""Where the processor's time goes in a drain: the loop, the committer and the claimer.

`python -m bench.profile [--store postgres|redis] [--jobs 10000] [--stages 1] [--kind async]`

Each thread is profiled in a drain of its own, by the time that this thread alone has used: one
that waits for the interpreter or for the disk costs nothing. Profiling makes small functions look
larger than they are; compare shares, not sums. On PostgreSQL it also says which statements the
server was busy with, planning and running, by pg_stat_statements.
"""

from __future__ import annotations

import argparse
import asyncio
import cProfile
import io
import itertools
import pstats
import threading
import time
from collections.abc import Callable
from typing import Any

import psycopg

import ulak
from bench import postgres, redis_speed
from bench.measure import ROOT, scratch
from ulak.cli.speed import fill, flow_of, run_dry

LOOP = "the loop"
THREADS = (LOOP, "ulak-committer", "ulak-claimer-0")
SHOWN = 18

STATEMENTS = """
    SELECT total_exec_time, total_plan_time, calls, query FROM pg_stat_statements
    WHERE dbid = (SELECT oid FROM pg_database WHERE datname = current_database())
    ORDER BY total_exec_time + total_plan_time DESC LIMIT 12
"""


def main() -> None:
    """Profile one drain for each thread and print its largest parts."""
    parser = argparse.ArgumentParser(prog="bench.profile")
    parser.add_argument("--store", choices=["sqlite", "postgres", "redis"], default="sqlite")
    parser.add_argument("--jobs", type=int, default=10_000)
    parser.add_argument("--stages", type=int, default=1)
    parser.add_argument("--kind", choices=["async", "plain"], default="async")
    given = parser.parse_args()
    if given.store == "sqlite":
        with scratch() as folder:
            names = itertools.count()
            _profile(given, lambda: f"sqlite:///{folder / f'profile-{next(names)}.db'}")
        return
    if given.store == "redis":
        with redis_speed.durable() as redis:
            _profile(given, redis.fresh)
        return
    with postgres.durable(preload="pg_stat_statements") as server:
        url = _profile(given, server.fresh)
        print("\nthe server, by its own time in the last drain")
        _print_statements(url)


def _profile(given: Any, fresh: Callable[[], str]) -> str:
    """Drain once without and once for each thread; answer where the one without was."""
    runs = given.jobs * given.stages
    for thread in THREADS:
        _, _, profile = _drain(thread, given, fresh())
        print(f"\n{thread}, by its own time")
        _print(profile)
    url = fresh()
    took, used, _ = _drain(None, given, url)
    print(f"\n{runs / took:,.0f} stages/s; {used / runs * 1e6:.0f} us of processor time a stage")
    return url


def _drain(thread: str | None, given: Any, url: str) -> tuple[float, float, cProfile.Profile]:
    flow = flow_of("profile", kind=given.kind, stages=given.stages)
    profile = cProfile.Profile(time.thread_time)
    unprofiled = threading.Thread.run

    def run(self: threading.Thread) -> None:
        if thread is not None and self.name.startswith(thread):
            profile.runcall(unprofiled, self)
        else:
            unprofiled(self)

    with ulak.connect(url, flows=[flow]) as engine:
        fill(engine, flow, given.jobs)
        if given.store == "postgres":
            _forget_statements(url)
        threading.Thread.run = run  # type: ignore[method-assign]
        used = time.process_time()
        if thread == LOOP:
            profile.enable()
        try:
            took = asyncio.run(run_dry(engine))
        finally:
            profile.disable()
            threading.Thread.run = unprofiled  # type: ignore[method-assign]
        used = time.process_time() - used
    return took, used, profile


def _forget_statements(url: str) -> None:
    with psycopg.connect(url, autocommit=True) as db:
        db.execute("CREATE EXTENSION IF NOT EXISTS pg_stat_statements")
        db.execute("SELECT pg_stat_statements_reset()")


def _print_statements(url: str) -> None:
    with psycopg.connect(url, autocommit=True) as db:
        rows = db.execute(STATEMENTS).fetchall()
    for ms, planning, calls, statement in rows:
        said = " ".join(statement.split())[:90]
        print(f"{ms:8.1f} ms, planning {planning:6.1f} ms, {calls:6} times: {said}")


def _print(profile: cProfile.Profile) -> None:
    text = io.StringIO()
    stats = pstats.Stats(profile, stream=text)
    stats.sort_stats("tottime").print_stats(SHOWN)
    lines = text.getvalue().replace(str(ROOT / "src") + "/", "").splitlines()
    print("\n".join(line for line in lines[2:] if line.strip()))


if __name__ == "__main__":
    main()
