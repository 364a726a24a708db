"""`Flow(on_end=OnEnd(...))`: the commit that ends a job submits the one that follows it."""

import asyncio
import logging
from contextlib import suppress
from dataclasses import make_dataclass
from datetime import timedelta
from typing import Any

import pytest

import ulak
from tests.scenario.ends import HOUR, facts, notice, notices, order, submit
from ulak import Engine, Flow, FlowError, Job, Lifecycle, OnEnd
from ulak.engine.bulk import Actor, Bulk, BulkAct
from ulak.engine.function import Call
from ulak.engine.migration import StateMap, migrate
from ulak.ids import from_text
from ulak.store.protocol import JobFilter
from ulak.testing import Harness
from ulak.wiring import store_of


@pytest.fixture
def shop(jobs_url: str) -> Any:
    follows = notice()
    with Harness(order(follows), follows, url=jobs_url) as harness:
        yield harness
        assert harness.engine.inspect.verify() == []


# --- however it ends ------------------------------------------------------------------


@pytest.mark.shows("E-72")
def test_a_stage_that_ends_its_job_submits_the_next(jobs_url: str) -> None:
    follows = notice()

    def free(job: Job, code: str | None) -> Any:
        return facts(job, code) | {"leased_by": job.leased_by}

    flow: Flow[Any] = Flow(
        "plain", Lifecycle("new", {"new": ["done"]}), on_end=OnEnd(follows, payload=free)
    )
    flow.stage("new")(lambda run: None)
    with Harness(flow, follows, url=jobs_url) as harness:
        job = harness.submit(flow, None, tenant="acme")
        harness.run_until_idle()
        (made,) = harness.engine.jobs(JobFilter(flow="notice"))
        assert (made.tenant, made.state) == ("acme", "told")
        said = {"job": job.id, "state": "done", "round": 1, "code": None, "leased_by": None}
        assert harness.engine.result(made.id) == said
        assert harness.engine.inspect.verify() == []


@pytest.mark.shows("E-72")
def test_it_is_submitted_in_the_commit_that_ends_the_job(
    shop: Harness, monkeypatch: pytest.MonkeyPatch
) -> None:
    job = submit(shop)
    store, seen = shop.engine.store, []
    commit = store.commit

    def look(changes: Any) -> Any:
        seen.extend(changes)
        return commit(changes)

    monkeypatch.setattr(store, "commit", look)
    shop.engine.decide(job, "pay", actor="ada")
    (change,) = seen
    assert change.row.id == from_text(job)
    (spawned,) = change.spawns
    assert store.find_job(spawned.row.id) is not None


@pytest.mark.shows("E-72")
def test_a_failure_is_an_end(shop: Harness) -> None:
    job = submit(shop, "broken")
    said = {"job": job, "state": "failed", "round": 1, "code": "raised"}
    assert notices(shop.engine) == [said]


@pytest.mark.shows("E-72")
@pytest.mark.parametrize("choice", ["pay", "refuse"])
def test_a_decision_of_an_operator_is_an_end(shop: Harness, choice: str) -> None:
    job = submit(shop)
    assert notices(shop.engine) == []
    state = shop.engine.decide(job, choice, actor="ada").state
    assert notices(shop.engine) == [{"job": job, "state": state, "round": 1, "code": None}]


@pytest.mark.shows("E-72")
def test_a_cancel_is_an_end(shop: Harness) -> None:
    job = submit(shop)
    shop.engine.cancel(job, actor="ada")
    said = {"job": job, "state": "cancelled", "round": 1, "code": "cancelled"}
    assert notices(shop.engine) == [said]


@pytest.mark.shows("E-72")
def test_the_end_of_a_deadline_is_an_end(shop: Harness) -> None:
    job = submit(shop)
    shop.advance(hours=1)
    (said,) = notices(shop.engine)
    assert (said["job"], said["state"]) == (job, "refused")


@pytest.mark.shows("E-72")
def test_an_expiry_is_an_end(shop: Harness) -> None:
    job = submit(shop, None, expires=timedelta(minutes=5))
    shop.advance(minutes=5)
    assert notices(shop.engine) == [{"job": job, "state": "expired", "round": 1, "code": "expired"}]


