"""Jobs are submitted over HTTP: durable when the answer comes, together when they come together."""

import asyncio
import json
import threading
from dataclasses import dataclass
from typing import Any

import httpx
import pytest

import ulak
import ulak.web
from tests.web.people import Known, as_
from ulak import Dedup, Flow, Lifecycle
from ulak.errors import UnknownOutcome

PROBLEM = {"type", "title", "status", "detail", "code", "retryable", "correlation_id"}


@dataclass
class Order:
    number: int
    card: str = ""


def shop(version: int = 1) -> Flow[Any]:
    flow: Flow[Any] = Flow(
        "shop", Lifecycle("new", {"new": ["done"]}), payload=Order, version=version,
        secret={"card"}, dedup=Dedup(key=lambda order: str(order.number)),
    )  # fmt: skip

    @flow.stage("new")
    def sell(run: Any) -> None: ...

    return flow


@pytest.fixture
def app(engine):
    for version in (1, 2):
        engine.add(shop(version))
    return ulak.web.app(engine, identity=None)


@pytest.fixture
def submit(ask, app):
    def send(body: Any, **options: Any) -> httpx.Response:
        return ask(app, "/jobs", method="POST", json=body, **options)

    return send


def test_a_job_is_accepted_and_where_it_is_to_be_found_is_told(engine, ask, app, submit):
    payload = {"number": 7, "card": "4111"}
    answer = submit({"flow": "shop", "payload": payload, "priority": 0, "tenant": "acme"})
    assert answer.status_code == 201
    document = answer.json()
    assert (document["flow"], document["state"], document["created"]) == ("shop", "new", True)
    assert (document["priority"], document["tenant"]) == (0, "acme")
    assert document["submitter"] == "anonymous"
    assert answer.headers["location"] == f"/jobs/{document['id']}"
    read = ask(app, answer.headers["location"]).json()
    assert read == {name: value for name, value in document.items() if name != "created"}
    assert engine.inspect.payload(document["id"], reveal=True) == payload


def test_the_place_of_a_job_is_told_below_the_mount(engine, ask, app):
    from fastapi import FastAPI

    outer = FastAPI()
    outer.mount("/ulak", app)
    body = {"flow": "shop", "payload": {"number": 7}}
    answer = ask(outer, "/ulak/jobs", method="POST", json=body)
    assert answer.headers["location"].startswith("/ulak/jobs/")
    assert ask(outer, answer.headers["location"]).status_code == 200


def test_the_same_submission_answers_the_first_job(submit):
    first = submit({"flow": "shop", "payload": {"number": 7}})
    again = submit({"flow": "shop", "payload": {"number": 7, "card": "another"}})
    assert (first.status_code, again.status_code) == (201, 200)
    assert again.json()["created"] is False
    assert again.json()["id"] == first.json()["id"]
    assert again.headers["location"] == first.headers["location"]
    by_key = submit({"flow": "shop", "payload": {"number": 8}, "dedup_key": "7"})
    assert (by_key.status_code, by_key.json()["id"]) == (200, first.json()["id"])


def test_the_newest_version_is_submitted_unless_one_is_named(submit):
    assert submit({"flow": "shop", "payload": {"number": 1}}).json()["version"] == 2
    named = submit({"flow": "shop", "payload": {"number": 2}, "version": 1})
    assert named.json()["version"] == 1


def test_delays_and_ends_are_seconds(engine, submit):
    body = {"flow": "shop", "payload": {"number": 1}, "after_seconds": 90, "expires_seconds": 0.5}
    job = engine.get(submit(body).json()["id"])
    assert (job.not_before - job.created_at).total_seconds() == 90
    assert (job.expires_at - job.created_at).total_seconds() == 0.5


@pytest.mark.parametrize("payload", [{"name": "ada"}, ["ada"]])
def test_a_function_takes_its_arguments_by_name_or_by_position(engine, submit, payload):
    job = submit({"flow": "greet", "payload": payload}).json()["id"]
    asyncio.run(engine.worker().run(until_idle=True))
    assert engine.result(job) == "hello ada"


