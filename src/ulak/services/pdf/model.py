"""The words of PDF rendering: what a job may be, how it may fail, what a caller may ask for."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import KW_ONLY, dataclass, field
from datetime import datetime
from enum import StrEnum
from typing import Any, Final

from ulak.errors import BadInput, UlakError


class PdfJobStatus(StrEnum):
    """Where a job stands; the states of the flow."""

    QUEUED = "queued"
    RUNNING = "running"
    SUCCEEDED = "succeeded"
    FAILED = "failed"
    EXPIRED = "expired"


class PdfErrorCode(StrEnum):
    """Why a job failed, or a request was refused; a closed set."""

    BROWSER_LAUNCH_FAILED = "BROWSER_LAUNCH_FAILED"
    NAVIGATION_TIMEOUT = "NAVIGATION_TIMEOUT"
    TEMPLATE_ERROR = "TEMPLATE_ERROR"
    UNSUPPORTED_PLATFORM = "UNSUPPORTED_PLATFORM"
    UNKNOWN = "UNKNOWN"
    PDF_RENDER_UNAVAILABLE = "PDF_RENDER_UNAVAILABLE"
    BACKPRESSURE_ACTIVE = "BACKPRESSURE_ACTIVE"


JOB_CODES: Final = tuple(
    code for code in PdfErrorCode if code not in ("PDF_RENDER_UNAVAILABLE", "BACKPRESSURE_ACTIVE")
)
"""The codes that a job may fail with; the others are of the API alone."""
MOST_TOLD: Final = 1_500
"""Characters of an error's message, without its detail; the trail keeps a bit more."""
LONGEST_TEXT: Final = 1_000
"""Characters of a text: a selector, an expression, a title; a guess."""
TRANSIENT_ERRORS: Final = frozenset(
    {PdfErrorCode.BROWSER_LAUNCH_FAILED, PdfErrorCode.NAVIGATION_TIMEOUT}
)
MAX_RETRIES: Final = 2


def should_retry(error_code: PdfErrorCode, retry_count: int) -> bool:
    """Tell whether an attempt that failed so is followed by another."""
    return error_code in TRANSIENT_ERRORS and retry_count < MAX_RETRIES


class PdfError(UlakError):
    """An attempt or a request failed, with a code of the closed set.

    The message has no variables, HTML, keys or tokens; `detail` is a stable word for what exactly
    happened, as `artifact_write_failed`.
    """

    def __init__(self, message: str, *, code: PdfErrorCode, detail: str = "") -> None:
        # The trail keeps the text alone, and the beginning of a long one: the detail is part of it,
        # so that it can be read there.
        if len(message) > MOST_TOLD:
            message = message[: MOST_TOLD - 1] + "…"
        super().__init__(f"{message} ({detail})" if detail else message)
        self.code = str(code)
        self.detail = detail
        self.blocked: Mapping[Any, int] = {}
        """The requests that were refused to the page of the attempt, by why."""


class TransientPdfError(PdfError):
    """Another attempt may succeed."""


class MachineFault(TransientPdfError):
    """The machine has failed the document: what rendered it was killed, or its disk is full.

    A worker gives such a job back, and no retry is spent.
    """


class PermanentPdfError(PdfError):
    """Another attempt would fail the same way."""


class WrongVariables(PermanentPdfError):
    """Variables are not what a template declares; the first ten are told, and never a value."""

    def __init__(self, template: str, wrong: list[tuple[str, str]]) -> None:
        self.wrong = wrong[:10]
        told = "; ".join(f"{name} {message}" for name, message in self.wrong)
        super().__init__(
            f"template {template!r}: {told}", code=PdfErrorCode.TEMPLATE_ERROR, detail="variables"
        )


def pdf_error(message: str, *, code: PdfErrorCode, detail: str = "") -> PdfError:
    """Make the error of a code, of the class that says whether it is worth another attempt."""
    kind = TransientPdfError if code in TRANSIENT_ERRORS else PermanentPdfError
    return kind(message, code=code, detail=detail)


def over_limit(detail: str, what: str) -> PermanentPdfError:
    """Make the error of a document that costs more than it may."""
    message = f"the document exceeds a limit: {what}"
    return PermanentPdfError(message, code=PdfErrorCode.TEMPLATE_ERROR, detail=detail)


def not_as_asked(detail: str, what: str) -> PermanentPdfError:
    """Make the error of a document that is not what its request wants of it."""
    message = f"the document is not what was asked for: {what}"
    return PermanentPdfError(message, code=PdfErrorCode.TEMPLATE_ERROR, detail=detail)


def not_started(message: str, *, detail: str = "") -> TransientPdfError:
    """Make the error of a renderer that does not start, and may the next time."""
    return TransientPdfError(message, code=PdfErrorCode.BROWSER_LAUNCH_FAILED, detail=detail)


@dataclass(frozen=True, slots=True)
class PdfJob:
    """A job as its store shows it."""

    job_id: str
    job_key: str
    status: PdfJobStatus
    template_name: str
    payload: dict[str, Any] = field(repr=False)
    _: KW_ONLY
    created_at: datetime
    artifact_key: str | None = None
    error_code: PdfErrorCode | None = None
    retry_count: int = 0
    started_at: datetime | None = None
    finished_at: datetime | None = None
    tenant_id: str = ""
    owners: frozenset[str] = frozenset()
    attempt_id: int = 0
    """Rises with every claim; a late writer with an older one is refused."""
    heartbeat_at: datetime | None = None
    error_detail: str = ""
    correlation_id: str = ""


@dataclass(frozen=True, slots=True)
class Backpressure:
    """Whether load control refuses new jobs, and for how long callers are asked to stay away."""

    active: bool = False
    retry_after_seconds: int = 1
    _: KW_ONLY
    since: datetime | None = None
    correlation_id: str = ""


class BadOptions(BadInput):
    """Options cannot be used; `wrong` tells for each field why, and never a value."""

    part = ""
    """The member of a request's options that it is about."""

    def __init__(self, wrong: list[tuple[str, str]]) -> None:
        super().__init__("; ".join(f"{place}: {message}" for place, message in wrong))
        self.wrong = wrong


def not_allowed(allowed: Iterable[str], known: Iterable[str]) -> str:
    """Say that a template does not allow an option, and which of those that are known it does."""
    usable = [name for name in known if name in allowed]
    advice = f"its callers may say {', '.join(usable)}" if usable else "there is none"
    return f"the template does not allow this option; {advice}"


def read_text(said: Any) -> str:
    """Read a text that people can read, without the space around it. Raises ValueError: it is
    something else."""
    if not isinstance(said, str) or not said.strip():
        raise ValueError("write a text")
    if len(said) > LONGEST_TEXT:
        raise ValueError(f"it has more than {LONGEST_TEXT} characters")
    if not said.isprintable():
        raise ValueError("it holds a character that cannot be printed")
    return said.strip()


def read_boolean(said: Any) -> bool:
    """Read true or false. Raises ValueError: it is something else."""
    if not isinstance(said, bool):
        raise ValueError("write true or false")
    return said
