"""A limited stage: never more than n at once, whoever runs it and however it ends."""

import asyncio
import threading
import time
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

import ulak
from tests.scenario import program
from tests.scenario.doubles import (
    SOON,
    engine_on,
    eventually,
    kinds,
    settings,
    store_of,
)

LIFE = ulak.Lifecycle("a", {"a": ["b"], "b": ["done"]})


class Meter:
    """Counts who is inside, over threads and workers."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self.inside = 0
        self.most = 0
        self.runs = 0

    def __enter__(self) -> None:
        with self._lock:
            self.inside += 1
            self.runs += 1
            self.most = max(self.most, self.inside)

    def __exit__(self, *_: object) -> None:
        with self._lock:
            self.inside -= 1


def narrow(meter: Meter, n: int, *, plain: bool = False, fails: bool = False) -> ulak.Flow[Any]:
    """A wide stage, then one of which only `n` may run at once."""
    flow: ulak.Flow[Any] = ulak.Flow(
        "narrow", LIFE, retry=ulak.Backoff(delays=[timedelta(0)] if fails else [])
    )

    @flow.stage("a")
    async def a(run: ulak.Run[Any]) -> None: ...

    if plain:

        @flow.stage("b", limit=ulak.Limit(n))
        def b(run: ulak.Run[Any]) -> None:
            with meter:
                time.sleep(0.003)
            if fails and run.attempt == 1:
                raise ConnectionError
    else:

        @flow.stage("b", limit=ulak.Limit(n))
        async def b_async(run: ulak.Run[Any]) -> None:
            with meter:
                await asyncio.sleep(0.003)
            if fails and run.attempt == 1:
                raise ConnectionError

    return flow


@pytest.mark.shows("E-29")
@pytest.mark.parametrize("plain", [True, False], ids=["threads", "loop"])
def test_never_more_than_n_run_at_once_over_two_workers(jobs_url: str, plain: bool) -> None:
    meter = Meter()
    flow = narrow(meter, 3, plain=plain, fails=True)
    store = store_of(jobs_url)
    engine, other = engine_on(store, flow), engine_on(store, flow)
    with engine, engine.working(settings()), other.working(settings()):
        jobs = engine.submit_many(flow, [None] * 40)
        for job in jobs:
            assert engine.wait(job.id, timeout=SOON).state == "done"
        assert (meter.most, meter.runs) == (3, 80)
        assert all(slot.job_id is None for slot in store.slots())
        assert engine.inspect.verify() == []


@pytest.mark.shows("E-29")
def test_never_more_than_n_run_at_once_over_two_processes(shared_url: str, tmp_path: Path) -> None:
    (tmp_path / "hold").touch()
    with program.engine_at(shared_url) as engine:
        workers = [program.start(shared_url, tmp_path) for _ in range(2)]
        try:
            eventually(lambda: len(engine.store.workers()) == 2)
            jobs = engine.submit_many(program.narrow_flow, [1] * 6)
            eventually(lambda: len(program.ledger(tmp_path)) == 2)
            eventually(lambda: sum(engine.get(j.id).parked_on is not None for j in jobs) == 4)
            time.sleep(0.2)
            assert len(program.ledger(tmp_path)) == 2
            (tmp_path / "hold").unlink()
            for job in jobs:
                assert engine.wait(job.id, timeout=SOON).state == "done"
        finally:
            for worker in workers:
                worker.terminate()
            assert [worker.wait(120) for worker in workers] == [0, 0]
        assert engine.inspect.verify() == []


@pytest.mark.shows("E-29")
def test_a_parked_job_is_let_in_by_the_commit_that_frees_a_slot(jobs_url: str) -> None:
    flow: ulak.Flow[Any] = ulak.Flow("one", ulak.Lifecycle("a", {"a": ["done"]}), retry=0)
    order, go_on = list[str](), threading.Event()

    @flow.stage("a", limit=ulak.Limit(1))
    async def a(run: ulak.Run[Any]) -> None:
        order.append(run.payload)
        while not go_on.is_set():
            await asyncio.sleep(0.002)
        if run.payload == "fails":
            raise ValueError

    store = store_of(jobs_url)
    # Upkeep comes by once an hour: only the commits themselves let the next one in.
    quiet = ulak.WorkerSettings(
        poll=timedelta(hours=1), glance=timedelta(hours=1), drain=timedelta(seconds=2)
    )
    with engine_on(store, flow) as engine, engine.working(quiet):
        first = engine.submit(flow, "fails")
        eventually(lambda: order)
        low = engine.submit(flow, "low", priority=3)
        old = engine.submit(flow, "old")
        urgent = engine.submit(flow, "urgent", priority=0)
        eventually(lambda: all(engine.get(j.id).parked_on for j in (low, old, urgent)))
        go_on.set()
        for job in (first, low, old, urgent):
            engine.wait(job.id, timeout=SOON)
        assert order == ["fails", "urgent", "old", "low"], "by priority, then by age"
        assert kinds(engine, low) == ["submitted", "moved"], "being parked is no event"


@pytest.mark.shows("E-29", "E-40")
def test_a_drained_run_gives_its_slot_back() -> None:
    meter = Meter()
    flow: ulak.Flow[Any] = ulak.Flow("d", ulak.Lifecycle("a", {"a": ["done"]}))

    @flow.stage("a", limit=ulak.Limit(1))
    async def a(run: ulak.Run[Any]) -> None:
        with meter:
            await asyncio.sleep(60 if meter.runs == 1 else 0)

    engine = ulak.connect("memory://", flows=[flow])
    with engine:
        jobs = engine.submit_many(flow, [1, 2])
        with engine.working(settings(drain=0.2)):
            eventually(lambda: meter.runs)
        assert all(slot.job_id is None for slot in engine.store.slots())
        with engine.working(settings()):
            for job in jobs:
                assert engine.wait(job.id, timeout=SOON).state == "done"
        assert meter.most == 1


@pytest.mark.shows("E-29")
def test_a_lowered_limit_drains_before_it_lets_anybody_in(jobs_url: str) -> None:
    store = store_of(jobs_url)
    meter, go_on = Meter(), threading.Event()
    flows = []
    for n in (3, 1):
        flow: ulak.Flow[Any] = ulak.Flow("low", ulak.Lifecycle("a", {"a": ["done"]}))

        @flow.stage("a", limit=ulak.Limit(n))
        async def a(run: ulak.Run[Any]) -> None:
            with meter:
                while not go_on.is_set():
                    await asyncio.sleep(0.002)

        flows.append(flow)
    wide, tight = (engine_on(store, flow) for flow in flows)
    with wide, wide.working(settings()):
        jobs = wide.submit_many(flows[0], range(3))
        eventually(lambda: meter.inside == 3)
        tight.open()
        jobs += wide.submit_many(flows[0], range(3))
        eventually(lambda: sum(wide.get(j.id).parked_on is not None for j in jobs) == 3)
        meter.most = 0
        go_on.set()
        for job in jobs:
            assert wide.wait(job.id, timeout=SOON).state == "done"
        assert meter.most == 1


@pytest.mark.shows("E-29")
def test_a_flow_added_to_an_open_engine_has_its_slots() -> None:
    engine = ulak.connect("memory://")
    with engine:
        flow = engine.add(narrow(Meter(), 2))
        with engine.working(settings()):
            job = engine.submit(flow)
            assert engine.wait(job.id, timeout=SOON).state == "done"
