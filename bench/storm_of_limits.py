"""Flow control under four worker processes, one of which is killed again and again.

Stages write when they begin and end to a ledger outside the store; the times of claims are those
that the store wrote. From both it is told whether a key ever ran more often than its limit,
whether a bucket ever gave more than it had, whether a date of a schedule made two jobs or none,
and how even the turns of tenants were.

`python -m bench.storm_of_limits URL LEDGER` is one worker.
"""

from __future__ import annotations

import asyncio
import json
import os
import random
import signal
import subprocess
import sys
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from datetime import timedelta
from itertools import pairwise
from pathlib import Path
from typing import Any

import ulak
from bench.measure import ROOT, Figure, scratch
from bench.postgres import durable
from ulak.core import event as kinds

WORKERS = 4
KILL_EVERY_S = 0.7
# Long enough that a worker which lives renews it, however busy the machine is.
LEASE = timedelta(seconds=4)
PATIENCE_S = 120.0

KEYS, PER_KEY, LIMITED_JOBS = 5, 3, 600
RATE, BURST, RATED_JOBS, DEAREST = 60, 12, 300, 4
TENANTS, SMALL, LARGE = 8, 60, 600
BEAT_S = 1

LIMITED = "limited"
RATED = "rated"
FAIR = "fair"
BEATEN = "beaten"


def flows(ledger: Path) -> list[ulak.Flow[Any]]:
    """The flows of the storm; what they run is written down."""
    limited: ulak.Flow[Any] = ulak.Flow(
        LIMITED, ulak.Lifecycle("waiting_room", {"waiting_room": ["done"]}), max_lapses=1000
    )

    @limited.stage("waiting_room", limit=ulak.Limit(PER_KEY, key=lambda p: p["key"]))
    async def sit(run: ulak.Run[Any]) -> None:
        note(ledger, "begins", run.payload["key"])
        try:
            await asyncio.sleep(random.uniform(0.005, 0.02))
        finally:
            note(ledger, "ends", run.payload["key"])

    rated: ulak.Flow[Any] = ulak.Flow(
        RATED, ulak.Lifecycle("queued", {"queued": ["done"]}), max_lapses=1000
    )

    @rated.stage(
        "queued",
        rate=ulak.Rate(RATE, per=timedelta(seconds=1), burst=BURST, cost=lambda p: p["cost"]),
    )
    async def call(run: ulak.Run[Any]) -> None:
        await asyncio.sleep(0.002)

    fair: ulak.Flow[Any] = ulak.Flow(
        FAIR, ulak.Lifecycle("queued", {"queued": ["done"]}), fair=True, max_lapses=1000
    )

    @fair.stage("queued")
    async def serve(run: ulak.Run[Any]) -> None:
        note(ledger, "served", run.payload["tenant"])
        await asyncio.sleep(0.004)

    beaten: ulak.Flow[Any] = ulak.Flow(BEATEN, ulak.Lifecycle("due", {"due": ["done"]}))

    @beaten.stage("due")
    async def beat(run: ulak.Run[Any]) -> None:
        return None

    return [limited, rated, fair, beaten]


def engine_of(url: str, ledger: Path) -> ulak.Engine:
    """The engine of every process of the storm."""
    engine = ulak.connect(url, flows=flows(ledger))
    beaten = next(flow for flow in engine.inspect.flows if flow.name == BEATEN)
    engine.schedules.add("beat", beaten, None, every=timedelta(seconds=BEAT_S), catch_up="all")
    return engine


def note(ledger: Path, what: str, who: str) -> None:
    """Write a line that survives this process, with the time of the machine."""
    line = f"{time.monotonic_ns()} {os.getpid()} {what} {who}\n".encode()
    file = os.open(ledger, os.O_WRONLY | os.O_APPEND | os.O_CREAT)
    os.write(file, line)
    os.close(file)


def work(url: str, ledger: Path) -> None:
    """Be a worker until somebody kills it."""
    engine = engine_of(url, ledger)
    worker = engine.worker(ulak.WorkerSettings(lease=LEASE, loop=8))
    note(ledger, "ready", "worker")
    signal.signal(signal.SIGTERM, lambda *_: worker.stop())
    asyncio.run(worker.run())
    engine.close()


