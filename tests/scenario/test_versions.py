"""A flow changes while jobs of the old kind are under way."""

import logging
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta
from itertools import pairwise
from typing import Any

import pytest

from ulak import Backoff, Flow, FlowError, Lifecycle, TransitionNotAllowed, WorkerSettings
from ulak.core import table
from ulak.core.job import lane_before, lane_of
from ulak.engine.claim_loop import Pools
from ulak.ids import from_text
from ulak.testing import Harness


def parcel(version: int, *states: str) -> Flow[Any]:
    """A flow of these stages, each of which returns the version that it belongs to."""
    chain = [*states, "done"]
    flow: Flow[Any] = Flow(
        "parcel",
        Lifecycle(states[0], {a: [b] for a, b in pairwise(chain)}),
        version=version,
    )
    for state in states:

        @flow.stage(state)
        def work(run: Any) -> Any:
            return {"version": version}

    return flow


def waiting(state: str) -> Flow[Any]:
    """A flow that begins with a wait of an hour."""
    life = Lifecycle(state, {state: ["late"]}, done="late")
    flow: Flow[Any] = Flow("waits", life)
    flow.wait(state, signal="paid", to="late", deadline=timedelta(hours=1), on_expiry="late")
    return flow


def booking(undo: str | None = None) -> Flow[Any]:
    """A flow whose second stage fails for good, after which the first is undone if it can be."""
    flow: Flow[Any] = Flow(
        "booking",
        Lifecycle("book", {"book": ["pay"], "pay": ["done"]}),
        retry=0,
        undo_retry=Backoff(9, delays=[timedelta(minutes=1)] * 9),
    )

    def book(run: Any) -> None: ...

    def unbook(run: Any) -> None:
        if undo == "fails":
            raise RuntimeError("not yet")

    def pay(run: Any) -> None:
        raise RuntimeError("no money")

    stage = flow.stage("book")(book)
    flow.stage("pay")(pay)
    if undo is not None:
        stage.undo(unbook)
    return flow


def serve(harness: Harness) -> None:
    """Have a worker of this program stand there that claims nothing."""
    lanes = Pools(harness.engine.inspect.flows, WorkerSettings()).lanes
    harness.engine.store.register("w", lease_us=10**9, lanes=lanes, about="")


