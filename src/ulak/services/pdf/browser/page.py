"""What a page does whichever driver it has: its document is shown and printed, its requests are put
to who answers them.

A driver brings the line to its page; what is sent, and in which order, is said here once, so that
the same document gives the same bytes.
"""

from __future__ import annotations

import asyncio
import re
from base64 import b64decode
from collections.abc import Callable, Coroutine
from dataclasses import replace
from typing import Any, Final

from ulak.services.pdf.browser.driver import Answer, Loaded, OutputTooLarge, PageFailed, Unfit
from ulak.services.pdf.browser.page_scripts import (
    LAY_OUT,
    MARK,
    complete,
    hold,
    make_one_page,
    mark_texts,
    wait,
)
from ulak.services.pdf.document import Document, Fetched

_CHUNK: Final = 1 << 20
_AT_ONCE: Final = 8
"""Requests of one page that are answered at the same time."""
_MOST_ERRORS: Final = 20
"""Errors of scripts that are told of one page."""
_EMPTY: Final = "<i></i>"
"""A header without anything: where none is said the browser prints one of its own."""
_NO_SUCH_PAGES: Final = "Page range exceeds page count"
_LOCAL: Final = "Not allowed to load local resource: "
_CLASS: Final = re.compile(r"[A-Za-z_$][\w$]{0,63}", re.ASCII)
# What the worker took off, or what speaks of its connection and not of the content.
_NOT_PASSED: Final = frozenset(
    {"content-encoding", "content-length", "transfer-encoding", "connection", "set-cookie"}
)
_MADE: Final = f'<i style="all: unset; font-size: 99%">{MARK}</i>'
# Not behind a style sheet's tag: it would be part of its first rule.
_TEXT_OF_A_HEADER: Final = re.compile(r"(<(?!style\b|script\b)[^<>]*>)(?=\s*[^<\s])", re.IGNORECASE)


