"""Followers: what they write with their connection is written once, whatever happens."""

import asyncio
import logging
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from datetime import timedelta
from typing import Any

import pytest

import ulak
from tests.scenario.doubles import SOON, Double, engine_on, eventually, settings, store_of
from ulak.engine.view import JobEvent
from ulak.errors import BadInput, FlowError, StoreError
from ulak.testing import Harness, ManualClock, faults

LATER = timedelta(hours=1)
NAME = "totals"
MAKE = "CREATE TABLE seen (job TEXT, seq INTEGER, kind TEXT)"
SEE = "INSERT INTO seen VALUES (?, ?, ?)"
SEEN = "SELECT job, seq FROM seen"


def order() -> ulak.Flow[Any]:
    """A flow of two stages, with a busy state; it says what it was given."""
    flow: ulak.Flow[Any] = ulak.Flow(
        "order", ulak.Lifecycle("new", {"new": ["packing"], "packing": ["sent"], "sent": ["done"]})
    )
    flow.stage("new", during="packing", to="sent")(lambda run: None)
    flow.stage("sent")(lambda run: run.payload)
    return flow


def execute(connection: Any, statement: str, *values: object) -> list[Any]:
    """Run a statement with the connection of either driver."""
    if not type(connection).__module__.startswith("sqlite3"):
        statement = statement.replace("?", "%s")
    cursor = connection.execute(statement, values)
    return list(map(tuple, cursor.fetchall())) if cursor.description else []


def see(events: Sequence[JobEvent], connection: Any) -> None:
    """Write a row for each event."""
    for event in events:
        execute(connection, SEE, event.job.id, event.seq, event.kind)


def make_table(engine: ulak.Engine) -> None:
    with engine.transaction() as connection:
        execute(connection, MAKE)


def read_seen(engine: ulak.Engine) -> list[tuple[str, int]]:
    with engine.reading() as connection:
        return execute(connection, SEEN)


def lines(engine: ulak.Engine, flow: str = "order") -> list[tuple[str, int]]:
    """The events of all jobs of a flow, by job and number."""
    jobs = [job.id for job in engine.jobs(limit=1000) if job.flow == flow]
    return [(job, event.seq) for job in jobs for event in engine.inspect.trail(job)]


def assert_seen_once(engine: ulak.Engine) -> None:
    """Every event has one row, and those of a job are in their order."""
    found = read_seen(engine)
    assert sorted(found) == sorted(lines(engine))
    for job in {job for job, _ in found}:
        numbers = [seq for other, seq in found if other == job]
        assert numbers == sorted(numbers)


# --- what is promised ------------------------------------------------------------------


@pytest.mark.shows("E-71")
def test_every_event_of_the_flow_comes_in_order_with_its_job(jobs_url: str) -> None:
    flow, other, batches = order(), ulak.Flow.steps("other", ("do", lambda run: 1)), list[Any]()
    with Harness(flow, other, url=jobs_url) as harness:
        engine = harness.engine
        engine.follow(name=NAME, flow="order")(lambda events, _: batches.append(list(events)))
        jobs = [harness.submit(flow, n, tenant="acme") for n in range(3)]
        harness.submit(other)
        harness.run_until_idle()
        engine.outbox.forget(NAME, actor="ada")
        harness.run(flow, 4)
        events = [event for batch in batches for event in batch]
        for job in jobs:
            own = [event for event in events if event.job.id == job.id]
            trail = engine.inspect.trail(job.id)
            assert [(e.seq, e.kind, e.to_state, e.at) for e in own] == [
                (e.seq, e.kind, e.to_state, e.at) for e in trail
            ]
            assert {(e.job.tenant, e.job.flow, e.job.created_at) for e in own} == {
                ("acme", "order", job.created_at)
            }
        assert len(events) == len(jobs) * 4
        assert harness.verify() == []


