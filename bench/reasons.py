"""Why the stores are as they are: what docs/spec/engine.md marks (m), measured again.

`python -m bench.reasons [NAME...]` prints one figure each. Rates are of pgbench with eight clients,
taken in turns; the rest is counted.
"""

from __future__ import annotations

import argparse
import asyncio
import itertools
import re
import sqlite3
import statistics
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Mapping
from concurrent.futures import wait
from contextlib import closing
from pathlib import Path
from typing import Any

import psycopg

import ulak
from bench import postgres, postgres_claims
from bench.claims import BOUND_MS
from bench.measure import Figure, alternate, scratch
from ulak.cli import speed
from ulak.testing.servers import find_program

CLIENTS = 8
SECONDS = 2
BATCH = 200

TABLES = """
    CREATE TABLE moved (id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY, state integer);
    CREATE TABLE counts (state integer PRIMARY KEY, jobs bigint NOT NULL) WITH (fillfactor = 50);
    CREATE TABLE deltas (state integer NOT NULL, jobs bigint NOT NULL);
    INSERT INTO counts VALUES (0, 0), (1, 0);
"""
MOVE = "INSERT INTO moved (state) VALUES (1);"
PLAIN = f"BEGIN; {MOVE} COMMIT;"
NOTIFIED = f"BEGIN; {MOVE} NOTIFY ulak; COMMIT;"
APPENDED = PLAIN.replace(MOVE, f"{MOVE} INSERT INTO deltas VALUES (0, -1), (1, 1);")  # noqa: S608 - our own
UPDATED = PLAIN.replace(
    MOVE,
    f"{MOVE} UPDATE counts SET jobs = jobs - 1 WHERE state = 0; "  # noqa: S608 - our own
    "UPDATE counts SET jobs = jobs + 1 WHERE state = 1;",
)


def notify_figure() -> Figure:
    """E-55: a ring inside the transaction makes all such commits wait for each other."""
    inside, without = _in_turns(NOTIFIED, PLAIN)
    return _reason(
        "notify", f"commits/s with NOTIFY inside, of those without, {CLIENTS} clients (E-55)",
        "< 1", f"{inside / without:.2f} ({inside:,.0f} of {without:,.0f})", inside < without,
    )  # fmt: skip


def counters_figure() -> Figure:
    """E-48: everybody updates the same few counters."""
    updated, appended = _in_turns(UPDATED, APPENDED)
    return _reason(
        "counters",
        f"commits/s that update counters, of those that append deltas, {CLIENTS} clients (E-48)",
        "< 1", f"{updated / appended:.2f} ({updated:,.0f} of {appended:,.0f})", updated < appended,
    )  # fmt: skip


