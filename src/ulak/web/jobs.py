"""Submit jobs and read them."""

from __future__ import annotations

import asyncio
from collections import Counter
from contextlib import suppress
from datetime import timedelta
from typing import Annotated, Any, Final

from fastapi import APIRouter, Path, Query, Request, Response
from pydantic import BaseModel, ConfigDict, Field

from ulak.auth.principal import Principal
from ulak.core.flow import names
from ulak.core.intake import NORMAL
from ulak.core.lifecycle import Role
from ulak.engine.documents import event_document, job_document, why_document
from ulak.engine.engine import Engine
from ulak.engine.named import named_call
from ulak.engine.view import Job
from ulak.errors import BadInput, Forbidden
from ulak.store.protocol import CountRow, JobFilter
from ulak.web import schemas
from ulak.web.answers import answer
from ulak.web.callers import Caller
from ulak.web.schemas import problems
from ulak.web.seen import actor_of, seen

LARGEST_PAGE: Final = 1000
LONGEST_WAIT_S: Final = 60
# Nobody means more; a date beyond the year 9999 cannot be written.
LONGEST_SPAN_S: Final = 100 * 365 * 24 * 3600
# There is no index by tenant: so many jobs of one are read within a tenth of a second.
MOST_COUNTED: Final = 10_000

LOCATED: Final = {"headers": {"Location": {"$ref": "#/components/headers/Location"}}}

JobPath = Annotated[schemas.JobId, Path(description="The id of a job.")]


class Submission(schemas.Body):
    """What is to be done, and how."""

    flow: str = Field(description="The name of a registered flow.")
    payload: Any = Field(
        None,
        description="What the flow declares; of a job function its arguments, as an object by "
        "name or as an array by position.",
    )
    version: int | None = Field(None, description="One version of the flow; else the newest.")
    tenant: str | None = Field(
        None, max_length=500, description="Whose job it is; a caller of one tenant submits for it."
    )
    priority: int = Field(NORMAL, ge=0, le=3, description="0 is the most urgent.")
    after_seconds: float | None = Field(
        None, ge=0, le=LONGEST_SPAN_S, description="Do not begin before this has passed."
    )
    expires_seconds: float | None = Field(
        None, gt=0, le=LONGEST_SPAN_S, description="End it as expired when it takes longer."
    )
    dedup_key: str | None = Field(
        None, min_length=1, max_length=500, description="The key itself, not the flow's rule."
    )

    model_config = ConfigDict(
        json_schema_extra={
            "example": {"flow": "cutting", "payload": {"order": 4711}, "dedup_key": "order-4711"}
        }
    )


class JobsQuery(BaseModel):
    """Which jobs, and which page of them. A parameter that does not exist is refused: a misspelt
    filter would answer jobs that nobody asked for."""

    model_config = ConfigDict(extra="forbid")

    tenant: str | None = Field(None, description="Only of this tenant.")
    flow: str | None = Field(None, description="Only of this flow.")
    state: str | None = Field(None, description="Only in this state.")
    role: Role | None = Field(None, description="Only with this role.")
    code: str | None = Field(None, description="Only held or failed with this code.")
    queue: str | None = Field(None, description="Only of this queue.")
    after: schemas.JobId | None = Field(None, description="The `next` of the page before.")
    limit: int = Field(100, ge=1, le=LARGEST_PAGE, description="How many at most.")


class JobQuery(BaseModel):
    """How long to wait for a job, and for what."""

    model_config = ConfigDict(extra="forbid")

    wait: float = Field(
        0, ge=0, le=LONGEST_WAIT_S, description="Seconds to wait until the job has ended."
    )
    until: str | None = Field(None, description="Wait for this state instead, or for the end.")


class TrailQuery(BaseModel):
    """Which page of a trail."""

    model_config = ConfigDict(extra="forbid")

    after: int = Field(0, ge=0, le=2**31 - 1, description="The `next` of the page before.")
    limit: int = Field(100, ge=1, le=LARGEST_PAGE, description="How many at most.")


