"""Publishes the outbox: at least once, in order per key, one poisoned key stopping only itself."""

from __future__ import annotations

import asyncio
import inspect
import logging
import time
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Any

from ulak.clock import SECOND, Instant
from ulak.core.job import Message
from ulak.core.policy import Backoff
from ulak.engine.crossing import call_on
from ulak.engine.ports import Publisher
from ulak.engine.threads import Aside, Threads
from ulak.engine.view import Message as View
from ulak.engine.view import message_view
from ulak.errors import StoreError
from ulak.ids import to_text
from ulak.store.protocol import OutboxRow, OutboxStore

if TYPE_CHECKING:
    from ulak.engine.kernel import Kernel

log = logging.getLogger("ulak.relay")

# As many heads as a relay has in hand at most, however quick its publisher is.
A_ROUND = 100
# A relay that vanishes keeps its heads so long; a worker says its lease instead.
HOLD_US = 30 * SECOND
# After so long an async call is cancelled. A plain one cannot be: its message stays held until it
# ends, and another thread takes its turn.
LONGEST_PUBLISH_S = 30.0
# How many calls run at once. A guess: enough to hide a slow broker, few enough not to crowd it.
PUBLISHERS = 8
ASYNC_PUBLISHERS = 32
TRIES = Backoff(10)
PAUSE_S = 0.5
# A publisher that does all that it was given within this time is given more the next time.
QUICK_S = 0.1
# How long what has ended waits for others, to be recorded with them.
LINGER_S = 0.02
# How long a relay that is stopped waits for what is on its way.
PATIENCE_S = 1.0

Attempt = tuple[Message, tuple[Instant, bool] | None]
"""A message, and after a failure when to try again or that it is dead."""


class _Delivery:
    """A head that this relay holds, until the end of its call is recorded."""

    __slots__ = ("began_at", "row", "task")

    def __init__(self, row: OutboxRow) -> None:
        self.row = row
        self.began_at: float | None = None
        """When the call of a plain publisher began, on the monotonic clock."""
        self.task: asyncio.Task[Attempt]

    def is_late(self) -> bool:
        """Whether its call hangs."""
        began_at = self.began_at
        return began_at is not None and time.monotonic() - began_at > LONGEST_PUBLISH_S


