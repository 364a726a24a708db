"""Limits with keys, rates, pauses and fair flows, from a declaration to the end of a job."""

import asyncio
from datetime import timedelta
from typing import Any

import pytest

from ulak import (
    BadInput,
    Engine,
    Flow,
    FlowError,
    Lifecycle,
    Limit,
    Rate,
    RetryLater,
    WorkerSettings,
)
from ulak.store.memory import MemoryStore
from ulak.testing import Harness, ManualClock

SECOND = timedelta(seconds=1)


def one_stage(function: Any = None, *, name: str = "one", **options: Any) -> Flow[Any]:
    fair = options.pop("fair", False)
    flow: Flow[Any] = Flow(name, Lifecycle("queued", {"queued": ["done"]}), fair=fair)
    flow.stage("queued", **options)(function or (lambda run: None))
    return flow


@pytest.mark.shows("E-9", "E-60")
@pytest.mark.parametrize("key", [None, 7, "", "a\x00b", "x" * 501])
def test_a_key_that_is_no_text_is_refused_when_it_is_submitted(key: Any) -> None:
    flow = one_stage(limit=Limit(1, key=lambda payload: payload))
    with (
        Harness(flow) as harness,
        pytest.raises(BadInput, match='the key of the limit of "queued"'),
    ):
        harness.submit(flow, key)


@pytest.mark.shows("E-60")
@pytest.mark.parametrize("cost", [0, -1, 11, 2.5, True, "3"])
def test_a_cost_that_cannot_be_paid_is_refused_when_it_is_submitted(cost: Any) -> None:
    flow = one_stage(rate=Rate(10, per=SECOND, cost=lambda payload: payload))
    with Harness(flow) as harness, pytest.raises(BadInput, match='a run of "queued" costs'):
        harness.submit(flow, cost)


@pytest.mark.shows("E-7", "E-60")
@pytest.mark.parametrize(
    "rate",
    [
        Rate(0, per=SECOND),
        Rate(1, per=timedelta(0)),
        Rate(1, per=SECOND, burst=0),
        Rate(3, per=SECOND, cost=4),
        Rate(10**12, per=timedelta(days=900)),
    ],
)
def test_a_rate_that_cannot_work_is_refused_with_the_flow(rate: Rate) -> None:
    with pytest.raises(FlowError, match=r'the stage for "queued" has Rate\('):
        _ = one_stage(rate=rate).table


@pytest.mark.shows("E-60")
def test_a_rate_lets_in_as_many_as_its_tokens_pay_for() -> None:
    runs: list[int] = []
    flow = one_stage(lambda run: runs.append(run.payload), rate=Rate(2, per=SECOND, burst=3))
    with Harness(flow) as harness:
        for n in range(8):
            harness.submit(flow, n)
        harness.run_until_idle()
        assert len(runs) == 3
        harness.advance(seconds=1)
        assert len(runs) == 5
        harness.engine.flow_control.set_rate("one/queued", Rate(100, per=SECOND), actor="ada")
        harness.advance(seconds=1)
        assert sorted(runs) == list(range(8))
        assert harness.verify() == []


@pytest.mark.shows("E-9", "E-60")
def test_one_job_that_is_told_to_wait_pauses_the_key_for_all() -> None:
    asked: list[str] = []

    def call(run: Any) -> Any:
        asked.append(run.payload["name"])
        if run.payload["to"] == "openai" and len(asked) <= 2:
            return RetryLater(timedelta(seconds=20), key="openai")
        return None

    flow = one_stage(call, limit=Limit(1, key=lambda payload: payload["to"]))
    with Harness(flow) as harness:
        for name in ("first", "second"):
            harness.submit(flow, {"name": name, "to": "openai"})
        harness.submit(flow, {"name": "other", "to": "mistral"})
        harness.run_until_idle()
        assert len(asked) == 2
        assert "other" in asked
        (pause,) = harness.engine.flow_control.pauses()
        assert (pause.kind, pause.name) == ("key", "openai")
        harness.advance(seconds=20)
        assert {*asked} == {"first", "second", "other"}
        assert len(asked) == 4
        assert harness.engine.flow_control.pauses() == []
        assert harness.unfinished() == harness.verify() == []


@pytest.mark.shows("E-28", "E-60")
@pytest.mark.parametrize("kind", ["flow", "queue"])
def test_a_lease_does_not_go_on_into_what_is_paused(kind: str) -> None:
    flow: Flow[Any] = Flow("two", Lifecycle("first", {"first": ["second"], "second": ["done"]}))
    ran: list[str] = []
    engine = Engine(MemoryStore(), flows=[flow])
    workers: list[Any] = []

    @flow.stage("first")
    async def first(run: Any) -> None:
        ran.append("first")
        engine.store.pause(kind, "two", until=None, actor="ada", note="")
        while not workers[0].executor.paused:
            await asyncio.sleep(0.01)

    @flow.stage("second")
    async def second(run: Any) -> None:
        ran.append("second")

    settings = WorkerSettings(poll=timedelta(milliseconds=20))
    with engine, engine.working(settings) as worker:
        workers.append(worker)
        job = engine.submit(flow, {})
        stopped = engine.wait(job.id, until="second", timeout=timedelta(seconds=20))
        assert (stopped.leased_by, ran) == (None, ["first"])
        engine.flow_control.resume(**{kind: "two"}, actor="ada")
        assert engine.wait(job.id, timeout=timedelta(seconds=20)).state == "done"
    assert ran == ["first", "second"]


