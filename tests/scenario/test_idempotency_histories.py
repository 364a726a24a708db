"""Clients of several processes ask under the same keys; what they were told must be possible.

Operations fail, processes die in the middle, operators forget records meanwhile. The history is
recorded from outside and searched for an order that explains it.
"""

import os
import random
import signal
import threading
import time
from collections import Counter
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from tests.scenario.record_keepers import is_redis, records_at
from ulak.errors import ClaimLost, GuardUnavailable, IdempotencyConflict, InProgress
from ulak.idempotency import Answer, Answered, Asked, Execution, Guard, Scope
from ulak.store.protocol import RecordKeeper
from ulak.testing import histories as told
from ulak.testing.children import forked
from ulak.testing.histories import Call, History, read_history
from ulak.testing.linearizability import check
from ulak.wiring import store_of

CHILDREN, THREADS, ROUNDS = 4, 3, 40
PATIENCE_S = 120.0
ORDINARY, OTHER = "5f" * 32, "6e" * 32
# Some executions take longer than a duplicate waits; one that dies is taken over within the test.
LEASE, LOCK_WAIT = timedelta(milliseconds=600), timedelta(milliseconds=30)
SHORT_S, LONG_S = 0.004, 0.09

Ask = Callable[[Asked, Callable[[Execution], Answer]], Answered]


class Dropped(Exception):
    """What an operation raises that comes to nothing."""


class Client:
    """One thread of one process, which asks and writes down what it is told."""

    def __init__(self, ask: Ask, guard: Guard, history: History, name: str, mode: Any) -> None:
        self._ask, self._guard, self._history, self._name = ask, guard, history, name
        self._scope = Scope("orders.charge", mode=mode, lease=LEASE, lock_wait=LOCK_WAIT)
        self._draw = random.Random(name)  # noqa: S311 - a seed that can be replayed

    def go(self, rounds: int, *, dies_in: int | None = None) -> None:
        """Ask so often; from the round `dies_in` on, die in the first execution there is."""
        # In a crowd the turn of the one that is to die may not come: it asks on when it is alone.
        for n in range(rounds if dies_in is None else 100 * rounds):
            dies = dies_in is not None and n >= dies_in
            key = f"doomed-{n}" if dies else self._key(n)
            if self._draw.random() < 0.05 and not dies:
                self._forget(key, f"{self._name}-{n}")
            else:
                self._request(key, f"{self._name}-{n}", dies=dies)

    def _key(self, n: int) -> str:
        """Every few rounds all clients go on to other keys; at last to what others died of."""
        if n >= ROUNDS * 3 // 4 and self._draw.random() < 0.3:
            return f"doomed-{ROUNDS // 2}"
        return f"order-{n // 5}-{self._draw.randrange(2)}"

    def _request(self, key: str, offers: str, *, dies: bool) -> None:
        digest = OTHER if self._draw.random() < 0.1 else ORDINARY
        fails = self._draw.random() < 0.15
        takes_s = LONG_S if self._draw.random() < 0.3 else SHORT_S
        has_run = False

        def operation(execution: Execution) -> Answer:
            nonlocal has_run
            has_run = True
            if execution.scope.mode == "transactional":
                execution.connection.execute(f"INSERT INTO ledger VALUES ('{offers}')")  # noqa: S608
            time.sleep(takes_s)
            if dies:
                os.kill(os.getpid(), signal.SIGKILL)
            if fails:
                raise Dropped
            return Answer(200, offers.encode())

        call = self._history.invoke(self._name, key=key, asked=digest, offers=offers)
        try:
            answered = self._ask(Asked(self._scope, key, request_hash=digest), operation)
        except Dropped:
            call.returns(told.FAILED)
        except InProgress:
            call.returns(told.IN_PROGRESS)
        except IdempotencyConflict:
            call.returns(told.CONFLICT)
        except ClaimLost:
            call.returns(told.LOST)
        except GuardUnavailable:
            call.returns(told.UNKNOWN if has_run else told.UNAVAILABLE)
        else:
            outcome = told.REPLAYED if answered.is_replay else told.EXECUTED
            call.returns(outcome, answered.answer.body.decode())

    def _forget(self, key: str, number: str) -> None:
        id = Asked(self._scope, key, request_hash="").id
        call = self._history.invoke(self._name, key=key, asked="", offers=number)
        found = self._guard.forget(id, actor="ada")
        call.returns(told.FORGOTTEN if found else told.NOT_FOUND)


