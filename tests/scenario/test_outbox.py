"""Messages leave with their move, in order per key, at least once; a poisoned key is alone."""

import asyncio
import functools
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
    settings,
    store_of,
)
from ulak.clock import ManualClock
from ulak.engine.relay import HOLD_US, TRIES, Relay
from ulak.errors import StoreError
from ulak.store import codec
from ulak.store.memory import MemoryStore


def talkative(messages: int = 3) -> ulak.Flow[Any]:
    async def first(run: ulak.Run[Any]) -> None:
        for n in range(messages):
            run.emit("told", [run.payload, n])

    async def second(run: ulak.Run[Any]) -> None:
        run.emit("told", [run.payload, messages])

    return ulak.Flow.steps("talks", first, ("second", second))


def data(message: ulak.Message) -> Any:
    return message.data


@pytest.mark.shows("E-45")
def test_messages_of_one_job_are_sent_in_order(jobs_url: str) -> None:
    sent: dict[str, list[int]] = {}

    async def publish(message: ulak.Message) -> None:
        payload, n = data(message)
        await asyncio.sleep(0.001 * (payload % 3))
        sent.setdefault(message.key, []).append(n)

    flow = talkative()
    with engine_on(store_of(jobs_url), flow) as engine:
        engine.publish(publish)
        jobs = engine.submit_many(flow, range(20))
        asyncio.run(engine.worker(settings()).run(until_idle=True))
        assert len(sent) == len(jobs)
        assert set(map(tuple, sent.values())) == {(0, 1, 2, 3)}
        assert engine.verify() == []


@pytest.mark.shows("E-45")
def test_a_poisoned_key_becomes_a_dead_letter_and_stops_only_itself(jobs_url: str) -> None:
    clock = ManualClock()
    store = store_of(jobs_url)
    store.clock = clock
    sent, tries = list[Any](), list[Any]()

    def publish(message: ulak.Message) -> None:
        if data(message)[0] == 1:
            tries.append(data(message))
            raise ValueError("the broker will not have it")
        sent.append(data(message))

    flow = talkative(1)
    with engine_on(store, flow) as engine:
        engine.publish(publish)
        engine.submit_many(flow, [0, 1, 2])

        async def work() -> None:
            await engine.worker(settings()).run(until_idle=True)

        asyncio.run(work())
        assert sorted(sent) == [[0, 0], [0, 1], [2, 0], [2, 1]]
        assert tries == [[1, 0]], "its second message waits behind it"
        while not store.dead_messages(10):
            clock.advance(timedelta(minutes=20))
            asyncio.run(work())
            assert len(tries) < 50
        assert len([t for t in tries if t == [1, 0]]) == TRIES.limit() + 1
        dead = store.dead_messages(10)
        assert [codec.decode(row.message.data) for row in dead] == [[1, 0]]
        assert engine.verify() == []


@pytest.mark.shows("E-45")
def test_a_publisher_that_hangs_on_one_key_does_not_hold_up_the_others() -> None:
    engine = ulak.connect("memory://", flows=[talkative(1)])
    (flow,) = engine.flows
    go_on, sent = threading.Event(), list[Any]()

    @engine.publish
    def publish(message: ulak.Message) -> None:
        if data(message)[0] == 0:
            go_on.wait(120)
        sent.append(data(message))

    with engine, engine.working(settings()):
        engine.submit(flow, 0)
        eventually(lambda: engine.store.take_messages(0, hold_us=0) == [])
        engine.submit_many(flow, [1, 2])
        eventually(lambda: len(sent) == 4)
        assert [0, 0] not in sent
        go_on.set()
        eventually(lambda: len(sent) == 6)


