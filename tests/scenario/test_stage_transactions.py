"""`transaction=True`: what the worker does with a stage's own transaction, whatever the store.

The transaction is a double here: its rows are a list, and its change is committed to the store in
memory. What a real one does is told in `test_postgres_stage_transactions.py`.
"""

import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from datetime import timedelta
from typing import Any

import pytest

import ulak
from tests.scenario.doubles import SOON, codes, engine_on, eventually, kinds, settings
from ulak import Flow, Goto, Hold, Lifecycle, RetryLater, Run
from ulak.core.change import Change, Committed, LeaseLost, Receipt
from ulak.errors import StoreError, WriteRefused
from ulak.store.memory import MemoryStore

AT_ONCE = ulak.Backoff(delays=[timedelta(0)] * 3)
LIFE = Lifecycle("go", {"go": ["gone", "done"], "gone": ["done"]})


class Rows:
    """A transaction whose rows are a list."""

    def __init__(self, store: "TogetherStore") -> None:
        self._store = store
        self.connection: list[Any] = []
        self.is_over = False

    def commit(self, change: Change) -> Receipt:
        assert not self.is_over
        self.is_over = True
        self._store.before_commit(change)
        with self._store._lock:  # nobody claims between the move and its rows
            receipt = self._store.commit([change])[0]
            if isinstance(receipt, Committed):
                self._store.rows += self.connection
        self._store.after_commit(change)
        return receipt

    def roll_back(self) -> None:
        self.is_over = True


class TogetherStore(MemoryStore):
    """A store in memory that lets stages write rows with their moves."""

    features = replace(MemoryStore.features, stage_transactions=True)

    def __init__(self) -> None:
        super().__init__()
        self.rows: list[Any] = []
        self.begun: list[Rows] = []
        self.offered = 0
        self.before_begin: Callable[[], object] = lambda: None
        self.before_commit: Callable[[Change], object] = lambda change: None
        self.after_commit: Callable[[Change], object] = lambda change: None

    def commit(self, changes: Sequence[Change]) -> list[Receipt]:
        self.offered += len(changes)
        return super().commit(changes)

    def begin_stage(self) -> Rows:
        self.before_begin()
        self.begun.append(Rows(self))
        return self.begun[-1]

    def all_are_over(self) -> bool:
        return bool(self.begun) and all(rows.is_over for rows in self.begun)


def flow_of(stage: Callable[[Run[Any]], Any], **options: Any) -> Flow[Any]:
    flow: Flow[Any] = Flow("together", LIFE, retry=AT_ONCE)
    flow.stage("go", **{"transaction": True, "to": "gone"} | options)(stage)
    flow.stage("gone")(lambda run: None)
    return flow


def once(*errors: Exception) -> Callable[..., None]:
    """Raise each of these once, call by call."""
    left = list(errors)

    def act(*_: object) -> None:
        if left:
            raise left.pop(0)

    return act


@pytest.mark.shows("E-36")
def test_rows_and_move_are_one_commit() -> None:
    store, seen = TogetherStore(), list[list[Any]]()

    def go(run: Run[Any]) -> str:
        run.connection.append("a")
        run.connection.append("b")
        run.emit("topic", 1)
        seen.append(list(store.rows))
        return "result"

    flow = flow_of(go)
    with engine_on(store, flow) as engine, engine.working(settings()):
        job = engine.submit(flow)
        assert engine.wait(job.id, timeout=SOON).state == "done"
        assert store.rows == ["a", "b"]
        assert seen == [[]]
        assert kinds(engine, job) == ["submitted", "moved", "moved"]
        assert [
            r.topic
            for r in (
                m.message for m in store.scan_messages(bytes.fromhex(job.id.replace("-", "")))
            )
        ] == ["topic"]
        assert len(store.begun) == 1
        assert engine.inspect.verify() == []


@pytest.mark.shows("E-36")
def test_a_stage_that_never_asks_begins_no_transaction() -> None:
    store, flow = TogetherStore(), flow_of(lambda run: None)
    with engine_on(store, flow) as engine, engine.working(settings()):
        assert engine.wait(engine.submit(flow).id, timeout=SOON).state == "done"
    assert store.begun == []


