"""Where the worker's loop meets the store: everything that became ready commits as one."""

from __future__ import annotations

import logging
import random
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from typing import NamedTuple

from ulak.core.change import COMMITTED, Change, LeaseLost, Receipt
from ulak.engine.telemetry import NOBODY, Telemetry
from ulak.engine.threads import guarded
from ulak.errors import Contended, StoreError, WriteRefused
from ulak.ids import to_text
from ulak.store.protocol import LARGEST_BATCH, LARGEST_BATCH_BYTES, JobStore

log = logging.getLogger("ulak.committer")

FIRST_PAUSE_S = 0.05
# So short that after an outage the former rate is there within a few hundred milliseconds.
LONGEST_PAUSE_S = 0.4
LONGEST_PAUSE_ASIDE_S = 1.0

# A batch of 500 with one blocked change is parted nine times. After so many vain tries many are
# blocked, and to find out which would take too long: all that are left wait.
MOST_IN_VAIN = 30


class Entry(NamedTuple):
    """One change on its way, and whom to tell."""

    change: Change
    settle: Callable[[Change, Receipt], None]
    """Called through the committer's `deliver` with the change that the receipt is for: this one,
    or the fallback that was written in its stead."""
    fallback: Callable[[str], Change]
    """Makes the minimal change that holds the job when the store refuses this one's data."""


Settled = list[tuple[Entry, Receipt]]
Deliver = Callable[[Settled], None]


def _nobody(error: BaseException) -> None:
    """Tell nobody of a failure; the log has it."""


