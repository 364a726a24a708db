"""The seam between the pool and the drivers: what a browser and a page can do.

A driver speaks one protocol; time limits, recycling and the ladder of kills are the pool's. Every
call may be cancelled, and may never return when the page hangs: whoever calls keeps the time. Every
call raises `BrowserGone` when the whole browser has ended.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import KW_ONLY, dataclass
from typing import Protocol

from ulak.services.pdf.browser.launch import Launch
from ulak.services.pdf.document import Document, Fetched

Answer = Callable[[str, str, dict[str, str]], Awaitable[Fetched | None]]
"""Answers a request of a page (URL, method, headers): what to hand to it, None to refuse it."""


class BrowserGone(Exception):
    """The browser's process has ended, or its line is cut; nothing more will be answered."""


class PageCrashed(Exception):
    """The process of one page has ended; the browser and its other pages go on."""


class PageFailed(Exception):
    """The page cannot be shown or printed, and its process lives: it went elsewhere, or printing
    was given up."""


class Unfit(Exception):
    """The document is not what was asked of it: it would be the same in any browser.

    Args:
        detail: A stable word for what is wrong.
        what: For people; nothing of the document, and nothing that was sent.
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


class Page(Protocol):
    """One page in an isolated context of its own, which goes with it."""

    @property
    def is_gone(self) -> bool:
        """Its process has ended, as far as is known."""

    async def load(self, document: Document) -> Loaded:
        """Show a document and wait for load, fonts and every image, and for what it waits for.

        Raises:
            PageCrashed: its process has ended.
            PageFailed: it went elsewhere meanwhile.
            Unfit: what it waits for will never be, or it is too long for its one page.
        """

    async def print(self, document: Document) -> bytes:
        """Print what is shown.

        Raises:
            PageCrashed: as above.
            PageFailed: it was given up.
            Unfit: it has none of the pages that were asked for.
            OutputTooLarge: it was stopped; a driver that cannot stop hands out everything.
        """

    async def print_marked(self, document: Document) -> bytes:
        """Print what is shown with a mark before each text, which it keeps; raises as `print`."""

    async def close(self) -> None:
        """Ask the context to go, with everything in it; an idle page goes within milliseconds."""

    async def kill(self) -> None:
        """Have the page's process end at once, whatever it does."""


class Browser(Protocol):
    """A running browser. Its process and everything it has started end with `kill`."""

    @property
    def version(self) -> str:
        """Name and version, as `HeadlessChrome/156.0.8078.79`."""

    @property
    def pid(self) -> int:
        """The number of its first process: the root of the tree whose memory is watched."""

    async def open(self, *, javascript: bool, answer: Answer) -> Page:
        """Open a fresh page in a context of its own; each of its requests is put to `answer`."""

    async def kill(self) -> None:
        """End the whole tree and remove its profile; never fails, and may be called twice."""


class Driver(Protocol):
    """Starts browsers."""

    async def start(self, launch: Launch) -> Browser:
        """Start a browser and wait until it answers.

        Raises:
            BrowserGone: it ended at once.
            OSError: it cannot be executed.
        """
