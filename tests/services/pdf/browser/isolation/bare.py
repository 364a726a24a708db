"""A browser with nothing in between: the positive control, which intercepts no request.

It speaks just enough of the DevTools protocol to show a page, print it and close it, and shares
nothing with the drivers under test but the `Launch` that starts them.
"""

from __future__ import annotations

import asyncio
import base64
import contextlib
import fcntl
import itertools
import json
import os
import signal
from collections.abc import AsyncIterator
from typing import Any

from ulak.services.pdf.browser.launch import Launch


class BareBrowser:
    """A running browser and the pipe to it."""

    def __init__(self, launch: Launch) -> None:
        theirs_in, self._out = os.pipe()
        self._in, theirs_out = os.pipe()
        # The browser reads descriptor 3 and writes 4: out of the way of both, then in their place.
        high_in, high_out = (fcntl.fcntl(end, fcntl.F_DUPFD, 10) for end in (theirs_in, theirs_out))
        argv = launch.argv("--remote-debugging-pipe", "about:blank")
        self._pid = os.posix_spawnp(
            argv[0],
            argv,
            dict(launch.environment),
            file_actions=[
                *((os.POSIX_SPAWN_OPEN, end, os.devnull, os.O_RDWR, 0) for end in (0, 1, 2)),
                (os.POSIX_SPAWN_DUP2, high_in, 3),
                (os.POSIX_SPAWN_DUP2, high_out, 4),
            ],
            setsid=True,
        )
        for end in (theirs_in, theirs_out, high_in, high_out):
            os.close(end)
        self._numbers = itertools.count(1)
        self._waiting: dict[int, asyncio.Future[dict[str, Any]]] = {}
        self._loaded: dict[str, asyncio.Event] = {}
        self._text = bytearray()
        os.set_blocking(self._in, False)
        asyncio.get_running_loop().add_reader(self._in, self._read)

    async def call(self, method: str, session: str | None = None, **more: object) -> dict[str, Any]:
        """Ask the browser; an error of its own is a RuntimeError."""
        number = next(self._numbers)
        future = asyncio.get_running_loop().create_future()
        self._waiting[number] = future
        message: dict[str, object] = {"id": number, "method": method, "params": more}
        if session:
            message["sessionId"] = session
        data = memoryview(json.dumps(message).encode() + b"\0")
        while data:
            data = data[os.write(self._out, data) :]
        answer: dict[str, Any] = await future
        return answer

    @contextlib.asynccontextmanager
    async def page(self) -> AsyncIterator[BarePage]:
        """Open a page in a context of its own, which goes with all that was opened in it."""
        context = (await self.call("Target.createBrowserContext"))["browserContextId"]
        made = await self.call("Target.createTarget", url="about:blank", browserContextId=context)
        target = made["targetId"]
        attached = await self.call("Target.attachToTarget", targetId=target, flatten=True)
        session = attached["sessionId"]
        self._loaded[session] = asyncio.Event()
        await self.call("Page.enable", session)
        try:
            yield BarePage(self, target, session, self._loaded[session])
        finally:
            await self.call("Target.disposeBrowserContext", browserContextId=context)

    def kill(self) -> None:
        """End the whole tree."""
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self._pid, signal.SIGKILL)
        os.waitpid(self._pid, 0)
        asyncio.get_running_loop().remove_reader(self._in)
        os.close(self._in)
        os.close(self._out)

    def _read(self) -> None:
        self._text += os.read(self._in, 1 << 20)
        while (end := self._text.find(b"\0")) >= 0:
            message = json.loads(bytes(self._text[:end]))
            del self._text[: end + 1]
            if message.get("method") == "Page.loadEventFired":
                self._loaded[message["sessionId"]].set()
            future = self._waiting.pop(message.get("id", 0), None)
            if future is None or future.done():
                continue
            if "error" in message:
                future.set_exception(RuntimeError(message["error"]["message"]))
            else:
                future.set_result(message["result"])


class BarePage:
    """A page of the control."""

    def __init__(
        self, browser: BareBrowser, target: str, session: str, loaded: asyncio.Event
    ) -> None:
        self._browser, self._target = browser, target
        self._session, self._loaded = session, loaded

    async def show(self, html: str) -> None:
        """Show a text, as the drivers do."""
        tree = await self._browser.call("Page.getFrameTree", self._session)
        frame = tree["frameTree"]["frame"]["id"]
        self._loaded.clear()
        await self._browser.call("Page.setDocumentContent", self._session, frameId=frame, html=html)
        await self._loaded.wait()

    async def visit(self, url: str) -> None:
        """Show what an address has."""
        self._loaded.clear()
        await self._browser.call("Page.navigate", self._session, url=url)
        await self._loaded.wait()

    async def print(self) -> bytes:
        """Print what is shown."""
        printed = await self._browser.call("Page.printToPDF", self._session)
        return base64.b64decode(printed["data"])

    async def close(self) -> None:
        """Close it as a person would, so that the page has its last word."""
        await self._browser.call("Target.closeTarget", targetId=self._target)
