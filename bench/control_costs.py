"""What each part of flow control costs: the drain of no-op jobs with it, of the drain without.

Admission is asked when a job is submitted, so that submits are measured with and without it too. No
drain should notice it: its rate is compared with the plain one of the same round, and has a bound.

`python -m bench.control_costs URL KIND JOBS` submits and drains once and prints jobs per second;
with `submits` after it, it submits one by one.
"""

from __future__ import annotations

import asyncio
import statistics
import sys
import time
from collections.abc import Callable, Mapping
from datetime import timedelta
from typing import Any

import ulak
from bench.measure import Figure, in_child, scratch
from bench.postgres import durable
from ulak.cli.speed import nothing, run_dry
from ulak.engine.worker import settle_in

JOBS = 10_000
ROUNDS = 3
ADMISSION_ROUNDS = 9
BOUND = 0.97
"""Of the plain drain, what a drain under admission keeps at least (E-73)."""
KEYS = 50
TENANTS = 10
SCHEDULES = 100
PLENTY = 1_000
"""More places than a worker has: the limit is looked at and never reached."""

KINDS = {
    "plain": "nothing",
    "limit": "a limit that is never reached",
    "keys": f"a limit of {KEYS} keys, never reached",
    "rate": "a rate that is never reached",
    "fair": f"turns of {TENANTS} tenants",
    "pause": "another queue is paused",
    "ticks": f"{SCHEDULES} schedules that tick each second",
    "state": "a limit of its busy state that is never reached",
}
ADMISSION = {
    "plain": "nothing",
    "stopped": "another flow is stopped",
    "rule": "a rule of admission",
    "bounded": "a bound of waiting jobs that is never reached",
}
SUBMITS = 1_500


def flow_of(kind: str) -> ulak.Flow[Any]:
    """No-op jobs under one part of flow control."""
    moves = {"only": ["doing"], "doing": ["done"]} if kind == "state" else {"only": ["done"]}
    flow: ulak.Flow[Any] = ulak.Flow(
        "noop", ulak.Lifecycle("only", moves), fair=kind == "fair",
        max_waiting=10 * JOBS if kind == "bounded" else None,
        admission=(lambda intake: None) if kind == "rule" else None,
    )  # fmt: skip
    options: dict[str, Any] = {
        "limit": {"limit": ulak.Limit(PLENTY)},
        "keys": {"limit": ulak.Limit(PLENTY // KEYS, key=lambda p: p["key"])},
        "rate": {"rate": ulak.Rate(1_000, per=timedelta(milliseconds=1), burst=1_000_000)},
        "state": {"limit": ulak.Limit(PLENTY, of="state"), "during": "doing"},
    }.get(kind, {})
    flow.stage("only", **options)(nothing)
    return flow


def drain(url: str, kind: str, jobs: int) -> float:
    """Submit that many jobs and drain them; answer how many a second."""
    flow, another = flow_of(kind), ulak.Flow.steps("another", ("only", nothing))
    with ulak.connect(url, flows=[flow, another]) as engine:
        for n in range(0, jobs, 500):
            payloads = [{"key": f"k{m % KEYS}"} for m in range(n, min(n + 500, jobs))]
            tenant = f"t{n // 500 % TENANTS}" if kind == "fair" else ""
            engine.submit_many(flow, payloads, tenant=tenant)
        if kind == "stopped":
            engine.flow_control.stop_accepting("another", actor="bench")
        if kind == "pause":
            engine.flow_control.pause(queue="another", actor="bench", note="")
        if kind == "ticks":
            for n in range(SCHEDULES):
                engine.schedules.add(f"s{n}", another, None, every=timedelta(seconds=1))
            # All of them are due at once, in the middle of the drain.
            time.sleep(1.7 - time.time() % 1)
        settle_in()  # as `ulak worker` does
        took = asyncio.run(run_dry(engine))
        done = sum(
            c.jobs for c in engine.inspect.counts() if (c.flow, c.role) == (flow.name, "done")
        )
        assert kind != "ticks" or len(engine.schedules.ticks("s0")) > 0, (
            "no tick fell into the drain"
        )
        assert done == jobs, f"{done} of {jobs} are done"
    return jobs / took


def submit(url: str, kind: str, jobs: int) -> float:
    """Submit that many jobs one by one; return how many a second."""
    flow, another = flow_of(kind), ulak.Flow.steps("another", ("only", nothing))
    with ulak.connect(url, flows=[flow, another]) as engine:
        if kind == "stopped":
            engine.flow_control.stop_accepting("another", actor="bench")
        began = time.perf_counter()
        for n in range(jobs):
            engine.submit(flow, {"key": n})
        return jobs / (time.perf_counter() - began)


def costs(name: str, fresh: Callable[[], str]) -> list[Figure]:
    """Measure with each in turn; return what is left of the plain rates."""

    def figure(
        what: str, kinds: Mapping[str, str], jobs: int, *more: str,
        rounds: int = ROUNDS, least: float | None = None,
    ) -> Figure:  # fmt: skip
        taken = [
            {kind: in_child("bench.control_costs", fresh(), kind, jobs, *more) for kind in kinds}
            for _ in range(rounds)
        ]
        plain = statistics.median(each["plain"] for each in taken)
        shares = {
            kind: statistics.median(each[kind] / each["plain"] for each in taken)
            for kind in kinds
            if kind != "plain"
        }
        text = "; ".join(f"{kinds[kind]} {share:.3f}" for kind, share in shares.items())
        return Figure(
            f"{what}, {name}", "published" if least is None else f">= {least}",
            f"{text} (of {plain:,.0f} jobs/s)", min(shares.values()) >= (least or 0),
            "python -m bench.figures costs",
        )  # fmt: skip

    drained = f"of the drain of {JOBS:,} no-op jobs"
    return [
        figure(f"what flow control leaves {drained}", KINDS, JOBS),
        figure(
            f"what admission leaves {drained} (E-73)", ADMISSION, JOBS,
            rounds=ADMISSION_ROUNDS, least=BOUND,
        ),
        figure(f"what admission leaves of {SUBMITS:,} submits", ADMISSION, SUBMITS, "submits"),
    ]  # fmt: skip


def costs_figures() -> list[Figure]:
    """On SQLite and on PostgreSQL."""
    with scratch() as folder:
        numbers = iter(range(1_000))
        sqlite = costs("SQLite", lambda: f"sqlite:///{folder / f'{next(numbers)}.db'}")
    with durable() as bench:
        postgres = costs("PostgreSQL", bench.fresh)
    return [*sqlite, *postgres]


if __name__ == "__main__":
    measure = submit if sys.argv[4:] == ["submits"] else drain
    print(measure(sys.argv[1], sys.argv[2], int(sys.argv[3])))
