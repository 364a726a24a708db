"""Leases in the life of a worker: a blocked loop, an outage, a rescue, a crash loop."""

import asyncio
import threading
import time
from typing import Any

import pytest

import ulak
from tests.scenario.doubles import (
    SOON,
    Double,
    codes,
    engine_on,
    eventually,
    kinds,
    settings,
    store_of,
)
from ulak.clock import ManualClock
from ulak.core.change import LeaseLost
from ulak.errors import StoreError
from ulak.ids import from_text
from ulak.store.memory import MemoryStore
from ulak.store.protocol import ClaimRequest, Want

LEASE = 1.5


@pytest.mark.shows("E-24")
def test_a_stage_that_blocks_the_loop_for_longer_than_a_lease_keeps_its_jobs(jobs_url: str) -> None:
    store = store_of(jobs_url)
    engine = engine_on(store)
    ran: list[str] = []

    @engine.job
    async def rude() -> None:
        ran.append("rude")
        time.sleep(1.5 * LEASE)

    @engine.job
    async def neighbour() -> None:
        ran.append("neighbour")
        await asyncio.sleep(1.7 * LEASE)

    other = engine_on(store, *engine.inspect.flows)
    with engine:
        jobs = [engine.submit(neighbour), engine.submit(rude)]
        with engine.working(settings(lease=LEASE)):
            eventually(lambda: len(ran) == 2)
            # A second worker stands by and would take whatever lapses.
            with other.working(settings(lease=LEASE)):
                for job in jobs:
                    assert engine.wait(job.id, timeout=SOON).state == "done"
        assert len(ran) == 2
        assert [kinds(engine, job) for job in jobs] == [["submitted", "moved"]] * 2


@pytest.mark.shows("E-24", "E-26")
def test_a_loop_that_is_stuck_loses_its_jobs_and_its_commits_are_refused(
    jobs_url: str, caplog: pytest.LogCaptureFixture
) -> None:
    # So long that a busy machine renews it in time: it must be left to lapse, and not lapse before.
    lease = 2 * LEASE
    store = Double(store_of(jobs_url))
    receipts: list[Any] = []
    store.after["commit"] = receipts.extend
    engine, other = engine_on(store), engine_on(store)
    runs: list[str] = []
    go_on = threading.Event()

    def declare(on: Any, who: str) -> Any:
        @on.job(name="stuck")
        async def stuck() -> str:
            runs.append(who)
            if who == "first":
                assert go_on.wait(120)
            return who

        return stuck

    stuck = declare(engine, "first")
    declare(other, "second")
    with engine:
        with engine.working(settings(lease=lease)) as first:
            job = engine.submit(stuck)
            eventually(lambda: runs == ["first"])
            lost_id = first.id
            with other.working(settings(lease=lease)):
                assert engine.wait(job.id, timeout=SOON).state == "done"
            go_on.set()
            eventually(lambda: any(isinstance(r, LeaseLost) for r in receipts))
            eventually(lambda: first.id != lost_id and first.is_registered)
            again = engine.submit(stuck)
            assert engine.wait(again.id, timeout=SOON).state == "done", "it works again"
        assert engine.result(job.id) == "second"
        assert kinds(engine, job) == ["submitted", "lapsed", "moved"]
        assert "stuck" in caplog.text
        assert engine.inspect.verify() == []


@pytest.mark.shows("E-26")
def test_a_claim_whose_answer_comes_after_a_whole_lease_begins_nothing() -> None:
    """Others may have the job by then, and its place in a limit: a stopped process that goes on."""
    store = Double(MemoryStore())
    away = threading.Event()

    def fail(*_: object, **__: object) -> None:
        if away.is_set():
            raise StoreError("away")

    def stand_still(claimed: Any) -> None:
        if claimed.claims and next(first, False):
            away.set()
            time.sleep(1.2 * LEASE)

    store.before["renew"] = fail
    store.after["claim"] = stand_still
    first = iter([True])
    engine = engine_on(store)
    began: list[bool] = []

    @engine.job
    async def once() -> None:
        began.append(away.is_set())

    with engine, engine.working(settings(lease=LEASE)):
        job = engine.submit(once)
        eventually(lambda: "given-back" in kinds(engine, job))
        away.clear()
        assert engine.wait(job.id, timeout=SOON).state == "done"
    assert began == [False]


