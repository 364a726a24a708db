"""A lease goes on from stage to stage while nothing speaks against it, and only then."""

import asyncio
import threading
from datetime import timedelta
from typing import Any

import pytest

import ulak
from tests.scenario.doubles import (
    SOON,
    Double,
    engine_on,
    eventually,
    kinds,
    settings,
    store_of,
)
from ulak.ids import from_text
from ulak.store.memory import MemoryStore


def steps(name: str, count: int, body: Any, **options: Any) -> ulak.Flow[Any]:
    return ulak.Flow.steps(name, *[(f"s{n}", body) for n in range(count)], **options)


def claims_of(store: Double) -> list[int]:
    """How many jobs each claim has taken."""
    taken: list[int] = []
    store.after["claim"] = lambda claimed: taken.append(len(claimed.claims))
    return taken


@pytest.mark.shows("E-28")
def test_one_claim_carries_a_job_through_all_its_stages(jobs_url: str) -> None:
    store = Double(store_of(jobs_url))
    taken, tokens = claims_of(store), list[int]()

    async def body(run: ulak.Run[Any]) -> None:
        tokens.append(run.token)

    flow = steps("long", 6, body)
    with engine_on(store, flow) as engine, engine.working(settings()):
        job = engine.submit(flow)
        assert engine.wait(job.id, timeout=SOON).state == "done"
        assert sum(taken) == 1
        assert tokens == [1] * 6
        assert kinds(engine, job) == ["submitted"] + ["moved"] * 6


@pytest.mark.shows("E-28")
def test_a_stage_starts_only_after_the_move_before_it_is_durable(jobs_url: str) -> None:
    store = store_of(jobs_url)
    stored: list[str] = []

    async def body(run: ulak.Run[Any]) -> None:
        row = store.find_job(from_text(run.job_id))
        assert row is not None
        stored.append(row.state)

    flow = steps("durable", 5, body)
    with engine_on(store, flow) as engine, engine.working(settings()):
        job = engine.submit(flow)
        engine.wait(job.id, timeout=SOON)
        assert stored == ["s0", "s1", "s2", "s3", "s4"]


@pytest.mark.shows("E-28")
def test_a_job_gives_its_lease_back_after_so_many_stages_while_others_wait() -> None:
    store, order = Double(MemoryStore()), list[str]()

    async def body(run: ulak.Run[str]) -> None:
        order.append(run.payload)
        await asyncio.sleep(0)

    flow = steps("fair", 9, body)
    with engine_on(store, flow) as engine:
        taken = claims_of(store)
        jobs = engine.submit_many(flow, ["a", "b"])
        asyncio.run(engine.worker(settings(loop=1, keep_stages=3)).run(until_idle=True))
        assert {engine.get(job.id).state for job in jobs} == {"done"}
        # Each keeps its lease for the first stage and three more, then the other has its turn.
        assert "".join(order) in ("aaaabbbbaaaabbbbab", "bbbbaaaabbbbaaaaba")
        assert sum(taken) == 6


@pytest.mark.shows("E-28")
def test_a_job_gives_its_lease_back_after_so_long_while_others_wait() -> None:
    order: list[str] = []

    async def body(run: ulak.Run[str]) -> None:
        order.append(run.payload)
        await asyncio.sleep(0.02)

    flow = steps("patient", 3, body)
    turns = settings(loop=1, keep_for=timedelta(milliseconds=1))
    with engine_on(MemoryStore(), flow) as engine:
        engine.submit_many(flow, ["a", "b"])
        asyncio.run(engine.worker(turns).run(until_idle=True))
        assert "".join(order) in ("ababab", "bababa"), "by turns, long before fifty stages"


@pytest.mark.shows("E-28")
def test_a_job_keeps_its_lease_while_nobody_waits() -> None:
    store = Double(MemoryStore())
    taken = claims_of(store)

    async def body(run: ulak.Run[Any]) -> None: ...

    flow = steps("alone", 9, body)
    with engine_on(store, flow) as engine:
        engine.submit(flow)
        asyncio.run(engine.worker(settings(loop=5, keep_stages=3)).run(until_idle=True))
        assert sum(taken) == 1


