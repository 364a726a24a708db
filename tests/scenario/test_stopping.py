"""A run is told to stop: it says that it stops, or it says nothing, and the trail knows which."""

import asyncio
import gc
import logging
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

import ulak
from tests.scenario import isolated
from tests.scenario.doubles import codes, engine_on, eventually, kinds, settings, store_of
from ulak.engine.active_run import ActiveRun
from ulak.engine.engine import Engine

LIFE = ulak.Lifecycle("go", {"go": ["done"]})
PATIENCE = timedelta(seconds=120)
POOLS = pytest.mark.parametrize("pool", ["loop", "thread"])

Body = Callable[[ulak.Run[Any]], Any]


def looping(pool: str, look: Body, **options: Any) -> tuple[ulak.Flow[Any], list[int]]:
    """A stage whose first attempt looks again and again until `look` raises or returns a result."""
    flow: ulak.Flow[Any] = ulak.Flow("long", LIFE, retry=ulak.Backoff(delays=[0]))
    began: list[int] = []

    async def on_loop(run: ulak.Run[Any]) -> Any:
        began.append(run.attempt)
        found = "again" if len(began) > 1 else None
        while found is None:
            with suppress(asyncio.CancelledError):  # so that its own look decides
                await asyncio.sleep(0.002)
            found = look(run)
        return found

    def in_thread(run: ulak.Run[Any]) -> Any:
        began.append(run.attempt)
        found = "again" if len(began) > 1 else None
        while found is None:
            time.sleep(0.002)
            found = look(run)
        return found

    flow.stage("go", **options)(on_loop if pool == "loop" else in_thread)
    return flow, began


def checks(run: ulak.Run[Any]) -> None:
    """Stop at a checkpoint, inside a block that catches every Exception."""
    try:
        run.checkpoint()
    except Exception as error:
        raise AssertionError("Stopped is no Exception") from error


def raises(run: ulak.Run[Any]) -> None:
    """Stop by hand."""
    if run.cancelled:
        raise ulak.Stopped


# --- it says so -----------------------------------------------------------------


@pytest.mark.shows("E-77")
@pytest.mark.parametrize(
    ("pool", "look"), [("loop", checks), ("thread", checks), ("thread", raises)]
)
def test_a_run_stopped_by_a_drain_is_given_back(jobs_url: str, pool: str, look: Body) -> None:
    flow, began = looping(pool, look)
    with engine_on(store_of(jobs_url), flow) as engine:
        job = engine.submit(flow)
        with engine.working(settings(drain=60)):
            eventually(lambda: began)
        now = engine.get(job.id)
        assert (now.state, now.attempt, now.leased_by) == ("go", 0, None)
        assert kinds(engine, job) == ["submitted", "given-back"]
        assert engine.inspect.verify() == []


@pytest.mark.shows("E-77")
@POOLS
def test_a_run_stopped_by_a_lost_lease_is_given_back(jobs_url: str, pool: str) -> None:
    flow, began = looping(pool, checks)
    with engine_on(store_of(jobs_url), flow) as engine:
        job = engine.submit(flow)
        with engine.working(settings()) as worker:
            eventually(lambda: began)
            worker.lease_lost()
            assert engine.wait(job.id, timeout=PATIENCE).state == "done"
        assert began == [1, 1], "no attempt was spent"
        assert kinds(engine, job) == ["submitted", "given-back", "moved"]


@pytest.mark.shows("E-77")
@POOLS
def test_a_run_stopped_by_a_cancel_is_cancelled(jobs_url: str, pool: str) -> None:
    flow, began = looping(pool, checks)
    with engine_on(store_of(jobs_url), flow) as engine, engine.working(settings()):
        job = engine.submit(flow)
        eventually(lambda: began)
        engine.cancel(job.id, actor="ada")
        assert engine.wait(job.id, timeout=PATIENCE).state == "cancelled"
        assert kinds(engine, job) == ["submitted", "given-back", "cancelled"]


