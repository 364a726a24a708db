"""`engine.aio` has the verbs of the engine: the same names, arguments and answers."""

import asyncio
import inspect
from typing import Any

import pytest

import ulak
from tests.scenario.doubles import pass_steps
from ulak.engine import reads

# What declares, opens, runs or serves the engine itself; none of it waits for a store's answer.
NAMESPACES = ("schedules", "flow_control", "outbox", "inspect", "owners", "retention")
VERBS = {
    "submit", "submit_many", "call", "get", "find", "jobs", "result", "wait", "decide", "release",
    "retry", "cancel", "expire", "signal", "note", "emit",
}  # fmt: skip
PLAIN = {
    "open", "close", "add", "job", "resource", "transaction", "reading", "worker", "working",
    "lifespan", "on", "follow",
}  # fmt: skip
"""What is declared or entered, and never awaited."""
PLAIN_OF_NAMESPACES = {
    ("schedules", "add"),
    ("flow_control", "apart"),
    ("outbox", "publish"),
    ("inspect", "flows"),
}


def public(thing: object) -> set[str]:
    return {name for name in dir(thing) if not name.startswith("_")}


@pytest.fixture
def engine() -> ulak.Engine:
    return ulak.connect("memory://")


def test_the_engine_can_be_held_in_the_head(engine: ulak.Engine) -> None:
    assert public(engine) == VERBS | PLAIN | {*NAMESPACES, "aio", "kernel", "store"}


@pytest.mark.shows("E-32")
def test_every_verb_of_the_engine_can_be_awaited(engine: ulak.Engine) -> None:
    assert public(engine.aio) == VERBS | {*NAMESPACES}
    for name in NAMESPACES:
        plain = {verb for namespace, verb in PLAIN_OF_NAMESPACES if namespace == name}
        verbs = public(getattr(engine, name)) - plain
        assert public(getattr(engine.aio, name)) == verbs, name


@pytest.mark.shows("E-32")
@pytest.mark.parametrize("namespace", [None, *NAMESPACES])
def test_a_verb_has_one_signature(engine: ulak.Engine, namespace: str | None) -> None:
    awaited, plain = engine.aio, engine
    if namespace is not None:
        awaited, plain = getattr(awaited, namespace), getattr(plain, namespace)
    for verb in public(awaited) - {*NAMESPACES}:
        assert inspect.iscoroutinefunction(getattr(awaited, verb)), verb
        assert not inspect.iscoroutinefunction(getattr(plain, verb)), verb
        assert str(inspect.signature(getattr(awaited, verb))) == str(
            inspect.signature(getattr(plain, verb))
        ), verb


@pytest.mark.parametrize("steps", range(8))
def test_a_wait_ends_that_is_cancelled_while_a_job_moves(
    steps: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Broken by `asyncio.wait_for`: Python 3.11 forgets a cancel that comes with the ring."""
    flow: ulak.Flow[Any] = ulak.Flow.steps("slow", ("work", lambda run: None))

    async def do_at_once(verb: Any, *arguments: Any) -> Any:
        return verb(*arguments)

    async def story() -> None:
        engine = ulak.connect("memory://", flows=[flow])
        job = await engine.aio.submit(flow)
        monkeypatch.setattr(asyncio, "to_thread", do_at_once)
        monkeypatch.setattr(reads, "REST_PER_LOOK", 0.0)
        task = asyncio.create_task(engine.aio.wait(job.id))
        await pass_steps(10)
        engine.store._watchers.ring()
        await pass_steps(steps)
        task.cancel()
        await pass_steps(20)
        assert task.cancelled()
        monkeypatch.undo()
        await asyncio.to_thread(engine.close)

    asyncio.run(story())


@pytest.mark.shows("E-79")
def test_a_ring_is_one_look(monkeypatch: pytest.MonkeyPatch) -> None:
    flow: ulak.Flow[Any] = ulak.Flow.steps("slow", ("work", lambda run: None))
    looks: list[Any] = []
    look = reads.Waiting.look

    async def do_at_once(verb: Any, *arguments: Any) -> Any:
        return verb(*arguments)

    def noted(waiting: reads.Waiting) -> Any:
        looks.append(look(waiting))
        return looks[-1]

    async def story() -> None:
        engine = ulak.connect("memory://", flows=[flow])
        job = await engine.aio.submit(flow)
        monkeypatch.setattr(asyncio, "to_thread", do_at_once)
        monkeypatch.setattr(reads.Waiting, "look", noted)
        for name, wait_s in (("REST_PER_LOOK", 0.0), ("SECOND_LOOK_S", 3600), ("POLL_S", 3600)):
            monkeypatch.setattr(reads, name, wait_s)
        task = asyncio.create_task(engine.aio.wait(job.id))
        await pass_steps(10)
        engine.store._watchers.ring()
        await pass_steps(20)
        task.cancel()
        await pass_steps(20)
        monkeypatch.undo()
        await asyncio.to_thread(engine.close)

    asyncio.run(story())
    assert looks == [None, None]