@pytest.mark.shows("E-28")
def test_the_lease_goes_on_into_another_pool_if_that_has_a_place() -> None:
    store = Double(MemoryStore())
    taken = claims_of(store)
    blocked, go_on = threading.Event(), threading.Event()
    where: list[tuple[str, str]] = []
    flow: ulak.Flow[Any] = ulak.Flow("mixed", ulak.Lifecycle("a", {"a": ["b"], "b": ["done"]}))

    @flow.stage("a")
    async def a(run: ulak.Run[Any]) -> None:
        where.append((run.payload, threading.current_thread().name))

    @flow.stage("b")
    def b(run: ulak.Run[Any]) -> None:
        where.append((run.payload, threading.current_thread().name))
        if run.payload == "first":
            blocked.set()
            assert go_on.wait(120)

    with engine_on(store, flow) as engine, engine.working(settings(threads=1)):
        first = engine.submit(flow, "first")
        assert blocked.wait(120)
        assert sum(taken) == 1, "from the loop into a thread, under one lease"
        second = engine.submit(flow, "second")
        # The only thread is taken: the move commits, and the lease is given back with it.
        eventually(lambda: engine.get(second.id).state == "b")
        assert engine.get(second.id).leased_by is None
        go_on.set()
        for job in (first, second):
            assert engine.wait(job.id, timeout=SOON).state == "done"
        assert sum(taken) == 3
        assert {name for _, name in where[1::2]} == {"ulak-stage-0"}


@pytest.mark.shows("E-28", "E-29")
def test_without_a_slot_the_move_commits_and_the_lease_is_given_back(jobs_url: str) -> None:
    store = store_of(jobs_url)
    go_on = threading.Event()
    flow: ulak.Flow[Any] = ulak.Flow("slots", ulak.Lifecycle("a", {"a": ["b"], "b": ["done"]}))

    @flow.stage("a")
    async def a(run: ulak.Run[Any]) -> str:
        return "left by a"

    @flow.stage("b", limit=ulak.Limit(1))
    async def b(run: ulak.Run[Any]) -> str:
        while not go_on.is_set():
            await asyncio.sleep(0.002)
        return run.result(a)

    with engine_on(store, flow) as engine, engine.working(settings()):
        jobs = engine.submit_many(flow, range(3))
        eventually(lambda: [engine.get(j.id).state for j in jobs] == ["b"] * 3)
        eventually(lambda: sum(engine.get(j.id).parked_on is not None for j in jobs) == 2)
        assert sum(engine.get(j.id).leased_by is not None for j in jobs) == 1
        go_on.set()
        for job in jobs:
            assert engine.wait(job.id, timeout=SOON).state == "done"
            assert engine.result(job.id) == "left by a"
            assert kinds(engine, job) == ["submitted", "moved", "moved"]
        assert engine.inspect.verify() == []


@pytest.mark.shows("E-28", "E-3")
def test_the_lease_goes_on_into_a_busy_state_that_is_entered_first(jobs_url: str) -> None:
    store = store_of(jobs_url)
    stood: list[str] = []
    flow: ulak.Flow[Any] = ulak.Flow(
        "busy",
        ulak.Lifecycle("a", {"a": ["b"], "b": ["working"], "working": ["done"]}),
        retry=ulak.Backoff(delays=[timedelta(0)]),
    )

    @flow.stage("a")
    async def a(run: ulak.Run[Any]) -> None: ...

    @flow.stage("b", during="working")
    async def b(run: ulak.Run[Any]) -> None:
        row = store.find_job(from_text(run.job_id))
        assert row is not None
        stood.append(row.state)
        if run.attempt == 1:
            raise ConnectionError

    with engine_on(store, flow) as engine, engine.working(settings()):
        job = engine.submit(flow)
        assert engine.wait(job.id, timeout=SOON).state == "done"
        assert stood == ["working", "working"]
        assert [(e.kind, e.to_state) for e in engine.inspect.trail(job.id)] == [
            ("submitted", "a"), ("moved", "b"), ("entered", "working"), ("retry", "working"),
            ("moved", "done"),
        ]  # fmt: skip
        assert engine.inspect.verify() == []


@pytest.mark.shows("E-28", "E-23")
def test_a_stage_of_a_queue_that_is_not_served_here_is_given_back() -> None:
    ran: list[str] = []
    flow: ulak.Flow[Any] = ulak.Flow("queues", ulak.Lifecycle("a", {"a": ["b"], "b": ["done"]}))

    @flow.stage("a", queue="here")
    async def a(run: ulak.Run[Any]) -> None:
        ran.append("a")

    @flow.stage("b", queue="elsewhere")
    async def b(run: ulak.Run[Any]) -> None:
        ran.append("b")

    engine = ulak.connect("memory://", flows=[flow])
    with engine:
        job = engine.submit(flow)
        for queue in ("here", "elsewhere"):
            worker = engine.worker(settings(queues=frozenset({queue})))
            asyncio.run(worker.run(until_idle=True))
            assert engine.get(job.id).leased_by is None
        assert ran == ["a", "b"]
        assert engine.get(job.id).state == "done"
