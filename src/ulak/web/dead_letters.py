"""Jobs and messages that gave up, and another chance for them."""

from __future__ import annotations

from typing import Annotated, Any

from fastapi import APIRouter, Query, Response
from pydantic import BaseModel, ConfigDict, Field

from ulak.core.lifecycle import FAILED
from ulak.engine.bulk import RETRY, Bulk, BulkAct
from ulak.engine.documents import dead_message_document, job_document
from ulak.engine.engine import Engine
from ulak.engine.outbox import DeadMessage
from ulak.store.protocol import JobFilter
from ulak.web.bulk import BulkCounted, BulkDone, count_or_do
from ulak.web.callers import Caller
from ulak.web.schemas import A_JOB, A_MOMENT, Body, Job, JobId, JobPage, Moment, Whole, problems
from ulak.web.seen import actor_of, seen
from ulak.web.texts import Note

LARGEST_PAGE = 1000


class DeadLettersQuery(BaseModel):
    """Which jobs, and which page of them. A parameter that does not exist is refused: a misspelt
    filter would answer jobs that nobody asked for."""

    model_config = ConfigDict(extra="forbid")

    flow: str | None = None
    code: str | None = None
    after: str | None = None
    limit: int = Field(100, ge=1, le=LARGEST_PAGE)


class RedriveAsked(Body):
    """Why."""

    note: Note = ""

    model_config = ConfigDict(json_schema_extra={"example": {"note": "the bank is back"}})


class ReviveAsked(Body):
    """Why."""

    note: Note = ""

    model_config = ConfigDict(json_schema_extra={"example": {"note": "the broker is back"}})


class RedrivesAsked(Body):
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

    id: str = Field(description="job/seq/n")
    job_id: JobId
    topic: str
    key: str = Field(description="Messages of one key are published in order.")
    tries: int
    at: Moment

    model_config = ConfigDict(
        json_schema_extra={
            "example": {
                "id": f"{A_JOB}/3/0", "job_id": A_JOB, "topic": "orders", "key": "4711",
                "tries": 11, "at": A_MOMENT,
            }
        }
    )  # fmt: skip


def router(engine: Engine, secret: bytes) -> APIRouter:
    """Make the routes of an engine's dead letters; the secret signs what confirms a crowd."""
    routes = APIRouter(tags=["dead letters"])
    bulk = Bulk(engine, secret)

    @routes.get("/dead-letters", response_model=JobPage)
    def list_dead_letters(
        query: Annotated[DeadLettersQuery, Query()], principal: Caller
    ) -> dict[str, Any]:
        """List jobs that gave up, newest first; `next` is the `after` of the next page."""
        where = JobFilter(tenant=principal.tenant, flow=query.flow, role=FAILED, code=query.code)
        # One more than asked tells whether there is another page.
        found = engine.jobs(where, after=query.after, limit=query.limit + 1)
        page = found[: query.limit]
        return {
            "items": [job_document(job) for job in page],
            "next": page[-1].id if len(found) > len(page) else None,
        }

    @routes.post("/dead-letters/redrive", response_model=BulkCounted | BulkDone)
    def redrive_all(body: RedrivesAsked, principal: Caller) -> Response:
        """Run many of them again. Without a token nothing is changed: the answer says how many it
        would be and gives the token, good for ten minutes, with which the same request does it."""
        where = JobFilter(tenant=principal.tenant, flow=body.flow, role=FAILED, code=body.code)
        act = BulkAct(RETRY, where, note=body.note)
        return count_or_do(bulk, act, principal, body.token)

    @routes.post("/dead-letters/{id}/redrive", response_model=Job, responses=problems(409))
    def redrive(id: str, body: RedriveAsked, principal: Caller) -> dict[str, Any]:
        """Run a job that gave up again, in a new round."""
        job = seen(engine, id, principal)
        return job_document(engine.retry(job.id, actor=actor_of(principal), note=body.note))

    @routes.get("/outbox/dead")
    def list_dead_messages(
        limit: Annotated[int, Query(ge=1, le=LARGEST_PAGE)] = 100,
    ) -> Whole[MessageShown]:
        """List messages that gave up, the oldest first."""
        found = engine.dead_messages(limit=limit)
        return Whole(items=[_message(message) for message in found])

    @routes.post("/outbox/dead/{id:path}/revive")
    def revive(id: str, principal: Caller, body: ReviveAsked | None = None) -> MessageShown:
        """Let a message that gave up be tried again; it may come after younger ones of its key."""
        note = "" if body is None else body.note
        return _message(engine.revive(id, actor=actor_of(principal), note=note))

    return routes


def _message(message: DeadMessage) -> MessageShown:
    return MessageShown.model_validate(dead_message_document(message))
