"""What an engine tells of itself: once per batch, truthfully, and to its own listeners only."""

import sqlite3
from contextlib import closing
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

import ulak
from tests.scenario.doubles import SOON, Double, engine_on, eventually, settings, store_of
from ulak.core.change import Committed
from ulak.engine import intake
from ulak.engine.telemetry import run_of
from ulak.errors import Overloaded, StoreError
from ulak.testing import Harness


class Heard:
    """A listener that keeps everything."""

    def __init__(self) -> None:
        self.told: list[tuple[str, tuple[Any, ...]]] = []

    def __getattr__(self, hook: str) -> Any:
        return lambda *facts: self.told.append((hook, facts))

    def of(self, hook: str) -> list[tuple[Any, ...]]:
        return [facts for name, facts in self.told if name == hook]

    def runs(self) -> list[tuple[str, str, str]]:
        """Flow, state and outcome of every run that was committed."""
        found = []
        for changes, receipts, _ in self.of("committed"):
            for change, receipt in zip(changes, receipts, strict=True):
                ran = run_of(change)
                if ran is not None and isinstance(receipt, Committed):
                    found.append((change.row.flow, ran.state, ran.outcome))
        return found


def listen(engine: ulak.Engine) -> Heard:
    heard = Heard()
    engine.kernel.telemetry.add(heard)
    return heard


def test_a_submit_tells_what_was_created_and_what_was_there(jobs_url: str) -> None:
    engine = engine_on(store_of(jobs_url))
    heard = listen(engine)

    @engine.job
    def greet() -> None: ...

    with engine:
        engine.submit(greet, dedup_key="k")
        engine.submit(greet, dedup_key="k")
        engine.submit_many(greet.flow, [(), ()])
    answers = [(a.row.flow, a.created) for added, _ in heard.of("accepted") for a in added]
    assert answers == [("greet", True), ("greet", False), ("greet", True), ("greet", True)]
    assert len(heard.of("accepted")) == 3
    assert all(seconds >= 0 for _, seconds in heard.of("accepted"))


def test_a_submit_in_a_transaction_of_ones_own_is_told_too(tmp_path: Path) -> None:
    engine = ulak.connect(f"sqlite:///{tmp_path}/jobs.db")
    heard = listen(engine)

    @engine.job
    def greet() -> None: ...

    with engine, closing(sqlite3.connect(tmp_path / "jobs.db")) as db, db:
        db.execute("BEGIN IMMEDIATE")
        engine.submit(greet, connection=db)
    assert [(len(added), seconds) for added, seconds in heard.of("accepted")] == [(1, None)]


def test_a_full_intake_tells_whom_it_has_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(intake, "MOST_JOBS", 2)
    engine = ulak.connect("memory://")
    heard = listen(engine)

    @engine.job
    def greet() -> None: ...

    with engine, pytest.raises(Overloaded):
        engine.submit_many(greet.flow, [()] * 3)
    assert [[job.row.flow for job in jobs] for (jobs,) in heard.of("refused")] == [["greet"] * 3]


def test_every_end_of_a_run_is_told_as_the_trail_says_it(jobs_url: str) -> None:
    class Hopeless(Exception): ...

    with Harness(url=jobs_url) as harness:
        engine, heard = harness.engine, listen(harness.engine)

        @engine.job
        def good() -> str:
            harness.clock.advance(timedelta(seconds=3))
            return "done"

        @engine.job(retry=2)
        def bad() -> None:
            raise ValueError("no")

        @engine.job
        def stuck() -> ulak.Hold:
            return ulak.Hold("look")

        @engine.job
        def later() -> Any:
            return ulak.RetryLater(timedelta(minutes=1)) if first.pop() else None

        first = [False, True]
        for made in (good, bad, stuck, later):
            harness.submit(made)
        harness.advance(minutes=5)
        assert sorted((flow, outcome) for flow, _, outcome in heard.runs()) == [
            ("bad", "failed"), ("bad", "retry"), ("bad", "retry"), ("good", "moved"),
            ("later", "moved"), ("later", "retry"), ("stuck", "held"),
        ]  # fmt: skip
        assert {state for _, state, _ in heard.runs()} == {"queued"}
        took = [
            run_of(change).seconds
            for changes, _, _ in heard.of("committed")
            for change in changes
            if change.row.flow == "good"
        ]
        assert took == [3.0]
        job = harness.submit(stuck)
        harness.run_until_idle()
        before = len(heard.runs())
        engine.release(job.id, actor="ada")
        last = heard.of("committed")[-1][0][0]
        assert last.row.role == "ready"
        assert run_of(last) is None, "an operator's act is no run"
        assert len(heard.runs()) == before