@pytest.mark.shows("E-71")
def test_many_events_of_one_job_come_in_one_batch(jobs_url: str) -> None:
    flow, batches = order(), list[list[int]]()
    with Harness(flow, url=jobs_url) as harness:
        engine = harness.engine.open()
        engine.follow(name=NAME, flow="order")(
            lambda events, _: batches.append([event.seq for event in events])
        )
        handler = engine.kernel.handlers.pop(NAME)  # no program with this follower runs meanwhile
        harness.run(flow, 1)
        (count,) = engine.outbox.counts()
        assert (count.handler, count.state, count.deliveries) == (NAME, "pending", 4)
        assert harness.verify() == []
        engine.kernel.handlers[NAME] = handler
        harness.run_until_idle()
        assert batches == [[1, 2, 3, 4]]
        assert engine.outbox.counts() == []
        assert engine.outbox.deliveries(handler=NAME) == [], "what it got leaves nothing behind"


@pytest.mark.shows("E-71")
def test_rows_are_written_once_and_what_is_outside_at_least_once(shared_url: str) -> None:
    flow, outside, falls = order(), list[tuple[str, int]](), [True] * 3
    with Harness(flow, url=shared_url) as harness:
        engine = harness.engine
        make_table(engine)

        @engine.follow(name=NAME, flow="order")
        def count(events: Sequence[JobEvent], connection: Any) -> None:
            see(events, connection)
            outside.extend((event.job.id, event.seq) for event in events)
            if falls:
                falls.pop()
                raise OSError("it fell")

        for n in range(5):
            harness.submit(flow, n)
        harness.run_until_idle()
        harness.advance(minutes=10)
        assert_seen_once(engine)
        assert set(outside) == set(lines(engine))
        assert len(outside) > len(set(outside))
        assert engine.outbox.counts() == []
        assert harness.verify() == []


@pytest.mark.shows("E-71")
def test_a_job_that_is_submitted_inside_is_part_of_it(shared_url: str) -> None:
    flow, mail, falls = (
        order(),
        ulak.Flow.steps("mail", ("send", lambda run: run.payload)),
        [True, True],
    )
    with Harness(flow, mail, url=shared_url) as harness:
        engine = harness.engine

        @engine.follow(name=NAME, flow="order")
        def post(events: Sequence[JobEvent], connection: Any) -> None:
            for event in events:
                if event.job.is_final and event.to_state == "done":
                    told = {"of": event.job.id, "result": engine.result(event.job.id)}
                    engine.submit(mail, told, connection=connection)
            if falls:
                falls.pop()
                raise OSError("it fell")

        jobs = [harness.submit(flow, n) for n in range(3)]
        harness.run_until_idle()
        harness.advance(minutes=10)
        mails = [job for job in engine.jobs() if job.flow == "mail"]
        assert {engine.result(job.id)["of"] for job in mails} == {job.id for job in jobs}
        assert len(mails) == 3
        assert {engine.result(job.id)["result"] for job in mails} == {0, 1, 2}


@pytest.mark.shows("E-71")
def test_what_callers_write_in_their_own_transactions_is_followed(shared_url: str) -> None:
    flow = order()
    with Harness(flow, url=shared_url) as harness:
        engine = harness.engine
        make_table(engine)
        engine.follow(name=NAME, flow="order")(see)
        with engine.transaction() as connection:
            job = engine.submit(flow, 1, connection=connection)
            engine.note(job.id, "app.seen", "before", actor="ada", connection=connection)
        with engine.transaction() as connection:
            engine.note(job.id, "app.seen", "again", actor="ada", connection=connection)
            engine.cancel(job.id, actor="ada", connection=connection)
        harness.run_until_idle()
        assert_seen_once(engine)
        assert len(lines(engine)) == 4
        assert harness.verify() == []


# --- failures ---------------------------------------------------------------------------


