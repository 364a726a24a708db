"""The guard: one executes, every other is told what became of it; the same in both modes."""

from dataclasses import replace
from datetime import timedelta
from typing import Any

import pytest

from tests.unit.idempotency.conftest import OTHER_HASH, Begin, ask
from ulak.clock import ManualClock, micros
from ulak.errors import (
    AnswerNotStored,
    BadInput,
    ClaimLost,
    Contended,
    GuardUnavailable,
    IdempotencyConflict,
    InProgress,
    NotSupported,
    StoreError,
)
from ulak.idempotency import Answer, Execution, Guard, Scope, current
from ulak.idempotency.guard import digest_of
from ulak.store.memory import MemoryStore
from ulak.store.records import COMPLETED, FAILED
from ulak.store.sqlite import SqliteStore

PAID = Answer(201, b'{"paid": 7 }', (("Content-Type", "application/json"),))
REFUSED = Answer(422, b'{"ok":false}')


class Operation:
    """Counts how often it is executed."""

    def __init__(self, answer: Answer | Exception = PAID) -> None:
        self.answer = answer
        self.runs = 0

    def __call__(self, execution: Execution) -> Answer:
        self.runs += 1
        if isinstance(self.answer, Exception):
            raise self.answer
        return self.answer


def must_not_run(execution: Execution) -> Answer:
    raise AssertionError("this must not be executed")


@pytest.mark.shows("I-2", "I-3", "I-16")
def test_the_second_request_is_answered_as_the_first_and_executes_nothing(
    guard: Guard, scope: Scope
) -> None:
    operation = Operation()
    first = guard.execute(ask(scope), operation)
    assert (first.answer, first.is_replay) == (PAID, False)
    for _ in range(3):
        again = guard.execute(ask(scope), must_not_run)
        assert (again.answer, again.is_replay) == (PAID, True)
    assert operation.runs == 1


@pytest.mark.shows("I-4")
def test_another_guard_on_the_same_store_answers_the_same(
    guard: Guard, sqlite: SqliteStore, scope: Scope
) -> None:
    guard.execute(ask(scope), Operation())
    reopened = SqliteStore(sqlite.path, clock=sqlite.clock)
    reopened.open()
    try:
        assert Guard(reopened).execute(ask(scope), must_not_run).answer == PAID
    finally:
        reopened.close()


@pytest.mark.shows("I-17")
def test_a_refusal_is_stored_and_replayed(guard: Guard, scope: Scope) -> None:
    guard.execute(ask(scope), Operation(REFUSED))
    assert guard.execute(ask(scope), must_not_run).answer == REFUSED
    record = guard.record(ask(scope).id)
    assert record is not None
    assert record.status == FAILED


@pytest.mark.shows("I-18", "I-19")
@pytest.mark.parametrize("status", [400, 404, 429, 503])
def test_what_is_not_kept_leaves_the_key_free(guard: Guard, scope: Scope, status: int) -> None:
    passing = Answer(status, b"later")
    assert guard.execute(ask(scope), Operation(passing)).answer == passing
    assert guard.record(ask(scope).id) is None
    assert guard.execute(ask(scope, request_hash=OTHER_HASH), Operation()).answer == PAID


@pytest.mark.shows("I-19")
def test_a_scope_may_keep_errors(guard: Guard, scope: Scope) -> None:
    scope = replace(scope, cache_errors=True)
    guard.execute(ask(scope), Operation(Answer(503, b"down")))
    assert guard.execute(ask(scope), must_not_run).answer == Answer(503, b"down")


@pytest.mark.shows("I-19")
def test_an_exception_is_let_out_and_nothing_is_stored(guard: Guard, scope: Scope) -> None:
    with pytest.raises(RuntimeError, match="boom"):
        guard.execute(ask(scope), Operation(RuntimeError("boom")))
    assert guard.record(ask(scope).id) is None
    assert not guard.execute(ask(scope), Operation()).is_replay


@pytest.mark.shows("I-7", "I-13")
def test_a_key_that_is_used_for_something_else_is_a_conflict(guard: Guard, scope: Scope) -> None:
    guard.execute(ask(scope), Operation())
    with pytest.raises(IdempotencyConflict, match="'order-1'"):
        guard.execute(ask(scope, request_hash=OTHER_HASH), must_not_run)
    assert guard.execute(ask(scope), must_not_run).answer == PAID


@pytest.mark.shows("I-6")
@pytest.mark.parametrize("other", [{"tenant": "acme"}, {"key": "order-2"}], ids=str)
def test_a_key_of_somebody_else_is_another(
    guard: Guard, scope: Scope, other: dict[str, Any]
) -> None:
    guard.execute(ask(scope), Operation())
    for asked in (ask(scope, **other), ask(replace(scope, name="orders.cancel"))):
        assert not guard.execute(asked, Operation(REFUSED)).is_replay
    assert guard.execute(ask(scope), must_not_run).answer == PAID


