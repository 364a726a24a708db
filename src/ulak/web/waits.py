"""Requests that wait for something, and no longer than the server serves."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from fastapi import Request

from ulak.control.request_metrics import ANSWER, Answer
from ulak.engine.threads import call_on


class Waits:
    """The waits of one application."""

    def __init__(self) -> None:
        self._open: set[asyncio.Timeout] = set()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._is_closed = False

    @asynccontextmanager
    async def hold(self) -> AsyncIterator[None]:
        """Let a block wait until `close`, which ends it with `TimeoutError`."""
        async with asyncio.timeout(0 if self._is_closed else None) as bound:
            self._loop = asyncio.get_running_loop()
            self._open.add(bound)
            try:
                yield
            finally:
                self._open.discard(bound)

    def close(self) -> None:
        """End every wait, and let none begin. May be called from any thread."""
        self._is_closed = True
        if self._loop is not None:
            call_on(self._loop, self._end)

    def _end(self) -> None:
        for bound in self._open:
            bound.reschedule(0)


@asynccontextmanager
async def while_serving(request: Request) -> AsyncIterator[None]:
    """Let a block of a handler wait, and no longer than the server serves.

    When the server begins to stop, `TimeoutError` is raised in the block: the handler can return
    what it has by then.
    """
    waits: Waits = request.app.state.waits
    answer: Answer | None = request.scope.get(ANSWER)
    began = time.monotonic()
    try:
        async with waits.hold():
            yield
    finally:
        # What a caller waits for of its own will says nothing about how quick the API is.
        if answer is not None:
            answer.waited_s += time.monotonic() - began