@pytest.mark.shows("E-77")
@POOLS
def test_a_run_stopped_by_its_timeout_has_timed_out(jobs_url: str, pool: str) -> None:
    flow, began = looping(pool, checks, timeout=0.1)
    with engine_on(store_of(jobs_url), flow) as engine, engine.working(settings()):
        job = engine.submit(flow)
        assert engine.wait(job.id, timeout=PATIENCE).state == "done"
        assert began == [1, 2], "the stage's retry counts it"
        (retry,) = [e for e in engine.inspect.trail(job.id) if e.kind == "retry"]
        assert retry.code == "timeout"


@pytest.mark.shows("E-77")
@POOLS
def test_a_run_that_nobody_told_to_stop_has_failed(pool: str) -> None:
    def stop(run: ulak.Run[Any]) -> None:
        raise ulak.Stopped

    flow, _ = looping(pool, stop)
    flow.retry = ulak.Backoff(0)
    flow.holds_on = (BaseException,)
    with engine_on(store_of("memory://"), flow) as engine, engine.working(settings()):
        job = engine.wait(engine.submit(flow).id, timeout=PATIENCE)
        assert (job.state, job.code) == ("failed", "raised")
        assert "nobody" in (engine.inspect.trail(job.id)[-1].message or "")


@pytest.mark.shows("E-77")
def test_a_task_of_a_group_may_stop_for_all() -> None:
    flow: ulak.Flow[Any] = ulak.Flow("group", LIFE)
    began: list[int] = []

    async def part(run: ulak.Run[Any]) -> None:
        while True:
            began.append(1)
            await asyncio.sleep(0.002)
            run.checkpoint()

    @flow.stage("go")
    async def go(run: ulak.Run[Any]) -> None:
        async with asyncio.TaskGroup() as group:
            for _ in range(3):
                group.create_task(part(run))

    with engine_on(store_of("memory://"), flow) as engine:
        job = engine.submit(flow)
        with engine.working(settings(drain=60)):
            eventually(lambda: began)
        assert kinds(engine, job) == ["submitted", "given-back"]


# --- it says nothing ------------------------------------------------------------


def told(caplog: pytest.LogCaptureFixture) -> list[logging.LogRecord]:
    return [r for r in caplog.records if "told to stop" in r.getMessage()]


@pytest.mark.shows("E-77")
@POOLS
def test_a_run_that_saw_its_stop_and_returned_has_finished_after_stop(
    jobs_url: str, pool: str, caplog: pytest.LogCaptureFixture
) -> None:
    flow: ulak.Flow[Any] = ulak.Flow("mute", LIFE)
    began: list[str] = []

    async def on_loop(run: ulak.Run[Any]) -> str:
        began.append(run.job_id)
        while not run.cancelled:
            await asyncio.sleep(0.002)
        return "25 of 100"

    def in_thread(run: ulak.Run[Any]) -> str:
        began.append(run.job_id)
        while not run.cancelled:
            time.sleep(0.002)
        return "25 of 100"

    flow.stage("go")(on_loop if pool == "loop" else in_thread)
    with engine_on(store_of(jobs_url), flow) as engine:
        jobs = [engine.submit(flow) for _ in range(2)]
        with engine.working(settings(drain=60)):
            eventually(lambda: len(began) == 2)
        for job in jobs:
            assert kinds(engine, job) == ["submitted", "moved"]
            assert codes(engine, job) == [None, "after-stop"]
            assert engine.get(job.id).state == "done"
        assert engine.inspect.verify() == []
    (line,) = told(caplog)
    assert (line.flow, line.state) == ("mute", "go")  # type: ignore[attr-defined]
    assert "checkpoint" in line.getMessage()