@pytest.mark.shows("E-71")
def test_a_bad_event_stops_its_job_alone_and_is_seen(
    jobs_url: str, caplog: pytest.LogCaptureFixture
) -> None:
    flow, got, is_mended = order(), dict[str, list[int]](), threading.Event()
    with Harness(flow, url=jobs_url) as harness:
        engine = harness.engine
        jobs = [harness.submit(flow, n, after=LATER) for n in range(4)]
        bad = jobs[1].id

        @engine.follow(name=NAME, flow="order", retry=2)
        def count(events: Sequence[JobEvent], _: Any) -> None:
            if any(event.job.id == bad for event in events) and not is_mended.is_set():
                raise ValueError("what is this?")
            for event in events:
                got.setdefault(event.job.id, []).append(event.seq)

        with caplog.at_level(logging.WARNING, "ulak.relay"):
            harness.advance(hours=2)
        assert got == {job.id: [2, 3, 4] for job in jobs if job.id != bad}
        told = [record.__dict__ for record in caplog.records if record.name == "ulak.relay"]
        assert {(t["handler"], t["flow"], t["error"]) for t in told} == {
            (NAME, "order", "ValueError: what is this?")
        }
        (last,) = [t for t in told if t["levelname"] == "ERROR"]
        assert (last["job_id"], last["attempt"]) == (bad, 3)
        (dead,) = engine.outbox.dead()
        assert (dead.id, dead.topic, dead.job_id) == (f"{bad}/2/-1/{NAME}", "order", bad)
        assert (dead.state, dead.tries, dead.error) == ("dead", 3, "ValueError: what is this?")
        counts = {(c.handler, c.state): c.deliveries for c in engine.outbox.counts()}
        assert counts == {(NAME, "dead"): 1, (NAME, "pending"): 2}
        is_mended.set()
        harness.run_until_idle()
        assert bad not in got, "it waits for a person"
        engine.outbox.redrive(dead.id, actor="ada", note="mended")
        harness.run_until_idle()
        assert got[bad] == [2, 3, 4]
        assert engine.outbox.counts() == []
        assert harness.verify() == []


@pytest.mark.shows("E-71")
def test_a_discarded_event_is_left_out(jobs_url: str) -> None:
    flow, got = order(), list[int]()
    with Harness(flow, url=jobs_url) as harness:
        engine = harness.engine

        @engine.follow(name=NAME, flow="order")
        def count(events: Sequence[JobEvent], _: Any) -> None:
            if events[0].seq == 1:
                raise ulak.Refused("it is too old")
            got.extend(event.seq for event in events)

        harness.run(flow, 1)
        (refused,) = engine.outbox.dead()
        assert (refused.state, refused.error, got) == ("refused", "it is too old", [])
        engine.outbox.discard(refused.id, actor="ada")
        harness.run_until_idle()
        assert got == [2, 3, 4]
        assert harness.verify() == []


@pytest.mark.shows("E-71")
def test_later_holds_everything_back_and_spends_no_try(jobs_url: str) -> None:
    flow, got, calls = order(), list[int](), list[int]()
    with Harness(flow, url=jobs_url) as harness:
        engine = harness.engine

        @engine.follow(name=NAME, flow="order", retry=0)
        def count(events: Sequence[JobEvent], _: Any) -> Any:
            calls.append(len(events))
            if len(calls) == 1:
                return ulak.RetryLater(LATER, why="the ledger is closed")
            got.extend(event.seq for event in events)
            return None

        job = harness.submit(flow, 1)
        harness.run_until_idle()
        assert got == []
        (first, *_) = engine.outbox.deliveries(handler=NAME)
        assert (first.state, first.tries, first.error) == ("pending", 0, "the ledger is closed")
        harness.advance(hours=2)
        assert got == [event.seq for event in engine.inspect.trail(job.id)]


@pytest.mark.shows("E-71")
@pytest.mark.parametrize("wrong", ["swallows", "commits", "ends", "writes elsewhere"])
def test_a_function_that_misuses_its_transaction_fails_and_leaves_nothing(
    shared_url: str, wrong: str
) -> None:
    flow, falls = order(), [True]
    with Harness(flow, url=shared_url) as harness:
        engine = harness.engine
        make_table(engine)

        @engine.follow(name=NAME, flow="order")
        def count(events: Sequence[JobEvent], connection: Any) -> None:
            see(events, connection)
            if not falls:
                return
            falls.pop()
            if wrong == "swallows":
                swallow(connection)
            elif wrong == "commits":
                connection.commit()
                raise OSError("it may, and nothing came of it")
            elif wrong == "ends":
                execute(connection, "ROLLBACK")
            else:
                engine.emit("told", 1)
                raise OSError("another transaction is another transaction")

        harness.run(flow, 1)
        (first, *_) = engine.outbox.deliveries(handler=NAME)
        assert (first.state, first.tries, bool(first.error)) == ("pending", 1, True)
        harness.advance(minutes=10)
        assert_seen_once(engine)
        assert harness.verify() == []


