"""A claim is written and its answer lost: the jobs are leased, and nobody knows of them."""

from datetime import timedelta
from typing import Any

import pytest

import ulak
from tests.scenario.doubles import SOON, Double, engine_on, eventually, settings, store_of
from ulak.core import event
from ulak.engine.engine import Engine
from ulak.errors import StoreError
from ulak.store.protocol import ClaimRequest

LONG = timedelta(seconds=120)


@pytest.fixture
def never_compares(monkeypatch: pytest.MonkeyPatch) -> None:
    """Leave out the comparison that a worker makes every few seconds."""
    monkeypatch.setattr("ulak.engine.claim_loop.COMPARE_EVERY_S", 3600)


async def return_attempt(run: ulak.Run[Any]) -> int:
    return run.attempt


def assert_given_back_and_run(engine: Engine, jobs: list[ulak.Job]) -> None:
    for job in jobs:
        assert engine.result(job.id) == 1, "no attempt was spent"
        submitted, back, moved = engine.inspect.trail(job.id)
        assert (submitted.kind, moved.kind) == (event.SUBMITTED, event.MOVED)
        assert (back.kind, back.code) == (event.GIVEN_BACK, event.NOT_RUN)
    assert engine.inspect.verify() == []


@pytest.mark.shows("E-24")
@pytest.mark.usefixtures("never_compares")
def test_jobs_of_a_claim_that_got_no_answer_are_given_back_and_run(jobs_url: str) -> None:
    flow: ulak.Flow[Any] = ulak.Flow.steps("works", return_attempt)
    store = Double(store_of(jobs_url))

    def lose_the_first_answer(claimed: Any) -> None:
        if claimed.claims:
            del store.after["claim"]
            raise StoreError("the connection broke")

    with engine_on(store, flow) as engine:
        jobs = engine.submit_many(flow, range(5))
        store.after["claim"] = lose_the_first_answer
        with engine.working(settings(lease=60)):
            for job in jobs:
                assert engine.wait(job.id, timeout=SOON).state == "done"
        assert store.calls["leased"] == 1
        assert_given_back_and_run(engine, jobs)


@pytest.mark.shows("E-24")
def test_jobs_of_a_claim_that_nobody_heard_of_are_given_back_and_run(
    jobs_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A claim that its worker has given up may be done much later, by a server that was slow."""
    monkeypatch.setattr("ulak.engine.claim_loop.COMPARE_EVERY_S", 0.05)

    flow: ulak.Flow[Any] = ulak.Flow.steps("works", return_attempt)
    store = Double(store_of(jobs_url))

    def claim_twice(request: ClaimRequest) -> None:
        if store.store.claim(request).claims:
            del store.before["claim"]

    with engine_on(store, flow) as engine:
        jobs = engine.submit_many(flow, range(5))
        store.before["claim"] = claim_twice
        with engine.working(settings(lease=60)):
            for job in jobs:
                assert engine.wait(job.id, timeout=LONG).state == "done"
        assert_given_back_and_run(engine, jobs)


@pytest.mark.shows("E-24")
def test_a_job_that_runs_is_never_given_back(
    jobs_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Leases are compared without a pause, beside claims and commits of jobs that all run."""
    monkeypatch.setattr("ulak.engine.claim_loop.COMPARE_EVERY_S", 0)

    async def work(run: ulak.Run[Any]) -> None: ...

    flow: ulak.Flow[Any] = ulak.Flow.steps("works", work, ("again", work))
    store = Double(store_of(jobs_url))
    with engine_on(store, flow) as engine, engine.working(settings(lease=60)):
        jobs = [job for _ in range(20) for job in engine.submit_many(flow, range(10))]
        for job in jobs:
            assert engine.wait(job.id, timeout=LONG).state == "done"
        looks = store.calls["leased"]
        eventually(lambda: store.calls["leased"] > looks)
        for job in jobs:
            assert [e.kind for e in engine.inspect.trail(job.id)] == ["submitted", "moved", "moved"]
