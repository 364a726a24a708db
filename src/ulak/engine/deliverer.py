"""What looks for the deliveries of one handler, and hands events to one follower.

A follower gets events in order per job, and a connection to write rows by: its rows, and that it
has got the events, are one transaction. That holds the events for as long as it lasts, so nothing
is renewed, and a process that dies holds nothing.
"""

from __future__ import annotations

import asyncio
import inspect
import logging
from abc import ABC, abstractmethod
from collections.abc import Sequence
from contextlib import nullcontext, suppress
from typing import TYPE_CHECKING, Any, Final, cast

from ulak.core.delivery import PENDING, Verdict, judge_events
from ulak.core.outcome import Refused, RetryLater
from ulak.engine.ports import Handler
from ulak.engine.threads import Aside
from ulak.engine.view import Job, JobEvent, TrailEvent, event_view
from ulak.errors import BadInput, Contended, StoreError, WriteRefused
from ulak.ids import to_text
from ulak.store.protocol import EventSource, Followed, Settled
from ulak.store.transaction import FollowTransaction, TransactionStore, holding

if TYPE_CHECKING:
    from ulak.engine.kernel import Kernel

log = logging.getLogger("ulak.relay")

# How often a relay looks by itself: for what is to be tried again, and for rings that were lost.
PAUSE_S = 0.5
# The least time between two looks in vain: where others commit all the time, they ring as often.
LEAST_S = 0.02
# How long a relay that is stopped waits for what is on its way.
PATIENCE_S = 1.0
# A guess, as `MOST_EVENTS`: enough to share the cost of a transaction.
MOST_JOBS: Final = 100


class Deliverer(ABC):
    """Hands one handler what it is to get, on the loop it was made on, until it is stopped."""

    def __init__(self, kernel: Kernel, name: str, hold_us: int) -> None:
        self.name = name
        self._kernel = kernel
        self._store = kernel.store
        self._hold_us = hold_us
        self._loop = asyncio.get_running_loop()
        self._rung = asyncio.Event()
        self._looked_at = 0.0
        self._looked_in_vain = False
        # One round at a time: who finds nothing to send may then say that nothing is being sent.
        self._one_round = asyncio.Lock()

    def wake(self) -> None:
        self._rung.set()

    async def run(self) -> None:
        """Deliver until cancelled."""
        while True:
            try:
                sent = await self.send_once()
            except StoreError as error:
                self._kernel.telemetry.failed("outbox")
                log.warning("the outbox fails", extra={"error": str(error)})
                sent = 0
                await asyncio.sleep(PAUSE_S)
            if not sent:
                with suppress(TimeoutError):
                    async with asyncio.timeout(PAUSE_S):
                        await self._rung.wait()
            self._rung.clear()
            if self._looked_in_vain:
                await asyncio.sleep(max(0.0, self._looked_at + LEAST_S - self._loop.time()))

    async def send_once(self) -> int:
        """Deliver one round; return how many deliveries were made or are on their way."""
        handler = self._kernel.handlers.get(self.name)
        if handler is None:
            return 0
        async with self._one_round:
            return await self._send(handler)

    @abstractmethod
    async def _send(self, handler: Handler) -> int: ...

    @abstractmethod
    async def close(self) -> None:
        """Let what is on its way end, if that is soon."""


