"""Publishes the outbox: at least once, in order per key, one poisoned key stopping only itself."""

from __future__ import annotations

import asyncio
import inspect
import logging
from typing import TYPE_CHECKING

from ulak.clock import SECOND
from ulak.core.job import Message
from ulak.core.policy import Backoff
from ulak.errors import StoreError

if TYPE_CHECKING:
    from ulak.engine.engine import Engine

log = logging.getLogger("ulak.relay")

A_ROUND = 100
# Longer than a publisher should ever need; a relay that vanishes keeps its heads so long.
HOLD_US = 60 * SECOND
TRIES = Backoff(10)
PAUSE_S = 0.5


class Relay:
    """Takes the heads of keys from the outbox and hands them to the engine's publisher."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._store = engine.store
        # One round at a time: who finds nothing to send may then say that nothing is being sent.
        self._one_round = asyncio.Lock()

    async def run(self, loop: asyncio.AbstractEventLoop) -> None:
        """Publish until cancelled."""
        while self._engine.publisher is not None:
            try:
                sent = await self.send_once(loop)
            except StoreError as error:
                log.warning("the outbox cannot be read", extra={"error": str(error)})
                sent = 0
            if not sent:
                await asyncio.sleep(PAUSE_S)

    async def send_once(self, loop: asyncio.AbstractEventLoop) -> int:
        """Publish one round of heads; answer how many were sent."""
        if self._engine.publisher is None:
            return 0
        async with self._one_round:
            return await self._send_heads(loop)

    async def _send_heads(self, loop: asyncio.AbstractEventLoop) -> int:
        rows = await loop.run_in_executor(None, self._take)
        if not rows:
            return 0
        sent: list[Message] = []
        failed: list[tuple[Message, int, bool]] = []
        for message, tries in rows:
            try:
                await self._publish(loop, message)
                sent.append(message)
            except Exception as error:  # noqa: BLE001 - a worker loop: any publisher's failure is retried
                log.warning(
                    "a message was not sent", extra={"topic": message.topic, "error": str(error)}
                )
                wait = TRIES.delay_us(tries + 1, message.job_id)
                at = self._store.clock.now() + (wait or 0)
                failed.append((message, at, wait is None))
        await loop.run_in_executor(None, self._store.settle_messages, sent, failed)
        return len(sent)

    def _take(self) -> list[tuple[Message, int]]:
        rows = self._store.take_messages(A_ROUND, hold_us=HOLD_US)
        return [(row.message, row.tries) for row in rows]

    async def _publish(self, loop: asyncio.AbstractEventLoop, message: Message) -> None:
        publisher = self._engine.publisher
        if publisher is None:
            return
        if inspect.iscoroutinefunction(publisher):
            await publisher(message)
        else:
            await loop.run_in_executor(None, publisher, message)
