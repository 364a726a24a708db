"""What a stage may return, raise and ask of its run; the smallest jobs; resources."""

import asyncio
import logging
import threading
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
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
from ulak.errors import ResultNotReady
from ulak.ids import from_text
from ulak.store.memory import MemoryStore
from ulak.testing import Harness


@pytest.mark.shows("E-8")
def test_the_smallest_durable_job_is_four_lines(jobs_url: str) -> None:
    engine = engine_on(store_of(jobs_url))

    @engine.job
    def send(user_id: int) -> str:
        return f"hello {user_id}"

    job = engine.submit(send, 42)
    with engine, engine.working(settings()):
        assert engine.wait(job.id, timeout=SOON).state == "done"
        assert engine.result(job.id) == "hello 42"
        assert send(1) == "hello 1", "it can still be called"
        assert "s0 --> s1 : send" in send.flow.mermaid(), "it is an ordinary lifecycle"
        with pytest.raises(ulak.BadInput, match="missing a required argument"):
            engine.submit(send)


@dataclass(frozen=True)
class Point:
    x: int
    y: int


@pytest.mark.shows("E-8", "E-15")
def test_a_job_function_gets_its_arguments_as_their_declared_types() -> None:
    engine = ulak.connect("memory://")
    seen: list[Any] = []

    @engine.job(name="plot", retry=0)
    async def plot(at: Point, *more: int, label: str = "p", **marks: int) -> Point:
        seen.append((at, more, label, marks))
        return at

    with engine, engine.working(settings()):
        job = engine.submit(plot.bind(Point(1, 2), 3, 4, label="q", red=5))
        assert engine.wait(job.id, timeout=SOON).state == "done"
        assert seen == [(Point(1, 2), (3, 4), "q", {"red": 5})]
        assert engine.get(job.id).flow == "plot"


@pytest.mark.shows("E-8")
def test_steps_make_a_linear_flow_that_can_be_printed() -> None:
    order: list[str] = []

    def fetch(run: ulak.Run[Any]) -> None:
        order.append("fetch")

    async def store(run: ulak.Run[Any]) -> None:
        order.append("store")

    flow: ulak.Flow[Any] = ulak.Flow.steps("etl", fetch, ("keep", store))
    with Harness(flow) as harness:
        job = harness.run(flow)
        assert (job.state, order) == ("done", ["fetch", "store"])
        assert harness.states(job.id) == ["fetch", "keep", "done"]
    assert "s0 --> s1 : fetch" in flow.mermaid()


@pytest.mark.shows("E-13")
@pytest.mark.parametrize("plain", [True, False], ids=["plain", "async"])
def test_every_member_of_run(plain: bool, caplog: pytest.LogCaptureFixture) -> None:
    seen: dict[str, Any] = {}
    child: ulak.Flow[Any] = ulak.Flow.steps("child", ("go", lambda run: None))
    flow: ulak.Flow[Any] = ulak.Flow("all", ulak.Lifecycle("a", {"a": ["b"], "b": ["done"]}))

    @flow.stage("a")
    async def a(run: ulak.Run[Any]) -> dict[str, int]:
        return {"n": 1}

    def use(run: ulak.Run[Any]) -> None:
        seen.update(
            payload=run.payload, result=run.result(a), found=run.find_result(a), key=run.key("k"),
            cancelled=run.cancelled, attempt=run.attempt, round=run.round, token=run.token,
            scheduled_for=run.scheduled_for, tenant=run.tenant, job_id=run.job_id,
            resource=run.resource(dict), ids=run.spawn(child, [1, 2]),
        )  # fmt: skip
        run.emit("topic", {"a": 1})
        run.progress(0.25, "a quarter")
        run.log.warning("told", extra={"job_id": run.job_id})
        with pytest.raises(ulak.BadInput):
            run.progress(1.5)
        with pytest.raises(ulak.FlowError, match=r"@engine.resource\(list\)"):
            run.resource(list)

    if plain:

        @flow.stage("b")
        def b(run: ulak.Run[Any]) -> None:
            with pytest.raises(ResultNotReady, match="find_result"):
                run.result(b)
            use(run)
    else:

        @flow.stage("b")
        async def b_async(run: ulak.Run[Any]) -> None:
            use(run)

    sent: list[Any] = []
    engine = ulak.connect("memory://", flows=[flow, child])
    engine.outbox.publish(sent.append)

    @engine.resource(dict)
    @asynccontextmanager
    async def shared() -> AsyncIterator[dict[str, int]]:
        yield {"shared": 1}

    with engine, caplog.at_level(logging.WARNING), engine.working(settings()):
        job = engine.submit(flow, {"p": 1}, tenant="acme")
        assert engine.wait(job.id, timeout=SOON).state == "done"
        assert [engine.wait(i, timeout=SOON).state for i in seen["ids"]] == ["done", "done"]
        eventually(lambda: sent)
    ids = seen.pop("ids")
    assert len(set(ids)) == 2
    assert seen == {
        "payload": {"p": 1}, "result": {"n": 1}, "found": {"n": 1}, "key": f"{job.id}/1/k",
        "cancelled": False, "attempt": 1, "round": 1, "token": 1, "scheduled_for": None,
        "tenant": "acme", "job_id": job.id, "resource": {"shared": 1},
    }  # fmt: skip
    assert "told" in caplog.text


