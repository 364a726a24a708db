"""`engine.aio` has the verbs of the engine: the same names, arguments and answers."""

import inspect

import pytest

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