@pytest.mark.shows("E-60")
def test_a_paused_flow_waits_and_goes_on_by_itself() -> None:
    ran: list[int] = []
    flow = one_stage(lambda run: ran.append(1))
    with Harness(flow) as harness:
        harness.engine.flow_control.pause(flow="one", actor="ada", until=timedelta(minutes=5))
        harness.submit(flow)
        harness.advance(minutes=4)
        assert ran == []
        harness.advance(minutes=1)
        assert ran == [1]


@pytest.mark.shows("E-60")
def test_what_cannot_be_paused_or_resumed_is_said_clearly() -> None:
    flow = one_stage()
    with Harness(flow) as harness:
        engine = harness.engine
        with pytest.raises(BadInput, match='there is no flow "two"; there are "one"'):
            engine.flow_control.pause(flow="two", actor="ada")
        with pytest.raises(BadInput, match='there is no queue "two"; there are "one"'):
            engine.flow_control.pause(queue="two", actor="ada")
        with pytest.raises(BadInput, match="say one of queue=, flow= and key="):
            engine.flow_control.pause(queue="one", flow="one", actor="ada")
        with pytest.raises(BadInput, match="would be over already"):
            engine.flow_control.pause(flow="one", actor="ada", until=timedelta(seconds=-1))
        with pytest.raises(BadInput, match='the flow "one" is not paused'):
            engine.flow_control.resume(flow="one", actor="ada")
        with pytest.raises(BadInput, match="say who acts"):
            engine.flow_control.pause(flow="one", actor="")
        engine.flow_control.pause(flow="one", actor="ada")
        again = engine.flow_control.pause(flow="one", actor="bob", until=timedelta(hours=1))
        assert again.replaces is not None
        assert (again.replaces.actor, again.replaces.until) == ("ada", None)
        assert engine.flow_control.resume(flow="one", actor="bob").actor == "bob"
        assert [line.act for line in engine.inspect.audit()] == ["resume", "pause", "pause"]


@pytest.mark.shows("E-60")
def test_an_operators_limit_outlives_a_restart_and_is_reset() -> None:
    store = MemoryStore(ManualClock())
    for n in (2, 3):
        engine = Engine(store, flows=[one_stage(limit=Limit(n))])
        engine.open()
        if n == 2:
            engine.flow_control.set_limit("one/queued", 9, actor="ada", note="more")
    (limit,) = engine.flow_control.limits()
    assert (limit.n, limit.declared, limit.actor) == (9, 3, "ada")
    assert engine.flow_control.set_limit("one/queued", None, actor="ada").n == 3
    with pytest.raises(BadInput, match='there is no limit "one/other"'):
        engine.flow_control.set_limit("one/other", 1, actor="ada")
    with pytest.raises(BadInput, match="a limit of -1"):
        engine.flow_control.set_limit("one/queued", -1, actor="ada")


@pytest.mark.shows("E-60")
def test_a_fair_flow_runs_its_tenants_in_turn() -> None:
    ran: list[str] = []
    flow = one_stage(lambda run: ran.append(run.payload), fair=True)
    with Harness(flow, settings=WorkerSettings(threads=1)) as harness:
        harness.engine.flow_control.set_weight("gold", 2, actor="ada")
        for tenant in ("big", "gold"):
            for _ in range(6):
                harness.submit(flow, tenant, tenant=tenant)
        harness.run_until_idle()
        assert ran[:9].count("gold") == 6
        assert harness.unfinished() == harness.verify() == []
        with pytest.raises(BadInput, match="a weight of 0"):
            harness.engine.flow_control.set_weight("gold", 0, actor="ada")


@pytest.mark.shows("E-60")
def test_who_was_submitted_before_the_flow_had_keys_shares_one(tmp_path: Any) -> None:
    clock = ManualClock()
    store = MemoryStore(clock)
    job = Engine(store, flows=[old := one_stage()]).submit(old, {"to": "a"})
    keyed: Flow[Any] = Flow(
        "one", Lifecycle("queued", {"queued": ["later"], "later": ["done"]}), version=1
    )
    keyed.stage("queued")(lambda run: None)
    held: list[str] = []  # seen from within: upkeep drops the slots of a key that is not in use

    @keyed.stage("later", limit=Limit(1, key=lambda payload: payload["to"]))
    def later(run: Any) -> None:
        held.extend(slot.limit for slot in store.slots() if slot.job_id is not None)

    engine = Engine(store, flows=[keyed])
    with engine, engine.working():
        assert engine.wait(job.id, timeout=timedelta(seconds=120)).state == "done"
    assert held == ["one/later/"]
