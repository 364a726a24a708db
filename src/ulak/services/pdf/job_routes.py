"""The routes of jobs that are there: list, read, cancel, and get the PDF, a link, the report."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass, replace
from datetime import timedelta
from itertools import islice
from typing import Annotated, Any, Final, NamedTuple

from fastapi import APIRouter, Query, Request, Response
from pydantic import Field

from ulak import Engine, JobFilter
from ulak.artifacts import DownloadLinks
from ulak.artifacts.signing import LINK_LIFE
from ulak.auth import ADMIN, Principal
from ulak.engine.inspect import Owned
from ulak.errors import BadInput, JobNotFound, Unauthenticated
from ulak.kit.clock import Instant, now, to_datetime, to_instant
from ulak.services.pdf import responses
from ulak.services.pdf.bodies import (
    PdfJobNotReady,
    PdfJobPage,
    PdfJobStatusResponse,
    PdfLink,
    PdfReport,
    invalid,
    report_document,
    show_error_detail,
    status_document,
)
from ulak.services.pdf.failsafe import LATEST_S, SOONEST_S, UNFINISHED, HealthCheck, Pacing
from ulak.services.pdf.flow import FLOW, STATUSES, walk
from ulak.services.pdf.jobs import InvalidTransition, PdfJobStore
from ulak.services.pdf.model import PdfJob, PdfJobStatus
from ulak.services.pdf.responses import Artifact, Reader, Refusal
from ulak.services.pdf.submission import move_owner
from ulak.web import Caller, while_serving
from ulak.web.callers import actor_of
from ulak.web.schemas import Parameters, answer, paged, problems

PRIVATE: Final = {"Cache-Control": "private, no-store"}
RETRY_AFTER: Final[dict[str, Any]] = {
    "Retry-After": {
        "description": "When to ask again: whole seconds, by the queue and by how long renders "
        "took lately.",
        "schema": {"type": "integer", "minimum": SOONEST_S, "maximum": LATEST_S},
    }
}
"""How the OpenAPI document describes it, of jobs that have not ended."""
LONGEST_WAIT_S: Final = 60
"""The longest wait of one request; what lies between often cuts after a minute."""
# A guess at what one process does beside its other work.
MOST_WAITING: Final = 100
HELD: Final = "held"
"""No worker touches a held job: whoever waits for its end is told."""
# Each job of a page is read with its trail.
USUAL_PAGE: Final = 20
LARGEST_PAGE: Final = 100

_NOT_YET: Final[dict[str, Any]] = {
    "model": PdfJobNotReady, "description": "It is not rendered yet.", "headers": RETRY_AFTER,
}  # fmt: skip
_DOWNLOADS: Final[dict[int | str, dict[str, Any]]] = {
    200: {"content": {responses.MEDIA_TYPE: {}}, "description": "The PDF."},
    202: _NOT_YET,
    206: {"content": {responses.MEDIA_TYPE: {}}, "description": "A part of the PDF."},
    304: {"description": "The caller has it already."},
    **problems(409, 410, 416, 500),
}
# So many places of an owner are read at once; most pages are smaller.
A_STRETCH: Final = 100
A_SPAN: Final = timedelta(minutes=1)
"""A job's id tells nothing about when it was made, so jobs of everybody are read by spans of time
and sorted: first those of so long, then of twice as long before, and so on."""
LONGEST_SPAN: Final = timedelta(days=2)
"""Jobs that are older than all of these together are read at once; clean-up leaves few."""
_MOMENT: Final = timedelta(microseconds=1)
_PLACE: Final = re.compile(
    r"([0-9]{1,17})\.([0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12})", re.ASCII
)


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


class Waiting:
    """Lets at most so many requests wait at a time, without a thread."""

    def __init__(self, engine: Engine, *, at_most: int = MOST_WAITING) -> None:
        self._engine = engine
        self._at_most = at_most
        self._waiting = 0

    async def until_ended(self, request: Request, job_id: str, seconds: float) -> None:
        """Come back when a job has ended, when the time is over, or when the server stops; at once
        where too many wait already: their callers ask again, which costs less than refusing
        them."""
        if self._waiting >= self._at_most:
            return
        self._waiting += 1
        try:
            with suppress(TimeoutError, JobNotFound):  # one that is pruned meanwhile has ended
                async with while_serving(request):
                    limit = timedelta(seconds=seconds)
                    await self._engine.aio.wait(job_id, until=HELD, timeout=limit)
        finally:
            self._waiting -= 1


@dataclass(frozen=True, slots=True)
class Reading:
    """Jobs as their owners see them, and their PDFs."""

    jobs: PdfJobStore
    health: HealthCheck
    reader: Reader
    pacing: Pacing

    def see(self, job_id: str, principal: Principal) -> PdfJob:
        """Return a job that a caller may know of.

        Raises:
            Refusal: there is none, or it is another owner's: the same words.
            Unavailable: the store does not answer.
        """
        job, actor = self._get(job_id), actor_of(principal)
        if not principal.sees(job.tenant_id):
            raise _not_found()
        is_owner = ADMIN in principal.roles or actor in job.owners
        if not is_owner and not move_owner(self.jobs.engine, job.job_id, actor):
            raise _not_found()
        return job

    def see_linked(self, job_id: str, code: str, links: DownloadLinks) -> PdfJob:
        """Return the job that a link leads to.

        Raises:
            Refusal: the code is none of this job's, or is over.
            Unavailable: the store does not answer.
        """
        try:
            job = self._get(job_id)
            artifact = self.find_artifact(job)
            if artifact is None:
                raise _not_found()
            links.must_allow(code, artifact.key, job.job_id)
        except (Refusal, Unauthenticated):
            raise Refusal(
                "this link is over, or never was one; ask for another",
                status=404, error_code="LINK_INVALID",
            ) from None  # fmt: skip
        return job

    def find_artifact(self, job: PdfJob) -> Artifact | None:
        """Return what the report of a job says of its PDF, None when it has none."""
        if job.status is not PdfJobStatus.SUCCEEDED:
            return None
        said = self.jobs.find_report(job.job_id) or {}
        key, digest, size = said.get("artifact_key"), said.get("sha256"), said.get("size")
        if not isinstance(key, str):
            raise responses.lost(job.job_id)
        if not isinstance(digest, str) or not isinstance(size, int):
            raise responses.unreadable(job.job_id, "nobody has noted what it should be")
        return Artifact(job.job_id, key, digest, size)

    async def download(self, job: PdfJob, request: Request) -> Response:
        """Return the PDF of a job, as a request wants it."""
        artifact = await asyncio.to_thread(self.find_artifact, job)
        if artifact is None:
            return await asyncio.to_thread(self.answer_without_pdf, job)
        if (same := responses.unchanged(artifact, request.headers)) is not None:
            return same
        kept = self.jobs.artifacts
        if request.method == "HEAD":
            if not await self.reader.read(job.job_id, lambda: kept.exists(artifact.key)):
                raise responses.lost(job.job_id)
            return responses.download(artifact, request.headers, None)
        pdf = await self.reader.read(job.job_id, lambda: kept.get_pdf(artifact.key))
        return responses.download(artifact, request.headers, pdf)

    def answer(self, job: PdfJob, request: Request, status: int = 200) -> Response:
        """Return a job as it stands, and when to ask again."""
        headers = PRIVATE | self.pacing.hint(job)
        return answer(status_document(job, root_of(request)), status, headers=headers)

    def answer_without_pdf(self, job: PdfJob) -> Response:
        """Return a job that has no PDF yet. Raises Refusal: it has none any more, or never will."""
        if job.status is PdfJobStatus.FAILED:
            why = f"{job.error_code} ({job.error_detail})" if job.error_detail else job.error_code
            raise Refusal(
                f"the job has failed with {why}; ask for the document again",
                status=409, error_code="JOB_FAILED", job_id=job.job_id,
                details={"error_code": job.error_code, **show_error_detail(job)},
            )  # fmt: skip
        if job.status is PdfJobStatus.EXPIRED:
            raise Refusal(
                "the PDF was kept for its time and is deleted; ask for the document again",
                status=410, error_code="JOB_EXPIRED", job_id=job.job_id,
            )  # fmt: skip
        document = {"job_id": job.job_id, "status": job.status}
        return answer(document, 202, headers=self.pacing.hint(job) | PRIVATE)

    def _get(self, job_id: str) -> PdfJob:
        self.health.must_answer()
        try:
            return self.jobs.read_job(job_id)
        except (JobNotFound, BadInput):
            raise _not_found() from None


def add_following(routes: APIRouter, reading: Reading, waiting: Waiting) -> None:
    """Add the routes that list, read and cancel jobs."""

    @routes.get("/pdf/jobs", response_model=PdfJobPage)
    def list_own_jobs(
        query: Annotated[PdfJobsQuery, Query()], request: Request, principal: Caller
    ) -> Response:
        """List the jobs that one has asked for, the latest first; an admin sees everybody's."""
        try:
            after = None if query.after is None else Place.read(query.after)
        except BadInput as error:
            raise invalid("after", str(error)) from None
        reading.health.must_answer()
        tenant, owner = principal.tenant, None
        if ADMIN not in principal.roles:
            tenant, owner = tenant or "", actor_of(principal)
        found = find_jobs(
            reading.jobs, tenant=tenant, owner=owner, status=query.status, after=after
        )
        page, following = paged(
            lambda n: list(islice(found, n)), query.limit, lambda listed: str(listed[0])
        )
        items = [status_document(job, root_of(request)) for _, job in page]
        return answer({"items": items, "next": following}, headers=PRIVATE)

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
        job = await asyncio.to_thread(reading.see, id, principal)
        if query.wait and job.status in UNFINISHED:
            await waiting.until_ended(request, job.job_id, query.wait)
            job = await asyncio.to_thread(reading.see, id, principal)
        return await asyncio.to_thread(reading.answer, job, request)

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
        job = reading.see(id, principal)
        if job.status not in UNFINISHED:
            raise _has_ended(job)
        try:
            job = reading.jobs.cancel(job.job_id, actor=actor_of(principal))
        except InvalidTransition:
            raise _has_ended(reading.see(id, principal)) from None
        return reading.answer(job, request, 202 if job.status in UNFINISHED else 200)


