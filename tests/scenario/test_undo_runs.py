"""Undos through the real worker: order, retries, a hold, and what the trail says of them."""

import asyncio
from datetime import timedelta
from typing import Any

import pytest

import ulak
from tests.scenario.doubles import (
    SOON,
    engine_on,
    eventually,
    kinds,
    settings,
    store_of,
)
from ulak.testing import Harness

LIFE = ulak.Lifecycle(
    "reserve", {"reserve": ["pay"], "pay": ["ship"], "ship": ["done"]}, undone="rolled_back"
)


def saga(said: list[str], **options: Any) -> ulak.Flow[Any]:
    """Three stages with undos, async and plain; the last one fails. The payload says how often
    the undo of the second fails."""
    flow: ulak.Flow[Any] = ulak.Flow("saga", LIFE, retry=0, **options)

    @flow.stage("reserve")
    async def reserve(run: ulak.Run[Any]) -> str:
        said.append("reserve")
        return "seat 7"

    @reserve.undo
    async def release(run: ulak.Run[Any]) -> None:
        said.append(f"undo reserve {run.find_result(reserve)}")

    @flow.stage("pay")
    def pay(run: ulak.Run[Any]) -> int:
        said.append("pay")
        return 42

    @pay.undo
    def refund(run: ulak.Run[Any]) -> None:
        said.append(f"undo pay {run.result(pay)} attempt {run.attempt}")
        if "the bank opens" not in said and run.attempt <= (run.payload or 0):
            raise ConnectionError("the bank is closed")
        run.emit("refunded", run.result(pay))

    @flow.stage("ship")
    async def ship(run: ulak.Run[Any]) -> None:
        said.append("ship")
        raise ValueError("no ship")

    @ship.undo
    async def nothing(run: ulak.Run[Any]) -> None:
        said.append("undo ship")

    return flow


@pytest.mark.shows("E-42", "E-43")
def test_every_started_stage_is_undone_in_reverse_order(jobs_url: str) -> None:
    said: list[str] = []
    flow = saga(said, dedup=ulak.Dedup(lambda payload: "one"))
    with engine_on(store_of(jobs_url), flow) as engine, engine.working(settings()):
        job = engine.submit(flow)
        end = engine.wait(job.id, timeout=SOON)
        assert (end.state, end.code) == ("rolled_back", "raised")
        assert said == [
            "reserve", "pay", "ship", "undo ship", "undo pay 42 attempt 1", "undo reserve seat 7",
        ]  # fmt: skip
        trail = engine.inspect.trail(job.id)
        assert [(e.kind, e.message) for e in trail[3:]] == [
            ("failed", "ValueError: no ship"),
            ("undone", "ship"),
            ("undone", "pay"),
            ("undone", "reserve"),
            ("ended", None),
        ]
        assert engine.submit(flow).created, "its key is free now"
        assert engine.inspect.verify() == []


@pytest.mark.shows("E-42")
def test_the_dedup_key_is_kept_until_the_last_undo() -> None:
    said: list[str] = []
    flow = saga(said, dedup=ulak.Dedup(lambda payload: "one"), undo_retry=3)
    with Harness(flow) as harness:
        job = harness.run(flow, 1)
        assert (job.role, said[-1]) == ("undoing", "undo pay 42 attempt 1")
        assert not harness.submit(flow, 1).created
        with pytest.raises(ulak.TransitionNotAllowed, match="undos are running"):
            harness.engine.retry(job.id, actor="operator")
        harness.advance(minutes=1)
        assert harness.job(job.id).state == "rolled_back"
        assert harness.submit(flow, 1).created
        assert harness.verify() == []


@pytest.mark.shows("E-43")
def test_an_undo_out_of_attempts_is_held_and_goes_on_when_released(jobs_url: str) -> None:
    said: list[str] = []
    flow = saga(said, undo_retry=2)
    with Harness(flow, url=jobs_url) as harness:
        job = harness.submit(flow, 3)
        harness.advance(hours=1)
        held = harness.job(job.id)
        assert (held.state, held.code) == ("held", "undo-failed")
        assert [s for s in said if s.startswith("undo pay")] == [
            "undo pay 42 attempt 1", "undo pay 42 attempt 2", "undo pay 42 attempt 3",
        ]  # fmt: skip
        assert "the bank is closed" in (harness.trail(job.id)[-1].message or "")
        with pytest.raises(ulak.TransitionNotAllowed, match="undos are owed"):
            harness.engine.cancel(job.id, actor="operator")
        said.append("the bank opens")
        harness.engine.release(job.id, actor="operator", note="the bank is open")
        harness.run_until_idle()
        assert harness.job(job.id).state == "rolled_back"
        after = said[said.index("the bank opens") + 1 :]
        # Attempts count anew, and the undo that had succeeded does not run again.
        assert after == ["undo pay 42 attempt 1", "undo reserve seat 7"]
        assert harness.verify() == []


