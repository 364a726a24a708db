"""The driver that goes through Playwright: contexts, pages and interception are Playwright's.

Documents are shown and printed over DevTools sessions of its own, with the same commands as the
other driver, so that both give the same bytes. Each browser has a Playwright process of its own,
which ends with it. Importing this module needs Playwright; nothing else of the service does.
"""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any, Final

from playwright.async_api import (
    Browser,
    BrowserContext,
    CDPSession,
    Error,
    Page,
    Playwright,
    Request,
    Route,
    async_playwright,
)

from ulak.services.pdf.browser.driver import Answer, BrowserGone, Loaded, PageCrashed, PageFailed
from ulak.services.pdf.browser.launch import Launch
from ulak.services.pdf.browser.page import Requests, ShownPage, is_in_memory, passed_headers
from ulak.services.pdf.browser.page_scripts import DRAWN_SMALL, Loading
from ulak.services.pdf.browser.process import find_processes, looked_at, state_and_parent
from ulak.services.pdf.document import Document, Fetched, Limits

_SWITCHES: Final = ("--remote-debugging-pipe", "--no-startup-window")
"""All that Playwright needs; what it would add of its own is left out, for the launch has said
everything, and one of its defaults is to have no sandbox."""
_STOPS_WITHIN_S: Final = 5.0
"""How long Playwright may take to end when its browser has. It takes milliseconds; a guess."""


class PlaywrightDriver:
    """Starts Chromium through Playwright.

    Args:
        output_bytes: Printing is stopped when it gives more.
    """

    def __init__(self, *, output_bytes: int = Limits().output_bytes) -> None:
        self._output_bytes = output_bytes

    async def start(self, launch: Launch) -> PlaywrightBrowser:
        """Start a browser and wait until it answers; one that is not waited for is killed."""
        starting = asyncio.ensure_future(async_playwright().start())
        try:
            playwright = await asyncio.shield(starting)
        except asyncio.CancelledError:
            # Its process is on the way and would be nobody's: it is waited for, and ended.
            await _Ending(launch, await starting).kill()
            raise
        except Error as error:
            launch.remove()
            raise OSError("Playwright's own process cannot be executed") from error
        ending = _Ending(launch, playwright)
        try:
            # With a profile that is named, so that Playwright makes no directory of its own, which
            # it would leave behind when it ends before it has noticed its browser's end. The
            # context that comes with it is not used.
            context = await playwright.chromium.launch_persistent_context(
                launch.profile,
                executable_path=launch.wrapper(),
                args=_SWITCHES,
                ignore_default_args=True,
                chromium_sandbox=True,
                artifacts_dir=launch.workplace.directory / "artifacts",
                handle_sigint=False,
                handle_sigterm=False,
                handle_sighup=False,
                timeout=0,
            )
            browser = context.browser
            if browser is None:
                raise BrowserGone
            session = await browser.new_browser_cdp_session()
            version = (await session.send("Browser.getVersion"))["product"]
            ending.look()
        except BaseException as error:
            await ending.kill()
            if isinstance(error, Error):
                raise BrowserGone from error
            raise
        return PlaywrightBrowser(browser, ending, version, output_bytes=self._output_bytes)


class PlaywrightBrowser:
    """A running Chromium, and the Playwright that is its own."""

    def __init__(
        self, browser: Browser, ending: _Ending, version: str, *, output_bytes: int
    ) -> None:
        self._browser = browser
        self._ending = ending
        self.pid = ending.pid
        self.version = version
        self._output_bytes = output_bytes

    async def open(self, *, javascript: bool, answer: Answer) -> PlaywrightPage:
        """Open a page in a context of its own; all its requests are put to `answer`."""
        try:
            context = await self._browser.new_context(
                java_script_enabled=javascript,
                service_workers="block",
                accept_downloads=False,
                no_viewport=True,  # the page is told its size below
            )
            try:
                loading = Loading()
                requests = _Requests(context, answer, on_leave=loading.leave)
                await context.route("**/*", requests.asked)
                page = await context.new_page()
                requests.belong_to(page)
                opened = PlaywrightPage(
                    page, requests, loading, self._ending, output_bytes=self._output_bytes
                )
                await opened.set_up(javascript=javascript)
            except BaseException:
                with suppress(Error):
                    await context.close()
                raise
        except (Error, PageCrashed) as error:
            raise BrowserGone from error
        return opened

    async def kill(self) -> None:
        """End the whole tree and Playwright's process, and remove the profile; works twice."""
        await self._ending.kill()


