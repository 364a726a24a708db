"""What people and programs ask of one job: decide, approve, release, retry, cancel, signal."""

from __future__ import annotations

from typing import Any, Final

from fastapi import APIRouter, Response
from pydantic import ConfigDict, Field

from ulak.engine.engine import Engine
from ulak.engine.view import Job, job_document
from ulak.web import schemas
from ulak.web.answers import answer
from ulak.web.callers import Caller, guarded_router
from ulak.web.jobs import JobPath
from ulak.web.schemas import NO_NOTE, ActAsked, problems
from ulak.web.seen import actor_of, roles_of, seen


class Approval(ActAsked):
    """An approval, with what the gate asks for."""

    data: Any = Field(default=None, description="What the gate declares.")

    model_config = ConfigDict(json_schema_extra={"example": {"note": "checked"}})


class Decision(Approval):
    """The answer to a gate."""

    choice: str = Field(description="One of the gate's choices.")

    model_config = ConfigDict(
        json_schema_extra={"example": {"choice": "approve", "note": "checked", "data": None}}
    )


class Signal(ActAsked):
    """Something that happened outside."""

    name: str = Field(description="The signal that a wait of the flow declares.")
    data: Any = Field(default=None, description="What the stages after it may read.")

    model_config = ConfigDict(
        json_schema_extra={"example": {"name": "paid", "data": {"amount": 12}}}
    )


WITHOUT_DATA: Final = Approval()

MOVED: Final[Any] = {"response_model": schemas.Job, "responses": problems(409)}
"""How a route that acts on a job is declared: it answers the job, or why it would not have it."""


def router(engine: Engine) -> APIRouter:
    """Make the routes that act on an engine's jobs.

    Not async: the store is synchronous, so FastAPI runs them in threads.
    """
    routes = guarded_router(tags=["acts"])

    @routes.post("/jobs/{id}/approve", **MOVED)
    def approve_job(id: JobPath, principal: Caller, body: Approval = WITHOUT_DATA) -> Response:
        """Give what the state asks for: at a gate the choice that approves, else a release.

        The choice is the only one that refuses nothing, or, of several, the one that is called
        `approve`. 409 when nothing is asked here, or when nobody can tell which choice it is."""
        seen(engine, id, principal)
        return moved(
            engine.decide(
                id, actor=actor_of(principal), note=body.note, data=body.data,
                roles=roles_of(principal),
            )
        )  # fmt: skip

    @routes.post("/jobs/{id}/decide", **MOVED)
    def decide_job(id: JobPath, body: Decision, principal: Caller) -> Response:
        """Answer a gate. Of two who answer at once one wins; the other gets 409 and
        `decided_by`."""
        seen(engine, id, principal)
        return moved(
            engine.decide(
                id, body.choice, actor=actor_of(principal), note=body.note, data=body.data,
                roles=roles_of(principal),
            )
        )  # fmt: skip

    @routes.post("/jobs/{id}/release", **MOVED)
    def release_job(id: JobPath, principal: Caller, body: ActAsked = NO_NOTE) -> Response:
        """Let a held job go on, to where its flow says."""
        seen(engine, id, principal)
        return moved(engine.release(id, actor=actor_of(principal), note=body.note))

    @routes.post("/jobs/{id}/retry", **MOVED)
    def retry_job(id: JobPath, principal: Caller, body: ActAsked = NO_NOTE) -> Response:
        """Run a failed job again, in a new round."""
        seen(engine, id, principal)
        return moved(engine.retry(id, actor=actor_of(principal), note=body.note))

    @routes.post("/jobs/{id}/cancel", **MOVED)
    def cancel_job(id: JobPath, principal: Caller, body: ActAsked = NO_NOTE) -> Response:
        """End a job: at once, or, with `cancel_requested`, as soon as its stage has stopped."""
        seen(engine, id, principal)
        return moved(engine.cancel(id, actor=actor_of(principal), note=body.note))

    @routes.post("/jobs/{id}/signal", **MOVED)
    def signal_job(id: JobPath, body: Signal, principal: Caller) -> Response:
        """Tell a job that something happened outside; it is kept until the job waits for it."""
        seen(engine, id, principal)
        return moved(
            engine.signal(id, body.name, body.data, actor=actor_of(principal), note=body.note)
        )

    return routes


def moved(job: Job) -> Response:
    """Return a job as an act has left it."""
    return answer(job_document(job))
