"""Many documents in one request: each is checked as if it were alone, and has its own result."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Final

from fastapi import APIRouter, Depends, Request, Response
from pydantic import BaseModel, ConfigDict, Field

from ulak.auth import Principal
from ulak.kit.clock import rfc3339
from ulak.services.pdf.accepting import Accepting, Refused
from ulak.services.pdf.bodies import PdfJobRequest, read_body, read_request
from ulak.services.pdf.envelope import PAYLOAD_TOO_LARGE, VALIDATION_ERROR, Refusal
from ulak.services.pdf.failsafe import Unavailable
from ulak.services.pdf.following import UNFINISHED, root_of
from ulak.services.pdf.jobs import Created
from ulak.services.pdf.model import PdfJobStatus
from ulak.services.pdf.pace import Pacing
from ulak.services.pdf.scopes import PDF_RENDER
from ulak.web import Access, Caller
from ulak.web.answers import answer
from ulak.web.correlation import correlation_id
from ulak.web.jobs import IDEMPOTENCY_KEY
from ulak.web.schemas import A_JOB, A_MOMENT, JobId, Moment, problems

BATCH_ACCESS: Final = Access("POST", "/pdf/batches", PDF_RENDER, "jobs")
JOBS: Final = "jobs"
"""The one member of a batch."""
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

    model_config = ConfigDict(
        json_schema_extra={
            "example": {
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
            }
        }
    )  # fmt: skip


class Batches:
    """Takes batches.

    Args:
        accepting: Takes each of their jobs.
        pacing: Tells when to read a job that has not ended.
        count_unavailable: Is called for each job that gets none because nobody works.
    """

    def __init__(
        self, accepting: Accepting, pacing: Pacing, count_unavailable: Callable[[], None]
    ) -> None:
        self.config = accepting.config
        self._accepting = accepting
        self._pacing = pacing
        self._count_unavailable = count_unavailable

    def take(
        self, items: Sequence[bytes], principal: Principal, correlation: str, root: str = ""
    ) -> list[dict[str, Any]]:
        """Return the results of a batch, in order.

        Args:
            items: Its jobs, each as it was sent.
            principal: Who asks.
            correlation: Of the request.
            root: Where the application is mounted.

        Raises:
            Unavailable: the store does not answer, so that nothing is known of any of them.
            StoreError: the same; what was made is found by sending the batch again.
        """
        read: dict[int, PdfJobRequest] = {}
        answers: dict[int, Created | Refused] = {}
        for number, item in enumerate(items):
            try:
                read[number] = self._read(item)
            except Refusal as refusal:
                answers[number] = refusal
        accepted = self._accepting.accept_all(list(read.values()), principal, correlation, root)
        answers |= zip(read, accepted, strict=True)
        return [
            {"index": number, **self._result_of(answers[number])} for number in range(len(items))
        ]

    def _read(self, item: bytes) -> PdfJobRequest:
        """Size, schema, allow-list: as a create has them."""
        largest = self.config.max_payload_bytes
        if len(item) > largest:
            raise Refusal(
                f"this job is larger than {largest:,} bytes; send less, or large assets with the "
                "template",
                status=413, error_code=PAYLOAD_TOO_LARGE, details={"max_bytes": largest},
            )  # fmt: skip
        asked = read_request(item, self.config)
        if asked.options.fail_safe == "degrade":
            raise _invalid(
                "options.fail_safe",
                "HTML cannot stand in for one of many; leave it out, or create this job alone",
            )
        self._accepting.must_be_allowed(asked.template_name)
        return asked

    def _result_of(self, answered: Created | Refused) -> dict[str, Any]:
        if isinstance(answered, Refusal):
            told = {"status": answered.status, "message": str(answered), **answered.members}
            if (wait := answered.retry_after) is not None:
                told["retry_after_seconds"] = int(wait.total_seconds())
            return told
        if isinstance(answered, Unavailable):
            self._count_unavailable()
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
            result["retry_after_seconds"] = self._pacing.look().retry_after_s(job.status)
        return result


def add_batches(
    routes: APIRouter, batches: Batches, *, once: Callable[..., Any], item: dict[str, Any]
) -> None:
    """Add the route.

    Args:
        routes: To these.
        batches: What takes a batch.
        once: The dependency that has an answer repeated under an idempotency key.
        item: The schema of one job.
    """
    config = batches.config

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
        results = batches.take(items, principal, correlation_id(request), root_of(request))
        return answer({"results": results}, MULTI_STATUS)


def split_batch(body: bytes, *, most: int) -> list[bytes]:
    """Return the jobs of a batch, each in the very bytes in which it was sent: so what one of them
    says twice, or wrongly, is its own fault and nobody else's.

    Args:
        body: `{"jobs": [...]}`, and nothing else.
        most: How many jobs it may have.

    Raises:
        Refusal: 422, it is no such document.
    """
    try:
        text = body.decode()
        items = [text[start:end] for start, end in _places_in(text, most)]
    except RecursionError:
        raise _unreadable("it is nested too deeply") from None
    except UnicodeDecodeError as error:
        raise _unreadable(f"it is no UTF-8 at byte {error.start}") from None
    except json.JSONDecodeError as error:
        raise _unreadable(f"{error.msg} at character {error.pos}") from None
    if not items:
        raise _invalid(JOBS, f"there are none; send 1 to {most}")
    return [item.encode() for item in items]


def _places_in(text: str, most: int) -> Iterator[tuple[int, int]]:
    """Find where each job of a batch begins and ends."""
    at = _after(text, "{", 0, "an object")
    if text[at : at + 1] == "}":
        raise _invalid(JOBS, "it is missing; send a list of jobs")
    at = _after(text, ":", _must_be_jobs(text, at, seen=False), "a colon")
    if text[at : at + 1] != "[":
        raise _invalid(JOBS, "it is no list; send a list of jobs")
    at = _skip(text, at + 1)
    found = 0
    while text[at : at + 1] != "]" or found:
        found += 1
        if found > most:
            raise _invalid(JOBS, f"there are more than {most}; send several batches")
        start, at = at, _end_of(text, at)
        yield start, at
        at = _skip(text, at)
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
        raise _invalid(name[:200], "there is no such field")
    if seen:
        raise _invalid(JOBS, "it is there twice")
    return end


def _end_of(text: str, at: int) -> int:
    return _DECODER.raw_decode(text, at)[1]


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


def _unreadable(why: str) -> Refusal:
    return _invalid("body", f"this is no JSON that can be read: {why}")


def _invalid(field: str, message: str) -> Refusal:
    return Refusal(
        f"{field}: {message}", status=422, error_code=VALIDATION_ERROR,
        details={"fields": [{"field": field, "message": message}]},
    )  # fmt: skip