def swallow(connection: Any) -> None:
    """Let a statement fail, and go on."""
    try:
        execute(connection, "INSERT INTO nowhere VALUES (1)")
    except Exception as error:
        if type(connection).__module__.startswith("sqlite3"):
            raise OSError("SQLite goes on after it") from error


@pytest.mark.shows("E-71")
def test_rows_that_are_refused_only_by_the_commit_are_a_failure(shared_url: str) -> None:
    flow, falls = order(), [True]
    with Harness(flow, url=shared_url) as harness:
        engine = harness.engine
        make_table(engine)
        with engine.transaction() as connection:
            execute(connection, "CREATE TABLE known (id INTEGER PRIMARY KEY)")
            execute(
                connection,
                "CREATE TABLE strict (id INTEGER REFERENCES known (id) "
                "DEFERRABLE INITIALLY DEFERRED)",
            )

        @engine.follow(name=NAME, flow="order")
        def count(events: Sequence[JobEvent], connection: Any) -> None:
            see(events, connection)
            if falls:
                falls.pop()
                if type(connection).__module__.startswith("sqlite3"):
                    raise OSError("foreign keys are off")
                execute(connection, "INSERT INTO strict VALUES (7)")

        harness.run(flow, 1)
        harness.advance(minutes=10)
        assert_seen_once(engine)
        assert not falls


@pytest.mark.shows("E-71")
def test_a_store_that_does_not_answer_spends_no_try(jobs_url: str) -> None:
    flow, got, outages = order(), list[int](), [StoreError("away")] * 3
    double = Double(store_of(jobs_url))

    def fall(*_: object) -> None:
        if outages:
            raise outages.pop()

    double.before["has_due"] = fall
    with engine_on(double, flow) as engine:
        engine.follow(name=NAME, flow="order", retry=0)(
            lambda events, _: got.extend(event.seq for event in events)
        )
        with engine.working(settings()):
            engine.wait(engine.submit(flow, 1).id, timeout=SOON)
            eventually(lambda: got == [1, 2, 3, 4])
        assert engine.outbox.dead() == []


def fall_in_the_middle(url: str) -> None:
    """The life of a child that follows until it is killed."""
    with harness_on(url) as harness:
        harness.run_until_idle()


@contextmanager
def harness_on(url: str, *, later: timedelta = timedelta(0)) -> Iterator[Harness]:
    clock = ManualClock()
    clock.advance(later)
    with Harness(order(), url=url, clock=clock) as harness:
        harness.engine.follow(name=NAME, flow="order")(see)
        yield harness


@pytest.mark.shows("E-71")
@pytest.mark.parametrize("point", ["before", "inside", "after"])
def test_a_process_that_is_killed_leaves_rows_and_cursor_as_one(
    shared_url: str, point: str
) -> None:
    with harness_on(shared_url) as harness:
        make_table(harness.engine)
        flow = harness.engine.inspect.flows[0]
        for n in range(3):
            harness.submit(flow, n)
    crashed = faults.run(fall_in_the_middle, shared_url, kill_at=f"transaction.{point}")
    assert crashed.killed, crashed.errors
    with harness_on(shared_url, later=LATER) as harness:
        written = read_seen(harness.engine)
        assert bool(written) == (point == "after")
        # The server may still be about to notice that a client is gone.
        eventually(lambda: harness.run_until_idle() or harness.engine.outbox.counts() == [])
        assert_seen_once(harness.engine)
        assert len(lines(harness.engine)) >= 12
        assert harness.verify() == []


# --- who shares the work ------------------------------------------------------------------


