"""One job over HTTP: waited for, its trail, payload, result and why; and counts of all."""

import asyncio
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import httpx
import pytest

import ulak.web
from tests.web.people import Known, as_
from ulak import Flow, Lifecycle, Limit
from ulak.engine.view import JOB_FIELDS
from ulak.web import schemas
from ulak.web.routes import jobs

NOWHERE = "0192e4a0-5b6c-7d10-8a4e-0f2b6c9d1e33"


@pytest.fixture
def app(engine):
    return ulak.web.app(engine, identity=None)


def work(engine) -> None:
    asyncio.run(engine.worker().run(until_idle=True))


def watch(app: Any, path: str, then: Callable[[httpx.AsyncClient], Any]) -> httpx.Response:
    """Ask, and while the answer is waited for, have something else done."""

    async def both() -> httpx.Response:
        transport = httpx.ASGITransport(app)
        async with httpx.AsyncClient(transport=transport, base_url="http://ulak") as client:
            asking = asyncio.create_task(client.get(path))
            await asyncio.sleep(0)
            await then(client)
            return await asking

    return asyncio.run(both())


def test_the_schema_of_a_job_has_the_fields_of_the_document() -> None:
    assert tuple(schemas.Job.model_fields) == JOB_FIELDS


@pytest.mark.parametrize(
    "path", ["", "/trail", "/payload", "/result", "/why", "?wait=1", "/trail?after=1"]
)
def test_a_job_that_is_not_there_is_404_and_what_is_no_id_422(ask, app, path):
    missing = ask(app, f"/jobs/{NOWHERE}{path}")
    assert (missing.status_code, missing.json()["code"]) == (404, "job-not-found")
    assert missing.json()["job_id"] == NOWHERE
    strange = ask(app, f"/jobs/7{path}")
    assert (strange.status_code, strange.json()["code"]) == (422, "bad-input")
    assert "an id looks like" in strange.json()["detail"]


def test_waiting_ends_with_the_job(engine, app):
    job = engine.submit(engine.greet, "ada")

    async def work_meanwhile(client: httpx.AsyncClient) -> None:
        await engine.worker().run(until_idle=True)

    answer = watch(app, f"/jobs/{job.id}?wait=60", work_meanwhile)
    assert (answer.json()["state"], answer.json()["is_final"]) == ("done", True)


def test_waiting_ends_with_the_state_that_was_asked_for(engine, ask):
    flow: Flow[Any] = Flow("slow", Lifecycle("new", {"new": ["asked"], "asked": ["done"]}))
    flow.stage("new")(lambda run: None)
    flow.gate("asked", choices={"yes": "done"})
    engine.add(flow)
    app = ulak.web.app(engine, identity=None)
    job = engine.submit(flow, None)

    async def work_meanwhile(client: httpx.AsyncClient) -> None:
        await engine.worker().run(until_idle=True)

    answer = watch(app, f"/jobs/{job.id}?wait=60&until=asked", work_meanwhile)
    assert (answer.json()["state"], answer.json()["is_final"]) == ("asked", False)
    at_once = ask(app, f"/jobs/{job.id}?wait=60&until=asked")
    assert at_once.json()["state"] == "asked"
    in_vain = ask(app, f"/jobs/{job.id}?wait=60&until=askd")
    assert in_vain.status_code == 422
    assert "slow has no state 'askd'; it has \"new\"" in in_vain.json()["detail"]


def test_when_the_time_is_over_the_job_is_answered_as_it_stands(engine, ask, app):
    job = engine.submit(engine.greet, "ada")
    answer = ask(app, f"/jobs/{job.id}?wait=0.01")
    assert (answer.status_code, answer.json()["state"]) == (200, "queued")


@pytest.mark.parametrize("query", ["wait=-1", "wait=61", "wait=nan", "wait=x", "watch=1"])
def test_a_wait_that_makes_no_sense_is_422(engine, ask, app, query):
    job = engine.submit(engine.greet, "ada")
    assert ask(app, f"/jobs/{job.id}?{query}").status_code == 422


def test_a_trail_is_read_in_pages(engine, ask, app):
    job = engine.submit(engine.greet, "ada", actor="ada")
    work(engine)
    whole = ask(app, f"/jobs/{job.id}/trail").json()
    assert whole["next"] is None
    first = whole["items"][0]
    assert (first["seq"], first["kind"], first["actor"]) == (1, "submitted", "ada")
    assert whole["items"][-1]["to_state"] == "done"
    assert whole["items"][0]["at"].endswith("Z")
    seen, after = [], 0
    while after is not None:
        page = ask(app, f"/jobs/{job.id}/trail?after={after}&limit=1").json()
        seen += page["items"]
        after = page["next"]
    assert seen == whole["items"]
    assert ask(app, f"/jobs/{job.id}/trail?limit=0").status_code == 422
    assert ask(app, f"/jobs/{job.id}/trail?after={2**70}").status_code == 422


