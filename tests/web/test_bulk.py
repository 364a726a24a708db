"""Bulk acts over HTTP: said explicitly, counted, then confirmed by whoever counted."""

import asyncio
from typing import Any

import httpx
import pytest

import ulak.web
from tests.web.people import Known, as_
from ulak.auth.identity import Identity


@pytest.fixture
def app(engine):
    @engine.job(retry=0)
    def fail(why: str) -> None:
        raise ValueError(why)

    for tenant in ("acme", "acme", "other"):
        engine.submit(fail, "no", tenant=tenant)
    asyncio.run(engine.worker().run(until_idle=True))
    return ulak.web.app(engine, identity=Known())


@pytest.fixture
def bulk(ask, app):
    def send(who: str = "operator", **body: Any) -> httpx.Response:
        return ask(app, "/jobs/bulk", method="POST", json=body, headers=as_(who))

    return send


def roles(engine) -> list[str]:
    return sorted(job.role for job in engine.jobs())


def test_the_same_request_with_the_token_does_what_was_counted(engine, bulk):
    asked = {"action": "retry", "where": {"flow": "fail"}, "note": "again"}
    counted = bulk(**asked).json()
    assert (counted["count"], set(counted)) == (3, {"count", "token", "expires_at"})
    assert counted["expires_at"].endswith("Z")
    assert roles(engine) == ["failed"] * 3
    done = bulk(**asked, token=counted["token"])
    assert (done.status_code, done.json()) == (
        200, {"done": 3, "refused": [], "refused_count": 0, "left": 0}
    )  # fmt: skip
    assert roles(engine) == ["ready"] * 3
    assert engine.inspect.trail(engine.jobs()[0].id)[-1].actor == "olga"


@pytest.mark.parametrize("where", [{}, {"all": False}, {"all": True, "flow": "fail"}])
def test_every_job_is_meant_only_when_that_is_said(engine, bulk, where):
    answer = bulk(action="retry", where=where)
    assert (answer.status_code, answer.json()["code"]) == (422, "bad-input")
    assert '{"all": true}' in answer.json()["detail"]
    assert bulk(action="retry", where={"all": True}).json()["count"] == 3


def test_another_filter_or_another_caller_is_not_confirmed(engine, bulk):
    token = bulk(action="retry", where={"flow": "fail"}).json()["token"]
    for who, body in (
        ("operator", {"action": "retry", "where": {"all": True}}),
        ("operator", {"action": "cancel", "where": {"flow": "fail"}}),
        ("other-operator", {"action": "retry", "where": {"flow": "fail"}}),
    ):
        answer = bulk(who, **body, token=token)
        assert answer.status_code == 422
        assert "another action, filter, choice or caller" in answer.json()["detail"]
    assert roles(engine) == ["failed"] * 3


def test_a_caller_of_one_tenant_acts_on_its_own_jobs(engine, bulk):
    asked = {"action": "retry", "where": {"all": True}}
    counted = bulk("acme-operator", **asked).json()
    assert counted["count"] == 2
    assert bulk("acme-operator", **asked, token=counted["token"]).json()["done"] == 2
    assert {job.tenant for job in engine.jobs() if job.role == "failed"} == {"other"}
    foreign = bulk("acme-operator", action="retry", where={"tenant": "other"})
    assert (foreign.status_code, foreign.json()["code"]) == (403, "forbidden")


@pytest.mark.parametrize(
    "body",
    [
        {"action": "delete", "where": {"all": True}},
        {"action": "decide", "where": {"all": True}},
        {"action": "retry", "where": {"role": "held"}},
        {"action": "retry", "where": {"colour": "red"}},
        {"action": "retry", "where": {"all": "yes"}},
        {"action": "retry", "where": {"role": "busy bee"}},
        {"action": "retry", "where": {"all": True}, "token": "1.abc"},
        {"action": "retry"},
    ],
)
def test_what_makes_no_sense_is_422(engine, bulk, body):
    answer = bulk(**body)
    assert (answer.status_code, answer.json()["code"]) == (422, "bad-input")
    assert roles(engine) == ["failed"] * 3


def test_processes_with_the_same_secret_take_each_others_tokens(engine, ask, app):
    identities = [Identity(engine.open().store, secret=letter * 32) for letter in "aab"]
    apps = [ulak.web.app(engine, identity=identity) for identity in identities]
    key = identities[0].create_key("olga", roles=["operator"], actor="ada").text
    body = {"action": "retry", "where": {"flow": "fail"}}

    def send(to: Any, **more: Any) -> httpx.Response:
        return ask(to, "/jobs/bulk", method="POST", json={**body, **more}, headers=as_(key))

    token = send(apps[0]).json()["token"]
    assert send(apps[2], token=token).status_code == 422
    assert send(app, token=token).status_code == 401, "it knows nobody of these"
    assert send(apps[1], token=token).json()["done"] == 3


def test_only_those_who_may_act_may_act_in_bulk(bulk):
    for who in ("viewer", "service", "acme-service"):
        assert bulk(who, action="retry", where={"all": True}).status_code == 403