def router(engine: Engine) -> APIRouter:
    """Make the routes that submit and read an engine's jobs."""
    routes = APIRouter(tags=["jobs"])

    @routes.post(
        "/jobs",
        status_code=201,
        response_model=schemas.Submitted,
        responses={
            200: {"model": schemas.Submitted, "description": "It was there before.", **LOCATED},
            201: LOCATED,
            **problems(429, 504),
        },
    )
    async def submit_job(body: Submission, request: Request, principal: Caller) -> Response:
        """Submit a job. It is durable when this answers; the same dedup key answers the first
        job with 200 and `created` false."""
        job = await engine.aio.submit(
            named_call(engine, body.flow, body.payload, version=body.version),
            tenant=_tenant_for(principal, body.tenant), actor=actor_of(principal),
            priority=body.priority, after=_span(body.after_seconds),
            expires=_span(body.expires_seconds), dedup_key=body.dedup_key,
        )  # fmt: skip
        document = job_document(job)
        document["created"] = job.created
        where = f"{request.scope.get('root_path', '')}/jobs/{document['id']}"
        return answer(document, 201 if job.created else 200, headers={"Location": where})

    # Not async, as everything below that only reads: the store is synchronous, so FastAPI runs
    # them in threads.
    @routes.get("/jobs", response_model=schemas.JobPage)
    def list_jobs(query: Annotated[JobsQuery, Query()], principal: Caller) -> Response:
        """List jobs, newest first. A caller of one tenant sees the jobs of that tenant."""
        if query.tenant is not None and not principal.sees(query.tenant):
            return answer({"items": [], "next": None})
        where = JobFilter(
            tenant=query.tenant if principal.tenant is None else principal.tenant,
            flow=query.flow, state=query.state, role=query.role, code=query.code,
            queue=query.queue,
        )  # fmt: skip
        # One more than asked tells whether there is another page.
        found = engine.jobs(where, after=query.after, limit=query.limit + 1)
        page = found[: query.limit]
        following = page[-1].id if len(found) > len(page) else None
        return answer({"items": [job_document(job) for job in page], "next": following})

    @routes.get("/jobs/{id}", response_model=schemas.Job)
    async def get_job(
        id: JobPath, query: Annotated[JobQuery, Query()], principal: Caller
    ) -> Response:
        """Read a job. With `wait` the answer comes as soon as the job has ended, or stands in
        the state `until`; when the time is over, it is the job as it stands then."""
        job = await asyncio.to_thread(seen, engine, id, principal)
        _must_be_a_state(engine, job, query.until)
        if query.wait:
            with suppress(TimeoutError):
                await engine.aio.wait(id, until=query.until, timeout=timedelta(seconds=query.wait))
            job = await engine.aio.get(id)
        return answer(job_document(job))

    @routes.get("/jobs/{id}/trail", response_model=schemas.TrailPage)
    def read_trail(
        id: JobPath, query: Annotated[TrailQuery, Query()], principal: Caller
    ) -> Response:
        """Read what happened to a job, in order."""
        seen(engine, id, principal)
        found = engine.trail(id, after=query.after, limit=query.limit + 1)
        page = found[: query.limit]
        following = page[-1].seq if len(found) > len(page) else None
        return answer({"items": [event_document(event) for event in page], "next": following})

    @routes.get("/jobs/{id}/payload", response_model=schemas.Payload)
    def read_payload(id: JobPath, principal: Caller) -> Response:
        """Read a job's payload. Fields that the flow declares as secret are hidden, and all of
        them when this program does not declare the flow."""
        seen(engine, id, principal)
        return answer({"payload": engine.payload(id)})

    @routes.get("/jobs/{id}/result", response_model=schemas.Result, responses=problems(409))
    def read_result(id: JobPath, principal: Caller) -> Response:
        """Read what the last stage that returned something has returned; 409 before there is
        anything."""
        seen(engine, id, principal)
        return answer({"result": engine.result(id)})

    @routes.get("/jobs/{id}/why", response_model=schemas.Why)
    def why(id: JobPath, principal: Caller) -> Response:
        """Tell why a job stands where it stands: a stable code, a sentence and the facts."""
        seen(engine, id, principal)
        return answer(why_document(engine.why(id, tenant=principal.tenant)))

    @routes.get("/counts", response_model=schemas.Counts)
    def count_jobs(principal: Caller) -> Response:
        """Count jobs by flow, version and state. A caller of one tenant gets the counts of that
        tenant's newest 10,000 jobs; `complete` is false when there are more."""
        if principal.tenant is None:
            counts, complete = engine.counts(), True
        else:
            counts, complete = _counts_of(engine, principal.tenant)
        items = [
            {
                "flow": count.flow, "version": count.flow_version, "state": count.state,
                "role": count.role, "jobs": count.jobs,
            }
            for count in counts
        ]  # fmt: skip
        return answer({"items": items, "complete": complete})

    return routes


def _tenant_for(principal: Principal, asked: str | None) -> str:
    """Answer for which tenant a caller submits."""
    if principal.tenant is None:
        return asked or ""
    if asked is not None and asked != principal.tenant:
        raise Forbidden(
            f"{principal.name} submits for the tenant {principal.tenant!r} only, "
            f"not for {asked!r}; leave the tenant out"
        )
    return principal.tenant


def _span(seconds: float | None) -> timedelta | None:
    return None if seconds is None else timedelta(seconds=seconds)


def _must_be_a_state(engine: Engine, job: Job, until: str | None) -> None:
    """Refuse to wait for a state that the job's flow does not have: it would be in vain."""
    flow = engine.flows_by_version().get((job.flow, job.version))
    if until is None or flow is None or until in flow.table.places:
        return
    raise BadInput(f"{job.flow} has no state {until!r}; it has {names(list(flow.table.places))}")


def _counts_of(engine: Engine, tenant: str) -> tuple[list[CountRow], bool]:
    """Count the newest jobs of a tenant, and tell whether those are all."""
    where = JobFilter(tenant=tenant)
    found = engine.jobs(where, limit=MOST_COUNTED + 1)
    counted = Counter((j.flow, j.version, j.state, j.role) for j in found[:MOST_COUNTED])
    rows = [CountRow(*key, jobs) for key, jobs in sorted(counted.items())]
    return rows, len(found) <= MOST_COUNTED
