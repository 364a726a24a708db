"""Jobs and messages that gave up, over HTTP."""

import asyncio

import pytest

import ulak
import ulak.web
from tests.web.people import Known, as_, person
from ulak import Flow, Lifecycle
from ulak.store.protocol import Settled


@pytest.fixture
def engine():
    made = ulak.connect("memory://")
    made.bank_is_up = False

    @made.job(retry=0)
    def charge(n: int) -> None:
        if not made.bank_is_up:
            raise ConnectionError("the bank does not answer")

    made.charge = charge
    with made:
        yield made


@pytest.fixture
def say(engine, ask):
    app = ulak.web.app(
        engine, identity=Known(person("ada", "operator"), person("ann", "operator", "a"))
    )

    def send(method, path, status=200, who="ada", **options):
        answer = ask(app, path, method=method, headers=as_(who), **options)
        assert answer.status_code == status, answer.text
        return answer.json()

    return send


def work(engine) -> None:
    asyncio.run(engine.worker().run(until_idle=True))


def test_dead_letters_are_listed_in_pages_by_flow_and_code(engine, say):
    jobs = [engine.submit(engine.charge, n).id for n in range(3)]
    work(engine)
    engine.submit(engine.charge, 9)
    page = say("GET", "/dead-letters?limit=2&flow=charge")
    rest = say("GET", f"/dead-letters?limit=2&flow=charge&after={page['next']}")
    assert [job["id"] for job in page["items"] + rest["items"]] == jobs[::-1]
    assert rest["next"] is None
    code = page["items"][0]["code"]
    assert len(say("GET", f"/dead-letters?code={code}")["items"]) == 3
    assert say("GET", "/dead-letters?code=other")["items"] == []
    say("GET", "/dead-letters?colour=red", 422)


def test_a_dead_letter_is_run_again_in_a_new_round(engine, say):
    job = engine.submit(engine.charge, 1)
    work(engine)
    engine.bank_is_up = True
    again = say("POST", f"/dead-letters/{job.id}/redrive", json={"note": "the bank is back"})
    assert (again["round"], again["role"]) == (2, "ready")
    assert engine.inspect.trail(job.id)[-1].actor == "ada"
    work(engine)
    assert engine.get(job.id).state == "done"
    problem = say("POST", f"/dead-letters/{job.id}/redrive", 409, json={})
    assert problem["code"] == "transition-not-allowed"
    say("POST", "/dead-letters/0192e4a0-5b6c-7d10-8a4e-0f2b6c9d1e33/redrive", 404, json={})


def test_nobody_sees_or_redrives_the_dead_letters_of_another_tenant(engine, say):
    own, foreign = (engine.submit(engine.charge, 1, tenant=tenant).id for tenant in "ab")
    work(engine)
    assert [job["id"] for job in say("GET", "/dead-letters", who="ann")["items"]] == [own]
    problem = say("POST", f"/dead-letters/{foreign}/redrive", 404, who="ann", json={})
    assert problem["code"] == "job-not-found"
    assert engine.get(foreign).role == "failed"
    say("POST", f"/dead-letters/{own}/redrive", who="ann", json={})


def test_a_crowd_of_dead_letters_is_counted_first_and_run_again_with_a_token(engine, say):
    jobs = [engine.submit(engine.charge, n, tenant=tenant).id for n, tenant in enumerate("aab")]
    work(engine)
    engine.bank_is_up = True
    asked = {"flow": "charge", "note": "the bank is back"}
    counted = say("POST", "/dead-letters/redrive", json=asked)
    assert counted["count"] == 3
    assert len(say("GET", "/dead-letters")["items"]) == 3
    own = say("POST", "/dead-letters/redrive", who="ann", json=asked)
    assert own["count"] == 2
    # What was counted for one caller, or for one filter, confirms nothing else.
    say("POST", "/dead-letters/redrive", 422, who="ann", json={**asked, "token": counted["token"]})
    other = {"flow": "other", "token": counted["token"]}
    say("POST", "/dead-letters/redrive", 422, json=other)
    did = say("POST", "/dead-letters/redrive", json={**asked, "token": counted["token"]})
    assert (did["done"], did["refused_count"], did["left"]) == (3, 0, 0)
    assert {engine.inspect.trail(job)[-1].actor for job in jobs} == {"ada"}
    work(engine)
    assert {engine.get(job).state for job in jobs} == {"done"}


@pytest.fixture
def dead_message(engine):
    """A job's message that nobody could publish."""
    flow = Flow("orders", Lifecycle("new", {"new": ["done"]}))

    @flow.stage("new")
    def emit(run):
        run.emit("orders", {"n": 1}, key="4711")

    engine.add(flow)
    job = engine.submit(flow, {})
    work(engine)
    (row,) = engine.store.scan_messages(bytes.fromhex(job.id.replace("-", "")))
    engine.store.settle_messages([Settled(row.message, "", "dead")])
    return f"{job.id}/{row.message.seq}/{row.message.n}"


def test_a_dead_message_is_listed_and_revived_once(say, dead_message):
    (found,) = say("GET", "/outbox/dead")["items"]
    assert (found["id"], found["topic"], found["key"]) == (dead_message, "orders", "4711")
    assert say("POST", f"/outbox/dead/{dead_message}/revive")["id"] == dead_message
    assert say("GET", "/outbox/dead")["items"] == []
    assert "no dead message" in say("POST", f"/outbox/dead/{dead_message}/revive", 404)["detail"]


@pytest.mark.parametrize(
    "name", ["x", "7/1/1", "0192e4a0-5b6c-7d10-8a4e-0f2b6c9d1e33/1/1", "-" * 36 + "/1/1"]
)
def test_a_message_that_is_not_there_is_404(say, name):
    say("POST", f"/outbox/dead/{name}/revive", 404)