@pytest.mark.shows("E-45")
def test_what_was_taken_and_not_settled_is_sent_again(jobs_url: str) -> None:
    clock = ManualClock()
    store = store_of(jobs_url)
    store.clock = clock
    flow, sent = talkative(1), list[Any]()
    with engine_on(store, flow) as engine:
        engine.submit(flow, 1)
        asyncio.run(engine.worker(settings()).run(until_idle=True))
        # A relay takes the head, may or may not have sent it, and vanishes.
        assert len(store.take_messages(10, hold_us=HOLD_US)) == 1
        engine.publish(lambda message: sent.append(data(message)))

        async def relay() -> None:
            await Relay(engine).send_once(asyncio.get_running_loop())

        asyncio.run(relay())
        assert sent == [], "it may still be on its way"
        clock.advance(timedelta(microseconds=HOLD_US))
        asyncio.run(relay())
        asyncio.run(relay())
        assert sent == [[1, 0], [1, 1]]


@pytest.mark.shows("E-45")
def test_a_store_that_breaks_after_a_message_was_sent_does_not_lose_it() -> None:
    store = Double(MemoryStore())
    flow, sent, breaks = talkative(1), list[Any](), [2]

    def break_off(*_: object) -> None:
        if breaks[0] > 0:
            breaks[0] -= 1
            raise StoreError("gone")

    store.before["settle_messages"] = break_off
    with engine_on(store, flow) as engine:
        engine.publish(lambda message: sent.append(data(message)))
        with engine.working(settings()):
            job = engine.submit(flow, 1)
            engine.wait(job.id, timeout=SOON)
            eventually(lambda: [1, 1] in sent)
        assert breaks == [0]
        assert [s for n, s in enumerate(sent) if s not in sent[:n]] == [[1, 0], [1, 1]]
        assert store.calls["settle_messages"] >= 4


@pytest.mark.shows("E-45")
def test_a_coroutine_that_does_not_look_like_one_is_awaited() -> None:
    engine = ulak.connect("memory://", flows=[talkative(1)])
    (flow,) = engine.flows
    sent: list[Any] = []

    class Broker:
        async def __call__(self, message: ulak.Message) -> None:
            await asyncio.sleep(0)
            sent.append(data(message))

    engine.publish(Broker())
    with engine:
        engine.submit(flow, 1)
        asyncio.run(engine.worker(settings()).run(until_idle=True))
        assert sent == [[1, 0], [1, 1]]
        engine.publish(functools.partial(Broker().__call__))
        engine.submit(flow, 2)
        asyncio.run(engine.worker(settings()).run(until_idle=True))
        assert sent[2:] == [[2, 0], [2, 1]]


@pytest.mark.shows("E-45")
def test_a_worker_that_stops_settles_what_it_has_sent() -> None:
    store = Double(MemoryStore())
    flow, sent = talkative(1), list[Any]()
    with engine_on(store, flow) as engine:
        engine.publish(lambda message: sent.append(data(message)))
        jobs = engine.submit_many(flow, [1, 2, 3])
        with engine.working(settings()):
            for job in jobs:
                engine.wait(job.id, timeout=SOON)
            eventually(lambda: sent)
        rows = [r for j in jobs for r in store.scan_messages(bytes.fromhex(j.id.replace("-", "")))]
        assert sum(row.sent_at is not None for row in rows) == len(sent)


@pytest.mark.shows("E-45", "E-13")
def test_a_stage_that_fails_sends_nothing_and_a_key_may_be_given() -> None:
    engine = ulak.connect("memory://")
    sent: list[ulak.Message] = []
    engine.publish(sent.append)
    flow: ulak.Flow[Any] = ulak.Flow(
        "f", ulak.Lifecycle("go", {"go": ["done"]}), retry=ulak.Backoff(delays=[timedelta(0)])
    )

    @flow.stage("go")
    def go(run: ulak.Run[Any]) -> None:
        run.emit("t", run.attempt, key="customer-7")
        if run.attempt == 1:
            raise ConnectionError

    engine.add(flow)
    with engine:
        engine.submit(flow)
        asyncio.run(engine.worker(settings()).run(until_idle=True))
        assert [(m.key, data(m)) for m in sent] == [("customer-7", 2)]