@pytest.mark.shows("E-36")
def test_a_stage_that_raises_leaves_no_rows_and_is_tried_again() -> None:
    store = TogetherStore()

    def go(run: Run[Any]) -> None:
        run.connection.append(run.attempt)
        if run.attempt < 3:
            raise ConnectionError("not yet")

    flow = flow_of(go)
    with engine_on(store, flow) as engine, engine.working(settings()):
        job = engine.submit(flow)
        assert engine.wait(job.id, timeout=SOON).state == "done"
        assert store.rows == [3]
        assert store.all_are_over()
        assert kinds(engine, job) == ["submitted", "retry", "retry", "moved", "moved"]


@pytest.mark.shows("E-36")
@pytest.mark.parametrize("bad", [object(), "x" * 300_000, Goto("nowhere")])
def test_a_return_that_cannot_be_stored_takes_the_rows_back(bad: object) -> None:
    store = TogetherStore()

    def go(run: Run[Any]) -> Any:
        run.connection.append("row")
        return bad

    flow = flow_of(go)
    with engine_on(store, flow) as engine, engine.working(settings()):
        job = engine.submit(flow)
        eventually(lambda: engine.get(job.id).role in ("failed", "held"))
        eventually(store.all_are_over)
    assert store.rows == []


@pytest.mark.shows("E-36", "E-9")
@pytest.mark.parametrize(
    ("said", "state"), [(Goto("done"), "done"), (Hold("look"), "held"), (None, "done")]
)
def test_whatever_a_stage_returns_commits_its_rows(said: object, state: str) -> None:
    store = TogetherStore()

    def go(run: Run[Any]) -> Any:
        run.connection.append("row")
        return said

    flow = flow_of(go)
    with engine_on(store, flow) as engine, engine.working(settings()):
        job = engine.submit(flow)
        assert engine.wait(job.id, until="held", timeout=SOON).state == state
    assert store.rows == ["row"]


@pytest.mark.shows("E-36")
def test_rows_written_before_a_later_try_are_kept_with_the_line_that_says_so() -> None:
    store = TogetherStore()

    def go(run: Run[Any]) -> Any:
        run.connection.append(len(store.rows))
        return None if store.rows else RetryLater(timedelta(0))

    flow = flow_of(go)
    with engine_on(store, flow) as engine, engine.working(settings()):
        job = engine.submit(flow)
        assert engine.wait(job.id, timeout=SOON).state == "done"
    assert store.rows == [0, 1]


@pytest.mark.shows("E-36", "E-26")
def test_a_lost_lease_takes_the_rows_with_it() -> None:
    store, runs = TogetherStore(), list[int]()

    def go(run: Run[Any]) -> None:
        run.connection.append(run.token)
        runs.append(run.token)

    def steal(change: Change) -> None:
        store.before_commit = lambda _: None
        for worker in store.workers():
            store.unregister(worker.id)
        request = ulak.store.protocol.ClaimRequest("thief", ())
        store.register("thief", lease_us=60_000_000, lanes=(), about="")
        store.claim(request)

    store.before_commit = steal
    flow = flow_of(go)
    with engine_on(store, flow) as engine, engine.working(settings(lease=1.5)):
        job = engine.submit(flow)
        assert engine.wait(job.id, timeout=SOON).state == "done"
        assert len(runs) == 2
        assert store.rows == [runs[1]]
        assert engine.inspect.verify() == []


@pytest.mark.shows("E-36", "E-20")
def test_a_commit_whose_answer_was_lost_is_looked_up_and_not_repeated() -> None:
    store, runs = TogetherStore(), list[int]()
    store.after_commit = once(StoreError("the connection is gone"))
    flow = flow_of(lambda run: (run.connection.append("row"), runs.append(1), None)[2], to="done")
    with engine_on(store, flow) as engine, engine.working(settings()):
        job = engine.submit(flow)
        assert engine.wait(job.id, timeout=SOON).state == "done"
        assert kinds(engine, job) == ["submitted", "moved"]
    assert (store.rows, runs) == (["row"], [1])
    assert store.offered == 1, "nothing was offered in the place of what was written"