@pytest.mark.shows("I-8")
def test_while_the_first_runs_a_duplicate_is_told_so(
    begin: Begin, guard: Guard, scope: Scope
) -> None:
    scope = replace(scope, lock_wait=timedelta(milliseconds=20))
    first = begin(guard, ask(scope))
    with pytest.raises(InProgress, match="'order-1'") as raised:
        guard.execute(ask(scope), must_not_run)
    assert raised.value.retry_after >= timedelta(seconds=1)
    first.settle(PAID)
    assert guard.execute(ask(scope), must_not_run).answer == PAID


@pytest.mark.shows("I-9")
def test_a_neighbour_that_only_writes_beside_is_no_duplicate(begin: Begin, guard: Guard) -> None:
    scope = Scope("orders.charge", lock_wait=timedelta(milliseconds=20))
    first = begin(guard, ask(scope))
    with pytest.raises(GuardUnavailable):
        guard.execute(ask(scope, "order-2"), must_not_run)
    first.settle(PAID)
    assert guard.execute(ask(scope, "order-2"), Operation()).answer == PAID


@pytest.mark.shows("I-2")
@pytest.mark.parametrize("holder", ["order-1", "order-2"])
def test_what_was_answered_is_replayed_though_somebody_has_the_turn(
    guard: Guard, sqlite: SqliteStore, holder: str
) -> None:
    scope = Scope("orders.charge", lock_wait=timedelta(milliseconds=20))
    guard.execute(ask(scope), Operation())
    # As a duplicate has it for the moment in which it reads its answer.
    purpose = digest_of(ask(scope, holder).id)
    transaction = sqlite.begin(purpose=purpose)
    try:
        assert guard.execute(ask(scope), must_not_run).answer == PAID
        with pytest.raises(IdempotencyConflict):
            guard.execute(ask(scope, request_hash=OTHER_HASH), must_not_run)
    finally:
        transaction.roll_back()


def test_an_operation_that_waits_for_itself_is_told_so(guard: Guard) -> None:
    scope = Scope("orders.charge")

    def operation(_: Execution) -> Answer:
        return guard.execute(ask(scope, "order-2"), must_not_run).answer

    with pytest.raises(BadInput, match="inside of an open transaction"):
        guard.execute(ask(scope), operation)


@pytest.mark.shows("I-8")
def test_a_duplicate_is_told_from_a_neighbour_whatever_its_digest_ends_with(
    begin: Begin, guard: Guard
) -> None:
    scope = Scope("orders.charge", lock_wait=timedelta(milliseconds=1))
    for n in range(600):  # a digest ends in a zero byte once in 256
        begun = begin(guard, ask(scope, f"order-{n}"))
        with pytest.raises(InProgress):
            guard.begin(ask(scope, f"order-{n}"))
        begun.abandon()