@pytest.mark.shows("E-58")
def test_a_worker_that_begins_in_an_outage_waits_for_its_lease() -> None:
    store = Double(MemoryStore())
    refusals = iter(range(3))

    def fail(*_: object, **__: object) -> None:
        if next(refusals, None) is not None:
            raise StoreError("away")

    store.before["register"] = fail
    engine = engine_on(store)

    @engine.job
    async def ping() -> str:
        return "pong"

    with engine:
        job = engine.submit(ping)
        with engine.working(settings()):
            assert engine.wait(job.id, timeout=SOON).state == "done"
    assert store.calls["register"] == 4


@pytest.mark.shows("E-26")
def test_renewals_that_fail_for_a_whole_lease_set_run_cancelled() -> None:
    store = Double(MemoryStore())
    away = threading.Event()

    def fail(*_: object, **__: object) -> None:
        if away.is_set():
            raise StoreError("away")

    store.before["renew"] = store.before["claim"] = fail
    engine = engine_on(store)
    saw: list[bool] = []

    flow: ulak.Flow[Any] = ulak.Flow("long", ulak.Lifecycle("go", {"go": ["done"]}), retry=0)

    @flow.stage("go")
    def go(run: ulak.Run[Any]) -> None:
        saw.append(run.cancelled)
        away.set()
        eventually(lambda: run.cancelled)
        saw.append(run.cancelled)
        away.clear()
        raise RuntimeError("stopped as it was told")

    engine.add(flow)
    with engine, engine.working(settings(lease=LEASE)):
        job = engine.submit(flow)
        eventually(lambda: len(saw) >= 2)
        eventually(lambda: "given-back" in kinds(engine, job))
        assert saw[:2] == [False, True]
        assert engine.get(job.id).attempt == 0, "it stopped because it was told to"
        engine.cancel(job.id, actor="test")


@pytest.mark.shows("E-25", "E-27")
def test_any_worker_rescues_and_nobody_leads(jobs_url: str) -> None:
    store = store_of(jobs_url)
    engine = engine_on(store)

    @engine.job
    async def work() -> str:
        return "rescued"

    with engine:
        job = engine.submit(work)
        lane = lane_of(store, job)
        # A worker that takes the job and is never seen again.
        store.register("vanished", lease_us=60_000_000, lanes=[lane], about="")
        assert len(store.claim(ClaimRequest("vanished", (Want((lane,), 1),))).claims) == 1
        store.renew("vanished", lease_us=50_000)
        with engine.working(settings()):
            assert engine.wait(job.id, timeout=SOON).state == "done"
        assert kinds(engine, job) == ["submitted", "lapsed", "moved"]
        lapsed = engine.inspect.trail(job.id)[1]
        assert lapsed.worker == "vanished"
        assert engine.get(job.id).attempt == 0, "a lost worker is no failed attempt"


def lane_of(store: Any, job: Any) -> str:
    """Return the lane in which a job stands."""
    lane: str = store.find_job(from_text(job.id)).lane
    return lane


def lapse(store: Any, clock: ManualClock, lane: str, times: int) -> None:
    """Have workers take everything in a lane and vanish, so many times."""
    from datetime import timedelta

    for n in range(times):
        store.register(f"gone-{n}", lease_us=1_000_000, lanes=[lane], about="")
        store.claim(ClaimRequest(f"gone-{n}", (Want((lane,), 10),)))
        clock.advance(timedelta(seconds=2))