class PlaywrightPage(ShownPage):
    """A page in a context of its own."""

    def __init__(
        self, page: Page, requests: _Requests, loading: Loading, ending: _Ending, *,
        output_bytes: int,
    ) -> None:  # fmt: skip
        super().__init__(requests, loading, output_bytes=output_bytes)
        self._ending = ending
        self._context = page.context
        self._page = page
        self._session: CDPSession | None = None
        # Playwright leaves what was asked of a page that has crashed without an answer.
        self._gone: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        page.on("crash", self._end)
        page.on("close", self._end)

    @property
    def is_gone(self) -> bool:
        """Its process has ended."""
        return self._gone.done()

    async def set_up(self, *, javascript: bool) -> None:
        """Make the page ready for its document.

        Raises:
            BrowserGone: the browser has ended.
            PageCrashed: the page's process has ended.
        """
        self._session = session = await self._context.new_cdp_session(self._page)
        session.on("Runtime.exceptionThrown", self._threw)
        session.on("Log.entryAdded", self._logged)
        for event, listener in self._loading.listeners.items():
            session.on(event, listener)
        commands = [
            self._ask("Page.getFrameTree"),
            self._ask("Page.enable"),
            self._ask("Log.enable"),
            self._ask("Emulation.setEmulatedMedia", media="print"),
            self._ask("Emulation.setDeviceMetricsOverride", **DRAWN_SMALL),
        ]
        if javascript:
            commands.append(self._ask("Runtime.enable"))
        tree = (await asyncio.gather(*commands))[0]
        self._frame = tree["frameTree"]["frame"]["id"]
        made = await self._ask("Page.createIsolatedWorld", frameId=self._frame, worldName="ulak")
        self._world = made["executionContextId"]

    async def load(self, document: Document) -> Loaded:
        """Show a document, and wait until it is complete."""
        try:
            return await super().load(document)
        except PageCrashed:
            self._raise_if_lost(None)
            raise

    async def close(self) -> None:
        """Have the context go, with everything in it."""
        self._requests.stop()
        try:
            await self._context.close()
        except Error as error:
            self._raise_if_lost(error)

    async def kill(self) -> None:
        """Have the page's process end, and the context with it."""
        if self._session is not None:
            # It is never answered: who would answer is gone.
            crash = asyncio.ensure_future(self._session.send("Page.crash"))
            crash.add_done_callback(looked_at)
        await self.close()

    async def _ask(self, method: str, /, **params: Any) -> dict[str, Any]:
        if self._session is None:
            raise PageCrashed
        answer = asyncio.ensure_future(self._session.send(method, params))
        answer.add_done_callback(looked_at)
        either: set[asyncio.Future[Any]] = {answer, self._gone}
        try:
            await asyncio.wait(either, return_when=asyncio.FIRST_COMPLETED)
            if answer.done():
                return answer.result()
        except Error as error:
            self._raise_if_gone(error)
            raise PageFailed from error
        finally:
            answer.cancel()
        self._raise_if_gone(None)
        raise PageCrashed

    def _raise_if_lost(self, error: Error | None) -> None:
        # Playwright tells of the pages first, and of their browser after.
        browser = self._context.browser
        if browser is None or not browser.is_connected() or self._ending.is_over:
            raise BrowserGone from error

    def _raise_if_gone(self, error: Error | None) -> None:
        self._raise_if_lost(error)
        if self._gone.done() or self._page.is_closed():
            raise PageCrashed from error

    def _end(self, _: Page) -> None:
        self._requests.stop()
        self._loading.fail(PageCrashed())
        if not self._gone.done():
            self._gone.set_result(None)


