"""What comes due all at once (E-85): deadlines, parked keys and old rows, beside claims.

Each is measured alone against the same rows in bare batches, in turns, and then beside a process
that goes on claiming, against the claims of that process without it.

`python -m bench.upkeep claim URL` claims until its standard input ends.
"""

from __future__ import annotations

import asyncio
import json
import sqlite3
import statistics
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

import psycopg

import ulak
from bench import postgres
from bench.measure import ROOT, Figure, alternate, scratch
from ulak.cli.speed import nothing, run_dry
from ulak.cli.store import PAUSE_S
from ulak.clock import micros
from ulak.core.decide import RunFacts, decide
from ulak.core.outcome import GivenBack
from ulak.engine.upkeep import A_PAGE, Upkeep
from ulak.ids import from_text
from ulak.store.protocol import ClaimRequest, Want

JOBS = 100_000
PRUNED = 250_000
"""Each with a payload and two events: a million rows."""
PRUNE_BATCH = 500
ROUNDS = 3
ALONE_S = 5.0
CLAIMED = 100

MOST_OF_BARE = {"deadlines": 6.0, "keys": 6.0, "rows": 4.0}
LONGEST_CLAIM_S = 1.0


def flows() -> list[ulak.Flow[Any]]:
    """Return flows with a deadline, with a key for each job, with nothing, and the claimed one."""
    late: ulak.Flow[Any] = ulak.Flow("late", ulak.Lifecycle("new", {"new": ["late"]}, done="late"))
    late.wait("new", signal="paid", to="late", deadline=timedelta(days=9), on_expiry="late")
    keyed: ulak.Flow[Any] = ulak.Flow("keyed", ulak.Lifecycle("call", {"call": ["done"]}))
    keyed.stage("call", limit=ulak.Limit(1, key=lambda payload: payload["key"]))(nothing)
    old: ulak.Flow[Any] = ulak.Flow.steps("old", ("work", nothing))
    claimed: ulak.Flow[Any] = ulak.Flow.steps("claimed", ("work", nothing))
    return [late, keyed, old, claimed]


# --- the rows -------------------------------------------------------------------


class Database:
    """A store's tables, written by plain SQL in either dialect."""

    def __init__(self, url: str) -> None:
        self.is_server = url.startswith("postgresql")
        self.ulak = "ulak." if self.is_server else ""
        self._db: Any
        if self.is_server:
            self._db = psycopg.connect(url, autocommit=True)
        else:
            self._db = sqlite3.connect(url.removeprefix("sqlite:///"), isolation_level=None)
            self._db.execute("PRAGMA synchronous = FULL")

    def id(self, n: str) -> str:
        """Return the expression for the id of the nth copy."""
        if self.is_server:
            return f"lpad(to_hex({n}), 32, '0')::uuid"
        return f"CAST(printf('%016d', {n}) AS BLOB)"

    def copy(self, table: str, job_id: str, first: int, last: int, **others: str) -> None:
        """Copy the rows of one job many times, with other ids and these columns."""
        own = "id" if table == "jobs" else "job_id"
        model = f"(SELECT * FROM {self.ulak}{table} WHERE {own} = {self._literal(job_id)})"  # noqa: S608 - our own names
        columns = [c[0] for c in self._db.execute(model.strip("()")).description]
        values = {own: self.id("n"), **others}
        chosen = ", ".join(values.get(column, f"m.{column}") for column in columns)
        self._db.execute(
            f"INSERT INTO {self.ulak}{table} ({', '.join(columns)}) "  # noqa: S608 - our own names
            f"WITH RECURSIVE n (n) AS (SELECT {first} UNION ALL SELECT n + 1 FROM n "
            f"WHERE n < {last}) SELECT {chosen} FROM n, {model} AS m"
        )

    def batches(self, jobs: int, size: int, *statements: Callable[[int, int], str]) -> float:
        """Run the statements over ranges of copies, a transaction each; return the seconds."""
        began = time.perf_counter()
        for first in range(1, jobs + 1, size):
            last = min(first + size - 1, jobs)
            self._db.execute("BEGIN" if self.is_server else "BEGIN IMMEDIATE")
            for statement in statements:
                self._db.execute(statement(first, last))
            self._db.execute("COMMIT")
        return time.perf_counter() - began

    def between(self, own: str, first: int, last: int) -> str:
        """Return the condition for the rows of these copies."""
        return f"{own} BETWEEN {self.id(str(first))} AND {self.id(str(last))}"

    def execute(self, statement: str) -> None:
        """Run one statement."""
        self._db.execute(statement)

    def close(self) -> None:
        """End the connection."""
        self._db.close()

    def _literal(self, job_id: str) -> str:
        hexed = from_text(job_id).hex()
        return f"'{hexed}'::uuid" if self.is_server else f"X'{hexed}'"


