"""Keeps one renderer running: starts it, replaces it before it is old, lets it go when idle.

A browser is one, a process that has WeasyPrint loaded another. It heals by itself: a start that
failed is tried again by whoever asks next, a little later each time.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Coroutine
from datetime import timedelta
from typing import Any, Final, Generic, Protocol, TypeVar

from ulak.services.pdf.browser.driver import BrowserGone
from ulak.services.pdf.model import PdfError, not_started

log = logging.getLogger(__name__)

FIRST_PAUSE_S: Final = 0.25
_LONGEST_PAUSE_S: Final = 10.0


class Kept(Protocol):
    """A renderer that is kept running."""

    busy: int
    """Documents that are on it now."""
    is_retired: bool
    """It gets no more documents."""

    @property
    def pid(self) -> int:
        """The number of its first process."""

    @property
    def engine(self) -> str:
        """Name and version."""

    def count_document(self) -> bool:
        """Take note of a document that is done; tell whether it is to be replaced by now."""

    async def kill(self) -> None:
        """End it with all that it has started; may be called twice."""


K = TypeVar("K", bound=Kept)


class Keeper(Generic[K]):
    """Has a renderer for whoever asks. Belongs to one event loop.

    Args:
        start: Starts one.
        idle_after: Nothing was rendered for so long, and it is let go.
        first_pause_s: How long the start that follows a failed one waits; then twice as long.
    """

    def __init__(
        self,
        start: Callable[[], Coroutine[Any, Any, K]],
        *,
        idle_after: timedelta,
        first_pause_s: float = FIRST_PAUSE_S,
    ) -> None:
        self._start_one = start
        self._idle_s = idle_after.total_seconds()
        self._first_pause_s = first_pause_s
        self.current: K | None = None
        """The one that runs and takes documents."""
        self._running: list[K] = []
        self._starting: asyncio.Task[K] | None = None
        self._tasks: set[asyncio.Task[Any]] = set()
        self._failures = 0
        self._not_before = 0.0
        self._idle_at = 0.0
        self._going: asyncio.TimerHandle | None = None
        self._is_closed = False

    async def get(self) -> K:
        """Return the one that runs; start one when there is none.

        Raises:
            PdfError: none can be started; whoever asks next tries again.
        """
        while self.current is None:
            if self._is_closed:
                raise not_started("the pool is closed")
            if self._starting is None:
                self._starting = self.run(self._start())
            # Others wait for the same start, so nobody's impatience ends it.
            await asyncio.shield(self._starting)
        return self.current

    def used(self, kept: K) -> None:
        """Take note that one has done with a document; replace it, or let it go, in time."""
        if kept.is_retired:
            self._end_when_free(kept)
        elif kept.count_document() and self._starting is None:
            self._starting = self.run(self._start())
        self._rest()

    def discard(self, kept: K) -> None:
        """End one now, with whatever is on it; the next who asks gets a new one."""
        if kept in self._running:
            self._running.remove(kept)
            log.warning("a renderer was lost", extra={"pid": kept.pid})
        if self.current is kept:
            self.current = None
        kept.is_retired = True
        self.run(kept.kill())

    def run(self, work: Coroutine[Any, Any, Any]) -> asyncio.Task[Any]:
        """Have something done in the background; `close` waits for it."""
        task = asyncio.ensure_future(work)
        self._tasks.add(task)
        task.add_done_callback(self._done)
        return task

    async def close(self) -> None:
        """End everything, and wait until nothing of them is left."""
        self._is_closed = True
        if self._going is not None:
            self._going.cancel()
        if self._starting is not None:
            self._starting.cancel()
        self.current = None
        for kept in tuple(self._running):
            self._running.remove(kept)
            self.run(kept.kill())
        while self._tasks:
            await asyncio.wait(self._tasks)

    async def _start(self) -> K:
        loop = asyncio.get_running_loop()
        try:
            await asyncio.sleep(max(0.0, self._not_before - loop.time()))
            began = loop.time()
            kept = await self._start_one()
        except BaseException as error:
            pause = min(_LONGEST_PAUSE_S, self._first_pause_s * 2 ** min(self._failures, 16))
            self._failures += 1
            self._not_before = loop.time() + pause
            facts = {"failures": self._failures, "error": type(error).__name__}
            log.warning("a renderer did not start", extra=facts)
            raise
        finally:
            self._starting = None
        self._failures = 0
        self._running.append(kept)
        old, self.current = self.current, kept
        if old is not None:
            old.is_retired = True
            self._end_when_free(old)
        self._rest()
        seconds = round(loop.time() - began, 3)
        facts = {"pid": kept.pid, "engine": kept.engine, "seconds": seconds}
        log.info("a renderer was started", extra=facts)
        return kept

    def _end_when_free(self, kept: K) -> None:
        if kept.busy == 0 and kept in self._running:
            self._running.remove(kept)
            self.run(kept.kill())

    def _rest(self) -> None:
        loop = asyncio.get_running_loop()
        self._idle_at = loop.time() + self._idle_s
        if self._going is None and not self._is_closed:
            self._going = loop.call_at(self._idle_at, self._let_go)

    def _let_go(self) -> None:
        self._going = None
        loop = asyncio.get_running_loop()
        kept = self.current
        if kept is None or kept.busy:
            return  # What is on it now will say when it is done.
        if loop.time() < self._idle_at:
            self._going = loop.call_at(self._idle_at, self._let_go)
            return
        self.current = None
        self._end_when_free(kept)

    def _done(self, task: asyncio.Task[Any]) -> None:
        self._tasks.discard(task)
        # Looked at, since nobody may be waiting: a start's failure is logged where it happens.
        error = None if task.cancelled() else task.exception()
        if error is not None and not isinstance(error, PdfError | BrowserGone):
            log.error("work on a renderer failed", exc_info=error)
