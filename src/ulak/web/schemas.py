"""What every surface takes and answers, as the OpenAPI document describes it.

Routes that answer jobs write ready JSON, which is not validated again on its way out: of them these
models are the description, and the tests hold what is answered to it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from datetime import datetime
from http import HTTPStatus
from typing import Annotated, Any, Final, Generic, TypeVar

import msgspec
from fastapi import Path, Query, Response
from pydantic import (
    AfterValidator,
    AwareDatetime,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    PlainSerializer,
    WithJsonSchema,
)

from ulak.auth.principal import Principal
from ulak.clock import rfc3339
from ulak.core import bounds
from ulak.core.lifecycle import Role
from ulak.errors import Forbidden
from ulak.store.protocol import JobFilter

LONGEST_NOTE: Final = bounds.LONGEST_NOTE
LONGEST_NAME: Final = 500
# Ten years: nobody means more.
LONGEST_SPAN_S: Final = 3650 * 24 * 3600


def storable(text: str, *, keeper: str = "store") -> str:
    """Return a text that every store can keep. Raises `ValueError`: it holds a character that
    PostgreSQL, or UTF-8, has no place for. `keeper` is what the sentence calls a store."""
    if "\x00" in text:
        raise ValueError(f"it holds the character NUL, which no {keeper} can keep")
    try:
        text.encode()
    except UnicodeEncodeError:
        raise ValueError(f"it holds half of a character, which no {keeper} can keep") from None
    return text


def _moment(value: Any) -> datetime:
    """Read a time; a bare number is none: by its size it would be seconds or milliseconds."""
    try:
        return datetime.fromisoformat(value)
    except (TypeError, ValueError):
        raise ValueError("write a time as 2026-01-31T12:00:00Z") from None


Note = Annotated[
    str,
    Field(
        max_length=LONGEST_NOTE,
        description="Why, for whoever reads the trail or the audit.",
        examples=["agreed with ada"],
    ),
    AfterValidator(storable),
]
NoteQuery = Annotated[Note, Query()]
Name = Annotated[str, Path(max_length=LONGEST_NAME), AfterValidator(storable)]
Time = Annotated[AwareDatetime, BeforeValidator(_moment)]
Seconds = Annotated[float, Field(gt=0, le=LONGEST_SPAN_S, allow_inf_nan=False)]


Item = TypeVar("Item")
Cursor = TypeVar("Cursor")

PROBLEM_JSON: Final = "application/problem+json"

# As far as every store counts the events of a job.
HIGHEST_SEQ: Final = 2**31 - 1

A_MOMENT: Final = "2026-01-31T12:00:00.000000Z"
A_JOB: Final = "0192e4a0-5b6c-7d10-8a4e-0f2b6c9d1e33"

Moment = Annotated[
    datetime,
    PlainSerializer(rfc3339, return_type=str),
    WithJsonSchema({"type": "string", "format": "date-time"}),
]
"""A time as every surface writes it: RFC 3339 in UTC, to the microsecond."""
JobId = Annotated[str, WithJsonSchema({"type": "string", "format": "uuid"})]


def example(**fields: Any) -> ConfigDict:
    """Return the configuration of a model whose schema has this example."""
    return ConfigDict(json_schema_extra={"example": fields})


class Body(BaseModel):
    """What a caller sends. A field that does not exist is refused: a misspelt option would be
    done without."""

    model_config = ConfigDict(extra="forbid", strict=True)


class ActAsked(Body):
    """An act that takes nothing but a word why."""

    note: Note = ""


NO_NOTE: Final = ActAsked()


class Parameters(BaseModel):
    """What a caller writes behind the path. A parameter that does not exist is refused: a misspelt
    filter would answer what nobody asked for."""

    model_config = ConfigDict(extra="forbid")


class Job(BaseModel):
    """A job as it stood when it was read."""

    id: JobId
    flow: str = Field(description="The name of its flow.")
    version: int = Field(description="The version of the flow that it follows to its end.")
    state: str = Field(description="Where it stands, in the flow's own words.")
    role: Role = Field(description="What the engine may do with it there.")
    tenant: str = Field(description="Whose job it is, '' when nobody said.")
    submitter: str = Field(description="Who submitted it, '' when nobody said.")
    priority: int = Field(ge=0, le=3, description="0 is the most urgent.")
    round: int = Field(description="1, and one more with every retry by an operator.")
    attempt: int = Field(description="Failed attempts at this stage.")
    lapses: int = Field(description="Workers that vanished while they ran this stage.")
    code: str | None = Field(description="Why it is held, failed or being undone.")
    created_at: Moment
    changed_at: Moment = Field(description="When it last changed its state.")
    not_before: Moment = Field(description="No worker begins before this.")
    expires_at: Moment | None = Field(description="When it ends as expired, if ever.")
    scheduled_for: Moment | None = Field(description="The date of the schedule it is for.")
    leased_by: str | None = Field(description="The worker that runs it now.")
    parked_on: str | None = Field(description="The limit of which it waits for a slot.")
    cancel_requested: bool = Field(description="A cancel waits until its worker has stopped.")
    is_final: bool = Field(description="Whether no worker will act on it any more.")

    model_config = example(
        id=A_JOB, flow="orders", version=1, state="HOLD", role="held", tenant="",
        submitter="key:shop", priority=1, round=1, attempt=0, lapses=0, code="CrmNoMatch",
        created_at=A_MOMENT, changed_at=A_MOMENT, not_before=A_MOMENT, expires_at=None,
        scheduled_for=None, leased_by=None, parked_on=None, cancel_requested=False, is_final=False,
    )  # fmt: skip


class TrailEvent(BaseModel):
    """One committed line of a job's trail."""

    seq: int = Field(description="1 for the first event of a job, and then one more each.")
    kind: str = Field(description="What happened; docs/reference/events.md has every kind.")
    from_state: str | None
    to_state: str
    actor: str = Field(description="Who did it: a person, a key, a worker or the engine.")
    code: str | None
    message: str | None
    details: Any
    round: int
    attempt: int
    worker: str | None
    started_at: Moment | None
    at: Moment

    model_config = example(
        seq=4, kind="held", from_state="NEW", to_state="HOLD", actor="worker-1", code="CrmNoMatch",
        message="no customer 4711", details=None, round=1, attempt=1, worker="worker-1",
        started_at=A_MOMENT, at=A_MOMENT,
    )  # fmt: skip