class ShownPage:
    """A page in a context of its own; `driver.Page` says what its calls raise.

    The document itself does not say when it has loaded. A text that is handed over whole is called
    complete as soon as it is read, whatever frames, style sheets or scripts it still waits for; so
    the browser's own word is taken. Two kinds of documents never get it: those whose reading a
    script has broken off, and those that tried to leave, for which the browser gives up what was
    under way.

    Args:
        answer: What its requests are put to, some at a time.
        output_bytes: Printing is stopped when it gives more.
    """

    _frame = ""
    """The frame of the page that is filled."""
    _world = 0
    """Where questions are evaluated, out of reach of the page's scripts."""

    def __init__(self, answer: Answer, *, output_bytes: int) -> None:
        self._answer = answer
        self._output_bytes = output_bytes
        self._errors: list[str] = []
        self._was_read = False
        self._has_loaded = asyncio.Event()
        """It has, or it tried to go elsewhere, or the page is gone."""
        self._failure: Exception | None = None
        self._tasks: set[asyncio.Task[None]] = set()
        self._turns = asyncio.Semaphore(_AT_ONCE)
        self._listeners: dict[str, Callable[[dict[str, Any]], None]] = {
            "Page.documentOpened": self._opened,
            "Page.domContentEventFired": self._read,
            "Page.loadEventFired": self._loaded,
            "Log.entryAdded": self._logged,
            "Runtime.exceptionThrown": self._threw,
        }
        """By event of the page's session, what hears of it."""

    async def load(self, document: Document) -> Loaded:
        """Show a document, and wait until it is complete."""
        send, world = self._ask, self._world
        await asyncio.gather(
            send("Page.setDocumentContent", frameId=self._frame, html=document.html),
            send("Runtime.evaluate", expression=LAY_OUT, contextId=world),
        )
        # Only now: while a dialog is open the browser would evaluate questions in the middle.
        if self._has_loaded.is_set() or self._was_read or await hold(send, world):
            await self._has_loaded.wait()
            if self._failure is not None:
                raise self._failure
        nodes = await complete(send, world)
        if document.wait_for or document.wait_for_expression or document.single_page:
            await wait(document, send, world)
            # What scripts have brought meanwhile is waited for as well.
            nodes = await complete(send, world)
            if document.single_page:
                await make_one_page(document, send, world)
        return Loaded(dom_nodes=nodes, script_errors=tuple(self._errors))

    async def print(self, document: Document) -> bytes:
        """Print what is shown."""
        try:
            printed = await self._ask("Page.printToPDF", **_print_options(document))
        except PageFailed as error:
            if _NO_SUCH_PAGES in str(error.__cause__):
                what = "it has none of the pages that were asked for"
                raise Unfit("page_range", what) from error
            raise PageFailed from error
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
        """Print what is shown with a mark before each text, which it keeps.

        Of each font the browser keeps the first character that became a box, and writes the text
        of others alone. When that first one is a mark that no font has, it is all others.
        """
        await mark_texts(self._ask, self._world)
        header, footer = _marked(document.header), _marked(document.footer)
        return await self.print(replace(document, header=header, footer=footer))

    async def _ask(self, method: str, /, **params: Any) -> dict[str, Any]:
        """Send a command to the page; the cause of its `PageFailed` is what the browser said."""
        raise NotImplementedError

    async def _fetch(self, url: str, method: str, headers: dict[str, str]) -> Fetched | None:
        """Return what the page is to be handed, None when that is refused."""
        async with self._turns:
            return await self._answer(url, method, headers)

    def _count_refused(self, url: str) -> None:
        """Have a request counted that gets nowhere, whatever is answered: a web socket, a file."""

        async def count() -> None:
            await self._fetch(url, "GET", {})

        if not is_in_memory(url):
            self._begin(count())

    def _begin(self, work: Coroutine[Any, Any, None]) -> None:
        """Have something done for the page, until `_stop`."""
        task = asyncio.ensure_future(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    def _stop(self) -> None:
        for task in tuple(self._tasks):
            task.cancel()

    def _fail(self, error: Exception) -> None:
        """Have whoever waits told that the page is gone, and answer nothing any more."""
        self._failure = error
        self._has_loaded.set()
        self._stop()

    def _opened(self, event: dict[str, Any]) -> None:
        # What was told so far is of what was shown before; frames in it are of no account.
        if "parentId" not in event["frame"] and self._failure is None:
            self._was_read = False
            self._has_loaded.clear()

    def _read(self, event: dict[str, Any]) -> None:
        self._was_read = True

    def _loaded(self, event: dict[str, Any]) -> None:
        self._has_loaded.set()

    def _logged(self, event: dict[str, Any]) -> None:
        # The browser refuses these by itself, before they could be intercepted.
        text = str(event["entry"].get("text", ""))
        if text.startswith(_LOCAL):
            self._count_refused(text.removeprefix(_LOCAL))

    def _threw(self, event: dict[str, Any]) -> None:
        """Note class and line of what was thrown; its message may hold values of the document."""
        if len(self._errors) < _MOST_ERRORS:
            details = event["exceptionDetails"]
            thrown = details.get("exception", {})
            name = str(thrown.get("className") or thrown.get("type") or "")
            known = name if _CLASS.fullmatch(name) else "Error"
            self._errors.append(f"{known} at line {int(details.get('lineNumber', 0)) + 1}")


def is_in_memory(url: str) -> bool:
    """Tell whether a page has this already, so that nobody need be asked for it."""
    # Blobs of the document's own, whose origin is nobody's; those of others have theirs in front.
    return url.startswith(("data:", "blob:null/", "about:"))


def passed_headers(fetched: Fetched) -> list[tuple[str, str]]:
    """Return the headers of an answer that a page gets to see."""
    return [(name, value) for name, value in fetched.headers if name.lower() not in _NOT_PASSED]


def _print_options(document: Document) -> dict[str, Any]:
    """Return the parameters of `Page.printToPDF`, the same for all but what a document asks for."""
    width, height = document.paper
    options: dict[str, Any] = {
        "transferMode": "ReturnAsStream",
        "scale": 1,
        "preferCSSPageSize": True,
        "printBackground": not document.omit_background,
        "paperWidth": width,
        "paperHeight": height,
        **dict.fromkeys(("marginTop", "marginBottom", "marginLeft", "marginRight"), 0),
        "generateTaggedPDF": document.tagged,
        "generateDocumentOutline": document.outline,
    }
    if document.header or document.footer:
        options |= {
            "displayHeaderFooter": True,
            "headerTemplate": document.header or _EMPTY,
            "footerTemplate": document.footer or _EMPTY,
        }
    if document.ranges:
        options["pageRanges"] = document.ranges
    return options


def _marked(html: str) -> str:
    return _TEXT_OF_A_HEADER.sub(rf"\g<1>{_MADE}", _MADE + html) if html else ""