def test_secrets_of_a_payload_stay_hidden(engine, ask):
    flow: Flow[Any] = Flow("sale", Lifecycle("new", {"new": ["done"]}), secret={"card"})
    flow.stage("new")(lambda run: None)
    engine.add(flow)
    job = engine.submit(flow, {"card": "4111", "order": 7})
    answer = ask(ulak.web.app(engine, identity=None), f"/jobs/{job.id}/payload")
    assert answer.json() == {"payload": {"card": "***", "order": 7}}


@pytest.mark.shows("E-79")
def test_a_result_is_there_when_the_job_has_ended_well(engine, ask, app):
    job = engine.submit(engine.greet, "ada")
    early = ask(app, f"/jobs/{job.id}/result")
    assert (early.status_code, early.json()["code"]) == (409, "not-finished")
    gone = engine.submit(engine.greet, "bob")
    engine.cancel(gone.id, actor="ada", note="bought twice")
    failed = ask(app, f"/jobs/{gone.id}/result")
    assert (failed.status_code, failed.json()["code"]) == (409, "job-failed")
    said = {name: failed.json()[name] for name in ("job_id", "state", "reason")}
    assert said == {"job_id": gone.id, "state": "cancelled", "reason": "cancelled"}
    assert "bought twice" in failed.json()["detail"]
    work(engine)
    assert ask(app, f"/jobs/{job.id}/result").json() == {"result": "hello ada"}


def test_why_a_job_stands_is_told(engine, ask, app):
    job = engine.submit(engine.greet, "ada", after=timedelta(hours=1))
    why = ask(app, f"/jobs/{job.id}/why").json()
    assert why["code"] == engine.inspect.why(job.id).code
    assert why["sentence"] == engine.inspect.why(job.id).sentence
    assert isinstance(why["facts"], dict)


def test_why_names_no_job_of_another_tenant(engine, ask):
    flow: Flow[Any] = Flow("narrow", Lifecycle("new", {"new": ["done"]}))

    @flow.stage("new", limit=Limit(1))
    def look(run: Any) -> None:
        for name in () if why else ("mine", "theirs"):
            why[name] = [ask_why(name, who) for who in ("acme-operator", "admin")]

    def ask_why(name: str, who: str) -> Any:
        return ask(app, f"/jobs/{parked[name]}/why", headers=as_(who)).json()

    engine.add(flow)
    app = ulak.web.app(engine, identity=Known())
    why: dict[str, Any] = {}
    running = engine.submit(flow, None, tenant="other", priority=0).id
    parked = {
        "mine": engine.submit(flow, None, tenant="acme").id,
        "theirs": engine.submit(flow, None, tenant="other").id,
    }
    work(engine)
    for_acme, for_admin = why["mine"]
    assert for_admin["code"] == for_acme["code"] == "parked"
    assert for_admin["facts"]["held_by"] == [running]
    assert for_acme["facts"]["held_by"] == []
    assert running not in str(for_acme)
    assert "held by 1 of others" in for_acme["sentence"]
    assert why["theirs"][0]["code"] == "job-not-found"


def test_jobs_are_counted_by_flow_version_and_state(engine, ask, app):
    for name in "ab":
        engine.submit(engine.greet, name)
    count = {"flow": "greet", "version": 1, "state": "queued", "role": "ready", "jobs": 2}
    assert ask(app, "/counts").json() == {"items": [count], "complete": True}


def test_a_tenant_gets_the_counts_of_its_own_newest_jobs(engine, ask, monkeypatch):
    app = ulak.web.app(engine, identity=Known())
    for tenant in ("acme", "acme", "acme", "other"):
        engine.submit(engine.greet, "ada", tenant=tenant)

    def counts(who: str) -> tuple[int, bool]:
        document = ask(app, "/counts", headers=as_(who)).json()
        return sum(item["jobs"] for item in document["items"]), document["complete"]

    assert counts("viewer") == (4, True)
    assert counts("acme-operator") == (3, True)
    monkeypatch.setattr(jobs, "MOST_COUNTED", 2)
    assert counts("acme-operator") == (2, False)
    assert counts("viewer") == (4, True)


def test_a_foreign_tenant_sees_nothing(engine, ask):
    app = ulak.web.app(engine, identity=Known())
    mine = engine.submit(engine.greet, "ada", tenant="acme").id
    foreign = engine.submit(engine.greet, "eve", tenant="other").id
    work(engine)

    def ids(query: str) -> list[str]:
        answer = ask(app, f"/jobs{query}", headers=as_("acme-operator"))
        return [job["id"] for job in answer.json()["items"]]

    assert ids("") == ids("?tenant=acme") == [mine]
    assert ids("?tenant=other") == ids("?tenant=") == []
    for part in ("", "?wait=1", "/trail", "/payload", "/result", "/why"):
        assert ask(app, f"/jobs/{mine}{part}", headers=as_("acme-operator")).status_code == 200
        answer = ask(app, f"/jobs/{foreign}{part}", headers=as_("acme-operator"))
        absent = ask(app, f"/jobs/{NOWHERE}{part}", headers=as_("acme-operator"))
        assert (answer.status_code, answer.json()["code"]) == (404, "job-not-found")
        # Nothing tells a foreign job from one that does not exist.
        assert answer.json()["detail"] == absent.json()["detail"].replace(NOWHERE, foreign)
