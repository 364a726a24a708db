"""Renewals: a lease is kept alive while its execution is, and no longer."""

import logging
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from datetime import timedelta

import pytest

from tests.unit.idempotency.conftest import ask
from ulak.clock import SystemClock
from ulak.errors import InProgress, StoreError
from ulak.idempotency import Answer, Execution, Guard, Scope
from ulak.idempotency.execution import Leased
from ulak.store.memory import MemoryStore
from ulak.store.records import RecordRow

PATIENCE_S = 120.0
SCOPE = Scope("orders.charge", mode="lease", lease=timedelta(seconds=2.4))
SHORT = Scope("orders.charge", mode="lease", lease=timedelta(milliseconds=300))
THREAD = "ulak-idempotency-renewals"


class Watched(MemoryStore):
    """Tells when leases are renewed, and fails to do so as often as it is told to."""

    def __init__(self) -> None:
        super().__init__(clock=SystemClock())
        self.renewed = threading.Semaphore(0)
        self.batches: list[list[str]] = []
        self.at: list[float] = []
        self.outages = 0
        self.faults: list[Callable[[], list[bool]]] = []

    def renew_records(self, rows: Sequence[RecordRow], *, lease_us: Sequence[int]) -> list[bool]:
        self.at.append(time.monotonic())
        self.batches.append([row.key for row in rows])
        try:
            if self.outages:
                self.outages -= 1
                raise StoreError("gone for a moment")
            if self.faults:
                return self.faults.pop()()
            return super().renew_records(rows, lease_us=lease_us)
        finally:
            self.renewed.release()

    def wait_for(self, renewals: int) -> None:
        for _ in range(renewals):
            assert self.renewed.acquire(timeout=PATIENCE_S)


@pytest.fixture
def watched() -> Iterator[Watched]:
    yield Watched()
    assert_no_thread()


def begin(guard: Guard, scope: Scope = SCOPE, key: str = "order-1") -> Leased:
    begun = guard.begin(ask(scope, key))
    assert isinstance(begun, Leased)
    return begun


def assert_no_thread() -> None:
    """The thread ends soon after the last execution."""
    for thread in threading.enumerate():
        if thread.name == THREAD:
            thread.join(PATIENCE_S)
            assert not thread.is_alive()


def test_a_lease_is_renewed_every_third_of_it(watched: Watched) -> None:
    began = time.monotonic()
    execution = begin(Guard(watched))
    watched.wait_for(2)
    # Before anything can fail: what it leaves behind would fail every other test of this thread.
    execution.abandon()
    first, second = watched.at[:2]
    third = SCOPE.lease.total_seconds() / 3
    # Far from the second third, on a machine that is busy with other tests too. The second is due
    # a third after the first was, and the first may have begun a little later than that.
    assert third <= first - began < 2 * third
    assert 2 * third <= second - began < 4 * third


@pytest.mark.shows("I-8")
def test_a_living_execution_outlasts_its_lease(watched: Watched) -> None:
    guard = Guard(watched)
    execution = begin(guard, SHORT)
    watched.wait_for(8)  # more than two whole leases
    with pytest.raises(InProgress):
        guard.begin(ask(SHORT))
    assert not execution.is_lost
    execution.settle(Answer(200, b"1"))
    assert guard.begin(ask(SHORT)) == Answer(200, b"1")


def test_one_thread_renews_every_lease_and_ends_with_the_last(watched: Watched) -> None:
    guard = Guard(watched)
    executions = [begin(guard, SHORT, f"order-{n}") for n in range(5)]
    assert [t.name for t in threading.enumerate()].count(THREAD) == 1
    watched.wait_for(10)
    assert {key for batch in watched.batches for key in batch} == {f"order-{n}" for n in range(5)}
    for execution in executions:
        execution.settle(Answer())
    assert_no_thread()
    # And begins again with the next.
    last = begin(guard, SHORT, "last")
    while ["last"] not in watched.batches:
        watched.wait_for(1)
    last.abandon()


def test_who_is_taken_over_learns_of_it(watched: Watched) -> None:
    execution = begin(Guard(watched), SHORT)
    assert not execution.is_lost
    assert watched.forget_record(execution.row.id, actor="ada", note="")
    deadline = time.monotonic() + PATIENCE_S
    while not execution.is_lost:
        watched.wait_for(1)
        assert time.monotonic() < deadline
    # Nobody renews what is lost.
    assert_no_thread()
    execution.abandon()


def test_an_outage_of_the_store_costs_one_renewal_and_is_logged(
    watched: Watched, caplog: pytest.LogCaptureFixture
) -> None:
    watched.outages = 1
    with caplog.at_level(logging.WARNING, "ulak.idempotency"):
        execution = begin(Guard(watched))
        watched.wait_for(2)
    assert [record.message for record in caplog.records] == ["leases could not be renewed"]
    assert not execution.is_lost
    execution.settle(Answer())


def test_an_execution_that_has_ended_is_not_renewed(watched: Watched) -> None:
    guard = Guard(watched)
    ended: list[Execution] = [begin(guard, SHORT, "ended"), begin(guard, SHORT, "given up")]
    going = begin(guard, SHORT, "going on")
    ended[0].settle(Answer())
    ended[1].abandon()
    seen = len(watched.batches) + 1  # one may be under way
    watched.wait_for(seen + 3)
    assert {key for batch in watched.batches[seen:] for key in batch} == {"going on"}
    going.abandon()


class Death(BaseException):
    """What no `except Exception` catches."""


def die() -> list[bool]:
    raise Death("the thread is to end")


def break_down() -> list[bool]:
    raise RuntimeError("a bug")


@pytest.mark.shows("E-83")
@pytest.mark.parametrize("fault", [die, break_down, list])
def test_a_fault_of_the_thread_costs_one_renewal_and_is_logged(
    watched: Watched, fault: Callable[[], list[bool]], caplog: pytest.LogCaptureFixture
) -> None:
    """Broken by a thread that ends: leases would lapse, and each would run a second time."""
    watched.faults.append(fault)
    execution = begin(Guard(watched))
    watched.wait_for(2)
    loud = [record for record in caplog.records if record.levelno == logging.ERROR]
    assert [record.message for record in loud] == ["leases could not be renewed"]
    assert loud[0].exc_info
    execution.abandon()
