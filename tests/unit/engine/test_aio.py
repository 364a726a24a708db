"""`engine.aio` has the verbs of the engine: the same names, arguments and answers."""

import asyncio
import inspect
from typing import Any

import pytest

import ulak
from tests.scenario.doubles import pass_steps
from ulak import Engine
from ulak.engine.aio import AsyncEngine

# What declares, opens, runs or serves the engine itself; none of it waits for a store's answer.
NO_VERBS = {
    "add", "aio", "apart", "close", "flows", "flows_by_version", "is_open", "job", "lifespan",
    "moved", "on_move", "on_ring", "open", "prepare", "prepare_many", "publish", "before_fork",
    "after_fork_in_parent", "after_fork_in_child", "resource",
    "unknown_outcome", "worker", "working", "schedule", "declared_schedules", "keep_schedules",
    "target", "key_of", "reading", "transaction",
}  # fmt: skip


def public(kind: type) -> set[str]:
    return {name for name in dir(kind) if not name.startswith("_")}


@pytest.mark.shows("E-32")
def test_every_verb_of_the_engine_can_be_awaited() -> None:
    assert public(AsyncEngine) == public(Engine) - NO_VERBS


@pytest.mark.shows("E-32")
@pytest.mark.parametrize("verb", sorted(public(AsyncEngine)))
def test_a_verb_has_one_signature(verb: str) -> None:
    assert inspect.iscoroutinefunction(getattr(AsyncEngine, verb))
    assert not inspect.iscoroutinefunction(getattr(Engine, verb))
    awaited = inspect.signature(getattr(AsyncEngine, verb))
    plain = inspect.signature(getattr(Engine, verb))
    assert str(awaited) == str(plain)


@pytest.mark.parametrize("steps", range(8))
def test_a_wait_ends_that_is_cancelled_while_a_job_moves(
    steps: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Broken by `asyncio.wait_for`: Python 3.11 forgets a cancel that comes with the ring."""
    flow: ulak.Flow[Any] = ulak.Flow.steps("slow", ("work", lambda run: None))

    async def story() -> None:
        engine = ulak.connect("memory://", flows=[flow])
        job = await engine.aio.submit(flow)

        async def get(self: AsyncEngine, job_id: str) -> ulak.Job:
            return job

        monkeypatch.setattr(AsyncEngine, "get", get)
        waiting = asyncio.create_task(engine.aio.wait(job.id))
        await pass_steps(10)
        engine.moved()
        await pass_steps(steps)
        waiting.cancel()
        await pass_steps(20)
        assert waiting.cancelled()
        await asyncio.to_thread(engine.close)

    asyncio.run(story())
