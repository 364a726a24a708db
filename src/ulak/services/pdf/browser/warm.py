"""A browser that is kept running, with pages opened ahead."""

from __future__ import annotations

import asyncio
import logging
import os
import signal
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Final

from ulak.services.pdf.browser.driver import (
    Answer,
    Browser,
    BrowserGone,
    Driver,
    PageCrashed,
    PageFailed,
    ShownPage,
)
from ulak.services.pdf.browser.launch import Launch
from ulak.services.pdf.browser.process import OF_PAGES, Tree, is_stopped, looked_at, undo
from ulak.services.pdf.browser.renderers import Renderer
from ulak.services.pdf.document import Document, Fetched
from ulak.services.pdf.model import not_started

log = logging.getLogger(__name__)

LAUNCH_TIMEOUT: Final = timedelta(seconds=10)
NOT_WELL: Final = (OSError, BrowserGone, PageCrashed, PageFailed)
"""What a browser that cannot be used comes to; running out of time is the first."""
_NOTHING: Final = Document("<p>nothing</p><iframe srcdoc='<p>nothing</p>'></iframe>")
_LOOK_EVERY: Final = 10
"""Documents between two looks at a browser's growth: a look takes some milliseconds."""
_ROOM: Final = 16 * 1024 * 1024
"""Bytes that a browser needs for its files, a page's shared memory among them; a guess."""
_LOOK_EVERY_S: Final = 0.1
"""How often memory is looked at while pages work: a page gains some 40 MB in that time
(typed arrays filled in a loop, on the machine of the figures)."""


@dataclass(slots=True, eq=False)
class _Spare:
    """A page that is opened ahead of its document, whose requests nobody answers before."""

    browser: Browser
    javascript: bool
    answer: Answer | None = None
    opening: asyncio.Task[ShownPage] = field(init=False)

    def __post_init__(self) -> None:
        opening = self.browser.open(javascript=self.javascript, answer=self)
        self.opening = asyncio.ensure_future(opening)

    async def __call__(self, url: str, method: str, headers: dict[str, str]) -> Fetched | None:
        return await self.answer(url, method, headers) if self.answer is not None else None


