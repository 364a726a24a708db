"""Cancels and expiries, of jobs at rest and of jobs that run."""

import asyncio
import itertools
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
    Double,
    engine_on,
    eventually,
    kinds,
    settings,
    store_of,
)
from ulak.core.job import Request
from ulak.errors import TransitionNotAllowed
from ulak.ids import from_text


def life(*states: str) -> ulak.Lifecycle:
    return ulak.Lifecycle(states[0], {a: [b] for a, b in itertools.pairwise(states)})


@pytest.mark.shows("E-39")
def test_a_job_at_rest_is_cancelled_at_once(jobs_url: str) -> None:
    flow: ulak.Flow[Any] = ulak.Flow("rest", life("go", "later", "asks", "done"))

    @flow.stage("go", limit=ulak.Limit(1))
    async def go(run: ulak.Run[Any]) -> Any:
        if run.payload == "hold":
            return ulak.Hold("look", "please")
        await asyncio.sleep(0 if run.payload == "wait" else 30)
        return None

    flow.wait("later", signal="paid", to="asks")

    @flow.stage("asks")
    async def asks(run: ulak.Run[Any]) -> None: ...

    with engine_on(store_of(jobs_url), flow) as engine, engine.working(settings()):
        delayed = engine.submit(flow, "x", after=timedelta(hours=1))
        waiting = engine.submit(flow, "wait")
        engine.wait(waiting.id, until="later", timeout=SOON)
        held = engine.submit(flow, "hold")
        engine.wait(held.id, until="held", timeout=SOON)
        running = engine.submit(flow, "x")
        eventually(lambda: engine.get(running.id).leased_by)
        parked = engine.submit(flow, "x")
        eventually(lambda: engine.get(parked.id).parked_on)
        for job in (delayed, waiting, held, parked):
            answer = engine.cancel(job.id, actor="operator", note="enough")
            assert (answer.state, answer.cancel_requested) == ("cancelled", False)
            last = engine.inspect.trail(job.id)[-1]
            assert (last.kind, last.actor, last.message) == ("cancelled", "operator", "enough")
        engine.cancel(running.id, actor="operator")
        assert engine.wait(running.id, timeout=SOON).state == "cancelled"
        with pytest.raises(TransitionNotAllowed) as refusal:
            engine.cancel(held.id, actor="operator")
        assert refusal.value.code == "too-late"


@pytest.mark.shows("E-39")
@pytest.mark.parametrize("full", [False, True], ids=["free places", "every place taken"])
def test_a_running_job_is_cancelled_by_the_ring(jobs_url: str, full: bool) -> None:
    stopped: list[str] = []
    answered = threading.Event()
    flow: ulak.Flow[Any] = ulak.Flow("run", life("go", "done"), retry=0)
    threaded: ulak.Flow[Any] = ulak.Flow("threaded", life("go", "done"), retry=0)

    @flow.stage("go")
    async def go(run: ulak.Run[Any]) -> None:
        try:
            await asyncio.sleep(60)
        finally:
            stopped.append("task")
            while not answered.is_set():
                await asyncio.sleep(0.005)

    @threaded.stage("go")
    def go_on(run: ulak.Run[Any]) -> None:
        while not run.cancelled:
            time.sleep(0.005)
        stopped.append("thread")
        answered.wait(120)
        raise InterruptedError

    places = {"loop": 1, "threads": 1} if full else {}
    store = store_of(jobs_url)
    with (
        engine_on(store, flow, threaded) as engine,
        engine.working(settings(poll=3600, lease=3600, **places)) as worker,
    ):
        jobs = [engine.submit(flow), engine.submit(threaded)]
        eventually(lambda: worker.running == 2)
        for job in jobs:
            answer = engine.cancel(job.id, actor="operator", note="stop it")
            assert (answer.state, answer.cancel_requested) == ("go", True)
        answered.set()
        for job in jobs:
            # By the ring: the next poll and the next renewal are an hour away.
            assert engine.wait(job.id, timeout=SOON).state == "cancelled"
        assert sorted(stopped) == ["task", "thread"]
        for job in jobs:
            assert kinds(engine, job) == ["submitted", "given-back", "cancelled"]
            assert engine.inspect.trail(job.id)[-1].actor == "operator"
            assert engine.get(job.id).cancel_requested is False
        assert engine.inspect.verify() == []


@pytest.mark.shows("E-39")
def test_a_job_that_runs_in_another_process_is_cancelled_before_its_lease_is_renewed(
    shared_url: str,
    tmp_path: Path,
) -> None:
    (tmp_path / "hold").touch()
    with program.engine_at(shared_url) as engine:
        flows = (program.loop_flow, program.thread_flow, program.isolated_flow)
        jobs = [engine.submit(flow, "x") for flow in flows]
        worker = program.start(shared_url, tmp_path, 3600)
        try:
            eventually(lambda: len(program.ledger(tmp_path)) == 3)
            for job in jobs:
                engine.cancel(job.id, actor="operator")
            for job in jobs:
                # Not by a renewal: the next one is twenty minutes away.
                assert engine.wait(job.id, timeout=SOON).state == "cancelled"
        finally:
            worker.terminate()
            assert worker.wait(120) == 0


