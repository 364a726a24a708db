"""Submit jobs, read them, and what people and programs ask of one."""

from __future__ import annotations

import asyncio
from collections import Counter
from typing import Annotated, Any, Final

from fastapi import APIRouter, Depends, Path, Query, Request, Response
from pydantic import Field

from ulak.auth.principal import Principal
from ulak.core.intake import NORMAL, LoneSubmitOptions
from ulak.engine.engine import Engine
from ulak.engine.function import named_call
from ulak.engine.reads import must_be_a_state, must_have_succeeded
from ulak.engine.view import Job, event_document, job_document, why_document
from ulak.errors import Forbidden
from ulak.idempotency import Execution, Guard
from ulak.idempotency.key import HEADER
from ulak.idempotency.settings import IdempotencySettings
from ulak.store.protocol import CountRow, JobFilter
from ulak.web import schemas
from ulak.web.callers import PRINCIPAL, Caller, actor_of, get_visible_job, guarded_router, roles_of
from ulak.web.idempotency import EXECUTION, IdempotentRoute, idempotent_route
from ulak.web.schemas import (
    NO_NOTE,
    USUAL_PAGE,
    ActAsked,
    Conditions,
    PageSize,
    answer,
    example,
    paged,
    problems,
)
from ulak.web.waits import while_serving

LONGEST_WAIT_S: Final = 60
# Nobody means more; a date beyond the year 9999 cannot be written.
LONGEST_SPAN_S: Final = 100 * 365 * 24 * 3600
# There is no index by tenant: so many jobs of one are read within a tenth of a second.
MOST_COUNTED: Final = 10_000

LOCATED: Final = {"headers": {"Location": {"$ref": "#/components/headers/Location"}}}

IDEMPOTENCY_KEY: Final = {
    "name": HEADER, "in": "header", "required": False,
    "description": "The same each time this very request is repeated: it is done once, and every "
    "repetition is answered as the first was, for a week. 1 to 255 visible ASCII characters, "
    "bare or as a quoted string.",
    "schema": {"type": "string", "minLength": 1, "maxLength": 255, "pattern": "^[!-~]+$"},
    "example": "order-4711-submit",
}  # fmt: skip

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

    model_config = example(flow="orders", payload={"order": 4711}, dedup_key="order-4711")


class JobsQuery(Conditions):
    """Which jobs, and which page of them."""

    after: schemas.JobId | None = Field(None, description="The `next` of the page before.")
    limit: PageSize = USUAL_PAGE


class JobQuery(schemas.Parameters):
    """How long to wait for a job, and for what."""

    wait: float = Field(
        0, ge=0, le=LONGEST_WAIT_S, description="Seconds to wait until the job has ended."
    )
    until: str | None = Field(None, description="Wait for this state instead, or for the end.")


class TrailQuery(schemas.Parameters):
    """Which page of a trail."""

    after: int = Field(
        0, ge=0, le=schemas.HIGHEST_SEQ, description="The `next` of the page before."
    )
    limit: PageSize = USUAL_PAGE


