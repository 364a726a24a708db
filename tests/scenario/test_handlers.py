"""Handlers of messages: each has its own deliveries, with its own order, tries and end."""

import asyncio
import sqlite3
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from datetime import timedelta
from typing import Any

import psycopg
import pytest

import ulak
from tests.scenario.doubles import Double, engine_on, eventually, settings, store_of
from ulak.engine.outbox import Delivery
from ulak.errors import BadInput, FlowError, NotFound, NotSupported
from ulak.ids import from_text
from ulak.testing import Harness, faults

HOUR = timedelta(hours=1)


def sender() -> ulak.Flow[Any]:
    """A flow that sends its payload, to the key of its payload."""

    def send(run: ulak.Run[Any]) -> None:
        for n in range(run.payload.get("times", 1)):
            run.emit("paid", {"n": n, **run.payload}, key=run.payload.get("key"))

    return ulak.Flow.steps("sends", send)


@contextmanager
def two_programs(url: str, *flows: ulak.Flow[Any]) -> Iterator[tuple[ulak.Engine, ulak.Engine]]:
    """Two engines on one store; those of a shared one have nothing else in common."""
    store = store_of(url)
    other = store_of(url) if store.features.shared else store
    with engine_on(store, *flows) as first, engine_on(other) as second:
        yield first, second


def without_publisher(harness: Harness) -> None:
    """Make a harness whose messages nobody wants."""
    harness.engine.kernel.handlers.clear()
    harness.engine.outbox.forget("", actor="ada")


def of(engine: ulak.Engine, handler: str) -> list[Delivery]:
    return engine.outbox.deliveries(handler=handler)


@pytest.mark.shows("E-70")
def test_handlers_of_another_program_each_get_what_is_committed_here(jobs_url: str) -> None:
    flow, got = sender(), dict[str, list[Any]](mail=[], books=[], every=[])
    with two_programs(jobs_url, flow) as (program, services):
        services.on("paid", name="mail")(lambda message: got["mail"].append(message.data["n"]))

        @services.on("paid", name="books")
        async def book(message: ulak.Message) -> dict[str, Any]:
            got["books"].append(message.data["n"])
            return {"booked": message.data["n"]}

        services.on("*", name="every")(lambda message: got["every"].append(message.topic))
        services.on("refunded", name="other")(lambda message: pytest.fail("another topic"))
        assert program.outbox.handlers() == {
            "books": "paid", "every": "*", "mail": "paid", "other": "refunded",
        }  # fmt: skip
        with program.working(settings()), services.working(settings()):
            job = program.submit(flow, {"times": 3})
            eventually(lambda: [len(found) for found in got.values()] == [3, 3, 3])
            eventually(lambda: program.outbox.counts() == [])
        assert got == {"mail": [0, 1, 2], "books": [0, 1, 2], "every": ["paid"] * 3}
        assert [delivery.answer for delivery in of(program, "books")] == [
            {"booked": 0}, {"booked": 1}, {"booked": 2},
        ]  # fmt: skip
        assert {delivery.state for delivery in program.outbox.deliveries()} == {"sent"}
        assert of(program, "mail")[2].id == f"{job.id}/2/2/mail"
        assert program.inspect.verify() == []


@pytest.mark.shows("E-70")
def test_opening_an_engine_stores_its_handlers(jobs_url: str) -> None:
    engine = engine_on(store_of(jobs_url))
    engine.on("paid", name="mail")(lambda message: None)
    with engine:
        assert [row.name for row in engine.store.handlers()] == ["mail"]
        engine.emit("paid", 1)
        assert [delivery.handler for delivery in engine.outbox.deliveries()] == ["mail"]


@pytest.mark.shows("E-70")
def test_a_slow_handler_does_not_hold_up_another(jobs_url: str) -> None:
    flow, go_on, quick, slow = sender(), threading.Event(), list[Any](), list[Any]()
    with engine_on(store_of(jobs_url), flow) as engine:

        @engine.on("paid", name="slow")
        def dawdle(message: ulak.Message) -> None:
            go_on.wait(120)
            slow.append(message.data)

        engine.on("paid", name="quick")(lambda message: quick.append(message.data))
        with engine.working(settings()):
            engine.submit_many(flow, [{"job": n} for n in range(40)])
            eventually(lambda: len(quick) == 40)
            assert slow == []
            go_on.set()
            eventually(lambda: len(slow) == 40)
        assert engine.inspect.verify() == []