@pytest.mark.parametrize(
    ("body", "words"),
    [
        ({"flow": "shap", "payload": {}}, """no flow 'shap'; there are "greet" or "shop\""""),
        ({"flow": "shop", "payload": {"number": 1}, "version": 3}, "registered are 1, 2"),
        ({"flow": "shop", "payload": {"number": "x"}}, "this is not a Order"),
        ({"flow": "shop"}, "this is not a Order"),
        ({"flow": "greet", "payload": {"nom": "ada"}}, "greet(name: str) -> str: missing"),
        ({"flow": "greet", "payload": [7]}, "Expected `str`, got `int`"),
        ({"flow": "greet", "payload": 7}, "write its arguments as an object"),
        ({"flow": "shop", "payload": {"number": 1}, "priority": 4}, "less than or equal to 3"),
        ({"flow": "shop", "payload": {"number": 1}, "priority": "1"}, "valid integer"),
        ({"flow": "shop", "payload": {"number": 1}, "after_seconds": -1}, "after_seconds"),
        ({"flow": "shop", "payload": {"number": 1}, "after_seconds": 1e300}, "after_seconds"),
        ({"flow": "shop", "payload": {"number": 1}, "expires_seconds": 0}, "expires_seconds"),
        ({"flow": "shop", "payload": {"number": 1}, "dedup_key": ""}, "dedup_key"),
        ({"flow": "shop", "payload": {"number": 1}, "dedup_key": "a\x00"}, "no store can keep"),
        ({"flow": "shop", "payload": {"number": 1}, "tenant": "\x00"}, "no store can keep"),
        ({"flow": "shop", "payload": {"number": 1}, "prioriti": 1}, "prioriti: Extra inputs"),
        ({"payload": {}}, "flow: Field required"),
        ([], "body"),
        (None, "body"),
    ],
)  # fmt: skip
def test_what_cannot_be_submitted_is_422_and_says_what_would_work(engine, submit, body, words):
    answer = submit(body)
    assert answer.status_code == 422
    assert answer.headers["content-type"] == "application/problem+json"
    assert answer.json().keys() >= PROBLEM
    assert (answer.json()["code"], answer.json()["retryable"]) == ("bad-input", False)
    assert words in answer.json()["detail"]
    assert engine.jobs() == []


@pytest.mark.parametrize(
    ("text", "status"),
    [
        (b"{", 422), (b'{"flow": "shop", "payload": NaN}', 422), (b"\xff\xfe", 422),
        (b'"\xff"', 400),
        (b'{"flow": "\\ud800"}', 422), (b'{"flow": "greet", "payload": ["\\ud800"]}', 422),
        (b'{"flow": "greet", "payload": {"\\ud800": 1}}', 422),
        (b'{"flow": "greet", "\\ud800": 1}', 422),
        (b"[" * 100_000, 400), (b'{"flow": "greet", "payload": ' + b"9" * 5000 + b"}", 400),
    ],
)  # fmt: skip
def test_a_body_that_is_no_json_or_no_text_is_a_problem(ask, app, text, status):
    headers = {"Content-Type": "application/json"}
    answer = ask(app, "/jobs", method="POST", content=text, headers=headers)
    assert answer.status_code == status
    assert answer.headers["content-type"] == "application/problem+json"
    assert answer.json().keys() >= PROBLEM


def test_a_key_function_that_cannot_read_a_payload_is_the_callers_mistake(engine, ask):
    flow: Flow[Any] = Flow(
        "loose", Lifecycle("new", {"new": ["done"]}), dedup=Dedup(key=lambda p: p["number"])
    )
    flow.stage("new")(lambda run: None)
    engine.add(flow)
    body = {"flow": "loose", "payload": {"card": "4111"}}
    answer = ask(ulak.web.app(engine, identity=None), "/jobs", method="POST", json=body)
    assert answer.status_code == 422
    assert "no key can be made of this payload (KeyError)" in answer.json()["detail"]
    assert "4111" not in answer.text


def test_a_caller_of_one_tenant_submits_for_that_tenant_only(engine, ask):
    app = ulak.web.app(engine, identity=Known())

    def submit(who: str, **more: Any) -> httpx.Response:
        body = {"flow": "greet", "payload": ["ada"], **more}
        return ask(app, "/jobs", method="POST", json=body, headers=as_(who))

    mine = submit("acme-service").json()
    assert (mine["tenant"], mine["submitter"]) == ("acme", "key:acme")
    assert submit("acme-service", tenant="acme").json()["tenant"] == "acme"
    foreign = submit("acme-service", tenant="other")
    assert (foreign.status_code, foreign.json()["code"]) == (403, "forbidden")
    assert "leave the tenant out" in foreign.json()["detail"]
    assert submit("acme-service", tenant="").status_code == 403
    assert submit("service", tenant="other").json()["tenant"] == "other"
    assert submit("viewer").status_code == 403
    assert len(engine.jobs()) == 3


