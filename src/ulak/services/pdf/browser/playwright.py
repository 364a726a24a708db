"""The driver that goes through Playwright: contexts, pages and interception are Playwright's.

Documents are shown and printed over DevTools sessions of its own, with the same commands as the
other driver, so that both give the same bytes. Each browser has a Playwright process of its own,
which ends with it. Importing this module needs Playwright; nothing else of the service does.
"""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import Iterable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any, Final
from weakref import WeakSet

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

from ulak.services.pdf.browser.driver import (
    DRAWN_SMALL,
    TOLD_OF_PAGES,
    Answer,
    BrowserGone,
    Loaded,
    PageCrashed,
    PageFailed,
    ShownPage,
    is_in_memory,
    passed_headers,
)
from ulak.services.pdf.browser.launch import Launch
from ulak.services.pdf.browser.process import (
    find_processes,
    is_stopped,
    looked_at,
    state_and_parent,
)
from ulak.services.pdf.document import Document, Fetched, Limits

_SWITCHES: Final = ("--remote-debugging-pipe", "--no-startup-window")
"""All that Playwright needs; what it would add of its own is left out, for the launch has said
everything, and one of its defaults is to have no sandbox."""
_LOOKS: Final = 10
_GLANCE_S: Final = 0.02
_STOPS_WITHIN_S: Final = 5.0
"""How long Playwright may take to end when its browser has. It takes milliseconds; a guess."""
_DRIVER: Final = "run-driver"
"""In the command of Playwright's process."""


class PlaywrightDriver:
    """Starts Chromium through Playwright."""

    def __init__(self, *, output_bytes: int = Limits().output_bytes) -> None:
        self._output_bytes = output_bytes

    async def start(self, launch: Launch) -> PlaywrightBrowser:
        others = set(_find_drivers())
        manager = async_playwright()
        starting = asyncio.ensure_future(manager.start())
        starting.add_done_callback(looked_at)
        try:
            playwright = await asyncio.shield(starting)
        except asyncio.CancelledError:
            # Its process is on the way and would be nobody's: it is waited for, and ended. One
            # that does not even start is killed, which ends the wait.
            await asyncio.wait([starting], timeout=_STOPS_WITHIN_S)
            if not starting.done():
                _kill(set(_find_drivers()) - others)
                await asyncio.wait([starting])
            if starting.cancelled() or starting.exception() is not None:
                launch.remove()
            else:
                await PlaywrightBrowser(launch, starting.result(), output_bytes=0).kill()
            raise
        except Exception as error:
            launch.remove()
            raise OSError("Playwright's own process does not start") from error
        _look_at_its_end(manager)
        browser = PlaywrightBrowser(launch, playwright, output_bytes=self._output_bytes)
        browser.driver_pid = next(iter(set(_find_drivers()) - others), 0)
        try:
            await browser.start()
        except BaseException as error:
            await browser.kill()
            if isinstance(error, Error):
                raise BrowserGone from error
            raise
        return browser


