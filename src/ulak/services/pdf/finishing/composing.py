"""One PDF of several documents and a watermark: each printed in turn, then put together.

Putting together is done by a process of its own, which ends in time whatever the document is like.
"""

from __future__ import annotations

import asyncio
import html
import os
import re
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from dataclasses import replace
from typing import Any, Final

import msgspec

from ulak.services.pdf.document import FINISH, Document, Limits, Rendered, Renderer, Times
from ulak.services.pdf.finishing.order import FAILED, Mark, Order
from ulak.services.pdf.model import PdfError, PdfErrorCode, over_limit, pdf_error
from ulak.services.pdf.output import OutputOptions, Watermark

COMMAND: Final = (sys.executable, "-m", "ulak.services.pdf.finishing")
_WORD: Final = re.compile(r"\w{1,60}")
# Wide enough for the longest text of the widest letters, on one line.
_PAPER: Final = (45.0, 2.0)
# A link, since printing writes down where links are: so it is known how large the text became.
_MARK: Final = """<!doctype html><html><head><title>watermark</title><style>
@page {{ size: {width}in {height}in; margin: 0 }}
a {{ position: absolute; left: 0.5in; top: 0.5in; white-space: pre; text-decoration: none;
  font: 700 36pt/1.1 "Liberation Sans", Arial, "DejaVu Sans", "Noto Sans", sans-serif;
  color: {colour} }}
</style></head><body><a href="https://watermark.invalid/">{text}</a></body></html>"""


async def compose(
    documents: Sequence[Document],
    output: OutputOptions,
    *,
    renderer: Renderer,
    limits: Limits,
    left: Callable[[], Times],
) -> Rendered:
    """Print documents one after the other, and do to all of them what the options say.

    Limits are of the whole: of all pages together, and of the bytes that come out in the end.

    Args:
        left: Returns how much of the attempt's time is left, or raises that there is none.

    Raises:
        PdfError: as a renderer; or it cannot be put together, or not in time.
    """
    printed: list[Rendered] = []
    try:
        return await _compose(documents, output, printed, renderer, limits, left)
    except PdfError as error:
        error.blocked = _blocked((*printed, error))
        raise


async def _compose(
    documents: Sequence[Document],
    output: OutputOptions,
    printed: list[Rendered],
    renderer: Renderer,
    limits: Limits,
    left: Callable[[], Times],
) -> Rendered:
    for document in documents:
        printed.append(await renderer.render(document, left()))
        _must_fit(printed, limits)
    mark = None
    if output.watermark is not None:
        drawn = await renderer.render(_mark_of(documents[0], output.watermark), left())
        mark = Mark(drawn.pdf, opacity=output.watermark.opacity, angle=output.watermark.angle)
    seconds = left().hard.total_seconds()
    began = time.monotonic()
    order = Order(
        tuple(one.pdf for one in printed), mark=mark, metadata=output.metadata,
        attachments=output.attachments, password=output.password, seconds=int(seconds) + 1,
        memory_bytes=limits.memory_bytes,
    )  # fmt: skip
    pdf = await finish(order, seconds=seconds)
    if len(pdf) > limits.output_bytes:
        raise over_limit("output_too_large", f"its PDF has {len(pdf)} bytes")
    return _whole(printed, pdf, time.monotonic() - began)


async def finish(order: Order, *, seconds: float, command: tuple[str, ...] = COMMAND) -> bytes:
    """Have an order done, and return the PDF. Cancelled, or out of time, it leaves no process."""
    process = await asyncio.create_subprocess_exec(
        *command,
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
        # What a library says there may quote the document.
        stderr=asyncio.subprocess.DEVNULL,
        # Nothing of the worker's own: what reads a stranger's document needs no secret.
        env={"PYTHONPATH": os.pathsep.join(sys.path)},
    )
    try:
        async with asyncio.timeout(seconds):
            answer, _ = await process.communicate(msgspec.msgpack.encode(order))
    except TimeoutError:
        raise pdf_error(
            "the document was not finished in its time", code=PdfErrorCode.NAVIGATION_TIMEOUT
        ) from None
    finally:
        with suppress(ProcessLookupError):
            process.kill()
        await asyncio.shield(process.wait())
    if process.returncode != 0:
        raise _failed(process.returncode, answer)
    return answer


def _mark_of(document: Document, mark: Watermark) -> Document:
    """Return the page of a watermark, made by whatever makes the document."""
    width, height = _PAPER
    text = _MARK.format(width=width, height=height, colour=mark.colour, text=html.escape(mark.text))
    usual = Document(text, paper=_PAPER)
    return replace(
        document, html=text, paper=_PAPER, javascript=False, tagged=False, outline=False,
        header="", footer="", ranges="", single_page=False, wait_for="", wait_for_expression="",
        fail_on_status=usual.fail_on_status, fail_on_script_error=False, omit_background=False,
    )  # fmt: skip


def _whole(printed: Sequence[Rendered], pdf: bytes, finished_s: float) -> Rendered:
    timings: Counter[str] = Counter()
    for one in printed:
        timings.update(one.timings)
    return replace(
        printed[0],
        pdf=pdf,
        pages=sum(one.pages for one in printed),
        timings={**timings, FINISH: finished_s},
        blocked=_blocked(printed),
        script_errors=tuple(error for one in printed for error in one.script_errors),
        warnings=tuple(warning for one in printed for warning in one.warnings),
    )


def _blocked(ended: Iterable[Rendered | PdfError]) -> dict[Any, int]:
    blocked: Counter[str] = Counter()
    for one in ended:
        blocked.update(one.blocked)
    return dict(blocked)


def _must_fit(printed: Sequence[Rendered], limits: Limits) -> None:
    pages, size = sum(one.pages for one in printed), sum(len(one.pdf) for one in printed)
    if pages > limits.pages:
        raise over_limit("too_many_pages", f"it has {pages} pages")
    if size > limits.output_bytes:
        raise over_limit("output_too_large", f"its PDF has {size} bytes")


def _failed(status: int | None, answer: bytes) -> PdfError:
    word = answer.decode("ascii", "replace") if status == FAILED else ""
    if word == MemoryError.__name__:
        return over_limit("memory_exceeded", "finishing it needs too much memory")
    by = f"by a {word}" if _WORD.fullmatch(word) else f"its process ended with {status}"
    return pdf_error(
        f"the document could not be finished: {by}",
        code=PdfErrorCode.UNKNOWN,
        detail="finishing_failed",
    )