def nul_figure() -> Figure:
    """E-19: PostgreSQL refuses a whole batch for one NUL; the rest is written all the same."""
    flow: ulak.Flow[Any] = ulak.Flow("nul", ulak.Lifecycle("new", {"new": ["done"]}))

    @flow.stage("new", to="done")
    async def work(run: ulak.Run[Any]) -> None:
        run.emit("a\x00b" if run.payload == BATCH // 2 else "topic", 1)

    with (
        postgres.durable() as server,
        ulak.connect(server.fresh(), flows=[flow]) as engine,
    ):
        engine.submit_many(flow, range(BATCH))
        asyncio.run(engine.worker().run(until_idle=True))
        found = Counter(job.code or job.state for job in engine.jobs(limit=2 * BATCH))
    return _reason(
        "nul", f"jobs of a batch of {BATCH} that are done, when one has a NUL (E-19)",
        f"{BATCH - 1}, and 1 held", f"{found['done']}, and {found['commit-rejected']} held",
        found == {"done": BATCH - 1, "commit-rejected": 1},
    )  # fmt: skip


def stale_figure() -> Figure:
    """E-17: of many changes whose lease is lost for one, the others are written, with events."""
    lost: list[str] = []
    with postgres.durable() as server:
        url = server.fresh()

        async def work(run: ulak.Run[Any]) -> None:
            if run.payload == BATCH // 2:
                lost.append(run.job_id)
                with psycopg.connect(url) as db:
                    db.execute("UPDATE ulak.jobs SET token = token + 1 WHERE id = %s", lost)
            await asyncio.sleep(0.5)  # so that all of them end in one batch

        flow = ulak.Flow.steps("stale", ("work", work))
        with ulak.connect(url, flows=[flow]) as engine:
            engine.submit_many(flow, range(BATCH))
            worker = engine.worker(ulak.WorkerSettings(loop=BATCH))
            asyncio.run(worker.run(until_idle=True))
        with psycopg.connect(url) as db:
            events = db.execute(
                "SELECT count(*) FROM ulak.events WHERE kind = 'moved' OR to_state = 'done'"
            ).fetchone()
            done = db.execute("SELECT count(*) FROM ulak.jobs WHERE role = 'done'").fetchone()
    assert events is not None
    assert done is not None
    return _reason(
        "stale", f"of {BATCH} changes with one stale: written, and their events (E-17)",
        f"{BATCH - 1}, {BATCH - 1}", f"{done[0]}, {events[0]}",
        done[0] == events[0] == BATCH - 1,
    )  # fmt: skip


def held_key_figure() -> Figure:
    """E-34: a transaction of somebody else holds the key of one job of a batch."""
    flow = speed.flow_of("held-key")
    patience_s = 5.0
    with postgres.durable() as server:
        url = server.fresh()
        with (
            ulak.connect(url, flows=[flow]) as engine,
            psycopg.connect(url) as other,
        ):
            engine.open()
            other.execute(
                "INSERT INTO ulak.dedup (tenant, flow, key, job_id) VALUES ('', %s, 'key-7', %s)",
                (flow.name, "00000000-0000-0000-0000-000000000000"),
            )
            started = time.perf_counter()
            offers = [
                engine.kernel.intake.offer(
                    [engine.kernel.prepare(flow, None, dedup_key=f"key-{n}")]
                )
                for n in range(BATCH)
            ]
            free = [offer for n, offer in enumerate(offers) if n != 7]
            in_time, _ = wait(free, patience_s)
            took = time.perf_counter() - started
            other.rollback()
            offers[7].result(30)
    return _reason(
        "held-key", f"of {BATCH} submits one of whose keys a foreign transaction holds: stored "
        f"within {patience_s:g} s (E-34)", f"{BATCH - 1}", f"{len(in_time)} (in {took:.2f} s)",
        len(in_time) == BATCH - 1,
    )  # fmt: skip


def order_figure(rounds: int = 40) -> Figure:
    """E-21: two writers of the same keys, in no order and in one order."""
    with postgres.durable() as server:
        url = server.fresh()
        with psycopg.connect(url, autocommit=True) as db:
            db.execute("CREATE TABLE keys (round integer, key integer, PRIMARY KEY (round, key))")
        numbers = itertools.count()
        mixed = sum(_race(url, next(numbers), ordered=False) for _ in range(rounds))
        ordered = sum(_race(url, next(numbers), ordered=True) for _ in range(rounds))
    return _reason(
        "order", f"deadlocks in {rounds} races of two bulk inserts: unordered, ordered (E-21)",
        ">= 1, 0", f"{mixed}, {ordered}", mixed > 0 and ordered == 0,
    )  # fmt: skip


def _race(url: str, number: int, *, ordered: bool) -> int:
    deadlocks: list[int] = []
    gate = threading.Barrier(2)

    def write(keys: list[int]) -> None:
        with psycopg.connect(url, autocommit=True) as db:
            gate.wait()
            try:
                db.execute(
                    "INSERT INTO keys SELECT %s, unnest(%s::integer[]) ON CONFLICT DO NOTHING",
                    (number, keys),
                )
            except psycopg.errors.DeadlockDetected:
                deadlocks.append(1)

    up = list(range(20_000))
    threads = [threading.Thread(target=write, args=(k,)) for k in (up, up if ordered else up[::-1])]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return len(deadlocks)


NAIVE_INDEX = """
    CREATE INDEX naive ON ulak.jobs (priority, not_before, id)
    WHERE leased_by IS NULL AND parked_on IS NULL
"""
NAIVE_CLAIM = """
    SELECT id FROM ulak.jobs
    WHERE leased_by IS NULL AND parked_on IS NULL AND not_before <= %s AND lane = ANY (%s)
    ORDER BY priority, not_before, id LIMIT 1 FOR UPDATE SKIP LOCKED
"""


def naive_claim_figure(scale: float = 1.0) -> Figure:
    """E-23: one index for everybody, in the order of urgency, walks past the jobs of others."""
    with postgres.durable() as server:
        url = server.fresh()
        with postgres_claims.engine_on(url) as engine, psycopg.connect(url) as db:
            postgres_claims.load(engine, url, scale)
            served = engine.inspect.flows[0]
            engine.submit_many(served, [None] * 100)
            facts = (engine.store.clock.now() + 1, sorted(served.table.lanes))
            db.execute("SET enable_seqscan = off")
            db.execute("DROP INDEX ulak.jobs_claimable")
            db.execute(NAIVE_INDEX)
            db.execute("ANALYZE ulak.jobs")
            took = []
            for _ in range(10):
                started = time.perf_counter()
                assert db.execute(NAIVE_CLAIM, facts).fetchone() is not None
                took.append((time.perf_counter() - started) * 1e3)
            db.rollback()
    median = statistics.median(took)
    return _reason(
        "naive-claim", "a claim by one index of priority and date, in the table of E-23",
        f"> {BOUND_MS:g} ms", f"{median:.0f} ms", median > BOUND_MS,
    )  # fmt: skip


ONE_STATEMENT = """
    WITH mine AS (
        INSERT INTO held VALUES ('key', %s) ON CONFLICT DO NOTHING RETURNING job
    )
    SELECT job FROM mine UNION ALL SELECT job FROM held WHERE key = 'key'
"""


def one_statement_figure() -> Figure:
    """E-30: whoever loses a race for a key does not see the winner in the same statement."""
    found: list[list[Any]] = []
    with postgres.durable() as server:
        url = server.fresh()
        with psycopg.connect(url) as winner, psycopg.connect(url, autocommit=True) as loser:
            loser.execute("CREATE TABLE held (key text PRIMARY KEY, job integer)")
            winner.execute("INSERT INTO held VALUES ('key', 1)")
            late = threading.Thread(
                target=lambda: found.append(loser.execute(ONE_STATEMENT, (2,)).fetchall())
            )
            late.start()
            waiting = "SELECT FROM pg_locks WHERE NOT granted"
            while winner.execute(waiting).fetchone() is None:
                time.sleep(0.01)
            winner.commit()
            late.join()
            found.append(loser.execute("SELECT job FROM held WHERE key = 'key'").fetchall())
    return _reason(
        "one-statement", "jobs that the loser of a race for a key is told of: by one statement, by "
        "a second one (E-30)", "0, 1", f"{len(found[0])}, {len(found[1])}",
        [len(rows) for rows in found] == [0, 1],
    )  # fmt: skip


WRITERS = 3
# What each writer does: as many commits as the time allows, each flushed; it prints the longest
# that one of them has taken. With a second argument the writers queue on that file first.
WRITER = """
import fcntl, sqlite3, sys, time
db = sqlite3.connect(sys.argv[1], timeout=60, isolation_level=None)
db.execute("PRAGMA synchronous = FULL")
queue = open(sys.argv[2], "w") if len(sys.argv) > 2 else None
longest, end = 0.0, time.monotonic() + 4
while time.monotonic() < end:
    began = time.monotonic()
    if queue:
        fcntl.flock(queue, fcntl.LOCK_EX)
    db.execute("BEGIN IMMEDIATE")
    db.execute("INSERT INTO moved VALUES (1)")
    db.execute("COMMIT")
    if queue:
        fcntl.flock(queue, fcntl.LOCK_UN)
    longest = max(longest, time.monotonic() - began)
print(longest * 1e3)
"""


def lock_file_figure() -> Figure:
    """E-54: SQLite's own waiting is a sleep and a try; who sleeps longest may starve."""
    with scratch() as folder:
        alone, queued = alternate(
            lambda: _longest_wait(folder), lambda: _longest_wait(folder, "lock"), rounds=3
        )
    return _reason(
        "lock-file", f"longest commit of {WRITERS} processes on one SQLite file: by its own "
        "waiting, queued on a lock file (E-54)", "shorter when queued",
        f"{alone:,.0f} ms, {queued:,.0f} ms", queued < alone,
    )  # fmt: skip


def _longest_wait(folder: Path, *lock: str) -> float:
    file = folder / "moved.db"
    with closing(sqlite3.connect(file)) as db:
        db.execute("PRAGMA journal_mode = WAL")
        db.execute("CREATE TABLE IF NOT EXISTS moved (state)")
    argv = [sys.executable, "-c", WRITER, str(file), *(str(folder / name) for name in lock)]
    writers = [subprocess.Popen(argv, stdout=subprocess.PIPE, text=True) for _ in range(WRITERS)]
    return max(float(writer.communicate()[0]) for writer in writers)


def _in_turns(one: str, other: str) -> list[float]:
    with postgres.durable() as server, scratch() as folder:
        url = server.fresh()
        with psycopg.connect(url, autocommit=True) as db:
            db.execute(TABLES)
        files = []
        for name, script in (("one", one), ("other", other)):
            files.append(folder / f"{name}.sql")
            files[-1].write_text(script.replace("; ", ";\n") + "\n")
        return alternate(*[lambda file=file: _pgbench(url, file) for file in files])


def _pgbench(url: str, script: Path) -> float:
    done = subprocess.run(
        [
            *(str(find_program("pgbench")), "-n", "-M", "prepared", "-f", str(script)),
            *("-c", str(CLIENTS), "-j", "2", "-T", str(SECONDS), url),
        ],
        capture_output=True, text=True, check=True,
    )  # fmt: skip
    found = re.search(r"tps = ([\d.]+)", done.stdout)
    assert found is not None, done.stdout
    return float(found[1])


def _reason(name: str, what: str, bound: str, value: str, ok: bool) -> Figure:
    return Figure(what, bound, value, ok, f"python -m bench.reasons {name}")


REASONS: Mapping[str, Callable[[], Figure]] = {
    "notify": notify_figure,
    "counters": counters_figure,
    "nul": nul_figure,
    "stale": stale_figure,
    "held-key": held_key_figure,
    "order": order_figure,
    "naive-claim": naive_claim_figure,
    "one-statement": one_statement_figure,
    "lock-file": lock_file_figure,
}


def reasons_figures() -> list[Figure]:
    """Measure all of them."""
    return [figure() for figure in REASONS.values()]


def main() -> None:
    """Measure what is named, or everything, and print."""
    parser = argparse.ArgumentParser(prog="bench.reasons", description=__doc__)
    parser.add_argument("names", nargs="*", choices=[*REASONS, []], metavar="reason")
    for name in parser.parse_args().names or REASONS:
        figure = REASONS[name]()
        print(f"{'ok' if figure.ok else 'MISSED'} {figure.name}: {figure.value}", flush=True)


if __name__ == "__main__":
    main()
