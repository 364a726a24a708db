"""Effects: recorded before they are answered, not repeated in a round, void after an undo."""

import asyncio
import threading
from datetime import timedelta
from typing import Any

import pytest

import ulak
from tests.scenario.doubles import (
    SOON,
    Double,
    engine_on,
    eventually,
    kinds,
    settings,
    store_of,
)
from ulak.errors import BadInput, WriteRefused
from ulak.ids import from_text
from ulak.store.memory import MemoryStore

LIFE = ulak.Lifecycle("go", {"go": ["done"]})
AT_ONCE = ulak.Backoff(delays=[timedelta(0)] * 3)


def effects_of(plain: bool, ran: list[str]) -> tuple[Any, Any]:
    """A stage body that does one effect, and that effect, plain or async."""
    if plain:

        def effect(key: str) -> str:
            ran.append(key)
            return "paid"

        return (lambda run: run.once("pay", effect)), effect

    async def effect_async(key: str) -> str:
        ran.append(key)
        return "paid"

    async def body(run: ulak.Run[Any]) -> Any:
        return await run.once("pay", effect_async)

    return body, effect_async


def declare(flow: ulak.Flow[Any], plain: bool, ran: list[str], then: Any) -> Any:
    """A stage that does its effect and then what a test says."""
    body, _ = effects_of(plain, ran)
    if plain:

        @flow.stage("go")
        def stage(run: ulak.Run[Any]) -> Any:
            return then(run, body(run))
    else:

        @flow.stage("go")
        async def stage(run: ulak.Run[Any]) -> Any:
            return then(run, await body(run))

    return stage


@pytest.mark.shows("E-37", "E-13")
@pytest.mark.parametrize("plain", [True, False], ids=["plain", "async"])
def test_an_effect_is_recorded_before_it_is_answered_and_not_run_again(
    jobs_url: str, plain: bool
) -> None:
    flow: ulak.Flow[Any] = ulak.Flow("pays", LIFE, retry=AT_ONCE)
    ran, recorded = list[str](), list[bool]()

    def then(run: ulak.Run[Any], value: str) -> str:
        results = store.find_results(from_text(run.job_id))
        recorded.append([(r.name, r.data) for r in results] == [("pay", b'"paid"')])
        if run.attempt < 3:
            raise ConnectionError("after the effect")
        return value

    declare(flow, plain, ran, then)
    store = store_of(jobs_url)
    with engine_on(store, flow) as engine, engine.working(settings()):
        job = engine.submit(flow)
        assert engine.wait(job.id, timeout=SOON).state == "done"
        assert recorded == [True] * 3
        assert ran == [f"{job.id}/1/pay"]
        assert engine.result(job.id) == "paid"
        assert kinds(engine, job) == ["submitted", "noted", "retry", "retry", "moved"]
        assert engine.inspect.verify() == []


@pytest.mark.shows("E-37")
@pytest.mark.parametrize("plain", [True, False], ids=["plain", "async"])
def test_an_operators_retry_is_a_new_round_with_a_new_key(plain: bool) -> None:
    flow: ulak.Flow[Any] = ulak.Flow("rounds", LIFE, retry=0)
    ran: list[str] = []

    def then(run: ulak.Run[Any], value: str) -> str:
        assert run.key("pay") == ran[-1]
        if run.round == 1:
            raise ConnectionError("after the effect")
        return value

    declare(flow, plain, ran, then)
    engine = ulak.connect("memory://", flows=[flow])
    with engine, engine.working(settings()):
        job = engine.submit(flow)
        assert engine.wait(job.id, timeout=SOON).state == "failed"
        engine.retry(job.id, actor="operator")
        assert engine.wait(job.id, timeout=SOON).state == "done"
        assert ran == [f"{job.id}/1/pay", f"{job.id}/2/pay"]


