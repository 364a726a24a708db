"""The one entry for new jobs: concurrent offers share a commit, a lone one commits at once."""

from __future__ import annotations

import logging
import random
import threading
import time
from collections import deque
from collections.abc import Sequence
from concurrent.futures import Future
from datetime import timedelta
from typing import NamedTuple, Protocol

from ulak.core.admission import stopped
from ulak.core.job import NewJob
from ulak.engine.telemetry import NOBODY, Telemetry
from ulak.errors import Contended, Overloaded, StoreError, WriteRefused
from ulak.store.processes import WaitUntil, WouldWait
from ulak.store.protocol import LARGEST_BATCH, LARGEST_BATCH_BYTES, Added, Store
from ulak.store.transaction import refuse_while_holding

log = logging.getLogger("ulak.intake")

FIRST_PAUSE_S = 0.05
# So short that after an outage the former rate is there within a few hundred milliseconds.
LONGEST_PAUSE_S = 0.4
LONGEST_PAUSE_ASIDE_S = 0.5

# What may wait here before a caller is told to come back: enough for a burst, little enough to
# be flushed in a second or two.
MOST_JOBS = 5_000
MOST_BYTES = 64 * 1024 * 1024
RETRY_AFTER = timedelta(seconds=2)

# A batch of 500 with one blocked offer is parted nine times. After so many vain tries many are
# blocked, and to find out which would take too long: all that are left wait.
MOST_IN_VAIN = 30


class Answer(Protocol):
    """Where the answer to an offer goes: a `Future` is one."""

    def set_running_or_notify_cancel(self) -> bool: ...
    def set_result(self, result: list[Added], /) -> None: ...
    def set_exception(self, exception: BaseException | None, /) -> None: ...


class Reply:
    """The answer to a thread that waits for it and does nothing else. A `Future` does the same and
    more; with thirty threads, a sixth of all the time went into it."""

    __slots__ = ("_added", "_error", "_is_there")

    def __init__(self) -> None:
        self._added: list[Added] = []
        self._error: BaseException | None = None
        self._is_there = threading.Lock()
        self._is_there.acquire()

    def set_running_or_notify_cancel(self) -> bool:
        return True

    def set_result(self, result: list[Added], /) -> None:
        self._added = result
        self._is_there.release()

    def set_exception(self, exception: BaseException | None, /) -> None:
        self._error = exception
        self._is_there.release()

    def wait(self, timeout_s: float) -> list[Added]:
        """Wait for it; `TimeoutError` if it does not come in time."""
        if not self._is_there.acquire(timeout=max(0.0, timeout_s)):
            raise TimeoutError("no answer came in time")
        if self._error is not None:
            raise self._error
        return self._added


class Offer(NamedTuple):
    """Jobs that are stored together, and who waits for them."""

    jobs: Sequence[NewJob]
    answer: Answer
    size: int
    give_up_at: float


