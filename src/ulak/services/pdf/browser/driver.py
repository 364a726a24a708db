"""The seam between the pool and the drivers: what a browser can do, and what a page does whichever
driver it has.

A driver speaks one protocol and brings the line to its pages; what is sent, and in which order, is
said here once, so that the same document gives the same bytes. Time limits, recycling and the
ladder of kills are the pool's. Every call may be cancelled, and may never return when the page
hangs: whoever calls keeps the time. Every call raises `BrowserGone` when the browser has ended.
"""

from __future__ import annotations

import asyncio
import json
import math
import re
from base64 import b64decode
from collections import Counter
from collections.abc import Awaitable, Callable, Coroutine
from dataclasses import KW_ONLY, dataclass, replace
from pathlib import Path
from typing import Any, Final, Protocol, TypeVar

from ulak.services.pdf.browser import page_scripts as scripts
from ulak.services.pdf.browser.launch import Launch
from ulak.services.pdf.document import Document, Fetched
from ulak.services.pdf.page import LARGEST_PAPER

T = TypeVar("T")

Answer = Callable[[str, str, dict[str, str]], Awaitable[Fetched | None]]
"""Answers a request of a page (URL, method, headers): what to hand to it, None to refuse it."""

DRAWN_SMALL: Final = {
    "width": 1280,
    "height": 720,
    "deviceScaleFactor": 1,
    "mobile": False,
    "scale": 0.05,
}
"""The window (`Emulation.setDeviceMetricsOverride`): a page is laid out at its full size and drawn
small, for nobody sees it on a screen."""
MARK: Final = "\U0010ffff"
"""No character, and never will be: no font has it."""
_MOST_MARKS: Final = 5000
"""In one document: those of its first pages, which are enough where there are so many."""
_POLL_S: Final = 0.02
_TOLD_WITHIN_S: Final = 1.0
"""How long a browser may take to say how the process of a page has ended. It takes milliseconds; a
guess."""
KILLED: Final = "killed"
"""How a process has ended, in the browser's word: by a signal that no page sends itself."""
TOLD_OF_PAGES: Final = {"discover": True, "filter": [{"type": "page"}]}
"""`Target.setDiscoverTargets`: has the browser say how the processes of pages have ended."""
_PER_INCH: Final = 96
_SLACK: Final = 2
"""Pixels: what rounding may cost between what is measured and what is printed."""
_CHUNK: Final = 1 << 20
_AT_ONCE: Final = 8
_MOST_ERRORS: Final = 20
_EMPTY: Final = "<i></i>"
"""A header without anything: where none is said the browser prints one of its own."""
_NO_SUCH_PAGES: Final = "Page range exceeds page count"
_LOCAL: Final = "Not allowed to load local resource: "
_NO_WORKER: Final = "Refused to cross-origin redirects of the top-level worker script"
"""Of a worker that is a module and a blob: what is intercepted on its way is another's to it."""
_CLASS: Final = re.compile(r"[A-Za-z_$][\w$]{0,63}", re.ASCII)
# What the worker took off, or what speaks of its connection and not of the content.
_NOT_PASSED: Final = frozenset(
    {"content-encoding", "content-length", "transfer-encoding", "connection", "set-cookie"}
)
_MADE: Final = f'<i style="all: unset; font-size: 99%">{MARK}</i>'
# Not behind a style sheet's tag: it would be part of its first rule.
_TEXT_OF_A_HEADER: Final = re.compile(r"(<(?!style\b|script\b)[^<>]*>)(?=\s*[^<\s])", re.IGNORECASE)


class BrowserGone(Exception):
    """The browser's process has ended, or its line is cut; nothing more will be answered."""


class PageCrashed(Exception):
    """The process of one page has ended; the browser and its other pages go on."""


class PageFailed(Exception):
    """The page cannot be shown or printed, and its process lives: it went elsewhere, or printing
    was given up."""


class Unfit(Exception):
    """The document is not what was asked of it: it would be the same in any browser.

    Its text is for people, and holds nothing of the document and nothing that was sent.
    """

    def __init__(self, detail: str, what: str) -> None:
        super().__init__(what)
        self.detail = detail


class OutputTooLarge(Exception):
    """Printing gave more bytes than the driver was told to take, and was stopped."""


@dataclass(frozen=True, slots=True)
class Loaded:
    """How a document stands when it is complete: fonts and images included."""

    _: KW_ONLY
    dom_nodes: int
    script_errors: tuple[str, ...]