@pytest.mark.shows("E-14")
def test_a_resource_is_opened_once_per_worker_and_closed_after_its_last_stage() -> None:
    engine = ulak.connect("memory://")
    said: list[str] = []

    class Client:
        pass

    @engine.resource(Client)
    @asynccontextmanager
    async def client() -> AsyncIterator[Client]:
        said.append("open")
        yield Client()
        said.append("close")

    flow: ulak.Flow[Any] = ulak.Flow("uses", ulak.Lifecycle("go", {"go": ["done"]}))

    @flow.stage("go")
    async def go(run: ulak.Run[Any]) -> int:
        said.append("use")
        await asyncio.sleep(0.01)
        return id(run.resource(Client))

    engine.add(flow)
    with engine:
        jobs = engine.submit_many(flow, [1, 2, 3])
        with engine.working(settings()):
            for job in jobs:
                engine.wait(job.id, timeout=SOON)
        assert said == ["open", "use", "use", "use", "close"]
        assert len({engine.result(job.id) for job in jobs}) == 1


@pytest.mark.shows("E-14")
def test_a_resource_of_a_queue_is_opened_by_the_workers_that_serve_it() -> None:
    engine = ulak.connect("memory://")
    said: list[str] = []

    @engine.resource(dict, queue="browser")
    @asynccontextmanager
    async def browser() -> AsyncIterator[dict[str, int]]:
        said.append("open")
        yield {"pages": 1}

    flow: ulak.Flow[Any] = ulak.Flow(
        "print", ulak.Lifecycle("new", {"new": ["set"], "set": ["done"]}), retry=0
    )

    @flow.stage("new")
    def arrange(run: ulak.Run[Any]) -> None:
        with pytest.raises(ulak.FlowError, match='workers of the queue "browser"'):
            run.resource(dict)

    @flow.stage("set", queue="browser")
    def render(run: ulak.Run[Any]) -> int:
        pages: int = run.resource(dict)["pages"]
        return pages

    engine.add(flow)
    with engine:
        job = engine.submit(flow, {})
        with engine.working(settings(queues=frozenset({"print"}))):
            engine.wait(job.id, until="set", timeout=SOON)
        assert said == []
        with engine.working(settings(queues=frozenset({"browser"}))):
            assert engine.wait(job.id, timeout=SOON).state == "done"
        assert said == ["open"]
    engine.resource(list, queue="browsr")(browser)
    with pytest.raises(ulak.FlowError, match='no stage is in the queue "browsr"'):
        engine.open()


@pytest.mark.shows("E-14")
def test_a_resource_that_cannot_be_opened_is_told_where_the_worker_was_started() -> None:
    engine = ulak.connect("memory://")

    @engine.resource(dict)
    @asynccontextmanager
    async def broken() -> AsyncIterator[dict[str, int]]:
        raise ConnectionError("no broker")
        yield {}

    with engine, pytest.raises(ConnectionError, match="no broker"), engine.working(settings()):
        pass


@pytest.mark.shows("E-51")
def test_a_payload_that_breaks_its_upgrade_holds_its_own_job_only() -> None:
    def upgrade(version: int, data: Any) -> Any:
        return data.nothing  # an AttributeError, as in somebody's first draft

    def declare(schema: int, **options: Any) -> ulak.Flow[Any]:
        flow: ulak.Flow[Any] = ulak.Flow(
            "old", ulak.Lifecycle("go", {"go": ["done"]}), schema=schema, **options
        )

        @flow.stage("go")
        async def go(run: ulak.Run[Any]) -> None: ...

        return flow

    store = MemoryStore()
    older, newer = declare(1), declare(2, upgrade=upgrade)
    bad = engine_on(store, older).submit(older, 1)
    with engine_on(store, newer) as engine, engine.working(settings()):
        good = engine.submit(newer, 1)
        held = engine.wait(bad.id, until="held", timeout=SOON)
        assert (held.code, held.attempt) == ("payload-unreadable", 0)
        assert "AttributeError" in (engine.inspect.trail(bad.id)[-1].message or "")
        assert engine.wait(good.id, timeout=SOON).state == "done"
        assert codes(engine, good) == [None, None]


@pytest.mark.shows("E-41")
def test_two_hundred_waiting_stages_take_the_time_of_one_and_progress_is_coalesced() -> None:
    store = Double(MemoryStore())
    engine = engine_on(store)
    flow: ulak.Flow[int] = ulak.Flow("waits", ulak.Lifecycle("go", {"go": ["done"]}))
    inside, go_on = [0], threading.Event()

    @flow.stage("go")
    async def go(run: ulak.Run[int]) -> None:
        inside[0] += 1
        for n in range(50):
            run.progress(n / 50, f"step {n}")
        while not go_on.is_set():
            await asyncio.sleep(0.01)

    engine.add(flow)
    with engine, engine.working(settings(loop=200)):
        jobs = engine.submit_many(flow, range(200))
        eventually(lambda: inside[0] == 200)
        eventually(lambda: store.find_progress(from_text(jobs[0].id)))
        assert store.calls["report"] == 1, "ten thousand words, one write"
        said = store.find_progress(from_text(jobs[0].id))
        assert (said.fraction, said.note) == (0.98, "step 49")
        go_on.set()
        for job in jobs:
            assert engine.wait(job.id, timeout=SOON).state == "done"
        assert kinds(engine, jobs[0]) == ["submitted", "moved"]