@pytest.mark.shows("E-39")
def test_a_stage_that_finishes_first_keeps_its_move(jobs_url: str) -> None:
    store = Double(store_of(jobs_url))
    flow: ulak.Flow[Any] = ulak.Flow("first", life("go", "on", "done"))
    ran: list[str] = []

    @flow.stage("go")
    async def go(run: ulak.Run[Any]) -> str:
        return "kept"

    @flow.stage("on")
    async def on(run: ulak.Run[Any]) -> None:
        ran.append("on")

    def cancel_first(changes: Any) -> None:
        if changes[0].row.state == "on" and changes[0].token is not None:
            del store.before["commit"]
            engine.cancel(job.id, actor="operator")

    with engine_on(store, flow) as engine:
        job = engine.submit(flow)
        store.before["commit"] = cancel_first
        with engine.working(settings()):
            assert engine.wait(job.id, timeout=SOON).state == "cancelled"
        assert ran == [], "the next stage does not begin"
        trail = [(e.kind, e.to_state) for e in engine.inspect.trail(job.id)]
        assert trail[:2] == [("submitted", "go"), ("moved", "on")]
        assert trail[-1] == ("cancelled", "cancelled")
        assert engine.inspect.verify() == []


@pytest.mark.shows("E-39")
def test_a_cancel_that_loses_against_the_last_move_is_too_late(jobs_url: str) -> None:
    store = Double(store_of(jobs_url))
    flow: ulak.Flow[Any] = ulak.Flow("last", life("go", "done"))
    started, go_on = threading.Event(), threading.Event()

    @flow.stage("go")
    async def go(run: ulak.Run[Any]) -> None:
        started.set()
        while not go_on.is_set():
            await asyncio.sleep(0.002)

    def finish_first(request: Any) -> None:
        go_on.set()
        eventually(lambda: store.store.find_job(request.job_id).role == "done")

    store.before["request"] = finish_first
    with engine_on(store, flow) as engine, engine.working(settings()):
        job = engine.submit(flow)
        assert started.wait(120)
        with pytest.raises(TransitionNotAllowed) as refusal:
            engine.cancel(job.id, actor="operator")
        assert refusal.value.code == "too-late"
        assert engine.get(job.id).state == "done"
        assert store.pending_requests(from_text(job.id)) == []


@pytest.mark.shows("E-39")
def test_a_cancel_that_is_carried_out_before_it_is_answered_was_not_too_late() -> None:
    store = Double(store_of("memory://"))
    flow: ulak.Flow[Any] = ulak.Flow("fast", life("go", "done"))

    @flow.stage("go")
    async def go(run: ulak.Run[Any]) -> None:
        await asyncio.sleep(60)

    with engine_on(store, flow) as engine, engine.working(settings()):
        job = engine.submit(flow)
        eventually(lambda: engine.get(job.id).leased_by)
        stored = from_text(job.id)
        # Between the request and the answer, the worker has done as it was asked.
        store.after["request"] = lambda _: eventually(
            lambda: store.store.find_job(stored).role == "cancelled"
        )
        answer = engine.cancel(job.id, actor="operator")
        assert (answer.state, answer.cancel_requested) == ("cancelled", False)


@pytest.mark.shows("E-39", "E-42")
def test_a_cancel_goes_through_the_undos_and_cannot_interrupt_them() -> None:
    flow: ulak.Flow[Any] = ulak.Flow("undone", life("book", "fly", "done"))
    undoing, go_on, said = threading.Event(), threading.Event(), list[str]()

    @flow.stage("book")
    async def book(run: ulak.Run[Any]) -> None: ...

    @book.undo
    async def unbook(run: ulak.Run[Any]) -> None:
        undoing.set()
        while not go_on.is_set():
            await asyncio.sleep(0.005)
        said.append("unbooked")

    @flow.stage("fly")
    async def fly(run: ulak.Run[Any]) -> None:
        await asyncio.sleep(60)

    with engine_on(store_of("memory://"), flow) as engine, engine.working(settings()):
        job = engine.submit(flow)
        engine.wait(job.id, until="fly", timeout=SOON)
        engine.cancel(job.id, actor="operator")
        assert undoing.wait(120)
        with pytest.raises(TransitionNotAllowed, match="undos are running"):
            engine.cancel(job.id, actor="operator")
        # A request that was on its way when the undos began reaches their worker all the same.
        engine.store.request(Request(from_text(job.id), "cancel", "", "late", None, None, 0))
        threading.Event().wait(0.2)
        go_on.set()
        assert engine.wait(job.id, timeout=SOON).state == "cancelled"
        assert said == ["unbooked"]
        assert kinds(engine, job) == [
            "submitted", "moved", "given-back", "cancelled", "undone", "ended",
        ]  # fmt: skip


@pytest.mark.shows("E-39")
def test_a_running_job_whose_time_runs_out_is_stopped_and_expires(jobs_url: str) -> None:
    flow: ulak.Flow[Any] = ulak.Flow("short", life("go", "done"), retry=0)
    threaded: ulak.Flow[Any] = ulak.Flow("threaded", life("go", "done"), retry=0)
    saw: list[str] = []

    @flow.stage("go")
    async def go(run: ulak.Run[Any]) -> None:
        await asyncio.sleep(60)

    @threaded.stage("go")
    def go_on(run: ulak.Run[Any]) -> None:
        while not run.cancelled:
            time.sleep(0.005)
        saw.append("asked")

    store = store_of(jobs_url)
    with engine_on(store, flow, threaded) as engine, engine.working(settings(poll=0.1)):
        job = engine.submit(flow, expires=timedelta(seconds=0.3))
        other = engine.submit(threaded, expires=timedelta(seconds=0.3))
        end = engine.wait(job.id, timeout=SOON)
        assert (end.state, end.code) == ("expired", "expired")
        assert kinds(engine, job) == ["submitted", "given-back", "expired"]
        # It returned: a stage that finishes first keeps its move, also against the clock.
        assert engine.wait(other.id, timeout=SOON).state == "done"
        assert saw == ["asked"]
