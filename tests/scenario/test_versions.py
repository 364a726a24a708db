"""A flow changes while jobs of the old kind are under way."""

from itertools import pairwise
from typing import Any

import pytest

from ulak import Flow, FlowError, Lifecycle
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
        new = harness.run(harness.engine.flows[0])
        assert new.state == "done"
        left = harness.job(job_id)
        assert (left.state, left.version, left.attempt) == ("sent", 1, 0)
        harness.engine.store.register(
            "w", lease_us=10**9, lanes=sorted(harness.engine.flows[0].table.lanes), about=""
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


@pytest.mark.shows("E-50")
def test_a_start_is_refused_when_a_stored_job_sits_in_a_state_that_its_version_lacks(
    stored: tuple[str, str],
) -> None:
    url, _ = stored
    harness = Harness(parcel(1, "new", "sorted"), url=url)
    with pytest.raises(FlowError) as refusal:
        harness.engine.open()
    assert str(refusal.value) == (
        'parcel: 1 stored jobs of version 1 are in "sent", which this version lacks; '
        "put the state back or declare the change as version 2"
    )
    harness.engine.store.close()


@pytest.mark.shows("E-50")
def test_a_start_is_not_refused_over_a_version_that_is_not_declared(
    stored: tuple[str, str],
) -> None:
    url, _ = stored
    with Harness(parcel(2, "elsewhere"), url=url) as harness:
        assert harness.run(harness.engine.flows[0]).state == "done"


def test_one_version_is_declared_once() -> None:
    with pytest.raises(FlowError, match="version 1 is registered twice"):
        Harness(parcel(1, "new"), parcel(1, "new"))