@pytest.mark.shows("E-77")
def test_a_run_that_saw_its_cancel_and_returned_has_finished_and_the_log_names_each_stage(
    jobs_url: str, caplog: pytest.LogCaptureFixture
) -> None:
    life = ulak.Lifecycle("start", {"start": ["one", "two"], "one": ["done"], "two": ["done"]})
    flow: ulak.Flow[str] = ulak.Flow("mute", life)
    began: list[str] = []
    asked = threading.Event()

    @flow.stage("start")
    async def start(run: ulak.Run[str]) -> ulak.Goto:
        return ulak.Goto(run.payload)

    async def look(run: ulak.Run[str]) -> str:
        began.append(run.job_id)
        while not (run.cancelled and asked.is_set()):
            with suppress(asyncio.CancelledError):
                await asyncio.sleep(0.002)
        return "all of it"

    flow.stage("one")(look)
    flow.stage("two")(look)
    with engine_on(store_of(jobs_url), flow) as engine, engine.working(settings()):
        jobs = [engine.submit(flow, state) for state in ("one", "two", "two")]
        eventually(lambda: len(began) == 3)
        for job in jobs:
            engine.cancel(job.id, actor="ada")
        asked.set()
        for job in jobs:
            assert engine.wait(job.id, timeout=PATIENCE).state == "done", "it is too late"
            assert codes(engine, job) == [None, None, "after-stop"]
        assert engine.inspect.verify() == []
    assert sorted(line.state for line in told(caplog)) == ["one", "two"]  # type: ignore[attr-defined]


@pytest.mark.shows("E-77")
@POOLS
def test_a_run_that_did_not_look_has_just_finished(
    pool: str, caplog: pytest.LogCaptureFixture
) -> None:
    go_on = threading.Event()

    def waits(run: ulak.Run[Any]) -> str | None:
        return "all of it" if go_on.is_set() else None

    flow, began = looping(pool, waits)
    with engine_on(store_of("memory://"), flow) as engine:
        job = engine.submit(flow)
        with engine.working(settings(drain=60)) as worker:
            eventually(lambda: began)
            worker.stop()
            eventually(lambda: worker.runs()[0].draining)
            go_on.set()
        assert codes(engine, job) == [None, None]
    assert told(caplog) == []


@pytest.mark.shows("E-77")
def test_an_undo_that_saw_its_stop_says_so_too() -> None:
    flow: ulak.Flow[Any] = ulak.Flow("back", LIFE, retry=0)
    began: list[int] = []

    @flow.stage("go")
    async def go(run: ulak.Run[Any]) -> None:
        raise RuntimeError("give up")

    @go.undo
    async def take_back(run: ulak.Run[Any]) -> None:
        began.append(1)
        while not run.cancelled:
            await asyncio.sleep(0.002)

    with engine_on(store_of("memory://"), flow) as engine:
        job = engine.submit(flow)
        with engine.working(settings(drain=60)):
            eventually(lambda: began)
        (undone,) = [e for e in engine.inspect.trail(job.id) if e.kind == "undone"]
        assert undone.code == "after-stop"
        assert engine.inspect.verify() == []


# --- in a child -----------------------------------------------------------------