@contextmanager
def the_release_before(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Let flows that are declared here have lanes without a stage."""
    with monkeypatch.context() as patch:
        patch.setattr(table, "lane_of", lambda *parts, **fair: lane_before(lane_of(*parts, **fair)))
        yield


@pytest.fixture
def stored(shared_url: str) -> tuple[str, str]:
    """A store with one job of version 1 that stands in "sorted"."""
    flow: Flow[Any] = Flow(
        "parcel",
        Lifecycle("new", {"new": ["sorted"], "sorted": ["sent"], "sent": ["done"]}),
    )

    @flow.stage("new")
    def sort(run: Any) -> None: ...

    flow.gate("sorted", choices={"go": "sent"})

    @flow.stage("sent")
    def send(run: Any) -> Any:
        return {"version": 1}

    with Harness(flow, url=shared_url) as harness:
        job = harness.run(flow)
        assert job.state == "sorted"
        harness.engine.decide(job.id, "go", actor="op")
    return shared_url, job.id


@pytest.mark.shows("E-50")
def test_a_version_that_is_not_registered_is_left_and_named(stored: tuple[str, str]) -> None:
    url, job_id = stored
    with Harness(parcel(2, "new", "sent"), url=url) as harness:
        new = harness.run(harness.engine.inspect.flows[0])
        assert new.state == "done"
        left = harness.job(job_id)
        assert (left.state, left.version, left.attempt) == ("sent", 1, 0)
        harness.engine.store.register(
            "w", lease_us=10**9, lanes=sorted(harness.engine.inspect.flows[0].table.lanes), about=""
        )
        why = harness.why(job_id)
        assert why.code == "version-not-served"
        assert "version 1 of parcel" in why.sentence
        assert harness.verify() == []


@pytest.mark.shows("E-50")
def test_an_old_job_finishes_by_the_table_it_started_with(stored: tuple[str, str]) -> None:
    url, job_id = stored
    old = parcel(1, "new", "sorted", "sent")
    with Harness(old, parcel(2, "new", "weighed", "sent"), url=url) as harness:
        harness.run_until_idle()
        assert harness.job(job_id).state == "done"
        assert harness.result(job_id) == {"version": 1}
        assert "weighed" not in harness.states(job_id)
        assert harness.verify() == []


@pytest.mark.shows("E-50", "E-84")
def test_a_job_in_a_state_that_this_program_lacks_is_left_alone_and_named(
    stored: tuple[str, str], caplog: pytest.LogCaptureFixture
) -> None:
    url, job_id = stored
    with Harness(parcel(1, "new", "sorted"), url=url) as harness:
        with caplog.at_level(logging.WARNING, logger="ulak.engine"):
            assert harness.run(harness.engine.inspect.flows[0]).state == "done"
        (told,) = [record for record in caplog.records if record.name == "ulak.engine"]
        assert (vars(told)["state"], vars(told)["jobs"]) == ("sent", 1)
        row = harness.engine.store.find_job(from_text(job_id))
        assert row is not None
        assert (row.state, row.token) == ("sent", 2), "nobody took it"
        harness.engine.worker().work_on(job_id)
        assert harness.engine.store.find_job(row.id) == row, "not by its id either"
        assert [c.jobs for c in harness.engine.inspect.counts() if c.state == "sent"] == [1]
        serve(harness)
        why = harness.why(job_id)
        assert (why.code, why.facts["missing"]) == ("state-not-served", "sent")
        with pytest.raises(TransitionNotAllowed, match='lacks "sent"') as refusal:
            harness.engine.cancel(job_id, actor="op")
        assert refusal.value.code == "state-unknown"
    with Harness(parcel(1, "new", "sorted", "sent"), url=url, clock=harness.clock) as harness:
        harness.run_until_idle()
        assert harness.job(job_id).state == "done"
        assert job_id not in {finding.job_id for finding in harness.verify()}


@pytest.mark.shows("E-50")
def test_a_job_that_the_release_before_has_stored_is_run(
    shared_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    flow = parcel(1, "new", "sent")
    with the_release_before(monkeypatch), Harness(flow, url=shared_url) as harness:
        job = harness.submit(flow)
        row = harness.engine.store.find_job(from_text(job.id))
        assert row is not None
        assert row.lane == "parcel/thread/parcel@1"
    with Harness(parcel(1, "new", "sent"), url=shared_url, clock=harness.clock) as harness:
        assert harness.run_until_idle() is None
        assert harness.job(job.id).state == "done"
        assert harness.verify() == []


@pytest.mark.shows("E-50")
def test_an_unknown_state_in_a_lane_without_a_stage_is_given_back_and_seldom_looked_at(
    shared_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    with Harness(parcel(1, "new", "packed"), url=shared_url) as harness:
        # Running before the job is there, as in a rolling deploy.
        harness.run_until_idle()
        with the_release_before(monkeypatch):
            old = parcel(1, "sent")
            with Harness(old, url=shared_url, clock=harness.clock) as before:
                job_id = before.submit(old).id
        for _ in range(3):
            harness.run_until_idle()
            serve(harness)
        given_back = [e for e in harness.trail(job_id) if e.kind == "given-back"]
        assert [(e.code, e.attempt) for e in given_back] == [("state-unknown", 1)]
        assert harness.why(job_id).code == "state-not-served"
        assert 'lacks "sent"' in harness.why(job_id).sentence
        harness.advance(hours=24)
        given_back = [e for e in harness.trail(job_id) if e.kind == "given-back"]
        assert 2 <= len(given_back) <= 40, "the longer it stands there, the more seldom, to an hour"
        assert harness.job(job_id).attempt == 0
        assert harness.run(harness.engine.inspect.flows[0]).state == "done"
    with Harness(parcel(1, "sent"), url=shared_url, clock=harness.clock) as harness:
        harness.advance(hours=1)
        assert harness.job(job_id).state == "done"
        assert job_id not in {finding.job_id for finding in harness.verify()}


@pytest.mark.shows("E-50")
def test_a_date_of_a_state_that_this_program_lacks_does_not_stop_upkeep(shared_url: str) -> None:
    known, unknown = waiting("waiting"), waiting("resting")
    with Harness(known, url=shared_url) as harness:
        harness.run_until_idle()
        with Harness(unknown, url=shared_url, clock=harness.clock) as other:
            left = other.submit(unknown)
        job = harness.submit(known)
        harness.advance(hours=2)
        assert harness.job(job.id).state == "late"
        assert harness.job(left.id).state == "resting"
        assert harness.why(left.id).code == "state-not-served"
        with Harness(waiting("resting"), url=shared_url, clock=harness.clock) as other:
            other.run_until_idle()
            assert other.job(left.id).state == "late"
            assert left.id not in {finding.job_id for finding in other.verify()}


@pytest.mark.shows("E-50")
def test_a_job_whose_undo_this_program_lacks_is_left_to_others(shared_url: str) -> None:
    with Harness(booking(), url=shared_url) as harness:
        harness.run_until_idle()
        flow = booking(undo="fails")
        with Harness(flow, url=shared_url, clock=harness.clock) as other:
            job = other.run(flow)
            assert (job.role, job.code) == ("undoing", "raised")
        harness.advance(hours=3)
        assert harness.job(job.id).role == "undoing"
        assert [e.code for e in harness.trail(job.id) if e.kind == "given-back"]
        with Harness(booking(undo="works"), url=shared_url, clock=harness.clock) as other:
            other.advance(hours=1)
            assert other.job(job.id).state == "failed"
            assert other.verify() == []


@pytest.mark.shows("E-50")
def test_a_start_is_not_refused_over_a_version_that_is_not_declared(
    stored: tuple[str, str],
) -> None:
    url, _ = stored
    with Harness(parcel(2, "elsewhere"), url=url) as harness:
        assert harness.run(harness.engine.inspect.flows[0]).state == "done"


def test_one_version_is_declared_once() -> None:
    with pytest.raises(FlowError, match="version 1 is registered twice"):
        Harness(parcel(1, "new"), parcel(1, "new"))