class Page(BaseModel, Generic[Item, Cursor]):
    """One page of a list, in a stable order."""

    items: list[Item]
    next: Cursor | None = Field(description="The `after` of the next page; null on the last one.")


class Whole(BaseModel, Generic[Item]):
    """A list that is short enough to be answered whole, in a stable order."""

    items: list[Item]


class JobPage(Page[Job, JobId]):
    """Jobs, newest first."""

    unserved: str | None = Field(
        description="Says that no index serves these conditions, and what would; null when one "
        "does. The list is right all the same, and slow where there are many jobs."
    )


class TrailPage(Page[TrailEvent, int]):
    """Events of one job, in order."""


class Submitted(Job):
    """A job as it was accepted."""

    created: bool = Field(description="False when a job with this dedup key was there before.")

    model_config = example(
        id=A_JOB, flow="orders", version=1, state="NEW", role="ready", tenant="",
        submitter="key:shop", priority=1, round=1, attempt=0, lapses=0, code=None,
        created_at=A_MOMENT, changed_at=A_MOMENT, not_before=A_MOMENT, expires_at=None,
        scheduled_for=None, leased_by=None, parked_on=None, cancel_requested=False, is_final=False,
        created=True,
    )  # fmt: skip


class Payload(BaseModel):
    """What a job was submitted with; secret fields are `***`."""

    payload: Any = Field(examples=[{"order": 4711, "card": "***"}])


class Result(BaseModel):
    """What a job has returned."""

    result: Any = Field(examples=[{"sheets": 12}])


class Why(BaseModel):
    """Why a job stands where it stands."""

    code: str = Field(
        description="Stable; docs/operations/monitor.md has every code.", examples=["held"]
    )
    sentence: str = Field(
        examples=["it is held with CrmNoMatch since 2026-01-31T12:00:00Z; release it to go on"]
    )
    facts: dict[str, Any] = Field(examples=[{"code": "CrmNoMatch", "since": A_MOMENT}])


class Count(BaseModel):
    """How many jobs of a flow stand in a state."""

    flow: str = Field(examples=["orders"])
    version: int = Field(examples=[1])
    state: str = Field(examples=["HOLD"])
    role: Role = Field(examples=["held"])
    jobs: int = Field(examples=[3])


class Counts(BaseModel):
    """How many jobs there are, by flow, version and state."""

    items: list[Count]
    complete: bool = Field(description="False when only the newest jobs were counted.")


class Health(BaseModel):
    """How the process is."""

    status: str = Field(examples=["ready"])