@pytest.mark.shows("E-72")
def test_an_act_in_bulk_is_an_end_of_each(shop: Harness) -> None:
    jobs = {submit(shop) for _ in range(3)}
    bulk, act = Bulk(shop.engine, b"k"), BulkAct("cancel", JobFilter(flow="order"))
    token = bulk.count(act, Actor("ada")).token
    assert bulk.do(act, Actor("ada"), token=token).done == 3
    assert {said["job"] for said in notices(shop.engine)} == jobs


@pytest.mark.shows("E-72", "E-42")
def test_the_last_undo_is_the_end_and_nothing_before_it(jobs_url: str) -> None:
    follows = notice()
    flow: Flow[Any] = Flow(
        "trip",
        Lifecycle("new", {"new": ["booked"], "booked": ["done"]}),
        retry=0,
        on_end=OnEnd(follows, payload=facts),
    )
    seen: list[int] = []

    @flow.stage("new")
    def book(run: Any) -> None: ...

    @book.undo
    def unbook(run: Any) -> None:
        seen.append(len(notices(harness.engine)))

    @flow.stage("booked")
    def fly(run: Any) -> None:
        raise RuntimeError("fog")

    with Harness(flow, follows, url=jobs_url) as harness:
        job = submit(harness)
        assert seen == [0]
        assert notices(harness.engine) == [
            {"job": job, "state": "failed", "round": 1, "code": "raised"}
        ]


@pytest.mark.shows("E-72", "E-87")
def test_an_end_in_the_callers_transaction_is_followed_in_it(shared_url: str) -> None:
    follows = notice()
    with Harness(order(follows), follows, url=shared_url) as harness:
        engine = harness.engine
        job = submit(harness)
        with suppress(LookupError), engine.transaction() as connection:
            engine.decide(job, "pay", actor="ada", connection=connection)
            raise LookupError("no such account")
        assert (engine.get(job).state, notices(engine)) == ("asked", [])
        with engine.transaction() as connection:
            engine.decide(job, "pay", actor="ada", connection=connection)
        assert [(said["job"], said["state"]) for said in notices(engine)] == [(job, "paid")]
        assert harness.verify() == []


# --- once -----------------------------------------------------------------------------


@pytest.mark.shows("E-72")
def test_each_round_has_its_own(shop: Harness) -> None:
    job = submit(shop, "broken")
    shop.engine.retry(job, actor="ada")
    shop.advance(hours=1)
    assert [(said["job"], said["round"]) for said in notices(shop.engine)] == [(job, 1), (job, 2)]


@pytest.mark.shows("E-72")
def test_each_final_state_has_its_own(shop: Harness) -> None:
    job = submit(shop)
    shop.engine.decide(job, "pay", actor="ada")
    shop.advance(days=1)
    assert [said["state"] for said in notices(shop.engine)] == ["paid", "archived"]


@pytest.mark.shows("E-72")
def test_an_automatic_retry_by_way_of_failed_is_no_end(jobs_url: str) -> None:
    follows = notice()
    flow: Flow[Any] = Flow(
        "stubborn",
        Lifecycle("new", {"new": ["done"]}),
        retry=2,
        retry_via="failed",
        on_end=OnEnd(follows, payload=facts),
    )

    @flow.stage("new")
    def work(run: Any) -> None:
        raise RuntimeError("again")

    with Harness(flow, follows, url=jobs_url) as harness:
        submit(harness)
        harness.advance(minutes=1)
        assert [said["state"] for said in notices(harness.engine)] == ["failed"]


@pytest.mark.shows("E-72")
def test_two_operators_who_end_a_job_at_once_submit_one(
    shop: Harness, monkeypatch: pytest.MonkeyPatch
) -> None:
    job = submit(shop)
    engine, store = shop.engine, shop.engine.store
    commit, rivals = store.commit, ["pay"]

    def be_second(changes: Any) -> Any:
        if rivals:
            engine.decide(job, rivals.pop(), actor="bob")
        return commit(changes)

    monkeypatch.setattr(store, "commit", be_second)
    with pytest.raises(ulak.StaleJob):
        engine.decide(job, "refuse", actor="ada")
    assert [said["state"] for said in notices(engine)] == ["paid"]