@pytest.mark.shows("I-9")
@pytest.mark.parametrize("error", [StoreError("gone"), Contended("busy", holder=b"a stranger")])
def test_without_its_store_nothing_is_executed(
    guard: Guard, sqlite: SqliteStore, scope: Scope, error: StoreError,
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    def fail(*_: Any, **__: Any) -> Any:
        raise error

    for verb in ("begin", "claim_record", "find_records"):
        monkeypatch.setattr(sqlite, verb, fail)
    with pytest.raises(GuardUnavailable) as raised:
        guard.execute(ask(scope), must_not_run)
    assert raised.value.code == "idempotency_store_unavailable"
    with pytest.raises(GuardUnavailable):
        guard.look([ask(scope)])


@pytest.mark.shows("I-9")
def test_an_answer_that_cannot_be_stored_is_not_given(
    guard: Guard, sqlite: SqliteStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    scope = Scope("orders.charge", mode="lease")

    def fail(*_: Any, **__: Any) -> Any:
        raise StoreError("gone")

    with monkeypatch.context() as broken:
        broken.setattr(sqlite, "finish_record", fail)
        with pytest.raises(GuardUnavailable, match="gone"):
            guard.execute(ask(scope), Operation())
    # Nobody knows whether it was executed, so it is left alone until the lease ends.
    with pytest.raises(InProgress):
        guard.execute(ask(scope), must_not_run)


@pytest.mark.shows("I-21", "I-24")
def test_an_answer_is_kept_for_its_time_counted_from_the_end(
    guard: Guard, scope: Scope, clock: ManualClock
) -> None:
    def operation(_: Execution) -> Answer:
        clock.advance(timedelta(seconds=30))
        return PAID

    guard.execute(ask(scope), operation)
    clock.advance(scope.ttl - timedelta(microseconds=1))
    assert guard.execute(ask(scope), must_not_run).is_replay
    clock.advance(timedelta(microseconds=1))
    assert not guard.execute(ask(scope, request_hash=OTHER_HASH), Operation()).is_replay


@pytest.mark.shows("I-31")
def test_an_answer_that_was_too_large_is_not_executed_again(guard: Guard, scope: Scope) -> None:
    scope = replace(scope, max_body_bytes=3)
    assert guard.execute(ask(scope), Operation()).answer == PAID
    with pytest.raises(AnswerNotStored):
        guard.execute(ask(scope), must_not_run)


@pytest.mark.shows("I-20")
def test_a_forgotten_key_is_executed_again_and_the_act_is_audited(
    guard: Guard, sqlite: SqliteStore, scope: Scope
) -> None:
    guard.execute(ask(scope), Operation())
    assert guard.forget(ask(scope).id, actor="ada", note="wrong amount")
    assert not guard.forget(ask(scope).id, actor="ada")
    assert not guard.execute(ask(scope), Operation()).is_replay
    (line,) = sqlite.audit_trail()
    assert (line.actor, line.act, line.note) == ("ada", "forgotten", "wrong amount")
    with pytest.raises(BadInput):
        guard.forget(ask(scope).id, actor="")


@pytest.mark.shows("I-22", "I-23")
def test_cleaning_up_removes_everything_that_has_expired_in_batches(
    guard: Guard, sqlite: SqliteStore, scope: Scope, clock: ManualClock,
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    for n in range(7):
        guard.execute(ask(scope, f"order-{n}"), Operation())
    clock.advance(scope.ttl)
    guard.execute(ask(scope, "later"), Operation())
    batches: list[int] = []
    clean = sqlite.clean_records

    def count(limit: int) -> int:
        batches.append(limit)
        return clean(limit)

    monkeypatch.setattr(sqlite, "clean_records", count)
    assert guard.clean_up(batch=3) == 7
    assert guard.clean_up() == 0
    assert batches == [3, 3, 3, 1000]
    assert guard.execute(ask(scope, "later"), must_not_run).is_replay
    with pytest.raises(BadInput):
        guard.clean_up(batch=0)


def test_many_requests_are_looked_up_at_once(
    begin: Begin, guard: Guard, sqlite: SqliteStore, scope: Scope, clock: ManualClock
) -> None:
    guard.execute(ask(scope, "paid"), Operation())
    lease = Scope("orders.charge", mode="lease")
    running = begin(guard, ask(lease, "running"))
    begin(guard, ask(lease, "lapsed"))
    clock.advance(lease.lease / 2)
    sqlite.renew_records([running.row], lease_us=[micros(lease.lease)])
    clock.advance(lease.lease / 2)
    keys = ("nobody", "paid", "running", "lapsed")
    found = guard.look([ask(scope, key) for key in keys])
    other = guard.look([ask(scope, "paid", request_hash=OTHER_HASH)])
    assert found[:2] == [None, PAID]
    assert isinstance(found[2], InProgress)
    assert found[3] is None
    assert isinstance(other[0], IdempotencyConflict)


def test_a_transactional_scope_needs_a_store_with_transactions(memory: MemoryStore) -> None:
    with pytest.raises(NotSupported, match=r'"orders\.charge".*"lease"'):
        Guard(memory).execute(ask(Scope("orders.charge")), must_not_run)


def test_an_execution_ends_once(begin: Begin, guard: Guard, scope: Scope) -> None:
    begun = begin(guard, ask(scope))
    begun.settle(PAID)
    begun.abandon()
    with pytest.raises(BadInput):
        begun.settle(REFUSED)
    assert guard.execute(ask(scope), must_not_run).answer == PAID


def test_code_inside_finds_its_execution_and_code_outside_none(guard: Guard, scope: Scope) -> None:
    def operation(execution: Execution) -> Answer:
        assert current() is execution
        return PAID

    guard.execute(ask(scope), operation)
    with pytest.raises(BadInput, match="outside"):
        current()


@pytest.mark.shows("I-16", "I-17")
@pytest.mark.parametrize(
    ("answer", "rows"), [(PAID, 1), (REFUSED, 0), (Answer(404), 0), (RuntimeError("boom"), 0)]
)
def test_rows_are_stored_with_a_success_and_taken_back_with_anything_else(
    guard: Guard, sqlite: SqliteStore, answer: Any, rows: int
) -> None:
    scope = Scope("orders.charge")
    with_table(sqlite, "CREATE TABLE orders (n INTEGER)")

    def operation(execution: Execution) -> Answer:
        execution.connection.execute("INSERT INTO orders VALUES (1)")
        return Operation(answer)(execution)

    try:
        guard.execute(ask(scope), operation)
    except RuntimeError:
        assert isinstance(answer, RuntimeError)
    assert count(sqlite) == rows
    record = guard.record(ask(scope).id)
    kept = {201: COMPLETED, 422: FAILED}.get(getattr(answer, "status", 0))
    assert (record and record.status) == kept


def with_table(store: SqliteStore, statement: str) -> None:
    transaction = store.begin()
    transaction.connection.execute(statement)
    transaction.commit()


def count(store: SqliteStore) -> int:
    transaction = store.begin()
    (n,) = transaction.connection.execute("SELECT count(*) FROM orders").fetchone()
    transaction.roll_back()
    return int(n)


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (InProgress, "idempotency_in_progress"), (ClaimLost, "idempotency_lease_lost"),
        (AnswerNotStored, "idempotency_response_not_stored"),
        (IdempotencyConflict, "idempotency_key_reused"),
        (GuardUnavailable, "idempotency_store_unavailable"),
    ],
)  # fmt: skip
def test_every_refusal_has_the_code_that_the_specification_names(error: Any, code: str) -> None:
    assert error.code == code
