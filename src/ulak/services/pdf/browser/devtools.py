"""The driver that speaks the DevTools protocol itself, over a pipe.

One browser context per page, and everything that a page brings forth - frames, workers, popups -
is stopped at birth until its requests are intercepted too, or is closed.
"""

from __future__ import annotations

import asyncio
from base64 import b64encode
from functools import partial
from typing import Any, Final

from ulak.services.pdf.browser.driver import (
    DRAWN_SMALL,
    TOLD_OF_PAGES,
    Answer,
    BrowserGone,
    PageCrashed,
    PageFailed,
    ShownPage,
    is_in_memory,
    passed_headers,
)
from ulak.services.pdf.browser.launch import Launch
from ulak.services.pdf.browser.pipe import GONE, CommandFailed, Params, Pipe, start_debugged
from ulak.services.pdf.browser.process import Process
from ulak.services.pdf.document import Fetched, Limits

_ATTACH: Final = {"autoAttach": True, "waitForDebuggerOnStart": True, "flatten": True}
_WINDOW: Final = {"width": 64, "height": 36}
"""As small as can be: what is shown in it nobody sees, and painting it costs a tenth of a render.
The page is told another size."""
_ADOPTED: Final = frozenset({"iframe", "worker"})


class DevTools:
    """Starts Chromium and debugs it over a pipe: no port is opened, nothing stands in between."""

    def __init__(self, *, output_bytes: int = Limits().output_bytes) -> None:
        self._output_bytes = output_bytes

    async def start(self, launch: Launch) -> DevBrowser:
        process, pipe = start_debugged(launch)
        browser = DevBrowser(launch, process, pipe, output_bytes=self._output_bytes)
        try:
            await browser.greet()
        except BaseException as error:
            await browser.kill()
            if isinstance(error, CommandFailed):
                raise BrowserGone from error
            raise
        return browser


class DevBrowser:
    """A running Chromium."""

    def __init__(self, launch: Launch, process: Process, pipe: Pipe, *, output_bytes: int) -> None:
        self._launch = launch
        self._process = process
        self._output_bytes = output_bytes
        self._pipe = pipe
        self.pid = process.pid
        self.driver_pid = 0
        self.profile = launch.profile
        self.version = ""
        self._ending: asyncio.Task[None] | None = None
        self._awaited: dict[str, str | None] = {}
        """By context that is being opened: the session of its page, once there is one."""
        self._pages: dict[str, DevPage] = {}
        listeners = {
            "Target.attachedToTarget": self._attached,
            "Target.detachedFromTarget": self._detached,
            "Target.targetCrashed": self._crashed,
        }
        self._pipe.listen("", listeners)

    async def greet(self) -> None:
        """Wait until it answers, and have everything that it opens stopped at birth."""
        version = self._pipe.send("Browser.getVersion")
        attach = self._pipe.send("Target.setAutoAttach", **_ATTACH)
        self._pipe.send("Target.setDiscoverTargets", **TOLD_OF_PAGES)
        self.version = (await version)["product"]
        await attach

    async def open(self, *, javascript: bool, answer: Answer) -> DevPage:
        send = self._pipe.send
        try:
            made = await send("Target.createBrowserContext", disposeOnDetach=True)
            context: str = made["browserContextId"]
            in_context = {"browserContextId": context}
            self._awaited[context] = None
            try:
                send("Browser.setDownloadBehavior", behavior="deny", **in_context)
                made = await send("Target.createTarget", url="about:blank", **in_context, **_WINDOW)
                # The browser tells of the new target before it answers.
                session = self._awaited[context]
                if session is None:
                    raise BrowserGone
                page = DevPage(
                    self._pipe,
                    context=context,
                    target=made["targetId"],
                    session=session,
                    answer=answer,
                    output_bytes=self._output_bytes,
                )
                self._pages[session] = page
                await page.set_up(javascript=javascript)
            except BaseException:
                send("Target.disposeBrowserContext", **in_context)
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

    def _crashed(self, event: Params) -> None:
        for page in self._pages.values():
            if page.target == event["targetId"]:
                page.ended(event["status"])