class Readiness(Health):
    """That the process can work."""

    durable: bool = Field(
        True, description="False, else left out, while records of idempotency keys may be lost."
    )


class HealthIndex(Health):
    """That the process lives, and where to ask for more."""

    live: str = Field(examples=["/health/live"])
    ready: str = Field(examples=["/health/ready"], description="503 there says what is lacking.")


class Problem(BaseModel):
    """Why a request was not done (RFC 9457). Some codes have members of their own."""

    type: str
    title: str = Field(description="The status in words.")
    status: int = Field(ge=400, le=599)
    detail: str = Field(description="What was asked, why not, and what would work.")
    code: str = Field(description="Stable: what programs compare.")
    retryable: bool = Field(description="Whether the same request may succeed later.")
    correlation_id: str = Field(description="The id of the request, which the log has too.")

    model_config = ConfigDict(
        extra="allow",
        json_schema_extra={
            "example": {
                "type": "urn:ulak:problem:job-not-found", "title": "Not Found", "status": 404,
                "detail": f"there is no job {A_JOB}", "code": "job-not-found",
                "retryable": False, "correlation_id": "0f3c8a5d7b1e4f6f9f0f6f1c2d3e4f50",
            }
        },
    )  # fmt: skip


def problems(*statuses: int) -> dict[int | str, dict[str, Any]]:
    """Describe the errors of a route: `responses=problems(409)`. Only those that are its own: 401,
    403, 404, 422 and 503 are described for every route that can answer them."""
    return {status: problem_response(status) for status in statuses}


def problem_response(status: int) -> dict[str, Any]:
    schema: Mapping[str, Any] = {"$ref": "#/components/schemas/Problem"}
    return {"description": HTTPStatus(status).phrase, "content": {PROBLEM_JSON: {"schema": schema}}}


USUAL_PAGE: Final = 100
LARGEST_PAGE: Final = 1000

PageSize = Annotated[int, Field(ge=1, le=LARGEST_PAGE, description="How many at most.")]


def paged(
    read: Callable[[int], Sequence[Item]], limit: int, cursor: Callable[[Item], Cursor]
) -> tuple[Sequence[Item], Cursor | None]:
    """Return a page and what the next one begins after; None when this is the last. `read` reads at
    most so many items, and `cursor` tells what the page after an item begins after."""
    found = read(limit + 1)  # one more than asked tells whether there is another page
    page = found[:limit]
    return page, cursor(page[-1]) if len(found) > limit else None


def answer(
    document: Any, status: int = 200, *, headers: Mapping[str, str] | None = None
) -> Response:
    """Return a document as JSON that is ready, without looking at it again."""
    return Response(
        msgspec.json.encode(document), status, headers=headers, media_type="application/json"
    )


class Conditions(Parameters):
    """Which jobs: every condition that is set must hold."""

    tenant: str | None = Field(None, description="Only of this tenant.")
    flow: str | None = Field(None, description="Only of this flow.")
    state: str | None = Field(None, description="Only in this state.")
    role: Role | None = Field(None, description="Only with this role.")
    code: str | None = Field(None, description="Only held or failed with this code.")
    queue: str | None = Field(None, description="Only of this queue.")
    submitted_since: Time | None = Field(None, description="Only submitted then or later.")
    submitted_before: Time | None = Field(None, description="Only submitted before.")
    changed_since: Time | None = Field(None, description="Only changed then or later.")
    changed_before: Time | None = Field(None, description="Only changed before.")
    id_prefix: str | None = Field(None, description="Only with an id that begins so.")
    dedup_key: str | None = Field(None, description="Only with this dedup key, held or not.")
    owner: str | None = Field(None, description="Only owned by this one.")

    def are_foreign_to(self, principal: Principal) -> bool:
        """Tell whether they name a tenant whose jobs the caller does not see."""
        return self.tenant is not None and not principal.sees(self.tenant)

    def filter_for(self, principal: Principal) -> JobFilter:
        """Return the filter that is meant; that of a caller of one tenant is about that tenant.
        Raises `Forbidden`: they name another tenant; `BadInput`: no id begins with the prefix."""
        if self.are_foreign_to(principal):
            raise Forbidden(
                f"{principal.name} sees the jobs of {principal.tenant!r} only, "
                f"not those of {self.tenant!r}"
            )
        said = self.said()
        if principal.tenant is not None:
            said["tenant"] = principal.tenant
        return JobFilter(**said)

    def said(self) -> dict[str, Any]:
        return self.model_dump(include=set(Conditions.model_fields), exclude_none=True)
