"""Keeps one browser running: starts it, replaces it before it is old, lets it go when idle.

It heals by itself. A start that failed is tried again by whoever asks next, a little later each
time; and whether it is well is what the last start or look at the browser said.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Coroutine
from dataclasses import KW_ONLY, dataclass
from datetime import timedelta
from typing import Any, Final

from ulak.services.pdf.browser.driver import (
    Browser,
    BrowserGone,
    Driver,
    PageCrashed,
    PageFailed,
)
from ulak.services.pdf.browser.launch import Launch
from ulak.services.pdf.browser.warm import WarmBrowser
from ulak.services.pdf.document import Document, Fetched
from ulak.services.pdf.model import PdfError, PdfErrorCode, TransientPdfError

log = logging.getLogger(__name__)

LAUNCH_TIMEOUT: Final = timedelta(seconds=10)
_NOTHING: Final = Document("<p>nothing</p><iframe srcdoc='<p>nothing</p>'></iframe>")
_FIRST_PAUSE_S: Final = 0.25
_LONGEST_PAUSE_S: Final = 10.0
_LOOK_EVERY: Final = 10
"""Documents between two looks at a browser's growth: a look takes some milliseconds."""


NOT_WELL: Final = (OSError, BrowserGone, PageCrashed, PageFailed)
"""What a browser that cannot be used comes to; running out of time is the first."""


async def try_out(browser: Browser) -> None:
    """Show a document and put it away: what a browser that is well can do.

    A browser that has just started does this before anybody's document: in its very first page a
    frame may ask before its requests are intercepted, and then nobody counts them.

    Raises:
        BrowserGone: it has ended.
        PageCrashed: the process of its page has.
        PageFailed: it does not show anything.
    """
    page = await browser.open(javascript=False, answer=_refuse)
    await page.load(_NOTHING)
    await page.close()


async def _refuse(url: str, method: str, headers: dict[str, str]) -> Fetched | None:
    return None


@dataclass(frozen=True, slots=True)
class Renewal:
    """When a browser is replaced, or let go.

    Args:
        after_documents: It has rendered so many; 0 never.
        after_growth: Its lasting processes have grown by so many bytes; 0 never.
        after_idle: Nothing was rendered for so long, and it is let go.
    """

    _: KW_ONLY
    after_documents: int = 100
    after_growth: int = 512 * 1024 * 1024
    after_idle: timedelta = timedelta(minutes=5)


