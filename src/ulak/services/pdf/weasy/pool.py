"""Documents take their turns at WeasyPrint, each in a process of its own that ends with it.

A document is killed at its hard limit: there is nobody inside who could be asked to stop. Whoever
is next finds a process that has seen no document.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import Callable, Coroutine
from datetime import timedelta
from typing import Any, Final, Literal

import msgspec

from ulak.services.pdf.browser.renderers import Keeper, Pool, Requests, out_of_time, refuse_large
from ulak.services.pdf.document import Document, Fetcher, Limits, Rendered, Times
from ulak.services.pdf.model import (
    MachineFault,
    PdfError,
    PdfErrorCode,
    PermanentPdfError,
    not_as_asked,
    over_limit,
)
from ulak.services.pdf.weasy.frames import TooLong, pack, read
from ulak.services.pdf.weasy.ground import lost
from ulak.services.pdf.weasy.process import Child, Gone, Zygote

LAUNCH_TIMEOUT: Final = timedelta(seconds=30)
"""Loading takes a second on an idle machine. Longer than a browser gets: importing is work of the
processor alone, and there may be little of it. A guess."""
_LOSSES: Final = 2
"""How often a document may lose its process: once is bad luck."""
_SLACK_S: Final = 2
"""More of the processor than of the clock, so that it is the clock which ends a document."""

_TAKES_A_BROWSER: Final = (
    "javascript",
    "header",
    "footer",
    "single_page",
    "wait_for",
    "wait_for_expression",
    "fail_on_script_error",
    "omit_background",
)
"""What of a document WeasyPrint cannot do, or not as the browser does it."""
_LIMITS: Final = {
    "dom_too_large": "it has {count} nodes",
    "too_many_pages": "it has {count} pages",
    "output_too_large": "its PDF has too many bytes",
    "memory_exceeded": "it needs too much memory",
    "nested_too_deep": "its elements lie too deep in each other",
}
_UNFIT: Final = {
    "page_range": "of its {count} pages none was asked for",
    "resource_status": "a resource was answered {count}",
}
FAULTS: Final = frozenset({*_LIMITS, *_UNFIT, "page_failed"})
"""Every word by which a document's process may say why it is not printed."""


class _Said(msgspec.Struct, frozen=True):
    """What a document's process says: checked, for it has read a stranger's document."""

    kind: Literal["ask", "done", "failed"]
    url: str = ""
    word: str = ""
    count: int = 0
    pages: int = 0
    load_s: float = 0
    print_s: float = 0


class WeasyPool(Pool[Zygote]):
    """Renders documents by WeasyPrint, several at a time; see `Pool`.

    Nothing is started before the first document.

    Args:
        idle_after: What is loaded and nobody needs is let go after so long.
        start: Starts a process that has WeasyPrint loaded, as `Zygote.start` with arguments bound.
    """

    def __init__(
        self,
        *,
        fetcher: Fetcher | None = None,
        limits: Limits | None = None,
        places: int = 1,
        idle_after: timedelta = timedelta(minutes=5),
        start: Callable[[], Coroutine[Any, Any, Zygote]] = Zygote.start,
    ) -> None:
        self._start = start
        # Without a pause after a failed start: nobody else's document need wait for it.
        keeper = Keeper(self._started, idle_after=idle_after, first_pause_s=0)
        super().__init__(keeper, fetcher=fetcher, limits=limits or Limits(), places=places)

    async def render(self, document: Document, times: Times) -> Rendered:
        """Render one document in a process of its own, when its turn comes.

        Its time begins now, and at the hard limit it is killed. Cancelled, its process ends.

        Raises:
            MachineFault: its process was lost twice, not each time by the document.
            TransientPdfError: WeasyPrint does not start, or the time ran out.
            PermanentPdfError: the document exceeds a limit or asks for what takes a browser,
                WeasyPrint fails on it, or cannot run here.
        """
        refuse_beyond(document)
        refuse_large(document, self._limits)
        began_at = asyncio.get_running_loop().time()
        try:
            async with asyncio.timeout(times.hard.total_seconds()), self._turns:
                return await self._render(document, times, began_at)
        except TimeoutError as error:
            raise out_of_time() from error

    async def probe(self) -> str:
        """Have WeasyPrint loaded, and return its name and version; '' when what is loaded was let
        go because nobody needs it.

        Raises:
            PdfError: it cannot be loaded.
        """
        return "" if self._keeper.is_resting else (await self._loaded()).engine

    async def _render(self, document: Document, times: Times, began_at: float) -> Rendered:
        loop = asyncio.get_running_loop()
        cpu_s = math.ceil(times.hard.total_seconds()) + _SLACK_S
        crashes = 0
        for _ in range(_LOSSES):
            launched = loop.time()
            zygote = await self._loaded()
            zygote.busy += 1
            try:
                child = await self._begin(zygote, cpu_s)
                begun = loop.time()
                requests = Requests(document, self._fetcher)
                try:
                    said, pdf = await _converse(document, child, requests, self._limits)
                except (EOFError, OSError) as error:
                    crashes += not await self._is_lost(zygote)
                    if crashes == _LOSSES:
                        raise crashed() from error
                    continue
                except PdfError as error:
                    error.blocked = dict(requests.blocked)
                    raise
                finally:
                    # Shielded: who is cancelled here leaves it being done.
                    await asyncio.shield(zygote.end(child))
            except Gone:
                self._keeper.discard(zygote)
                continue
            finally:
                zygote.busy -= 1
                self._keeper.used(zygote)
            return Rendered(
                pdf,
                pages=said.pages,
                engine=zygote.engine,
                timings={
                    "launch": begun - launched,
                    "load": said.load_s,
                    "print": said.print_s,
                    "total": loop.time() - began_at,
                },
                blocked=dict(requests.blocked),
            )
        code = PdfErrorCode.BROWSER_LAUNCH_FAILED
        raise MachineFault("its process was lost twice", code=code, detail="renderer_lost")

    async def _begin(self, zygote: Zygote, cpu_s: int) -> Child:
        return await zygote.begin(memory_bytes=self._limits.memory_bytes, cpu_s=cpu_s)

    async def _is_lost(self, zygote: Zygote) -> bool:
        """Tell whether a document's process ended with the one that had begun it.

        By having it begin another: when both were killed at once, either may be found ended first.
        """
        try:
            another = await self._begin(zygote, 1)
        except Gone:
            self._keeper.discard(zygote)
            return True
        await zygote.end(another)
        return False

    async def _loaded(self) -> Zygote:
        """Return the process that is loaded; start one when there is none."""
        zygote = await self._keeper.get()
        if zygote.process.has_ended:
            self._keeper.discard(zygote)
            zygote = await self._keeper.get()
        return zygote

    async def _started(self) -> Zygote:
        try:
            async with asyncio.timeout(LAUNCH_TIMEOUT.total_seconds()):
                return await self._start()
        except TimeoutError as error:
            raise lost("it took too long") from error
        except OSError as error:
            raise lost(type(error).__name__) from error