@pytest.mark.shows("E-71")
def test_two_programs_with_one_name_share_the_work(shared_url: str) -> None:
    flow = order()
    first, second = engine_on(store_of(shared_url), flow), engine_on(store_of(shared_url), flow)
    both: list[set[str]] = [set(), set()]
    has_begun, may_go_on = threading.Event(), threading.Event()
    with first, second:
        make_table(first)
        is_alone = first.store.features.one_writer  # who follows there holds up everybody

        def watch(n: int) -> Callable[[Sequence[JobEvent], Any], None]:
            def count(events: Sequence[JobEvent], connection: Any) -> None:
                see(events, connection)
                both[n].update(event.job.id for event in events)
                if n == 0 and not is_alone:
                    has_begun.set()
                    may_go_on.wait(120)

            return count

        first.follow(name=NAME, flow="order")(watch(0))
        second.follow(name=NAME, flow="order")(watch(1))
        assert first.outbox.handlers() == second.outbox.handlers() == {NAME: "flow:order"}
        with first.working(settings()):
            held = first.submit(flow, 0)
            if not is_alone:
                assert has_begun.wait(120)
            with second.working(settings()):
                jobs = first.submit_many(flow, range(20))
                for job in (held, *jobs):
                    first.wait(job.id, timeout=SOON)
                if not is_alone:
                    # The first one stands still in its transaction, and the others go on.
                    eventually(lambda: {job.id for job in jobs} <= both[1])
                may_go_on.set()
                eventually(lambda: first.outbox.counts() == [])
        assert_seen_once(first)
        assert first.inspect.verify() == []


@pytest.mark.shows("E-71")
def test_events_come_by_a_ring(jobs_url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("ulak.engine.deliverer.PAUSE_S", 3600.0)
    flow, got, has_looked_in_vain = order(), set[str](), threading.Event()
    double = Double(store_of(jobs_url))
    double.after["has_due"] = lambda is_due: is_due or (got and has_looked_in_vain.set())
    with engine_on(double, flow) as engine:
        engine.follow(name=NAME, flow="order")(
            lambda events, _: got.update(event.job.id for event in events)
        )
        first = engine.submit(flow, 1)
        with engine.working(settings()):
            assert has_looked_in_vain.wait(120)
            # From here on the follower does not look by itself.
            second = engine.submit(flow, 2)
            eventually(lambda: got == {first.id, second.id})


@pytest.mark.shows("E-71")
def test_a_follower_may_be_async_and_be_declared_while_a_worker_runs(jobs_url: str) -> None:
    flow, got = order(), list[tuple[str, int]]()
    with engine_on(store_of(jobs_url), flow) as engine, engine.working(settings()):
        before = engine.submit(flow, 1)
        engine.wait(before.id, timeout=SOON)

        @engine.follow(name=NAME, flow="order")
        async def count(events: Sequence[JobEvent], connection: Any) -> None:
            await asyncio.sleep(0)
            assert (connection is None) == (not engine.store.features.open_transactions)
            got.extend((event.job.id, event.seq) for event in events)

        job = engine.submit(flow, 2)
        eventually(lambda: len(got) == 4)
        assert got == [(job.id, n) for n in range(1, 5)]


@pytest.mark.shows("E-71")
def test_a_declaration_that_cannot_work_is_refused() -> None:
    engine = ulak.connect("memory://")

    def count(events: Sequence[JobEvent], connection: Any) -> None:
        """Never called."""

    engine.follow(name=NAME, flow="order")(count)
    for again in (engine.follow(name=NAME, flow="other"), engine.on("paid", name=NAME)):
        with pytest.raises(FlowError, match="two handlers are named 'totals'"):
            again(count)
    for name, flow in (("", "order"), ("nul\x00", "order"), ("ok", ""), ("ok", "a b"), ("ok", 7)):
        with pytest.raises(BadInput, match=r"engine\.follow: (the name|flow=)"):
            engine.follow(name=name, flow=flow)(count)  # type: ignore[arg-type]
    with pytest.raises(BadInput, match=r"engine\.follow: 3 cannot be called"):
        engine.follow(name="ok", flow="order")(3)  # type: ignore[type-var]
    with pytest.raises(BadInput, match=r"engine\.follow: retry= cannot be True"):
        engine.follow(name="ok", flow="order", retry=True)(count)
    with pytest.raises(TypeError, match="name"):
        engine.follow(flow="order")  # type: ignore[call-arg]
    assert list(engine.kernel.handlers) == [NAME]
