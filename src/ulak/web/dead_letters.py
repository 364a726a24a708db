"""Jobs and messages that gave up, and another chance for them."""

from __future__ import annotations

from typing import Annotated, Literal

from fastapi import APIRouter, Query, Response
from pydantic import BaseModel, ConfigDict, Field

from ulak.auth.principal import Principal
from ulak.core.lifecycle import FAILED
from ulak.engine.bulk import RETRY, Bulk, BulkAct
from ulak.engine.engine import Engine
from ulak.engine.outbox import Delivery
from ulak.engine.view import delivery_document
from ulak.store.protocol import JobFilter
from ulak.web import schemas
from ulak.web.acts import MOVED, moved
from ulak.web.answers import answer
from ulak.web.bulk import BulkCounted, BulkDone, count_or_do
from ulak.web.callers import Caller, guarded_router
from ulak.web.jobs import JobPath, job_page
from ulak.web.paging import USUAL_PAGE, PageSize
from ulak.web.schemas import A_JOB, A_MOMENT, NO_NOTE, ActAsked, Whole
from ulak.web.seen import actor_of, seen
from ulak.web.texts import Note


class DeadLettersQuery(schemas.Parameters):
    """Which dead letters, and which page of them."""

    flow: str | None = Field(None, description="Only of this flow.")
    code: str | None = Field(None, description="Only those that failed with this code.")
    after: schemas.JobId | None = Field(None, description="The `next` of the page before.")
    limit: PageSize = USUAL_PAGE


class RedrivesAsked(schemas.Body):
    """Which dead letters, and why; with the token of an earlier answer it is done."""

    flow: str | None = Field(None, description="Only of this flow.")
    code: str | None = Field(None, description="Only those that failed with this code.")
    note: Note = ""
    token: str | None = Field(None, description="What an answer without one has given.")

    model_config = ConfigDict(
        json_schema_extra={
            "example": {"flow": "charges", "code": "Timeout", "note": "the bank is back"}
        }
    )


class MessageShown(BaseModel):
    """A message that gave up."""

    id: str = Field(description="job/seq/n, with a handler job/seq/n/handler")
    handler: str = Field(description="Who should have got it; empty is the publisher.")
    job_id: str = Field(description="Empty when no stage has sent it.")
    topic: str
    key: str = Field(description="Messages of one key are delivered in order.")
    state: Literal["dead", "refused"]
    tries: int
    error: str | None = Field(description="Why the last try failed.")
    at: schemas.Moment

    model_config = ConfigDict(
        json_schema_extra={
            "example": {
                "id": f"{A_JOB}/3/0/mail", "handler": "mail", "job_id": A_JOB, "topic": "orders",
                "key": "4711", "state": "dead", "tries": 11, "error": "TimeoutError",
                "at": A_MOMENT,
            }
        }
    )  # fmt: skip


def router(engine: Engine, bulk: Bulk) -> APIRouter:
    """Make the routes of an engine's dead letters; a crowd of them is redriven in bulk."""
    routes = guarded_router(tags=["dead letters"])

    @routes.get("/dead-letters", response_model=schemas.JobPage)
    def list_dead_letters(
        query: Annotated[DeadLettersQuery, Query()], principal: Caller
    ) -> Response:
        """List jobs that gave up, newest first; `next` is the `after` of the next page."""
        return answer(job_page(engine, _dead(query, principal), query.after, query.limit))

    @routes.post("/dead-letters/redrive", response_model=BulkCounted | BulkDone)
    def redrive_all(body: RedrivesAsked, principal: Caller) -> Response:
        """Run many of them again. Without a token nothing is changed: the answer says how many it
        would be and gives the token, good for ten minutes, with which the same request does it."""
        act = BulkAct(RETRY, _dead(body, principal), note=body.note)
        return count_or_do(bulk, act, principal, body.token)

    @routes.post("/dead-letters/{id}/redrive", **MOVED)
    def redrive(id: JobPath, principal: Caller, body: ActAsked = NO_NOTE) -> Response:
        """Run a job that gave up again, in a new round."""
        seen(engine, id, principal)
        return moved(engine.retry(id, actor=actor_of(principal), note=body.note))

    @routes.get("/outbox/dead")
    def list_dead_messages(
        limit: Annotated[PageSize, Query()] = USUAL_PAGE,
    ) -> Whole[MessageShown]:
        """List messages that gave up, the oldest first."""
        found = engine.outbox.dead(limit=limit)
        return Whole(items=[_message(message) for message in found])

    @routes.post("/outbox/dead/{id:path}/revive")
    def revive(id: str, principal: Caller, body: ActAsked = NO_NOTE) -> MessageShown:
        """Let a message that gave up be tried again; it may come after younger ones of its key."""
        return _message(engine.outbox.redrive(id, actor=actor_of(principal), note=body.note))

    return routes


def _dead(asked: DeadLettersQuery | RedrivesAsked, principal: Principal) -> JobFilter:
    """Return the filter of the dead letters that a caller means and sees."""
    return JobFilter(tenant=principal.tenant, flow=asked.flow, role=FAILED, code=asked.code)


def _message(message: Delivery) -> MessageShown:
    return MessageShown.model_validate(delivery_document(message))
