"""The browser pool: documents take their turns on a warm browser, each in a context of its own.

A browser that is lost takes nobody's document with it but that of whoever killed it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from datetime import timedelta
from types import TracebackType
from typing import Final, Self

from ulak.engine.tracing import Tracing
from ulak.services.pdf.browser.attempt import (
    Attempt,
    Deadline,
    OnBlocked,
    Rules,
    out_of_time,
    refuse_large,
)
from ulak.services.pdf.browser.driver import BrowserGone, Driver
from ulak.services.pdf.browser.keeper import Keeper
from ulak.services.pdf.browser.launch import Launch, prepare
from ulak.services.pdf.browser.warm import WarmBrowser, launch_browser
from ulak.services.pdf.document import (
    Document,
    Fetcher,
    Limits,
    NoNetwork,
    Rendered,
    Times,
)
from ulak.services.pdf.model import not_started
from ulak.services.pdf.steps import LAUNCH, Steps

_LOSSES: Final = 2
"""How often a document may lose its browser: once is bad luck."""


class BrowserPool:
    """Renders documents, several at a time, in a browser that is kept warm.

    An asynchronous context manager: at its end no process and no profile is left. It belongs to
    one event loop, whose thread must live as long as the pool does.

    Args:
        driver: Starts browsers.
        fetcher: Fetches what pages may have; nothing by default.
        limits: What a document may cost.
        places: Documents at a time.
        recycle_after: A browser is replaced after so many documents; 0 never.
        memory_growth: And when its lasting processes have grown by so many bytes; 0 never.
        idle_after: A browser that nobody needs is let go after so long.
        prepare: Makes ready to start a browser, as `launch.prepare` with arguments bound; called
            in a thread before each start.
        on_blocked: Told the reason of each request that is refused.
        tracing: Where the spans of launch, load and print go, of documents that are traced.
    """

    def __init__(
        self,
        driver: Driver,
        *,
        fetcher: Fetcher | None = None,
        limits: Limits | None = None,
        places: int = 1,
        recycle_after: int = 100,
        memory_growth: int = 512 * 1024 * 1024,
        idle_after: timedelta = timedelta(minutes=5),
        prepare: Callable[[], Launch] = prepare,
        on_blocked: OnBlocked | None = None,
        tracing: Tracing | None = None,
    ) -> None:
        limits = limits or Limits()
        self._rules = Rules(fetcher=fetcher or NoNetwork(), limits=limits, on_blocked=on_blocked)
        self._tracing = tracing
        self._turns = asyncio.Semaphore(places)

        async def start() -> WarmBrowser:
            browser = await launch_browser(driver, prepare)
            return WarmBrowser(browser, places, limits.memory_bytes, recycle_after, memory_growth)

        self._keeper = Keeper(start, idle_after=idle_after)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        await self._keeper.close()

    async def render(self, document: Document, times: Times) -> Rendered:
        """Render one document in a context of its own, when its turn comes.

        Its time begins now. Cancelled, it takes its page with it.

        Raises:
            TransientPdfError: the browser does not start or was lost twice, or the time ran out.
            PermanentPdfError: the document exceeds a limit, its page broke, or no browser can run
                here.
        """
        refuse_large(document, self._rules.limits)
        deadline = Deadline.of(times, asyncio.get_running_loop().time())
        with Steps(self._tracing) as steps:
            steps.begin(LAUNCH)
            attempt = Attempt(
                document,
                rules=self._rules,
                deadline=deadline,
                steps=steps,
                kill_browser=self._keeper.discard,
                later=self._keeper.run,
            )
            try:
                async with asyncio.timeout_at(deadline.ask_at):
                    await self._turns.acquire()
            except TimeoutError as error:
                raise out_of_time() from error
            try:
                return await self._render(attempt, deadline, steps)
            finally:
                self._turns.release()

    async def _render(self, attempt: Attempt, deadline: Deadline, steps: Steps) -> Rendered:
        for _ in range(_LOSSES):
            steps.begin(LAUNCH)
            try:
                async with asyncio.timeout_at(deadline.ask_at):
                    warm = await self._keeper.get()
            except TimeoutError as error:
                raise out_of_time() from error
            try:
                return await attempt.on(warm)
            except BrowserGone:
                self._keeper.discard(warm)
            finally:
                self._keeper.used(warm)
        raise not_started("the browser was lost twice", detail="browser_lost")