@pytest.mark.shows("E-43", "E-45")
def test_an_undo_is_retried_and_its_messages_leave_with_it() -> None:
    said: list[str] = []
    flow = saga(said, undo_retry=3)
    with Harness(flow) as harness:
        job = harness.submit(flow, 2)
        harness.advance(hours=1)
        assert harness.job(job.id).state == "rolled_back"
        assert [m.topic for m in harness.sent] == ["refunded"]
        undo = [e for e in harness.trail(job.id) if "undo of pay" in (e.message or "")]
        assert [e.kind for e in undo] == ["retry", "retry"]
        assert harness.verify() == []


@pytest.mark.shows("E-42")
def test_a_stage_that_never_started_is_not_undone() -> None:
    said: list[str] = []
    flow: ulak.Flow[Any] = ulak.Flow(
        "early", ulak.Lifecycle("a", {"a": ["b"], "b": ["done"]}), retry=0
    )

    @flow.stage("a")
    async def a(run: ulak.Run[Any]) -> ulak.Goto:
        return ulak.Goto("b", after=timedelta(hours=1))

    @a.undo
    async def undo_a(run: ulak.Run[Any]) -> None:
        said.append("a")

    @flow.stage("b")
    async def b(run: ulak.Run[Any]) -> None: ...

    @b.undo
    async def undo_b(run: ulak.Run[Any]) -> None:
        said.append("b")

    engine = ulak.connect("memory://", flows=[flow])
    with engine, engine.working(settings()):
        job = engine.submit(flow)
        engine.wait(job.id, until="b", timeout=SOON)
        engine.cancel(job.id, actor="operator")
        assert engine.wait(job.id, timeout=SOON).state == "cancelled"
        assert said == ["a"]


@pytest.mark.shows("E-43", "E-38")
def test_an_undo_over_its_time_is_a_failed_attempt_of_the_undo() -> None:
    flow: ulak.Flow[Any] = ulak.Flow(
        "slow", ulak.Lifecycle("a", {"a": ["done"]}), retry=0,
        undo_retry=ulak.Backoff(delays=[timedelta(0)]),
    )  # fmt: skip
    attempts: list[int] = []

    @flow.stage("a", timeout=timedelta(seconds=0.1))
    async def a(run: ulak.Run[Any]) -> None:
        raise ValueError

    @a.undo
    async def undo(run: ulak.Run[Any]) -> None:
        attempts.append(run.attempt)
        await asyncio.sleep(60 if run.attempt == 1 else 0)

    engine = ulak.connect("memory://", flows=[flow])
    with engine, engine.working(settings()):
        job = engine.submit(flow)
        assert engine.wait(job.id, timeout=SOON).state == "failed"
        assert attempts == [1, 2]
        assert kinds(engine, job) == ["submitted", "failed", "retry", "undone", "ended"]


@pytest.mark.shows("E-43")
def test_an_undo_survives_a_drain_without_spending_an_attempt() -> None:
    flow: ulak.Flow[Any] = ulak.Flow("drained", ulak.Lifecycle("a", {"a": ["done"]}), retry=0)
    began: list[int] = []

    @flow.stage("a")
    async def a(run: ulak.Run[Any]) -> None:
        raise ValueError

    @a.undo
    async def undo(run: ulak.Run[Any]) -> None:
        began.append(run.attempt)
        await asyncio.sleep(60 if len(began) == 1 else 0)

    engine = ulak.connect("memory://", flows=[flow])
    with engine:
        job = engine.submit(flow)
        with engine.working(settings(drain=0.2)):
            eventually(lambda: began)
        now = engine.get(job.id)
        assert (now.role, now.attempt, now.leased_by) == ("undoing", 0, None)
        with engine.working(settings()):
            assert engine.wait(job.id, timeout=SOON).state == "failed"
        assert began == [1, 1]
        assert engine.inspect.verify() == []


@pytest.mark.shows("E-44")
def test_an_event_says_who_did_what_when_and_why(jobs_url: str) -> None:
    said: list[str] = []
    flow = saga(said)
    with engine_on(store_of(jobs_url), flow) as engine, engine.working(settings()) as worker:
        job = engine.submit(flow, actor="alice")
        engine.wait(job.id, timeout=SOON)
        trail = engine.inspect.trail(job.id)
        assert [e.seq for e in trail] == list(range(1, len(trail) + 1))
        first, moved = trail[0], trail[1]
        assert (first.kind, first.actor, first.from_state, first.to_state) == (
            "submitted", "alice", None, "reserve",
        )  # fmt: skip
        assert (moved.kind, moved.from_state, moved.to_state) == ("moved", "reserve", "pay")
        assert (moved.worker, moved.actor, moved.attempt, moved.round) == (
            worker.id, worker.id, 1, 1,
        )  # fmt: skip
        assert moved.started_at is not None
        assert first.at <= moved.started_at <= moved.at
        failed = next(e for e in trail if e.kind == "failed")
        assert (failed.code, failed.message) == ("raised", "ValueError: no ship")
        assert "Traceback" in failed.details["traceback"]
        assert "claimed" not in {e.kind for e in trail}, "a claim writes no event"
