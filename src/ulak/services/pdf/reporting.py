"""The report of a job: what its PDF is, how long each step took, what to know of it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from pydantic import BaseModel, ConfigDict, Field

from ulak.services.pdf.document import REASONS
from ulak.services.pdf.model import PdfJob
from ulak.services.pdf.steps import in_milliseconds
from ulak.web.schemas import A_JOB, JobId


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

    model_config = ConfigDict(
        json_schema_extra={
            "example": {
                "job_id": A_JOB, "engine": "HeadlessChrome/156.0.8078.79", "pages": 1,
                "size": 67166, "sha256": "9f" * 32, "retry_count": 0,
                "timings": {
                    "queue": 0.012, "template": 0.009, "launch": 0.001, "load": 0.031,
                    "print": 0.038, "store": 0.004, "total": 0.07, "attempt": 0.084,
                },
                "blocked": {"allowlist": 1}, "script_errors": [],
                "warnings": [{"code": "missing_glyphs", "characters": ["U+1F600"], "count": 1}],
            }
        }
    )  # fmt: skip


def report_document(job: PdfJob, report: Mapping[str, Any] | None) -> dict[str, Any]:
    """Write the report of a job as callers see it.

    What was noted by another release, or by hand, and is of another kind is left out.
    """
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
