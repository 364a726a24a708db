"""What people ask of one job over HTTP, each under their own name."""

import asyncio
from collections.abc import Iterator
from typing import Any

import httpx
import pytest

import ulak
import ulak.web
from tests.web.people import Known, as_
from ulak import SUBMITTER, Flow, Lifecycle
from ulak.core import event as kinds


def review(**options: Any) -> Flow[Any]:
    """A gate after a stage, a wait after the gate, and an end after the wait."""
    moves = {
        "new": ["asked"], "asked": ["agreed", "failed"], "agreed": ["paid"], "paid": ["done"],
    }  # fmt: skip
    flow: Flow[Any] = Flow("review", Lifecycle("new", moves), retry=0)

    @flow.stage("new")
    def begin(run: Any) -> None:
        if run.payload == "fail" and run.round == 1:
            raise ValueError("no")
        if run.payload == "hold" and run.attempt == 1 and not held:
            held.append(1)
            return ulak.Hold("odd", "look at it")
        return None

    held: list[int] = []
    choices = {"go on": "agreed", "stop": "failed"}
    flow.gate("asked", **{"choices": choices, "by": {"operator"}, "not_by": SUBMITTER, **options})
    flow.wait("agreed", signal="paid", to="paid")
    flow.stage("paid")(lambda run: None)
    return flow


class Desk:
    """An application with one flow, and how a test asks it."""

    def __init__(self, flow: Flow[Any], ask: Any, identity: Any = None) -> None:
        self.engine = ulak.connect("memory://", flows=[flow])
        self.flow = flow
        self.app = ulak.web.app(self.engine, identity=identity or Known())
        self._ask = ask

    def job(self, payload: str = "", **options: Any) -> str:
        job = self.engine.submit(self.flow, payload, **options)
        self.work()
        return job.id

    def work(self) -> None:
        asyncio.run(self.engine.worker().run(until_idle=True))

    def act(self, job: str, act: str, who: str = "operator", **body: Any) -> httpx.Response:
        return self._ask(
            self.app, f"/jobs/{job}/{act}", method="POST", json=body or None, headers=as_(who)
        )

    def last(self, job: str) -> tuple[str, str, str | None]:
        event = self.engine.inspect.trail(job)[-1]
        return event.kind, event.actor, event.message


@pytest.fixture
def desk(ask) -> Iterator[Desk]:
    made = Desk(review(), ask)
    yield made
    made.engine.close()


def test_a_decision_is_written_with_who_decided(desk):
    job = desk.job()
    answer = desk.act(job, "decide", choice="go on", note="checked")
    assert (answer.status_code, answer.json()["state"]) == (200, "agreed")
    assert desk.last(job) == (kinds.DECIDED, "olga", "checked")


def test_a_gate_asks_for_roles_and_for_somebody_else(desk):
    job = desk.job(actor="olga")
    own = desk.act(job, "decide", choice="go on")
    assert (own.status_code, own.json()["code"]) == (403, "not-permitted")
    assert own.json()["state"] == "asked"
    roles = desk.act(job, "decide", who="admin", choice="go on")
    assert (roles.status_code, roles.json()["code"]) == (403, "not-permitted")
    assert desk.act(job, "decide", who="other-operator", choice="go on").status_code == 200


def test_where_nobody_is_asked_who_they_are_no_role_is_asked_for(ask):
    engine = ulak.connect("memory://", flows=[review()])
    job = engine.submit(engine.inspect.flows[0], "")
    asyncio.run(engine.worker().run(until_idle=True))
    answer = ask(ulak.web.app(engine, identity=None), f"/jobs/{job.id}/approve", method="POST")
    assert answer.json()["state"] == "agreed"
    assert engine.inspect.trail(job.id)[-1].actor == "anonymous"
    engine.close()


def test_what_is_no_choice_is_409_and_names_those_there_are(desk):
    answer = desk.act(desk.job(), "decide", choice="perhaps")
    assert (answer.status_code, answer.json()["code"]) == (409, "transition-not-allowed")
    assert 'say "go on" or "stop"' in answer.json()["detail"]


def test_whoever_decides_second_is_told_who_was_first(desk):
    job = desk.job()
    desk.act(job, "decide", choice="go on")
    for act, body in (("decide", {"choice": "stop"}), ("approve", {})):
        late = desk.act(job, act, who="other-operator", **body)
        assert (late.status_code, late.json()["decided_by"]) == (409, "olga"), act
        assert late.json()["state"] == "agreed"
        assert "olga has decided: go on" in late.json()["detail"]


@pytest.mark.shows("E-11")
def test_of_two_who_decide_at_once_one_wins_and_the_other_is_told_who(desk):
    async def both(job: str) -> list[httpx.Response]:
        transport = httpx.ASGITransport(desk.app)
        async with httpx.AsyncClient(transport=transport, base_url="http://ulak") as client:
            return await asyncio.gather(
                *(
                    client.post(
                        f"/jobs/{job}/decide", json={"choice": "go on"}, headers=as_(who)
                    )
                    for who in ("operator", "other-operator")
                )
            )  # fmt: skip

    for _ in range(20):
        job = desk.job()
        answers = asyncio.run(both(job))
        assert sorted(answer.status_code for answer in answers) == [200, 409]
        lost = next(answer for answer in answers if answer.status_code == 409)
        won_by = {"operator": "olga", "other-operator": "otto"}
        winner = ["operator", "other-operator"][[a.status_code for a in answers].index(200)]
        assert lost.json()["decided_by"] == won_by[winner] == desk.last(job)[1]


