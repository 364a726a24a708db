"""Redis is killed and started again under clients that ask: nothing is lost, nothing done twice."""

import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from ulak.errors import ClaimLost, GuardUnavailable, InProgress, StoreError
from ulak.idempotency import Answer, Asked, Execution, Guard, Scope
from ulak.store.redis import RedisRecords
from ulak.testing import histories as told
from ulak.testing.children import forked
from ulak.testing.histories import Call, History, read_history
from ulak.testing.linearizability import check
from ulak.testing.servers import Redis

CHILDREN, THREADS, KILLS = 3, 3, 3
# Between two kills so many calls return. Who claims and dies with Redis is taken over soon.
CALLS_BETWEEN, LEASE = 150, timedelta(milliseconds=400)
PATIENCE_S = 120.0
DIGEST = "5f" * 32
KEYS_AT_A_TIME = 4
SCOPE = Scope("orders.charge", mode="lease", lease=LEASE)


@pytest.fixture
def server() -> Iterator[Redis]:
    with Redis() as made:
        yield made


def client(records: RedisRecords, history: History, name: str, stop: Path) -> None:
    """Ask under one key after the other, as all others do, until it is over."""
    guard, n = Guard(records), 0
    while not stop.exists():
        n += 1
        offers = f"{name}-{n}"

        def operation(_: Execution, offers: str = offers) -> Answer:
            time.sleep(0.002)
            return Answer(200, offers.encode())

        key = f"order-{n // KEYS_AT_A_TIME}"
        call = history.invoke(name, key=key, asked=DIGEST, offers=offers)
        try:
            answered = guard.execute(Asked(SCOPE, key, request_hash=DIGEST), operation)
        except InProgress:
            call.returns(told.IN_PROGRESS)
        except ClaimLost:
            call.returns(told.LOST)
        except GuardUnavailable:
            # Whether Redis has claimed or stored before it died, nobody can tell.
            call.returns(told.UNKNOWN)
            await_answers(records)
        else:
            outcome = told.REPLAYED if answered.is_replay else told.EXECUTED
            call.returns(outcome, answered.answer.body.decode())


def await_answers(records: RedisRecords) -> None:
    deadline = time.monotonic() + PATIENCE_S
    while time.monotonic() < deadline:
        try:
            records.find_records([])
        except StoreError:
            time.sleep(0.005)
        else:
            return
    raise AssertionError("Redis did not come back")


def child(url: str, path: str, name: str, stop: str) -> None:
    records, history = RedisRecords(url), History(path)
    threads = [
        threading.Thread(target=client, args=(records, history, f"{name}-{n}", Path(stop)))
        for n in range(THREADS)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(PATIENCE_S)


@pytest.mark.shows("I-58", "I-4")
def test_what_clients_were_told_can_be_though_redis_was_killed_three_times(
    server: Redis, tmp_path: Path
) -> None:
    path, stop = str(tmp_path / "history.jsonl"), tmp_path / "stop"
    History(path).close()
    context = forked()
    children = [
        context.Process(target=child, args=(server.url(), path, f"p{n}", str(stop)), daemon=True)
        for n in range(CHILDREN)
    ]
    for process in children:
        process.start()
    try:
        for _ in range(KILLS):
            before = len(read_history(path))
            until(lambda before=before: len(read_history(path)) > before + CALLS_BETWEEN)
            unknown = count_unknown(path)
            server.kill()
            until(lambda unknown=unknown: count_unknown(path) > unknown)
            server.start()
        after = len(read_history(path))
        until(lambda: len(read_history(path)) > after + CALLS_BETWEEN)
    finally:
        stop.touch()
        for process in children:
            process.join(PATIENCE_S)
    assert [process.exitcode for process in children] == [0] * CHILDREN

    calls = read_history(path)
    assert check(calls) == []
    outcomes = Counter(call.outcome for call in calls)
    for outcome in (told.EXECUTED, told.REPLAYED, told.IN_PROGRESS, told.UNKNOWN):
        assert outcomes[outcome] > 0, outcomes
    everything_is_there(Guard(RedisRecords(server.url())), calls)


def everything_is_there(guard: Guard, calls: list[Call]) -> None:
    """Each answer that a client was given is the one that is stored, and there is one of a key."""
    executed = [call for call in calls if call.outcome == told.EXECUTED]
    assert max(Counter(call.key for call in executed).values()) == 1
    for call in executed:
        stored = guard.begin(Asked(SCOPE, call.key, request_hash=DIGEST))
        assert stored == Answer(200, call.value.encode())


def count_unknown(path: str) -> int:
    """Count the calls that have returned without an answer."""
    lines = Path(path).read_text(encoding="utf-8").splitlines()
    return sum(f'"{told.UNKNOWN}"' in line for line in lines)


def until(condition: Callable[[], object]) -> None:
    deadline = time.monotonic() + PATIENCE_S
    while not condition():
        assert time.monotonic() < deadline, "it did not happen"
        time.sleep(0.01)


@pytest.mark.shows("I-9")
@pytest.mark.parametrize("how", ["killed", "frozen"])
def test_while_redis_is_away_nothing_is_executed(server: Redis, how: str) -> None:
    records = RedisRecords(server.url())
    guard, runs = Guard(records), []

    def operation(execution: Execution) -> Answer:
        runs.append(execution.row.key)
        return Answer(201, b"done")

    def ask(key: str) -> Any:
        return guard.execute(Asked(SCOPE, key, request_hash=DIGEST), operation)

    first = ask("a")
    with away(server, how):
        for key in ("a", "b"):
            with pytest.raises(GuardUnavailable, match="nothing was done"):
                ask(key)
    assert runs == ["a"]
    again = ask("a")
    assert (again.answer, again.is_replay) == (first.answer, True)
    # A server that stood still may have read the claim: it lapses.
    deadline = time.monotonic() + PATIENCE_S
    while runs == ["a"] and time.monotonic() < deadline:
        try:
            ask("b")
        except InProgress:
            time.sleep(0.02)
    assert runs == ["a", "b"]


@pytest.mark.shows("I-9")
@pytest.mark.parametrize("when", ["settles", "fails"])
def test_redis_that_goes_away_meanwhile_leaves_the_claim_to_lapse(server: Redis, when: str) -> None:
    guard = Guard(RedisRecords(server.url()))
    asked = Asked(SCOPE, "a", request_hash=DIGEST)

    def operation(execution: Execution) -> Answer:
        if execution.attempt == 1:
            server.kill()
            if when == "fails":
                raise RuntimeError("the bank is closed")
        return Answer(200, b"%d" % execution.attempt)

    with pytest.raises(GuardUnavailable if when == "settles" else RuntimeError):
        guard.execute(asked, operation)
    server.start()
    deadline = time.monotonic() + PATIENCE_S
    while True:
        try:
            answered = guard.execute(asked, operation)
        except InProgress:
            assert time.monotonic() < deadline
            time.sleep(0.02)
        else:
            break
    assert (answered.answer.body, answered.is_replay) == (b"2", False)


@contextmanager
def away(server: Redis, how: str) -> Iterator[None]:
    """Redis is gone, or does not answer, for as long as the block lasts."""
    if how == "frozen":
        with server.frozen():
            yield
        return
    server.kill()
    yield
    server.start()
