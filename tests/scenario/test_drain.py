"""A worker is told to stop: what ended is committed, what did not is given back or left."""

import asyncio
import signal
import threading
import time
from pathlib import Path
from typing import Any

import pytest

import ulak
from tests.scenario import program
from tests.scenario.doubles import (
    Double,
    engine_on,
    eventually,
    kinds,
    settings,
    store_of,
)
from ulak.clock import SECOND
from ulak.errors import StoreError
from ulak.store.memory import MemoryStore


@pytest.mark.shows("E-40")
def test_sigterm_gives_back_what_stops_and_leaves_what_does_not(
    shared_url: str, tmp_path: Path
) -> None:
    (tmp_path / "hold").touch()
    with program.engine_at(shared_url) as engine:
        flows = (program.loop_flow, program.thread_flow, program.deaf_flow)
        on_loop, in_thread, deaf = (engine.submit(flow, 1) for flow in flows)
        worker = program.start(shared_url, tmp_path, 300, 1.0)
        eventually(lambda: len(program.ledger(tmp_path)) == 3)
        worker.send_signal(signal.SIGTERM)
        eventually(lambda: "asked thread" in program.ledger(tmp_path))
        late = engine.submit(program.loop_flow, 2)
        # The deaf thread never ends: nothing but the drain's own end can end the worker.
        assert worker.wait(120) == 0
        said = program.ledger(tmp_path)
        assert "cancelled loop True" in said
        assert "asked thread" in said
        for job in (on_loop, in_thread):
            now = engine.get(job.id)
            assert (now.state, now.attempt, now.leased_by) == ("queued", 0, None)
            assert kinds(engine, job) == ["submitted", "given-back"]
        # Its thread could not be stopped: the lease lapses by itself, so that no successor starts
        # while the thread may still be at work.
        assert engine.get(deaf.id).leased_by is not None
        (left,) = engine.store.workers()
        assert left.expires_at > engine.store.clock.now() + 20 * SECOND
        assert kinds(engine, deaf) == ["submitted"]
        assert kinds(engine, late) == ["submitted"], "nothing is claimed after the signal"
        assert engine.inspect.verify() == []


@pytest.mark.shows("E-40")
def test_a_stage_that_ends_in_time_is_committed_and_the_lease_is_ended_last(jobs_url: str) -> None:
    store = Double(store_of(jobs_url))
    engine = engine_on(store)
    go_on, cancelled = threading.Event(), list[bool]()
    flow: ulak.Flow[Any] = ulak.Flow("f", ulak.Lifecycle("a", {"a": ["b"], "b": ["done"]}))

    @flow.stage("a")
    async def a(run: ulak.Run[Any]) -> str:
        while not go_on.is_set():
            await asyncio.sleep(0.005)
        while not run.cancelled:
            await asyncio.sleep(0.005)
        cancelled.append(run.cancelled)
        return "kept"

    @flow.stage("b")
    async def b(run: ulak.Run[Any]) -> None:
        raise AssertionError("no stage begins in a drain")

    engine.add(flow)
    with engine:
        job = engine.submit(flow)
        with engine.working(settings()) as worker:
            eventually(lambda: worker.running == 1)
            go_on.set()
        assert cancelled == [True]
        now = engine.get(job.id)
        assert (now.state, now.leased_by) == ("b", None)
        assert kinds(engine, job) == ["submitted", "moved"]
        assert store.order.index("unregister") > len(store.order) - 1 - store.order[::-1].index(
            "commit"
        ), "the last commit comes before the lease ends"
        assert store.workers() == []


@pytest.mark.shows("E-40", "E-28")
def test_a_lease_that_was_kept_when_the_drain_began_is_given_back() -> None:
    store = Double(MemoryStore())
    committing, go_on = threading.Event(), threading.Event()
    began: list[str] = []

    def hold_up(changes: Any) -> None:
        if not committing.is_set():
            committing.set()
            assert go_on.wait(120)

    store.before["commit"] = hold_up

    async def first(run: ulak.Run[Any]) -> None:
        began.append("first")

    async def second(run: ulak.Run[Any]) -> None:
        began.append("second")

    flow: ulak.Flow[Any] = ulak.Flow.steps("two", first, second)
    with engine_on(store, flow) as engine:
        job = engine.submit(flow)
        with engine.working(settings()) as worker:
            assert committing.wait(120)
            worker.stop()
            time.sleep(0.05)
            go_on.set()
        assert began == ["first"]
        assert kinds(engine, job) == ["submitted", "moved", "given-back"]
        assert engine.get(job.id).leased_by is None


@pytest.mark.shows("E-40")
def test_a_drain_does_not_wait_for_a_store_that_is_gone() -> None:
    store = Double(MemoryStore())
    away = threading.Event()

    def fail(*_: object, **__: object) -> None:
        if away.is_set():
            raise StoreError("gone for good")

    for verb in ("commit", "claim", "renew", "find_commits", "unregister", "due", "unpark"):
        store.before[verb] = fail
    engine = engine_on(store)
    started = threading.Event()

    @engine.job
    async def work() -> None:
        started.set()
        await asyncio.sleep(3600)

    with engine:
        job = engine.submit(work)
        with engine.working(settings(drain=0.5)):
            assert started.wait(120)
            away.set()
        away.clear()
        assert kinds(engine, job) == ["submitted"]


@pytest.mark.shows("E-40")
def test_a_task_that_is_cancelled_before_its_first_step_is_given_back() -> None:
    engine = ulak.connect("memory://")

    @engine.job
    async def work() -> None:
        await asyncio.sleep(30)

    async def main() -> Any:
        job = await engine.aio.submit(work)
        worker = engine.worker(settings(drain=0.2))
        begun = worker.executor.begin

        def begin_and_stop(claim: Any, *arguments: Any, **options: Any) -> None:
            begun(claim, *arguments, **options)
            worker.executor.stages.interrupt(worker.executor.running[claim.row.id])
            worker.executor.running[claim.row.id].stopping = True
            worker.stop()

        worker.executor.begin = begin_and_stop
        await asyncio.wait_for(worker.run(), 10)
        return job

    with engine:
        job = asyncio.run(main())
        assert kinds(engine, job) == ["submitted", "given-back"]


@pytest.mark.shows("E-40")
def test_a_worker_may_be_stopped_before_it_has_begun_and_after_it_has_ended() -> None:
    engine = ulak.connect("memory://")

    @engine.job
    async def work() -> None: ...

    with engine:
        for _ in range(20):
            with engine.working(settings()) as worker:
                pass
            worker.stop()
        assert engine.submit(work).state == "queued", "its ring reaches nobody and harms nobody"
        assert engine.store.workers() == []


@pytest.mark.shows("E-40")
def test_a_claim_that_comes_back_after_the_stop_is_given_back_unrun() -> None:
    store = Double(MemoryStore())
    engine = engine_on(store)
    ran: list[int] = []
    workers: list[Any] = []

    @engine.job
    async def work() -> None:
        ran.append(1)

    def stop(claimed: Any) -> None:
        if claimed.claims:
            workers[0].stop()

    store.after["claim"] = stop
    with engine:
        job = engine.submit(work)
        workers.append(engine.worker(settings()))
        asyncio.run(workers[0].run())
        assert ran == []
        assert kinds(engine, job) == ["submitted", "given-back"]