def refuse_beyond(document: Document) -> None:
    """Refuse a document that asks for what takes a browser; manifests are refused before."""
    if beyond := [name for name in _TAKES_A_BROWSER if getattr(document, name)]:
        raise PermanentPdfError(
            f"WeasyPrint cannot do what the document asks for: {', '.join(beyond)}",
            code=PdfErrorCode.TEMPLATE_ERROR, detail="page_options",
        )  # fmt: skip


def fault(word: str, count: int = 0) -> PermanentPdfError:
    """Make the error of a word; any text that is none of `FAULTS` says that the page broke."""
    if word in _LIMITS:
        return over_limit(word, _LIMITS[word].format(count=count))
    if word in _UNFIT:
        return not_as_asked(word, _UNFIT[word].format(count=count))
    known, _, kind = word.partition(":")
    by = f" by a {kind}" if known == "page_failed" and kind.isidentifier() else ""
    return PermanentPdfError(
        f"WeasyPrint failed on the document{by}", code=PdfErrorCode.UNKNOWN, detail="page_failed"
    )


def crashed() -> PermanentPdfError:
    """Make the error of a document whose process ended without a word."""
    return PermanentPdfError(
        "the process of the document broke", code=PdfErrorCode.UNKNOWN, detail="page_crashed"
    )


async def _converse(
    document: Document, child: Child, requests: Requests, limits: Limits
) -> tuple[_Said, bytes]:
    """Hand a document to its process, fetch for it, and return what came of it.

    Raises:
        PermanentPdfError: it exceeds a limit, or WeasyPrint fails on it.
        EOFError, OSError: its process ended without an answer.
    """
    wanted = {
        "paper": document.paper,
        "tagged": document.tagged,
        "outline": document.outline,
        "ranges": document.ranges,
        "dom_nodes": limits.dom_nodes,
        "pages": limits.pages,
        "output_bytes": limits.output_bytes,
    }
    frame = pack(wanted, document.html.encode())
    while True:
        child.writer.write(frame)
        await child.writer.drain()
        try:
            head, body = await read(child.reader, longest_body=limits.output_bytes)
            said = msgspec.json.decode(head, type=_Said)
        except TooLong as error:
            raise fault("output_too_large" if error.is_body else "page_failed") from error
        except msgspec.DecodeError as error:
            raise crashed() from error
        if said.kind == "ask":
            frame = await _fetch(said.url, requests)
        elif said.kind == "failed":
            raise fault(said.word, said.count)
        elif requests.refused_status:
            raise fault("resource_status", requests.refused_status)
        elif said.pages > limits.pages:
            raise fault("too_many_pages", said.pages)
        else:
            return said, body


async def _fetch(url: str, requests: Requests) -> bytes:
    """Fetch by the rules of every document; what is refused is nothing to the document."""
    fetched = await requests(url, "GET", {})
    if fetched is None:
        return pack({"status": 0, "type": ""})
    kinds = [value for name, value in fetched.headers if name.lower() == "content-type"]
    head = {"status": fetched.status, "type": kinds[0] if kinds else "text/plain"}
    return pack(head, fetched.body)
