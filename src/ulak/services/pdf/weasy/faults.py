"""Why a document is not printed: the words that its process may say, and the errors they become."""

from __future__ import annotations

from typing import Final

from ulak.services.pdf.model import (
    PdfErrorCode,
    PermanentPdfError,
    TransientPdfError,
    not_as_asked,
    not_started,
    over_limit,
)

ENGINE: Final = "weasyprint"
"""The detail of errors that are this engine's and no document's, by which readiness knows them."""

INSTALL: Final = "pip install 'ulak[weasyprint]'"
LIBRARIES: Final = (
    "apt-get install libpango-1.0-0 libpangoft2-1.0-0 libharfbuzz-subset0 fonts-liberation"
)

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
"""Every word that a document's process may say."""


def fault(word: str, count: int = 0) -> PermanentPdfError:
    """Make the error of a word; one that is none of `FAULTS` says that the page broke.

    Args:
        word: As the document's process has said it: any text.
        count: How much of it, where that is a number.
    """
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


def missing(what: str, name: str = "") -> PermanentPdfError:
    """Make the error of a machine that lacks something; it says how to mend it.

    Args:
        what: `package`, `version` or `library`, as the process that loads WeasyPrint says it.
        name: Of what is missing.
    """
    return PermanentPdfError(
        f"{lack(what, name)}; {cure(what)}", code=PdfErrorCode.UNSUPPORTED_PLATFORM, detail=ENGINE
    )


def lack(what: str, name: str = "") -> str:
    """Say what is missing."""
    if what == "library":
        return "a library that WeasyPrint needs is not installed"
    if what == "version":
        return "the WeasyPrint that is installed is too old"
    return f"templates of the engine weasyprint need {name or ENGINE}, which is not installed"


def cure(what: str) -> str:
    """Say how to mend it."""
    return LIBRARIES if what == "library" else INSTALL


def lost(why: str) -> TransientPdfError:
    """Make the error of an engine that does not start, and may the next time."""
    return not_started(f"WeasyPrint did not start: {why}", detail=ENGINE)
