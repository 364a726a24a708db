"""One act on many jobs, and another chance for jobs and messages that gave up."""

from __future__ import annotations

from dataclasses import asdict
from typing import Annotated, Literal

from fastapi import APIRouter, Query, Response
from pydantic import BaseModel, Field, model_validator

from ulak.auth.principal import Principal
from ulak.clock import rfc3339
from ulak.core.lifecycle import FAILED
from ulak.engine.bulk import RETRY, Actor, Bulk, BulkAct
from ulak.engine.engine import Engine
from ulak.engine.outbox import Delivery
from ulak.engine.view import delivery_document
from ulak.store.protocol import JobFilter
from ulak.web import schemas
from ulak.web.callers import Caller, actor_of, get_visible_job, guarded_router, roles_of
from ulak.web.routes.jobs import MOVED, JobPath, answer_job, job_page


class Where(schemas.Conditions, schemas.Body):
    """Which jobs: every condition that is set must hold."""

    all: bool = Field(default=False, description="True, and nothing else, means every job.")

    @model_validator(mode="after")
    def _is_explicit(self) -> Where:
        if self.all == bool(self.said()):
            raise ValueError(
                'it must have a condition, or be {"all": true} when every job is meant, not both'
            )
        return self


class BulkAsked(schemas.Body):
    """What is to be done to which jobs; with the token of an earlier answer it is done."""

    action: Literal["retry", "cancel", "release", "decide", "approve"]
    where: Where
    choice: str | None = Field(default=None, description="What to decide.")
    note: schemas.Note = ""
    token: str | None = Field(default=None, description="What an answer without one has given.")

    model_config = schemas.example(
        action="retry", where={"flow": "orders", "code": "Timeout"}, note="the network is back"
    )


class BulkCounted(BaseModel):
    """How many jobs it would be; nothing was changed."""

    count: int = Field(examples=[312])
    token: str = Field(examples=["1769860800000000.5d41402abc4b2a76b9719d911017c592"])
    expires_at: schemas.Moment = Field(description="Until when the token can be used.")


class BulkRefusal(BaseModel):
    """A job that would not have it."""

    id: schemas.JobId
    code: str = Field(examples=["retries-spent"])
    detail: str = Field(examples=["it was retried 3 times, and this flow allows no more"])


class BulkDone(BaseModel):
    """How far it has come."""

    done: int = Field(examples=[310])
    refused: list[BulkRefusal] = Field(description="The first 100 of them.")
    refused_count: int = Field(examples=[2])
    left: int = Field(description="Not looked at yet; the same token goes on.", examples=[0])


def bulk_router(bulk: Bulk) -> APIRouter:
    routes = guarded_router(tags=["acts"])

    @routes.post("/jobs/bulk", response_model=BulkCounted | BulkDone)
    def act_in_bulk(body: BulkAsked, principal: Caller) -> Response:
        """Act on every job that a filter matches. Without a token nothing is changed: the answer
        says how many jobs it would be and gives the token, good for ten minutes, with which the
        same request does it. A call does it to at most 10,000 jobs and says how many are `left`;
        the same token goes on."""
        where = body.where.filter_for(principal)
        act = BulkAct(body.action, where, choice=body.choice or "", note=body.note)
        return count_or_do(bulk, act, principal, body.token)

    return routes


def count_or_do(bulk: Bulk, act: BulkAct, principal: Principal, token: str | None) -> Response:
    """Return how many jobs it would be, or do it when the caller has a token."""
    actor = Actor(actor_of(principal), tenant=principal.tenant, roles=roles_of(principal))
    if token is None:
        counted = bulk.count(act, actor)
        return schemas.answer({**asdict(counted), "expires_at": rfc3339(counted.expires_at)})
    return schemas.answer(asdict(bulk.do(act, actor, token=token)))


class DeadLettersQuery(schemas.Parameters):
    """Which dead letters, and which page of them."""

    flow: str | None = Field(None, description="Only of this flow.")
    code: str | None = Field(None, description="Only those that failed with this code.")
    after: schemas.JobId | None = Field(None, description="The `next` of the page before.")
    limit: schemas.PageSize = schemas.USUAL_PAGE


class RedrivesAsked(schemas.Body):
    """Which dead letters, and why; with the token of an earlier answer it is done."""

    flow: str | None = Field(None, description="Only of this flow.")
    code: str | None = Field(None, description="Only those that failed with this code.")
    note: schemas.Note = ""
    token: str | None = Field(None, description="What an answer without one has given.")

    model_config = schemas.example(flow="charges", code="Timeout", note="the bank is back")


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

    model_config = schemas.example(
        id=f"{schemas.A_JOB}/3/0/mail", handler="mail", job_id=schemas.A_JOB, topic="orders",
        key="4711", state="dead", tries=11, error="TimeoutError", at=schemas.A_MOMENT,
    )  # fmt: skip


def dead_letters_router(engine: Engine, bulk: Bulk) -> APIRouter:
    """Make the routes of an engine's dead letters; a crowd of them is redriven in bulk."""
    routes = guarded_router(tags=["dead letters"])

    @routes.get("/dead-letters", response_model=schemas.JobPage)
    def list_dead_letters(
        query: Annotated[DeadLettersQuery, Query()], principal: Caller
    ) -> Response:
        """List jobs that gave up, newest first; `next` is the `after` of the next page."""
        return schemas.answer(job_page(engine, _dead(query, principal), query.after, query.limit))

    @routes.post("/dead-letters/redrive", response_model=BulkCounted | BulkDone)
    def redrive_all(body: RedrivesAsked, principal: Caller) -> Response:
        """Run many of them again. Without a token nothing is changed: the answer says how many it
        would be and gives the token, good for ten minutes, with which the same request does it."""
        act = BulkAct(RETRY, _dead(body, principal), note=body.note)
        return count_or_do(bulk, act, principal, body.token)

    @routes.post("/dead-letters/{id}/redrive", **MOVED)
    def redrive(
        id: JobPath, principal: Caller, body: schemas.ActAsked = schemas.NO_NOTE
    ) -> Response:
        """Run a job that gave up again, in a new round."""
        get_visible_job(engine, id, principal)
        return answer_job(engine.retry(id, actor=actor_of(principal), note=body.note))

    @routes.get("/outbox/dead")
    def list_dead_messages(
        limit: Annotated[schemas.PageSize, Query()] = schemas.USUAL_PAGE,
    ) -> schemas.Whole[MessageShown]:
        """List messages that gave up, the oldest first."""
        found = engine.outbox.dead(limit=limit)
        return schemas.Whole(items=[_message(message) for message in found])

    @routes.post("/outbox/dead/{id:path}/revive")
    def revive(
        id: str, principal: Caller, body: schemas.ActAsked = schemas.NO_NOTE
    ) -> MessageShown:
        """Let a message that gave up be tried again; it may come after younger ones of its key."""
        return _message(engine.outbox.redrive(id, actor=actor_of(principal), note=body.note))

    return routes


def _dead(asked: DeadLettersQuery | RedrivesAsked, principal: Principal) -> JobFilter:
    return JobFilter(tenant=principal.tenant, flow=asked.flow, role=FAILED, code=asked.code)


def _message(message: Delivery) -> MessageShown:
    return MessageShown.model_validate(delivery_document(message))