@dataclass(frozen=True)
class Work:
    """One thing that upkeep does: its rows, how ulak does it, and the same rows barely."""

    name: str
    rows: int
    """How many rows of tables are written or removed."""
    load: Callable[[ulak.Engine, Database], None]
    act: Callable[[ulak.Engine, bool], None]
    bare: Callable[[Database], float]


def load_deadlines(engine: ulak.Engine, db: Database) -> None:
    """Store jobs whose deadline has come."""
    model = engine.submit(engine.inspect.flows[0], None).id
    db.copy("jobs", model, 1, JOBS, wake_at="1", deadline_at="1")


def load_keys(engine: ulak.Engine, db: Database) -> None:
    """Store jobs that are each parked on a key of their own, with a free slot."""
    model = engine.submit(engine.inspect.flows[1], {"key": "k"}).id
    name = "'keyed/call/k' || n"
    db.copy("jobs", model, 1, JOBS, slot=name, parked_on=name, not_before="4102444800000000")


def load_rows(engine: ulak.Engine, db: Database) -> None:
    """Store jobs that ended long ago, with payloads and events."""
    model = engine.submit(engine.inspect.flows[2], None).id
    asyncio.run(run_dry(engine))
    db.copy("jobs", model, 1, PRUNED, changed_at="n")
    for table in ("payloads", "events"):
        db.copy(table, model, 1, PRUNED)


def keep_up(engine: ulak.Engine, beside: bool) -> None:
    """Do what is due until nothing is left."""
    upkeep = Upkeep(engine.kernel, 0)
    while upkeep.tick():
        pass


def prune(engine: ulak.Engine, beside: bool) -> None:
    """Prune as `ulak prune` does; alone without its pause."""
    while engine.store.prune(before=PRUNED + 1, limit=PRUNE_BATCH):
        if beside:
            time.sleep(PAUSE_S)


def bare_deadlines(db: Database) -> float:
    model = f"(SELECT * FROM {db.ulak}events LIMIT 1)"  # noqa: S608 - our own names
    columns = [
        "job_id", "seq", "kind", "from_state", "to_state", "actor", "code", "message", "details",
        "round", "attempt", "worker", "token", "started_at", "at", "emitted", "commit_id",
    ] + (["month"] if db.is_server else [])  # fmt: skip
    values = {"job_id": "j.id", "seq": "j.seq", "kind": "'waited'", "to_state": "'late'"}
    chosen = ", ".join(values.get(column, f"m.{column}") for column in columns)
    return db.batches(
        JOBS, A_PAGE,
        lambda first, last: (
            f"UPDATE {db.ulak}jobs SET state = 'late', role = 'done', version = version + 1, "  # noqa: S608
            "seq = seq + 1, changed_at = 1, awaits = NULL, deadline_at = NULL, wake_at = NULL "
            f"WHERE {db.between('id', first, last)}"
        ),
        lambda first, last: (
            f"INSERT INTO {db.ulak}events ({', '.join(columns)}) SELECT {chosen} "  # noqa: S608
            f"FROM {db.ulak}jobs AS j, {model} AS m WHERE {db.between('j.id', first, last)}"
        ),
    )  # fmt: skip


def bare_keys(db: Database) -> float:
    return db.batches(
        JOBS, A_PAGE,
        lambda first, last: (
            f"UPDATE {db.ulak}jobs SET parked_on = NULL WHERE {db.between('id', first, last)}"  # noqa: S608
        ),
    )  # fmt: skip


def bare_rows(db: Database) -> float:
    def deletes(table: str, own: str) -> Callable[[int, int], str]:
        return lambda first, last: (
            f"DELETE FROM {db.ulak}{table} WHERE {db.between(own, first, last)}"  # noqa: S608
        )

    tables = [deletes(table, "job_id") for table in ("payloads", "events", "results")]
    return db.batches(PRUNED, PRUNE_BATCH, *tables, deletes("jobs", "id"))


WORKS = (
    Work("deadlines", JOBS, load_deadlines, keep_up, bare_deadlines),
    Work("keys", JOBS, load_keys, keep_up, bare_keys),
    Work("rows", 4 * PRUNED, load_rows, prune, bare_rows),
)


# --- measuring ------------------------------------------------------------------


@contextmanager
def loaded(url: str, work: Work) -> Iterator[tuple[ulak.Engine, Database]]:
    """An engine on a new store with the rows of this work in it."""
    with ulak.connect(url, flows=flows()) as engine:
        db = Database(url)
        try:
            work.load(engine, db)
            db.execute("VACUUM ANALYZE ulak.jobs" if db.is_server else "PRAGMA optimize")
            yield engine, db
        finally:
            db.close()


