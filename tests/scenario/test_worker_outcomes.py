"""How a run ends: what a stage returns, what it raises, and what that means for its job."""

from datetime import timedelta
from typing import Any

import pytest

import ulak
from ulak.testing import Harness


def deciding(*answers: Any, **options: Any) -> ulak.Flow[Any]:
    """A stage that gives one answer after the other; an exception is raised."""
    flow: ulak.Flow[Any] = ulak.Flow(
        "decides", ulak.Lifecycle("go", {"go": ["left", "right"], "left": ["done"]},
                                  done=["done", "right"]), **options,
    )  # fmt: skip
    given = list(answers)

    @flow.stage("go", to="left")
    async def go(run: ulak.Run[Any]) -> Any:
        answer = given.pop(0)
        if isinstance(answer, BaseException):
            raise answer
        return answer

    @flow.stage("left")
    async def left(run: ulak.Run[Any]) -> Any:
        return run.find_result(go)

    return flow


@pytest.mark.shows("E-9")
def test_goto_chooses_the_way_its_delay_and_its_result() -> None:
    flow = deciding(ulak.Goto("right"), ulak.Goto("left", after=timedelta(hours=1), result=7))
    with Harness(flow) as harness:
        assert harness.run(flow).state == "right"
        job = harness.run(flow)
        assert (job.state, harness.why(job.id).code) == ("left", "delayed")
        harness.advance(hours=1)
        assert harness.job(job.id).state == "done"
        assert harness.result(job.id) == 7


@pytest.mark.shows("E-9", "E-4")
def test_a_way_that_the_table_lacks_holds_the_job_with_a_sentence() -> None:
    flow = deciding(ulak.Goto("done"), None)
    with Harness(flow) as harness:
        job = harness.run(flow)
        assert (job.state, job.code) == ("held", "bad-outcome")
        assert '"go" may move to "left" or "right", not to "done"' in (
            harness.trail(job.id)[-1].message or ""
        )
        harness.engine.release(job.id, actor="operator")
        harness.run_until_idle()
        assert harness.job(job.id).state == "done"


@pytest.mark.shows("E-9")
def test_hold_stops_for_a_person_and_retry_later_spends_no_attempt() -> None:
    flow = deciding(
        ulak.RetryLater(timedelta(minutes=1), why="busy"),
        ulak.RetryLater(timedelta(minutes=1)),
        ulak.Hold("customer-unknown", "create it first"),
        None,
        retry=0,
    )
    with Harness(flow) as harness:
        job = harness.run(flow)
        assert (job.state, job.attempt) == ("go", 0)
        harness.advance(minutes=2)
        held = harness.job(job.id)
        assert (held.state, held.code, held.attempt) == ("held", "customer-unknown", 0)
        assert [e.message for e in harness.trail(job.id)[1:]] == ["busy", None, "create it first"]
        harness.engine.release(job.id, actor="operator")
        harness.run_until_idle()
        assert harness.job(job.id).state == "done"


@pytest.mark.shows("E-9")
def test_retry_later_may_spend_attempts_and_then_gives_up() -> None:
    again = ulak.RetryLater(timedelta(minutes=1), spend_attempt=True)
    flow = deciding(again, again, again, retry=2)
    with Harness(flow) as harness:
        job = harness.submit(flow)
        harness.advance(hours=1)
        assert harness.job(job.id).code == "gave-up"


class Broken(Exception): ...


class BrokenForGood(Broken): ...


class BrokenForNow(BrokenForGood): ...


class NobodyKnows(Broken):
    code = "nobody-knows"


class NobodyEverKnows(NobodyKnows): ...


@pytest.mark.shows("E-10")
@pytest.mark.parametrize(
    ("error", "ends"),
    [
        (Broken("x"), ["submitted", "retry", "retry", "failed"]),
        (BrokenForGood("x"), ["submitted", "failed"]),
        (BrokenForNow("x"), ["submitted", "retry", "retry", "failed"]),
        (NobodyKnows("x"), ["submitted", "held"]),
        (NobodyEverKnows("x"), ["submitted", "held"]),
        (ZeroDivisionError("x"), ["submitted", "retry", "retry", "failed"]),
    ],
    ids=lambda case: type(case).__name__ if isinstance(case, Exception) else "",
)
def test_the_nearest_declared_class_decides_what_an_error_is(
    error: Exception, ends: list[str]
) -> None:
    flow = deciding(
        error, error, error, retry=2,
        permanent={BrokenForGood}, transient={BrokenForNow}, holds_on={NobodyKnows},
    )  # fmt: skip
    with Harness(flow) as harness:
        job = harness.submit(flow)
        harness.advance(hours=1)
        assert [e.kind for e in harness.trail(job.id)] == ends
        now = harness.job(job.id)
        if isinstance(error, NobodyKnows):
            assert now.code == "nobody-knows"
        if type(error) is BrokenForGood:
            with pytest.raises(ulak.TransitionNotAllowed, match="failed for good"):
                harness.engine.retry(job.id, actor="operator")


@pytest.mark.shows("E-10")
def test_attempts_count_per_stage_and_a_stage_may_have_its_own_retry() -> None:
    attempts: list[tuple[str, int]] = []
    flow: ulak.Flow[Any] = ulak.Flow(
        "two", ulak.Lifecycle("a", {"a": ["b"], "b": ["done"]}), retry=1
    )

    @flow.stage("a")
    async def a(run: ulak.Run[Any]) -> None:
        attempts.append(("a", run.attempt))
        if run.attempt == 1:
            raise Broken

    @flow.stage("b", retry=2)
    def b(run: ulak.Run[Any]) -> None:
        attempts.append(("b", run.attempt))
        if run.attempt <= 2:
            raise Broken

    with Harness(flow) as harness:
        job = harness.submit(flow)
        harness.advance(hours=1)
        assert harness.job(job.id).state == "done"
        assert attempts == [("a", 1), ("a", 2), ("b", 1), ("b", 2), ("b", 3)]