@pytest.mark.shows("E-16")
def test_posts_that_come_at_once_share_commits(engine, app, monkeypatch, record_property):
    posts, commits, offers = 200, [], []
    all_are_offered = threading.Event()
    add, offer = engine.store.add, engine.kernel.intake.offer

    def slow_add(jobs):
        commits.append(len(jobs))
        # The first transaction lasts until everybody has come.
        assert all_are_offered.wait(120)
        return add(jobs)

    def counted_offer(jobs):
        answer = offer(jobs)
        offers.append(1)
        if len(offers) == posts:
            all_are_offered.set()
        return answer

    monkeypatch.setattr(engine.store, "add", slow_add)
    monkeypatch.setattr(engine.kernel.intake, "offer", counted_offer)

    async def post_all() -> list[httpx.Response]:
        transport = httpx.ASGITransport(app)
        async with httpx.AsyncClient(transport=transport, base_url="http://ulak") as client:
            bodies = [{"flow": "shop", "payload": {"number": n}} for n in range(posts)]
            return await asyncio.gather(*(client.post("/jobs", json=body) for body in bodies))

    answers = asyncio.run(post_all())
    assert {answer.status_code for answer in answers} == {201}
    assert len({answer.json()["id"] for answer in answers}) == posts
    assert len(commits) <= 2, commits
    record_property("commits", len(commits))


def test_the_loop_goes_on_while_the_store_is_being_opened(engine, app, monkeypatch):
    opening, may_open = threading.Event(), threading.Event()
    really_open = engine.store.open

    def slow_open() -> None:
        opening.set()
        assert may_open.wait(120), "the loop was held up"
        really_open()

    monkeypatch.setattr(engine.store, "open", slow_open)

    async def use() -> int:
        transport = httpx.ASGITransport(app)
        async with httpx.AsyncClient(transport=transport, base_url="http://ulak") as client:
            body = {"flow": "greet", "payload": ["ada"]}
            post = asyncio.create_task(client.post("/jobs", json=body))
            await asyncio.to_thread(opening.wait, 30)
            assert (await client.get("/health/live")).status_code == 200
            may_open.set()
            return (await post).status_code

    assert asyncio.run(use()) == 201


def test_whoever_does_not_know_whether_a_job_was_stored_is_told_its_id(engine, submit, monkeypatch):
    def lose(*_args: Any, **_options: Any) -> Any:
        raise UnknownOutcome("not acknowledged", job_id="0192")

    monkeypatch.setattr(engine.aio, "submit", lose)
    answer = submit({"flow": "shop", "payload": {"number": 1}})
    assert answer.status_code == 504
    assert json.loads(answer.content)["job_id"] == "0192"
    assert answer.json()["retryable"] is True


@pytest.mark.shows("E-84")
def test_a_payload_that_is_too_large_is_refused_with_413(engine, ask):
    flow: Flow[Any] = Flow("small", Lifecycle("new", {"new": ["done"]}), max_payload=100)

    @flow.stage("new")
    def sell(run: Any) -> None: ...

    engine.add(flow)
    app = ulak.web.app(engine, identity=None)
    answer = ask(app, "/jobs", method="POST", json={"flow": "small", "payload": "x" * 99})
    assert answer.status_code == 413
    assert answer.json()["code"] == "payload-too-large"
    assert "has 101 bytes, and 100 are allowed" in answer.json()["detail"]
    answer = ask(app, "/jobs", method="POST", json={"flow": "small", "payload": "x" * 98})
    assert answer.status_code == 201


@pytest.mark.shows("E-73")
def test_a_flow_that_takes_no_new_jobs_is_429_with_retry_after(engine, submit):
    first = submit({"flow": "shop", "payload": {"number": 1}})
    engine.flow_control.stop_accepting("shop", retry_after=6.2, actor="ada")
    refused = submit({"flow": "shop", "payload": {"number": 2}})
    assert (refused.status_code, refused.headers["retry-after"]) == (429, "7")
    document = refused.json()
    assert document.keys() == {*PROBLEM, "retry_after_seconds"}
    assert (document["code"], document["retry_after_seconds"]) == ("backpressure-active", 7)
    assert (document["retryable"], document["detail"]) == (
        True, "shop takes no new jobs now; try again in 6.2 s",
    )  # fmt: skip
    again = submit({"flow": "shop", "payload": {"number": 1}})
    assert (again.status_code, again.json()["id"]) == (200, first.json()["id"])
    engine.flow_control.accept("shop", actor="ada")
    assert submit({"flow": "shop", "payload": {"number": 2}}).status_code == 201


@pytest.mark.shows("E-73")
def test_a_flow_judges_jobs_that_come_over_http(engine, ask, app):
    flow: Flow[Any] = Flow(
        "small",
        Lifecycle("new", {"new": ["done"]}),
        admission=lambda intake: intake.payload or None,
    )
    flow.stage("new")(lambda run: None)
    engine.add(flow)
    refused = ask(app, "/jobs", method="POST", json={"flow": "small", "payload": 5})
    assert (refused.status_code, refused.headers["retry-after"]) == (429, "5")
    taken = ask(app, "/jobs", method="POST", json={"flow": "small", "payload": 0})
    assert taken.status_code == 201
