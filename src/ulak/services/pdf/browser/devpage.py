"""One page over the DevTools protocol: requests are answered, a document is shown and printed."""

from __future__ import annotations

import asyncio
from base64 import b64encode
from functools import partial
from typing import Any, Final

from ulak.services.pdf.browser.agreement import DRAWN_SMALL, is_in_memory, passed_headers
from ulak.services.pdf.browser.driver import Answer, BrowserGone, PageCrashed, PageFailed
from ulak.services.pdf.browser.loading import Loading
from ulak.services.pdf.browser.pipe import GONE, CommandFailed, Params, Pipe
from ulak.services.pdf.browser.showing import Requests, ShownPage
from ulak.services.pdf.document import Fetched

_ATTACH: Final = {"autoAttach": True, "waitForDebuggerOnStart": True, "flatten": True}
_EVERYTHING: Final = [{"urlPattern": "*"}]
_ADOPTED: Final = frozenset({"iframe", "worker"})


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
        super().__init__(Requests(answer), Loading(), output_bytes=output_bytes)
        self._pipe = pipe
        self.context = context
        self._frame = target  # a page's target and its frame have one name
        self._session = session
        self._waiting: set[asyncio.Future[Params]] = set()
        self._sessions: set[str] = set()
        self.is_gone = False

    async def set_up(self, *, javascript: bool) -> None:
        """Make the page ready for its document; until then it does nothing.

        Raises:
            BrowserGone: the browser has ended.
            PageCrashed: its process has ended.
        """
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
        else:
            commands.append(send("Emulation.setScriptExecutionDisabled", value=True))
        commands += self._intercept(self._session)
        answers = await asyncio.gather(*commands)
        self._world = answers[5]["executionContextId"]

    async def close(self) -> None:
        """Have the context go, with everything in it.

        Raises:
            BrowserGone: the whole browser has ended.
        """
        self._requests.stop()
        try:
            await self._pipe.send("Target.disposeBrowserContext", browserContextId=self.context)
        except CommandFailed:
            return  # It is gone already.

    async def kill(self) -> None:
        """Have the page's process end, and the context with it.

        Raises:
            BrowserGone: the whole browser has ended.
        """
        self._pipe.send("Page.crash", self._session)
        await self.close()

    def close_popup(self, session: str, target: str) -> None:
        """Close what the page has opened besides itself; its requests are refused till then."""
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
        self._loading.fail(PageCrashed())
        self._requests.stop()
        for future in tuple(self._waiting):
            if not future.done():
                future.set_exception(PageCrashed())

    def _hear(self, session: str) -> None:
        self._sessions.add(session)
        self._pipe.listen(
            session,
            {
                **self._loading.listeners,
                GONE: self._cut,
                "Fetch.requestPaused": partial(self._asked, session),
                "Inspector.targetCrashed": self._crashed,
                "Page.javascriptDialogOpening": partial(self._dismiss, session),
                "Log.entryAdded": self._logged,
                "Network.webSocketCreated": lambda event: self._requests.refused(event["url"]),
                "Runtime.exceptionThrown": self._threw,
                "Target.attachedToTarget": self._attached,
                "Target.detachedFromTarget": self._detached,
            },
        )

    def _cut(self, event: Params) -> None:
        self._loading.fail(BrowserGone())
        self._requests.stop()

    def _intercept(self, session: str) -> list[asyncio.Future[Params]]:
        # In this order: when it runs, nothing that it does is missed.
        send = self._pipe.send
        return [
            self._kept(send("Fetch.enable", session, patterns=_EVERYTHING)),
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
        self._intercept(session)

    def _detached(self, event: Params) -> None:
        self._sessions.discard(event["sessionId"])
        self._pipe.forget(event["sessionId"])

    def _asked(self, session: str, event: Params) -> None:
        self._requests.begin(self._reply(session, event))

    async def _reply(self, session: str, event: Params) -> None:
        request = event["request"]
        if is_in_memory(request["url"]):
            self._pipe.send("Fetch.continueRequest", session, requestId=event["requestId"])
            return
        fetched: Fetched | None = None
        try:
            fetched = await self._requests.ask(
                request["url"], request["method"], dict(request.get("headers", {}))
            )
        finally:
            # A request that is left alone would hold up its page.
            self._settle(session, event, fetched)

    def _settle(self, session: str, event: Params, fetched: Fetched | None) -> None:
        leaves = event.get("resourceType") == "Document" and event.get("frameId") == self._frame
        if leaves:
            self._loading.leave()
        if fetched is None or leaves:
            # A document stays where it is: a page of the browser's own, which tells of the
            # refusal, would be printed otherwise.
            how = {"errorReason": "Aborted" if leaves else "BlockedByClient"}
            self._pipe.send("Fetch.failRequest", session, requestId=event["requestId"], **how)
        else:
            what = _as_response(fetched)
            self._pipe.send("Fetch.fulfillRequest", session, requestId=event["requestId"], **what)

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


def _as_response(fetched: Fetched) -> Params:
    headers = [{"name": name, "value": value} for name, value in passed_headers(fetched)]
    return {
        "responseCode": fetched.status,
        "responseHeaders": headers,
        "body": b64encode(fetched.body).decode("ascii"),
    }
