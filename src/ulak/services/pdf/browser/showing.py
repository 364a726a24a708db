"""What a page does whichever driver it has: its document is shown and printed, its requests are put
to who answers them.

A driver brings the line to its page; what is sent, and in which order, is said here once, so that
the same document gives the same bytes.
"""

from __future__ import annotations

import asyncio
from base64 import b64decode
from collections.abc import Coroutine
from typing import Any, Final

from ulak.services.pdf.browser.agreement import (
    AT_ONCE,
    MOST_ERRORS,
    is_in_memory,
    named,
    print_options,
    refused_file,
    refused_printing,
)
from ulak.services.pdf.browser.asking import asks_something, make_one_page, wait
from ulak.services.pdf.browser.driver import Answer, Loaded, OutputTooLarge, PageFailed
from ulak.services.pdf.browser.loading import Loading, complete
from ulak.services.pdf.browser.marking import mark_texts, with_marks
from ulak.services.pdf.document import Document, Fetched

_CHUNK: Final = 1 << 20


class Requests:
    """Puts the requests of one page to who answers them, some at a time."""

    def __init__(self, answer: Answer) -> None:
        self._answer = answer
        self._tasks: set[asyncio.Task[None]] = set()
        self._turns = asyncio.Semaphore(AT_ONCE)

    async def ask(self, url: str, method: str, headers: dict[str, str]) -> Fetched | None:
        """Return what the page is to be handed, None when that is refused."""
        async with self._turns:
            return await self._answer(url, method, headers)

    def refused(self, url: str) -> None:
        """Have a request counted that gets nowhere, whatever is answered: a web socket, a file."""
        if not is_in_memory(url):
            self.begin(self._count(url))

    def begin(self, work: Coroutine[Any, Any, None]) -> None:
        """Have something done for the page, until `stop`."""
        task = asyncio.ensure_future(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    def stop(self) -> None:
        """Return nothing any more."""
        for task in tuple(self._tasks):
            task.cancel()

    async def _count(self, url: str) -> None:
        await self.ask(url, "GET", {})


class ShownPage:
    """A page in a context of its own; `driver.Page` says what its calls raise.

    Args:
        requests: Of this page.
        loading: Hears what the browser tells of it.
        output_bytes: Printing is stopped when it gives more.
    """

    _frame = ""
    """The frame of the page that is filled."""
    _world = 0
    """Where questions are evaluated, out of reach of the page's scripts."""

    def __init__(self, requests: Requests, loading: Loading, *, output_bytes: int) -> None:
        self._requests = requests
        self._loading = loading
        self._output_bytes = output_bytes
        self._errors: list[str] = []

    async def load(self, document: Document) -> Loaded:
        """Show a document, and wait until it is complete."""
        send, world, loading = self._ask, self._world, self._loading
        await asyncio.gather(
            send("Page.setDocumentContent", frameId=self._frame, html=document.html),
            loading.begin(send, world),
        )
        # Only now: while a dialog is open the browser would evaluate questions in the middle.
        await loading.wait(send, world)
        nodes = await complete(send, world)
        if asks_something(document):
            await wait(document, send, world)
            # What scripts have brought meanwhile is waited for as well.
            nodes = await complete(send, world)
            if document.single_page:
                await make_one_page(document, send, world)
        return Loaded(dom_nodes=nodes, script_errors=tuple(self._errors))

    async def print(self, document: Document) -> bytes:
        """Print what is shown."""
        try:
            printed = await self._ask("Page.printToPDF", **print_options(document))
        except PageFailed as error:
            raise refused_printing(str(error.__cause__)) from error
        chunks: list[bytes] = []
        size = 0
        while True:
            # Two at once: the end is known only by the read after the last byte.
            reads = await asyncio.gather(
                *(self._ask("IO.read", handle=printed["stream"], size=_CHUNK) for _ in range(2))
            )
            for read in reads:
                data: str = read["data"]
                chunks.append(b64decode(data) if read.get("base64Encoded") else data.encode())
                size += len(chunks[-1])
            if size > self._output_bytes:
                raise OutputTooLarge
            if reads[-1]["eof"]:
                return b"".join(chunks)

    async def print_marked(self, document: Document) -> bytes:
        """Print what is shown with a mark before each text, which it keeps."""
        await mark_texts(self._ask, self._world)
        return await self.print(with_marks(document))

    async def _ask(self, method: str, /, **params: Any) -> dict[str, Any]:
        """Send a command to the page; the cause of its `PageFailed` is what the browser said."""
        raise NotImplementedError

    def _logged(self, event: dict[str, Any]) -> None:
        # The browser refuses these by itself, before they could be intercepted.
        if (url := refused_file(event)) is not None:
            self._requests.refused(url)

    def _threw(self, event: dict[str, Any]) -> None:
        if len(self._errors) < MOST_ERRORS:
            self._errors.append(named(event["exceptionDetails"]))