class Committer:
    """One thread that commits whatever is waiting, in batches that the last flush has shaped.

    A store that cannot be reached is asked again until it answers: an outage loses no work. Before
    a batch is repeated its commit ids are looked up, so that nothing is written twice. A change
    that a transaction of somebody else blocks is set aside and offered again later; its neighbours
    need not wait. `failed` is called when the thread has ended by an error, and commits no more.
    """

    def __init__(
        self,
        store: JobStore,
        deliver: Deliver,
        *,
        telemetry: Telemetry = NOBODY,
        failed: Callable[[BaseException], None] = _nobody,
        largest: int = LARGEST_BATCH,
    ) -> None:
        self._store = store
        self._largest = largest
        self._telemetry = telemetry
        self._deliver = deliver
        self._lock = threading.Lock()
        self._arrived = threading.Condition(self._lock)
        self._waiting: deque[Entry] = deque()
        self._aside: deque[Entry] = deque()
        self._aside_pause_s = FIRST_PAUSE_S
        self._aside_due = 0.0
        self._in_vain = 0
        self._asleep = False
        self._closed = False
        self._given_up = False
        serve = guarded(self._serve, failed)
        self._thread = threading.Thread(target=serve, name="ulak-committer", daemon=True)
        self._draw = random.Random()  # noqa: S311 - spreads reconnects, decides nothing else

    def start(self) -> None:
        self._thread.start()

    def offer(self, entries: Iterable[Entry]) -> None:
        """Commit these changes with the next batch."""
        self._waiting.extend(entries)
        # The flag is read without the lock: a committer that is about to sleep looks at the
        # queue once more under the lock, so that no entry is overlooked.
        if self._asleep:
            with self._lock:
                self._arrived.notify()

    def close(self, timeout_s: float | None = None) -> None:
        """Commit what is waiting, then stop; give up when the store does not answer in time."""
        with self._lock:
            self._closed = True
            self._arrived.notify()
        if self._thread.is_alive():
            self._thread.join(timeout_s)
        self._given_up = True

    @property
    def has_stopped(self) -> bool:
        """Whether nothing that is offered now will be committed."""
        return self._given_up

    def _serve(self) -> None:
        while True:
            batch = self._take(self._waiting)
            if self._aside:
                batch = self._keep_back(batch)
                if time.monotonic() >= self._aside_due:
                    self._try_aside()
            if batch:
                self._in_vain = 0
                self._deliver(self._commit(batch))
            elif not self._has_more():
                return

    def _has_more(self) -> bool:
        """Sleep until there is something to commit; answer whether there ever will be."""
        with self._lock:
            self._asleep = True
            while not self._waiting:
                if self._aside and not self._given_up:
                    if not self._arrived.wait(max(0.0, self._aside_due - time.monotonic())):
                        break
                elif self._closed:
                    return False
                else:
                    self._arrived.wait()
            self._asleep = False
            return True

    def _take(self, waiting: deque[Entry]) -> list[Entry]:
        size = 0
        batch: list[Entry] = []
        jobs: set[bytes] = set()
        while waiting and len(batch) < self._largest:
            change = waiting[0].change
            if change.row.id in jobs:
                break  # the second change of a job stands on the first: it must come after
            size += _size(change)
            if size > LARGEST_BATCH_BYTES and batch:
                break
            jobs.add(change.row.id)
            batch.append(waiting.popleft())
        return batch

    def _commit(self, batch: Sequence[Entry]) -> Settled:
        pause = FIRST_PAUSE_S
        while True:
            try:
                changes = [entry.change for entry in batch]
                began = time.monotonic()
                receipts = self._store.commit(changes)
                self._telemetry.committed(changes, receipts, time.monotonic() - began)
                return list(zip(batch, receipts, strict=True))
            except WriteRefused as refusal:
                return self._halve(batch, str(refusal))
            except Contended as error:
                return self._part(batch, str(error))
            except StoreError as error:
                self._telemetry.failed("commit")
                log.warning("the store does not answer", extra={"error": str(error)})
            except Exception as error:  # a worker loop: one bad change must not end all commits
                log.exception("the store failed on a batch")
                return self._halve(batch, f"{type(error).__name__}: {error}")
            settled, batch, pause = self._look_up(batch, pause)
            if not batch:
                return settled
            if settled:
                return settled + self._commit(batch)

    def _look_up(
        self, batch: Sequence[Entry], pause: float
    ) -> tuple[Settled, Sequence[Entry], float]:
        """Part a batch of unknown fate into what is in the trail and what must be repeated."""
        while True:
            self._wait(pause * (1 + self._draw.random()) / 2)
            pause = min(pause * 2, LONGEST_PAUSE_S)
            if self._given_up:
                # Nobody waits any more. Whether it was written, whoever rescues the job will see.
                return [], [], pause
            try:
                found = self._store.find_commits([entry.change for entry in batch])
            except StoreError as error:
                log.debug("the store does not answer", extra={"error": str(error)})
                continue
            written: Settled = [
                (e, COMMITTED) for e, there in zip(batch, found, strict=True) if there
            ]
            self._telemetry.committed([e.change for e, _ in written], [r for _, r in written], None)
            return written, [e for e, there in zip(batch, found, strict=True) if not there], pause

    def _part(self, batch: Sequence[Entry], why: str) -> Settled:
        """Commit what nobody blocks, and set the rest aside."""
        self._in_vain += 1
        if len(batch) > 1 and self._in_vain < MOST_IN_VAIN:
            half = len(batch) // 2
            return self._commit(batch[:half]) + self._commit(batch[half:])
        for entry in batch:
            job_id = to_text(entry.change.row.id)
            log.info("a change must wait for somebody else", extra={"job_id": job_id, "why": why})
        if not self._aside:
            self._aside_pause_s = FIRST_PAUSE_S
            self._aside_due = time.monotonic() + FIRST_PAUSE_S
        self._aside.extend(batch)
        return []

    def _keep_back(self, batch: Sequence[Entry]) -> list[Entry]:
        """Set aside what comes after a change of the same job that waits there; answer the rest."""
        blocked = {entry.change.row.id for entry in self._aside}
        self._aside.extend(entry for entry in batch if entry.change.row.id in blocked)
        return [entry for entry in batch if entry.change.row.id not in blocked]

    def _try_aside(self) -> None:
        """Offer once more what was set aside, in its order; the pause before the next try grows."""
        later, pause = self._aside, self._aside_pause_s
        batch, self._aside = self._take(later), deque()
        self._in_vain = 0
        settled = self._commit(batch)
        self._aside.extend(later)
        self._aside_pause_s = FIRST_PAUSE_S if settled else min(pause * 2, LONGEST_PAUSE_ASIDE_S)
        self._aside_due = time.monotonic() + self._aside_pause_s * (1 + self._draw.random()) / 2
        if settled:
            self._deliver(settled)

    def _halve(self, batch: Sequence[Entry], why: str) -> Settled:
        """Find the change whose data the store refuses, and hold that job alone."""
        if len(batch) > 1:
            half = len(batch) // 2
            return self._commit(batch[:half]) + self._commit(batch[half:])
        entry = batch[0]
        if entry.fallback is _no_fallback:
            # Even the hold was refused: its lease ends with this worker, and others are not harmed.
            job = {"job_id": to_text(entry.change.row.id), "reason": why}
            log.error("a job can be neither moved nor held", extra=job)
            return [(entry, LeaseLost())]
        return self._commit([Entry(entry.fallback(why), entry.settle, _no_fallback)])

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


def _no_fallback(why: str) -> Change:
    raise AssertionError(why)  # pragma: no cover - told apart by identity, never called
