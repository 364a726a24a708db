"""What is rendered, under which limits, in which steps, and what came of it: the words between the
service and its engines. Imports nothing heavy."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from dataclasses import KW_ONLY, dataclass, field
from datetime import timedelta
from types import TracebackType
from typing import Any, Final, Literal, Protocol, Self

from ulak.engine.tracing import Span, Tracing
from ulak.services.pdf.model import PdfError

Reason = Literal["scheme", "allowlist", "address", "redirect"]
REASONS: Final[tuple[Reason, ...]] = ("scheme", "allowlist", "address", "redirect")
MISSING_GLYPHS: Final = "missing_glyphs"
"""Characters that no font has were printed as boxes."""
GLYPHS_UNCHECKED: Final = "glyphs_unchecked"
"""The document is too large for its boxes to be looked for."""
QUEUE: Final = "queue"
"""From when a job was due - accepted, or let on to its next attempt - to its claim."""
TEMPLATE: Final = "template"
LAUNCH: Final = "launch"
"""Waiting for a browser and a page of it; of one that runs already nearly nothing."""
LOAD: Final = "load"
PRINT: Final = "print"
FINISH: Final = "finish"
"""Doing to what was printed what its request wants; of most jobs there is no such step."""
STORE: Final = "store"
BREAKDOWN: Final = (QUEUE, TEMPLATE, LAUNCH, LOAD, PRINT, FINISH, STORE)
"""The steps in their order, as reports and docs name them; a span's name begins with `pdf.`."""


@dataclass(frozen=True, slots=True)
class Limits:
    """What a document may cost. The defaults are those of docs/spec/pdf.md, section 10."""

    _: KW_ONLY
    html_bytes: int = 5 * 1024 * 1024
    dom_nodes: int = 200_000
    pages: int = 500
    output_bytes: int = 50 * 1024 * 1024
    memory_bytes: int = 1024 * 1024 * 1024
    """Of the process that renders the page."""


@dataclass(frozen=True, slots=True)
class Times:
    """How long an attempt may take."""

    hard: timedelta = timedelta(seconds=60)
    """At this the page is killed."""
    graceful_offset: timedelta = timedelta(seconds=5)
    """So long before, it is asked to close; loading must have ended by then."""

    @property
    def navigation(self) -> timedelta:
        """How long loading may take, waiting for fonts and images included."""
        return self.hard - self.graceful_offset


@dataclass(frozen=True, slots=True)
class Document:
    """One HTML text, complete in itself, and how it is to be printed.

    Scale 1, the page size of the style sheet, no margins of the driver's, print media and a
    viewport of 1280 by 720 are the same for every document; backgrounds are printed unless it says
    otherwise.
    """

    html: str = field(repr=False)
    _: KW_ONLY
    engine: str = "chromium"
    """What prints it, as its template's manifest says: chromium or weasyprint."""
    javascript: bool = False
    paper: tuple[float, float] = (8.27, 11.69)
    tagged: bool = False
    outline: bool = False
    header: str = field(default="", repr=False)
    """HTML that is drawn into the upper margin of every page; '' for none."""
    footer: str = field(default="", repr=False)
    ranges: str = ""
    """The pages that are printed, as `1-3,5,9-`; '' for all."""
    single_page: bool = False
    """All of it on one page, as long as it needs, whatever the style sheet says of its height."""
    wait_for: str = ""
    """A selector that must match before the document is complete; '' waits for nothing."""
    wait_for_expression: str = ""
    """A script that must be true before; only where scripts run."""
    fail_on_status: frozenset[int] = frozenset()
    fail_on_script_error: bool = False
    omit_background: bool = False


@dataclass(frozen=True, slots=True)
class RenderWarning:
    """What the owners of a document should know of it, though it was printed."""

    code: str
    """A stable word, as `missing_glyphs`."""
    _: KW_ONLY
    characters: tuple[str, ...] = field(default=(), repr=False)
    """The first that it is about, as `U+1F600`: content of the document, so no log tells them."""
    count: int = 0

    def as_document(self) -> dict[str, Any]:
        """Write it as reports have it."""
        return {"code": self.code, "characters": list(self.characters), "count": self.count}


