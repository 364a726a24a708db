"""Guards over stores on a clock that stands still."""

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from ulak.clock import ManualClock
from ulak.idempotency import Asked, Execution, Guard, Scope
from ulak.store.memory import MemoryStore
from ulak.store.sqlite import SqliteStore

HASH, OTHER_HASH = "5f" * 32, "6e" * 32


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


@pytest.fixture
def memory(clock: ManualClock) -> MemoryStore:
    return MemoryStore(clock=clock)


@pytest.fixture
def sqlite(clock: ManualClock, tmp_path: Path) -> Iterator[SqliteStore]:
    store = SqliteStore(tmp_path / "jobs.db", clock=clock)
    store.open()
    yield store
    store.close()


@pytest.fixture(params=["transactional", "lease"])
def scope(request: pytest.FixtureRequest) -> Scope:
    """A scope of either mode."""
    return Scope("orders.charge", mode=request.param)


@pytest.fixture
def guard(sqlite: SqliteStore) -> Guard:
    return Guard(sqlite)


Begin = Callable[[Guard, Asked], Execution]


@pytest.fixture
def begin() -> Iterator[Begin]:
    """Claims what must be there to be claimed; what is not ended is given up after the test."""
    begun: list[Execution] = []

    def claim(guard: Guard, asked: Asked) -> Execution:
        execution = guard.begin(asked)
        assert isinstance(execution, Execution)
        begun.append(execution)
        return execution

    yield claim
    for execution in begun:
        execution.abandon()


def ask(scope: Scope, key: str = "order-1", **facts: Any) -> Asked:
    """One request for a protected operation."""
    return Asked(scope, key, **{"request_hash": HASH, **facts})