def run_clients(store: RecordKeeper, path: str, name: str, mode: str, *, dies: bool) -> None:
    """Several clients at once in this process."""
    guard = Guard(store)
    history = History(path)
    threads = [
        threading.Thread(
            target=Client(guard.execute, guard, history, f"{name}-{n}", mode).go,
            args=(ROUNDS,),
            kwargs={"dies_in": ROUNDS // 2 if dies and n == 0 else None},
        )
        for n in range(THREADS)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(PATIENCE_S)


def child(url: str, path: str, name: str, mode: str, start: Any, dies: bool) -> None:
    store = records_at(url)
    start.wait(PATIENCE_S)
    run_clients(store, path, name, mode, dies=dies)
    store.close()


@pytest.mark.shows("I-2", "I-8", "I-10")
@pytest.mark.parametrize("mode", ["transactional", "lease"])
def test_what_clients_of_several_processes_were_told_can_be(
    records_url: str, tmp_path: Path, mode: str
) -> None:
    if not is_redis(records_url):
        with_ledger(records_url)
    elif mode == "transactional":
        pytest.skip("Redis has no transaction to share")
    path = str(tmp_path / "history.jsonl")
    context = forked()
    start = context.Barrier(CHILDREN)
    children = [
        context.Process(target=child, args=(records_url, path, f"p{n}", mode, start, n == 0))
        for n in range(CHILDREN)
    ]
    for process in children:
        process.start()
    for process in children:
        process.join(PATIENCE_S)
    assert [process.exitcode for process in children] == [-signal.SIGKILL, 0, 0, 0]

    calls = read_history(path)
    outcomes = Counter(call.outcome for call in calls)
    assert check(calls) == []
    # A history in which nothing happens shows nothing.
    for outcome in (told.EXECUTED, told.REPLAYED, told.IN_PROGRESS, told.CONFLICT, told.UNKNOWN):
        assert outcomes[outcome] > 0, outcomes
    if mode == "transactional":
        each_effect_is_that_of_an_execution(ledger(records_url), calls)


def each_effect_is_that_of_an_execution(effects: list[str], calls: list[Call]) -> None:
    """Rows are there once for what was executed, for what nobody was told perhaps, else never."""
    assert max(Counter(effects).values()) == 1
    executed = {call.value for call in calls if call.outcome == told.EXECUTED}
    unknown = {call.offers for call in calls if call.outcome == told.UNKNOWN}
    assert executed <= set(effects) <= executed | unknown


def with_ledger(url: str) -> None:
    store: Any = store_of(url)
    store.open()
    transaction = store.begin()
    transaction.connection.execute("CREATE TABLE ledger (value TEXT)")
    transaction.commit()
    store.close()


def ledger(url: str) -> list[str]:
    store: Any = store_of(url)
    store.open()
    transaction = store.begin()
    rows = transaction.connection.execute("SELECT value FROM ledger").fetchall()
    transaction.roll_back()
    store.close()
    return [value for (value,) in rows]


# --- what a broken guard would be told ------------------------------------------------------


class LooksBeforeItLeaps:
    """A guard as many write one: it reads, and executes if there is nothing."""

    def __init__(self) -> None:
        self._answers: dict[str, tuple[str, Answer]] = {}

    def execute(self, asked: Asked, operation: Callable[[Any], Answer]) -> Answered:
        found = self._answers.get(asked.key)
        if found is None:
            answer = operation(Leaping())
            self._answers[asked.key] = (asked.request_hash, answer)
            return Answered(answer, is_replay=False)
        if found[0] != asked.request_hash:
            raise IdempotencyConflict("another request")
        return Answered(found[1], is_replay=True)

    def forget(self, id: Any, *, actor: str) -> bool:
        return self._answers.pop(id.key, None) is not None


class Leaping:
    scope = Scope("orders.charge", mode="lease")


def test_a_guard_that_looks_before_it_leaps_is_found_out(tmp_path: Path) -> None:
    broken: Any = LooksBeforeItLeaps()
    history = History(tmp_path / "history.jsonl")
    threads = [
        threading.Thread(
            target=Client(broken.execute, broken, history, f"c{n}", "lease").go, args=(ROUNDS,)
        )
        for n in range(6)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(PATIENCE_S)
    history.close()
    assert check(read_history(history.path))