class Intake:
    """Takes offers from any thread and stores them in as few transactions as there are moments.
    Group commit without a timer: whatever has come in while one transaction was flushed goes into
    the next. Each offer still gets its own answer, after the commit that holds it. One that a
    transaction of somebody else blocks is set aside and tried again by a thread of its own."""

    def __init__(
        self, store: Store, patience_s: float = 30.0, *, telemetry: Telemetry = NOBODY
    ) -> None:
        self._store = store
        self._telemetry = telemetry
        self._patience_s = patience_s
        self._lock = threading.Lock()
        self._arrived = threading.Condition(self._lock)
        self._waiting: deque[Offer] = deque()
        self._jobs = 0
        self._bytes = 0
        self._busy = False
        self._closed = False
        self._thread: threading.Thread | None = None
        self._draw = random.Random()  # noqa: S311 - spreads reconnects, decides nothing else
        self._aside: list[Offer] = []
        self._aside_thread: threading.Thread | None = None

    def offer(self, jobs: Sequence[NewJob]) -> Future[list[Added]]:
        """Store these jobs together, sharing the commit with whatever else is waiting.
        `Overloaded`: too much is waiting already; nothing was accepted."""
        refuse_while_holding(self._store)
        future: Future[list[Added]] = Future()
        with self._lock:
            self._enqueue(_offer(jobs, future, time.monotonic() + self._patience_s))
        return future

    def offer_and_wait(self, jobs: Sequence[NewJob], timeout_s: float) -> list[Added]:
        """Like `offer`, waiting for the answer; when the writer is idle, commit on this thread.
        `TimeoutError`: no answer came in time; the jobs may or may not be stored."""
        now = time.monotonic()
        give_up_at = now + timeout_s
        with self._lock:
            alone = not self._busy and not self._waiting
            if alone:
                self._refuse_when_full(jobs, 0)
                self._busy = True
            else:
                refuse_while_holding(self._store)
                reply = Reply()
                self._enqueue(_offer(jobs, reply, now + self._patience_s))
        if not alone:
            return reply.wait(timeout_s)
        try:
            with WaitUntil(give_up_at):
                return _all_stored(self._add(jobs, give_up_at))
        except WouldWait:
            # The intake's thread may wait for as long as it takes; a submit may not.
            reply = Reply()
            with self._lock:
                self._enqueue(_offer(jobs, reply, give_up_at))
        except Contended:
            reply = Reply()
            self._set_aside([_offer(jobs, reply, give_up_at)])
        finally:
            with self._lock:
                self._busy = False
                if self._waiting:
                    self._arrived.notify()
        return reply.wait(give_up_at - time.monotonic())

    def close(self) -> None:
        """Store what is waiting, then take nothing more until it is opened again."""
        with self._lock:
            self._closed = True
            self._arrived.notify_all()
            threads = (self._thread, self._aside_thread)
        for thread in threads:
            if thread is not None:
                thread.join()

    def open(self) -> None:
        """Take offers; a new intake does so from the beginning."""
        with self._lock:
            self._closed = False

    def _add(self, jobs: Sequence[NewJob], give_up_at: float) -> list[Added]:
        """Store jobs. After a broken connection their ids make it safe to store them again.
        `TimeoutError`: the store gave no answer, and they may be stored. `Contended`: somebody else
        holds a key; none is."""
        pause = FIRST_PAUSE_S
        while True:
            try:
                began = time.monotonic()
                added = self._store.add(jobs)
                seconds = time.monotonic() - began
                stored = [one for one in added if one.stop is None]
                self._telemetry.accepted(stored, seconds)
                if len(stored) < len(added):
                    pairs = zip(jobs, added, strict=True)
                    self._telemetry.refused([job for job, one in pairs if one.stop is not None])
                return added
            except (WriteRefused, Contended):
                raise
            except StoreError as error:
                self._telemetry.failed("submit")
                if pause == FIRST_PAUSE_S:
                    log.warning("the store does not answer", extra={"error": str(error)})
                if self._closed or time.monotonic() + pause >= give_up_at:
                    raise TimeoutError(str(error)) from error
            time.sleep(pause * (1 + self._draw.random()) / 2)
            pause = min(pause * 2, LONGEST_PAUSE_S)

    def _enqueue(self, offer: Offer) -> None:
        self._refuse_when_full(offer.jobs, offer.size)
        self._waiting.append(offer)
        self._jobs += len(offer.jobs)
        self._bytes += offer.size
        if self._thread is None:
            self._thread = threading.Thread(target=self._serve, name="ulak-intake", daemon=True)
            self._thread.start()
        self._arrived.notify()

    def _refuse_when_full(self, jobs: Sequence[NewJob], size: int) -> None:
        if self._closed:
            raise Overloaded(
                "this engine is closing and accepts no more jobs", retry_after=RETRY_AFTER
            )
        if self._jobs + len(jobs) > MOST_JOBS or self._bytes + size > MOST_BYTES:
            self._telemetry.refused(jobs)
            raise Overloaded(
                f"{self._jobs} jobs ({self._bytes} bytes) are waiting to be stored; "
                f"try again in {RETRY_AFTER.total_seconds():g} s",
                retry_after=RETRY_AFTER,
            )

    def _serve(self) -> None:
        try:
            self._serve_until_closed()
        finally:  # whatever has ended it, the next offer begins another
            self._thread = None

    def _serve_until_closed(self) -> None:
        while True:
            with self._lock:
                while self._busy or not self._waiting:
                    if self._closed and not self._waiting:
                        return
                    self._arrived.wait()
                offers = self._take()
                self._busy = True
            try:
                self._set_aside(self._store_offers(offers))
            except BaseException:
                # A worker loop goes on: callers of these offers wait no longer than they may.
                log.exception("offers could not be stored")
            finally:
                with self._lock:
                    self._busy = False

    def _take(self) -> list[Offer]:
        taken: list[Offer] = []
        jobs = size = 0
        while self._waiting:
            offer = self._waiting[0]
            if taken and (
                jobs + len(offer.jobs) > LARGEST_BATCH or size + offer.size > LARGEST_BATCH_BYTES
            ):
                break
            self._waiting.popleft()
            self._jobs -= len(offer.jobs)
            self._bytes -= offer.size
            # From here on it cannot be cancelled; whoever has cancelled before wants no job.
            if offer.answer.set_running_or_notify_cancel():
                taken.append(offer)
                jobs += len(offer.jobs)
                size += offer.size
        return taken

    def _store_offers(self, offers: Sequence[Offer]) -> list[Offer]:
        """Store them in as few commits as can be, and answer those that somebody else blocks. When
        the data of one is refused, or its key is held by an open transaction, the others must not
        suffer: the batch is parted until that one stands alone."""
        blocked: list[Offer] = []
        parts, in_vain = [offers] if offers else [], 0
        give_up_at = time.monotonic() + self._patience_s
        while parts:
            part = parts.pop()
            try:
                added = self._add([job for offer in part for job in offer.jobs], give_up_at)
            except TimeoutError as error:
                for offer in part:
                    offer.answer.set_exception(error)
                continue
            except Exception as error:  # noqa: BLE001 - a worker loop: one bad offer must not end all of them
                is_blocked = isinstance(error, Contended)
                in_vain += is_blocked
                if len(part) > 1 and not (is_blocked and in_vain >= MOST_IN_VAIN):
                    half = len(part) // 2
                    parts += [part[half:], part[:half]]
                elif is_blocked:
                    blocked += part
                else:
                    part[0].answer.set_exception(error)
                continue
            start = 0
            for offer in part:
                own = added[start : start + len(offer.jobs)]
                start += len(offer.jobs)
                try:
                    offer.answer.set_result(_all_stored(own))
                except Overloaded as refusal:
                    offer.answer.set_exception(refusal)
        return blocked

    def _set_aside(self, blocked: Sequence[Offer]) -> None:
        """Leave these to a thread of their own, so that nobody else waits for their keys."""
        if not blocked:
            return
        with self._lock:
            self._aside += blocked
            self._jobs += sum(len(offer.jobs) for offer in blocked)
            self._bytes += sum(offer.size for offer in blocked)
            if self._aside_thread is None:
                self._aside_thread = threading.Thread(
                    target=self._serve_aside, name="ulak-intake-aside", daemon=True
                )
                self._aside_thread.start()

    def _serve_aside(self) -> None:
        """Try again what is blocked until it is stored, or nobody waits for it any more."""
        pause = FIRST_PAUSE_S
        while True:
            time.sleep(pause)
            with self._lock:
                offers, self._aside = self._aside, []
                if not offers:
                    self._aside_thread = None
                    return
                self._jobs -= sum(len(offer.jobs) for offer in offers)
                self._bytes -= sum(offer.size for offer in offers)
            try:
                blocked = self._store_offers(offers)
            except BaseException:  # a worker loop, as above
                log.exception("offers could not be stored")
                continue
            late = [o for o in blocked if self._closed or o.give_up_at <= time.monotonic()]
            for offer in late:
                offer.answer.set_exception(TimeoutError("its key is held by somebody else"))
            self._set_aside([offer for offer in blocked if offer not in late])
            has_moved = len(blocked) < len(offers)
            pause = FIRST_PAUSE_S if has_moved else min(pause * 2, LONGEST_PAUSE_ASIDE_S)


def _all_stored(added: list[Added]) -> list[Added]:
    """Return the answers to one offer, or raise `Overloaded` if its flow is stopped."""
    for one in added:
        if one.stop is not None:
            raise stopped(one.stop)
    return added


def _offer(jobs: Sequence[NewJob], answer: Answer, give_up_at: float) -> Offer:
    size = sum([len(job.payload.data) for job in jobs])
    return Offer(jobs, answer, size, give_up_at)
