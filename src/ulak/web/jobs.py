"""The list of jobs."""

from __future__ import annotations

from typing import Annotated, Any

from fastapi import APIRouter, Query
from pydantic import BaseModel, ConfigDict, Field

from ulak.core.lifecycle import Role
from ulak.engine.documents import job_document
from ulak.engine.engine import Engine
from ulak.store.protocol import JobFilter

LARGEST_PAGE = 1000


class JobsQuery(BaseModel):
    """Which jobs, and which page of them. A parameter that does not exist is refused: a misspelt
    filter would answer jobs that nobody asked for."""

    model_config = ConfigDict(extra="forbid")

    tenant: str | None = None
    flow: str | None = None
    state: str | None = None
    role: Role | None = None
    code: str | None = None
    queue: str | None = None
    after: str | None = None
    limit: int = Field(100, ge=1, le=LARGEST_PAGE)


def router(engine: Engine) -> APIRouter:
    """Make the routes that read an engine's jobs."""
    routes = APIRouter()

    # Not async: the store is synchronous, so FastAPI runs this in a thread.
    @routes.get("/jobs")
    def list_jobs(query: Annotated[JobsQuery, Query()]) -> dict[str, Any]:
        """Answer jobs, newest first; `next` is the `after` of the next page."""
        where = JobFilter(
            tenant=query.tenant, flow=query.flow, state=query.state, role=query.role,
            code=query.code, queue=query.queue,
        )  # fmt: skip
        # One more than asked tells whether there is another page.
        found = engine.jobs(where, after=query.after, limit=query.limit + 1)
        page = found[: query.limit]
        return {
            "jobs": [job_document(job) for job in page],
            "next": page[-1].id if len(found) > len(page) else None,
        }

    return routes