def add_getting(routes: APIRouter, reading: Reading, links: DownloadLinks) -> None:
    """Add the routes of what a job has made: its PDF, links to it, its report."""

    @routes.head("/pdf/jobs/{id}/download", include_in_schema=False)
    @routes.get("/pdf/jobs/{id}/download", response_class=Response, responses=_DOWNLOADS)
    async def download(id: str, request: Request, principal: Caller) -> Response:
        """Download a PDF, or a part of it: `Range`, `If-None-Match` and `If-Range` are honoured.
        Its `ETag` is its SHA-256."""
        job = await asyncio.to_thread(reading.see, id, principal)
        return await reading.download(job, request)

    @routes.post(
        "/pdf/jobs/{id}/link",
        status_code=201,
        response_model=PdfLink,
        responses={202: _NOT_YET, **problems(409, 410)},
    )
    def make_link(id: str, request: Request, principal: Caller) -> Response:
        """Make a link that downloads the PDF without a credential, for five minutes."""
        job = reading.see(id, principal)
        artifact = reading.find_artifact(job)
        if artifact is None:
            return reading.answer_without_pdf(job)
        code = links.make_code(artifact.key, job.job_id)
        where = f"{root_of(request)}/pdf/links/{job.job_id}/{code}"
        document = {"url": where, "expires_in_seconds": int(LINK_LIFE.total_seconds())}
        return answer(document, 201, headers=PRIVATE)

    @routes.head("/pdf/links/{id}/{code}", include_in_schema=False)
    @routes.get("/pdf/links/{id}/{code}", response_class=Response, responses=_DOWNLOADS)
    async def follow_link(id: str, code: str, request: Request) -> Response:
        """Download a PDF by a link. One that is over, or never was, is not found."""
        job = await asyncio.to_thread(reading.see_linked, id, code, links)
        return await reading.download(job, request)

    @routes.get(
        "/pdf/jobs/{id}/report",
        response_model=PdfReport,
        responses={202: _NOT_YET, **problems(409, 410)},
    )
    def read_report(id: str, principal: Caller) -> Response:
        """Read how a PDF came about: how long each step took, what was refused, which characters
        have no glyph. There is one as long as there is the PDF."""
        job = reading.see(id, principal)
        if job.status is not PdfJobStatus.SUCCEEDED:
            return reading.answer_without_pdf(job)
        report = reading.jobs.find_report(job.job_id)
        return answer(report_document(job, report), headers=PRIVATE)