@dataclass(slots=True)
class WarmBrowser(Renderer):
    """A running browser, how much it was used, and the pages that wait for their documents."""

    browser: Browser
    spares_at_most: int
    memory_bytes: int
    """What the process of a page may hold."""
    recycle_after: int = 0
    """It is replaced after so many documents; 0 never."""
    memory_growth: int = 0
    """And when its lasting processes have grown by so many bytes; 0 never."""
    renders: int = 0
    memory_kills: int = 0
    """Processes that were killed for their memory, and of which no page was found yet."""
    _stopped: frozenset[int] = frozenset()
    """What stood still when it was looked at last."""
    scripted: int = 0
    """Documents on it whose scripts run."""
    suspects: int = 0
    """It was ended since what works for all pages grew too much, and one of so many documents did
    it: of those with scripts, if there were any."""
    was_scripted: bool = False
    """There were."""
    _first_size: int = 0
    _spares: deque[_Spare] = field(default_factory=deque)
    _watch: asyncio.Task[None] | None = None
    _tree: Tree = field(init=False)

    def __post_init__(self) -> None:
        self._tree = Tree(self.browser.pid)

    @property
    def pid(self) -> int:
        return self.browser.pid

    @property
    def engine(self) -> str:
        return self.browser.version

    async def open(self, *, javascript: bool, answer: Answer, ahead: bool = True) -> ShownPage:
        """Hand out a fresh page and open the next one. It is one that was opened ahead if there is
        one, unless `ahead` is false: what ends a page may have ended those that wait, unseen yet.

        Raises:
            BrowserGone: the browser has ended, or cannot even hold an empty page.
        """
        try:
            async with asyncio.timeout(LAUNCH_TIMEOUT.total_seconds()):
                page = None
                if ahead:
                    page = await self._open_spare(javascript=javascript, answer=answer)
                page = page or await self.browser.open(javascript=javascript, answer=answer)
        except (PageCrashed, TimeoutError) as error:
            raise BrowserGone from error
        # The next document is most likely of this one's kind.
        self.open_ahead(javascript=javascript)
        return page

    async def show_something(self) -> None:
        """Show a document in a page of its own, as a browser that is well can. Raises what a
        browser that is not comes to: one of `NOT_WELL`."""
        self.enter(javascript=False)
        try:
            async with asyncio.timeout(LAUNCH_TIMEOUT.total_seconds()):
                await _show_something(self.browser)
        finally:
            self.leave(javascript=False)

    def has_room(self) -> bool:
        """Tell whether the disk that the browser writes to has room: where it has none pages crash,
        and what they print is cut off."""
        try:
            found = os.statvfs(self.browser.profile)
        except OSError:
            return False
        return found.f_bavail * found.f_frsize >= _ROOM

    def enter(self, *, javascript: bool) -> None:
        """Count a document in; while there is one, memory is watched."""
        self.busy += 1
        self.scripted += javascript
        if self._watch is None:
            self._watch = asyncio.ensure_future(self._watch_memory())

    def leave(self, *, javascript: bool) -> None:
        """Count a document out."""
        self.busy -= 1
        self.scripted -= javascript
        if self.busy == 0:
            self.memory_kills = 0
            self._stop_watching()

    def took_memory_kill(self) -> bool:
        """Tell whether a page that broke was killed for its memory; each kill counts once."""
        if self.memory_kills == 0:
            return False
        self.memory_kills -= 1
        return True

    def count_document(self) -> bool:
        self.renders += 1
        is_old = bool(self.recycle_after) and self.renders >= self.recycle_after
        if not is_old and self.memory_growth and self.renders % _LOOK_EVERY == 1:
            is_old = self._growth() > self.memory_growth
        if is_old:
            self.renders = 0  # Should the new one not start, this one goes on.
        return is_old

    async def kill(self) -> None:
        self.is_retired = True
        self._stop_watching()
        spares, self._spares = self._spares, deque()
        for spare in spares:
            spare.opening.cancel()
        await self.browser.kill()

    def _growth(self) -> int:
        """Return by how much the processes that outlive pages have grown since the first look."""
        size = self._tree.lasting()
        if self._first_size == 0:
            self._first_size = size
        return size - self._first_size

    def _stop_watching(self) -> None:
        if self._watch is not None:
            self._watch.cancel()
            self._watch = None

    async def _open_spare(self, *, javascript: bool, answer: Answer) -> ShownPage | None:
        """Return a page that was opened ahead, if there is one whose process still lives."""
        while spare := next((one for one in self._spares if one.javascript == javascript), None):
            self._spares.remove(spare)
            spare.answer = answer
            try:
                page = await spare.opening
            except PageCrashed:
                continue
            if not page.is_gone:
                return page
            await page.close()
        return None

    def open_ahead(self, *, javascript: bool) -> None:
        """Begin to open a page for the next document, unless enough of them wait."""
        if self.is_retired or len(self._spares) >= self.spares_at_most:
            return
        spare = _Spare(self.browser, javascript)
        self._spares.append(spare)

        def opened(opening: asyncio.Task[ShownPage]) -> None:
            # The task tells who took it; a spare that failed is not kept.
            has_failed = opening.cancelled() or opening.exception() is not None
            if has_failed and spare in self._spares:
                self._spares.remove(spare)

        spare.opening.add_done_callback(opened)

    async def _watch_memory(self) -> None:
        while True:
            await asyncio.sleep(_LOOK_EVERY_S)
            self.memory_kills += self._tree.kill_beyond(self.memory_bytes)
            if self._tree.has_outgrown:
                self.suspects, self.was_scripted = self.scripted or self.busy, self.scripted > 0
                # Whoever is on it is told that it is gone; who keeps it takes it away.
                await self.browser.kill()
                return
            self._end_stopped()

    def _end_stopped(self) -> None:
        """Kill what stands still at two looks, so that no document waits for it: a page's process
        alone, or all of the browser."""
        found = self._tree.find_stopped()
        if (driver := self.browser.driver_pid) and is_stopped(driver):
            found[driver] = "driver"
        still, self._stopped = self._stopped & found.keys(), frozenset(found)
        if not still:
            return
        log.warning("a renderer stands still and is killed", extra={"pids": sorted(still)})
        for pid in still:
            if found[pid] in OF_PAGES:
                with suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
        if any(found[pid] not in OF_PAGES for pid in still):
            # Not by this task: to kill a browser ends its watch.
            ending = asyncio.ensure_future(self.browser.kill())
            ending.add_done_callback(looked_at)


async def _show_something(browser: Browser) -> None:
    page = await _Spare(browser, javascript=False).opening
    await page.load(_NOTHING)
    await page.close()


async def launch_browser(driver: Driver, prepare: Callable[[], Launch]) -> Browser:
    """Start a browser and have it show a document: one that is well can do that."""
    preparing = asyncio.ensure_future(asyncio.to_thread(prepare))
    try:
        async with asyncio.timeout(LAUNCH_TIMEOUT.total_seconds()):
            browser = await driver.start(await asyncio.shield(preparing))
            try:
                # Before anybody's document: in its very first page a frame may ask before its
                # requests are intercepted, and then nobody counts them.
                await _show_something(browser)
            except BaseException:
                await browser.kill()
                raise
            return browser
    except BaseException as error:
        # A thread cannot be stopped: what it has made, or will have, is taken away.
        undo(preparing, Launch.remove)
        if isinstance(error, NOT_WELL):
            raise not_started("the browser did not start") from error
        raise
