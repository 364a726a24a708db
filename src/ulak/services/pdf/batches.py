"""Many documents in one request: each is checked as if it were alone, and has its own result."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Iterator
from typing import Any, Final

from fastapi import APIRouter, Depends, Request, Response
from pydantic import BaseModel, Field

from ulak.kit.clock import rfc3339
from ulak.services.pdf.accepting import Accepting, Refused
from ulak.services.pdf.bodies import (
    PdfJobRequest,
    example,
    invalid,
    read_body,
    read_request,
    too_large,
    unreadable,
)
from ulak.services.pdf.failsafe import UNFINISHED, Pacing, Unavailable
from ulak.services.pdf.job_routes import root_of
from ulak.services.pdf.jobs import Created
from ulak.services.pdf.model import PdfJobStatus
from ulak.services.pdf.responses import Refusal
from ulak.web import Caller
from ulak.web.problems import correlation_id
from ulak.web.routes.jobs import IDEMPOTENCY_KEY
from ulak.web.schemas import A_JOB, A_MOMENT, JobId, Moment, answer, problems

JOBS: Final = "jobs"
MULTI_STATUS: Final = 207
_SPACE: Final = " \t\n\r"


class PdfBatchResult(BaseModel):
    """What became of one job of a batch: members that say nothing are left out."""

    index: int = Field(description="Its place in the batch, from 0.")
    status: int = Field(
        description="What `POST /pdf/jobs` would have answered to it: 202, 400, 413, 422, 429, 503."
    )
    job_id: JobId | None = None
    job_status: PdfJobStatus | None = None
    created_at: Moment | None = None
    deduplicated: bool | None = Field(None, description="Whether the job was there already.")
    error_code: str | None = None
    message: str | None = None
    details: dict[str, Any] | None = None
    retry_after_seconds: int | None = Field(
        None, description="When to read the job, or to ask for it again."
    )


class PdfBatchResponse(BaseModel):
    """What became of every job of a batch, in the order in which they were sent."""

    results: list[PdfBatchResult]

    model_config = example({
        "results": [
            {
                "index": 0, "status": 202, "job_id": A_JOB, "job_status": "queued",
                "created_at": A_MOMENT, "deduplicated": False, "retry_after_seconds": 2,
            },
            {
                "index": 1, "status": 400, "error_code": "TEMPLATE_ERROR",
                "message": "template 'payroll' is not in the allow-list",
            },
        ]
    })  # fmt: skip


def add_batches(
    routes: APIRouter,
    accepting: Accepting,
    pacing: Pacing,
    *,
    once: Callable[..., Any],
    item: dict[str, Any],
    count_unavailable: Callable[[], None],
) -> None:
    """Add the route; `item` is the schema of one job, and `count_unavailable` is called for each
    job that gets none because no worker lives."""
    config = accepting.config

    def read(job: bytes) -> PdfJobRequest:
        """Size, schema, allow-list: as a create has them."""
        if len(job) > config.max_payload_bytes:
            raise too_large("this job", config.max_payload_bytes)
        asked = read_request(job, config)
        if asked.options.fail_safe == "degrade":
            why = "HTML cannot stand in for one of many; leave it out, or create this job alone"
            raise invalid("options.fail_safe", why)
        accepting.must_be_allowed(asked.template_name)
        return asked

    def result_of(answered: Created | Refused) -> dict[str, Any]:
        if isinstance(answered, Refusal):
            told = {"status": answered.status, "message": str(answered), **answered.members}
            if (wait := answered.retry_after) is not None:
                told["retry_after_seconds"] = int(wait.total_seconds())
            return told
        if isinstance(answered, Unavailable):
            count_unavailable()
            return {
                "status": 503, "error_code": answered.code, "message": str(answered),
                "retry_after_seconds": answered.retry_after_s,
            }  # fmt: skip
        job = answered.job
        result = {
            "status": 202, "job_id": job.job_id, "job_status": job.status,
            "created_at": rfc3339(job.created_at), "deduplicated": answered.is_repeat,
        }  # fmt: skip
        if job.status in UNFINISHED:
            result["retry_after_seconds"] = pacing.look().retry_after_s(job.status)
        return result

    async def items_of(request: Request) -> list[bytes]:
        """Size, then shape; what the jobs themselves say is for each to answer."""
        body = await read_body(request, largest=config.max_batch_bytes)
        return await asyncio.to_thread(split_batch, body, most=config.batch_limit)

    @routes.post(
        "/pdf/batches",
        status_code=MULTI_STATUS,
        response_model=PdfBatchResponse,
        responses=problems(413, 422),
        openapi_extra={
            "parameters": [IDEMPOTENCY_KEY],
            "requestBody": {
                "required": True,
                "content": {"application/json": {"schema": _schema(item, config.batch_limit)}},
            },
        },
        dependencies=[Depends(once)],
    )
    def create_batch(
        request: Request,
        principal: Caller,
        items: list[bytes] = Depends(items_of),  # noqa: B008 - annotations cannot name a local
    ) -> Response:
        """Have many documents rendered. Each job is taken or refused by itself, as
        `POST /pdf/jobs` would, and the answer is 207 with a result for each, in order; those that
        were taken are durable then. The same again answers the same jobs."""
        answers: dict[int, Created | Refused] = {}
        wanted: dict[int, PdfJobRequest] = {}
        for number, job in enumerate(items):
            try:
                wanted[number] = read(job)
            except Refusal as refusal:
                answers[number] = refusal
        accepted = accepting.accept_all(
            list(wanted.values()), principal, correlation_id(request), root_of(request)
        )
        answers |= zip(wanted, accepted, strict=True)
        results = [{"index": n, **result_of(answers[n])} for n in range(len(items))]
        return answer({"results": results}, MULTI_STATUS)


def split_batch(body: bytes, *, most: int) -> list[bytes]:
    """Return the jobs of a batch, `{"jobs": [...]}`, each in the bytes in which it was sent: so
    what one of them says twice, or wrongly, is its own fault.

    Raises:
        Refusal: 422, it is no such document, or has more than `most` jobs.
    """
    try:
        text = body.decode()
        items = [text[start:end] for start, end in _places_in(text, most)]
    except (RecursionError, UnicodeDecodeError, json.JSONDecodeError) as error:
        raise unreadable(error) from None
    if not items:
        raise invalid(JOBS, f"there are none; send 1 to {most}")
    return [item.encode() for item in items]


def _places_in(text: str, most: int) -> Iterator[tuple[int, int]]:
    """Find where each job of a batch begins and ends."""
    at = _after(text, "{", 0, "an object")
    if text[at : at + 1] == "}":
        raise invalid(JOBS, "it is missing; send a list of jobs")
    at = _after(text, ":", _must_be_jobs(text, at, seen=False), "a colon")
    if text[at : at + 1] != "[":
        raise invalid(JOBS, "it is no list; send a list of jobs")
    at = _skip(text, at + 1)
    found = 0
    while text[at : at + 1] != "]" or found:
        found += 1
        if found > most:
            raise invalid(JOBS, f"there are more than {most}; send several batches")
        end = _DECODER.raw_decode(text, at)[1]
        yield at, end
        at = _skip(text, end)
        if text[at : at + 1] != ",":
            break
        at = _skip(text, at + 1)
    at = _after(text, "]", at, "a comma or the end of the list")
    if text[at : at + 1] == ",":
        _must_be_jobs(text, _skip(text, at + 1), seen=True)
    at = _after(text, "}", at, "the end of the object")
    if at < len(text):
        raise json.JSONDecodeError("there is something behind its end", text, at)


def _must_be_jobs(text: str, at: int, *, seen: bool) -> int:
    """Read the name of a member, which is `jobs` and is there once; answer where it ends."""
    if text[at : at + 1] != '"':
        raise json.JSONDecodeError("a name in quotes is expected", text, at)
    name, end = _DECODER.raw_decode(text, at)
    if name != JOBS:
        raise invalid(name[:200], "there is no such field")
    if seen:
        raise invalid(JOBS, "it is there twice")
    return end


def _after(text: str, mark: str, at: int, what: str) -> int:
    """Return where what follows a mark begins."""
    at = _skip(text, at)
    if text[at : at + 1] != mark:
        raise json.JSONDecodeError(f"{what} is expected", text, at)
    return _skip(text, at + 1)


def _skip(text: str, at: int) -> int:
    while text[at : at + 1] and text[at] in _SPACE:
        at += 1
    return at


def _nothing(_: str) -> None:
    """Make nothing of a number: how large it is decides whoever reads the job."""


_DECODER: Final = json.JSONDecoder(
    parse_int=_nothing, parse_float=_nothing, parse_constant=_nothing
)


def _schema(item: dict[str, Any], most: int) -> dict[str, Any]:
    jobs = {"type": "array", "minItems": 1, "maxItems": most, "items": item}
    return {
        "title": "PdfBatchRequest", "description": "Documents that are wanted.", "type": "object",
        "properties": {JOBS: jobs}, "required": [JOBS], "additionalProperties": False,
        "example": {JOBS: [item["example"]]},
    }  # fmt: skip
