"""Readers hold nothing between two answers: whoever reads slowly keeps no old pages alive."""

import threading
import time
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from ulak.store.protocol import JobFilter
from ulak.store.sqlite import SqliteStore
from ulak.store.sqlite.session import Session
from ulak.store.sqlite.writer import MOST_READERS
from ulak.testing.conformance import Desk

READS: dict[str, Callable[[SqliteStore], Any]] = {
    "a page of jobs": lambda store: store.list_jobs(JobFilter(), limit=2),
    "every job": lambda store: store.scan_jobs(limit=2),
    "a trail": lambda store: store.trail(store.scan_jobs(limit=1)[0].id),
    "counts": lambda store: store.counts(),
    "a key of many, the rest not yet asked for": lambda store: next(store.scan_keys()),
}


@pytest.mark.shows("E-54")
@pytest.mark.parametrize("what", READS)
def test_no_read_transaction_outlives_its_answer(store: SqliteStore, path: Path, what: str) -> None:
    desk = Desk(store)
    for n in range(5):
        desk.submit(dedup_key=f"k{n}")
    answer = READS[what](store)
    assert answer
    desk.submit_many(20)
    # A checkpoint that truncates needs the whole WAL: a single reader in it makes it busy.
    busy, _, _ = store._writer.db.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchone()
    assert busy == 0
    assert path.with_name(path.name + "-wal").stat().st_size == 0


@pytest.mark.shows("E-86")
def test_any_number_of_threads_read_on_a_bounded_number_of_connections(store: SqliteStore) -> None:
    used: set[int] = set()

    def read(db: Session) -> None:
        used.add(id(db.own))
        time.sleep(0.01)

    threads = [threading.Thread(target=store._read, args=(read,)) for _ in range(4 * MOST_READERS)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(used) <= MOST_READERS


@pytest.mark.shows("E-86")
def test_a_thread_that_has_lent_connections_can_still_read(store: SqliteStore) -> None:
    with ExitStack() as lent:
        for _ in range(MOST_READERS + 1):
            lent.enter_context(store.reading())
        assert store.counts() == []
