"""A job waits for the clock or for the world outside."""

from dataclasses import dataclass
from datetime import timedelta
from typing import Any

import pytest

from ulak import BadInput, Dedup, Flow, Goto, JobNotFound, Lifecycle, TransitionNotAllowed
from ulak.testing import Harness


@dataclass
class Payment:
    amount: int


def order() -> Flow[Any]:
    moves = {
        "new": ["unpaid"], "unpaid": ["paid", "abandoned"], "paid": ["resting"],
        "resting": ["done"],
    }  # fmt: skip
    flow: Flow[Any] = Flow(
        "order",
        Lifecycle("new", moves, done=["done", "abandoned"]),
        dedup=Dedup(key=lambda payload: payload["number"]),
    )

    @flow.stage("new")
    def begin(run: Any) -> None: ...

    unpaid = flow.wait(
        "unpaid", signal="payment", to="paid", data=Payment, deadline=timedelta(days=14),
        on_expiry="abandoned",
    )  # fmt: skip

    @flow.stage("paid")
    def rest(run: Any) -> Any:
        return Goto("resting", after=timedelta(hours=2), result=run.signal(unpaid).amount)

    flow.wait("resting", after=timedelta(days=1), to="done")
    return flow


@pytest.mark.shows("E-12")
def test_a_signal_ends_the_wait_and_carries_its_data(jobs_url: str) -> None:
    with Harness(order(), url=jobs_url) as harness:
        job = harness.run(harness.engine.inspect.flows[0], {"number": "A-1"})
        assert job.state == "unpaid"
        harness.engine.signal(job.id, "payment", Payment(42), actor="bank")
        harness.run_until_idle()
        assert harness.engine.inspect.result(job.id) == 42
        signalled = [e for e in harness.trail(job.id) if e.kind == "signalled"]
        assert [(e.actor, e.code, e.to_state) for e in signalled] == [("bank", "payment", "paid")]
        assert harness.verify() == []


@pytest.mark.shows("E-12")
def test_a_signal_that_comes_before_the_wait_is_kept_for_it(jobs_url: str) -> None:
    with Harness(order(), url=jobs_url) as harness:
        job = harness.submit(harness.engine.inspect.flows[0], {"number": "A-1"})
        early = harness.engine.signal(job.id, "payment", Payment(7))
        assert early.state == "new"
        harness.run_until_idle()
        assert harness.job(job.id).state == "resting"
        assert harness.engine.inspect.result(job.id) == 7
        assert harness.verify() == []


@pytest.mark.shows("E-12")
def test_a_job_is_found_by_its_flow_and_its_key(jobs_url: str) -> None:
    with Harness(order(), url=jobs_url) as harness:
        flow = harness.engine.inspect.flows[0]
        ours = harness.run(flow, {"number": "A-1"}, tenant="ours")
        theirs = harness.run(flow, {"number": "A-1"}, tenant="theirs")
        harness.engine.signal(("order", "A-1"), "payment", Payment(1), tenant="theirs")
        harness.run_until_idle()
        assert harness.job(theirs.id).state == "resting"
        assert harness.job(ours.id).state == "unpaid"
        with pytest.raises(JobNotFound, match="A-1"):
            harness.engine.signal(("order", "A-1"), "payment", Payment(1))


@pytest.mark.shows("E-12")
def test_a_wait_ends_at_its_deadline_and_not_before(jobs_url: str) -> None:
    with Harness(order(), url=jobs_url) as harness:
        job = harness.run(harness.engine.inspect.flows[0], {"number": "A-1"})
        harness.advance(days=13, hours=23, minutes=59)
        assert harness.job(job.id).state == "unpaid"
        harness.advance(minutes=1)
        assert harness.job(job.id).state == "abandoned"
        assert harness.trail(job.id)[-1].kind == "waited"
        with pytest.raises(TransitionNotAllowed) as refusal:
            harness.engine.signal(job.id, "payment", Payment(1))
        assert refusal.value.code == "too-late"


@pytest.mark.shows("E-12")
def test_a_stage_says_how_long_the_next_state_waits(jobs_url: str) -> None:
    with Harness(order(), url=jobs_url) as harness:
        job = harness.run(harness.engine.inspect.flows[0], {"number": "A-1"})
        harness.engine.signal(job.id, "payment", Payment(1))
        harness.run_until_idle()
        rested_at = harness.now
        assert harness.why(job.id).facts["until"] == rested_at + timedelta(hours=2)
        harness.advance(days=1)
        assert harness.trail(job.id)[-1].at == rested_at + timedelta(hours=2)
        assert harness.job(job.id).state == "done"


@pytest.mark.shows("E-12")
def test_a_second_signal_of_the_same_name_is_one(jobs_url: str) -> None:
    with Harness(order(), url=jobs_url) as harness:
        job = harness.submit(harness.engine.inspect.flows[0], {"number": "A-1"})
        harness.engine.signal(job.id, "payment", Payment(1))
        harness.engine.signal(job.id, "payment", Payment(2))
        harness.run_until_idle()
        assert harness.engine.inspect.result(job.id) == 1
        assert [e.kind for e in harness.trail(job.id)].count("signalled") == 1


@pytest.mark.shows("E-12")
def test_a_signal_that_no_wait_declares_is_refused_by_name() -> None:
    with Harness(order()) as harness:
        job = harness.run(harness.engine.inspect.flows[0], {"number": "A-1"})
        with pytest.raises(TransitionNotAllowed, match="order waits for payment, not for 'pay'"):
            harness.engine.signal(job.id, "pay")


@pytest.mark.shows("E-12")
def test_a_signal_whose_data_does_not_fit_is_refused_and_the_job_goes_on_waiting() -> None:
    with Harness(order()) as harness:
        job = harness.run(harness.engine.inspect.flows[0], {"number": "A-1"})
        with pytest.raises(BadInput):
            harness.engine.signal(job.id, "payment", {"amount": "a lot"})
        assert harness.job(job.id).state == "unpaid"