@dataclass(frozen=True, slots=True)
class Seen:
    """What a storm has shown."""

    kills: int
    jobs: int
    unfinished: int
    most_at_once: int
    overdrawn: float
    """By how many tokens a bucket gave more than it had, in the worst window."""
    dates: int
    missing: int
    doubled: int
    fairness: float
    findings: int

    def is_exact(self) -> bool:
        """Tell whether every promise was kept."""
        return (
            self.most_at_once <= PER_KEY
            and self.overdrawn <= 0
            and (self.missing, self.doubled, self.unfinished, self.findings) == (0, 0, 0, 0)
        )


def storm(url: str, folder: Path, seed: int = 1) -> Seen:
    """Submit, let four workers run, kill one now and then, and look at what is left."""
    ledger = folder / "ledger"
    draw = random.Random(seed)
    with engine_of(url, ledger) as engine:
        by_name = {flow.name: flow for flow in engine.inspect.flows}
        engine.submit_many(by_name[LIMITED], [{"key": f"k{n % KEYS}"} for n in range(LIMITED_JOBS)])
        costs = [{"cost": draw.randint(1, DEAREST)} for _ in range(RATED_JOBS)]
        engine.submit_many(by_name[RATED], costs)
        for tenant in range(TENANTS):
            jobs = LARGE if tenant == 0 else SMALL
            name = f"t{tenant}"
            engine.submit_many(by_name[FAIR], [{"tenant": name}] * jobs, tenant=name)
        kills, killed_at = _kill_until_done(engine, url, ledger, draw)
        return _look_back(engine, ledger, kills, killed_at)


def _kill_until_done(
    engine: ulak.Engine, url: str, ledger: Path, draw: random.Random
) -> tuple[int, dict[int, int]]:
    workers = [_start(url, ledger) for _ in range(WORKERS)]
    killed_at: dict[int, int] = {}
    deadline = time.monotonic() + PATIENCE_S
    try:
        while _unfinished(engine) and time.monotonic() < deadline:
            time.sleep(KILL_EVERY_S)
            # One that works: to kill those that are still starting would only stop the clock.
            ready = {int(line.split()[1]) for line in _lines(ledger) if " ready " in line}
            victims = [n for n in range(WORKERS) if workers[n].pid in ready]
            if len(victims) < WORKERS - 1:
                continue
            victim = draw.choice(victims)
            workers[victim].kill()
            workers[victim].wait()
            killed_at[workers[victim].pid] = time.monotonic_ns()
            workers[victim] = _start(url, ledger)
    finally:
        for worker in workers:
            worker.terminate()
        for worker in workers:
            worker.wait()
    return len(killed_at), killed_at


def _lines(ledger: Path) -> list[str]:
    return ledger.read_text().splitlines() if ledger.exists() else []


def _start(url: str, ledger: Path) -> subprocess.Popen[bytes]:
    return subprocess.Popen(
        [sys.executable, "-m", "bench.storm_of_limits", url, str(ledger)], cwd=ROOT
    )


def _unfinished(engine: ulak.Engine) -> int:
    return sum(c.jobs for c in engine.inspect.counts() if c.role != "done" and c.flow != BEATEN)


def _look_back(engine: ulak.Engine, ledger: Path, kills: int, killed_at: dict[int, int]) -> Seen:
    lines = [line.split() for line in _lines(ledger)]
    missing, doubled, dates = _dates(engine)
    return Seen(
        kills=kills,
        jobs=sum(c.jobs for c in engine.inspect.counts()),
        unfinished=_unfinished(engine),
        most_at_once=_most_at_once(lines, killed_at),
        overdrawn=_overdrawn(engine),
        dates=dates,
        missing=missing,
        doubled=doubled,
        fairness=fairness([who for _, _, what, who in lines if what == "served"]),
        findings=len(engine.inspect.verify()),
    )


