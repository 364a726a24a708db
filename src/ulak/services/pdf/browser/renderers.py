"""Renderers that are kept running, and what the pools of every engine share.

A browser is one, a process that has WeasyPrint loaded another. It heals by itself: a start that
failed is tried again by whoever asks next, a little later each time.
"""

from __future__ import annotations

import asyncio
import logging
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Callable, Coroutine, Mapping
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, Final, Generic, Self, TypeVar

from ulak.services.pdf.browser.driver import BrowserGone
from ulak.services.pdf.document import (
    Document,
    Fetched,
    Fetcher,
    Limits,
    NoNetwork,
    Reason,
    UrlBlocked,
)
from ulak.services.pdf.model import (
    PdfError,
    PdfErrorCode,
    TransientPdfError,
    not_started,
    over_limit,
)

log = logging.getLogger(__name__)

FIRST_PAUSE_S: Final = 0.25
_LONGEST_PAUSE_S: Final = 10.0
_BUSY_LOOK_S: Final = 1.0
"""When to look again whether one is idle that was busy when its time was over."""


@dataclass(slots=True, kw_only=True)
class Renderer(ABC):
    """A renderer that is kept running."""

    busy: int = 0
    is_retired: bool = False

    @property
    @abstractmethod
    def pid(self) -> int:
        """The number of its first process."""

    @property
    @abstractmethod
    def engine(self) -> str:
        """Name and version."""

    def count_document(self) -> bool:
        """Take note of a document that is done; tell whether it is to be replaced by now."""
        return False

    @abstractmethod
    async def kill(self) -> None:
        """End it with all that it has started; may be called twice."""


R = TypeVar("R", bound=Renderer)


class Keeper(Generic[R]):
    """Has a renderer for whoever asks. Belongs to one event loop.

    Args:
        idle_after: Nothing was rendered for so long, and it is let go; never when that is nothing.
        first_pause_s: How long the start that follows a failed one waits; then twice as long.
    """

    def __init__(
        self,
        start: Callable[[], Coroutine[Any, Any, R]],
        *,
        idle_after: timedelta,
        first_pause_s: float = FIRST_PAUSE_S,
    ) -> None:
        self._start_one = start
        self._idle_s = idle_after.total_seconds()
        self._first_pause_s = first_pause_s
        self.current: R | None = None
        self._running: list[R] = []
        self._starting: asyncio.Task[R] | None = None
        self._tasks: set[asyncio.Task[Any]] = set()
        self._failures = 0
        self._not_before = 0.0
        self._idle_at = 0.0
        self._going: asyncio.TimerHandle | None = None
        self._is_closed = False
        self.is_resting = False
        """None runs because nobody has needed one lately."""

    async def get(self) -> R:
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

    async def get_apart(self) -> R:
        """Start one that nobody else gets, and that ends when `used` is called. Raises PdfError: it
        cannot be started."""
        renderer = await self._start_one()
        renderer.is_retired = True
        self._running.append(renderer)
        return renderer

    def used(self, renderer: R) -> None:
        """Take note that one has done with a document; replace it, or let it go, in time."""
        if renderer.is_retired:
            self._end_when_free(renderer)
        elif renderer.count_document() and self._starting is None:
            self._starting = self.run(self._start())
        self._rest()

    def discard(self, renderer: R) -> None:
        """End one now, with whatever is on it; the next who asks gets a new one."""
        if renderer in self._running:
            self._running.remove(renderer)
            log.warning("a renderer was lost", extra={"pid": renderer.pid})
        if self.current is renderer:
            self.current = None
        renderer.is_retired = True
        self.run(renderer.kill())

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
        for renderer in tuple(self._running):
            self._running.remove(renderer)
            self.run(renderer.kill())
        while self._tasks:
            await asyncio.wait(self._tasks)

    async def _start(self) -> R:
        loop = asyncio.get_running_loop()
        try:
            await asyncio.sleep(max(0.0, self._not_before - loop.time()))
            began = loop.time()
            renderer = await self._start_one()
        except BaseException as error:
            self.is_resting = False
            pause = min(_LONGEST_PAUSE_S, self._first_pause_s * 2 ** min(self._failures, 16))
            self._failures += 1
            self._not_before = loop.time() + pause
            facts = {"failures": self._failures, "error": type(error).__name__}
            log.warning("a renderer did not start", extra=facts)
            raise
        finally:
            self._starting = None
        self._failures = 0
        self.is_resting = False
        self._running.append(renderer)
        old, self.current = self.current, renderer
        if old is not None:
            old.is_retired = True
            self._end_when_free(old)
        self._rest()
        seconds = round(loop.time() - began, 3)
        facts = {"pid": renderer.pid, "engine": renderer.engine, "seconds": seconds}
        log.info("a renderer was started", extra=facts)
        return renderer

    def _end_when_free(self, renderer: R) -> None:
        if renderer.busy == 0 and renderer in self._running:
            self._running.remove(renderer)
            self.run(renderer.kill())

    def _rest(self) -> None:
        loop = asyncio.get_running_loop()
        self._idle_at = loop.time() + self._idle_s
        if self._idle_s and self._going is None and not self._is_closed:
            self._going = loop.call_at(self._idle_at, self._let_go)

    def _let_go(self) -> None:
        self._going = None
        loop = asyncio.get_running_loop()
        renderer = self.current
        if renderer is None:
            return
        if renderer.busy:
            self._going = loop.call_later(min(_BUSY_LOOK_S, self._idle_s), self._let_go)
            return
        if loop.time() < self._idle_at:
            self._going = loop.call_at(self._idle_at, self._let_go)
            return
        self.current = None
        self.is_resting = True
        self._end_when_free(renderer)

    def _done(self, task: asyncio.Task[Any]) -> None:
        self._tasks.discard(task)
        # Looked at, since nobody may be waiting: a start's failure is logged where it happens.
        error = None if task.cancelled() else task.exception()
        if error is not None and not isinstance(error, PdfError | BrowserGone):
            log.error("work on a renderer failed", exc_info=error)