@pytest.mark.shows("E-36", "E-20")
def test_a_commit_that_never_arrived_runs_again_and_spends_no_attempt() -> None:
    store, attempts = TogetherStore(), list[int]()
    store.before_commit = once(StoreError("the connection is gone"))
    flow = flow_of(
        lambda run: (run.connection.append("row"), attempts.append(run.attempt), None)[2]
    )
    with engine_on(store, flow) as engine, engine.working(settings()):
        job = engine.submit(flow)
        assert engine.wait(job.id, timeout=SOON).state == "done"
        assert engine.inspect.verify() == []
    assert (store.rows, attempts) == (["row"], [1, 1])


@pytest.mark.shows("E-36")
def test_without_a_connection_the_stage_is_put_off_and_spends_no_attempt() -> None:
    store, attempts = TogetherStore(), list[int]()
    store.before_begin = once(StoreError("too many clients"))

    def go(run: Run[Any]) -> None:
        attempts.append(run.attempt)
        try:
            run.connection.append("row")
        except Exception:  # noqa: BLE001 - a stage that catches everything must not go on either
            attempts.append(99)

    flow = flow_of(go)
    with engine_on(store, flow) as engine, engine.working(settings()):
        job = engine.submit(flow)
        assert engine.wait(job.id, timeout=SOON).state == "done"
        assert "too many clients" in str(engine.inspect.trail(job.id)[1].message)
    assert (store.rows, attempts) == (["row"], [1, 1])


@pytest.mark.shows("E-36", "E-19")
def test_a_change_that_the_store_refuses_holds_the_job_without_its_rows() -> None:
    store = TogetherStore()
    store.before_commit = once(WriteRefused("a NUL somewhere"))
    flow = flow_of(lambda run: run.connection.append("row"))
    with engine_on(store, flow) as engine, engine.working(settings()):
        job = engine.submit(flow)
        eventually(lambda: engine.get(job.id).role == "held")
        assert codes(engine, job)[-1] == "commit-rejected"
    assert store.rows == []


@pytest.mark.shows("E-36")
def test_rows_that_are_refused_at_the_commit_fail_the_stage() -> None:
    store = TogetherStore()
    store.before_commit = once(ValueError("a constraint that is checked at the commit"))
    flow = flow_of(lambda run: run.connection.append(run.attempt))
    with engine_on(store, flow) as engine, engine.working(settings()):
        job = engine.submit(flow)
        assert engine.wait(job.id, timeout=SOON).state == "done"
        assert "checked at the commit" in str(engine.inspect.trail(job.id)[1].message)
    assert store.rows == [2]


@pytest.mark.shows("E-36", "E-38")
def test_a_stage_over_its_time_still_commits_its_rows_after_the_line_that_says_so() -> None:
    store, go_on = TogetherStore(), threading.Event()

    def go(run: Run[Any]) -> None:
        run.connection.append("row")
        assert go_on.wait(120)

    flow = flow_of(go, timeout=timedelta(seconds=0.1))
    with engine_on(store, flow) as engine, engine.working(settings()):
        job = engine.submit(flow)
        eventually(lambda: "overran" in kinds(engine, job))
        go_on.set()
        assert engine.wait(job.id, timeout=SOON).state == "done"
        assert kinds(engine, job) == ["submitted", "overran", "moved", "moved"]
    assert store.rows == ["row"]


@pytest.mark.shows("E-36", "E-38")
def test_the_move_waits_until_the_overrun_is_written() -> None:
    store, slow = TogetherStore(), threading.Event()
    commit = store.commit

    def commit_slowly(changes: Any) -> Any:
        if any(e.kind == "overran" for change in changes for e in change.events):
            slow.set()
            time.sleep(0.3)
        return commit(changes)

    store.commit = commit_slowly  # type: ignore[method-assign]

    def go(run: Run[Any]) -> None:
        run.connection.append("row")
        assert slow.wait(120)

    flow = flow_of(go, timeout=timedelta(seconds=0.1))
    with engine_on(store, flow) as engine, engine.working(settings()):
        job = engine.submit(flow)
        assert engine.wait(job.id, timeout=SOON).state == "done"
        assert kinds(engine, job) == ["submitted", "overran", "moved", "moved"]
    assert store.rows == ["row"]