class ShownPage:
    """A page in an isolated context of its own, which goes with it.

    Every call may raise `PageCrashed`, when its process has ended, and `PageFailed`, when it went
    elsewhere meanwhile or printing was given up.

    What is asked of it is evaluated in a world apart, where scripts of the page have changed
    nothing, and where it is answered though the page's own scripts are off. Only an expression that
    a document waits for is evaluated among those scripts, for it speaks of them.

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
    _world = 0
    """Where questions are evaluated, out of reach of the page's scripts."""
    is_gone = False

    def __init__(self, answer: Answer, *, output_bytes: int) -> None:
        self._answer = answer
        self._output_bytes = output_bytes
        self._errors: list[str] = []
        self._was_read = False
        self._has_loaded = asyncio.Event()
        self._failure: Exception | None = None
        self._status: asyncio.Future[str] = asyncio.get_running_loop().create_future()
        """How its process has ended, once the browser has told."""
        self._tasks: set[asyncio.Task[None]] = set()
        self._turns = asyncio.Semaphore(_AT_ONCE)
        self._listeners: dict[str, Callable[[dict[str, Any]], None]] = {
            "Page.documentOpened": self._opened,
            "Page.domContentEventFired": self._read,
            "Page.loadEventFired": self._loaded,
            "Page.windowOpen": self._opens,
            "Log.entryAdded": self._logged,
            "Runtime.bindingCalled": self._connects,
            "Runtime.exceptionThrown": self._threw,
        }
        """By event of the page's session, what hears of it."""
        self._windows: Counter[str] = Counter()
        """By URL: windows that were opened with it, less those that have asked for it."""

    def _watch_connections(self, send: Callable[..., T]) -> list[T]:
        """Have connections told of that no interception sees."""
        return [
            send("Runtime.addBinding", name=scripts.REPORT),
            send(
                "Page.addScriptToEvaluateOnNewDocument",
                source=scripts.TELL_CONNECTIONS, runImmediately=True,
            ),
        ]  # fmt: skip

    async def load(self, document: Document) -> Loaded:
        """Show a document and wait for load, fonts and every image, and for what it waits for.

        Raises:
            Unfit: what it waits for will never be, it is too long for its one page, or a line of
                it for any.
        """
        await asyncio.gather(
            self._ask("Page.setDocumentContent", frameId=self._frame, html=document.html),
            self._ask("Runtime.evaluate", expression=scripts.LAY_OUT, contextId=self._world),
        )
        # Only now: while a dialog is open the browser would evaluate questions in the middle.
        if self._has_loaded.is_set() or self._was_read or await self._evaluate(scripts.HOLD):
            await self._has_loaded.wait()
            if self._failure is not None:
                raise self._failure
        nodes = await self._complete()
        if document.wait_for or document.wait_for_expression or document.single_page:
            await self._wait_for(document)
            # What scripts have brought meanwhile is waited for as well.
            nodes = await self._complete()
            if document.single_page:
                await self._make_one_page(document)
        return Loaded(dom_nodes=nodes, script_errors=tuple(self._errors))

    async def print(self, document: Document) -> bytes:
        """Print what is shown.

        Raises:
            Unfit: it has none of the pages that were asked for.
            OutputTooLarge: it was stopped.
        """
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
        await self._evaluate(f"{scripts.MARK_TEXTS}({json.dumps(MARK)}, {_MOST_MARKS})")
        header, footer = _marked(document.header), _marked(document.footer)
        return await self.print(replace(document, header=header, footer=footer))

    async def close(self) -> None:
        """Ask the context to go, with everything in it; an idle page goes within milliseconds."""
        raise NotImplementedError

    async def kill(self) -> None:
        """Have the page's process end at once, whatever it does."""
        raise NotImplementedError

    async def was_killed(self) -> bool:
        """Tell whether somebody has killed the process of a page that has crashed; its own faults
        end it by other signals."""
        await asyncio.wait([self._status], timeout=_TOLD_WITHIN_S)
        return self._status.done() and self._status.result() == KILLED

    def ended(self, status: str) -> None:
        """Take note how the page's process has ended, in the browser's word."""
        if not self._status.done():
            self._status.set_result(status)

    async def _ask(self, method: str, /, **params: Any) -> dict[str, Any]:
        """Send a command to the page; the cause of its `PageFailed` is what the browser said."""
        raise NotImplementedError

    async def _evaluate(self, expression: str) -> Any:
        """Return what an expression comes to, out of reach of the page's scripts."""
        answer = await self._ask(
            "Runtime.evaluate",
            expression=expression,
            contextId=self._world,
            awaitPromise=True,
            returnByValue=True,
        )
        if "value" not in answer["result"] or "exceptionDetails" in answer:
            raise PageFailed
        return answer["result"]["value"]

    async def _complete(self) -> int:
        """Wait for fonts and images, and return the number of nodes."""
        nodes = int(await self._evaluate(scripts.READY))
        if nodes < 0:
            what = f"a line of its text is longer than {LARGEST_PAPER:g} inches"
            raise Unfit("line_too_long", what)
        return nodes

    async def _wait_for(self, document: Document) -> None:
        """Wait until the document says that it is complete; for ever when it does not say so."""
        if document.wait_for:
            arguments = f"({json.dumps(document.wait_for)}, {json.dumps(document.javascript)})"
            found = await self._evaluate(scripts.WAIT + arguments)
            if found == "missing":
                what = "nothing matches the selector, and no script will change that"
                raise Unfit("wait_for", what)
            if found != "found":
                raise Unfit("wait_for", "the selector cannot be read")
        while document.wait_for_expression:
            answer = await self._ask(
                "Runtime.evaluate",
                expression=f"(async () => !!(await (\n{document.wait_for_expression}\n)))()",
                awaitPromise=True,
                returnByValue=True,
            )
            if "exceptionDetails" in answer:
                raise Unfit("wait_for", "the expression fails")
            if answer["result"].get("value"):
                return
            await asyncio.sleep(_POLL_S)

    async def _make_one_page(self, document: Document) -> None:
        """Give the document a page as high as its content, with the margins that it has."""
        paper_width, paper_height = (edge * _PER_INCH for edge in document.paper)
        frame = await self._evaluate(f"{scripts.FRAME}({paper_width}, {paper_height})")
        width, top, right, bottom, left = map(float, frame)
        # As wide as what is printed will be, and flat: the height of a window is part of the
        # content's.
        window = {**DRAWN_SMALL, "width": max(1, math.floor(width - left - right)), "height": 1}
        await self._ask("Emulation.setDeviceMetricsOverride", **window)
        most = LARGEST_PAPER * _PER_INCH
        arguments = ", ".join(map(repr, (width, top, right, bottom, left, _SLACK, most)))
        if not await self._evaluate(f"{scripts.FIT}({arguments})"):
            raise Unfit("page_too_long", f"one page would be longer than {LARGEST_PAPER:g} inches")

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

    def _is_counted(self, url: str) -> bool:
        """Tell whether what a window asks for first was counted when it was opened."""
        self._windows[url] -= 1
        return self._windows[url] >= 0

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
        text, source = str(event["entry"].get("text", "")), event["entry"].get("source")
        if source == "worker" and text.startswith(_NO_WORKER):
            self._count_refused("blob:worker")
        if text.startswith(_LOCAL):
            self._count_refused(text.removeprefix(_LOCAL))

    def _opens(self, event: dict[str, Any]) -> None:
        # The window is closed at once, mostly before it has asked for anything.
        url = str(event["url"]).partition("#")[0]
        self._windows[url] += 1
        if self._windows[url] > 0:
            self._count_refused(url)

    def _connects(self, event: dict[str, Any]) -> None:
        if event.get("name") == scripts.REPORT:
            self._count_refused("webrtc:")

    def _threw(self, event: dict[str, Any]) -> None:
        """Note class and line of what was thrown; its message may hold values of the document."""
        if len(self._errors) < _MOST_ERRORS:
            details = event["exceptionDetails"]
            thrown = details.get("exception", {})
            name = str(thrown.get("className") or thrown.get("type") or "")
            known = name if _CLASS.fullmatch(name) else "Error"
            self._errors.append(f"{known} at line {int(details.get('lineNumber', 0)) + 1}")


class Browser(Protocol):
    """A running browser. Its process and everything it has started end with `kill`."""

    @property
    def version(self) -> str:
        """Name and version, as `HeadlessChrome/156.0.8078.79`."""

    @property
    def pid(self) -> int:
        """The number of its first process: the root of the tree whose memory is watched."""

    @property
    def driver_pid(self) -> int:
        """The number of the process that stands between; 0 when there is none."""

    @property
    def profile(self) -> Path:
        """The directory that it writes to."""

    async def open(self, *, javascript: bool, answer: Answer) -> ShownPage:
        """Open a fresh page in a context of its own; each of its requests is put to `answer`."""

    async def kill(self) -> None:
        """End the whole tree and remove its profile; never fails, and may be called twice."""


class Driver(Protocol):
    """Starts browsers."""

    async def start(self, launch: Launch) -> Browser:
        """Start a browser and wait until it answers; one that is not waited for is killed.

        Raises:
            BrowserGone: it ended at once.
            OSError: it cannot be executed.
        """


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
