"""Documents take their turns at WeasyPrint, each in a process of its own that ends with it.

A document is killed at its hard limit: there is nobody inside who could be asked to stop. Whoever
is next finds a process that has seen no document.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import Callable, Coroutine
from datetime import timedelta
from types import TracebackType
from typing import Any, Final, Literal, Self

import msgspec

from ulak.services.pdf.browser.renderers import (
    Keeper,
    OnBlocked,
    Requests,
    Rules,
    out_of_time,
    refuse_large,
)
from ulak.services.pdf.document import (
    Document,
    Fetcher,
    Limits,
    NoNetwork,
    Rendered,
    Times,
)
from ulak.services.pdf.model import PdfErrorCode, PermanentPdfError
from ulak.services.pdf.weasy.faults import crashed, fault, lost
from ulak.services.pdf.weasy.frames import TooLong, pack, read
from ulak.services.pdf.weasy.process import Child, Gone, Zygote

LAUNCH_TIMEOUT: Final = timedelta(seconds=30)
"""Loading takes a second on an idle machine. Longer than a browser gets: importing is work of the
processor alone, and there may be little of it. A guess."""
_LOSSES: Final = 2
"""How often a document may lose its process to somebody else's doing: once is bad luck."""
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


class _Said(msgspec.Struct, frozen=True):
    """What a document's process says: checked, for it has read a stranger's document."""

    kind: Literal["ask", "done", "failed"]
    url: str = ""
    word: str = ""
    count: int = 0
    pages: int = 0
    load_s: float = 0
    print_s: float = 0


class WeasyPool:
    """Renders documents by WeasyPrint, several at a time.

    An asynchronous context manager: at its end no process and no file is left. Nothing is started
    before the first document. It belongs to one event loop, whose thread must live as long as the
    pool does.

    Args:
        fetcher: Fetches what documents may have; nothing by default.
        limits: What a document may cost.
        places: Documents at a time.
        idle_after: What is loaded and nobody needs is let go after so long.
        start: Starts a process that has WeasyPrint loaded, as `Zygote.start` with arguments bound.
        on_blocked: Told the reason of each request that is refused.
    """

    def __init__(
        self,
        *,
        fetcher: Fetcher | None = None,
        limits: Limits | None = None,
        places: int = 1,
        idle_after: timedelta = timedelta(minutes=5),
        start: Callable[[], Coroutine[Any, Any, Zygote]] = Zygote.start,
        on_blocked: OnBlocked | None = None,
    ) -> None:
        self._rules = Rules(
            fetcher=fetcher or NoNetwork(), limits=limits or Limits(), on_blocked=on_blocked
        )
        self._turns = asyncio.Semaphore(places)
        self._start = start
        # Without a pause after a failed start: nobody else's document need wait for it.
        self._keeper = Keeper(self._started, idle_after=idle_after, first_pause_s=0)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        await self._keeper.close()

    async def render(self, document: Document, times: Times) -> Rendered:
        """Render one document in a process of its own, when its turn comes.

        Its time begins now, and at the hard limit it is killed. Cancelled, its process ends.

        Raises:
            TransientPdfError: WeasyPrint does not start or was lost twice, or the time ran out.
            PermanentPdfError: the document exceeds a limit or asks for what takes a browser,
                WeasyPrint fails on it, or cannot run here.
        """
        refuse_beyond(document)
        refuse_large(document, self._rules.limits)
        began_at = asyncio.get_running_loop().time()
        try:
            async with asyncio.timeout(times.hard.total_seconds()), self._turns:
                return await self._render(document, times, began_at)
        except TimeoutError as error:
            raise out_of_time() from error

    async def _render(self, document: Document, times: Times, began_at: float) -> Rendered:
        loop = asyncio.get_running_loop()
        cpu_s = math.ceil(times.hard.total_seconds()) + _SLACK_S
        for _ in range(_LOSSES):
            launched = loop.time()
            zygote = await self._loaded()
            zygote.busy += 1
            try:
                child = await self._begin(zygote, cpu_s)
                begun = loop.time()
                conversation = _Conversation(document, child, self._rules)
                try:
                    said, pdf = await conversation()
                except (EOFError, OSError) as error:
                    if await self._is_lost(zygote):
                        continue
                    raise crashed() from error
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
                blocked=dict(conversation.requests.blocked),
            )
        raise lost("its process was lost twice")

    async def _begin(self, zygote: Zygote, cpu_s: int) -> Child:
        return await zygote.begin(memory_bytes=self._rules.limits.memory_bytes, cpu_s=cpu_s)

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
        """Return the process that is loaded; start one when there is none.

        Raises:
            PdfError: none can be started; whoever asks next tries again.
        """
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
    """Refuse a document that asks for what takes a browser; manifests are refused before.

    Raises:
        PermanentPdfError: naming what it asks for.
    """
    if beyond := [name for name in _TAKES_A_BROWSER if getattr(document, name)]:
        raise PermanentPdfError(
            f"WeasyPrint cannot do what the document asks for: {', '.join(beyond)}",
            code=PdfErrorCode.TEMPLATE_ERROR, detail="page_options",
        )  # fmt: skip


class _Conversation:
    """What is said with the process of a document, until it has answered."""

    def __init__(self, document: Document, child: Child, rules: Rules) -> None:
        self._document = document
        self._child = child
        self._limits = rules.limits
        self.requests = Requests(document, rules)

    async def __call__(self) -> tuple[_Said, bytes]:
        """Hand the document over, fetch for it, and answer what came of it.

        Raises:
            PermanentPdfError: it exceeds a limit, or WeasyPrint fails on it.
            EOFError: its process ended without an answer.
            OSError: likewise.
        """
        document, limits = self._document, self._limits
        asked = {
            "paper": document.paper,
            "tagged": document.tagged,
            "outline": document.outline,
            "ranges": document.ranges,
            "dom_nodes": limits.dom_nodes,
            "pages": limits.pages,
            "output_bytes": limits.output_bytes,
        }
        await self._send(pack(asked, document.html.encode()))
        while True:
            said, body = await self._hear()
            if said.kind == "ask":
                await self._send(await self._answered(said.url))
            elif said.kind == "failed":
                raise fault(said.word, said.count)
            elif self.requests.refused_status:
                raise fault("resource_status", self.requests.refused_status)
            elif said.pages > limits.pages:
                raise fault("too_many_pages", said.pages)
            else:
                return said, body

    async def _hear(self) -> tuple[_Said, bytes]:
        try:
            head, body = await read(self._child.reader, longest_body=self._limits.output_bytes)
            return msgspec.json.decode(head, type=_Said), body
        except TooLong as error:
            raise fault("output_too_large" if error.is_body else "page_failed") from error
        except msgspec.DecodeError as error:
            raise crashed() from error

    async def _send(self, frame: bytes) -> None:
        self._child.writer.write(frame)
        await self._child.writer.drain()

    async def _answered(self, url: str) -> bytes:
        """Fetch by the rules of every document; what is refused is nothing to the document."""
        fetched = await self.requests(url, "GET", {})
        if fetched is None:
            return pack({"status": 0, "type": ""})
        kinds = [value for name, value in fetched.headers if name.lower() == "content-type"]
        head = {"status": fetched.status, "type": kinds[0] if kinds else "text/plain"}
        return pack(head, fetched.body)
