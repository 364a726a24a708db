"""The routes of whoever follows jobs: read one until it ends, list one's own, end one early."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass
from typing import Annotated, Any, Final

from fastapi import APIRouter, Query, Request, Response
from pydantic import Field

from ulak.auth import ADMIN, Principal
from ulak.errors import BadInput
from ulak.services.pdf.bodies import PdfJobPage, PdfJobStatusResponse, status_document
from ulak.services.pdf.envelope import JOB_ENDED, VALIDATION_ERROR, Refusal
from ulak.services.pdf.jobs import InvalidTransition, PdfJobStore
from ulak.services.pdf.listing import Listing, Place, Whose
from ulak.services.pdf.model import PdfJob, PdfJobStatus
from ulak.services.pdf.pace import LATEST_S, SOONEST_S, Pacing
from ulak.services.pdf.scopes import PDF_READ, PDF_RENDER
from ulak.services.pdf.waiting import LONGEST_WAIT_S, Waiting
from ulak.web import Access, Caller
from ulak.web.answers import answer
from ulak.web.paging import paged
from ulak.web.schemas import Parameters, problems
from ulak.web.seen import actor_of

ACCESS: Final = (
    Access("GET", "/pdf/jobs", PDF_READ, "jobs"),
    Access("GET", "/pdf/jobs/{id}", PDF_READ, "job"),
    Access("DELETE", "/pdf/jobs/{id}", PDF_RENDER, "job"),
)
PRIVATE: Final = {"Cache-Control": "private, no-store"}
UNFINISHED: Final = (PdfJobStatus.QUEUED, PdfJobStatus.RUNNING)
RETRY_AFTER: Final[dict[str, Any]] = {
    "Retry-After": {
        "description": "When to ask again: whole seconds, by the queue and by how long renders "
        "took lately.",
        "schema": {"type": "integer", "minimum": SOONEST_S, "maximum": LATEST_S},
    }
}
"""How the OpenAPI document describes it, of jobs that have not ended."""

# Each job of a page is read with its trail.
USUAL_PAGE: Final = 20
LARGEST_PAGE: Final = 100

See = Callable[[str, Principal], PdfJob]
"""Answers a job that a caller may know of, or refuses."""


class PdfJobQuery(Parameters):
    """How long to wait for a job."""

    wait: float = Field(
        0, ge=0, le=LONGEST_WAIT_S, description="Seconds to wait until the job has ended."
    )


class PdfJobsQuery(Parameters):
    """Which jobs, and which page of them."""

    status: PdfJobStatus | None = Field(None, description="Only those that stand there.")
    after: str | None = Field(None, description="The `next` of the page before.")
    limit: int = Field(USUAL_PAGE, ge=1, le=LARGEST_PAGE, description="How many at most.")


@dataclass(frozen=True, slots=True)
class Following:
    """What these routes are made of."""

    jobs: PdfJobStore
    see: See
    must_be_readable: Callable[[], None]
    """Raises where the store does not answer."""
    pacing: Pacing
    waiting: Waiting
    listing: Listing


def add_following(routes: APIRouter, following: Following) -> None:
    """Add the routes."""
    jobs, see = following.jobs, following.see

    def told(job: PdfJob, request: Request, status: int = 200) -> Response:
        headers = PRIVATE | hint_of(job, following.pacing)
        return answer(status_document(job, root_of(request)), status, headers=headers)

    @routes.get("/pdf/jobs", response_model=PdfJobPage)
    def list_jobs(
        query: Annotated[PdfJobsQuery, Query()], request: Request, principal: Caller
    ) -> Response:
        """List the jobs that one has asked for, the latest first; an admin sees everybody's."""
        after = _place_of(query.after)
        following.must_be_readable()
        page, following_page = paged(
            lambda n: following.listing.page(
                whose_of(principal), status=query.status, after=after, limit=n
            ),
            query.limit,
            lambda listed: str(listed.place),
        )
        items = [status_document(listed.job, root_of(request)) for listed in page]
        return answer({"items": items, "next": following_page}, headers=PRIVATE)

    @routes.get(
        "/pdf/jobs/{id}",
        response_model=PdfJobStatusResponse,
        responses={200: {"headers": RETRY_AFTER}},
    )
    async def read_job(
        id: str, query: Annotated[PdfJobQuery, Query()], request: Request, principal: Caller
    ) -> Response:
        """Read a job of one's own. With `wait` the answer comes as soon as it has ended; when the
        time is over, or too many wait, it is the job as it stands then. A foreign one is not
        found, as one that never was."""
        job = await asyncio.to_thread(see, id, principal)
        if query.wait and job.status in UNFINISHED:
            await following.waiting.until_ended(job.job_id, query.wait)
            job = await asyncio.to_thread(see, id, principal)
        return await asyncio.to_thread(told, job, request)

    @routes.delete(
        "/pdf/jobs/{id}",
        response_model=PdfJobStatusResponse,
        responses={
            202: {"model": PdfJobStatusResponse, "description": "Its attempt is being stopped."},
            **problems(409),
        },
    )
    def cancel_job(id: str, request: Request, principal: Caller) -> Response:
        """End a job that nobody wants any more, for everybody who asked for it. A queued one has
        expired when this answers; of a running one the attempt is stopped, and it has failed and
        expired once it has. One that has ended stays as it is."""
        job = see(id, principal)
        if job.status not in UNFINISHED:
            raise _has_ended(job)
        try:
            job = jobs.cancel(job.job_id, actor=actor_of(principal))
        except InvalidTransition:
            raise _has_ended(see(id, principal)) from None
        if job.status in UNFINISHED:
            return told(job, request, 202)
        return told(job, request)


def hint_of(job: PdfJob, pacing: Pacing) -> dict[str, str]:
    """Return the header that says when to ask again, of a job that has not ended."""
    if job.status not in UNFINISHED:
        return {}
    return {"Retry-After": str(pacing.look().retry_after_s(job.status))}


def whose_of(principal: Principal) -> Whose:
    """Return the owner of the jobs that a caller lists."""
    if ADMIN in principal.roles:
        return Whose(tenant=principal.tenant, owner=None)
    return Whose(tenant=principal.tenant or "", owner=actor_of(principal))


def root_of(request: Request) -> str:
    """Return where the application is mounted."""
    root: str = request.scope.get("root_path", "")
    return root


def _place_of(text: str | None) -> Place | None:
    try:
        return None if text is None else Place.read(text)
    except BadInput as error:
        raise Refusal(str(error), status=422, error_code=VALIDATION_ERROR) from None


def _has_ended(job: PdfJob) -> Refusal:
    return Refusal(
        f"the job is {job.status}: there is nothing to cancel", status=409,
        error_code=JOB_ENDED, job_id=job.job_id, details={"status": job.status},
    )  # fmt: skip
