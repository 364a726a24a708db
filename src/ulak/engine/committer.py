"""Where the worker's loop meets the store: everything that became ready commits as one."""

from __future__ import annotations

import logging
import random
import threading
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from typing import NamedTuple

from ulak.core.change import COMMITTED, Change, Receipt
from ulak.errors import Refused, StoreError
from ulak.store.protocol import LARGEST_BATCH, LARGEST_BATCH_BYTES, Store

log = logging.getLogger("ulak.committer")

FIRST_PAUSE_S = 0.05
LONGEST_PAUSE_S = 5.0


class Entry(NamedTuple):
    """One change on its way, and whom to tell."""

    change: Change
    settle: Callable[[Receipt], None]
    """Called with the receipt, through the committer's `deliver`."""
    fallback: Callable[[str], Change]
    """Makes the minimal change that holds the job when the store refuses this one's data."""


Deliver = Callable[[list[tuple[Callable[[Receipt], None], Receipt]]], None]


class Committer:
    """One thread that commits whatever is waiting, in batches that the last flush has shaped.

    A store that cannot be reached is asked again until it answers: finished work is never given
    up because of an outage. Before a batch is repeated its commit ids are looked up, so that
    nothing is written twice.
    """

    def __init__(self, store: Store, deliver: Deliver) -> None:
        self._store = store
        self._deliver = deliver
        self._lock = threading.Lock()
        self._arrived = threading.Condition(self._lock)
        self._waiting: deque[Entry] = deque()
        self._asleep = False
        self._closed = False
        self._thread = threading.Thread(target=self._serve, name="ulak-committer", daemon=True)
        self._seeded = random.Random(0)  # noqa: S311 - spreads reconnects, decides nothing
        self.batches = 0
        self.changes = 0

    def start(self) -> None:
        """Begin to commit."""
        self._thread.start()

    def offer(self, entries: Iterable[Entry]) -> None:
        """Commit these changes with the next batch."""
        self._waiting.extend(entries)
        # The flag is read without the lock: a committer that is about to sleep looks at the
        # queue once more under the lock, so that no entry is overlooked.
        if self._asleep:
            with self._lock:
                self._arrived.notify()

    def close(self) -> None:
        """Commit what is waiting, then stop."""
        with self._lock:
            self._closed = True
            self._arrived.notify()
        if self._thread.is_alive():
            self._thread.join()

    def _serve(self) -> None:
        while True:
            batch = self._take()
            if not batch:
                with self._lock:
                    self._asleep = True
                    while not self._waiting and not self._closed:
                        self._arrived.wait()
                    self._asleep = False
                    if not self._waiting and self._closed:
                        return
                continue
            self.batches += 1
            self.changes += len(batch)
            self._deliver(self._commit(batch))

    def _take(self) -> list[Entry]:
        waiting, size = self._waiting, 0
        batch: list[Entry] = []
        jobs: set[bytes] = set()
        while waiting and len(batch) < LARGEST_BATCH and size < LARGEST_BATCH_BYTES:
            job_id = waiting[0].change.row.id
            if job_id in jobs:
                break  # the second change of a job stands on the first: it must come after
            jobs.add(job_id)
            entry = waiting.popleft()
            size += _size(entry.change)
            batch.append(entry)
        return batch

    def _commit(self, batch: Sequence[Entry]) -> list[tuple[Callable[[Receipt], None], Receipt]]:
        pause = FIRST_PAUSE_S
        while True:
            try:
                receipts = self._store.commit([entry.change for entry in batch])
                return [(e.settle, r) for e, r in zip(batch, receipts, strict=True)]
            except Refused as refusal:
                return self._halve(batch, refusal)
            except StoreError as error:
                log.warning("the store does not answer", extra={"error": str(error)})
                self._wait(pause * (1 + self._seeded.random()))
                pause = min(pause * 2, LONGEST_PAUSE_S)
                settled, batch = self._look_up(batch)
                if settled:
                    return settled + (self._commit(batch) if batch else [])

    def _look_up(
        self, batch: Sequence[Entry]
    ) -> tuple[list[tuple[Callable[[Receipt], None], Receipt]], Sequence[Entry]]:
        """Part a batch of unknown fate into what is in the trail and what must be repeated."""
        try:
            found = self._store.find_commits([entry.change for entry in batch])
        except StoreError:
            return [], batch
        written = [(e.settle, COMMITTED) for e, there in zip(batch, found, strict=True) if there]
        return list(written), [e for e, there in zip(batch, found, strict=True) if not there]

    def _halve(
        self, batch: Sequence[Entry], refusal: Refused
    ) -> list[tuple[Callable[[Receipt], None], Receipt]]:
        """Find the change whose data the store refuses, and hold that job alone."""
        if len(batch) > 1:
            half = len(batch) // 2
            return self._commit(batch[:half]) + self._commit(batch[half:])
        entry = batch[0]
        log.error("a change was refused", extra={"job_id": entry.change.row.id.hex()})
        minimal = Entry(entry.fallback(str(refusal)), entry.settle, entry.fallback)
        return self._commit([minimal])

    def _wait(self, seconds: float) -> None:
        with self._lock:
            self._arrived.wait(seconds)


def _size(change: Change) -> int:
    if not (change.results or change.messages or change.spawns):
        return 0
    return (
        sum(len(r.data) for r in change.results)
        + sum(len(m.data) for m in change.messages)
        + sum(len(s.payload.data) for s in change.spawns)
    )
