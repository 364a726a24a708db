"""The driver that speaks the DevTools protocol itself, over a pipe.

One browser context per page, and everything that a page brings forth - frames, workers, popups -
is stopped at birth until its requests are intercepted too, or is closed.
"""

from __future__ import annotations

import asyncio
from typing import Final

from ulak.services.pdf.browser.devpage import DevPage
from ulak.services.pdf.browser.driver import Answer, BrowserGone
from ulak.services.pdf.browser.launch import Launch
from ulak.services.pdf.browser.pipe import CommandFailed, Params, Pipe, start_debugged
from ulak.services.pdf.browser.process import Process
from ulak.services.pdf.document import Limits

_ATTACH: Final = {"autoAttach": True, "waitForDebuggerOnStart": True, "flatten": True}
_WINDOW: Final = {"width": 64, "height": 36}
"""As small as can be: what is shown in it nobody sees, and painting it costs a tenth of a render.
The page is told another size."""


class DevTools:
    """Starts Chromium and debugs it over a pipe: no port is opened, nothing stands in between.

    Args:
        output_bytes: Printing is stopped when it gives more.
    """

    def __init__(self, *, output_bytes: int = Limits().output_bytes) -> None:
        self._output_bytes = output_bytes

    async def start(self, launch: Launch) -> DevBrowser:
        """Start a browser and wait until it answers; one that is not waited for is killed.

        Raises:
            BrowserGone: it ended at once.
            OSError: it cannot be executed.
        """
        process, pipe = start_debugged(launch)
        browser = DevBrowser(launch, process, pipe, output_bytes=self._output_bytes)
        try:
            await browser.greet()
        except CommandFailed as error:
            await browser.kill()
            raise BrowserGone from error
        except BaseException:
            await browser.kill()
            raise
        return browser


class DevBrowser:
    """A running Chromium."""

    def __init__(self, launch: Launch, process: Process, pipe: Pipe, *, output_bytes: int) -> None:
        self._launch = launch
        self._process = process
        self._output_bytes = output_bytes
        self._pipe = pipe
        self._version = ""
        self._ending: asyncio.Task[None] | None = None
        self._awaited: dict[str, str | None] = {}
        """By context that is being opened: the session of its page, once there is one."""
        self._pages: dict[str, DevPage] = {}
        """By session."""
        self._pipe.listen(
            "",
            {
                "Target.attachedToTarget": self._attached,
                "Target.detachedFromTarget": self._detached,
            },
        )

    @property
    def version(self) -> str:
        """Name and version."""
        return self._version

    @property
    def pid(self) -> int:
        """The number of the browser's process."""
        return self._process.pid

    async def greet(self) -> None:
        """Wait until it answers, and have everything that it opens stopped at birth.

        Raises:
            BrowserGone: it has ended.
        """
        version = self._pipe.send("Browser.getVersion")
        attach = self._pipe.send("Target.setAutoAttach", **_ATTACH)
        self._version = (await version)["product"]
        await attach

    async def open(self, *, javascript: bool, answer: Answer) -> DevPage:
        """Open a page in a context of its own; all its requests are put to `answer`.

        Raises:
            BrowserGone: the browser has ended.
        """
        send = self._pipe.send
        try:
            made = await send("Target.createBrowserContext", disposeOnDetach=True)
            context: str = made["browserContextId"]
            self._awaited[context] = None
            try:
                send("Browser.setDownloadBehavior", behavior="deny", browserContextId=context)
                target: str = (
                    await send(
                        "Target.createTarget",
                        url="about:blank",
                        browserContextId=context,
                        **_WINDOW,
                    )
                )["targetId"]
                # The browser tells of the new target before it answers.
                session = self._awaited[context]
                if session is None:
                    raise BrowserGone
                page = DevPage(
                    self._pipe,
                    context=context,
                    target=target,
                    session=session,
                    answer=answer,
                    output_bytes=self._output_bytes,
                )
                self._pages[session] = page
                await page.set_up(javascript=javascript)
            except BaseException:
                send("Target.disposeBrowserContext", browserContextId=context)
                raise
            finally:
                self._awaited.pop(context, None)
        except CommandFailed as error:
            raise BrowserGone from error
        return page

    async def kill(self) -> None:
        """End the whole tree and remove its profile; may be called twice."""
        if self._ending is None:
            self._ending = asyncio.ensure_future(self._end())
        await asyncio.shield(self._ending)

    async def _end(self) -> None:
        try:
            await self._process.kill()
        finally:
            self._pipe.cut()
            await asyncio.to_thread(self._launch.remove)

    def _attached(self, event: Params) -> None:
        info = event["targetInfo"]
        context = info.get("browserContextId", "")
        if info["type"] == "page" and self._awaited.get(context, "") is None:
            self._awaited[context] = event["sessionId"]
            return
        opener = next((page for page in self._pages.values() if page.context == context), None)
        if opener is not None and info["type"] == "page":
            opener.close_popup(event["sessionId"], info["targetId"])
        else:
            # A worker that pages share, the window that a browser starts with: it has waited for
            # us since its birth, and done nothing.
            self._pipe.send("Target.closeTarget", targetId=info["targetId"])

    def _detached(self, event: Params) -> None:
        page = self._pages.pop(event["sessionId"], None)
        if page is not None:
            page.gone()