@pytest.mark.shows("E-37", "E-42")
def test_a_finished_undo_voids_the_effects_and_has_names_of_its_own() -> None:
    flow: ulak.Flow[Any] = ulak.Flow("voids", LIFE, retry=0)
    ran: list[str] = []

    @flow.stage("go")
    async def go(run: ulak.Run[Any]) -> None:
        async def pay(key: str) -> str:
            ran.append(f"pay {key}")
            return "paid"

        await run.once("pay", pay)
        raise ValueError("no")

    @go.undo
    async def back(run: ulak.Run[Any]) -> None:
        async def refund(key: str) -> str:
            assert key == run.key("pay")
            ran.append(f"refund {key}")
            return "refunded"

        assert await run.once("pay", refund) == "refunded"

    store = MemoryStore()
    with engine_on(store, flow) as engine, engine.working(settings()):
        job = engine.submit(flow)
        assert engine.wait(job.id, timeout=SOON).state == "failed"
        assert ran == [f"pay {job.id}/1/pay", f"refund {job.id}/1/undo/pay"]
        assert store.find_results(from_text(job.id)) == []
        engine.retry(job.id, actor="operator")
        eventually(lambda: len(ran) == 4)
        assert ran[2] == f"pay {job.id}/2/pay"
        engine.wait(job.id, timeout=SOON)
        assert engine.inspect.verify() == []


@pytest.mark.shows("E-37")
def test_effects_of_one_stage_may_run_at_once(jobs_url: str) -> None:
    flow: ulak.Flow[Any] = ulak.Flow("many", LIFE, retry=AT_ONCE)
    ran: list[int] = []

    @flow.stage("go")
    async def go(run: ulak.Run[Any]) -> list[int]:
        async def one(n: int) -> int:
            async def effect(key: str) -> int:
                ran.append(n)
                await asyncio.sleep(0)
                return n

            return await run.once(f"n{n}", effect)

        found = await asyncio.gather(*(one(n) for n in range(20)))
        if run.attempt == 1:
            raise ConnectionError
        return found

    with engine_on(store_of(jobs_url), flow) as engine, engine.working(settings()):
        job = engine.submit(flow)
        assert engine.wait(job.id, timeout=SOON).state == "done"
        assert sorted(ran) == list(range(20))
        assert engine.result(job.id) == list(range(20))
        assert kinds(engine, job).count("noted") == 20
        assert engine.inspect.verify() == []


@pytest.mark.shows("E-37")
def test_an_effect_that_has_happened_is_recorded_even_if_the_stage_is_cancelled() -> None:
    store = Double(MemoryStore())
    flow: ulak.Flow[Any] = ulak.Flow("cut", LIFE)
    recording, go_on = threading.Event(), threading.Event()

    def hold_up(changes: Any) -> None:
        if any(event.kind == "noted" for c in changes for event in c.events):
            recording.set()
            assert go_on.wait(120)

    store.before["commit"] = hold_up
    went_on: list[str] = []

    @flow.stage("go")
    async def go(run: ulak.Run[Any]) -> None:
        async def pay(key: str) -> str:
            return "paid"

        await run.once("pay", pay)
        went_on.append("after the effect")

    with engine_on(store, flow) as engine, engine.working(settings()):
        job = engine.submit(flow)
        assert recording.wait(120)
        engine.cancel(job.id, actor="operator")
        eventually(lambda: engine.get(job.id).cancel_requested)
        threading.Event().wait(0.1)  # the cancel has reached the task by now
        go_on.set()
        assert engine.wait(job.id, timeout=SOON).state == "cancelled"
        assert kinds(engine, job) == ["submitted", "noted", "given-back", "cancelled"]
        assert went_on == []
        assert engine.inspect.verify() == []