@pytest.mark.shows("E-72")
def test_a_flow_whose_ends_lead_in_a_circle_is_refused() -> None:
    follows = notice()
    flow: Flow[Any] = Flow(
        "circle",
        Lifecycle(
            "new",
            {"new": ["a"], "a": ["b"], "b": ["a"]},
            done=["a", "b"],
        ),
        on_end=OnEnd(follows, payload=facts),
    )
    flow.stage("new", to="a")(lambda run: None)
    flow.wait("a", after=HOUR, to="b")
    flow.wait("b", after=HOUR, to="a")
    with pytest.raises(FlowError, match=r'circle: on_end= .* "a" can be entered again'):
        Harness(flow, follows).engine.open()


# --- what the function says -----------------------------------------------------------


@pytest.mark.shows("E-72")
def test_none_submits_nothing(jobs_url: str) -> None:
    follows = notice()

    def only_failures(job: Job, code: str | None) -> Any:
        return None if code is None else code

    with Harness(order(follows, only_failures), follows, url=jobs_url) as harness:
        for choice in ("pay", "refuse"):
            harness.engine.decide(submit(harness), choice, actor="ada")
        submit(harness, "broken")
        assert notices(harness.engine) == ["raised"]


@pytest.mark.shows("E-72")
@pytest.mark.parametrize("proofs", [False, True])
@pytest.mark.parametrize("end", ["broken", "cancelled", "late"])
def test_a_job_ends_all_the_same_when_the_function_raises(
    jobs_url: str, caplog: pytest.LogCaptureFixture, end: str, proofs: bool
) -> None:
    follows = notice()

    def broken(job: Job, code: str | None) -> Any:
        raise LookupError("no such template")

    with Harness(order(follows, broken, proofs=proofs), follows, url=jobs_url) as harness:
        with caplog.at_level(logging.ERROR, "ulak.jobs"):
            job = submit(harness, end)
            if end == "cancelled":
                harness.engine.cancel(job, actor="ada")
            harness.advance(hours=1)
        assert harness.engine.get(job).is_final
        assert notices(harness.engine) == []
        *_, last = harness.engine.inspect.trail(job)
        assert (last.kind, last.message) == ("on-end-failed", "LookupError: no such template")
        assert last.from_state == last.to_state == harness.engine.get(job).state
        lines = [r for r in caplog.records if "should follow an end" in r.getMessage()]
        assert [(r.job_id, r.flow) for r in lines] == [(job, "order")]  # type: ignore[attr-defined]
        failed = [r for r in caplog.records if "has failed for good" in r.getMessage()]
        assert len(failed) == (end == "broken"), "its own failure is told as well"
        assert harness.engine.inspect.verify() == []


@pytest.mark.shows("E-72")
@pytest.mark.parametrize("payload", [object(), float("nan"), {"n": "text"}, "x" * 5_000_000])
def test_a_payload_that_cannot_be_submitted_is_told_too(payload: Any) -> None:
    follows = notice(payload=make_dataclass("Numbered", [("n", int)]))
    with Harness(order(follows, lambda job, code: payload), follows) as harness:
        job = submit(harness, "broken")
        assert harness.engine.get(job).state == "failed"
        *_, last = harness.engine.inspect.trail(job)
        assert last.kind == "on-end-failed"
        assert notices(harness.engine) == []


@pytest.mark.shows("E-72")
def test_a_job_function_may_follow(jobs_url: str) -> None:
    said: list[Any] = []
    engine = Engine(store_of(jobs_url))

    @engine.job
    def tell(state: str, code: str | None = None) -> None:
        said.append((state, code))

    @engine.job(on_end=OnEnd(tell, payload=lambda job, code: tell.bind(job.state, code=code)))
    def work() -> None: ...

    @engine.job(on_end=OnEnd(tell, payload=lambda job, code: job.state))
    def other() -> None: ...

    with engine:
        engine.submit(work)
        engine.submit(other)
        asyncio.run(engine.worker().run(until_idle=True))
        assert sorted(said, key=str) == [("done", None), ("done", None)]