def test_a_claim_tells_what_it_took_and_what_had_lapsed(jobs_url: str) -> None:
    with Harness(url=jobs_url) as harness:
        heard = listen(harness.engine)

        @harness.engine.job
        def greet() -> None: ...

        harness.submit(greet)
        lost = harness.engine.worker(harness.settings)
        lost._register(lost.executor.pools.lanes, {})
        lost.lease.stop()
        wants = lost.executor.pools.wants()
        from ulak.store.protocol import ClaimRequest

        assert harness.engine.store.claim(ClaimRequest(lost.id, wants)).claims
        harness.advance(minutes=2)
        taken = [claim.row.lapsed for claimed, _ in heard.of("claimed") for claim in claimed.claims]
        assert taken == [1]
        lost.aside.close()


def test_a_batch_is_told_once(tmp_path: Path) -> None:
    with Harness(path=tmp_path / "jobs.db") as harness:
        heard = listen(harness.engine)

        @harness.engine.job
        async def greet() -> None: ...

        harness.engine.submit_many(greet.flow, [()] * 100)
        harness.run_until_idle()
        changes = [len(changes) for changes, _, _ in heard.of("committed")]
        assert sum(changes) == 100
        assert len(changes) <= 10
        assert len([c for c, _ in heard.of("claimed") if c.claims]) <= 10


def test_messages_and_ticks_are_told(jobs_url: str) -> None:
    refused = []
    with Harness(url=jobs_url) as harness:
        heard = listen(harness.engine)

        @harness.engine.outbox.publish
        def send(message: ulak.Message) -> None:
            if message.topic == "bad" and not refused:
                refused.append(message)
                raise OSError("no")

        def greet(run: ulak.Run[Any]) -> None:
            run.emit("good", {})
            run.emit("bad", {}, key="another")

        flow = harness.engine.add(ulak.Flow.steps("greeting", greet))
        harness.engine.schedules.add("hourly", flow, {}, every=timedelta(hours=1))
        harness.engine.kernel.keep_schedules()
        harness.advance(minutes=90)
        harness.advance(minutes=1)
        said = heard.of("published")
        assert [sum(column) for column in zip(*said, strict=True)] == [2, 1, 0]
        [(ticks, written)] = heard.of("ticked")
        assert ([tick.row.name for tick in ticks], written) == (["hourly"], [True])


@pytest.mark.shows("E-58")
@pytest.mark.parametrize("verb", ["claim", "commit", "renew"])
def test_a_store_that_does_not_answer_is_told(verb: str) -> None:
    store = Double(store_of("memory://"))
    engine = engine_on(store)
    heard = listen(engine)
    fails = [True]

    def fail(*_: Any, **__: Any) -> None:
        if fails:
            fails.pop()
            raise StoreError("gone")

    @engine.job
    def greet() -> None: ...

    with engine:
        store.before[verb] = fail
        with engine.working(settings(lease=1.5)):
            job = engine.submit(greet)
            assert engine.wait(job.id, timeout=SOON).state == "done"
            eventually(lambda: not fails)
    assert heard.of("failed") == [(verb,)]


def test_two_engines_on_one_store_do_not_notice_each_other() -> None:
    store = store_of("memory://")
    one, other = engine_on(store), engine_on(store)
    heard = listen(one)

    @other.job
    def greet() -> None: ...

    with other:
        other.submit(greet)
    assert heard.told == []


def test_a_listener_that_fails_harms_nobody_and_is_logged_once(
    caplog: pytest.LogCaptureFixture,
) -> None:
    class Broken:
        def __getattr__(self, hook: str) -> Any:
            raise RuntimeError(hook)

    engine = ulak.connect("memory://")
    engine.kernel.telemetry.add(Broken())
    heard = listen(engine)

    @engine.job
    def greet() -> None: ...

    with engine:
        for _ in range(3):
            engine.submit(greet)
    assert len(heard.of("accepted")) == 3
    assert [r.message for r in caplog.records if r.name == "ulak.telemetry"] == [
        "a listener failed; further failures are not told"
    ]


def test_who_listens_no_more_is_told_nothing() -> None:
    engine = ulak.connect("memory://")
    heard = Heard()
    stop = engine.kernel.telemetry.add(heard)
    stop()

    @engine.job
    def greet() -> None: ...

    with engine:
        engine.submit(greet)
    assert heard.told == []
