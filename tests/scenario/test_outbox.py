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
from ulak.engine.outbox import TRIES
from ulak.engine.relay import ASYNC_PUBLISHERS, HOLD_US, PUBLISHERS, Relay
from ulak.errors import BadInput, StoreError
from ulak.ids import from_text
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
        engine.outbox.publish(publish)
        jobs = engine.submit_many(flow, range(20))
        asyncio.run(engine.worker(settings()).run(until_idle=True))
        assert len(sent) == len(jobs)
        assert set(map(tuple, sent.values())) == {(0, 1, 2, 3)}
        assert engine.inspect.verify() == []


@pytest.mark.shows("E-45", "E-84")
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
        engine.outbox.publish(publish)
        engine.submit_many(flow, [0, 1, 2])

        async def work() -> None:
            await engine.worker(settings()).run(until_idle=True)

        asyncio.run(work())
        assert sorted(sent) == [[0, 0], [0, 1], [2, 0], [2, 1]]
        assert tries == [[1, 0]], "its second message waits behind it"
        while not engine.outbox.dead():
            clock.advance(timedelta(minutes=20))
            asyncio.run(work())
            assert len(tries) < 50
        assert len([t for t in tries if t == [1, 0]]) == TRIES + 1
        assert [dead.data for dead in engine.outbox.dead()] == [[1, 0]]
        assert engine.inspect.verify() == []


@pytest.mark.shows("E-45")
def test_a_publisher_that_hangs_on_one_key_does_not_hold_up_the_others() -> None:
    engine = ulak.connect("memory://", flows=[talkative(1)])
    (flow,) = engine.inspect.flows
    go_on, sent = threading.Event(), list[Any]()

    @engine.outbox.publish
    def publish(message: ulak.Message) -> None:
        if data(message)[0] == 0:
            go_on.wait(120)
        sent.append(data(message))

    with engine, engine.working(settings()):
        engine.submit(flow, 0)
        eventually(lambda: engine.store.take_messages("", 0, hold_us=0) == [])
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
        assert len(store.take_messages("", 10, hold_us=HOLD_US)) == 1
        engine.outbox.publish(lambda message: sent.append(data(message)))

        async def relay() -> None:
            await Relay(engine.kernel).send_once()

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
        engine.outbox.publish(lambda message: sent.append(data(message)))
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
    (flow,) = engine.inspect.flows
    sent: list[Any] = []

    class Broker:
        async def __call__(self, message: ulak.Message) -> None:
            await asyncio.sleep(0)
            sent.append(data(message))

    engine.outbox.publish(Broker())
    with engine:
        engine.submit(flow, 1)
        asyncio.run(engine.worker(settings()).run(until_idle=True))
        assert sent == [[1, 0], [1, 1]]
        engine.outbox.publish(functools.partial(Broker().__call__))
        engine.submit(flow, 2)
        asyncio.run(engine.worker(settings()).run(until_idle=True))
        assert sent[2:] == [[2, 0], [2, 1]]


@pytest.mark.shows("E-45")
def test_a_worker_that_stops_settles_what_it_has_sent() -> None:
    store = Double(MemoryStore())
    flow, sent = talkative(1), list[Any]()
    with engine_on(store, flow) as engine:
        engine.outbox.publish(lambda message: sent.append(data(message)))
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
    engine.outbox.publish(sent.append)
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


def crowd(keys: int) -> ulak.Flow[Any]:
    """A flow of which each job leaves one message in each of so many keys."""

    async def tell(run: ulak.Run[Any]) -> None:
        for n in range(keys):
            run.emit("told", n, key=f"key-{n}")

    return ulak.Flow.steps("crowds", tell)


class Broker:
    """Counts calls, and lets none of them end before it is opened."""

    def __init__(self) -> None:
        self.is_open = threading.Event()
        self.calls: list[int] = []
        self._lock = threading.Lock()
        self.running = self.most = 0

    def __enter__(self) -> None:
        with self._lock:
            self.running += 1
            self.most = max(self.most, self.running)

    def __exit__(self, *_: object) -> None:
        with self._lock:
            self.running -= 1

    def publish(self, message: ulak.Message) -> None:
        with self:
            self.calls.append(data(message))
            assert self.is_open.wait(120)

    async def publish_async(self, message: ulak.Message) -> None:
        with self:
            self.calls.append(data(message))
            while not self.is_open.is_set():
                await asyncio.sleep(0.005)


def rows_of(engine: ulak.Engine, job: ulak.Job) -> list[Any]:
    return engine.store.scan_messages(from_text(job.id))