@pytest.mark.shows("E-70", "E-84")
def test_an_async_handler_that_hangs_is_cancelled_and_called_again(
    jobs_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("ulak.engine.relay.LONGEST_PUBLISH_S", 0.2)
    calls: list[int] = []
    with engine_on(store_of(jobs_url)) as engine:

        @engine.on("paid", name="mail", retry=ulak.Backoff(delays=[timedelta(0)] * 99))
        async def hang(message: ulak.Message) -> str:
            calls.append(message.tries)
            if message.tries == 0:
                await asyncio.Event().wait()
            return "at last"

        engine.emit("paid", {})
        with engine.working(settings()):
            eventually(lambda: [d.state for d in of(engine, "mail")] == ["sent"])
        (delivery,) = of(engine, "mail")
        assert (delivery.answer, delivery.tries >= 1, calls[:2]) == ("at last", True, [0, 1])


@pytest.mark.shows("E-70")
def test_a_message_comes_by_a_ring_and_not_by_a_look_now_and_then(
    jobs_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("ulak.engine.deliverer.PAUSE_S", 3600.0)
    got, has_looked_in_vain, store = list[Any](), threading.Event(), store_of(jobs_url)
    double = Double(store_of(jobs_url) if store.features.shared else store)
    double.after["take_messages"] = lambda rows: rows or (got and has_looked_in_vain.set())
    with engine_on(store) as program, engine_on(double) as service:
        service.on("paid", name="mail")(lambda message: got.append(message.data))
        program.emit("paid", "before")
        with service.working(settings()):
            # From here on the relay does not look by itself.
            assert has_looked_in_vain.wait(120)
            # A ring may be lost, and then the next one tells.
            eventually(lambda: len(got) > 1 or (program.emit("paid", "after") and None))
        assert got[:2] == ["before", "after"]


@pytest.mark.shows("E-70")
def test_a_handler_that_is_declared_while_a_worker_runs_is_served(jobs_url: str) -> None:
    got: list[Any] = []
    with engine_on(store_of(jobs_url)) as engine, engine.working(settings()):
        engine.emit("paid", "nobody wants it")
        engine.on("paid", name="late")(lambda message: got.append(message.data))
        engine.emit("paid", "from then on")
        eventually(lambda: got)
        eventually(lambda: {d.state for d in of(engine, "late")} == {"sent"})
        assert got == ["from then on"]


@pytest.mark.shows("E-70")
def test_later_spends_no_try_and_a_failure_is_a_dead_letter_in_the_end(jobs_url: str) -> None:
    flow, tries = sender(), dict[str, int](patient=0, broken=0)
    with Harness(flow, url=jobs_url) as harness:
        engine = harness.engine

        @engine.on("paid", name="patient", retry=0)
        def wait(message: ulak.Message) -> str:
            tries["patient"] += 1
            if tries["patient"] < 4:
                raise ulak.RetryLater(HOUR, why="the bank is closed")
            return "paid"

        @engine.on("paid", name="broken", retry=2)
        async def fail(message: ulak.Message) -> None:
            tries["broken"] += 1
            raise ValueError("no")

        harness.run(flow, {})
        (waiting,) = of(engine, "patient")
        assert (waiting.state, waiting.tries) == ("pending", 0)
        assert waiting.error == "the bank is closed"
        harness.advance(hours=5)
        (sent,), (dead,) = of(engine, "patient"), of(engine, "broken")
        assert (sent.state, sent.tries, sent.answer) == ("sent", 0, "paid")
        assert (dead.state, dead.tries, dead.error) == ("dead", 3, "ValueError: no")
        assert tries == {"patient": 4, "broken": 3}
        assert engine.outbox.dead() == [dead]
        assert harness.verify() == []


@pytest.mark.shows("E-70")
@pytest.mark.parametrize("act", ["redrive", "discard"])
def test_a_refused_delivery_stops_its_key_until_somebody_acts(jobs_url: str, act: str) -> None:
    flow, got, is_open = sender(), list[Any](), threading.Event()
    with Harness(flow, url=jobs_url) as harness:
        engine = harness.engine

        @engine.on("paid", name="ledger", block=True)
        def book(message: ulak.Message) -> None:
            if message.data["n"] == 0 and message.key == "order:1" and not is_open.is_set():
                raise ulak.Refused("order 1 is unknown")
            got.append((message.key, message.data["n"]))

        @engine.on("paid", name="mail")
        def post(message: ulak.Message) -> None:
            if message.data["n"] == 0 and message.key == "order:1":
                raise ulak.Refused("it has no address")

        harness.run(flow, {"key": "order:1", "times": 2})
        harness.run(flow, {"key": "order:2", "times": 2})
        harness.run(flow, {"key": "order:1", "times": 1})
        assert got == [("order:2", 0), ("order:2", 1)], "the other key goes on"
        assert [d.state for d in of(engine, "mail")] == ["refused", *["sent"] * 3, "refused"]
        (stopped,) = [d for d in engine.outbox.dead() if d.handler == "ledger"]
        assert (stopped.state, stopped.error) == ("refused", "order 1 is unknown")
        is_open.set()
        if act == "redrive":
            assert engine.outbox.redrive(stopped.id, actor="ada", note="it is known now") == stopped
        else:
            assert engine.outbox.discard(stopped.id, actor="ada", note="booked by hand") == stopped
        harness.run_until_idle()
        went = [] if act == "discard" else [("order:1", 0)]
        assert got[2:] == [*went, ("order:1", 1), ("order:1", 0)]
        with pytest.raises(NotFound, match="no dead message is"):
            engine.outbox.redrive(stopped.id, actor="ada")
        with pytest.raises(NotFound, match="no message that is not delivered is"):
            engine.outbox.discard(stopped.id, actor="ada")
        (line,) = engine.inspect.audit(subject="message/" + stopped.id.removesuffix("/ledger"))
        assert (line.actor, line.act) == ("ada", act)
        assert harness.verify() == []


@pytest.mark.shows("E-70")
def test_a_delivery_is_given_up_after_its_time(jobs_url: str) -> None:
    flow, tries = sender(), list[Any]()
    with Harness(flow, url=jobs_url) as harness:

        @harness.engine.on("paid", name="mail", retry=1000, give_up=HOUR)
        def fail(message: ulak.Message) -> None:
            tries.append(harness.now - message.at)
            raise OSError("gone")

        harness.run(flow, {})
        harness.advance(hours=3)
        (dead,) = harness.engine.outbox.dead()
        assert dead.error == "its time is over; before that: OSError: gone"
        assert timedelta(minutes=30) < max(tries) < HOUR
        before = len(tries)
        harness.engine.outbox.redrive(dead.id, actor="ada", give_up=timedelta(minutes=5))
        harness.advance(hours=3)
        (dead,) = harness.engine.outbox.dead()
        assert timedelta(hours=3) <= max(tries) <= timedelta(hours=3, minutes=5)
        assert len(tries) > before
        harness.engine.outbox.redrive(dead.id, actor="ada")
        harness.advance(hours=3)
        assert max(tries) > timedelta(hours=6, minutes=30), "an hour again, as it is declared"


@pytest.mark.shows("E-70")
def test_a_delivery_that_was_tried_and_whose_time_has_passed_is_not_tried(jobs_url: str) -> None:
    flow, tries = sender(), list[Any]()
    with Harness(flow, url=jobs_url) as harness:
        handlers = harness.engine.kernel.handlers

        @harness.engine.on("paid", name="mail", retry=1000, give_up=HOUR)
        def fail(message: ulak.Message) -> None:
            tries.append(message.id)
            raise OSError("gone")

        harness.run(flow, {})
        handler = handlers.pop("mail")  # no program with this handler runs for a day
        harness.advance(days=1)
        handlers["mail"] = handler
        late = harness.run(flow, {})
        (dead,) = harness.engine.outbox.dead()
        assert dead.error == (
            "its time was over when it could be tried again; before that: OSError: gone"
        )
        assert tries == [dead.id.removesuffix("/mail"), f"{late.id}/2/0"]


@pytest.mark.shows("E-70")
def test_messages_that_nobody_wants_are_counted_and_kept_for_a_publisher(jobs_url: str) -> None:
    flow, got = sender(), list[Any]()
    with Harness(flow, url=jobs_url) as harness:
        engine = harness.engine
        without_publisher(harness)
        harness.run(flow, {"times": 2})
        (count,) = engine.outbox.counts()
        assert (count.handler, count.state, count.deliveries) == ("", "unhandled", 2)
        engine.on("paid", name="late")(lambda message: pytest.fail("it came before"))
        harness.run_until_idle()
        harness.advance(days=6)
        assert engine.outbox.counts() == [count]
        engine.outbox.publish(lambda message: got.append(message.data["n"]))
        harness.run_until_idle()
        assert got == [0, 1]
        assert engine.outbox.counts() == []


@pytest.mark.shows("E-70")
def test_messages_that_nobody_wants_are_dropped_after_seven_days(jobs_url: str) -> None:
    flow = sender()
    with Harness(flow, url=jobs_url) as harness:
        engine = harness.engine
        without_publisher(harness)
        harness.run(flow, {"times": 2})
        engine.emit("paid", "alone")
        harness.advance(days=7, seconds=1)
        for _ in range(2):
            engine.store.expire_messages(100)
        assert engine.outbox.counts() == []
        assert {(d.state, d.data) for d in engine.outbox.deliveries()} == {("discarded", None)}
        assert harness.verify() == []
        assert engine.store.prune(before=harness.clock.now(), limit=9) == 1
        assert engine.outbox.deliveries() == []


def deliver_and_die(url: str) -> None:
    """The life of a child that delivers until it is killed."""
    with Harness(sender(), url=url) as harness:
        harness.engine.kernel.handlers.clear()  # no publisher

        @harness.engine.on("paid", name="mail")
        def say(message: ulak.Message) -> None:
            print(message.data["n"], flush=True)  # noqa: T201 - how a child tells its parent

        harness.run_until_idle()


@pytest.mark.shows("E-70")
@pytest.mark.parametrize("point", ["settle.before", "settle.inside", "settle.after"])
def test_what_a_killed_relay_had_is_free_after_its_lease(shared_url: str, point: str) -> None:
    flow, got = sender(), list[int]()
    with Harness(flow, url=shared_url) as harness:
        engine = harness.engine
        without_publisher(harness)
        engine.on("paid", name="mail")(lambda message: got.append(message.data["n"]))
        harness.submit(flow, {"times": 3})
        crashed = faults.run(deliver_and_die, shared_url, kill_at=point)
        assert crashed.killed, crashed.errors
        assert crashed.lines == ("0",)
        left = [1, 2] if point == "settle.after" else [0, 1, 2]
        harness.run_until_idle()
        assert got == ([] if 0 in left else left), "it may still be on its way"
        harness.advance(seconds=31)
        assert got == left
        assert {delivery.state for delivery in of(engine, "mail")} == {"sent"}
        assert harness.verify() == []


@pytest.mark.shows("E-70")
def test_a_forgotten_handler_gets_nothing_and_is_stored_again_when_a_program_opens(
    jobs_url: str,
) -> None:
    with two_programs(jobs_url) as (program, other):
        program.on("paid", name="mail")(lambda message: None)
        other.emit("paid", 1)
        assert other.outbox.forget("mail", actor="ada", note="it moved") == 1
        assert [d.state for d in of(other, "mail")] == ["discarded"]
        assert program.outbox.handlers() == {}
        other.emit("paid", 2)
        assert len(of(other, "mail")) == 1
        with pytest.raises(NotFound, match="no handler is named 'mail'; stored are none"):
            other.outbox.forget("mail", actor="ada")
        with pytest.raises(BadInput, match="say who acts"):
            other.outbox.forget("mail", actor="")
        program.kernel.keep_handlers()  # as the next start does
        assert program.outbox.handlers() == {"mail": "paid"}


@pytest.mark.shows("E-70")
def test_names_are_given_once_and_never_derived() -> None:
    engine = ulak.connect("memory://")
    engine.on("paid", name="mail")(lambda message: None)
    with pytest.raises(FlowError, match="two handlers are named 'mail'"):
        engine.on("refunded", name="mail")(lambda message: None)
    with pytest.raises(TypeError, match="name"):
        engine.on("paid")  # type: ignore[call-arg]
    for topic, name in (("", "mail"), ("paid", ""), (7, "mail"), ("paid", "nul\x00")):
        with pytest.raises(BadInput, match=r"engine\.on: the (topic|name)"):
            engine.on(topic, name=name)(lambda message: None)  # type: ignore[arg-type]
    with pytest.raises(BadInput, match="give_up="):
        engine.on("paid", name="other", give_up=-1)(lambda message: None)
    for retry in (-1, True, "5", ulak.Backoff(3, factor=0.5)):
        with pytest.raises(BadInput, match="retry="):
            engine.on("paid", name="other", retry=retry)(lambda message: None)  # type: ignore[arg-type]
    with pytest.raises(BadInput, match="3 cannot be called"):
        engine.on("paid", name="other")(3)  # type: ignore[type-var]
    assert engine.outbox.handlers() == {"mail": "paid"}


@pytest.mark.shows("E-70")
def test_an_answer_that_cannot_be_kept_is_left_out(
    caplog: pytest.LogCaptureFixture,
) -> None:
    answers = {"object": object(), "large": "x" * 300_000}
    engine = ulak.connect("memory://")
    engine.on("paid", name="odd")(lambda message: answers[message.data])
    with engine:
        for what in answers:
            engine.emit("paid", what)
        asyncio.run(engine.worker(settings()).run(until_idle=True))
        assert {(d.state, d.answer) for d in of(engine, "odd")} == {("sent", None)}
    (said,) = [r for r in caplog.records if "is not kept" in r.getMessage()]
    assert said.levelname == "WARNING"


@pytest.mark.shows("E-70")
def test_a_handler_knows_how_often_it_failed_and_may_end_a_delivery_as_dead(jobs_url: str) -> None:
    tries = list[int]()
    with Harness(sender(), url=jobs_url) as harness:
        engine = harness.engine

        @engine.on("told", name="mail", block=True)
        def fail(message: ulak.Message) -> None:
            tries.append(message.tries)
            if message.tries < 2:
                raise ulak.RetryLater(HOUR, spend_attempt=True, why="busy")
            raise ulak.Refused("no such box", dead=True)

        for _ in range(2):
            engine.emit("told", 1, key="k")
        harness.run_until_idle()
        harness.advance(hours=5)
        dead, behind = engine.outbox.deliveries(handler="mail")
        assert tries == [0, 1, 2]
        assert (dead.state, dead.tries, dead.error) == ("dead", 3, "no such box")
        assert (behind.state, behind.tries) == ("pending", 0), "it stops its key"


# --- here and now -----------------------------------------------------------------------


@pytest.mark.shows("E-70")
def test_what_is_due_to_one_handler_is_delivered_here_and_now(jobs_url: str) -> None:
    got, fails = list[Any](), set[str]()
    with engine_on(store_of(jobs_url)) as engine:
        engine.on("told", name="books")(lambda message: pytest.fail("nobody calls it"))

        @engine.on("told", name="mail")
        def post(message: ulak.Message) -> None:
            if message.key in fails:
                raise ulak.RetryLater(HOUR)
            got.append((message.key, message.data))

        assert engine.outbox.deliver("mail") == {}
        for n in range(3):
            for key in "abc":
                engine.emit("told", n, key=key)
        assert engine.outbox.deliver("mail", limit=2) == {"sent": 2}
        assert len(got) == 2
        # One that fails takes no part in what follows, and the others go on to their ends.
        fails.add("c")
        assert engine.outbox.deliver("mail") == {"sent": 9 - 2 - 3, "pending": 1}
        for key in "ab":
            assert [n for k, n in got if k == key] == [0, 1, 2]
        assert engine.outbox.deliver("mail") == {}
        assert [d.state for d in of(engine, "books")] == ["pending"] * 9
        with pytest.raises(NotFound, match="no handler 'nobody'; it declares 'books', 'mail'"):
            engine.outbox.deliver("nobody")

        async def on_a_loop() -> dict[str, int]:
            with pytest.raises(BadInput, match=r"await engine\.aio\.outbox\.deliver"):
                engine.outbox.deliver("mail")
            return await engine.aio.outbox.deliver("mail")

        assert asyncio.run(on_a_loop()) == {}


@pytest.mark.shows("E-70")
def test_a_delivery_here_and_now_is_nobody_elses_while_it_runs(jobs_url: str) -> None:
    got = list[Any]()
    with engine_on(store_of(jobs_url)) as engine:

        @engine.on("told", name="mail")
        def post(message: ulak.Message) -> None:
            got.append(message.data)
            others.append(engine.store.take_messages("mail", 9, hold_us=10**6))

        others = list[Any]()
        engine.emit("told", 1)
        assert engine.outbox.deliver("mail") == {"sent": 1}
        assert (got, others) == ([1], [[]])


# --- messages outside a stage -----------------------------------------------------------


@pytest.mark.shows("E-70")
def test_a_message_outside_a_stage_has_no_job(jobs_url: str) -> None:
    got: list[ulak.Message] = []
    with Harness(sender(), url=jobs_url) as harness:
        engine = harness.engine
        engine.on("told", name="mail")(got.append)
        ids = [engine.emit("told", {"n": n}, key="k") for n in range(3)]
        ids.append(asyncio.run(engine.aio.emit("told", {"n": 3}, key="k")))
        alone = engine.emit("told", {"n": 4})
        harness.run_until_idle()
        assert [message.id for message in got if message.key == "k"] == ids
        assert {message.job_id for message in got} == {""}
        assert sorted(message.data["n"] for message in got) == list(range(5))
        (last,) = [message for message in got if message.id == alone]
        assert last.key == from_text(alone.partition("/")[0]).hex()
        assert harness.verify() == []
        harness.advance(days=8)
        engine.store.expire_messages(100)
        assert engine.outbox.deliveries() == [], "what was delivered goes after seven days"


@pytest.mark.shows("E-70")
def test_a_message_that_cannot_be_stored_is_refused(jobs_url: str) -> None:
    with engine_on(store_of(jobs_url)) as engine:
        for topic, data, key in (
            ("", 1, None), (7, 1, None), ("told", 1, ""), ("told", object(), None),
            ("told", "x" * 300_000, None),
        ):  # fmt: skip
            with pytest.raises(BadInput):
                engine.emit(topic, data, key=key)  # type: ignore[arg-type]

        async def on_a_loop() -> None:
            with pytest.raises(BadInput, match=r"await engine\.aio\.emit.*or use run\.emit"):
                engine.emit("told", 1)

        asyncio.run(on_a_loop())
        assert engine.outbox.deliveries() == []


@pytest.mark.shows("E-70")
def test_a_message_in_a_transaction_is_sent_with_it_or_not_at_all(shared_url: str) -> None:
    got: list[Any] = []
    with engine_on(store_of(shared_url)) as engine:
        engine.on("told", name="mail")(lambda message: got.append(message.data))
        with suppress(ZeroDivisionError), engine.transaction() as connection:
            engine.emit("told", "taken back", connection=connection)
            raise ZeroDivisionError
        with engine.transaction() as connection:
            for n in range(3):
                engine.emit("told", n, key="k", connection=connection)
        engine.emit("told", 3, key="k")
        assert len(engine.outbox.deliveries()) == 4
        with engine.working(settings()):
            eventually(lambda: len(got) == 4)
        assert got == [0, 1, 2, 3]
        assert engine.inspect.verify() == []


@pytest.mark.shows("E-70")
def test_a_redrive_and_a_discard_are_part_of_a_transaction(shared_url: str) -> None:
    def refuse(message: ulak.Message) -> None:
        raise ulak.Refused("no")

    with engine_on(store_of(shared_url)) as engine:
        engine.on("told", name="mail", block=True)(refuse)
        for key in ("again", "never"):
            engine.emit("told", 1, key=key)
        assert engine.outbox.deliver("mail") == {"refused": 2}
        again, never = of(engine, "mail")
        with suppress(ZeroDivisionError), engine.transaction() as connection:
            engine.outbox.redrive(again.id, actor="ada", connection=connection)
            engine.outbox.discard(never.id, actor="ada", connection=connection)
            raise ZeroDivisionError
        assert of(engine, "mail") == [again, never]
        assert engine.inspect.audit() == []
        with engine.transaction() as connection:
            engine.outbox.redrive(again.id, actor="ada", connection=connection)
            engine.outbox.discard(never.id, actor="ada", connection=connection)
        assert [d.state for d in of(engine, "mail")] == ["pending", "discarded"]
        assert [line.act for line in engine.inspect.audit()] == ["discard", "redrive"]
        assert engine.outbox.deliver("mail") == {"refused": 1}
        with pytest.raises(NotFound), engine.transaction() as connection:
            engine.outbox.discard(never.id, actor="ada", connection=connection)


@pytest.mark.shows("E-70")
def test_a_message_goes_with_a_transaction_of_the_programs_own_driver(shared_url: str) -> None:
    got: list[Any] = []
    with engine_on(store_of(shared_url)) as engine:
        engine.on("told", name="mail")(lambda message: got.append(message.data))
        with own_connection(shared_url) as connection:
            engine.emit("told", "by hand", connection=connection)
            connection.commit()
        with engine.working(settings()):
            eventually(lambda: got == ["by hand"])


@contextmanager
def own_connection(url: str) -> Iterator[Any]:
    """A connection that the program has opened itself, in a transaction that writes."""
    if url.startswith("sqlite"):
        connection: Any = sqlite3.connect(url.removeprefix("sqlite:///"))
        connection.execute("BEGIN IMMEDIATE")
    else:
        connection = psycopg.connect(url)
    try:
        yield connection
    finally:
        connection.close()


@pytest.mark.shows("E-70")
def test_a_transaction_that_stays_open_holds_up_nobody_of_its_key(shared_url: str) -> None:
    got: list[Any] = []
    with engine_on(store_of(shared_url)) as engine:
        if engine.store.features.one_writer:
            return  # nobody else writes meanwhile
        engine.on("told", name="mail")(lambda message: got.append(message.data))
        with engine.working(settings()), own_connection(shared_url) as connection:
            engine.emit("told", "late", key="k", connection=connection)
            for n in range(2):
                engine.emit("told", n, key="k")
            eventually(lambda: got == [0, 1])
            connection.commit()
            eventually(lambda: got == [0, 1, "late"])
        assert engine.inspect.verify() == []


@pytest.mark.shows("E-70")
def test_a_store_without_transactions_says_so() -> None:
    refused = pytest.raises(NotSupported, match=r"emit\(connection=\.\.\.\) is not to be had")
    with ulak.connect("memory://") as engine, refused:
        engine.emit("told", 1, connection=object())


# --- the release before -----------------------------------------------------------------

OLD_POST = """
    INSERT INTO {schema}outbox (job_id, seq, n, key, topic, data, at, not_before, head)
    VALUES ({mark}, 0, {mark}, 'k', 'told', {mark}, 1, 1, {mark})
"""
OLD_COUNT = "SELECT count(*) FROM {schema}outbox"


@pytest.mark.shows("E-70", "E-90")
def test_what_a_worker_of_the_release_before_writes_is_delivered(shared_url: str) -> None:
    got: list[Any] = []
    with engine_on(store_of(shared_url)) as engine:
        engine.on("told", name="mail")(lambda message: got.append(message.data))
        with engine.transaction() as connection:
            is_sqlite = isinstance(connection, sqlite3.Connection)
            mark, schema = ("?", "") if is_sqlite else ("%s", "ulak.")
            own: Any = b"0" * 16 if is_sqlite else "30" * 16
            for n in range(3):
                facts = (own, n, str(n).encode(), int(n == 0))
                connection.execute(OLD_POST.format(mark=mark, schema=schema), facts)
            left = connection.execute(OLD_COUNT.format(schema=schema)).fetchone()
        assert tuple(left) == (0,), "nothing is sent by a relay of the release before"
        with engine.working(settings()):
            eventually(lambda: len(got) == 3)
        assert got == [0, 1, 2]


@pytest.mark.shows("E-70")
def test_what_handed_messages_over_leaves_no_thread_behind() -> None:
    engine = ulak.connect("memory://")
    engine.on("paid", name="mail")(lambda message: None)
    before = set(threading.enumerate())
    with engine:
        engine.emit("paid", 1)
        assert engine.outbox.deliver("mail") == {"sent": 1}

    def left() -> list[str]:
        return [t.name for t in set(threading.enumerate()) - before if "relay" in t.name]

    eventually(lambda: left() == [])
