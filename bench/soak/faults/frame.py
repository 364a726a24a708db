"""One fault under a steady load: the rate before, the blow, the rate after, and what is wrong.

A fault is a function that gets a `Ground`, does its harm, lets it last and undoes its cause. Each
runs on a store of its own, so that what is found wrong is its own doing.
"""

from __future__ import annotations

import subprocess
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from random import Random
from typing import Any

import ulak
from bench import postgres
from bench.soak.checks import Evidence, violations
from bench.soak.children import DATABASE, LEDGER, engine_of
from bench.soak.eyes import Eyes, PostgresEyes, SqliteEyes
from bench.soak.faults.pace import SHARE, Pace
from bench.soak.ledger import Ledger, read_all
from bench.soak.people import Operator
from bench.soak.run import findings_of_verify, troubles, wait_for_the_end
from bench.soak.storm import Children

WORKERS = 3
# Longer than any fault here with two thirds of a lease before it: nothing lapses that lives.
LEASE_S = 60.0
BACK_WITHIN_S = 5.0
LOOKED_FOR_S = 60.0
READY_WITHIN_S = 120.0
ENDED_WITHIN_S = 240.0

Check = Callable[[Evidence], Iterable[str]]


@dataclass(frozen=True, slots=True)
class Plan:
    """How much load, and how long everything lasts."""

    seed: int = 1
    orders_per_s: float = 12.0
    warm_up_s: float = 3.0
    before_s: float = 9.0
    share: float = 1.0
    """The part of its time that a fault lasts."""
    is_timed: bool = True
    """Whether a rate that is not back in time is wrong."""


# For CI: whether anything is lost or doubled, and nothing about time.
SHORT = Plan(orders_per_s=6.0, warm_up_s=0.2, before_s=0.5, share=0.1, is_timed=False)


@dataclass(slots=True)
class Ground:
    """What a fault may harm, and how it says what that may cost."""

    folder: Path
    url: str
    store: str
    """`sqlite` or `postgres`."""
    server: Any
    """What the fault's site has started, None on SQLite."""
    children: Children
    engine: ulak.Engine
    """The operators' engine, for questions."""
    ledger: Ledger
    dice: Random
    plan: Plan
    pace: Pace
    costs: list[str] = field(default_factory=list)
    """A violation that has one of these texts in it is a cost of the fault and nothing wrong."""
    afterwards: list[Callable[[], None]] = field(default_factory=list)
    """What clients do when the former rate is back."""
    checks: list[Check] = field(default_factory=list)
    """What else must hold when everything has ended."""

    def last(self, seconds: float) -> None:
        """Let the fault last for so long, or the plan's share of it."""
        time.sleep(seconds * self.plan.share)

    def wait_until(self, is_so: Callable[[], object], what: str) -> None:
        """Wait for a fact that must come.

        Raises:
            TimeoutError: it has not come within two minutes.
        """
        deadline = time.monotonic() + READY_WITHIN_S
        while not is_so():
            if time.monotonic() > deadline:
                raise TimeoutError(f"waited {READY_WITHIN_S:.0f} s in vain: {what}")
            time.sleep(0.05)

    def wait_until_ready(self, *workers: subprocess.Popen[bytes]) -> None:
        """Wait until these workers have opened their store."""
        pids = {worker.pid for worker in workers}
        self.wait_until(lambda: pids <= self.pace.ready, "a worker gets ready")

    def wait_for_runs(self, number: int, worker: subprocess.Popen[bytes] | None = None) -> None:
        """Wait until so many more runs have begun, by anybody or by one worker."""
        pid = None if worker is None else worker.pid
        enough = self.pace.count_runs(pid) + number
        self.wait_until(lambda: self.pace.count_runs(pid) >= enough, f"{number} runs begin")


@contextmanager
def durable_server() -> Iterator[tuple[str, Any]]:
    """A PostgreSQL of its own, with a new database."""
    with postgres.durable() as bench:
        yield bench.fresh(), bench.server


@dataclass(frozen=True, slots=True)
class Fault:
    """One kind of harm.

    `strike` begins it, lets it last and ends it: it returns when its cause is gone. What it may
    cost is said in its docstring, and told to the ground. `site` is where it happens on
    PostgreSQL: it yields the URL for all clients, and what becomes `Ground.server`.
    """

    name: str
    stores: tuple[str, ...]
    strike: Callable[[Ground], None]
    lease_s: float = LEASE_S
    harms_all: bool = True
    """Whether it may stop everything; else all but the harmed goes on at the former rate."""
    site: Callable[[], AbstractContextManager[tuple[str, Any]]] = durable_server


