"""One act on every job that a filter matches, over HTTP: count, then confirm."""

from __future__ import annotations

from dataclasses import asdict
from typing import Literal

from fastapi import APIRouter, Response
from pydantic import BaseModel, ConfigDict, Field, model_validator

from ulak.auth.principal import Principal
from ulak.clock import rfc3339
from ulak.engine.bulk import Actor, Bulk, BulkAct
from ulak.web import schemas
from ulak.web.answers import answer
from ulak.web.callers import Caller, guarded_router
from ulak.web.conditions import Conditions
from ulak.web.seen import actor_of, roles_of
from ulak.web.texts import Note


class Where(Conditions, schemas.Body):
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
    note: Note = ""
    token: str | None = Field(default=None, description="What an answer without one has given.")

    model_config = ConfigDict(
        json_schema_extra={
            "example": {
                "action": "retry", "where": {"flow": "cutting", "code": "Timeout"},
                "note": "the network is back",
            }
        }
    )  # fmt: skip


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


def router(bulk: Bulk) -> APIRouter:
    """Make the route of bulk acts."""
    routes = guarded_router(tags=["acts"])

    # Not async: the store is synchronous, so FastAPI runs this in a thread.
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
        return answer({**asdict(counted), "expires_at": rfc3339(counted.expires_at)})
    return answer(asdict(bulk.do(act, actor, token=token)))
