"""Housekeeping reaches everybody, whoever stands in front of them."""

from datetime import timedelta
from typing import Any

import pytest

from tests.scenario.doubles import Double, engine_on
from ulak import Flow, Lifecycle, wiring
from ulak.clock import ManualClock
from ulak.engine.upkeep import A_PAGE, MOST_PAGES, Upkeep
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


@pytest.mark.shows("E-85")
def test_deadlines_that_come_together_are_committed_in_batches(jobs_url: str) -> None:
    """Broken by a commit for each job, or by a pass that goes on until nothing is left."""
    flow = waiting("late")
    clock = ManualClock()
    store = Double(wiring.store_of(jobs_url, clock=clock))
    batches: list[int] = []
    store.before["commit"] = lambda changes: batches.append(len(changes))
    with engine_on(store, flow) as engine:
        for _ in range(3):
            engine.submit_many(flow, range(500))
        upkeep = Upkeep(engine.kernel, 0)
        clock.advance(timedelta(hours=2))
        passes: list[int] = []
        while upkeep.tick():
            passes.append(sum(batches))
            assert len(batches) <= MOST_PAGES
            assert upkeep.has_more is (len(passes) == 1), "the next pass follows at once"
            batches.clear()
        assert passes == [MOST_PAGES * A_PAGE, 1500 - MOST_PAGES * A_PAGE]
        assert {(c.state, c.jobs) for c in engine.inspect.counts() if c.jobs} == {("late", 1500)}


@pytest.mark.shows("E-85")
@pytest.mark.parametrize("unparked", [A_PAGE - 1, A_PAGE])
def test_a_full_page_of_unparked_jobs_is_followed_by_the_next_at_once(
    unparked: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = wiring.store_of("memory://")
    monkeypatch.setattr(store, "unpark", lambda limit: unparked)
    with engine_on(store) as engine:
        upkeep = Upkeep(engine.kernel, 0)
        assert upkeep.tick() == unparked
        assert upkeep.has_more is (unparked == A_PAGE)
