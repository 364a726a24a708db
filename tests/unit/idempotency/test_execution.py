"""Executions in lease mode: phases that are not repeated, and owners who come too late."""

from datetime import timedelta
from typing import Any

import pytest

from tests.unit.idempotency.conftest import Begin, ask
from ulak.clock import ManualClock
from ulak.errors import BadInput, ClaimLost, InProgress, NotSupported
from ulak.idempotency import Answer, Guard, Scope
from ulak.idempotency.execution import Phase
from ulak.store.memory import MemoryStore
from ulak.store.sqlite import SqliteStore

SCOPE = Scope("orders.charge", mode="lease")
PAID = Answer(201, b"{}")


def lapse(clock: ManualClock) -> None:
    """Let the time pass after which an execution counts as dead."""
    clock.advance(SCOPE.lease)


def orders(store: SqliteStore) -> list[int]:
    transaction = store.begin()
    rows = transaction.connection.execute("SELECT n FROM orders ORDER BY n").fetchall()
    transaction.roll_back()
    return [n for (n,) in rows]


@pytest.fixture
def tables(sqlite: SqliteStore) -> SqliteStore:
    transaction = sqlite.begin()
    transaction.connection.execute("CREATE TABLE orders (n INTEGER)")
    transaction.commit()
    return sqlite


def insert(n: int) -> Any:
    """Make a phase that writes a row and answers its number."""

    def work(phase: Phase) -> dict[str, int]:
        phase.connection.execute(f"INSERT INTO orders VALUES ({n})")  # noqa: S608 - a number
        return {"order": n}

    return work


def must_not_run(_: Phase) -> Any:
    raise AssertionError("this has ended before")


@pytest.mark.shows("I-8")
def test_until_its_lease_ends_an_execution_is_left_alone_and_then_taken_over(
    begin: Begin, guard: Guard, clock: ManualClock
) -> None:
    first = begin(guard, ask(SCOPE))
    clock.advance(SCOPE.lease - timedelta(microseconds=1))
    with pytest.raises(InProgress):
        guard.begin(ask(SCOPE))
    clock.advance(timedelta(microseconds=1))
    second = begin(guard, ask(SCOPE))
    assert (first.attempt, second.attempt) == (1, 2)
    second.settle(PAID)


def test_the_end_of_an_old_owner_is_refused_after_a_takeover(
    begin: Begin, guard: Guard, clock: ManualClock
) -> None:
    first = begin(guard, ask(SCOPE))
    lapse(clock)
    second = begin(guard, ask(SCOPE))
    with pytest.raises(ClaimLost):
        first.settle(Answer(200, b"late"))
    with pytest.raises(InProgress):
        guard.begin(ask(SCOPE))
    second.settle(PAID)
    assert guard.begin(ask(SCOPE)) == PAID


def test_an_old_owner_that_gives_up_takes_nothing_from_the_new_one(
    begin: Begin, guard: Guard, clock: ManualClock
) -> None:
    first = begin(guard, ask(SCOPE))
    lapse(clock)
    second = begin(guard, ask(SCOPE))
    first.abandon()
    second.settle(PAID)
    assert guard.begin(ask(SCOPE)) == PAID


@pytest.mark.shows("I-32")
def test_a_phase_that_has_ended_is_skipped_and_its_data_handed_back(
    begin: Begin, guard: Guard, tables: SqliteStore, clock: ManualClock
) -> None:
    first = begin(guard, ask(SCOPE))
    assert first.phase("charge", insert(1)) == {"order": 1}
    assert first.phase("mail", lambda _: ["ada", 7]) == ["ada", 7]
    assert first.phase("charge", must_not_run) == {"order": 1}
    lapse(clock)
    second = begin(guard, ask(SCOPE))
    assert second.attempt == 2
    assert second.phase("charge", must_not_run) == {"order": 1}
    assert second.phase("mail", must_not_run) == ["ada", 7]
    assert second.phase("ship", insert(2)) == {"order": 2}
    second.settle(PAID)
    assert orders(tables) == [1, 2]


@pytest.mark.shows("I-32")
def test_a_phase_that_raises_leaves_neither_rows_nor_a_recovery_point(
    begin: Begin, guard: Guard, tables: SqliteStore
) -> None:
    first = begin(guard, ask(SCOPE))
    first.phase("charge", insert(1))

    def fail(phase: Phase) -> None:
        insert(2)(phase)
        raise RuntimeError("boom")

    with pytest.raises(RuntimeError, match="boom"):
        first.phase("ship", fail)
    assert orders(tables) == [1]
    first.abandon()
    # With a recovery point the claim is not removed, and may be taken over at once.
    second = begin(guard, ask(SCOPE))
    assert second.attempt == 2
    assert second.phase("charge", must_not_run) == {"order": 1}
    assert second.phase("ship", insert(2)) == {"order": 2}
    second.abandon()


@pytest.mark.shows("I-32")
def test_the_phase_of_an_old_owner_keeps_nothing_after_a_takeover(
    begin: Begin, guard: Guard, tables: SqliteStore, clock: ManualClock
) -> None:
    first = begin(guard, ask(SCOPE))
    lapse(clock)
    second = begin(guard, ask(SCOPE))
    with pytest.raises(ClaimLost, match='"charge"'):
        first.phase("charge", insert(1))
    with pytest.raises(ClaimLost):
        first.phase("mail", lambda _: 1)
    assert orders(tables) == []
    assert second.phase("charge", insert(2)) == {"order": 2}
    assert orders(tables) == [2]
    second.abandon()


@pytest.mark.shows("I-32")
def test_what_a_phase_answers_is_what_it_would_be_after_a_takeover(
    begin: Begin, guard: Guard, clock: ManualClock
) -> None:
    first = begin(guard, ask(SCOPE))
    assert first.phase("charge", lambda _: (1, {"ä": None})) == [1, {"ä": None}]  # type: ignore[comparison-overlap]
    with pytest.raises(BadInput):
        first.phase("odd", lambda _: object())


def test_a_phase_extends_the_lease(begin: Begin, guard: Guard, clock: ManualClock) -> None:
    first = begin(guard, ask(SCOPE))
    clock.advance(SCOPE.lease - timedelta(seconds=1))
    first.phase("charge", lambda _: 1)
    clock.advance(SCOPE.lease - timedelta(seconds=1))
    with pytest.raises(InProgress):
        guard.begin(ask(SCOPE))


def test_a_leased_operation_writes_rows_by_phases_only(begin: Begin, guard: Guard) -> None:
    first = begin(guard, ask(SCOPE))
    with pytest.raises(BadInput, match=r"execution\.phase"):
        _ = first.connection


def test_a_store_without_transactions_has_phases_without_rows(
    begin: Begin, memory: MemoryStore
) -> None:
    first = begin(Guard(memory), ask(SCOPE))
    assert first.phase("charge", lambda _: 7) == 7
    with pytest.raises(NotSupported):
        first.phase("ship", insert(1))


def test_in_a_transactional_operation_a_phase_is_part_of_the_whole(
    begin: Begin, guard: Guard, tables: SqliteStore
) -> None:
    begun = begin(guard, ask(Scope("orders.charge")))
    assert begun.phase("charge", insert(1)) == {"order": 1}
    begun.abandon()
    assert orders(tables) == []