@pytest.mark.shows("E-72", "E-73")
def test_what_follows_an_end_is_not_refused(jobs_url: str) -> None:
    follows = notice(admission=lambda intake: 60, max_waiting=1)
    with Harness(order(follows), follows, url=jobs_url) as harness:
        harness.engine.flow_control.stop_accepting("notice", actor="ada")
        for _ in range(3):
            submit(harness, "broken")
        assert len(notices(harness.engine)) == 3


# --- programs -------------------------------------------------------------------------


@pytest.mark.shows("E-72", "E-50")
def test_a_process_without_the_flow_leaves_the_end_to_one_that_has_it(shared_url: str) -> None:
    follows = notice()
    with Harness(order(follows), follows, url=shared_url) as knows:
        job = submit(knows, None)
        with Harness(notice(), url=shared_url, clock=knows.clock) as knows_not:
            knows.clock.advance(HOUR)
            knows_not.run_until_idle()
            with pytest.raises(ulak.TransitionNotAllowed, match="does not declare"):
                knows_not.engine.cancel(job, actor="ada")
            assert knows_not.engine.get(job).state == "asked"
            assert notices(knows_not.engine) == []
        knows.run_until_idle()
        assert [said["state"] for said in notices(knows.engine)] == ["refused"]


@pytest.mark.shows("E-72", "E-7")
def test_what_follows_must_be_registered_too() -> None:
    engine = Engine(store_of("memory://"), flows=[order(notice())])
    with pytest.raises(
        FlowError, match="order: its on_end submits notice, which is not registered"
    ):
        engine.open()


@pytest.mark.shows("E-72", "E-7")
def test_what_follows_must_be_registered_before_a_flow_that_comes_late() -> None:
    engine, follows = Engine(store_of("memory://")), notice()
    flow = order(follows)
    engine.open()
    with pytest.raises(FlowError, match="its on_end submits notice, which is not registered"):
        engine.add(flow)
    assert engine.inspect.flows == ()
    engine.add(follows)
    assert engine.add(flow) is flow
    engine.close()


@pytest.mark.shows("E-72", "E-7")
@pytest.mark.parametrize(
    ("on_end", "words"),
    [
        (notice(), "order: on_end=<flow notice version 1> cannot be used"),
        (OnEnd("notice", payload=facts), "order: on_end= submits 'notice', which is no flow"),  # type: ignore[arg-type]
        (OnEnd(notice(), payload=7), "order: on_end= makes its payload with 7"),  # type: ignore[arg-type]
    ],
)
def test_a_wrong_declaration_is_refused(on_end: Any, words: str) -> None:
    flow: Flow[Any] = Flow("order", Lifecycle("new", {"new": ["done"]}), on_end=on_end)
    flow.stage("new")(lambda run: None)
    with pytest.raises(FlowError, match=words):
        Harness(flow).engine.open()


@pytest.mark.shows("E-72")
def test_an_ended_job_that_is_migrated_does_not_end_again(jobs_url: str) -> None:
    follows = notice()
    second: Flow[Any] = Flow(
        "order",
        Lifecycle("new", {"new": ["done"]}, failed="broken"),
        version=2,
        on_end=OnEnd(follows, payload=facts),
    )
    second.stage("new")(lambda run: None)
    with Harness(order(follows), second, follows, url=jobs_url) as harness:
        job = submit(harness, "broken")
        wanted = StateMap("order", from_version=1, states={"failed": "broken"})
        migrate(harness.engine.kernel, wanted, actor="ada")
        assert harness.engine.get(job).state == "broken"
        assert [said["state"] for said in notices(harness.engine)] == ["failed"]


@pytest.mark.shows("E-72")
def test_a_call_of_another_function_is_told(jobs_url: str) -> None:
    follows, other = notice(), notice(version=2)
    flow = order(follows, lambda job, code: Call(other, None))
    with Harness(flow, follows, url=jobs_url) as harness:
        *_, last = harness.engine.inspect.trail(submit(harness, "broken"))
        assert last.message == (
            "BadInput: <flow notice version 2> was bound, and <flow notice version 1> is submitted"
        )