@pytest.mark.shows("E-45", "E-84")
@pytest.mark.parametrize("kind", ["plain", "async"])
def test_a_slow_publisher_gets_each_message_once_and_no_more_than_it_can_send(
    jobs_url: str, kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    if kind == "plain":
        # So short that every message waits for longer: none may count as failed for that.
        monkeypatch.setattr("ulak.engine.relay.LONGEST_PUBLISH_S", 0.01)
    broker, flow, keys = Broker(), crowd(150), 150
    at_once = PUBLISHERS if kind == "plain" else ASYNC_PUBLISHERS
    with engine_on(store_of(jobs_url), flow) as engine:
        job = engine.submit(flow)
        asyncio.run(engine.worker(settings()).run(until_idle=True))
        engine.outbox.publish(broker.publish if kind == "plain" else broker.publish_async)
        with engine.working(settings()):
            eventually(lambda: broker.running >= at_once)
            if kind == "async":
                assert len(engine.store.take_messages("", 1000, hold_us=0)) == keys - at_once
            broker.is_open.set()
            eventually(lambda: all(row.sent_at is not None for row in rows_of(engine, job)))
        assert sorted(broker.calls) == list(range(keys)), "each was sent once"
        assert {row.tries for row in rows_of(engine, job)} == {0}
        if kind == "async":
            assert broker.most == at_once
        assert engine.inspect.verify() == []


@pytest.mark.shows("E-45", "E-70", "E-84")
def test_a_plain_publisher_holds_as_many_messages_as_it_has_threads(jobs_url: str) -> None:
    broker, flow = Broker(), crowd(40)
    with engine_on(store_of(jobs_url), flow) as engine:
        job = engine.submit(flow)
        asyncio.run(engine.worker(settings()).run(until_idle=True))
        engine.outbox.publish(broker.publish)
        with engine.working(settings(lease=3600)):
            eventually(lambda: broker.running == PUBLISHERS)
            assert len(engine.store.take_messages("", 1000, hold_us=0)) == 40 - PUBLISHERS
            broker.is_open.set()
            eventually(lambda: all(row.sent_at is not None for row in rows_of(engine, job)))
        assert broker.most == PUBLISHERS
        assert sorted(broker.calls) == list(range(40))


@pytest.mark.shows("E-45", "E-70")
def test_messages_that_are_being_sent_are_held_for_a_lease_and_renewed(
    jobs_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    broker, flow, lease_s, renewed = Broker(), crowd(1), 2, list[Any]()
    with engine_on(store_of(jobs_url), flow) as engine:
        hold = engine.store.hold_messages

        def renew(rows: Any, *, hold_us: int) -> Any:
            held = hold(rows, hold_us=hold_us)
            renewed.extend(held)
            return held

        # To take a message again whose hold has lapsed looks the same, and is no renewal.
        monkeypatch.setattr(engine.store, "hold_messages", renew)
        job = engine.submit(flow)
        asyncio.run(engine.worker(settings()).run(until_idle=True))
        engine.outbox.publish(broker.publish)
        with engine.working(settings(lease=lease_s)):
            eventually(lambda: broker.running)
            holds: set[int] = set()

            def is_renewed() -> bool:
                (row,) = rows_of(engine, job)
                assert row.not_before <= engine.store.clock.now() + lease_s * 1_000_000
                holds.add(row.not_before)
                return len(holds) > 3 and len(renewed) > 1

            eventually(is_renewed)
            broker.is_open.set()
            eventually(lambda: rows_of(engine, job)[0].sent_at is not None)
        assert broker.calls == [0]


@pytest.mark.shows("E-45", "E-84")
def test_publishers_that_hang_do_not_stop_the_others(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("ulak.engine.relay.LONGEST_PUBLISH_S", 0.01)
    flow, go_on, sent = crowd(40), threading.Event(), list[int]()
    engine = ulak.connect("memory://", flows=[flow])

    @engine.outbox.publish
    def publish(message: ulak.Message) -> None:
        if data(message) < 2 * PUBLISHERS:
            go_on.wait(120)
        sent.append(data(message))

    with engine, engine.working(settings()):
        engine.submit(flow)
        eventually(lambda: len(sent) == 40 - 2 * PUBLISHERS)
        go_on.set()
        eventually(lambda: len(sent) == 40)
    assert len(set(sent)) == 40


@pytest.mark.shows("E-45")
@pytest.mark.parametrize(
    ("kind", "raised"),
    [
        ("plain", SystemExit), ("plain", StopIteration), ("plain", asyncio.CancelledError),
        ("async", StopIteration), ("async", asyncio.CancelledError),
    ],
)  # fmt: skip
def test_whatever_a_publisher_raises_is_a_failed_try(kind: str, raised: type) -> None:
    flow, tries = crowd(1), list[int]()
    engine = ulak.connect("memory://", flows=[flow])

    def publish(message: ulak.Message) -> None:
        tries.append(data(message))
        raise raised

    async def publish_async(message: ulak.Message) -> None:
        publish(message)

    engine.outbox.publish(publish if kind == "plain" else publish_async)
    with engine, engine.working(settings()):
        job = engine.submit(flow)
        eventually(lambda: any(row.tries for row in rows_of(engine, job)))
    assert tries[0] == 0


BAD_NAMES = [7, b"bytes", "", "x" * 501, "nul\x00", "half \ud800"]


@pytest.mark.shows("E-45")
@pytest.mark.parametrize("where", ["loop", "thread"])
def test_topics_and_keys_that_some_store_cannot_keep_are_refused(jobs_url: str, where: str) -> None:
    def emit(run: ulak.Run[Any]) -> list[str]:
        refused = []
        for bad in BAD_NAMES:
            for topic, key in ((bad, None), ("fine", bad)):
                try:
                    run.emit(topic, 1, key=key)  # type: ignore[arg-type]
                except BadInput as error:
                    refused.append(str(error))
        run.emit("t" * 500, 1, key="k" * 500)
        return refused

    async def emit_on_loop(run: ulak.Run[Any]) -> list[str]:
        return emit(run)

    flow: ulak.Flow[Any] = ulak.Flow.steps(
        "emits", ("telling", emit_on_loop if where == "loop" else emit)
    )
    with engine_on(store_of(jobs_url), flow) as engine:
        job = engine.submit(flow)
        asyncio.run(engine.worker(settings()).run(until_idle=True))
        refused = engine.result(job.id)
        assert len(refused) == 2 * len(BAD_NAMES)
        assert all(said.startswith(("emit: the topic", "emit: the key")) for said in refused)
        assert len(rows_of(engine, job)) == 1