class Relay:
    """Takes the heads of keys from the outbox and hands them to the engine's publisher.

    It takes no more than its publisher can send soon, and renews its hold on them until they are
    sent: nobody else sends them meanwhile, however slow the publisher is.
    """

    def __init__(self, kernel: Kernel, *, hold_us: int = HOLD_US) -> None:
        self._kernel = kernel
        self._store: OutboxStore = kernel.store
        self._hold_us = hold_us
        self._hold_s = hold_us / 1e6
        self._threads = Threads(PUBLISHERS, "publisher")
        self._aside = Aside("relay")
        self._in_hand: dict[tuple[bytes, int, int], _Delivery] = {}
        self._window = 0
        """How many heads may be in hand, beside those of calls that hang."""
        self._turns = asyncio.Semaphore(ASYNC_PUBLISHERS)
        self._renew_at = 0.0
        # One round at a time: who finds nothing to send may then say that nothing is being sent.
        self._one_round = asyncio.Lock()

    async def run(self, loop: asyncio.AbstractEventLoop) -> None:
        """Publish until cancelled."""
        try:
            while self._kernel.publisher is not None:
                try:
                    sent = await self.send_once(loop)
                except StoreError as error:
                    self._kernel.telemetry.failed("outbox")
                    log.warning("the outbox fails", extra={"error": str(error)})
                    sent = 0
                if not sent:
                    await asyncio.sleep(PAUSE_S)
        finally:
            # What was sent should not be sent again; what is not yet sent will be, by somebody.
            if self._in_hand:
                tasks = [delivery.task for delivery in self._in_hand.values()]
                _, late = await asyncio.wait(tasks, timeout=PATIENCE_S)
                for task in late:
                    task.cancel()
                await self._settle()
            self._threads.close()
            self._aside.close()

    async def send_once(self, loop: asyncio.AbstractEventLoop) -> int:
        """Publish one round of heads; answer how many were sent or are still on their way."""
        if self._kernel.publisher is None:
            return 0
        async with self._one_round:
            return await self._send_heads(loop)

    async def _send_heads(self, loop: asyncio.AbstractEventLoop) -> int:
        await self._renew(loop)
        taken = await self._take(loop)
        if not self._in_hand:
            return 0
        began_at = loop.time()
        tasks = [delivery.task for delivery in self._in_hand.values()]
        ended, others = await asyncio.wait(
            tasks,
            timeout=min(PAUSE_S, self._hold_s / 3),
            return_when=asyncio.FIRST_COMPLETED,
        )
        if ended and others:
            await asyncio.wait(others, timeout=LINGER_S)
        is_quick = loop.time() - began_at < QUICK_S and all(task.done() for task in tasks)
        sent = await self._settle()
        if not is_quick:
            self._window = self._at_once()
        elif taken >= self._window:
            self._window = min(2 * self._window, A_ROUND)
        return sent + len(self._in_hand)

    def _at_once(self) -> int:
        return ASYNC_PUBLISHERS if _is_async(self._kernel.publisher) else PUBLISHERS

    async def _renew(self, loop: asyncio.AbstractEventLoop) -> None:
        """Hold on to everything in hand at a third of the hold."""
        if not self._in_hand or loop.time() < self._renew_at:
            return
        rows = [delivery.row for delivery in self._in_hand.values()]
        hold = partial(self._store.hold_messages, rows, hold_us=self._hold_us)
        for row in await self._aside.run(hold):
            self._in_hand[_identity(row.message)].row = row
        self._renew_at = loop.time() + self._hold_s / 3

    async def _take(self, loop: asyncio.AbstractEventLoop) -> int:
        """Take as many heads as can be sent soon, and begin to; return how many were taken."""
        late = sum(delivery.is_late() for delivery in self._in_hand.values())
        self._threads.resize(PUBLISHERS + late)
        self._window = max(self._window, self._at_once())
        places = min(self._window + late, A_ROUND) - len(self._in_hand)
        if places < 1:
            return 0
        if not self._in_hand:
            self._renew_at = loop.time() + self._hold_s / 3
        take = partial(self._store.take_messages, places, hold_us=self._hold_us)
        rows = await self._aside.run(take)
        for row in rows:
            identity = _identity(row.message)
            known = self._in_hand.get(identity)
            if known is not None:
                # Its hold had lapsed, in an outage; it is still being sent, or not yet recorded.
                known.row = row
                continue
            delivery = self._in_hand[identity] = _Delivery(row)
            # Heads are of different keys: they go side by side, and one that hangs stops itself.
            delivery.task = loop.create_task(self._try(loop, delivery))
        return len(rows)

    async def _try(self, loop: asyncio.AbstractEventLoop, delivery: _Delivery) -> Attempt:
        row, message = delivery.row, delivery.row.message
        try:
            await self._publish(loop, delivery)
        except asyncio.CancelledError as cancelled:
            task = asyncio.current_task()
            if task is not None and task.cancelling():
                raise
            error: BaseException = cancelled  # raised by the publisher itself
        except Exception as raised:  # noqa: BLE001 - a worker loop: any publisher's failure is retried
            error = raised
        else:
            return message, None
        wait = TRIES.delay_us(row.tries + 1, message.job_id)
        facts = {"topic": message.topic, "job_id": to_text(message.job_id), "error": repr(error)}
        log.log(
            logging.WARNING if wait is not None else logging.ERROR,
            "a message was not sent" if wait is not None else "a message is a dead letter",
            extra=facts | {"attempt": row.tries + 1},
        )
        return message, (self._store.clock.now() + (wait or 0), wait is None)

    async def _settle(self) -> int:
        """Record how attempts ended, late ones too; return how many messages were sent."""
        ended = [d for d in self._in_hand.values() if d.task.done()]
        attempts = [d.task.result() for d in ended if not d.task.cancelled()]
        sent = [message for message, failure in attempts if failure is None]
        failed = [(message, *failure) for message, failure in attempts if failure is not None]
        if attempts:
            await self._aside.run(self._store.settle_messages, sent, failed)
            dead = sum(gave_up for _, _, gave_up in failed)
            self._kernel.telemetry.published(len(sent), len(failed) - dead, dead)
        for delivery in ended:
            del self._in_hand[_identity(delivery.row.message)]
        return len(sent)

    async def _publish(self, loop: asyncio.AbstractEventLoop, delivery: _Delivery) -> None:
        publisher, message = self._kernel.publisher, message_view(delivery.row.message)
        if publisher is None:
            return
        if _is_async(publisher):
            async with self._turns, asyncio.timeout(LONGEST_PUBLISH_S):
                answer = publisher(message)
                if answer is not None:
                    await answer
            return
        answer = await self._on_thread(loop, publisher, message, delivery)
        if inspect.isawaitable(answer):  # such as what a lambda around a coroutine returns
            async with self._turns, asyncio.timeout(LONGEST_PUBLISH_S):
                await answer

    def _on_thread(
        self,
        loop: asyncio.AbstractEventLoop,
        publisher: Publisher,
        message: View,
        delivery: _Delivery,
    ) -> asyncio.Future[Any]:
        """Call a plain publisher on a thread; one that hangs must not keep the process alive."""
        future: asyncio.Future[Any] = loop.create_future()

        def tell(set_outcome: Callable[[Any], None], outcome: Any) -> None:
            if not future.done():
                set_outcome(outcome)

        def call() -> None:
            delivery.began_at = time.monotonic()
            try:
                said, set_outcome = publisher(message), future.set_result
            except BaseException as error:  # noqa: BLE001 - a worker loop: raised again on the loop
                if not isinstance(error, Exception) or isinstance(error, StopIteration):
                    # A future does not take these, or the loop would end with them.
                    error = RuntimeError(f"the publisher raised {error!r}")
                said, set_outcome = error, future.set_exception  # type: ignore[assignment]
            call_on(loop, tell, set_outcome, said)

        self._threads.run(call)
        return future


def _is_async(publisher: Publisher | None) -> bool:
    return inspect.iscoroutinefunction(publisher) or inspect.iscoroutinefunction(
        getattr(publisher, "__call__", None)  # noqa: B004 - an object with an async __call__
    )


def _identity(message: Message) -> tuple[bytes, int, int]:
    return message.job_id, message.seq, message.n
