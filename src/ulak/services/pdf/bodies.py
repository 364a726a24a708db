"""What callers send and get: read strictly, in the order in which the specification checks."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Mapping
from typing import Any, Final, Literal

from fastapi import Request
from pydantic import BaseModel, ConfigDict, Field, ValidationError

from ulak.errors import BadInput
from ulak.kit import read_json
from ulak.kit.bodies import Body, storable
from ulak.kit.clock import rfc3339
from ulak.services.pdf.document import REASONS, in_milliseconds
from ulak.services.pdf.model import BadOptions, PdfError, PdfErrorCode, PdfJob, PdfJobStatus
from ulak.services.pdf.output import NOTHING_MORE, OutputOptions, read_output
from ulak.services.pdf.page import PageOptions, read_page
from ulak.services.pdf.responses import Refusal
from ulak.services.pdf.security.template_input import sanitize_html_variables
from ulak.services.pdf.settings import PdfRenderConfig
from ulak.web.schemas import A_JOB, A_MOMENT, JobId, Moment, Page

# What every store, and every reader of JSON that is not Python, can hold.
LARGEST_INT: Final = 2**63 - 1
MOST_COMPLAINTS: Final = 20


def example(said: Mapping[str, Any]) -> ConfigDict:
    """Configure a model with its example for the OpenAPI document."""
    return ConfigDict(json_schema_extra={"example": dict(said)})


class PdfPageOptions(Body):
    """What is wanted of the printed page; each only where the template allows it."""

    paper: str | None = Field(
        None,
        description="A3, A4, A5, A6, B5, Letter or Legal, or `210 x 297 mm` (cm, in). Where the "
        "template's style sheet has a page size, that counts.",
        examples=["A5"],
    )
    landscape: bool | None = Field(None, description="The longer edge of the paper lies.")
    header: str | None = Field(
        None,
        description="A file of the template's folder that is drawn into the upper margin.",
        examples=["header.html"],
    )
    footer: str | None = Field(None, description="The same for the lower margin.")
    ranges: str | None = Field(
        None, description="The pages that are printed, in their order.", examples=["1-3, 5"]
    )
    single_page: bool | None = Field(None, description="All on one page, as long as it needs.")
    wait_for: str | None = Field(
        None, description="A selector that something must match before it is printed."
    )
    wait_for_expression: str | None = Field(
        None, description="A script that must be true before; where the template has scripts."
    )
    fail_on_status: list[int] | None = Field(
        None,
        description="Fails when a resource of the page is answered with one of these statuses.",
        examples=[[404, 500]],
    )
    fail_on_script_error: bool | None = Field(
        None, description="Fails when a script throws and nobody catches it."
    )
    omit_background: bool | None = Field(None, description="Backgrounds are not printed.")


class PdfMetadata(Body):
    """What the PDF says about itself, in place of what its HTML says."""

    title: str | None = Field(None, examples=["Invoice 1847"])
    author: str | None = Field(None, examples=["Ada Lovelace"])
    subject: str | None = None
    keywords: list[str] | None = Field(None, examples=[["invoice", "2026"]])
    language: str | None = Field(None, examples=["tr"])


class PdfWatermark(Body):
    """A text across every page."""

    text: str = Field(description="One line of up to 60 characters.", examples=["DRAFT"])
    opacity: float | None = Field(None, description="From 0.01 to 1; 0.15 by default.")
    angle: float | None = Field(None, description="Degrees, from -90 to 90; 45 by default.")
    colour: str | None = Field(None, examples=["#aa0000"])


class PdfAppended(Body):
    """A document that follows the first one."""

    template_name: str = Field(description="The name of a template that is allowed.")
    variables: dict[str, Any] = Field(description="What that template is filled with.")


class PdfAttachment(Body):
    """A file inside of the PDF."""

    name: str = Field(examples=["invoice.xml"])
    media_type: str = Field(examples=["application/xml"])
    data: str = Field(description="Its bytes in base64.", repr=False)
    relationship: Literal["Data", "Source", "Alternative", "Supplement", "Unspecified"] | None = (
        Field(None, description="How it belongs to the document; `Unspecified` by default.")
    )
    description: str | None = None


class PdfPassword(Body):
    """What opens the PDF; neither is ever stored in clear."""

    user: str | None = Field(None, description="Opens it.", repr=False)
    owner: str | None = Field(None, description="Opens it with every right.", repr=False)
    allow: list[Literal["annotate", "assemble", "copy", "fill", "modify", "print"]] | None = Field(
        None, description="What may be done without the owner's; everything by default."
    )


class PdfOutputOptions(Body):
    """What is done to the printed document; each only where the template allows it."""

    metadata: PdfMetadata | None = None
    watermark: PdfWatermark | None = None
    append: list[PdfAppended] | None = Field(
        None, description="Documents that follow, in this order, with their outlines."
    )
    attachments: list[PdfAttachment] | None = None
    password: PdfPassword | None = Field(None, description="Encrypts the PDF with AES-256.")


class PdfRenderOptions(Body):
    """How a document is to be rendered and delivered."""

    timeout: int | None = Field(
        None,
        description="Seconds that one attempt may take; above the graceful offset, at most the "
        "configured maximum. By default as configured.",
        examples=[60],
    )
    fail_safe: Literal["strict", "degrade"] | None = Field(
        None,
        description="What to answer while nothing can be rendered: an error, or the HTML. By "
        "default as configured.",
    )
    priority: int | None = Field(
        None,
        description="0 is the most urgent of 0 to 3, 1 is usual; how urgent it may be is "
        "configured.",
        examples=[2],
    )
    callback_url: str | None = Field(
        None,
        description="Is sent the job, signed, when it has ended; where that may be is configured.",
        examples=["https://shop.example.org/pdf-done"],
    )
    page: PdfPageOptions | None = Field(
        None, description="What is wanted of the printed page, as far as the template allows it."
    )
    output: PdfOutputOptions | None = Field(
        None, description="What is done to the printed document, as far as the template allows it."
    )


class PdfJobRequest(Body):
    """A document that is wanted."""

    template_name: str = Field(description="The name of a template that is allowed.")
    variables: dict[str, Any] = Field(description="What the template is filled with.")
    options: PdfRenderOptions = Field(default_factory=lambda: PdfRenderOptions.model_validate({}))

    model_config = example(
        {
            "template_name": "certificate",
            "variables": {"name": "Ada Lovelace"},
            "options": {"timeout": 30, "page": {"paper": "A5", "ranges": "1-3, 5"}},
        }
    )


class PdfJobResponse(BaseModel):
    """A job that was accepted, or was there before."""

    job_id: JobId
    status: PdfJobStatus
    created_at: Moment

    model_config = example({"job_id": A_JOB, "status": "queued", "created_at": A_MOMENT})


class PdfJobStatusResponse(BaseModel):
    """A job as it stood when it was read."""

    job_id: JobId
    status: PdfJobStatus
    created_at: Moment
    started_at: Moment | None = Field(description="When its present or last attempt began.")
    finished_at: Moment | None = Field(description="When it succeeded or failed.")
    error_code: PdfErrorCode | None = Field(description="Why it failed.")
    download_url: str | None = Field(description="Where the PDF is, once it has succeeded.")
    retry_count: int
    error_detail: str = Field(
        "",
        description="A stable word for what exactly failed; left out where there is none.",
        examples=["memory_exceeded"],
    )

    model_config = example({
        "job_id": A_JOB, "status": "succeeded", "created_at": A_MOMENT, "started_at": A_MOMENT,
        "finished_at": A_MOMENT, "error_code": None,
        "download_url": f"/pdf/jobs/{A_JOB}/download", "retry_count": 0,
    })  # fmt: skip


class PdfJobPage(Page[PdfJobStatusResponse, str]):
    """Jobs, what was asked for last first."""


def status_document(job: PdfJob, root: str) -> dict[str, Any]:
    """Write a job as callers see it; `root` is where the application is mounted."""
    has_pdf = job.status is PdfJobStatus.SUCCEEDED
    return {
        "job_id": job.job_id, "status": job.status,
        "created_at": rfc3339(job.created_at),
        "started_at": job.started_at and rfc3339(job.started_at),
        "finished_at": job.finished_at and rfc3339(job.finished_at),
        "error_code": job.error_code,
        "download_url": f"{root}/pdf/jobs/{job.job_id}/download" if has_pdf else None,
        "retry_count": job.retry_count,
        **show_error_detail(job),
    }  # fmt: skip


def show_error_detail(job: PdfJob) -> dict[str, str]:
    """Return the member that says what exactly failed, where that is known."""
    return {"error_detail": job.error_detail} if job.error_detail else {}


class PdfJobNotReady(BaseModel):
    """A job whose PDF is not there yet."""

    job_id: JobId
    status: PdfJobStatus


class PdfLink(BaseModel):
    """A link that downloads one PDF without a credential; a secret until it is over."""

    url: str = Field(examples=[f"/pdf/links/{A_JOB}/1790000000.AbC"])
    expires_in_seconds: int = Field(examples=[300])


async def read_body(request: Request, *, largest: int) -> bytes:
    """Read what was sent, and stop as soon as it is more than `largest` bytes.

    What arrives is counted; a length that is announced is believed only when it is too large.

    Raises:
        Refusal: it has more.
    """
    announced = request.headers.get("content-length", "")
    # Longer numbers are no lengths, and int() would take its time.
    if announced.isdecimal() and (len(announced) > 18 or int(announced) > largest):
        raise too_large("the body", largest)
    body = bytearray()
    async for chunk in request.stream():
        body += chunk
        if len(body) > largest:
            raise too_large("the body", largest)
    return bytes(body)


def read_request(body: bytes, config: PdfRenderConfig) -> PdfJobRequest:
    """Read a request, member by member. Raises Refusal: 422, naming every field that is wrong, and
    never what it says."""
    try:
        members = read_json(body)
    except (ValueError, RecursionError) as error:
        raise unreadable(error) from None
    try:
        asked = PdfJobRequest.model_validate(members)
    except ValidationError as error:
        raise _invalid([_complaint(each) for each in error.errors(include_url=False)]) from None
    _must_be_usable(asked.variables, "variables")
    try:
        page_of(asked)
        for number, one in enumerate(output_of(asked).append):
            _must_be_usable(one.variables, f"options.output.append.{number}.variables")
    except BadOptions as error:
        raise bad_options(error) from None
    for name, read in (("timeout", config.times_for), ("priority", config.priority_for)):
        try:
            read(getattr(asked.options, name))
        except BadInput as error:
            raise invalid(f"options.{name}", str(error)) from None
    if asked.options.callback_url is not None:
        # Here and not above: few ask for it.
        from ulak.services.pdf.security.urls import validate_url

        if not validate_url(asked.options.callback_url, config.security.callback_allowlist):
            why = "callbacks are not sent there; ask who runs this service"
            raise invalid("options.callback_url", why)
    return asked


def _must_be_usable(variables: Mapping[str, Any], place: str) -> None:
    try:
        # For its checks alone: escaped is what is printed, and what is stored is as it was sent.
        sanitize_html_variables(variables)
    except (BadInput, PdfError) as error:
        raise invalid(place, str(error)) from None
    if wrong := list(_unusable(variables, place)):
        raise _invalid(wrong)


def page_of(asked: PdfJobRequest) -> PageOptions:
    """Return what a request says about its printed page. Raises BadPage: naming every option that
    cannot be used."""
    said = asked.options.page
    return read_page({} if said is None else said.model_dump(exclude_none=True))


def output_of(asked: PdfJobRequest) -> OutputOptions:
    """Return what a request wants done to the printed document. Raises BadOutput: naming every
    field that cannot be used."""
    said = asked.options.output
    return NOTHING_MORE if said is None else read_output(said.model_dump(exclude_none=True))


def bad_options(error: BadOptions) -> Refusal:
    """Refuse page or output options: 422, naming each."""
    return _invalid([(f"options.{error.part}.{place}", why) for place, why in error.wrong])


def too_large(what: str, largest: int) -> Refusal:
    """Refuse what is larger than it may be: 413."""
    return Refusal(
        f"{what} is larger than {largest:,} bytes; send less, or large assets with the template",
        status=413, error_code="PAYLOAD_TOO_LARGE", details={"max_bytes": largest},
        # The rest of what was announced is not read, so nothing can follow on this connection.
        headers={"Connection": "close"},
    )  # fmt: skip


def invalid(field: str, message: str) -> Refusal:
    """Refuse one field: 422."""
    return _invalid([(field, message)])


def _invalid(wrong: list[tuple[str, str]]) -> Refusal:
    shown = wrong[:MOST_COMPLAINTS]
    return Refusal(
        "; ".join(f"{field}: {message}" for field, message in shown),
        status=422, error_code="VALIDATION_ERROR",
        details={"fields": [{"field": f, "message": m} for f, m in shown]},
    )  # fmt: skip


def _complaint(found: Mapping[str, Any]) -> tuple[str, str]:
    """Say what is wrong; of what was sent nothing but the names of fields."""
    place = ".".join(map(str, found["loc"]))[:200] or "body"
    if found["type"] == "extra_forbidden":
        return place, "there is no such field"
    return place, str(found["msg"])


def _unusable(value: Any, place: str) -> Iterator[tuple[str, str]]:
    """Find what cannot be kept or printed as it was sent, in variables whose names are names."""
    if isinstance(value, dict):
        for name, inner in value.items():
            yield from _unusable(inner, f"{place}.{name}")
    elif isinstance(value, list):
        for number, inner in enumerate(value):
            yield from _unusable(inner, f"{place}[{number}]")
    elif isinstance(value, str):
        try:
            storable(value)
        except ValueError as error:
            yield place, str(error)
    elif isinstance(value, float) and not math.isfinite(value):
        yield place, "it is no finite number"
    elif isinstance(value, int) and not -LARGEST_INT <= value <= LARGEST_INT:
        yield place, "it is larger than 64 bits can hold; send it as a text"


def unreadable(error: Exception) -> Refusal:
    """Refuse what is no JSON: 422, without anything of what was sent."""
    why = str(error)
    if isinstance(error, json.JSONDecodeError):
        why = f"{error.msg} at character {error.pos}"
    elif isinstance(error, UnicodeDecodeError):
        why = f"it is no UTF-8 at byte {error.start}"
    elif isinstance(error, RecursionError):
        why = "it is nested too deeply"
    return invalid("body", f"this is no JSON that can be read: {why}")


class PdfWarning(BaseModel):
    """What is to be known of a PDF, though it was printed."""

    code: str = Field(description="A stable word.", examples=["missing_glyphs"])
    characters: list[str] = Field(
        description="The first twenty characters that it is about.", examples=[["U+1F600"]]
    )
    count: int = Field(description="How often that is in the document.", examples=[1])


class PdfReport(BaseModel):
    """What the attempt that has succeeded found out; null is what it has not noted."""

    job_id: JobId
    engine: str | None = Field(description="The browser that has printed it, and its version.")
    pages: int | None
    size: int | None = Field(description="Bytes.")
    sha256: str | None
    retry_count: int = Field(description="How many attempts have failed before.")
    timings: dict[str, float] = Field(
        description="Seconds: queue, template, launch, load, print and store; total, which is "
        "launch to print; attempt, which is everything but queue."
    )
    blocked: dict[str, int] = Field(description="Requests of its page that were refused, by why.")
    script_errors: list[str] = Field(description="What its scripts threw: class and line.")
    warnings: list[PdfWarning]

    model_config = example({
        "job_id": A_JOB, "engine": "HeadlessChrome/156.0.8078.79", "pages": 1, "size": 67166,
        "sha256": "9f" * 32, "retry_count": 0,
        "timings": {
            "queue": 0.012, "template": 0.009, "launch": 0.001, "load": 0.031, "print": 0.038,
            "store": 0.004, "total": 0.07, "attempt": 0.084,
        },
        "blocked": {"allowlist": 1}, "script_errors": [],
        "warnings": [{"code": "missing_glyphs", "characters": ["U+1F600"], "count": 1}],
    })  # fmt: skip


def report_document(job: PdfJob, report: Mapping[str, Any] | None) -> dict[str, Any]:
    """Write the report of a job as callers see it, without what is of another kind: another release
    has noted it, or a person by hand."""
    said: Mapping[str, Any] = report or {}
    blocked = _kind(said.get("blocked"), dict) or {}
    return {
        "job_id": job.job_id,
        "engine": _kind(said.get("engine"), str),
        "pages": _kind(said.get("pages"), int),
        "size": _kind(said.get("size"), int),
        "sha256": _kind(said.get("sha256"), str),
        "retry_count": job.retry_count,
        "timings": in_milliseconds(said.get("timings")),
        "blocked": {why: n for why in REASONS if (n := _kind(blocked.get(why), int))},
        "script_errors": _texts(said.get("script_errors")),
        "warnings": [
            {
                "code": warning["code"],
                "characters": _texts(warning.get("characters")),
                "count": _kind(warning.get("count"), int) or 0,
            }
            for warning in _kind(said.get("warnings"), list) or []
            if isinstance(warning, dict) and isinstance(warning.get("code"), str)
        ],
    }


def _kind(value: Any, kind: type) -> Any:
    return value if isinstance(value, kind) and not isinstance(value, bool) else None


def _texts(value: Any) -> list[str]:
    return [each for each in _kind(value, list) or [] if isinstance(each, str)]
