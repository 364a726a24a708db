"""A part of a worker that fails ends the worker loudly, or is repaired; none is half alive."""

import errno
import fcntl
import logging
import threading
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

import ulak
from tests.scenario.doubles import Double, engine_on, eventually, settings, store_of
from ulak.errors import Contended, StoreError

LONG = timedelta(seconds=120)


class Bug(Exception):
    """What no store raises on purpose."""


class Death(BaseException):
    """What no `except Exception` catches."""


def break_down(*_: object, **__: object) -> None:
    raise Bug("a thread has hit a bug")


def lose_the_answer(receipts: Any) -> None:
    raise StoreError("the connection broke")


def one_step() -> ulak.Flow[Any]:
    async def work(run: ulak.Run[Any]) -> None:
        run.emit("done", 1)

    return ulak.Flow.steps("works", work)


def renewals(store: Double) -> None:
    store.before["renew"] = break_down


def look_ups(store: Double) -> None:
    store.after["commit"] = lose_the_answer
    store.before["find_commits"] = break_down


def relays(store: Double) -> None:
    store.before["take_messages"] = break_down


def comparisons(store: Double) -> None:
    store.before["leased"] = break_down


def claims(store: Double) -> None:
    store.before["claim"] = break_down


@pytest.mark.shows("E-83")
@pytest.mark.parametrize("part", [renewals, look_ups, relays, comparisons, claims])
def test_a_worker_of_which_a_part_fails_ends_loudly_and_another_goes_on(
    jobs_url: str,
    part: Callable[[Double], None],
    caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("ulak.engine.claim_loop.COMPARE_EVERY_S", 0.05)
    flow, store = one_step(), Double(store_of(jobs_url))
    with engine_on(store, flow) as engine:
        engine.outbox.publish(lambda message: None)
        job = engine.submit(flow)
        part(store)
        with pytest.raises(Bug), engine.working(settings(lease=1.5)) as worker:
            eventually(lambda: worker.has_ended)
        loud = [r for r in caplog.records if r.levelno >= logging.CRITICAL]
        assert loud, "the log says that the worker has ended, and why"
        store.before.clear()
        store.after.clear()
        with engine.working(settings()):
            assert engine.wait(job.id, timeout=LONG).state == "done"
        assert engine.inspect.verify() == []


@pytest.mark.shows("E-83")
def test_upkeep_that_fails_is_tried_again(jobs_url: str) -> None:
    flow, store = one_step(), Double(store_of(jobs_url))
    store.before["due"] = break_down
    with engine_on(store, flow) as engine, engine.working(settings()):
        eventually(lambda: store.calls["due"] > 2)
        assert engine.wait(engine.submit(flow).id, timeout=LONG).state == "done"


@pytest.mark.shows("E-83")
def test_a_lock_file_that_cannot_be_locked_for_a_while_ends_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without locks (ENOLCK) nothing can be written; every part of the worker waits it out."""
    lock, refused = fcntl.flock, 0

    def refuse(*_: object) -> None:
        nonlocal refused
        refused += 1
        raise OSError(errno.ENOLCK, "no locks available")

    flow = one_step()
    with engine_on(store_of(f"sqlite:///{tmp_path}/jobs.db"), flow) as engine:
        engine.outbox.publish(lambda message: None)
        jobs = engine.submit_many(flow, range(3))
        with engine.working(settings(lease=1.5)) as worker:
            monkeypatch.setattr(fcntl, "flock", refuse)
            eventually(lambda: refused > 20)
            monkeypatch.setattr(fcntl, "flock", lock)
            for job in jobs:
                assert engine.wait(job.id, timeout=LONG).state == "done"
            assert not worker.has_ended


@pytest.mark.shows("E-83")
def test_a_run_whose_end_cannot_be_decided_ends_the_worker(
    jobs_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    flow = one_step()
    with engine_on(store_of(jobs_url), flow) as engine:
        job = engine.submit(flow)
        with monkeypatch.context() as patch:
            patch.setattr("ulak.engine.executor.decide", break_down)
            patch.setattr("ulak.engine.active_run.decide", break_down)
            with pytest.raises(Bug), engine.working(settings(lease=1.5)) as worker:
                eventually(lambda: worker.has_ended)
        with engine.working(settings()):
            assert engine.wait(job.id, timeout=LONG).state == "done"


# --- the intake's threads ------------------------------------------------------------


def said(caplog: pytest.LogCaptureFixture, words: str) -> int:
    return sum(words in record.getMessage() for record in caplog.records)


@pytest.mark.shows("E-83")
def test_a_batch_that_kills_the_thread_of_the_intake_keeps_no_later_offer(
    jobs_url: str, caplog: pytest.LogCaptureFixture
) -> None:
    """Broken by a thread that ends: what waits behind its batch would wait for ever."""
    flow, store = one_step(), Double(store_of(jobs_url))
    begun, has_second = threading.Event(), threading.Event()

    def die(jobs: object) -> None:
        store.before.clear()
        begun.set()
        assert has_second.wait(120)
        raise Death("the thread is to end")

    with engine_on(store, flow) as engine:
        store.before["add"] = die
        engine.kernel.intake.offer([engine.kernel.prepare(flow)])
        assert begun.wait(120)
        second = engine.kernel.intake.offer([engine.kernel.prepare(flow)])
        has_second.set()
        assert second.result(120)[0].created
        assert said(caplog, "offers could not be stored") == 1


@pytest.mark.shows("E-83")
@pytest.mark.parametrize("error", [Bug("a bug"), Death("the thread is to end")])
def test_an_offer_that_kills_the_thread_of_the_blocked_keeps_no_later_one(
    jobs_url: str,
    error: BaseException,
    caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Broken by a thread that ends and is taken to live: blocked offers would stay unstored."""
    flow, store = one_step(), Double(store_of(jobs_url))
    with engine_on(store, flow) as engine:
        intake = engine.kernel.intake
        usual, failures = intake._store_offers, [error]

        def fail_once(offers: Any) -> Any:
            if threading.current_thread().name == "ulak-intake-aside" and failures:
                raise failures.pop()
            return usual(offers)

        def block_once(jobs: object) -> None:
            store.before.clear()
            raise Contended("somebody else holds the key")

        monkeypatch.setattr(intake, "_store_offers", fail_once)
        store.before["add"] = block_once
        intake.offer([engine.kernel.prepare(flow)])
        eventually(lambda: said(caplog, "offers could not be stored"))
        store.before["add"] = block_once
        second = intake.offer([engine.kernel.prepare(flow)])
        assert second.result(120)[0].created
