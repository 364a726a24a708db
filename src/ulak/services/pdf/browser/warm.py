"""A browser that is kept running, with pages opened ahead."""

from __future__ import annotations

import asyncio
from collections import deque
from dataclasses import dataclass, field
from typing import Final

from ulak.services.pdf.browser.driver import Answer, Browser, BrowserGone, Page, PageCrashed
from ulak.services.pdf.browser.memory import Tree
from ulak.services.pdf.document import Fetched

_LOOK_EVERY_S: Final = 0.1
"""How often memory is looked at while pages work: a page gains some 40 MB in that time
(typed arrays filled in a loop, on the machine of the figures)."""


@dataclass(slots=True)
class _Relay:
    """Stands in for whoever will answer a page that is opened ahead of its document."""

    answer: Answer | None = None

    async def __call__(self, url: str, method: str, headers: dict[str, str]) -> Fetched | None:
        return await self.answer(url, method, headers) if self.answer is not None else None


@dataclass(frozen=True, slots=True)
class _Spare:
    javascript: bool
    relay: _Relay
    opening: asyncio.Task[Page]


@dataclass(slots=True)
class WarmBrowser:
    """A running browser, how much it was used, and the pages that wait for their documents."""

    browser: Browser
    spares_at_most: int
    memory_bytes: int
    renders: int = 0
    busy: int = 0
    """Documents that are on it now."""
    is_retired: bool = False
    """It gets no more documents."""
    memory_kills: int = 0
    """Processes that were killed for their memory, and whose pages have not been told yet."""
    _first_size: int = 0
    _spares: deque[_Spare] = field(default_factory=deque)
    _watch: asyncio.Task[None] | None = None
    _tree: Tree = field(init=False)

    def __post_init__(self) -> None:
        self._tree = Tree(self.browser.pid)

    async def open(self, *, javascript: bool, answer: Answer) -> Page:
        """Hand out a fresh page, opened ahead if there is one, and open the next one.

        Raises:
            BrowserGone: the browser has ended, or cannot even hold an empty page.
        """
        spare = self._take(javascript=javascript)
        try:
            if spare is None:
                page = await self.browser.open(javascript=javascript, answer=answer)
            else:
                spare.relay.answer = answer
                page = await spare.opening
        except PageCrashed as error:
            raise BrowserGone from error
        # The next document is most likely of this one's kind.
        self._open_ahead(javascript=javascript)
        return page

    def enter(self) -> None:
        """Count a document in; while there is one, memory is watched."""
        self.busy += 1
        if self._watch is None:
            self._watch = asyncio.ensure_future(self._watch_memory())

    def leave(self) -> None:
        """Count a document out."""
        self.busy -= 1
        if self.busy == 0:
            self.memory_kills = 0
            self._stop_watching()

    def took_memory_kill(self) -> bool:
        """Tell whether a page that broke was killed for its memory; each kill is told once."""
        if self.memory_kills == 0:
            return False
        self.memory_kills -= 1
        return True

    def growth(self) -> int:
        """Tell by how much the processes that outlive their pages have grown since first asked."""
        size = self._tree.lasting()
        if self._first_size == 0:
            self._first_size = size
        return size - self._first_size

    async def kill(self) -> None:
        """End the whole tree; may be called twice."""
        self.is_retired = True
        self._stop_watching()
        spares, self._spares = self._spares, deque()
        for spare in spares:
            spare.opening.cancel()
        await self.browser.kill()

    def _stop_watching(self) -> None:
        if self._watch is not None:
            self._watch.cancel()
            self._watch = None

    def _take(self, *, javascript: bool) -> _Spare | None:
        for spare in self._spares:
            if spare.javascript == javascript:
                self._spares.remove(spare)
                return spare
        return None

    def _open_ahead(self, *, javascript: bool) -> None:
        if self.is_retired or len(self._spares) >= self.spares_at_most:
            return
        relay = _Relay()
        opening = asyncio.ensure_future(self.browser.open(javascript=javascript, answer=relay))
        spare = _Spare(javascript, relay, opening)
        self._spares.append(spare)
        opening.add_done_callback(lambda task: self._opened(spare, task))

    def _opened(self, spare: _Spare, opening: asyncio.Task[Page]) -> None:
        # Whoever took it is told by the task; a spare that failed is not kept.
        has_failed = opening.cancelled() or opening.exception() is not None
        if has_failed and spare in self._spares:
            self._spares.remove(spare)

    async def _watch_memory(self) -> None:
        while True:
            await asyncio.sleep(_LOOK_EVERY_S)
            self.memory_kills += self._tree.kill_beyond(self.memory_bytes)
