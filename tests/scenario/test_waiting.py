"""Waiting for a job: woken by the ring of any process, in one way for threads, loops and HTTP."""

import asyncio
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from datetime import timedelta
from typing import Any

import httpx
import psycopg
import pytest

import ulak
import ulak.web
from tests.scenario.doubles import SOON, Double, engine_on, eventually, settings, store_of
from ulak.engine import reads
from ulak.engine.engine import Engine
from ulak.errors import StoreError, WriteRefused
from ulak.store.sqlite import wakeup
from ulak.testing.servers import Postgres

HOUR_S = 3600.0

Wait = Callable[[Engine, str], str]


def flow_of_gate() -> ulak.Flow[Any]:
    """A flow whose jobs move when a person says so: no worker is needed, and none becomes due."""
    flow: ulak.Flow[Any] = ulak.Flow("orders", ulak.Lifecycle("open", {"open": ["done"]}))
    flow.gate("open", choices={"yes": "done"})
    return flow


def wait_in_a_thread(engine: Engine, job: str) -> str:
    return engine.wait(job, timeout=timedelta(minutes=10)).state


def wait_on_a_loop(engine: Engine, job: str) -> str:
    return asyncio.run(engine.aio.wait(job, timeout=timedelta(minutes=10))).state


def wait_over_http(engine: Engine, job: str) -> str:
    async def ask() -> httpx.Response:
        transport = httpx.ASGITransport(ulak.web.app(engine, identity=None))
        async with httpx.AsyncClient(transport=transport, base_url="http://ulak") as client:
            return await client.get(f"/jobs/{job}?wait=60", timeout=None)

    return str(asyncio.run(ask()).json()["state"])


WAYS = [wait_in_a_thread, wait_on_a_loop, wait_over_http]


@contextmanager
def waiting_for(wait: Wait, engine: Engine, job: str) -> Iterator[list[str]]:
    """Wait on another thread for as long as the block lasts; it must have ended by then."""
    answers: list[str] = []
    thread = threading.Thread(target=lambda: answers.append(wait(engine, job)), daemon=True)
    thread.start()
    yield answers
    thread.join(120)
    assert answers, "it waits for ever"


@pytest.fixture
def no_poll(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nobody looks by itself: without a ring everybody waits for an hour."""
    monkeypatch.setattr(reads, "POLL_S", HOUR_S)
    monkeypatch.setattr(reads, "SECOND_LOOK_S", HOUR_S)
    monkeypatch.setattr(wakeup, "RENEW_MS", int(HOUR_S * 1000))


@pytest.mark.shows("E-79")
@pytest.mark.parametrize("wait", WAYS)
@pytest.mark.usefixtures("no_poll")
def test_a_wait_is_woken_by_the_ring_of_another_process(shared_url: str, wait: Wait) -> None:
    """Broken by a store that rings only when a job may have become due, or only its own process."""
    # Two stores know of each other what two processes know: the file, or the server.
    here, there = (Double(store_of(shared_url)) for _ in range(2))
    flow = flow_of_gate()
    with engine_on(here, flow) as ours, engine_on(there, flow) as theirs:
        job, *others = ours.submit_many(flow, range(300))
        with waiting_for(wait, ours, job.id) as answers:
            eventually(lambda: here.calls["on_move"] >= 1 and here.calls["find_job"] >= 1)
            theirs.decide(job.id, "yes", actor="ada")

            def go_on() -> bool:
                # The first ring is lost if the other store has not learned of the wait yet.
                if others:
                    theirs.decide(others.pop().id, "yes", actor="ada")
                return bool(answers)

            eventually(go_on)
        assert answers == ["done"]


@pytest.mark.shows("E-79")
@pytest.mark.parametrize("wait", WAYS)
@pytest.mark.usefixtures("no_poll")
def test_a_wait_is_woken_by_a_move_of_its_own_process(jobs_url: str, wait: Wait) -> None:
    store, flow = Double(store_of(jobs_url)), flow_of_gate()
    with engine_on(store, flow) as engine:
        job = engine.submit(flow, 1)
        with waiting_for(wait, engine, job.id) as answers:
            eventually(lambda: store.calls["on_move"] >= 1 and store.calls["find_job"] >= 1)
            engine.decide(job.id, "yes", actor="ada")
        assert answers == ["done"]
        assert store.calls["find_job"] < 50, "a ring is a look, and nobody looks without one"


@pytest.mark.usefixtures("no_poll")
def test_a_wait_for_a_state_between_is_woken_by_the_claim_that_enters_it(jobs_url: str) -> None:
    flow: ulak.Flow[Any] = ulak.Flow(
        "prints", ulak.Lifecycle("new", {"new": ["printing"], "printing": ["done"]})
    )
    go_on = threading.Event()

    @flow.stage("new", during="printing")
    def print_it(run: ulak.Run[Any]) -> None:
        go_on.wait(120)

    store = Double(store_of(jobs_url))
    with engine_on(store, flow) as engine, engine.working(settings()):
        job = engine.submit(flow, 1, after=timedelta(milliseconds=200))
        assert engine.wait(job.id, until="printing", timeout=SOON).state == "printing"
        go_on.set()
        assert engine.wait(job.id, timeout=SOON).state == "done"


def test_the_store_forgets_those_who_wait_no_more(jobs_url: str) -> None:
    flow = flow_of_gate()
    with engine_on(store_of(jobs_url), flow) as engine:
        job = engine.submit(flow, 1)
        with pytest.raises(TimeoutError):
            engine.wait(job.id, timeout=0)
        with pytest.raises(TimeoutError):
            asyncio.run(engine.aio.wait(job.id, timeout=0))
        assert not engine.store._watchers


# --- when the time is over --------------------------------------------------------


@pytest.mark.shows("E-79")
def test_a_wait_that_takes_too_long_says_why_the_job_does_not_go_on(jobs_url: str) -> None:
    engine = engine_on(store_of(jobs_url))

    @engine.job
    def send(number: int) -> None: ...

    with engine:
        job = engine.submit(send, 42)
        with pytest.raises(TimeoutError) as late:
            engine.wait(job.id, timeout=timedelta(milliseconds=50))
        why = engine.inspect.why(job.id)
        assert why.code == "no-worker"
        said = f'job {job.id} is still in "queued" after 0.05 s: {why.sentence}'
        assert str(late.value) == said
        with pytest.raises(TimeoutError) as late:
            asyncio.run(engine.aio.wait(job.id, timeout=0.05))
        assert str(late.value) == said
        assert engine.get(job.id) == job, "nothing was changed"


@pytest.mark.shows("E-79")
def test_a_state_that_the_flow_does_not_have_is_refused_at_once(jobs_url: str) -> None:
    flow = flow_of_gate()
    with engine_on(store_of(jobs_url), flow) as engine:
        job = engine.submit(flow, 1)
        for wait in (
            lambda: engine.wait(job.id, until="dnoe", timeout=30),
            lambda: asyncio.run(engine.aio.wait(job.id, until="dnoe", timeout=30)),
        ):
            with pytest.raises(ulak.BadInput, match="""orders has no state 'dnoe'; it has "open"""):
                wait()
    other = engine_on(store_of("memory://"), flow)
    with other, pytest.raises(ulak.JobNotFound):
        other.wait(job.id, until="dnoe", timeout=30)


