"""What looks for the deliveries of one handler: when it is rung, and now and then by itself."""

from __future__ import annotations

import asyncio
import logging
from abc import ABC, abstractmethod
from contextlib import suppress
from typing import TYPE_CHECKING

from ulak.engine.ports import Handler
from ulak.errors import StoreError

if TYPE_CHECKING:
    from ulak.engine.kernel import Kernel

log = logging.getLogger("ulak.relay")

# How often a relay looks by itself: for what is to be tried again, and for rings that were lost.
PAUSE_S = 0.5
# The least time between two looks in vain: where others commit all the time, they ring as often.
LEAST_S = 0.02
# How long a relay that is stopped waits for what is on its way.
PATIENCE_S = 1.0


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