class Keeper:
    """Has a browser for whoever asks. Belongs to one event loop.

    Args:
        driver: Starts browsers.
        prepare: Makes ready to start one; called in a thread.
        renewal: When one is replaced.
        spares: Pages that are opened ahead.
        memory_bytes: What the process of a page may hold.
    """

    def __init__(
        self,
        driver: Driver,
        prepare: Callable[[], Launch],
        *,
        renewal: Renewal,
        spares: int,
        memory_bytes: int,
    ) -> None:
        self._driver = driver
        self._prepare = prepare
        self._renewal = renewal
        self._spares = spares
        self._memory_bytes = memory_bytes
        self._current: WarmBrowser | None = None
        self._running: list[WarmBrowser] = []
        self._starting: asyncio.Task[WarmBrowser] | None = None
        self._tasks: set[asyncio.Task[Any]] = set()
        self._failures = 0
        self._not_before = 0.0
        self._idle_at = 0.0
        self._going: asyncio.TimerHandle | None = None
        self._is_closed = False

    @property
    def is_healthy(self) -> bool:
        """A browser runs, or the last start succeeded, or none was tried yet."""
        return self._current is not None or self._failures == 0

    @property
    def is_pausing(self) -> bool:
        """No browser runs, the last start failed, and the next one is not due yet."""
        return self._current is None and asyncio.get_running_loop().time() < self._not_before

    async def browser(self) -> WarmBrowser:
        """Give the browser that runs; start one when there is none.

        Raises:
            PdfError: none can be started; whoever asks next tries again.
        """
        while self._current is None:
            if self._is_closed:
                raise _not_started("the pool is closed")
            if self._starting is None:
                self._starting = self.run(self._start())
            # Others wait for the same start, so nobody's impatience ends it.
            await asyncio.shield(self._starting)
        return self._current

    def used(self, warm: WarmBrowser) -> None:
        """Take note that a browser has done with a document; replace it, or let it go, in time."""
        warm.renders += 1
        if warm.is_retired:
            self._end_when_free(warm)
        elif self._is_old(warm):
            warm.renders = 0  # Should the new one not start, this one goes on.
            if self._starting is None:
                self._starting = self.run(self._start())
        self._rest()

    def discard(self, warm: WarmBrowser) -> None:
        """End a browser now, with whatever is on it; the next who asks gets a new one."""
        if warm in self._running:
            self._running.remove(warm)
            log.warning("a browser was lost", extra={"browser_pid": warm.browser.pid})
        if self._current is warm:
            self._current = None
        warm.is_retired = True
        self.run(warm.kill())

    def run(self, work: Coroutine[Any, Any, Any]) -> asyncio.Task[Any]:
        """Have something done in the background; `close` waits for it."""
        task = asyncio.ensure_future(work)
        self._tasks.add(task)
        task.add_done_callback(self._done)
        return task

    async def close(self) -> None:
        """End every browser, and wait until nothing of them is left."""
        self._is_closed = True
        if self._going is not None:
            self._going.cancel()
        if self._starting is not None:
            self._starting.cancel()
        self._current = None
        for warm in tuple(self._running):
            self._running.remove(warm)
            self.run(warm.kill())
        while self._tasks:
            await asyncio.wait(self._tasks)

    async def _start(self) -> WarmBrowser:
        loop = asyncio.get_running_loop()
        try:
            await asyncio.sleep(max(0.0, self._not_before - loop.time()))
            began = loop.time()
            browser = await self._launch()
        except BaseException:
            pause = min(_LONGEST_PAUSE_S, _FIRST_PAUSE_S * 2 ** min(self._failures, 16))
            self._failures += 1
            self._not_before = loop.time() + pause
            log.warning("a browser did not start", extra={"failures": self._failures})
            raise
        finally:
            self._starting = None
        self._failures = 0
        warm = WarmBrowser(browser, self._spares, self._memory_bytes)
        self._running.append(warm)
        old, self._current = self._current, warm
        if old is not None:
            old.is_retired = True
            self._end_when_free(old)
        self._rest()
        log.info(
            "a browser was started",
            extra={
                "browser_pid": browser.pid,
                "engine": browser.version,
                "seconds": round(loop.time() - began, 3),
            },
        )
        return warm

    async def _launch(self) -> Browser:
        preparing = asyncio.ensure_future(asyncio.to_thread(self._prepare))
        try:
            async with asyncio.timeout(LAUNCH_TIMEOUT.total_seconds()):
                browser = await self._driver.start(await asyncio.shield(preparing))
                try:
                    await try_out(browser)
                except BaseException:
                    await browser.kill()
                    raise
                return browser
        except BaseException as error:
            # A thread cannot be stopped: what it has made, or will have, is taken away.
            preparing.add_done_callback(_remove)
            if isinstance(error, NOT_WELL):
                raise _not_started("the browser did not start") from error
            raise

    def _is_old(self, warm: WarmBrowser) -> bool:
        renewal = self._renewal
        if renewal.after_documents and warm.renders >= renewal.after_documents:
            return True
        if renewal.after_growth and warm.renders % _LOOK_EVERY == 1:
            return warm.growth() > renewal.after_growth
        return False

    def _end_when_free(self, warm: WarmBrowser) -> None:
        if warm.busy == 0 and warm in self._running:
            self._running.remove(warm)
            self.run(warm.kill())

    def _rest(self) -> None:
        loop = asyncio.get_running_loop()
        self._idle_at = loop.time() + self._renewal.after_idle.total_seconds()
        if self._going is None and not self._is_closed:
            self._going = loop.call_at(self._idle_at, self._let_go)

    def _let_go(self) -> None:
        self._going = None
        loop = asyncio.get_running_loop()
        warm = self._current
        if warm is None or warm.busy:
            return  # What is on it now will say when it is done.
        if loop.time() < self._idle_at:
            self._going = loop.call_at(self._idle_at, self._let_go)
            return
        self._current = None
        self._end_when_free(warm)

    def _done(self, task: asyncio.Task[Any]) -> None:
        self._tasks.discard(task)
        # Looked at, since nobody may be waiting: a start's failure is logged where it happens.
        error = None if task.cancelled() else task.exception()
        if error is not None and not isinstance(error, PdfError | BrowserGone):
            log.error("work on a browser failed", exc_info=error)


def _remove(preparing: asyncio.Future[Launch]) -> None:
    if not preparing.cancelled() and preparing.exception() is None:
        preparing.result().remove()


def _not_started(message: str) -> TransientPdfError:
    return TransientPdfError(message, code=PdfErrorCode.BROWSER_LAUNCH_FAILED)