def root_of(request: Request) -> str:
    """Return where the application is mounted."""
    root: str = request.scope.get("root_path", "")
    return root


def _not_found() -> Refusal:
    # The same words whether it never was, is no id, or belongs to somebody else.
    return Refusal("there is no such job", status=404, error_code="JOB_NOT_FOUND")


def _has_ended(job: PdfJob) -> Refusal:
    return Refusal(
        f"the job is {job.status}: there is nothing to cancel", status=409,
        error_code="JOB_ENDED", job_id=job.job_id, details={"status": job.status},
    )  # fmt: skip


class Place(NamedTuple):
    """Where a job stands in a list: the later, the nearer to its beginning."""

    at: Instant
    job_id: str

    def __str__(self) -> str:
        return f"{self.at}.{self.job_id}"

    @classmethod
    def read(cls, text: str) -> Place:
        """Read a place as a list has written it. Raises BadInput: no list has written this."""
        found = _PLACE.fullmatch(text)
        if found is None:
            raise BadInput("take it from the `next` of the page before")
        return cls(int(found[1]), found[2])


def find_jobs(
    jobs: PdfJobStore,
    *,
    tenant: str | None,
    owner: str | None,
    status: PdfJobStatus | None = None,
    after: Place | None = None,
) -> Iterator[tuple[Place, PdfJob]]:
    """Return the jobs that follow a place, as they stand now, the latest first.

    The place of a job is when it was made, or when its owner asked for it again. None stands for
    every tenant, owner or status. Raises StoreError: the store does not answer.
    """
    states = [state for state, means in STATUSES.items() if status in (None, means)]
    places = _made(jobs.engine, tenant, after)
    if owner is not None:
        places = _owned(jobs.engine, owner, after)
    for place in places:
        try:
            if status is None or jobs.engine.get(place.job_id).state in states:
                job = jobs.read_job(place.job_id, tenant=tenant)
                if status in (None, job.status):
                    yield place, job
        except JobNotFound:
            continue  # pruned since, of another flow, or an owner's namesake's


def _owned(engine: Engine, owner: str, after: Place | None) -> Iterator[Place]:
    """Find what somebody owns, by when they became an owner."""
    before = None if after is None else Owned(to_datetime(after.at), after.job_id)
    while page := engine.owners.jobs(owner, before=before, limit=A_STRETCH):
        yield from (Place(to_instant(one.since), one.job_id) for one in page)
        before = page[-1]


def _made(engine: Engine, tenant: str | None, after: Place | None) -> Iterator[Place]:
    """Find the jobs of a tenant, or of all of them, by when they were made."""
    where = JobFilter(flow=FLOW, tenant=tenant)
    # Of the moment of a place there may be more.
    before = None if after is None else to_datetime(after.at) + _MOMENT
    span = A_SPAN
    while True:
        since = (before or now(engine.open())) - span if span <= LONGEST_SPAN else None
        part = replace(where, submitted_since=since, submitted_before=before)
        found = [Place(to_instant(job.created_at), job.id) for job in walk(engine, part)]
        yield from (p for p in sorted(found, reverse=True) if after is None or p < after)
        if since is None:
            return
        before, span = since, 2 * span
