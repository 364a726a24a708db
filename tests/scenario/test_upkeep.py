"""Housekeeping reaches everybody, whoever stands in front of them."""

from datetime import timedelta
from typing import Any

import pytest

from ulak import Flow, Lifecycle
from ulak.engine.upkeep import A_PAGE
from ulak.testing import Harness


def waiting(name: str) -> Flow[Any]:
    moves = {"new": ["late", "paid"]}
    flow: Flow[Any] = Flow(name, Lifecycle("new", moves, done=["late", "paid"]))
    flow.wait("new", signal="paid", to="paid", deadline=timedelta(hours=1), on_expiry="late")
    return flow


@pytest.mark.shows("E-12", "E-50")
def test_dates_of_flows_that_nobody_here_declares_hide_no_other(shared_url: str) -> None:
    ours, foreign = waiting("ours"), waiting("foreign")
    with Harness(ours, foreign, url=shared_url) as harness:
        harness.engine.submit_many(foreign, range(2 * A_PAGE))
        job = harness.submit(ours)
    with Harness(ours, url=shared_url) as harness:
        harness.clock.advance(timedelta(hours=2))
        for _ in range(4):
            harness.run_until_idle()
        assert harness.job(job.id).state == "late"


@pytest.mark.shows("E-12")
def test_signals_that_came_early_hide_no_other_request(jobs_url: str) -> None:
    moves = {"before": ["new"], "new": ["paid"]}
    early: Flow[Any] = Flow("early", Lifecycle("before", moves, done="paid"))
    early.wait("before", after=timedelta(days=1), to="new")
    early.wait("new", signal="paid", to="paid")
    with Harness(early, url=jobs_url) as harness:
        jobs = harness.engine.submit_many(early, range(A_PAGE + 50))
        for job in jobs:
            harness.engine.signal(job.id, "paid")
        harness.advance(days=2)
        for _ in range(4):
            harness.run_until_idle()
        assert {harness.job(job.id).state for job in jobs} == {"paid"}
