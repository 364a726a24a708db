"""What is stored does not fit what the program declares any more."""

from dataclasses import dataclass
from typing import Any

import pytest

from ulak import Flow, Lifecycle, Run
from ulak.testing import Harness


@dataclass
class Old:
    name: str


@dataclass
class New:
    first: str
    last: str


def greeting(payload: Any, **options: Any) -> Flow[Any]:
    flow: Flow[Any] = Flow(
        "greeting", Lifecycle("new", {"new": ["done"]}), payload=payload, **options
    )

    @flow.stage("new")
    def greet(run: Run[Any]) -> str:
        return repr(run.payload)

    return flow


def store_old(url: str) -> str:
    old = greeting(Old)
    with Harness(old, url=url) as harness:
        return harness.submit(old, Old("Ada Lovelace")).id


@pytest.mark.shows("E-51")
def test_a_payload_that_cannot_be_read_holds_that_job_alone_and_spends_no_attempt(
    shared_url: str,
) -> None:
    old = store_old(shared_url)
    with Harness(greeting(New), url=shared_url) as harness:
        flow = harness.engine.inspect.flows[0]
        beside = harness.submit(flow, New("Grace", "Hopper"))
        harness.run_until_idle()
        held = harness.job(old)
        assert (held.role, held.code, held.attempt) == ("held", "payload-unreadable", 0)
        assert [event.kind for event in harness.trail(old)] == ["submitted", "held"]
        assert harness.job(beside.id).state == "done"
        assert harness.verify() == []


@pytest.mark.shows("E-51")
def test_a_held_job_goes_on_once_the_program_can_read_it(shared_url: str) -> None:
    old = store_old(shared_url)
    with Harness(greeting(New), url=shared_url) as harness:
        harness.run_until_idle()
        assert harness.job(old).role == "held"
    with Harness(greeting(Old), url=shared_url) as harness:
        harness.engine.release(old, actor="op", note="the old program is back")
        harness.run_until_idle()
        assert harness.result(old) == "Old(name='Ada Lovelace')"


@pytest.mark.shows("E-51")
def test_an_older_schema_is_upgraded_before_it_is_read(shared_url: str) -> None:
    old = store_old(shared_url)
    seen = []

    def upgrade(version: int, data: Any) -> Any:
        seen.append((version, data))
        first, last = data["name"].split()
        return {"first": first, "last": last}

    with Harness(greeting(New, schema=2, upgrade=upgrade), url=shared_url) as harness:
        new = harness.submit(harness.engine.inspect.flows[0], New("Grace", "Hopper"))
        harness.run_until_idle()
        assert harness.result(old) == "New(first='Ada', last='Lovelace')"
        assert harness.result(new.id) == "New(first='Grace', last='Hopper')"
    assert seen == [(1, {"name": "Ada Lovelace"})]


@pytest.mark.shows("E-51")
@pytest.mark.parametrize("error", [KeyError, AttributeError, RuntimeError])
def test_an_upgrade_that_fails_holds_the_job_like_any_unreadable_payload(
    shared_url: str, error: type[Exception]
) -> None:
    old = store_old(shared_url)

    def upgrade(version: int, data: Any) -> Any:
        raise error("given_name")

    with Harness(greeting(New, schema=2, upgrade=upgrade), url=shared_url) as harness:
        beside = harness.submit(harness.engine.inspect.flows[0], New("Grace", "Hopper"))
        harness.run_until_idle()
        held = harness.job(old)
        assert (held.code, held.attempt) == ("payload-unreadable", 0)
        assert "given_name" in harness.why(old).sentence
        assert harness.job(beside.id).state == "done"


@pytest.mark.shows("E-51")
def test_a_result_that_cannot_be_read_holds_the_job_that_asked_for_it() -> None:
    flow: Flow[Any] = Flow("two", Lifecycle("a", {"a": ["b"], "b": ["done"]}))

    @flow.stage("a")
    def a(run: Any) -> int:
        text: Any = "not a number"
        return text  # type: ignore[no-any-return]

    @flow.stage("b")
    def b(run: Any) -> int:
        return run.result(a) + 1  # type: ignore[no-any-return]

    with Harness(flow) as harness:
        job = harness.run(flow)
        assert (job.role, job.code, job.attempt) == ("held", "payload-unreadable", 0)
        assert 'the result of "a"' in harness.why(job.id).sentence
