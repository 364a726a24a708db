"""The machine that works and the store disagree about the time; the store is right."""

import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta
from typing import Any

import pytest

from tests.conformance.stores import make_schema
from tests.databases import Databases
from ulak import Backoff, Engine, Flow, Lifecycle
from ulak.clock import SECOND, Instant, SystemClock, Uptime, micros, to_datetime
from ulak.engine import ports
from ulak.errors import InProgress
from ulak.idempotency import Answer, Asked, Execution, Guard, Scope
from ulak.store.memory import MemoryStore
from ulak.store.postgres import PostgresStore

FIVE_MINUTES = 300 * SECOND


class SkewedClock:
    """The clock of a store whose machine is wrong by so much, seen from this one."""

    def __init__(self, skew_us: int) -> None:
        self._skew_us = skew_us
        self._machine = SystemClock()

    def now(self) -> Instant:
        return self._machine.now() + self._skew_us

    def uptime(self) -> Uptime:
        return self._machine.uptime()


@pytest.mark.shows("E-49")
@pytest.mark.parametrize("skew_us", [FIVE_MINUTES, -FIVE_MINUTES], ids=["ahead", "behind"])
def test_five_minutes_between_worker_and_store_change_nothing(skew_us: int) -> None:
    store = MemoryStore(SkewedClock(skew_us))
    flow: Flow[Any] = Flow(
        "skewed",
        Lifecycle("first", {"first": ["second"], "second": ["done"]}),
        retry=Backoff(delays=[timedelta(milliseconds=5)]),
    )
    tries = iter([False, True])

    @flow.stage("first", timeout=timedelta(minutes=1))
    def first(run: Any) -> None:
        if not next(tries):
            raise RuntimeError("once")

    @flow.stage("second", timeout=timedelta(minutes=1))
    async def second(run: Any) -> None: ...

    engine = Engine(store, flows=[flow])
    with engine, engine.working():
        before = store.clock.now()
        job = engine.submit(flow, {}, expires=timedelta(minutes=1))
        ended = engine.wait(job.id, timeout=timedelta(seconds=30))
        after = store.clock.now()
        trail = engine.inspect.trail(job.id)
    assert ended.state == "done"
    assert [event.kind for event in trail] == ["submitted", "retry", "moved", "moved"]
    # Every time that was stored is the store's, as it was then; the machine's is minutes away.
    slack = timedelta(milliseconds=50)
    for event in trail:
        assert to_datetime(before) - slack <= event.at <= to_datetime(after) + slack
        if event.started_at is not None:
            assert to_datetime(before) - slack <= event.started_at <= to_datetime(after) + slack


@pytest.mark.shows("E-49")
def test_between_two_answers_the_stores_time_goes_on_by_the_monotonic_clock(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    passed_ns = 0
    monkeypatch.setattr(time, "monotonic_ns", lambda: passed_ns)
    told = ports.StoreTime(SkewedClock(0))
    told.hear(1_000)
    passed_ns = 5_000_000
    # Somebody sets the machine's clock back by a day: nothing here looks at it.
    monkeypatch.setattr(time, "time_ns", lambda: 0)
    assert told.now() == 1_000 + 5_000
    told.hear(9_000)
    assert told.now() == 9_000


@pytest.mark.shows("E-49")
def test_a_lease_is_judged_by_the_store_and_not_by_the_worker() -> None:
    """A worker whose machine is five minutes slow keeps its lease of thirty seconds."""
    store = MemoryStore(SkewedClock(FIVE_MINUTES))
    running, go_on = threading.Event(), threading.Event()
    flow: Flow[Any] = Flow("one", Lifecycle("queued", {"queued": ["done"]}))

    @flow.stage("queued")
    def work(run: Any) -> None:
        running.set()
        go_on.wait(120)

    engine = Engine(store, flows=[flow])
    with engine, engine.working():
        job = engine.submit(flow, {})
        assert running.wait(120)
        assert engine.inspect.why(job.id).code == "leased"
        go_on.set()
        assert engine.wait(job.id, timeout=timedelta(seconds=30)).lapses == 0


@pytest.mark.shows("I-26")
@pytest.mark.parametrize("skew_us", [FIVE_MINUTES, -FIVE_MINUTES], ids=["ahead", "behind"])
def test_a_machine_whose_clock_is_wrong_shortens_no_lease_of_a_key(
    skew_us: int, databases: Databases
) -> None:
    """The server's clock decides who executes, whatever the machines of applications believe."""
    lease = timedelta(seconds=60)
    scope = Scope("pay", mode="lease", lease=lease)
    with databases.lend(make_schema) as url, opened(url) as right, opened(url) as wrong:
        for key, (first, second) in (("a", (right, wrong)), ("b", (wrong, right))):
            asked = Asked(scope, key, request_hash="same")
            wrong.clock.hear(SystemClock().now() + skew_us)
            execution = Guard(first).begin(asked)
            assert isinstance(execution, Execution)
            until = execution.row.lease_until
            assert until is not None
            assert abs(until - SystemClock().now() - micros(lease)) < 30 * SECOND
            wrong.clock.hear(SystemClock().now() + skew_us)
            with pytest.raises(InProgress):
                Guard(second).begin(asked)
            execution.settle(Answer())


@contextmanager
def opened(url: str) -> Iterator[Any]:
    """A store of a machine of its own."""
    store = PostgresStore(url)
    store.open()
    try:
        yield store
    finally:
        store.close()