@pytest.mark.shows("E-77")
def test_a_child_stops_at_its_checkpoint_or_finishes_after_its_stop(
    jobs_url: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with engine_on(store_of(jobs_url), isolated.polite, isolated.mute) as engine:
        ledger = str(tmp_path / "ledger")
        polite = engine.submit(isolated.polite, ledger)
        mute = engine.submit(isolated.mute, ledger)
        with engine.working(settings(drain=90)):
            eventually(lambda: len(read(ledger)) == 2)
        assert kinds(engine, polite) == ["submitted", "given-back"]
        assert engine.get(polite.id).attempt == 0
        assert codes(engine, mute) == [None, "after-stop"]
    assert len(told(caplog)) == 1


def read(path: str) -> list[str]:
    return Path(path).read_text().split() if Path(path).exists() else []


# --- it does not stop -----------------------------------------------------------


@pytest.mark.shows("E-77", "E-38")
def test_an_async_stage_that_swallows_its_cancel_overruns_and_blocks_nobody(jobs_url: str) -> None:
    flow: ulak.Flow[Any] = ulak.Flow("deaf", LIFE, retry=0)
    go_on, swallowed = threading.Event(), list[int]()

    @flow.stage("go", timeout=0.1)
    async def go(run: ulak.Run[Any]) -> str:
        while not go_on.is_set():
            try:
                await asyncio.sleep(0.01)
            except asyncio.CancelledError:
                swallowed.append(1)
        return "after all"

    engine = engine_on(store_of(jobs_url), flow)

    @engine.job
    async def neighbour() -> None: ...

    with engine:
        job = engine.submit(flow)
        with engine.working(settings()):
            eventually(lambda: "overran" in kinds(engine, job))
            assert swallowed == [1], "it is cancelled once, so that it may clean up"
            assert engine.inspect.why(job.id).code == "overran"
            other = engine.submit(neighbour)
            assert engine.wait(other.id, timeout=PATIENCE).state == "done"
            go_on.set()
            assert engine.wait(job.id, timeout=PATIENCE).state == "done", "it finished"
        assert kinds(engine, job) == ["submitted", "overran", "moved"]
        assert engine.inspect.verify() == []


@pytest.mark.shows("E-77", "E-40")
def test_a_worker_ends_although_an_async_stage_swallows_its_cancel(jobs_url: str) -> None:
    flow: ulak.Flow[Any] = ulak.Flow("deaf", LIFE, retry=0)
    began, ended = threading.Event(), threading.Event()

    @flow.stage("go")
    async def go(run: ulak.Run[Any]) -> None:
        began.set()
        while True:
            with suppress(asyncio.CancelledError):
                await asyncio.sleep(3600)

    with engine_on(store_of(jobs_url), flow) as engine:
        job = engine.submit(flow)

        def work() -> None:
            with engine.working(settings(drain=0.2)):
                assert began.wait(120)
            ended.set()

        threading.Thread(target=work, daemon=True).start()
        assert ended.wait(120), "the worker waits for ever"
        assert engine.get(job.id).leased_by is not None, "left to lapse: it may still be at work"


# --- nothing is left ------------------------------------------------------------


def finish(engine: Engine, flow: ulak.Flow[Any], count: int) -> None:
    with engine.working(settings(drain=60)):
        for job in [engine.submit(flow, n) for n in range(count)]:
            engine.wait(job.id, timeout=PATIENCE)


def left_of(flow: ulak.Flow[Any]) -> list[ActiveRun]:
    """The runs of a flow that somebody, or only the garbage collector, still knows."""
    return [o for o in gc.get_objects() if type(o) is ActiveRun and o.flow is flow]


@pytest.mark.shows("E-77", "E-81")
@POOLS
def test_forty_finished_runs_leave_nothing_to_the_garbage_collector(pool: str) -> None:
    flow: ulak.Flow[int] = ulak.Flow("tidy", LIFE, retry=0)

    def end(run: ulak.Run[int]) -> None:
        run.log.info("at work")
        if run.payload % 4 == 1:
            raise RuntimeError("on purpose")
        if run.payload % 4 == 2:
            raise ulak.Stopped
        if run.payload % 4 == 3:
            run.once("effect", str) if pool == "thread" else run.emit("topic", 1)

    async def on_loop(run: ulak.Run[int]) -> None:
        await asyncio.sleep(0)
        end(run)

    flow.stage("go")(on_loop if pool == "loop" else end)
    with engine_on(store_of("memory://"), flow) as engine:
        engine.outbox.publish(lambda message: None)
        finish(engine, flow, 1)  # what is made once is made
        gc.collect()
        gc.disable()
        try:
            finish(engine, flow, 40)
            eventually(lambda: not left_of(flow))
        finally:
            gc.enable()