def _most_at_once(lines: Iterable[Sequence[str]], killed_at: dict[int, int]) -> int:
    """Return how many runs of one key there were at once, at most.

    A run whose process was killed has ended when that process was gone.
    """
    steps: dict[str, list[tuple[int, int]]] = defaultdict(list)
    running: Counter[tuple[int, str]] = Counter()
    for at, pid, what, who in lines:
        if what in ("begins", "ends"):
            step = 1 if what == "begins" else -1
            steps[who].append((int(at), step))
            running[int(pid), who] += step
    for (pid, who), left in running.items():
        if left:
            steps[who] += [(killed_at[pid], -1)] * left
    most = 0
    for of_key in steps.values():
        now = 0
        for _, step in sorted(of_key):
            now += step
            most = max(most, now)
    return most


def _overdrawn(engine: ulak.Engine) -> float:
    """Return by how many tokens the bucket gave more than it had at the worst moment.

    The times are the store's: a job keeps that of its last claim, and the line of a lapse that of
    the lease which was lost.
    """
    claims: list[tuple[int, int]] = []
    for row in _rows(engine, RATED):
        cost = json.loads(row.keys)["queued"]["cost"]
        leases = [e.started_at for e in engine.store.trail(row.id) if e.kind == kinds.LAPSED]
        claims += [(at, cost) for at in (*leases, row.leased_at) if at is not None]
    claims.sort()
    level, worst = float(BURST), 0.0
    before = claims[0][0] if claims else 0
    for at, cost in claims:
        level = min(BURST, level + (at - before) * RATE / 1e6) - cost
        before = at
        worst = max(worst, -level)
    return round(worst, 6)


def _rows(engine: ulak.Engine, flow: str) -> Iterable[Any]:
    page = engine.store.scan_jobs()
    while page:
        yield from (row for row in page if row.flow == flow)
        page = engine.store.scan_jobs(after=page[-1].id)


def _dates(engine: ulak.Engine) -> tuple[int, int, int]:
    """Return how many dates of the schedule are missing, how many have two jobs, and all."""
    ticks = engine.store.ticks("beat", limit=100_000)
    dates = sorted(tick.due_at for tick in ticks)
    missing = sum((b - a) // (BEAT_S * 1_000_000) - 1 for a, b in pairwise(dates))
    jobs = Counter(row.scheduled_for for row in _rows(engine, BEATEN))
    doubled = sum(n - 1 for n in jobs.values()) + abs(len(jobs) - len(dates))
    return missing, doubled, len(dates)


def fairness(served: Sequence[str]) -> float:
    """Return Jain's index of the tenants while each of them still had jobs to be taken: 1 is even.

    The last ones are left out: what a killed worker held cannot be taken before its lease lapses.
    """
    share: Counter[str] = Counter()
    for tenant in served:
        share[tenant] += 1
        if share[tenant] >= 0.8 * SMALL:
            break
    given = [share[f"t{n}"] for n in range(TENANTS)]
    return sum(given) ** 2 / (len(given) * sum(n * n for n in given)) if any(given) else 0.0


def figure(name: str, with_url: Callable[[Callable[[str, Path], Seen]], Seen]) -> Figure:
    """One storm on one store."""
    seen = with_url(storm)
    return Figure(
        f"limits, rates and ticks under {WORKERS} processes and SIGKILL, {name}",
        f"<= {PER_KEY} of a key at once, 0 tokens overdrawn, 0 dates twice or lost, all jobs done",
        f"{seen.most_at_once} at once; {seen.overdrawn:g} overdrawn; {seen.dates} dates, "
        f"{seen.doubled} twice, {seen.missing} lost; {seen.jobs} jobs, {seen.unfinished} not done; "
        f"{seen.kills} kills; fairness index {seen.fairness:.3f}; verify {seen.findings} findings",
        seen.is_exact() and seen.fairness >= 0.95,
        "python -m bench.figures limits",
    )


def limits_figures() -> list[Figure]:
    """The storm on SQLite and on PostgreSQL."""

    def on_sqlite(run: Callable[[str, Path], Seen]) -> Seen:
        with scratch() as folder:
            return run(f"sqlite:///{folder / 'storm.db'}", folder)

    def on_postgres(run: Callable[[str, Path], Seen]) -> Seen:
        with scratch() as folder, durable() as bench:
            return run(bench.fresh(), folder)

    return [figure("SQLite", on_sqlite), figure("PostgreSQL", on_postgres)]


if __name__ == "__main__":
    work(sys.argv[1], Path(sys.argv[2]))