def ours(url: str, work: Work) -> float:
    """Return the seconds that ulak takes alone."""
    with loaded(url, work) as (engine, _):
        began = time.perf_counter()
        work.act(engine, False)
        return time.perf_counter() - began


def barely(url: str, work: Work) -> float:
    """Return the seconds that the same rows take in bare batches."""
    with loaded(url, work) as (_, db):
        return work.bare(db)


def beside(url: str, work: Work) -> tuple[float, float, float]:
    """Return the seconds, the share of claims that is left, and the longest claim in seconds."""
    with loaded(url, work) as (engine, _):
        engine.submit_many(engine.inspect.flows[3], [None] * CLAIMED)
        with claiming(url) as alone:
            time.sleep(ALONE_S)
        with claiming(url) as meanwhile:
            began = time.perf_counter()
            work.act(engine, True)
            took = time.perf_counter() - began
    return took, meanwhile["rate"] / alone["rate"], meanwhile["longest_s"]


@contextmanager
def claiming(url: str) -> Iterator[dict[str, float]]:
    """Have a process claim meanwhile; what it counted is there afterwards."""
    counted: dict[str, float] = {}
    child = subprocess.Popen(
        [sys.executable, "-m", "bench.upkeep", "claim", url],
        cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
    )  # fmt: skip
    assert child.stdin is not None
    assert child.stdout is not None
    child.stdout.readline()
    try:
        yield counted
    finally:
        child.stdin.close()
        counted.update(json.loads(child.stdout.readline()))
        child.wait()


def claim(url: str) -> None:
    """Claim one job and give it back, again and again, until standard input ends."""
    ended = threading.Event()
    threading.Thread(target=lambda: (sys.stdin.read(), ended.set()), daemon=True).start()
    with ulak.connect(url, flows=flows()) as engine:
        store, flow = engine.store, engine.inspect.flows[3]
        lanes = tuple(flow.table.lanes)
        store.register("bench", lease_us=micros(timedelta(hours=1)), lanes=lanes, about="bench")
        request = ClaimRequest("bench", (Want(lanes, 1),))
        print("ready", flush=True)
        took: list[float] = []
        began = time.perf_counter()
        while not ended.is_set():
            started = time.perf_counter()
            (taken,) = store.claim(request).claims
            took.append(time.perf_counter() - started)
            now = store.clock.now()
            facts = RunFacts("bench", now)
            change = decide(
                flow,
                taken.row,
                GivenBack(),
                now,
                facts=facts,
                commit_id=engine.kernel.new_commit_id(),
            )
            store.commit([change])
        seconds = time.perf_counter() - began
        store.unregister("bench")
    counted = {
        "rate": len(took) / seconds,
        "longest_s": max(took),
        "p50_s": statistics.median(took),
    }
    print(json.dumps(counted), flush=True)


def upkeep_figures(rounds: int = ROUNDS) -> list[Figure]:
    """Measure each of them on both databases."""
    figures = []
    with scratch() as folder, postgres.durable() as server:
        numbers = iter(range(1000))
        places = {
            "SQLite": lambda: f"sqlite:///{folder}/upkeep-{next(numbers)}.db",
            "PostgreSQL": server.fresh,
        }
        for store, fresh in places.items():
            for work in WORKS:
                figures.append(figure(store, work, fresh, rounds))
                print(figures[-1].name, figures[-1].value, flush=True)
    return figures


def figure(store: str, work: Work, fresh: Callable[[], str], rounds: int) -> Figure:
    """Measure one of them in turns with the bare batches, and once beside claims."""
    seconds, bare = alternate(
        lambda: ours(fresh(), work), lambda: barely(fresh(), work), rounds=rounds
    )
    took, left, longest = beside(fresh(), work)
    ratio, most = seconds / bare, MOST_OF_BARE[work.name]
    what = {"deadlines": "expiring 10^5 deadlines", "keys": "unparking 10^5 keys"}
    return Figure(
        f"{what.get(work.name, 'pruning 10^6 rows')}, {store}: seconds of those of the same rows "
        "in bare batches; longest claim beside it",
        f"<= {most:g}; <= {LONGEST_CLAIM_S:g} s",
        f"{ratio:.1f} ({seconds:.1f} s of {bare:.1f}, {work.rows / seconds:,.0f} rows/s; beside "
        f"claims {took:.1f} s); {longest:.2f} s ({left:.2f} of the claims without it)",
        ratio <= most and longest <= LONGEST_CLAIM_S,
        "python -m bench.figures upkeep",
    )


if __name__ == "__main__":
    if sys.argv[1:2] == ["claim"]:
        claim(sys.argv[2])
    else:
        upkeep_figures(rounds=1)