@dataclass(slots=True)
class Outcome:
    """What one fault did."""

    name: str
    store: str
    rate_before: float = 0.0
    rate_during: float = 0.0
    lasted_s: float = 0.0
    back_after_s: float | None = None
    """When the first window of the former rate begins, after the end of the fault."""
    orders: int = 0
    costs: list[str] = field(default_factory=list)
    wrong: list[str] = field(default_factory=list)


def run_fault(fault: Fault, store: str, folder: Path, plan: Plan) -> Outcome:
    """Run one fault in an empty folder."""
    outcome = Outcome(fault.name, store)
    if store == "sqlite":
        _run(fault, outcome, folder, f"sqlite:///{folder.resolve() / DATABASE}", None, plan)
    else:
        with fault.site() as (url, server):
            _run(fault, outcome, folder, url, server, plan)
    return outcome


def _run(fault: Fault, outcome: Outcome, folder: Path, url: str, server: Any, plan: Plan) -> None:
    engine, ledger = engine_of(folder, url)
    engine.open()
    children = Children(
        folder, workers=WORKERS, seed=plan.seed, lease_s=fault.lease_s, url=url, broken=None
    )
    pace = Pace(children, folder / LEDGER, orders_per_s=plan.orders_per_s)
    people = [Operator(name, engine, folder, plan.seed) for name in ("ada", "bora")]
    ground = Ground(
        folder, url, outcome.store, server, children, engine, ledger,
        Random(f"{plan.seed}/{fault.name}"), plan, pace,
    )  # fmt: skip
    try:
        for thread in (pace, *people):
            thread.start()
        ground.wait_until_ready(*children.workers)
        ground.wait_for_runs(1)
        time.sleep(plan.warm_up_s)
        outcome.rate_before = _measure(pace, plan.before_s)
        time.sleep(ground.dice.random())  # another moment with another seed
        began = time.monotonic()
        fault.strike(ground)
        ended = time.monotonic()
        outcome.lasted_s = ended - began
        outcome.rate_during = pace.usual_rate(began, ended)
        if plan.is_timed:
            outcome.back_after_s = pace.wait_for_rate(
                outcome.rate_before, since=ended, within_s=LOOKED_FOR_S
            )
        pace.stop()
        outcome.orders = pace.orders
        for act in ground.afterwards:
            act()
        _end(ground, people)
        _judge(ground, outcome)
    finally:
        pace.stop()
        for person in people:
            person.stop()
        children.kill_all()
        engine.close()
        ledger.close()
    outcome.wrong += [*children.faults, *troubles(people)]
    if plan.is_timed and (outcome.back_after_s is None or outcome.back_after_s > BACK_WITHIN_S):
        outcome.wrong.append(f"the former rate was not back within {BACK_WITHIN_S:g} s")
    if plan.is_timed and not fault.harms_all and outcome.rate_during < SHARE * outcome.rate_before:
        outcome.wrong.append("what the fault does not concern went slower while it lasted")


def _measure(pace: Pace, seconds: float) -> float:
    began = time.monotonic()
    time.sleep(seconds)
    return pace.usual_rate(began, began + seconds)


def _end(ground: Ground, people: list[Operator]) -> None:
    """Let everything that was accepted come to its end, and stop."""
    children = ground.children
    children.look()
    children.finish_submitting()
    eyes = _eyes(ground)
    try:
        deadline = time.monotonic() + ENDED_WITHIN_S
        wait_for_the_end(ground.pace.orders, ground.engine, children, eyes, deadline)
    finally:
        eyes.close()
    for person in people:
        person.stop()
    children.stop()


def _eyes(ground: Ground) -> Eyes:
    if ground.store == "sqlite":
        return SqliteEyes(ground.folder / DATABASE)
    return PostgresEyes(ground.url)


def _judge(ground: Ground, outcome: Outcome) -> None:
    lines = read_all(ground.folder / LEDGER)
    seen = Evidence(ground.engine.store, lines, jobs=outcome.orders, seed=ground.plan.seed)
    # What a check has found may add to the costs. No cost is what `verify` and a check find.
    outcome.wrong += [sentence for check in ground.checks for sentence in check(seen)]
    outcome.wrong += findings_of_verify(ground.engine)
    for sentence in violations(seen):
        is_cost = any(text in sentence for text in ground.costs)
        (outcome.costs if is_cost else outcome.wrong).append(sentence)
