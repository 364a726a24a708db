"""How changes are put together into batches."""

import threading
from types import SimpleNamespace
from typing import Any

import pytest

from ulak.core.change import COMMITTED
from ulak.engine.committer import Committer, Entry
from ulak.store.protocol import LARGEST_BATCH, LARGEST_BATCH_BYTES


class Recording:
    """A store that remembers its batches."""

    def __init__(self) -> None:
        self.batches: list[list[Any]] = []

    def commit(self, changes: Any) -> list[Any]:
        self.batches.append(list(changes))
        return [COMMITTED] * len(changes)


def change(job: int, size: int = 0, n: int = 0) -> Any:
    results = (SimpleNamespace(data=b"x" * size),) if size else ()
    return SimpleNamespace(
        row=SimpleNamespace(id=job.to_bytes(4, "big")), results=results, messages=(), spawns=(), n=n
    )


def never(why: str) -> Any:
    raise AssertionError(why)


def commit_all(changes: list[Any], **options: int) -> list[list[Any]]:
    """Commit everything that waits when the committer begins."""
    store, settled, all_settled = Recording(), list[Any](), threading.Event()

    def settle(written: Any, receipt: Any) -> None:
        settled.append(written)
        if len(settled) == len(changes):
            all_settled.set()

    def deliver(batch: Any) -> None:
        for entry, receipt in batch:
            entry.settle(entry.change, receipt)

    committer = Committer(store, deliver, **options)  # type: ignore[arg-type]
    committer.offer([Entry(c, settle, never) for c in changes])
    committer.start()
    assert all_settled.wait(120)
    committer.close()
    assert settled == changes, "in the order in which they came"
    return store.batches


@pytest.mark.shows("E-22")
def test_a_batch_has_at_most_500_changes() -> None:
    batches = commit_all([change(n) for n in range(1201)])
    assert [len(batch) for batch in batches] == [LARGEST_BATCH, LARGEST_BATCH, 201]


@pytest.mark.shows("E-22", "E-56")
def test_a_batch_has_at_most_what_a_store_commits_at_once() -> None:
    batches = commit_all([change(n) for n in range(250)], largest=100)
    assert [len(batch) for batch in batches] == [100, 100, 50]


@pytest.mark.shows("E-22")
def test_a_batch_has_at_most_4_mib() -> None:
    size = 200 * 1024
    batches = commit_all([change(n, size) for n in range(50)])
    assert all(len(batch) * size <= LARGEST_BATCH_BYTES for batch in batches)
    assert len(batches) == 3


@pytest.mark.shows("E-22")
def test_a_change_that_is_larger_than_a_batch_goes_alone() -> None:
    batches = commit_all([change(1, 10), change(2, LARGEST_BATCH_BYTES + 1), change(3, 10)])
    assert [len(batch) for batch in batches] == [1, 1, 1]


@pytest.mark.shows("E-17")
def test_two_changes_of_a_job_go_one_after_the_other() -> None:
    batches = commit_all([change(1, n=1), change(2), change(1, n=2), change(3)])
    assert [[c.row.id[-1] for c in batch] for batch in batches] == [[1, 2], [1, 3]]


def test_whatever_is_offered_while_it_sleeps_wakes_it() -> None:
    store, settled = Recording(), threading.Semaphore(0)
    committer = Committer(
        store,  # type: ignore[arg-type]
        lambda batch: [settled.release() for _ in batch] and None,
    )
    committer.start()
    for n in range(500):
        committer.offer([Entry(change(n), lambda c, r: None, never)])
        if n % 7 == 0:
            assert settled.acquire(timeout=120)
    for _ in range(500 - 72):
        assert settled.acquire(timeout=120)
    committer.close()
    assert committer.has_stopped