class Pool(Generic[R]):
    """Documents take their turns at a renderer, so many `places` at a time.

    An asynchronous context manager: at its end no process and no file is left. It belongs to one
    event loop, whose thread must live as long as the pool does. Documents may have nothing that is
    fetched unless there is a `fetcher`.
    """

    def __init__(
        self, keeper: Keeper[R], *, fetcher: Fetcher | None, limits: Limits, places: int
    ) -> None:
        self._keeper = keeper
        self._fetcher = fetcher or NoNetwork()
        self._limits = limits
        self._turns = asyncio.Semaphore(places)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._keeper.close()


class Requests:
    """What one document asks for, fetched, and counted where it is refused."""

    def __init__(self, document: Document, fetcher: Fetcher) -> None:
        self._document = document
        self._fetcher = fetcher
        self.blocked: Counter[Reason] = Counter()
        self.refused_status = 0

    async def __call__(self, url: str, method: str, headers: Mapping[str, str]) -> Fetched | None:
        """Fetch something; None when it is refused, or nobody answers."""
        try:
            fetched = await self._fetcher.fetch(url, method=method, headers=headers)
        except UrlBlocked as blocked:
            self.blocked[blocked.reason] += 1
            return None
        except OSError:
            return None
        if fetched.status in self._document.fail_on_status:
            self.refused_status = fetched.status
        return fetched


def out_of_time() -> TransientPdfError:
    """Make the error of a document whose time is over."""
    message = "the document was not done in its time"
    return TransientPdfError(message, code=PdfErrorCode.NAVIGATION_TIMEOUT)


def refuse_large(document: Document, limits: Limits) -> None:
    """Refuse a document that has too many bytes, or holds what is no character."""
    try:
        size = len(document.html.encode())
    except UnicodeEncodeError as error:
        raise over_limit("html_not_text", "it holds half a character") from error
    if size > limits.html_bytes:
        raise over_limit("html_too_large", f"it has {size} bytes")
