"""A stage takes longer than it may: on the loop it is cancelled, in a thread it is asked."""

import asyncio
import threading
import time
from datetime import timedelta
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
from ulak.errors import WriteRefused
from ulak.store.memory import MemoryStore

SHORT = timedelta(seconds=0.1)
LEASE = 1.5
LIFE = ulak.Lifecycle("go", {"go": ["done"]})


@pytest.mark.shows("E-38")
def test_an_async_stage_is_cancelled_and_tried_again(jobs_url: str) -> None:
    flow: ulak.Flow[Any] = ulak.Flow("slow", LIFE, retry=ulak.Backoff(delays=[timedelta(0)]))
    ends: list[str] = []

    @flow.stage("go", timeout=SHORT)
    async def go(run: ulak.Run[Any]) -> str:
        try:
            await asyncio.sleep(0 if run.attempt == 2 else 60)
        except asyncio.CancelledError:
            ends.append(f"cancelled {run.cancelled}")
            raise
        return "in time"

    with engine_on(store_of(jobs_url), flow) as engine, engine.working(settings()):
        job = engine.submit(flow)
        assert engine.wait(job.id, timeout=SOON).state == "done"
        assert ends == ["cancelled True"]
        assert kinds(engine, job) == ["submitted", "retry", "moved"]
        assert codes(engine, job)[1] == "timeout"
        assert engine.inspect.trail(job.id)[1].message == "it ran for more than 0.1 s"


@pytest.mark.shows("E-38")
def test_a_thread_over_its_time_keeps_its_lease_and_its_place(jobs_url: str) -> None:
    flow: ulak.Flow[Any] = ulak.Flow("deaf", LIFE, retry=0)
    go_on, started, saw = threading.Event(), list[str](), list[bool]()

    @flow.stage("go", timeout=SHORT)
    def go(run: ulak.Run[Any]) -> str:
        started.append(run.job_id)
        if len(started) == 1:
            assert go_on.wait(120)
            saw.append(run.cancelled)
        return "after all"

    store = store_of(jobs_url)
    with engine_on(store, flow) as engine, engine.working(settings(threads=1, lease=LEASE)):
        job = engine.submit(flow)
        eventually(lambda: "overran" in kinds(engine, job))
        other = engine.submit(flow)
        time.sleep(2.2 * LEASE)  # two leases: nobody may have taken it, nor given its place away
        assert started == [job.id]
        assert engine.get(job.id).leased_by is not None
        go_on.set()
        assert engine.wait(job.id, timeout=SOON).state == "done", "it finished: its move counts"
        assert saw == [True]
        assert kinds(engine, job) == ["submitted", "overran", "moved"]
        assert codes(engine, job) == [None, "timeout", "after-stop"], "it saw its stop"
        assert engine.wait(other.id, timeout=SOON).state == "done"
        assert engine.inspect.verify() == []


@pytest.mark.shows("E-38", "E-77")
def test_a_thread_that_stops_when_it_is_asked_has_timed_out() -> None:
    flow: ulak.Flow[Any] = ulak.Flow("polite", LIFE, retry=0)

    @flow.stage("go", timeout=SHORT)
    def go(run: ulak.Run[Any]) -> None:
        while not run.cancelled:
            time.sleep(0.002)
        raise InterruptedError("asked to")

    engine = ulak.connect("memory://", flows=[flow])
    with engine, engine.working(settings()):
        job = engine.submit(flow)
        end = engine.wait(job.id, timeout=SOON)
        assert (end.state, end.code) == ("failed", "timeout")
        assert kinds(engine, job) == ["submitted", "overran", "failed"]


@pytest.mark.shows("E-38", "E-37")
def test_an_effect_recorded_after_the_timeout_still_counts() -> None:
    flow: ulak.Flow[Any] = ulak.Flow("late", LIFE, retry=0)
    overran = threading.Event()

    @flow.stage("go", timeout=SHORT)
    def go(run: ulak.Run[Any]) -> str:
        assert overran.wait(120)
        return run.once("pay", lambda key: "paid")

    engine = ulak.connect("memory://", flows=[flow])
    with engine, engine.working(settings()):
        job = engine.submit(flow)
        eventually(lambda: "overran" in kinds(engine, job))
        overran.set()
        assert engine.wait(job.id, timeout=SOON).state == "done"
        assert kinds(engine, job) == ["submitted", "overran", "noted", "moved"]
        assert engine.inspect.verify() == []


@pytest.mark.shows("E-38", "E-19")
def test_a_refused_line_of_an_overrun_holds_the_job_and_frees_the_thread_when_it_ends() -> None:
    store = Double(MemoryStore())
    flow: ulak.Flow[Any] = ulak.Flow("refused", LIFE, retry=0)
    go_on = threading.Event()

    def refuse(changes: Any) -> None:
        if any(event.kind == "overran" for change in changes for event in change.events):
            raise WriteRefused("not this line")

    store.before["commit"] = refuse

    @flow.stage("go", timeout=SHORT)
    def go(run: ulak.Run[Any]) -> None:
        assert go_on.wait(120)

    with engine_on(store, flow) as engine, engine.working(settings()) as worker:
        job = engine.submit(flow)
        held = engine.wait(job.id, until="held", timeout=SOON)
        assert held.code == "commit-rejected"
        go_on.set()
        eventually(lambda: worker.running == 0)
        assert engine.get(job.id).state == "held"
        assert engine.inspect.verify() == []


@pytest.mark.shows("E-38")
def test_a_stage_cancelled_by_itself_has_failed_like_any_other() -> None:
    flow: ulak.Flow[Any] = ulak.Flow("self", LIFE, retry=0)

    @flow.stage("go")
    async def go(run: ulak.Run[Any]) -> None:
        raise asyncio.CancelledError("of its own")

    engine = ulak.connect("memory://", flows=[flow])
    with engine, engine.working(settings()):
        job = engine.submit(flow)
        end = engine.wait(job.id, timeout=SOON)
        assert (end.state, end.code) == ("failed", "raised")
