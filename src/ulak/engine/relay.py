"""Publishes the outbox: at least once, in order per key, one poisoned key stopping only itself."""

from __future__ import annotations

import asyncio
import inspect
import logging
from collections.abc import Callable, Collection
from contextlib import suppress
from typing import TYPE_CHECKING, Any

from ulak.clock import SECOND, Instant
from ulak.core.job import Message
from ulak.core.policy import Backoff
from ulak.engine.ports import Publisher
from ulak.engine.threads import Threads
from ulak.engine.view import Message as View
from ulak.engine.view import message_view
from ulak.errors import StoreError
from ulak.store.protocol import OutboxRow

if TYPE_CHECKING:
    from ulak.engine.engine import Engine

log = logging.getLogger("ulak.relay")

A_ROUND = 100
# Longer than a publisher should ever need; a relay that vanishes keeps its heads so long.
HOLD_US = 60 * SECOND
# Half of that, so that nobody else sends what is still being sent: order would be lost.
LONGEST_PUBLISH_S = 30.0
# A guess: enough to hide a slow broker, few enough not to crowd it.
PUBLISHERS = 8
TRIES = Backoff(10)
PAUSE_S = 0.5
# How long a round waits for a slow message before it sees to the other keys again.
PATIENCE_S = 1.0

Attempt = tuple[Message, tuple[Instant, bool] | None]
"""A message, and after a failure when to try again or that it is dead."""


class Relay:
    """Takes the heads of keys from the outbox and hands them to the engine's publisher."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._store = engine.store
        self._threads = Threads(PUBLISHERS, "publisher")
        self._underway: set[asyncio.Task[Attempt]] = set()
        # One round at a time: who finds nothing to send may then say that nothing is being sent.
        self._one_round = asyncio.Lock()

    async def run(self, loop: asyncio.AbstractEventLoop) -> None:
        """Publish until cancelled."""
        try:
            while self._engine.publisher is not None:
                try:
                    sent = await self.send_once(loop)
                except StoreError as error:
                    self._engine.telemetry.failed("outbox")
                    log.warning("the outbox fails", extra={"error": str(error)})
                    sent = 0
                if not sent:
                    await asyncio.sleep(PAUSE_S)
        finally:
            # What was sent should not be sent again; what is not yet sent will be, by somebody.
            if self._underway:
                ended, late = await asyncio.wait(self._underway, timeout=PATIENCE_S)
                for task in late:
                    task.cancel()
                await self._settle(loop, ended)
            self._threads.close()

    async def send_once(self, loop: asyncio.AbstractEventLoop) -> int:
        """Publish one round of heads; answer how many were sent or are still on their way."""
        if self._engine.publisher is None:
            return 0
        async with self._one_round:
            return await self._send_heads(loop)

    async def _send_heads(self, loop: asyncio.AbstractEventLoop) -> int:
        rows = await loop.run_in_executor(None, self._take)
        # Heads are of different keys: they go side by side, and one that hangs stops only itself.
        self._underway |= {loop.create_task(self._try(loop, row)) for row in rows}
        if not self._underway:
            return 0
        ended, _ = await asyncio.wait(self._underway, timeout=PATIENCE_S)
        sent = await self._settle(loop, ended)
        return sent + len(self._underway)

    def _take(self) -> list[OutboxRow]:
        return self._store.take_messages(A_ROUND, hold_us=HOLD_US)

    async def _try(self, loop: asyncio.AbstractEventLoop, row: OutboxRow) -> Attempt:
        message = row.message
        try:
            async with asyncio.timeout(LONGEST_PUBLISH_S):
                await self._publish(loop, message)
        except Exception as error:  # noqa: BLE001 - a worker loop: any publisher's failure is retried
            log.warning(
                "a message was not sent", extra={"topic": message.topic, "error": repr(error)}
            )
            wait = TRIES.delay_us(row.tries + 1, message.job_id)
            return message, (self._store.clock.now() + (wait or 0), wait is None)
        return message, None

    async def _settle(
        self, loop: asyncio.AbstractEventLoop, ended: Collection[asyncio.Task[Attempt]]
    ) -> int:
        """Record how attempts ended; answer how many messages were sent."""
        attempts = [task.result() for task in ended if not task.cancelled()]
        sent = [message for message, failure in attempts if failure is None]
        failed = [(message, *failure) for message, failure in attempts if failure is not None]
        if attempts:
            await loop.run_in_executor(None, self._store.settle_messages, sent, failed)
            dead = sum(gave_up for _, _, gave_up in failed)
            self._engine.telemetry.published(len(sent), len(failed) - dead, dead)
        self._underway.difference_update(ended)
        return len(sent)

    async def _publish(self, loop: asyncio.AbstractEventLoop, message: Message) -> None:
        publisher = self._engine.publisher
        if publisher is None:
            return
        if inspect.iscoroutinefunction(publisher):
            await publisher(message_view(message))
            return
        answer = await self._on_thread(loop, publisher, message_view(message))
        if inspect.isawaitable(answer):  # a callable object or a partial around a coroutine
            await answer

    def _on_thread(
        self, loop: asyncio.AbstractEventLoop, publisher: Publisher, message: View
    ) -> asyncio.Future[Any]:
        """Call a plain publisher on a thread; one that hangs must not keep the process alive."""
        future: asyncio.Future[Any] = loop.create_future()

        def tell(set_outcome: Callable[[Any], None], outcome: Any) -> None:
            if not future.done():
                set_outcome(outcome)

        def call() -> None:
            try:
                said, set_outcome = publisher(message), future.set_result
            except BaseException as error:  # noqa: BLE001 - a worker loop: raised again on the loop
                said, set_outcome = error, future.set_exception  # type: ignore[assignment]
            with suppress(RuntimeError):  # the loop has ended
                loop.call_soon_threadsafe(tell, set_outcome, said)

        self._threads.run(call)
        return future
