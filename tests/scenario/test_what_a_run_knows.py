"""What a stage and an undo may ask of their run: the time, where the job stands, and why."""

from datetime import datetime, timedelta
from typing import Any

import pytest

import ulak
from tests.scenario import isolated
from ulak.clock import micros
from ulak.testing import Harness
from ulak.testing.conformance.desk import claim_request

SECOND = timedelta(seconds=1)
MINUTE = timedelta(minutes=1)


@pytest.mark.shows("E-89")
def test_a_run_knows_the_time_of_the_store_its_flow_and_its_state(jobs_url: str) -> None:
    seen: list[object] = []
    flow: ulak.Flow[Any] = ulak.Flow(
        "knowing",
        ulak.Lifecycle("new", {"new": ["busy"], "busy": ["next"], "next": ["done"]}),
    )

    @flow.stage("new", during="busy")
    def first(run: ulak.Run[Any]) -> None:
        seen.append((run.now, run.flow, run.state, run.code))

    @flow.stage("next")
    async def second(run: ulak.Run[Any]) -> None:
        before = run.now
        harness.clock.advance(SECOND)
        seen.append((run.now - before, run.flow, run.state, run.code))

    with Harness(flow, url=jobs_url) as harness:
        harness.advance(days=3)
        began = harness.now
        job = harness.run(flow, {})
        assert job.state == "done"
    assert seen == [
        (began, "knowing", "busy", None),
        (SECOND, "knowing", "next", None),
    ]


@pytest.mark.shows("E-89")
def test_a_stage_in_a_process_of_its_own_knows_them_too() -> None:
    with Harness(isolated.knowing) as harness:
        harness.advance(days=3)
        job = harness.run(isolated.knowing, {})
        assert harness.result(job.id) == [harness.now.isoformat(), "knowing", "ask"]


def undoing(said: list[Any], *, wait: timedelta | None) -> ulak.Flow[Any]:
    """A stage that is undone when its worker is lost, and a question that may refuse it."""
    flow: ulak.Flow[Any] = ulak.Flow(
        "booking",
        ulak.Lifecycle("new", {"new": ["asked"], "asked": ["done"]}),
        on_lapse="worker-lost",
        retry=0,
    )

    @flow.stage("new", timeout=15 * MINUTE)
    def book(run: ulak.Run[Any]) -> None:
        if run.payload == "fails":
            raise ValueError("no")

    declare = book.undo if wait is None else book.undo(wait=wait)

    @declare
    def unbook(run: ulak.Run[Any]) -> None:
        said.append((run.code, run.state, run.now))

    flow.gate("asked", choices={"yes": "done", "too-dear": "failed"})
    return flow


@pytest.mark.shows("E-89", "E-42")
def test_an_undo_knows_why_it_undoes(jobs_url: str) -> None:
    said: list[tuple[str, str, datetime]] = []
    flow = undoing(said, wait=None)
    with Harness(flow, url=jobs_url) as harness:
        harness.run(flow, "fails")
        refused, cancelled, expired = (
            harness.submit(flow, "books", expires=MINUTE if n == 2 else None) for n in range(3)
        )
        harness.run_until_idle()
        harness.engine.decide(refused.id, "too-dear", actor="op")
        harness.run_until_idle()
        harness.engine.cancel(cancelled.id, actor="op")
        harness.run_until_idle()
        harness.advance(minutes=1)
        assert harness.job(expired.id).state == "expired"
        assert harness.verify() == []
    assert [(code, state) for code, state, _ in said] == [
        ("raised", "new"),
        ("too-dear", "asked"),
        ("cancelled", "asked"),
        ("expired", "asked"),
    ]


@pytest.mark.shows("E-89", "E-43")
@pytest.mark.parametrize(("wait", "waited"), [(None, 15), (2 * MINUTE, 2), (timedelta(0), 0)])
def test_after_a_lapse_an_undo_waits_for_the_timeout_unless_the_flow_says_less(
    jobs_url: str, wait: timedelta | None, waited: int
) -> None:
    said: list[tuple[str, str, datetime]] = []
    flow = undoing(said, wait=wait)
    with Harness(flow, url=jobs_url) as harness:
        store, job = harness.engine.store, harness.submit(flow, "books")
        lanes = tuple(flow.table.lanes)
        store.register("ghost", lease_us=micros(MINUTE), lanes=lanes, about="")
        assert len(store.claim(claim_request("ghost", 1, [flow])).claims) == 1
        harness.clock.advance(2 * MINUTE)
        lost = harness.now
        harness.run_until_idle()
        assert harness.job(job.id).code == "worker-lost"
        harness.advance(hours=1)
        assert harness.job(job.id).state == "failed"
        assert said == [("worker-lost", "new", lost + waited * MINUTE)]
        assert harness.verify() == []
