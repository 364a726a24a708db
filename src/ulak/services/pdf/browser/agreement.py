"""What the drivers agree on: how a document is printed, what a page may have, and the line to it.

Both send these to the browser, so that the same document gives the same bytes with either.
Questions go to a world apart, where scripts of the page have changed nothing, and where they are
answered though the page's own scripts are off.
"""

from __future__ import annotations

import re
from collections.abc import Awaitable, Callable, Mapping
from typing import Any, Final

from ulak.services.pdf.browser.driver import PageFailed, Unfit
from ulak.services.pdf.document import Document, Fetched

Send = Callable[..., Awaitable[dict[str, Any]]]
"""Sends a command to the page (`send(method, **params)`); fails with `PageFailed`."""

AT_ONCE: Final = 8
"""Requests of one page that are answered at the same time."""
DRAWN_SMALL: Final = {
    "width": 1280,
    "height": 720,
    "deviceScaleFactor": 1,
    "mobile": False,
    "scale": 0.05,
}
"""The window (`Emulation.setDeviceMetricsOverride`): a page is laid out at its full size and drawn
small, for nobody sees it on a screen."""
MOST_ERRORS: Final = 20
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


def print_options(document: Document) -> dict[str, Any]:
    """Ask (`Page.printToPDF`) for a document as all of them are printed, as a stream."""
    width, height = document.paper
    wanted: dict[str, Any] = {}
    if document.header or document.footer:
        wanted |= {
            "displayHeaderFooter": True,
            "headerTemplate": document.header or _EMPTY,
            "footerTemplate": document.footer or _EMPTY,
        }
    if document.ranges:
        wanted["pageRanges"] = document.ranges
    return {
        **wanted,
        "transferMode": "ReturnAsStream",
        "scale": 1,
        "preferCSSPageSize": True,
        "printBackground": not document.omit_background,
        "paperWidth": width,
        "paperHeight": height,
        "marginTop": 0,
        "marginBottom": 0,
        "marginLeft": 0,
        "marginRight": 0,
        "generateTaggedPDF": document.tagged,
        "generateDocumentOutline": document.outline,
    }


def refused_printing(words: str) -> PageFailed | Unfit:
    """Make the error of a command to print that the browser has refused with these words."""
    if _NO_SUCH_PAGES in words:
        return Unfit("page_range", "it has none of the pages that were asked for")
    return PageFailed()


def is_in_memory(url: str) -> bool:
    """Tell whether a page has this already, so that nobody need be asked for it."""
    # Blobs of the document's own, whose origin is nobody's; those of others have theirs in front.
    return url.startswith(("data:", "blob:null/", "about:"))


def refused_file(event: Mapping[str, Any]) -> str | None:
    """Read from a log entry (`Log.entryAdded`) which file the browser refused by itself.

    It does so before the request could be intercepted; None when the entry is of something else.
    """
    text = str(event["entry"].get("text", ""))
    return text.removeprefix(_LOCAL) if text.startswith(_LOCAL) else None


def passed_headers(fetched: Fetched) -> list[tuple[str, str]]:
    """Give the headers of an answer that a page gets to see."""
    return [(name, value) for name, value in fetched.headers if name.lower() not in _NOT_PASSED]


def named(details: Mapping[str, Any]) -> str:
    """Name what was thrown by its class and line; the message may hold values of the document."""
    thrown = details.get("exception", {})
    name = str(thrown.get("className") or thrown.get("type") or "")
    known = _CLASS.fullmatch(name)
    return f"{name if known else 'Error'} at line {int(details.get('lineNumber', 0)) + 1}"


async def value_of(send: Send, expression: str, world: int) -> Any:
    """Evaluate an expression out of reach of the page's scripts, and answer what it comes to.

    Raises:
        PageFailed: it fails, or the page went elsewhere.
    """
    answer = await send(
        "Runtime.evaluate",
        expression=expression,
        contextId=world,
        awaitPromise=True,
        returnByValue=True,
    )
    if "value" not in answer["result"] or "exceptionDetails" in answer:
        raise PageFailed
    return answer["result"]["value"]