def jobs_router(engine: Engine, guard: Guard, kept: IdempotencySettings) -> APIRouter:
    routes = guarded_router(tags=["jobs"], route_class=IdempotentRoute)
    # A job and the record of its key are one commit where both are in one database.
    is_one_commit = guard.features.open_transactions
    once = idempotent_route(
        guard,
        kept.scope("jobs.submit", mode="transactional" if is_one_commit else "lease"),
        identify=tenant_and_actor, policy="optional",
    )  # fmt: skip

    @routes.post(
        "/jobs",
        status_code=201,
        response_model=schemas.Submitted,
        responses={
            200: {"model": schemas.Submitted, "description": "It was there before.", **LOCATED},
            201: LOCATED,
            **problems(409, 429, 504),
        },
        openapi_extra={"parameters": [IDEMPOTENCY_KEY]},
        dependencies=[Depends(once)],
    )
    async def submit_job(body: Submission, request: Request, principal: Caller) -> Response:
        """Submit a job. It is durable when this answers; the same dedup key answers the first
        job with 200 and `created` false. With an `Idempotency-Key` a repeated request is answered
        as it was the first time, to the byte."""
        execution: Execution | None = request.scope.get(EXECUTION)
        call = named_call(engine.kernel, body.flow, body.payload, version=body.version)
        options: LoneSubmitOptions = {
            "tenant": _tenant_for(principal, body.tenant), "actor": actor_of(principal),
            "priority": body.priority, "after": body.after_seconds,
            "expires": body.expires_seconds, "dedup_key": body.dedup_key,
        }  # fmt: skip
        if execution is not None and is_one_commit:
            options["connection"] = execution.connection
            job = await asyncio.to_thread(lambda: engine.submit(call, **options))
        else:
            job = await engine.aio.submit(call, **options)
        document = job_document(job)
        document["created"] = job.created
        where = f"{request.scope.get('root_path', '')}/jobs/{document['id']}"
        return answer(document, 201 if job.created else 200, headers={"Location": where})

    # Not async, as everything below that only reads: the store is synchronous, so FastAPI runs
    # them in threads.
    @routes.get("/jobs", response_model=schemas.JobPage)
    def list_jobs(query: Annotated[JobsQuery, Query()], principal: Caller) -> Response:
        """List jobs, newest first. A caller of one tenant sees the jobs of that tenant."""
        if query.are_foreign_to(principal):
            return answer({"items": [], "next": None, "unserved": None})
        return answer(job_page(engine, query.filter_for(principal), query.after, query.limit))

    @routes.get("/jobs/{id}", response_model=schemas.Job)
    async def get_job(
        id: JobPath, query: Annotated[JobQuery, Query()], request: Request, principal: Caller
    ) -> Response:
        """Read a job. With `wait` the answer comes as soon as the job has ended, or stands in
        the state `until`; when the time is over, or the server stops, it is the job as it stands
        then."""
        job = await asyncio.to_thread(get_visible_job, engine, id, principal)
        must_be_a_state(engine.kernel, job, query.until)
        if query.wait:
            try:
                async with while_serving(request):
                    job = await engine.aio.wait(id, until=query.until, timeout=query.wait)
            except TimeoutError:
                job = await engine.aio.get(id)
        return answer_job(job)

    @routes.get("/jobs/{id}/trail", response_model=schemas.TrailPage)
    def read_trail(
        id: JobPath, query: Annotated[TrailQuery, Query()], principal: Caller
    ) -> Response:
        """Read what happened to a job, in order."""
        get_visible_job(engine, id, principal)
        page, following = paged(
            lambda n: engine.inspect.trail(id, after=query.after, limit=n),
            query.limit,
            lambda event: event.seq,
        )
        return answer({"items": [event_document(event) for event in page], "next": following})

    @routes.get("/jobs/{id}/payload", response_model=schemas.Payload)
    def read_payload(id: JobPath, principal: Caller) -> Response:
        """Read a job's payload. Fields that the flow declares as secret are hidden, and all of
        them when this program does not declare the flow."""
        get_visible_job(engine, id, principal)
        return answer({"payload": engine.inspect.payload(id)})

    @routes.get("/jobs/{id}/result", response_model=schemas.Result, responses=problems(409))
    def read_result(id: JobPath, principal: Caller) -> Response:
        """Read what the last stage that returned something has returned; 409 before the job has
        ended, and when it failed, was cancelled or expired."""
        get_visible_job(engine, id, principal)
        must_have_succeeded(engine.kernel, id)
        return answer({"result": engine.inspect.result(id, reveal=False)})

    @routes.get("/jobs/{id}/why", response_model=schemas.Why)
    def why(id: JobPath, principal: Caller) -> Response:
        """Tell why a job stands where it stands: a stable code, a sentence and the facts."""
        get_visible_job(engine, id, principal)
        return answer(why_document(engine.inspect.why(id, tenant=principal.tenant)))

    @routes.get("/counts", response_model=schemas.Counts)
    def count_jobs(principal: Caller) -> Response:
        """Count jobs by flow, version and state. A caller of one tenant gets the counts of that
        tenant's newest 10,000 jobs; `complete` is false when there are more."""
        complete = True
        if principal.tenant is None:
            counts = engine.inspect.counts()
        else:
            found = engine.jobs(JobFilter(tenant=principal.tenant), limit=MOST_COUNTED + 1)
            complete = len(found) <= MOST_COUNTED
            numbers = Counter((j.flow, j.version, j.state, j.role) for j in found[:MOST_COUNTED])
            counts = [CountRow(*key, jobs) for key, jobs in sorted(numbers.items())]
        items = [dict(zip(schemas.Count.model_fields, row, strict=True)) for row in counts]
        return answer({"items": items, "complete": complete})

    return routes


def answer_job(job: Job) -> Response:
    return answer(job_document(job))