class PlaywrightBrowser:
    """A running Chromium, and the Playwright that is its own."""

    def __init__(self, launch: Launch, playwright: Playwright, *, output_bytes: int) -> None:
        self._launch = launch
        self._playwright = playwright
        self._output_bytes = output_bytes
        self._browser: Browser | None = None
        self.version = ""
        self.pid = 0
        self.driver_pid = 0
        """The number of Playwright's own process."""
        self.profile: Path = launch.profile
        self.pages: WeakSet[PlaywrightPage] = WeakSet()
        self._driver = 0
        """What tells the loop that Playwright's process has ended; 0 when nothing does."""
        self._driver_has_ended = False
        self._ended: asyncio.Future[None] | None = None

    @property
    def is_over(self) -> bool:
        """The browser's first process has ended, or Playwright's has."""
        return self._driver_has_ended or state_and_parent(self.pid)[0] in ("", "Z")

    async def start(self) -> None:
        """Start the browser, and find its first process and Playwright's."""
        # With a profile that is named, so that Playwright makes no directory of its own, which
        # it would leave behind when it ends before it has noticed its browser's end. The
        # context that comes with it is not used.
        context = await self._playwright.chromium.launch_persistent_context(
            self._launch.profile,
            executable_path=self._launch.wrapper(),
            args=_SWITCHES,
            ignore_default_args=True,
            chromium_sandbox=True,
            artifacts_dir=self._launch.workplace.directory / "artifacts",
            handle_sigint=False,
            handle_sigterm=False,
            handle_sighup=False,
            timeout=0,
        )
        self._browser = context.browser
        if self._browser is None:
            raise BrowserGone
        session = await self._browser.new_browser_cdp_session()
        self.version = (await session.send("Browser.getVersion"))["product"]
        self.pid = next(self._roots(), 0)
        if not self.pid:
            raise BrowserGone
        self.driver_pid = state_and_parent(self.pid)[1]
        session.on("Target.targetCrashed", self._crashed)
        await session.send("Target.setDiscoverTargets", TOLD_OF_PAGES)
        self._watch_driver()

    async def open(self, *, javascript: bool, answer: Answer) -> PlaywrightPage:
        if self._browser is None:
            raise BrowserGone
        try:
            context = await self._browser.new_context(
                java_script_enabled=javascript,
                service_workers="block",
                accept_downloads=False,
                no_viewport=True,  # the page is told its size below
            )
            page = PlaywrightPage(context, self, answer, output_bytes=self._output_bytes)
            try:
                await page.set_up(javascript=javascript)
            except BaseException:
                with suppress(Error):
                    await context.close()
                raise
        except (Error, PageCrashed) as error:
            raise BrowserGone from error
        return page

    async def kill(self) -> None:
        """End the whole tree and Playwright's process, and remove the profile.

        Works twice; whoever is cancelled here leaves it being done.
        """
        if self._ended is None:
            self._ended = asyncio.ensure_future(self._end())
        await asyncio.shield(self._ended)

    async def _end(self) -> None:
        self._kill_browser()
        if self.driver_pid and is_stopped(self.driver_pid):
            _kill({self.driver_pid})
        stopping = asyncio.ensure_future(self._playwright.stop())
        stopping.add_done_callback(looked_at)
        await asyncio.wait({stopping}, timeout=_STOPS_WITHIN_S)
        if not stopping.done() and self.driver_pid:
            _kill({self.driver_pid})
            await asyncio.wait({stopping})
        self._kill_browser()  # one that was being started meanwhile
        self._watch_driver_no_more()
        await asyncio.to_thread(self._launch.remove)

    def _watch_driver(self) -> None:
        """Have pages told when Playwright's process ends: it tells nobody of its own end."""
        try:
            self._driver = os.pidfd_open(self.driver_pid)
        except OSError as error:
            raise BrowserGone from error
        asyncio.get_running_loop().add_reader(self._driver, self._driver_ended)

    def _watch_driver_no_more(self) -> None:
        if self._driver:
            asyncio.get_running_loop().remove_reader(self._driver)
            os.close(self._driver)
            self._driver = 0

    def _driver_ended(self) -> None:
        self._driver_has_ended = True
        self._watch_driver_no_more()
        for page in tuple(self.pages):
            page.lose()

    def _crashed(self, event: dict[str, Any]) -> None:
        for page in tuple(self.pages):
            if page.target == event["targetId"]:
                page.ended(event["status"])

    def _kill_browser(self) -> None:
        # The browser is the first of a group of its own, and all of its tree are in it.
        for pid in self._roots():
            with suppress(ProcessLookupError, PermissionError):
                os.killpg(pid, signal.SIGKILL)

    def _roots(self) -> Iterator[int]:
        """Find the processes that have this profile and are nobody's helpers: one, or none."""
        for pid, command in find_processes(f"--user-data-dir={self._launch.profile}"):
            if b"--type=" not in command:
                yield pid