def test_two_who_have_read_the_same_are_told_apart_by_the_store(desk, monkeypatch):
    job = desk.job()
    read = desk.engine.kernel.get_row
    stale = read(job)
    desk.act(job, "decide", choice="go on")
    monkeypatch.setattr(desk.engine.kernel, "get_row", lambda *_: stale)
    late = desk.act(job, "decide", who="other-operator", choice="stop")
    assert (late.status_code, late.json()["code"]) == (409, "stale-job")
    assert (late.json()["decided_by"], late.json()["job_id"]) == ("olga", job)


def test_approve_gives_what_the_state_asks_for(desk):
    at_gate, held, ended = desk.job(), desk.job("hold"), desk.job("fail")
    assert desk.act(at_gate, "approve", note="fine").json()["state"] == "agreed"
    assert desk.last(at_gate) == (kinds.DECIDED, "olga", "fine")
    assert desk.act(held, "approve").json()["state"] == "new"
    assert desk.last(held)[:2] == (kinds.RELEASED, "olga")
    answer = desk.act(ended, "approve")
    assert (answer.status_code, answer.json()["state"]) == (409, "failed")
    assert "nothing is to be approved here" in answer.json()["detail"]


@pytest.mark.parametrize(
    ("options", "state"),
    [
        ({"choices": {"left": "agreed", "right": "agreed", "stop": "failed"}}, None),
        ({"choices": {"approve": "agreed", "right": "agreed"}}, "agreed"),
        ({"choices": {"left": "agreed", "right": "agreed"}, "refusals": {"left"}}, "agreed"),
        ({"choices": {"stop": "failed"}}, None),
    ],
)
def test_approve_takes_the_only_choice_that_can_be_meant(ask, options, state):
    flow = review(**options)
    desk = Desk(flow, ask)
    job = desk.job()
    answer = desk.act(job, "approve")
    if state is None:
        assert answer.status_code == 409
        assert "which choice approves cannot be told; decide" in answer.json()["detail"]
    else:
        assert answer.json()["state"] == state
    desk.engine.close()


def test_release_and_retry_let_a_job_go_on(desk):
    held, failed = desk.job("hold"), desk.job("fail")
    assert desk.act(held, "release", note="mended").json()["state"] == "new"
    assert desk.last(held) == (kinds.RELEASED, "olga", "mended")
    again = desk.act(failed, "retry")
    assert (again.json()["state"], again.json()["round"]) == ("new", 2)
    assert desk.act(failed, "release").status_code == 409
    assert desk.act(held, "retry").status_code == 409


def test_cancel_ends_a_job_once(desk):
    job = desk.job()
    assert desk.act(job, "cancel").json()["role"] == "cancelled"
    late = desk.act(job, "cancel")
    assert (late.status_code, late.json()["code"]) == (409, "too-late")


def test_a_signal_is_taken_and_kept(desk):
    job = desk.job()
    early = desk.act(job, "signal", who="service", name="paid", data={"amount": 12})
    assert (early.status_code, early.json()["state"]) == (200, "asked")
    desk.act(job, "approve")
    desk.work()  # finds the signal
    desk.work()
    assert desk.engine.get(job).role == "done"
    unknown = desk.act(desk.job(), "signal", name="sold")
    assert unknown.status_code == 409
    assert "review waits for paid" in unknown.json()["detail"]


ACTS = {
    "decide": {"choice": "go on"}, "approve": {}, "release": {}, "retry": {}, "cancel": {},
    "signal": {"name": "paid"},
}  # fmt: skip


@pytest.mark.parametrize("act", ACTS)
def test_an_act_on_a_foreign_tenants_job_is_404_and_changes_nothing(desk, act):
    job = desk.job(tenant="other")
    before = desk.engine.inspect.trail(job)
    answer = desk.act(job, act, who="acme-operator", **ACTS[act])
    assert (answer.status_code, answer.json()["code"]) == (404, "job-not-found")
    assert desk.engine.inspect.trail(job) == before


@pytest.mark.parametrize("act", ACTS)
def test_an_act_says_what_it_cannot_read(desk, act):
    job = desk.job()
    for body in ({"note": 7}, {"colour": "red"}):
        answer = desk.act(job, act, **{**ACTS[act], **body})
        assert (answer.status_code, answer.json()["code"]) == (422, "bad-input")
        assert next(iter(body)) in answer.json()["detail"]
    assert desk.act(job, act, who="viewer", **ACTS[act]).status_code == 403


def test_without_a_good_credential_a_browser_is_told_how_to_come_back(desk, ask):
    nobody = ask(desk.app, "/jobs")
    assert (nobody.status_code, nobody.json()["reason"]) == (401, "missing")
    assert nobody.headers["www-authenticate"] == 'Bearer realm="ulak"'
    wrong = ask(desk.app, "/jobs", headers=as_("somebody"))
    assert (wrong.status_code, wrong.json()["reason"]) == (401, "unknown")
    assert wrong.headers["www-authenticate"] == 'Bearer realm="ulak", error="invalid_token"'