class Follower(Deliverer):
    """Hands one follower what is committed, one batch at a time, on a thread of its own."""

    def __init__(self, *arguments: Any) -> None:
        super().__init__(*arguments)
        self._aside = Aside("follower")
        self._under_way: asyncio.Future[int] | None = None

    async def _send(self, handler: Handler) -> int:
        self._looked_at, self._looked_in_vain = self._loop.time(), True
        self._under_way = self._aside.run(self._hand_over, handler)
        # Whoever is cancelled here leaves the batch to `close`.
        given = await asyncio.shield(self._under_way)
        self._looked_in_vain = not given
        return given

    async def close(self) -> None:
        if self._under_way is not None and not self._under_way.done():
            await asyncio.wait([self._under_way], timeout=PATIENCE_S)
        self._aside.close()

    def _hand_over(self, handler: Handler) -> int:
        """Hand one batch over; return how many jobs it was about."""
        if not self._store.has_due(self.name):
            return 0
        if not self._store.features.open_transactions:
            # Such a store may be written to at any time: there is no transaction to hold.
            return self._give(handler, cast(EventSource, self._store), None)
        try:
            transaction = cast(TransactionStore, self._store).begin(purpose=self.name.encode()[:32])
        except Contended:
            return 0  # somebody writes for long where one writes at a time: perhaps this follower
        try:
            return self._give(handler, transaction, transaction)
        finally:
            transaction.roll_back()

    def _give(
        self, handler: Handler, source: EventSource, transaction: FollowTransaction | None
    ) -> int:
        taken = source.take_events(self.name, MOST_JOBS, hold_us=self._hold_us)
        if not taken:
            return 0
        error = self._call(handler, taken, transaction)
        if error is None:
            try:
                source.finish_events(taken)
                if transaction is not None:
                    transaction.commit()
            except Exception as refused:  # rows that are refused only at the commit
                if _is_away(refused):
                    raise
                error = refused
        if error is not None:
            self._fail(handler, taken, error, transaction)
            return len(taken)
        self._kernel.telemetry.published(sum(len(one.events) for one in taken), 0, 0)
        return len(taken)

    def _call(
        self, handler: Handler, taken: Sequence[Followed], transaction: FollowTransaction | None
    ) -> BaseException | None:
        """Call the function; return what it raised."""
        events: list[JobEvent] = []
        for one in taken:
            job = Job(one.job)
            for line in map(event_view, one.events):
                facts = {name: getattr(line, name) for name in TrailEvent.__slots__}
                events.append(JobEvent(job=job, **facts))
        one_writer = self._store.features.one_writer
        try:
            connection = None if transaction is None else transaction.connection
            with holding(self._store) if one_writer else nullcontext():
                answer = handler.receive(events, connection)
                if inspect.isawaitable(answer):
                    answer = asyncio.run(_await(answer))
        except BaseException as error:  # a worker loop: every failure is retried
            if _is_away(error):
                raise
            return error
        return answer if isinstance(answer, (RetryLater, Refused)) else None

    def _fail(
        self,
        handler: Handler,
        taken: Sequence[Followed],
        error: BaseException,
        transaction: FollowTransaction | None,
    ) -> None:
        """Take back what was written, record the failure, and log it."""
        now = self._store.clock.now()
        verdicts = [
            judge_events(
                error, handler.terms, now, tries=one.head.tries, jobs=len(taken), seed=one.job.id
            )
            for one in taken
        ]
        settled = [
            Settled(
                one.head.message, self.name, verdict.state, verdict.not_before, verdict.spends_try,
                blocks=True, error=verdict.error,
            )
            for one, verdict in zip(taken, verdicts, strict=True)
        ]  # fmt: skip
        again = sum(verdict.state == PENDING for verdict in verdicts)
        self._log(taken, verdicts[0], is_over=not again)
        self._kernel.telemetry.published(0, again, len(taken) - again)
        try:
            if transaction is None:
                self._store.settle_messages(settled)
                return
            transaction.undo()
            transaction.settle_events(settled)
            transaction.commit()
        except (BadInput, StoreError):
            # The transaction is over: ended by hand, by a commit in vain, or with the connection.
            if transaction is not None:
                transaction.roll_back()
            self._store.settle_messages(settled)

    def _log(self, taken: Sequence[Followed], verdict: Verdict, *, is_over: bool) -> None:
        level = logging.WARNING if verdict.spends_try or len(taken) > 1 else logging.INFO
        log.log(
            logging.ERROR if is_over else level,
            "events are dead letters" if is_over else "events were not followed",
            extra={
                "handler": self.name, "flow": taken[0].job.flow,
                "job_id": to_text(taken[0].job.id), "jobs": len(taken), "error": verdict.error,
                "attempt": taken[0].head.tries + verdict.spends_try,
            },
        )  # fmt: skip


def _is_away(error: BaseException) -> bool:
    """Tell whether it is the store that fails, and not what was asked of it."""
    return isinstance(error, StoreError) and not isinstance(error, WriteRefused)


async def _await(answer: Any) -> Any:
    return await answer