class DevPage(ShownPage):
    """A page in a context of its own."""

    def __init__(
        self,
        pipe: Pipe,
        *,
        context: str,
        target: str,
        session: str,
        answer: Answer,
        output_bytes: int,
    ) -> None:
        super().__init__(answer, output_bytes=output_bytes)
        self._pipe = pipe
        self.context = context
        self.target = target
        self._frame = target  # a page's target and its frame have one name
        self._session = session
        self._waiting: set[asyncio.Future[Params]] = set()
        self._sessions: set[str] = set()
        self._popups: set[str] = set()
        """The windows that it has opened; a window's target and its frame have one name."""

    async def set_up(self, *, javascript: bool) -> None:
        """Make the page ready for its document; until then it does nothing."""
        self._hear(self._session)
        send = self._send
        commands = [
            send("Page.enable"),
            send("Inspector.enable"),
            send("Log.enable"),
            send("Emulation.setEmulatedMedia", media="print"),
            send("Emulation.setDeviceMetricsOverride", **DRAWN_SMALL),
            send("Page.createIsolatedWorld", frameId=self._frame, worldName="ulak"),
        ]
        if javascript:
            # Errors of scripts, and connections that interception does not see.
            commands += [send("Runtime.enable"), send("Network.enable", maxTotalBufferSize=0)]
            commands += self._watch_connections(send)
        else:
            commands.append(send("Emulation.setScriptExecutionDisabled", value=True))
        commands += self._intercept(self._session)
        answers = await asyncio.gather(*commands)
        self._world = answers[5]["executionContextId"]

    async def close(self) -> None:
        self._stop()
        try:
            await self._pipe.send("Target.disposeBrowserContext", browserContextId=self.context)
        except CommandFailed:
            return  # It is gone already.

    async def kill(self) -> None:
        self._pipe.send("Page.crash", self._session)
        await self.close()

    def close_popup(self, session: str, target: str) -> None:
        """Close what the page has opened besides itself; its requests are refused till then."""
        self._popups.add(target)
        self._hear(session)
        self._intercept(session)
        # Only now: a popup of the page's own process holds up the page while it waits.
        self._pipe.send("Target.closeTarget", targetId=target)

    def gone(self) -> None:
        """Take note that the page is gone: whoever waits for it is told, and nothing is kept."""
        self._crashed({})
        for session in self._sessions:
            self._pipe.forget(session)

    def _crashed(self, event: Params) -> None:
        self.is_gone = True
        self._fail(PageCrashed())
        for future in tuple(self._waiting):
            if not future.done():
                future.set_exception(PageCrashed())

    def _hear(self, session: str) -> None:
        self._sessions.add(session)
        self._pipe.listen(
            session,
            {
                **self._listeners,
                GONE: lambda event: self._fail(BrowserGone()),
                "Fetch.requestPaused": partial(self._asked, session),
                "Inspector.targetCrashed": self._crashed,
                "Page.javascriptDialogOpening": partial(self._dismiss, session),
                "Network.webSocketCreated": lambda event: self._count_refused(event["url"]),
                "Target.attachedToTarget": self._attached,
                "Target.detachedFromTarget": self._detached,
            },
        )

    def _intercept(self, session: str) -> list[asyncio.Future[Params]]:
        # In this order: when it runs, nothing that it does is missed.
        send = self._pipe.send
        return [
            self._kept(send("Fetch.enable", session, patterns=[{"urlPattern": "*"}])),
            self._kept(send("Target.setAutoAttach", session, **_ATTACH)),
            self._kept(send("Runtime.runIfWaitingForDebugger", session)),
        ]

    def _attached(self, event: Params) -> None:
        session, info = event["sessionId"], event["targetInfo"]
        if info["type"] not in _ADOPTED:
            self._pipe.send("Target.closeTarget", targetId=info["targetId"])
            return
        self._hear(session)
        self._pipe.send("Network.enable", session, maxTotalBufferSize=0)
        if info["type"] == "iframe":
            self._watch_connections(lambda method, **said: self._pipe.send(method, session, **said))
        self._intercept(session)

    def _detached(self, event: Params) -> None:
        self._sessions.discard(event["sessionId"])
        self._pipe.forget(event["sessionId"])

    def _asked(self, session: str, event: Params) -> None:
        self._begin(self._reply(session, event))

    async def _reply(self, session: str, event: Params) -> None:
        request = event["request"]
        if is_in_memory(request["url"]):
            self._pipe.send("Fetch.continueRequest", session, requestId=event["requestId"])
            return
        fetched: Fetched | None = None
        try:
            if self._opens_popup(event) and self._is_counted(request["url"]):
                return
            fetched = await self._fetch(
                request["url"], request["method"], dict(request.get("headers", {}))
            )
        finally:
            # A request that is left alone would hold up its page.
            self._settle(session, event, fetched)

    def _opens_popup(self, event: Params) -> bool:
        return event.get("resourceType") == "Document" and event.get("frameId") in self._popups

    def _settle(self, session: str, event: Params, fetched: Fetched | None) -> None:
        leaves = event.get("resourceType") == "Document" and event.get("frameId") == self._frame
        if leaves:
            self._has_loaded.set()
        if fetched is None or leaves:
            # A document stays where it is: a page of the browser's own, which tells of the
            # refusal, would be printed otherwise.
            method = "Fetch.failRequest"
            answer: Params = {"errorReason": "Aborted" if leaves else "BlockedByClient"}
        else:
            method = "Fetch.fulfillRequest"
            headers = [{"name": name, "value": value} for name, value in passed_headers(fetched)]
            answer = {
                "responseCode": fetched.status,
                "responseHeaders": headers,
                "body": b64encode(fetched.body).decode("ascii"),
            }
        self._pipe.send(method, session, requestId=event["requestId"], **answer)

    def _dismiss(self, session: str, event: Params) -> None:
        self._pipe.send("Page.handleJavaScriptDialog", session, accept=False)

    async def _ask(self, method: str, /, **params: Any) -> Params:
        try:
            return await self._send(method, **params)
        except CommandFailed as error:
            raise PageFailed from error

    def _send(self, method: str, /, **params: Any) -> asyncio.Future[Params]:
        return self._kept(self._pipe.send(method, self._session, **params))

    def _kept(self, future: asyncio.Future[Params]) -> asyncio.Future[Params]:
        # A browser does not answer what it was asked of a page that has gone since.
        if self.is_gone and not future.done():
            future.set_exception(PageCrashed())
        elif not future.done():
            self._waiting.add(future)
            future.add_done_callback(self._waiting.discard)
        return future