@pytest.mark.shows("E-37", "E-26")
@pytest.mark.parametrize("plain", [True, False], ids=["plain", "async"])
def test_a_stage_whose_lease_was_taken_away_ends_at_its_next_effect(plain: bool) -> None:
    store = MemoryStore()
    flow: ulak.Flow[Any] = ulak.Flow("zombie", LIFE, retry=0)
    ran, after = list[str](), list[str]()
    body, _ = effects_of(plain, ran)

    def swallow(run: ulak.Run[Any]) -> None:
        row = store.find_job(from_text(run.job_id))
        assert row is not None
        # Somebody else has taken the job over in the meantime.
        store._put(row._replace(token=row.token + 1, leased_by=None, version=row.version + 1))

    if plain:

        @flow.stage("go")
        def go(run: ulak.Run[Any]) -> None:
            if not after:
                after.append("first")
                swallow(run)
                body(run)
                after.append("went on")
    else:

        @flow.stage("go")
        async def go_async(run: ulak.Run[Any]) -> None:
            if not after:
                after.append("first")
                swallow(run)
                await body(run)
                after.append("went on")

    with engine_on(store, flow) as engine, engine.working(settings()):
        job = engine.submit(flow)
        assert engine.wait(job.id, timeout=SOON).state == "done"
        assert after == ["first"]
        assert kinds(engine, job) == ["submitted", "moved"]


@pytest.mark.shows("E-37", "E-19")
@pytest.mark.parametrize("plain", [True, False], ids=["plain", "async"])
def test_an_effect_whose_record_is_refused_holds_the_job_and_ends_the_stage(plain: bool) -> None:
    store = Double(MemoryStore())
    flow: ulak.Flow[Any] = ulak.Flow("refused", LIFE, retry=AT_ONCE)
    ran: list[str] = []

    def refuse(changes: Any) -> None:
        if any(event.kind == "noted" for c in changes for event in c.events):
            raise WriteRefused("not this")

    store.before["commit"] = refuse
    declare(flow, plain, ran, lambda run, value: ran.append("went on"))
    with engine_on(store, flow) as engine, engine.working(settings()) as worker:
        job = engine.submit(flow)
        held = engine.wait(job.id, until="held", timeout=SOON)
        assert held.code == "commit-rejected"
        eventually(lambda: worker.running == 0)
        assert len(ran) == 1
        assert kinds(engine, job) == ["submitted", "held"]


@pytest.mark.shows("E-37", "E-22")
@pytest.mark.parametrize("value", [float("nan"), object(), "x" * 300_000])
def test_an_effect_that_cannot_be_recorded_is_not_repeated(value: object) -> None:
    flow: ulak.Flow[Any] = ulak.Flow("odd", LIFE, retry=AT_ONCE)
    ran: list[str] = []

    @flow.stage("go")
    async def go(run: ulak.Run[Any]) -> None:
        async def effect(key: str) -> object:
            ran.append(key)
            return value

        await run.once("odd", effect)

    engine = ulak.connect("memory://", flows=[flow])
    with engine, engine.working(settings()):
        job = engine.submit(flow)
        held = engine.wait(job.id, until="held", timeout=SOON)
        assert held.code == "result-unwritable"
        assert "once('odd') was done" in (engine.inspect.trail(job.id)[-1].message or "")
        assert len(ran) == 1


@pytest.mark.shows("E-37")
def test_a_wrong_use_of_once_is_refused_with_a_sentence() -> None:
    flow: ulak.Flow[Any] = ulak.Flow("wrong", LIFE, retry=0)
    said: list[str] = []

    async def effect(key: str) -> str:
        await asyncio.sleep(0.01)
        return key

    @flow.stage("go")
    async def go(run: ulak.Run[Any]) -> None:
        async def attempt(name: str, function: Any) -> None:
            try:
                await run.once(name, function)
            except BadInput as error:
                said.append(str(error))

        await attempt("a/b", effect)
        await attempt("", effect)
        await attempt("plain", lambda key: key)
        await asyncio.gather(attempt("same", effect), attempt("same", effect))

    engine = ulak.connect("memory://", flows=[flow])
    with engine, engine.working(settings()):
        job = engine.submit(flow)
        assert engine.wait(job.id, timeout=SOON).state == "done"
        assert ["no slash" in s for s in said] == [True, True, False, False]
        assert "needs an async function" in said[2]
        assert "is running already" in said[3]