@dataclass(frozen=True, slots=True)
class Rendered:
    """A printed document."""

    pdf: bytes = field(repr=False)
    _: KW_ONLY
    pages: int
    engine: str
    """Name and version of what has printed it, as WeasyPrint/70.0."""
    timings: Mapping[str, float]
    """Seconds of `launch`, `load`, `print` and `total`; of those that there were."""
    blocked: Mapping[Reason, int] = field(default_factory=dict)
    script_errors: tuple[str, ...] = ()
    """What scripts threw and nobody caught: class and place, never the message's values."""
    warnings: tuple[RenderWarning, ...] = ()


class UrlBlocked(Exception):
    """A request of a page is refused; nothing was sent."""

    def __init__(self, reason: Reason) -> None:
        super().__init__(reason)
        self.reason: Reason = reason


@dataclass(frozen=True, slots=True)
class Fetched:
    """What an allowed URL answered, redirects followed."""

    status: int
    headers: tuple[tuple[str, str], ...]
    body: bytes = field(repr=False)


class Fetcher(Protocol):
    """Fetches for pages, which have no network of their own."""

    async def fetch(self, url: str, *, method: str, headers: Mapping[str, str]) -> Fetched:
        """Fetch what the allow-list lets through, from the address that was checked.

        Raises:
            UrlBlocked: the URL, its address or a redirect is not allowed.
            OSError: it is allowed, and the other side does not answer or answers too much.
        """


class NoNetwork:
    """The fetcher of an empty allow-list: everything is refused."""

    async def fetch(self, url: str, *, method: str, headers: Mapping[str, str]) -> Fetched:
        """Raise UrlBlocked."""
        scheme = url.partition(":")[0].lower()
        raise UrlBlocked("allowlist" if scheme in ("http", "https") else "scheme")


class Renderer(Protocol):
    """Turns documents into PDFs; the browser pool is one, that of WeasyPrint another."""

    async def render(self, document: Document, times: Times) -> Rendered:
        """Render one document in a context of its own.

        A browser that dies for another job's sake is replaced, and the document is rendered again
        within its time.

        Raises:
            TransientPdfError: the browser does not start, or the time ran out.
            PermanentPdfError: the document exceeds a limit, its page crashed, or none can run here.
        """


class Steps:
    """Takes the time of steps that follow each other, and traces each while a trace is open.

    A context manager: at its end the step that goes on has ended, and has failed if the block has.
    Begin and end it in one task. Of what was raised a span gets the code or the class alone: the
    message may quote the document.
    """

    def __init__(
        self, tracing: Tracing | None = None, *, monotonic: Callable[[], float] = time.monotonic
    ) -> None:
        is_traced = tracing is not None and tracing.current() is not None
        self._tracing = tracing if is_traced else None
        self._monotonic = monotonic
        self._name = ""
        self._began = 0.0
        self._traces = ExitStack()
        self._span: Span | None = None
        self.took: dict[str, float] = {}
        """Seconds of every step that has ended; of one that came twice, both together."""

    def begin(self, name: str) -> None:
        """End the step that goes on and begin another; the one that goes on already goes on."""
        if name == self._name:
            return
        self.end()
        self._name, self._began = name, self._monotonic()
        if self._tracing is not None:
            self._span = self._traces.enter_context(self._tracing.span(f"pdf.{name}", "internal"))

    def end(self) -> None:
        """End the step that goes on, if one does."""
        if not self._name:
            return
        spent = self._monotonic() - self._began
        self.took[self._name] = self.took.get(self._name, 0.0) + spent
        self._name, self._span = "", None
        self._traces.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        at: TracebackType | None,
    ) -> None:
        if error is not None and self._span is not None:
            word = type(error).__name__
            if isinstance(error, PdfError):
                word = f"{error.code} ({error.detail})" if error.detail else error.code
            self._span.fail(word)
        self.end()


def in_milliseconds(timings: Any) -> dict[str, float]:
    """Write timings in seconds, to the millisecond, the steps in their order; leave out what is no
    time, as another release may have noted it."""
    if not isinstance(timings, Mapping):
        return {}
    known = [name for name in BREAKDOWN if name in timings]
    others = [name for name in timings if name not in BREAKDOWN]
    times = {str(name): read_number(timings[name]) for name in (*known, *others)}
    return {name: round(seconds, 3) for name, seconds in times.items() if seconds is not None}


def read_number(value: Any) -> float | None:
    """Return a number that is finite and not negative, None for anything else."""
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    return float(value) if is_number and 0 <= value < float("inf") else None