def job_page(engine: Engine, where: JobFilter, after: str | None, limit: int) -> dict[str, Any]:
    """Return a `schemas.JobPage`: the jobs of a filter, newest first."""
    page, following = paged(
        lambda n: engine.jobs(where, after=after, limit=n), limit, lambda job: job.id
    )
    items = [job_document(job) for job in page]
    return {"items": items, "next": following, "unserved": where.unserved}


def tenant_and_actor(request: Request) -> tuple[str, str]:
    """Return the owner of the idempotency keys that a caller uses."""
    principal: Principal = request.scope[PRINCIPAL]
    return principal.tenant or "", actor_of(principal)


def _tenant_for(principal: Principal, asked: str | None) -> str:
    if principal.tenant is None:
        return asked or ""
    if asked is not None and asked != principal.tenant:
        raise Forbidden(
            f"{principal.name} submits for the tenant {principal.tenant!r} only, "
            f"not for {asked!r}; leave the tenant out"
        )
    return principal.tenant


class Approval(ActAsked):
    """An approval, with what the gate asks for."""

    data: Any = Field(default=None, description="What the gate declares.")

    model_config = example(note="checked")


WITHOUT_DATA: Final = Approval()


class Decision(Approval):
    """The answer to a gate."""

    choice: str = Field(description="One of the gate's choices.")

    model_config = example(choice="approve", note="checked", data=None)


class Signal(ActAsked):
    """Something that happened outside."""

    name: str = Field(description="The signal that a wait of the flow declares.")
    data: Any = Field(default=None, description="What the stages after it may read.")

    model_config = example(name="paid", data={"amount": 12})


MOVED: Final[Any] = {"response_model": schemas.Job, "responses": problems(409)}
"""How a route that acts on a job is declared: it answers the job, or why it would not have it."""


def acts_router(engine: Engine) -> APIRouter:
    """Make the routes that act on an engine's jobs. Not async: the store is synchronous, so FastAPI
    runs them in threads."""
    routes = guarded_router(tags=["acts"])

    @routes.post("/jobs/{id}/approve", **MOVED)
    def approve_job(id: JobPath, principal: Caller, body: Approval = WITHOUT_DATA) -> Response:
        """Give what the state asks for: at a gate the choice that approves, else a release.

        The choice is the only one that refuses nothing, or, of several, the one that is called
        `approve`. 409 when nothing is asked here, or when nobody can tell which choice it is."""
        get_visible_job(engine, id, principal)
        return answer_job(
            engine.decide(
                id, actor=actor_of(principal), note=body.note, data=body.data,
                roles=roles_of(principal),
            )
        )  # fmt: skip

    @routes.post("/jobs/{id}/decide", **MOVED)
    def decide_job(id: JobPath, body: Decision, principal: Caller) -> Response:
        """Answer a gate. Of two who answer at once one wins; the other gets 409 and
        `decided_by`."""
        get_visible_job(engine, id, principal)
        return answer_job(
            engine.decide(
                id, body.choice, actor=actor_of(principal), note=body.note, data=body.data,
                roles=roles_of(principal),
            )
        )  # fmt: skip

    @routes.post("/jobs/{id}/release", **MOVED)
    def release_job(id: JobPath, principal: Caller, body: ActAsked = NO_NOTE) -> Response:
        """Let a held job go on, to where its flow says."""
        get_visible_job(engine, id, principal)
        return answer_job(engine.release(id, actor=actor_of(principal), note=body.note))

    @routes.post("/jobs/{id}/retry", **MOVED)
    def retry_job(id: JobPath, principal: Caller, body: ActAsked = NO_NOTE) -> Response:
        """Run a failed job again, in a new round."""
        get_visible_job(engine, id, principal)
        return answer_job(engine.retry(id, actor=actor_of(principal), note=body.note))

    @routes.post("/jobs/{id}/cancel", **MOVED)
    def cancel_job(id: JobPath, principal: Caller, body: ActAsked = NO_NOTE) -> Response:
        """End a job: at once, or, with `cancel_requested`, as soon as its stage has stopped."""
        get_visible_job(engine, id, principal)
        return answer_job(engine.cancel(id, actor=actor_of(principal), note=body.note))

    @routes.post("/jobs/{id}/signal", **MOVED)
    def signal_job(id: JobPath, body: Signal, principal: Caller) -> Response:
        """Tell a job that something happened outside; it is kept until the job waits for it."""
        get_visible_job(engine, id, principal)
        return answer_job(
            engine.signal(id, body.name, body.data, actor=actor_of(principal), note=body.note)
        )

    return routes
