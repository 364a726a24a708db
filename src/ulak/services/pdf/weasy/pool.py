"""Documents take their turns at WeasyPrint, each in a process of its own that ends with it.

A document is killed at its hard limit: there is nobody inside who could be asked to stop. Whoever
is next finds a process that has seen no document.
"""

from __future__ import annotations

import asyncio
import logging
import math
from collections import Counter
from collections.abc import Callable, Coroutine
from datetime import timedelta
from types import TracebackType
from typing import Any, Final, Literal, Self

import msgspec

from ulak.services.pdf.browser.attempt import OnBlocked, out_of_time, refuse_large
from ulak.services.pdf.document import (
    Document,
    Fetcher,
    Limits,
    NoNetwork,
    Reason,
    Rendered,
    Times,
    UrlBlocked,
)
from ulak.services.pdf.model import PdfErrorCode, PermanentPdfError
from ulak.services.pdf.weasy.faults import crashed, fault, not_started
from ulak.services.pdf.weasy.frames import TooLong, pack, read
from ulak.services.pdf.weasy.process import Child, Gone, Zygote

log = logging.getLogger(__name__)

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
        self._fetcher = fetcher or NoNetwork()
        self._limits = limits or Limits()
        self._turns = asyncio.Semaphore(places)
        self._idle_s = idle_after.total_seconds()
        self._start = start
        self._on_blocked = on_blocked
        self._zygote: Zygote | None = None
        self._starting = asyncio.Lock()
        self._busy = 0
        self._letting_go: asyncio.TimerHandle | None = None
        self._closing: set[asyncio.Task[None]] = set()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._keep()
        self._discard(self._zygote)
        while self._closing:
            await asyncio.wait(set(self._closing))

    async def render(self, document: Document, times: Times) -> Rendered:
        """Render one document in a process of its own, when its turn comes.

        Its time begins now, and at the hard limit it is killed. Cancelled, its process ends.

        Raises:
            TransientPdfError: WeasyPrint does not start or was lost twice, or the time ran out.
            PermanentPdfError: the document exceeds a limit or asks for what takes a browser,
                WeasyPrint fails on it, or cannot run here.
        """
        refuse_beyond(document)
        refuse_large(document, self._limits)
        began_at = asyncio.get_running_loop().time()
        try:
            async with asyncio.timeout(times.hard.total_seconds()), self._turns:
                self._busy += 1
                self._keep()
                try:
                    return await self._render(document, times, began_at)
                finally:
                    self._busy -= 1
                    self._let_go_later()
        except TimeoutError as error:
            raise out_of_time() from error

    async def _render(self, document: Document, times: Times, began_at: float) -> Rendered:
        loop = asyncio.get_running_loop()
        cpu_s = math.ceil(times.hard.total_seconds()) + _SLACK_S
        for _ in range(_LOSSES):
            launched = loop.time()
            zygote = await self._loaded()
            try:
                child = await zygote.begin(memory_bytes=self._limits.memory_bytes, cpu_s=cpu_s)
            except Gone:
                self._discard(zygote)
                continue
            begun = loop.time()
            try:
                conversation = _Conversation(
                    document, child, self._fetcher, self._limits, self._on_blocked
                )
                said, pdf = await conversation()
            except (EOFError, OSError) as error:
                if await self._is_lost(zygote):
                    continue
                raise crashed() from error
            finally:
                # Shielded: who is cancelled here leaves it being done.
                await asyncio.shield(zygote.end(child))
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
                blocked=dict(conversation.blocked),
            )
        raise not_started("its process was lost twice")

    async def _is_lost(self, zygote: Zygote) -> bool:
        """Tell whether a document's process ended with the one that had begun it.

        By having it begin another: when both were killed at once, either may be found ended first.
        """
        try:
            another = await zygote.begin(memory_bytes=self._limits.memory_bytes, cpu_s=1)
        except Gone:
            self._discard(zygote)
            return True
        await zygote.end(another)
        return False

    async def _loaded(self) -> Zygote:
        """Give the process that is loaded; start one when there is none.

        Raises:
            PdfError: none can be started; whoever asks next tries again.
        """
        async with self._starting:
            if self._zygote is not None and self._zygote.has_ended:
                self._discard(self._zygote)
            if self._zygote is None:
                self._zygote = await self._started()
            return self._zygote

    async def _started(self) -> Zygote:
        try:
            async with asyncio.timeout(LAUNCH_TIMEOUT.total_seconds()):
                return await self._start()
        except TimeoutError as error:
            log.warning("WeasyPrint did not start in time")
            raise not_started("it took too long") from error
        except OSError as error:
            log.warning("WeasyPrint did not start", extra={"error": type(error).__name__})
            raise not_started(type(error).__name__) from error

    def _discard(self, zygote: Zygote | None) -> None:
        if zygote is not None:
            if self._zygote is zygote:
                self._zygote = None
            closing = asyncio.ensure_future(zygote.close())
            self._closing.add(closing)
            closing.add_done_callback(self._closing.discard)

    def _keep(self) -> None:
        if self._letting_go is not None:
            self._letting_go.cancel()
            self._letting_go = None

    def _let_go_later(self) -> None:
        if self._busy == 0 and self._letting_go is None:
            self._letting_go = asyncio.get_running_loop().call_later(self._idle_s, self._let_go)

    def _let_go(self) -> None:
        self._letting_go = None
        if self._busy == 0:
            self._discard(self._zygote)


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

    def __init__(
        self,
        document: Document,
        child: Child,
        fetcher: Fetcher,
        limits: Limits,
        on_blocked: OnBlocked | None,
    ) -> None:
        self._document = document
        self._child = child
        self._fetcher = fetcher
        self._limits = limits
        self._on_blocked = on_blocked
        self._refused_status = 0
        self.blocked: Counter[Reason] = Counter()

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
            elif self._refused_status:
                raise fault("resource_status", self._refused_status)
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
        nothing = pack({"status": 0, "type": ""})
        try:
            fetched = await self._fetcher.fetch(url, method="GET", headers={})
        except UrlBlocked as blocked:
            self.blocked[blocked.reason] += 1
            if self._on_blocked is not None:
                self._on_blocked(blocked.reason)
            return nothing
        except OSError:
            return nothing
        if fetched.status in self._document.fail_on_status:
            self._refused_status = fetched.status
        kinds = [value for name, value in fetched.headers if name.lower() == "content-type"]
        head = {"status": fetched.status, "type": kinds[0] if kinds else "text/plain"}
        return pack(head, fetched.body)