class _Requests(Requests):
    """The requests of a context; what its page opens is closed."""

    def __init__(
        self, context: BrowserContext, answer: Answer, *, on_leave: Callable[[], None]
    ) -> None:
        super().__init__(answer)
        self._on_leave = on_leave
        self._page: Page | None = None
        context.on("page", self._opened)

    def belong_to(self, page: Page) -> None:
        """Take this as the page of the context; every other one is closed."""
        self._page = page
        page.on("websocket", lambda socket: self.refused(socket.url))

    def asked(self, route: Route, request: Request) -> None:
        """Have a request answered."""
        self.begin(self._reply(route, request))

    async def _reply(self, route: Route, request: Request) -> None:
        # The page may have gone while its request was looked at.
        with suppress(Error):
            if is_in_memory(request.url):
                await route.continue_()
                return
            fetched: Fetched | None = None
            try:
                fetched = await self.ask(request.url, request.method, request.headers)
            finally:
                # A request that is left alone would hold up its page.
                await self._settle(route, request, fetched)

    async def _settle(self, route: Route, request: Request, fetched: Fetched | None) -> None:
        if self._leaves(request):
            self._on_leave()
            # A document stays where it is: a page of the browser's own, which tells of the
            # refusal, would be printed otherwise.
            await route.abort("aborted")
        elif fetched is None:
            await route.abort("blockedbyclient")
        else:
            await route.fulfill(
                status=fetched.status, headers=dict(passed_headers(fetched)), body=fetched.body
            )

    def _leaves(self, request: Request) -> bool:
        if not request.is_navigation_request() or self._page is None:
            return False
        try:
            return request.frame == self._page.main_frame
        except Error:
            return True  # A window that is not there yet; it is closed when it is.

    def _opened(self, page: Page) -> None:
        if self._page is not None and page != self._page:
            self.begin(self._close(page))

    async def _close(self, page: Page) -> None:
        with suppress(Error):
            await page.close()


class _Ending:
    """How a browser and its Playwright end, whatever they are doing."""

    def __init__(self, launch: Launch, playwright: Playwright) -> None:
        self._launch = launch
        self._playwright = playwright
        self.pid = 0
        """The browser's first process, once it was looked for."""
        self._playwright_pid = 0
        self._ended: asyncio.Future[None] | None = None

    @property
    def is_over(self) -> bool:
        """The browser's first process has ended."""
        return state_and_parent(self.pid)[0] in ("", "Z")

    def look(self) -> None:
        """Find the browser's first process, and with it Playwright's.

        Raises:
            BrowserGone: it has ended.
        """
        self.pid = next(_roots(self._launch.profile), 0)
        if not self.pid:
            raise BrowserGone
        self._playwright_pid = state_and_parent(self.pid)[1]

    async def kill(self) -> None:
        """End both and remove the profile; who is cancelled here leaves it being done."""
        if self._ended is None:
            self._ended = asyncio.ensure_future(self._end())
        await asyncio.shield(self._ended)

    async def _end(self) -> None:
        self._kill_browser()
        stopping = asyncio.ensure_future(self._playwright.stop())
        stopping.add_done_callback(looked_at)
        await asyncio.wait({stopping}, timeout=_STOPS_WITHIN_S)
        if not stopping.done() and self._playwright_pid:
            _kill(os.kill, self._playwright_pid)
            await asyncio.wait({stopping})
        self._kill_browser()  # one that was being started meanwhile
        await asyncio.to_thread(self._launch.remove)

    def _kill_browser(self) -> None:
        # The browser is the first of a group of its own, and all of its tree are in it.
        for pid in _roots(self._launch.profile):
            _kill(os.killpg, pid)


def _roots(profile: Path) -> Iterator[int]:
    """Find the processes that have this profile and are nobody's helpers: one, or none."""
    for pid, command in find_processes(f"--user-data-dir={profile}"):
        if b"--type=" not in command:
            yield pid


def _kill(send: Callable[[int, int], None], pid: int) -> None:
    with suppress(ProcessLookupError, PermissionError):
        send(pid, signal.SIGKILL)