# --- a store that goes away -------------------------------------------------------


@pytest.mark.shows("E-79")
def test_a_wait_outlives_a_restart_of_the_server(server: Postgres, own_url: str) -> None:
    store, flow = Double(store_of(own_url)), flow_of_gate()
    with engine_on(store, flow) as engine:
        job = engine.submit(flow, 1)
        with waiting_for(wait_in_a_thread, engine, job.id) as answers:
            eventually(lambda: store.calls["find_job"] >= 1)
            server.kill()
            looks = store.calls["find_job"]
            eventually(lambda: store.calls["find_job"] > looks + 2)
            server.start()
            with psycopg.connect(own_url):  # it is back
                assert not answers

            def has_decided() -> bool:
                with suppress(StoreError):
                    engine.decide(job.id, "yes", actor="ada")
                    return True
                return False

            eventually(has_decided)
        assert answers == ["done"]


@pytest.mark.shows("E-79")
@pytest.mark.parametrize("wait", [wait_in_a_thread, wait_on_a_loop])
def test_a_wait_outlives_a_store_that_does_not_answer(jobs_url: str, wait: Wait) -> None:
    store, flow = Double(store_of(jobs_url)), flow_of_gate()
    answers = iter([None, *[StoreError("the server restarts")] * 3])

    def answer(*_: object) -> None:
        if (error := next(answers, None)) is not None:
            raise error
        if store.calls["find_job"] == 6:
            store.before.clear()
            engine.decide(job.id, "yes", actor="ada")

    with engine_on(store, flow) as engine:
        job = engine.submit(flow, 1)
        store.before["find_job"] = answer
        assert wait(engine, job.id) == "done"
        assert store.calls["find_job"] >= 6


@pytest.mark.shows("E-79")
def test_a_store_that_does_not_come_back_is_named_when_the_time_is_over(jobs_url: str) -> None:
    store, flow = Double(store_of(jobs_url)), flow_of_gate()

    def fail(*_: object) -> None:
        raise error

    with engine_on(store, flow) as engine:
        job = engine.submit(flow, 1)
        store.before["find_job"] = fail
        error: StoreError = StoreError("the server restarts")
        with pytest.raises(
            TimeoutError, match=r"does not answer after 0.05 s: the server restarts"
        ):
            engine.wait(job.id, timeout=0.05)
        error = WriteRefused("a table is missing")
        with pytest.raises(WriteRefused):
            engine.wait(job.id)


def test_a_reason_that_cannot_be_read_is_left_out(jobs_url: str) -> None:
    store, flow = Double(store_of(jobs_url)), flow_of_gate()

    def fail(*_: object) -> None:
        raise StoreError("the server restarts")

    with engine_on(store, flow) as engine:
        job = engine.submit(flow, 1)
        store.before["workers"] = fail
        with pytest.raises(TimeoutError, match=r'still in "open" after 0 s$'):
            engine.wait(job.id, timeout=0)