@pytest.mark.shows("E-36", "E-39")
def test_a_cancelled_stage_that_stops_leaves_no_rows() -> None:
    store, started = TogetherStore(), threading.Event()

    def go(run: Run[Any]) -> None:
        run.connection.append("row")
        started.set()
        eventually(lambda: run.cancelled)
        raise RuntimeError("as I was told")

    flow = flow_of(go)
    with engine_on(store, flow) as engine, engine.working(settings()):
        job = engine.submit(flow)
        assert started.wait(120)
        engine.cancel(job.id, actor="ada")
        assert engine.wait(job.id, timeout=SOON).state == "cancelled"
    assert store.rows == []
    assert store.all_are_over()


@pytest.mark.shows("E-36", "E-40")
def test_a_drain_waits_for_the_commit_and_gives_back_what_stops() -> None:
    store, started = TogetherStore(), threading.Barrier(3)

    def go(run: Run[Any]) -> None:
        run.connection.append(run.payload)
        started.wait(120)
        eventually(lambda: run.cancelled)
        if run.payload == "stops":
            raise RuntimeError("as I was told")

    flow = flow_of(go)
    with engine_on(store, flow) as engine:
        with engine.working(settings(drain=10)):
            stops, ends = engine.submit(flow, "stops"), engine.submit(flow, "ends")
            started.wait(120)
        assert store.rows == ["ends"]
        assert engine.get(ends.id).state == "gone"
        assert (engine.get(stops.id).state, engine.get(stops.id).attempt) == ("go", 0)
        assert engine.get(stops.id).leased_by is None
        assert store.all_are_over()


@pytest.mark.shows("E-36", "E-13")
def test_an_effect_is_recorded_at_once_and_survives_the_rows() -> None:
    store, effects = TogetherStore(), list[str]()

    def go(run: Run[Any]) -> None:
        run.connection.append(run.attempt)
        run.once("charge", lambda key: effects.append(key))
        if run.attempt == 1:
            raise ConnectionError("after the effect")

    flow = flow_of(go)
    with engine_on(store, flow) as engine, engine.working(settings()):
        job = engine.submit(flow)
        assert engine.wait(job.id, timeout=SOON).state == "done"
    assert len(effects) == 1
    assert store.rows == [2]


@pytest.mark.shows("E-36")
def test_a_job_function_is_given_its_connection_first() -> None:
    store = TogetherStore()
    engine = engine_on(store)

    @engine.job(transaction=True)
    def book(connection: Any, seat: int, name: str = "") -> None:
        connection.append((seat, name))

    with engine, engine.working(settings()):
        job = engine.submit(book.bind(42, name="Ada"))
        assert engine.wait(job.id, timeout=SOON).state == "done"
        with pytest.raises(ulak.BadInput, match="book"):
            engine.submit(book)
    assert store.rows == [(42, "Ada")]


@pytest.mark.shows("E-36", "E-42")
def test_an_undo_has_no_transaction_of_its_own() -> None:
    store, said = TogetherStore(), list[str]()
    flow: Flow[Any] = Flow("together", LIFE, retry=0)

    @flow.stage("go", transaction=True, to="gone")
    def go(run: Run[Any]) -> None:
        run.connection.append("row")

    @go.undo
    def take_back(run: Run[Any]) -> None:
        try:
            _ = run.connection
        except ulak.BadInput as error:
            said.append(str(error))

    @flow.stage("gone")
    def fail(run: Run[Any]) -> None:
        raise RuntimeError("half way")

    with engine_on(store, flow) as engine, engine.working(settings()):
        job = engine.submit(flow)
        assert engine.wait(job.id, timeout=SOON).state == "failed"
    assert len(said) == 1
    assert store.rows == ["row"]


def test_a_double_answers_a_stale_token_as_a_store_does() -> None:
    store = TogetherStore()
    rows = store.begin_stage()
    rows.connection.append("row")
    flow = flow_of(lambda run: None)
    with engine_on(store, flow) as engine:
        job = store.find_job(bytes.fromhex(engine.submit(flow).id.replace("-", "")))
        assert job is not None
        assert isinstance(rows.commit(Change(job, b"x" * 16, token=99)), LeaseLost)
    assert store.rows == []
