"""What the program declares, over HTTP."""

from dataclasses import dataclass
from datetime import timedelta

import pytest

import ulak.web
from tests.web.people import Known, as_, person
from ulak import SUBMITTER, Flow, Lifecycle, Limit, Rate


@dataclass
class Verdict:
    limit: int


def loans(version: int = 1) -> Flow:
    moves = {
        "asked": ["in_review"],
        "in_review": ["approved", "refused"],
        "approved": ["signing"],
        "signing": ["paid", "abandoned"],
    }
    flow = Flow(
        "loans",
        Lifecycle("asked", moves, done=["paid", "refused"], expired="abandoned"),
        version=version,
    )

    @flow.stage("asked", limit=Limit(2), queue="desk")
    def look(run): ...

    @flow.stage("approved", rate=Rate(5, per=timedelta(minutes=1), key=lambda p: "a"), retry=7)
    def pay(run): ...

    @pay.undo
    def take_back(run): ...

    flow.gate(
        "in_review", choices={"approve": "approved", "refuse": "refused"}, data=Verdict,
        by={"officer"}, not_by=SUBMITTER, deadline=timedelta(days=3), on_expiry="refused",
        refusals={"refuse"},
    )  # fmt: skip
    flow.wait(
        "signing", signal="signed", to="paid", deadline=timedelta(hours=1), on_expiry="abandoned"
    )
    return flow


@pytest.fixture
def app(engine):
    engine.add(loans())
    engine.add(loans(2))
    return ulak.web.app(
        engine, identity=Known(person("ada", "viewer"), person("ann", "viewer", "a"))
    )


def test_flows_are_listed_with_the_jobs_of_each_state(engine, ask, app):
    engine.submit(engine.greet, "a", tenant="a")
    engine.submit(engine.greet, "b")
    greet, lent = ask(app, "/flows", headers=as_("ada")).json()["items"]
    assert (greet["name"], lent["name"]) == ("greet", "loans")
    assert greet["versions"] == [{"version": 1, "is_declared": True, "jobs": 2}]
    assert greet["states"][0] == {"state": "queued", "role": "ready", "jobs": 2}
    assert [v["version"] for v in lent["versions"]] == [1, 2]
    assert {"state": "in_review", "role": "held", "jobs": 0} in lent["states"]


def test_whoever_sees_one_tenant_learns_nothing_of_the_others_counts(engine, ask, app):
    engine.submit(engine.greet, "b", tenant="b")
    greet, _ = ask(app, "/flows", headers=as_("ann")).json()["items"]
    assert greet["versions"][0]["jobs"] is None
    assert {state["jobs"] for state in greet["states"]} == {None}


def test_a_flow_that_only_its_jobs_remember_is_listed(engine, ask, app):
    other = ulak.Engine(engine.store)

    @other.job
    def forgotten() -> None: ...

    other.submit(forgotten)
    listed = ask(app, "/flows", headers=as_("ada")).json()["items"]
    (found,) = [flow for flow in listed if flow["name"] == "forgotten"]
    assert found["versions"] == [{"version": 1, "is_declared": False, "jobs": 1}]
    assert found["states"] == [{"state": "queued", "role": "ready", "jobs": 1}]


def test_a_flow_is_shown_whole(ask, app):
    flow = ask(app, "/flows/loans", headers=as_("ada")).json()
    assert (flow["version"], flow["versions"], flow["initial"]) == (2, [1, 2], "asked")
    assert flow["states"]["in_review"] == "held"
    assert flow["moves"]["signing"] == ["paid", "abandoned"]
    asked, approved = flow["stages"]
    assert (asked["queue"], asked["pool"], asked["to"]) == ("desk", "thread", ["in_review"])
    assert asked["limit"] == {"name": "loans/asked", "n": 2, "keyed": False}
    assert approved["rate"] == {
        "name": "loans/approved", "n": 5, "per_seconds": 60.0, "burst": 5, "keyed": True,
    }  # fmt: skip
    assert (approved["retries"], approved["has_undo"], asked["has_undo"]) == (7, True, False)
    assert flow["gates"] == [
        {
            "state": "in_review",
            "choices": {"approve": "approved", "refuse": "refused"},
            "roles": ["officer"],
            "not_by": ["submitter"],
            "refusals": ["refuse"],
            "deadline_seconds": 259200.0,
            "on_expiry": "refused",
        }
    ]
    (wait,) = flow["waits"]
    assert (wait["signal"], wait["to"], wait["on_expiry"]) == ("signed", "paid", "abandoned")
    assert flow["mermaid"].startswith("stateDiagram-v2")
    assert ask(app, "/flows/loans?version=1", headers=as_("ada")).json()["version"] == 1


def test_a_flow_is_drawn_as_plain_text(ask, app):
    answer = ask(app, "/flows/loans/diagram", headers=as_("ada"))
    assert answer.headers["content-type"].startswith("text/plain")
    assert answer.text.startswith("stateDiagram-v2")
    assert "approve" in answer.text


@pytest.mark.parametrize(
    ("path", "sentence"),
    [
        ("/flows/laons", "there is no flow 'laons'; this program declares greet, loans"),
        ("/flows/laons/diagram", "there is no flow 'laons'"),
        ("/flows/loans?version=3", "loans has no version 3; this program declares 1, 2"),
    ],
)
def test_a_flow_that_is_not_there_is_404_and_the_others_are_named(ask, app, path, sentence):
    answer = ask(app, path, headers=as_("ada"))
    assert (answer.status_code, answer.json()["code"]) == (404, "not-found")
    assert sentence in answer.json()["detail"]
