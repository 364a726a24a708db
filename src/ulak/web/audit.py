"""The audit: what operators did, and who did it."""

from __future__ import annotations

from typing import Annotated, Any, Final

from fastapi import APIRouter, Query
from pydantic import BaseModel, Field

from ulak.engine.engine import Engine
from ulak.web.callers import guarded_router
from ulak.web.paging import USUAL_PAGE, PageSize, paged
from ulak.web.schemas import Moment, Page, Parameters

LAST_POSITION: Final = 2**62


class AuditQuery(Parameters):
    """Which lines of the audit."""

    subject: str | None = Field(None, max_length=512, examples=["credential/key/ab23cd45"])
    after: int | None = Field(
        None, ge=0, le=LAST_POSITION, description="The `next` of the page before."
    )
    limit: PageSize = USUAL_PAGE


class AuditDocument(BaseModel):
    """One act of an operator."""

    position: int
    at: Moment
    actor: str
    act: str = Field(examples=["revoked"])
    subject: str = Field(examples=["credential/key/ab23cd45"])
    note: str | None
    details: Any


class AuditPage(Page[AuditDocument, int]):
    """Acts, the latest first."""


def router(engine: Engine) -> APIRouter:
    """Make the route of an engine's audit."""
    routes = guarded_router(tags=["audit"])

    @routes.get("/audit")
    def read_audit(query: Annotated[AuditQuery, Query()]) -> AuditPage:
        """Return what operators did, the latest first."""
        page, following = paged(
            lambda n: engine.inspect.audit(subject=query.subject, before=query.after, limit=n),
            query.limit,
            lambda line: line.position,
        )
        items = [AuditDocument.model_validate(line, from_attributes=True) for line in page]
        return AuditPage(items=items, next=following)

    return routes
