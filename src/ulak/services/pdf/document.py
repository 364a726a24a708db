"""What is rendered, under which limits, and what came of it: the words between the service and
its browsers. Imports nothing heavy, so that every process may."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import KW_ONLY, dataclass, field
from datetime import timedelta
from typing import Any, Final, Literal, Protocol

Reason = Literal["scheme", "allowlist", "address", "redirect"]
"""Why a page's request was refused."""
REASONS: Final[tuple[Reason, ...]] = ("scheme", "allowlist", "address", "redirect")


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
    """How long an attempt may take.

    Args:
        hard: At this the page is killed.
        graceful_offset: So long before, it is asked to close; loading must have ended by then.
    """

    hard: timedelta = timedelta(seconds=60)
    graceful_offset: timedelta = timedelta(seconds=5)

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
    """Width and height in inches, where the style sheet says none."""
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
    """Statuses that no resource may be answered with."""
    fail_on_script_error: bool = False
    omit_background: bool = False


MISSING_GLYPHS: Final = "missing_glyphs"
"""Characters that no font has were printed as boxes."""
GLYPHS_UNCHECKED: Final = "glyphs_unchecked"
"""The document is too large for its boxes to be looked for."""


@dataclass(frozen=True, slots=True)
class RenderWarning:
    """What the owners of a document should know of it, though it was printed."""

    code: str
    """A stable word, as `missing_glyphs`."""
    _: KW_ONLY
    characters: tuple[str, ...] = field(default=(), repr=False)
    """The first that it is about, as `U+1F600`: content of the document, so no log tells them."""
    count: int = 0
    """How often that is in the document."""

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
    """How many requests of the page were refused, by reason."""
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
        """Refuse.

        Raises:
            UrlBlocked: always.
        """
        scheme = url.partition(":")[0].lower()
        raise UrlBlocked("allowlist" if scheme in ("http", "https") else "scheme")


class Renderer(Protocol):
    """Turns documents into PDFs; the browser pool is one, that of WeasyPrint another."""

    async def render(self, document: Document, times: Times) -> Rendered:
        """Render one document in a context of its own.

        A browser that dies for another job's sake is replaced, and the document is rendered
        again within its time.

        Raises:
            TransientPdfError: the browser does not start, or the time ran out.
            PermanentPdfError: the document exceeds a limit, its page crashed, or no browser can
                run here.
        """
