"""Who writes next, in one process and between processes."""

import errno
import fcntl
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from ulak.errors import Contended, StoreError
from ulak.store.sqlite import SqliteStore
from ulak.store.sqlite.files import Turns
from ulak.store.sqlite.session import Transaction
from ulak.store.sqlite.writer import Writer


def wait_until(condition: Callable[[], bool]) -> None:
    """Wait for another thread; the test's own timeout ends it when it never comes."""
    pause = threading.Event()
    while not condition():
        pause.wait(0.001)


@pytest.mark.shows("E-24", "E-54")
def test_a_renewal_goes_before_every_commit_that_waits() -> None:
    turns, order = Turns(), []

    def take(name: str, *, urgent: bool) -> None:
        turns.acquire(urgent=urgent)
        order.append(name)
        turns.release()

    turns.acquire()
    threads = []
    for n, (name, urgent) in enumerate([("a", False), ("b", False), ("renewal", True)], 1):
        threads.append(threading.Thread(target=take, args=(name,), kwargs={"urgent": urgent}))
        threads[-1].start()
        wait_until(lambda n=n: len(turns._waiting) + len(turns._urgent) == n)
    turns.release()
    for thread in threads:
        thread.join()

    assert order == ["renewal", "a", "b"]


@pytest.mark.shows("E-24")
def test_the_store_renews_leases_as_urgent(store: SqliteStore) -> None:
    store.register("w", lease_us=30_000_000, lanes=["any"], about="")
    order: list[str] = []
    entered, leave = threading.Event(), threading.Event()

    def slow(_: Transaction) -> None:
        entered.set()
        leave.wait()

    def fold() -> None:
        store.fold_counts()
        order.append("fold")

    def renew() -> None:
        store.renew("w", lease_us=30_000_000)
        order.append("renew")

    turns = store._writer._turns
    threads = [threading.Thread(target=lambda: store._writer.run("fold", slow))]
    threads[0].start()
    entered.wait()
    for n, work in enumerate((fold, fold, renew), 1):
        threads.append(threading.Thread(target=work))
        threads[-1].start()
        wait_until(lambda n=n: len(turns._waiting) + len(turns._urgent) == n)
    leave.set()
    for thread in threads:
        thread.join()

    assert order[0] == "renew"


def test_the_turn_is_not_taken_twice() -> None:
    turns = Turns()
    assert turns.try_acquire()
    assert not turns.try_acquire()
    turns.release()
    assert turns.try_acquire()


@pytest.mark.shows("E-83")
@pytest.mark.parametrize("urgent", [False, True])
def test_who_waits_too_long_for_the_turn_leaves_the_queue_without_it(urgent: bool) -> None:
    turns = Turns()
    assert turns.acquire()
    assert not turns.acquire(urgent=urgent, timeout_s=0.01)
    turns.release()
    assert turns.try_acquire(), "nobody is in the queue who would be handed the turn"


@pytest.mark.shows("I-8")
@pytest.mark.parametrize("purpose", [b"", b"a", b"short", bytes(32)])
def test_who_has_the_turn_is_named_by_its_whole_purpose_and_no_more(
    store: SqliteStore, purpose: bytes
) -> None:
    store.begin(purpose=b"longer than what comes after it.").roll_back()
    transaction = store.begin(purpose=purpose)
    try:
        with pytest.raises(Contended) as refusal:
            store.begin(patience_ms=1)
    finally:
        transaction.roll_back()
    assert refusal.value.holder == purpose


@pytest.mark.shows("E-83")
@pytest.mark.parametrize(
    "write",
    [
        lambda writer: writer.run("add", lambda t: None),
        lambda writer: writer.hold(),
        lambda writer: writer.try_hold(),
        lambda writer: writer.with_file_locked(lambda db: None),
    ],
    ids=["run", "hold", "try_hold", "with_file_locked"],
)
def test_a_lock_that_is_not_to_be_had_is_an_error_of_the_store_and_keeps_no_turn(
    tmp_path: Path, write: Callable[[Writer], Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    store = SqliteStore(tmp_path / "jobs.db")
    store.open()
    writer = store._writer

    def refuse(*_: object) -> None:
        raise OSError(errno.ENOLCK, "no locks available")

    with monkeypatch.context() as patch:
        patch.setattr(fcntl, "flock", refuse)
        with pytest.raises(StoreError, match="no locks available"):
            write(writer)
    assert writer.try_hold()
    writer.let_go()
    store.close()