class PlaywrightPage(ShownPage):
    """A page in a context of its own."""

    def __init__(
        self,
        context: BrowserContext,
        browser: PlaywrightBrowser,
        answer: Answer,
        *,
        output_bytes: int,
    ) -> None:
        super().__init__(answer, output_bytes=output_bytes)
        self._browser = browser
        self._context = context
        self._page: Page | None = None
        self._session: CDPSession | None = None
        # Playwright leaves what was asked of a page that has crashed without an answer.
        self._gone: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    async def set_up(self, *, javascript: bool) -> None:
        """Make the page ready for its document."""
        self._context.on("page", self._close_popup)
        await self._context.route("**/*", self._asked)
        self._page = page = await self._context.new_page()
        page.on("websocket", lambda socket: self._count_refused(socket.url))
        page.on("crash", self._end)
        page.on("close", self._end)
        self._session = session = await self._context.new_cdp_session(page)
        for event, listener in self._listeners.items():
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
            commands += self._watch_connections(self._ask)
        tree = (await asyncio.gather(*commands))[0]
        self._frame = tree["frameTree"]["frame"]["id"]
        self._browser.pages.add(self)
        made = await self._ask("Page.createIsolatedWorld", frameId=self._frame, worldName="ulak")
        self._world = made["executionContextId"]

    @property
    def target(self) -> str:
        """The name of its target, which is that of its frame."""
        return self._frame

    def lose(self) -> None:
        """Take note that nobody is there any more who would answer."""
        self._fail(BrowserGone())
        self.is_gone = True
        if not self._gone.done():
            self._gone.set_result(None)

    async def load(self, document: Document) -> Loaded:
        try:
            return await super().load(document)
        except PageCrashed:
            # A browser that was killed lets go of its pages before it has ended.
            for _ in range(_LOOKS):
                self._raise_if_lost(None)
                await asyncio.sleep(_GLANCE_S)
            raise

    async def close(self) -> None:
        self._stop()
        try:
            await self._context.close()
        except Error as error:
            self._raise_if_lost(error)

    async def kill(self) -> None:
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
        if browser is None or not browser.is_connected() or self._browser.is_over:
            raise BrowserGone from error

    def _raise_if_gone(self, error: Error | None) -> None:
        self._raise_if_lost(error)
        if self._gone.done() or self._page is None or self._page.is_closed():
            raise PageCrashed from error

    def _end(self, _: Page) -> None:
        self._fail(PageCrashed())
        self.is_gone = True
        if not self._gone.done():
            self._gone.set_result(None)

    def _asked(self, route: Route, request: Request) -> None:
        self._begin(self._reply(route, request))

    async def _reply(self, route: Route, request: Request) -> None:
        # The page may have gone while its request was looked at.
        with suppress(Error):
            if is_in_memory(request.url):
                await route.continue_()
                return
            fetched: Fetched | None = None
            try:
                if self._opens_popup(request) and self._is_counted(request.url):
                    return
                fetched = await self._fetch(request.url, request.method, request.headers)
            finally:
                # A request that is left alone would hold up its page.
                await self._settle(route, request, fetched)

    async def _settle(self, route: Route, request: Request, fetched: Fetched | None) -> None:
        if self._leaves(request):
            self._has_loaded.set()
            # A document stays where it is: a page of the browser's own, which tells of the
            # refusal, would be printed otherwise.
            await route.abort("aborted")
        elif fetched is None:
            await route.abort("blockedbyclient")
        else:
            await route.fulfill(
                status=fetched.status, headers=dict(passed_headers(fetched)), body=fetched.body
            )

    def _opens_popup(self, request: Request) -> bool:
        if not request.is_navigation_request():
            return False
        try:
            return request.frame.parent_frame is None and request.frame.page != self._page
        except Error:
            return True  # A window that is not there yet.

    def _leaves(self, request: Request) -> bool:
        if not request.is_navigation_request() or self._page is None:
            return False
        try:
            return request.frame == self._page.main_frame
        except Error:
            return True  # A window that is not there yet; it is closed when it is.

    def _close_popup(self, page: Page) -> None:
        async def close() -> None:
            with suppress(Error):
                await page.close()

        if self._page is not None and page != self._page:
            self._begin(close())


def _look_at_its_end(manager: Any) -> None:
    """Have the end of Playwright's process go without complaint: it is watched by other means."""
    # Playwright keeps it as the failure of a future that nobody waits for once it has started.
    transport = getattr(getattr(manager, "_client", None), "_transport", None)
    if isinstance(failure := getattr(transport, "on_error_future", None), asyncio.Future):
        failure.add_done_callback(looked_at)


def _find_drivers() -> Iterator[int]:
    """Find the processes of Playwright that this one has started."""
    ours = os.getpid()
    return (pid for pid, _ in find_processes(_DRIVER) if state_and_parent(pid)[1] == ours)


def _kill(pids: Iterable[int]) -> None:
    for pid in pids:
        with suppress(ProcessLookupError, PermissionError):
            os.kill(pid, signal.SIGKILL)