@pytest.mark.shows("E-27")
def test_a_job_that_outlives_no_worker_is_held_and_can_be_released() -> None:
    clock = ManualClock()
    store = MemoryStore(clock)
    ran: list[int] = []

    async def work(run: ulak.Run[Any]) -> None:
        ran.append(1)

    flow: ulak.Flow[Any] = ulak.Flow.steps("poison", work, max_lapses=3)
    with engine_on(store, flow) as engine:
        job = engine.submit(flow)
        lapse(store, clock, lane_of(store, job), 3)
        asyncio.run(engine.worker(settings()).run(until_idle=True))
        held = engine.get(job.id)
        assert (held.state, held.code, ran) == ("held", "worker-died", [])
        engine.release(job.id, actor="operator")
        asyncio.run(engine.worker(settings()).run(until_idle=True))
        assert (engine.get(job.id).state, ran) == ("done", [1])


@pytest.mark.shows("E-27")
def test_on_lapse_makes_a_lost_worker_a_failed_attempt() -> None:
    clock = ManualClock()
    store = MemoryStore(clock)
    ran: list[int] = []

    async def work(run: ulak.Run[Any]) -> None:
        ran.append(run.attempt)

    flow: ulak.Flow[Any] = ulak.Flow.steps(
        "render", work, on_lapse="browser-crashed", retry=ulak.Backoff(delays=[SOON * 0])
    )
    with engine_on(store, flow) as engine:
        job = engine.submit(flow)
        lapse(store, clock, lane_of(store, job), 1)
        asyncio.run(engine.worker(settings()).run(until_idle=True))
        assert engine.get(job.id).state == "done"
        assert ran == [2]
        assert "browser-crashed" in codes(engine, job)


@pytest.mark.shows("E-27")
def test_suspects_run_one_at_a_time_and_neighbours_are_not_held_up() -> None:
    clock = ManualClock()
    store = MemoryStore(clock)
    running: set[int] = set()
    most = [0]
    beside: list[int] = []

    async def work(run: ulak.Run[int]) -> None:
        if run.payload >= 10:
            beside.append(run.payload)
            return
        running.add(run.payload)
        most[0] = max(most[0], len(running))
        await asyncio.sleep(0.03)
        running.discard(run.payload)

    flow: ulak.Flow[int] = ulak.Flow.steps("suspects", work)
    with engine_on(store, flow) as engine:
        suspects = engine.submit_many(flow, range(4))
        lapse(store, clock, lane_of(store, suspects[0]), 2)
        honest = engine.submit_many(flow, range(10, 20))
        asyncio.run(engine.worker(settings()).run(until_idle=True))
        assert {engine.get(job.id).state for job in suspects + honest} == {"done"}
        assert most[0] == 1
        assert sorted(beside) == list(range(10, 20))


@pytest.mark.shows("E-26", "E-38")
def test_what_is_left_of_a_lost_run_does_not_end_its_successor_in_the_same_worker() -> None:
    store = MemoryStore()
    gates = [threading.Event(), threading.Event()]
    runs: list[int] = []

    def work(run: ulak.Run[Any]) -> int:
        runs.append(run.token)
        n = len(runs)
        assert gates[n - 1].wait(120)
        return n

    flow: ulak.Flow[Any] = ulak.Flow.steps("twice", work)
    with engine_on(store, flow) as engine, engine.working(settings(lease=LEASE)) as worker:
        job = engine.submit(flow)
        eventually(lambda: len(runs) == 1)
        store.unregister(worker.id)  # as if it had been silent for too long
        eventually(lambda: len(runs) == 2)
        gates[0].set()
        threading.Event().wait(0.1)  # the zombie's commit is refused
        assert worker.running == 1, "the second run is still known, and can be cancelled"
        gates[1].set()
        assert engine.wait(job.id, timeout=SOON).state == "done"
        assert engine.result(job.id) == 2
        assert kinds(engine, job) == ["submitted", "lapsed", "moved"]
