"""One document, read, laid out and printed by WeasyPrint: what its process does before it ends.

Imported by that process alone. Whatever the document names is asked of the worker; only what it
holds itself, as `data:` URLs, is read here.
"""

from __future__ import annotations

import logging
import socket
import time
from typing import Any, Final

# WeasyPrint says no types.
import weasyprint  # type: ignore[import-untyped]
from weasyprint.text.fonts import FontConfiguration  # type: ignore[import-untyped]
from weasyprint.urls import URLFetcher, URLFetcherResponse  # type: ignore[import-untyped]

from ulak.services.pdf.weasy.frames import LONGEST_URL, pack, receive

ENGINE: Final = f"WeasyPrint/{weasyprint.__version__}"

# The smallest picture that is decoded by the same way as any other.
_PICTURE: Final = (
    "data:image/png;base64,iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mP8z8BQDwAEhQGA"
    "hKmMIQAAAABJRU5ErkJggg=="
)
_FIRST: Final = (
    "<!doctype html><html lang=en><title>first</title><h1>first</h1>"
    f"<table><tr><td>one<td><img src='{_PICTURE}'></table>"
    "<svg width=9 height=9><rect width=9 height=9 /></svg>"
)


class Failed(Exception):
    """The document is not printed, for a word of `pool.FAULTS`, and a number where it has one."""

    def __init__(self, word: str, count: int = 0) -> None:
        super().__init__(word)
        self.word = word
        self.count = count


def print_one(line: socket.socket) -> None:
    """Wait for the document, print it, and say what came of it; MemoryError is the caller's."""
    asked, html = receive(line)
    try:
        said, pdf = _printed(html.decode(), asked, line)
    except Failed as failed:
        said, pdf = {"kind": "failed", "word": failed.word, "count": failed.count}, b""
    line.sendall(pack(said, pdf))


def warm_up() -> None:
    """Print something small, so that no document is the first one."""
    html = weasyprint.HTML(string=_FIRST, url_fetcher=URLFetcher(allowed_protocols=("data",)))
    html.write_pdf(pdf_tags=True, pdf_identifier=True, presentational_hints=True)


def _printed(html: str, asked: dict[str, Any], line: socket.socket) -> tuple[dict[str, Any], bytes]:
    memory = _Memory()
    logger = logging.getLogger("weasyprint")
    logger.setLevel(logging.DEBUG)
    logger.addHandler(memory)
    began = time.monotonic()
    try:
        document = _laid_out(html, asked, _Asking(line))
        ready = time.monotonic()
        pdf = document.write_pdf(
            pdf_tags=asked["tagged"], pdf_identifier=True, presentational_hints=True
        )
    except RecursionError:
        raise Failed("nested_too_deep") from None
    except (MemoryError, Failed):
        raise
    except Exception as error:  # noqa: BLE001 - WeasyPrint's own faults are of any class
        # The class alone: what it says may quote the document.
        raise Failed(f"page_failed:{type(error).__name__}"[:100]) from None
    if memory.ran_out:
        # It went on without what did not fit, an image mostly, and would print as if all was well.
        raise MemoryError
    ended = time.monotonic()
    if len(pdf) > asked["output_bytes"]:
        raise Failed("output_too_large", len(pdf))
    said = {
        "kind": "done",
        "pages": len(document.pages),
        "load_s": ready - began,
        "print_s": ended - ready,
    }
    return said, pdf


def _laid_out(html: str, asked: dict[str, Any], asking: _Asking) -> weasyprint.Document:
    page = weasyprint.HTML(string=html, url_fetcher=asking, media_type="print")
    # Elements, texts and comments, as a browser counts nodes.
    nodes = sum(1 + bool(one.text) + bool(one.tail) for one in page.etree_element.iter())
    if nodes > asked["dom_nodes"]:
        raise Failed("dom_too_large", nodes)
    width, height = asked["paper"]
    fonts = FontConfiguration()
    # Beneath the style sheets of the document, as the browser's own: its `@page` wins.
    usual = weasyprint.CSS(
        string=f"@page {{ size: {width:.4f}in {height:.4f}in; margin: 0 }}",
        url_fetcher=asking,
        font_config=fonts,
    )
    document = page.render(
        font_config=fonts, stylesheets=[usual], pdf_tags=asked["tagged"], presentational_hints=True
    )
    if len(document.pages) > asked["pages"]:
        raise Failed("too_many_pages", len(document.pages))
    if asked["ranges"]:
        document.pages = _chosen(document.pages, asked["ranges"])
    # What is attached carries the moment of printing, and no two PDFs were the same.
    document.metadata.attachments = []
    for one in document.pages:
        one.links = [link for link in one.links if link[0] != "attachment"]
        if not asked["outline"]:
            one.bookmarks = []
    return document


def _chosen(pages: list[Any], ranges: str) -> list[Any]:
    """Take the pages that are asked for, as `1-3,5,9-`, in their own order."""
    wanted: set[int] = set()
    for piece in ranges.split(","):
        first, dash, last = piece.partition("-")
        end = int(last) if last else len(pages) if dash else int(first)
        wanted |= set(range(int(first), min(end, len(pages)) + 1))
    chosen = [page for number, page in enumerate(pages, 1) if number in wanted]
    if not chosen:
        raise Failed("page_range", len(pages))
    return chosen


class _Asking(URLFetcher):  # type: ignore[misc]
    """Fetches by asking the worker, which judges every URL."""

    def __init__(self, line: socket.socket) -> None:
        super().__init__(allowed_protocols=("data",))
        self._line = line

    def fetch(self, url: str, headers: Any = None) -> URLFetcherResponse:
        """Return what the worker has fetched; fails with ValueError where that is nothing."""
        if url[:5].lower() == "data:":
            return super().fetch(url, headers)
        if len(url) > LONGEST_URL:
            raise ValueError("the URL is too long")
        self._line.sendall(pack({"kind": "ask", "url": url}))
        answer, body = receive(self._line)
        if not 200 <= answer["status"] < 300:
            raise ValueError("there is nothing")
        # Its own name again, and never another: what is read from a path must never be named here.
        return URLFetcherResponse(url, body, {"Content-Type": answer["type"]}, answer["status"])


class _Memory(logging.Handler):
    """Notices a want of memory that WeasyPrint has swallowed with the part that it left out."""

    def __init__(self) -> None:
        super().__init__(logging.DEBUG)
        self.ran_out = False

    def emit(self, record: logging.LogRecord) -> None:
        arguments = record.args if isinstance(record.args, tuple) else ()
        for told in (*arguments, record.exc_info and record.exc_info[1]):
            error = told if isinstance(told, BaseException) else None
            while error is not None:
                self.ran_out |= isinstance(error, MemoryError)
                error = error.__cause__ or error.__context__
