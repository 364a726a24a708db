"""A flow with a closed table: cancelled and expired jobs end in its failed state."""

import threading
from datetime import timedelta
from typing import Any

import pytest

import ulak
from ulak.engine.engine import Engine
from ulak.testing import Harness
from ulak.wiring import store_of

HOUR = timedelta(hours=1)
PATIENCE = timedelta(seconds=120)


def closed(**options: Any) -> ulak.Flow[Any]:
    """A stage, a question and an end that is kept for a day, in a table without other ends."""
    flow: ulak.Flow[Any] = ulak.Flow(
        "cutting",
        ulak.Lifecycle(
            "NEW",
            {"NEW": ["ASKED"], "ASKED": ["DONE"], "DONE": ["FAILED"]},
            done="DONE", held="HOLD", failed="FAILED", cancelled="FAILED", expired="FAILED",
        ),
        **options,
    )  # fmt: skip
    flow.gate("ASKED", choices={"yes": "DONE"}, deadline=3 * HOUR, on_expiry="FAILED")
    flow.wait("DONE", after=24 * HOUR, to="FAILED")
    return flow


def with_stage(**options: Any) -> ulak.Flow[Any]:
    flow = closed(**options)
    flow.stage("NEW")(lambda run: None)
    return flow


def must_have_failed_for_good(harness: Harness, job_id: str, code: str) -> None:
    job = harness.job(job_id)
    assert (job.state, job.role, job.code) == ("FAILED", "failed", code)
    with pytest.raises(ulak.TransitionNotAllowed, match=rf"failed for good \({code}\)"):
        harness.engine.retry(job_id, actor="op")
    assert harness.verify() == []


@pytest.mark.shows("E-68")
def test_a_cancelled_job_has_failed_for_good_with_the_code_cancelled(jobs_url: str) -> None:
    flow = with_stage()
    with Harness(flow, url=jobs_url) as harness:
        job = harness.submit(flow, {})
        harness.engine.cancel(job.id, actor="op", note="not wanted")
        must_have_failed_for_good(harness, job.id, "cancelled")
        assert harness.trail(job.id)[-1].kind == "cancelled"


@pytest.mark.shows("E-68", "E-39")
def test_a_job_that_is_cancelled_while_it_runs_ends_so_too(jobs_url: str) -> None:
    flow, runs, may_go = closed(), threading.Event(), threading.Event()

    @flow.stage("NEW")
    def work(run: ulak.Run[Any]) -> None:
        runs.set()
        may_go.wait(120)

    engine = Engine(store_of(jobs_url), flows=[flow])
    with engine, engine.working():
        job = engine.submit(flow, {})
        assert runs.wait(120)
        assert engine.cancel(job.id, actor="op").cancel_requested
        may_go.set()
        end = engine.wait(job.id, timeout=PATIENCE)
        assert (end.state, end.role, end.code) == ("FAILED", "failed", "cancelled")
        with pytest.raises(ulak.TransitionNotAllowed, match="failed for good"):
            engine.retry(job.id, actor="op")


@pytest.mark.shows("E-68")
@pytest.mark.parametrize("way", ["expires", "expire", "gate", "wait", "expire-done"])
def test_a_job_whose_time_is_over_has_failed_for_good_with_the_code_expired(
    jobs_url: str, way: str
) -> None:
    flow = with_stage()
    with Harness(flow, url=jobs_url) as harness:
        job = harness.submit(flow, {}, expires=HOUR if way == "expires" else None)
        harness.run_until_idle()
        if way in ("wait", "expire-done"):
            harness.engine.decide(job.id, "yes", actor="op")
            assert harness.job(job.id).role == "done"
        if way in ("expire", "expire-done"):
            harness.engine.expire(job.id, actor="op")
        else:
            harness.advance(hours=25)
        must_have_failed_for_good(harness, job.id, "expired")


@pytest.mark.shows("E-68", "E-42")
def test_undos_come_first_and_a_release_of_theirs_forgets_no_code(jobs_url: str) -> None:
    flow, closed_bank = closed(undo_retry=0), [True]

    @flow.stage("NEW")
    def work(run: ulak.Run[Any]) -> None: ...

    @work.undo
    def refund(run: ulak.Run[Any]) -> None:
        if closed_bank:
            raise ValueError("the bank is closed")

    with Harness(flow, url=jobs_url) as harness:
        job = harness.run(flow, {})
        harness.engine.cancel(job.id, actor="op")
        harness.run_until_idle()
        assert harness.job(job.id).code == "undo-failed"
        closed_bank.clear()
        assert harness.engine.release(job.id, actor="op").code == "cancelled"
        harness.run_until_idle()
        must_have_failed_for_good(harness, job.id, "cancelled")


@pytest.mark.shows("E-68")
def test_what_a_stage_fails_with_is_not_for_good_and_may_be_retried(jobs_url: str) -> None:
    flow = closed(retry=0)

    @flow.stage("NEW")
    def work(run: ulak.Run[Any]) -> None:
        raise ValueError("down")

    with Harness(flow, url=jobs_url) as harness:
        job = harness.run(flow, {})
        assert (job.role, job.code) == ("failed", "raised")
        assert harness.engine.retry(job.id, actor="op").state == "NEW"


@pytest.mark.shows("E-68")
def test_a_flow_that_retries_what_is_permanent_retries_cancelled_jobs_too(jobs_url: str) -> None:
    flow = with_stage(retries_permanent=True)
    with Harness(flow, url=jobs_url) as harness:
        job = harness.submit(flow, {})
        harness.engine.cancel(job.id, actor="op")
        assert harness.engine.retry(job.id, actor="op").state == "NEW"
        assert harness.verify() == []


@pytest.mark.shows("E-68", "E-7")
@pytest.mark.parametrize(
    ("names", "roles"),
    [
        ({"cancelled": "failed"}, {"failed": "failed", "expired": "expired"}),
        ({"expired": "failed"}, {"failed": "failed", "cancelled": "cancelled"}),
        ({"expired": "failed", "cancelled": "failed"}, {"failed": "failed"}),
        ({"expired": "cancelled"}, {"failed": "failed", "cancelled": "expired"}),
    ],
)
def test_either_may_name_the_failed_state(names: dict[str, str], roles: dict[str, str]) -> None:
    flow: ulak.Flow[Any] = ulak.Flow("any", ulak.Lifecycle("a", {"a": ["done"]}, **names))
    flow.stage("a")(lambda run: None)
    there = {s: p.role for s, p in flow.table.places.items() if s not in ("a", "done", "held")}
    assert there == roles


@pytest.mark.shows("E-68", "E-7")
@pytest.mark.parametrize("name", ["cancelled", "expired"])
def test_neither_may_name_the_held_state_or_success(name: str) -> None:
    for other in ("held", "done"):
        flow: ulak.Flow[Any] = ulak.Flow(
            "any", ulak.Lifecycle("a", {"a": ["done"]}, **{name: other})
        )
        flow.stage("a")(lambda run: None)
        with pytest.raises(ulak.FlowError, match=f'"{other}" is both {other} and {name}'):
            assert flow.table
