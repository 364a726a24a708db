"""The one entry for new jobs: concurrent offers share a commit, a lone one commits at once."""

from __future__ import annotations

import logging
import threading
import time
from collections import deque
from collections.abc import Sequence
from concurrent.futures import Future
from datetime import timedelta
from typing import cast

from ulak.core.job import NewJob
from ulak.errors import NotSupported, Overloaded, Refused, StoreError
from ulak.store.caller import Guest
from ulak.store.protocol import LARGEST_BATCH, LARGEST_BATCH_BYTES, Added, Store

log = logging.getLogger("ulak.intake")

FIRST_PAUSE_S = 0.05
LONGEST_PAUSE_S = 2.0

# What may wait here before a caller is told to come back: enough for a burst, little enough to
# be flushed in a second or two.
MOST_JOBS = 5_000
MOST_BYTES = 64 * 1024 * 1024
RETRY_AFTER = timedelta(seconds=2)

Offer = tuple[Sequence[NewJob], "Future[list[Added]]", int]


class Intake:
    """Takes offers from any thread and stores them in as few transactions as there are moments.

    Group commit without a timer: whatever has come in while one transaction was flushed goes
    into the next. Each offer still gets its own answer, after the commit that holds it.
    """

    def __init__(self, store: Store, patience_s: float = 30.0) -> None:
        self._store = store
        self._patience_s = patience_s
        self._lock = threading.Lock()
        self._arrived = threading.Condition(self._lock)
        self._waiting: deque[Offer] = deque()
        self._jobs = 0
        self._bytes = 0
        self._busy = False
        self._closed = False
        self._thread: threading.Thread | None = None

    def offer(self, jobs: Sequence[NewJob]) -> Future[list[Added]]:
        """Store these jobs together, sharing the commit with whoever else is waiting.

        Raises:
            Overloaded: too much is waiting already; nothing was accepted.
        """
        answer: Future[list[Added]] = Future()
        size = sum(len(job.payload.data) for job in jobs)
        with self._lock:
            self._refuse_when_full(len(jobs), size)
            self._waiting.append((jobs, answer, size))
            self._jobs += len(jobs)
            self._bytes += size
            self._need_thread()
            self._arrived.notify()
        return answer

    def offer_and_wait(self, jobs: Sequence[NewJob], timeout_s: float) -> list[Added]:
        """Like `offer`, waiting for the answer; when the writer is idle, commit on this thread.

        Raises:
            TimeoutError: no answer came in time; the jobs may or may not be stored.
        """
        with self._lock:
            alone = not self._busy and not self._waiting
            if alone:
                self._refuse_when_full(len(jobs), 0)
                self._busy = True
        if not alone:
            return self.offer(jobs).result(timeout_s)
        try:
            return self._add(jobs, timeout_s)
        finally:
            with self._lock:
                self._busy = False
                if self._waiting:
                    self._arrived.notify()

    def close(self) -> None:
        """Store what is waiting, then take nothing more until it is opened again."""
        with self._lock:
            self._closed = True
            self._arrived.notify_all()
            thread, self._thread = self._thread, None
        if thread is not None:
            thread.join()

    def open(self) -> None:
        """Take offers; a new intake does so from the beginning."""
        with self._lock:
            self._closed = False

    def _add(self, jobs: Sequence[NewJob], patience_s: float) -> list[Added]:
        """Store jobs. After a broken connection their ids make it safe to store them again.

        Raises:
            TimeoutError: the store gave no answer; the jobs may or may not be stored.
        """
        deadline, pause = time.monotonic() + patience_s, FIRST_PAUSE_S
        while True:
            try:
                return self._store.add(jobs)
            except Refused:
                raise
            except StoreError as error:
                log.warning("the store does not answer", extra={"error": str(error)})
                if self._closed or time.monotonic() + pause >= deadline:
                    raise TimeoutError(str(error)) from error
            time.sleep(pause)
            pause = min(pause * 2, LONGEST_PAUSE_S)

    def _refuse_when_full(self, jobs: int, size: int) -> None:
        if self._closed:
            raise Overloaded(
                "this engine is closing and accepts no more jobs", retry_after=RETRY_AFTER
            )
        if self._jobs + jobs > MOST_JOBS or self._bytes + size > MOST_BYTES:
            raise Overloaded(
                f"{self._jobs} jobs ({self._bytes} bytes) are waiting to be stored; "
                f"try again in {RETRY_AFTER.total_seconds():g} s",
                retry_after=RETRY_AFTER,
            )

    def _need_thread(self) -> None:
        if self._thread is None:
            self._thread = threading.Thread(target=self._serve, name="ulak-intake", daemon=True)
            self._thread.start()

    def _serve(self) -> None:
        while True:
            with self._lock:
                while self._busy or not self._waiting:
                    if self._closed and not self._waiting:
                        return
                    self._arrived.wait()
                offers = self._take()
                self._busy = True
            try:
                self._store_offers(offers)
            finally:
                with self._lock:
                    self._busy = False

    def _take(self) -> list[Offer]:
        taken: list[Offer] = []
        jobs = size = 0
        while self._waiting:
            offer = self._waiting[0]
            if taken and (
                jobs + len(offer[0]) > LARGEST_BATCH or size + offer[2] > LARGEST_BATCH_BYTES
            ):
                break
            self._waiting.popleft()
            self._jobs -= len(offer[0])
            self._bytes -= offer[2]
            # From here on it cannot be cancelled; whoever has cancelled before wants no job.
            if offer[1].set_running_or_notify_cancel():
                taken.append(offer)
                jobs += len(offer[0])
                size += offer[2]
        return taken

    def _store_offers(self, offers: list[Offer]) -> None:
        """Store them as one; when the data of one is refused, the others must not suffer."""
        if not offers:
            return
        try:
            added = self._add([job for jobs, _, _ in offers for job in jobs], self._patience_s)
        except TimeoutError as error:
            for _, answer, _ in offers:
                answer.set_exception(error)
        except Exception as error:  # noqa: BLE001 - a worker loop: one bad offer must not end all of them
            if len(offers) == 1:
                offers[0][1].set_exception(error)
                return
            half = len(offers) // 2
            self._store_offers(offers[:half])
            self._store_offers(offers[half:])
        else:
            start = 0
            for jobs, answer, _ in offers:
                answer.set_result(added[start : start + len(jobs)])
                start += len(jobs)


def guest_of(store: Store) -> Guest:
    """Answer the store as one that writes in a caller's own transaction.

    Raises:
        NotSupported: it cannot, and to store the job beside the transaction would break what was
            asked for; naming the store, the call and the cure.
    """
    if store.features.caller_transactions:
        return cast(Guest, store)
    raise NotSupported(
        f"submit(connection=...) is not to be had from the {store.features.name} store: it cannot "
        "write in a transaction of yours; leave connection= out, commit your own rows first and "
        "then submit with a dedup_key, so that after a crash in between you can submit again"
    )
