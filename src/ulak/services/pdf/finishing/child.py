"""Has an order done by a process of its own, which ends in time whatever the document is like."""

from __future__ import annotations

import asyncio
import os
import re
import sys
from contextlib import suppress
from typing import Final

from ulak.services.pdf.finishing.order import FAILED, Order, write_order
from ulak.services.pdf.model import PdfError, PdfErrorCode, pdf_error

COMMAND: Final = (sys.executable, "-m", "ulak.services.pdf.finishing")
_WORD: Final = re.compile(r"\w{1,60}")


async def finish(order: Order, *, seconds: float, command: tuple[str, ...] = COMMAND) -> bytes:
    """Have an order done, and answer the PDF. Cancelled, or out of time, it leaves no process.

    Args:
        order: What is to be done.
        seconds: How long it may take.
        command: What does it.

    Raises:
        PdfError: NAVIGATION_TIMEOUT: the time ran out. TEMPLATE_ERROR or UNKNOWN: it cannot be
            done; the message quotes nothing of the document.
    """
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
            answer, _ = await process.communicate(write_order(order))
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


def _failed(status: int | None, answer: bytes) -> PdfError:
    word = answer.decode("ascii", "replace") if status == FAILED else ""
    if word == MemoryError.__name__:
        return pdf_error(
            "the document exceeds a limit: finishing it needs too much memory",
            code=PdfErrorCode.TEMPLATE_ERROR,
            detail="memory_exceeded",
        )
    by = f"by a {word}" if _WORD.fullmatch(word) else f"its process ended with {status}"
    return pdf_error(
        f"the document could not be finished: {by}",
        code=PdfErrorCode.UNKNOWN,
        detail="finishing_failed",
    )
