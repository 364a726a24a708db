"""The routes of PDF rendering: a request is validated, recorded and queued, and nothing more."""

from __future__ import annotations

import asyncio
import copy
import functools
import re
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any, Final

from fastapi import APIRouter, Depends, Request, Response

from ulak import Engine, settings, wiring
from ulak.artifacts import DownloadLinks
from ulak.artifacts.signing import LINK_LIFE, PURPOSE
from ulak.auth import ADMIN, Principal
from ulak.errors import BadInput, JobNotFound, Unauthenticated
from ulak.idempotency import Guard
from ulak.idempotency.settings import IdempotencySettings
from ulak.kit.bodies import inline_schema
from ulak.kit.clock import rfc3339
from ulak.services.pdf import downloads, following, reporting
from ulak.services.pdf.accepting import Accepting
from ulak.services.pdf.batches import BATCH_ACCESS, Batches, add_batches
from ulak.services.pdf.bodies import (
    PdfJobNotReady,
    PdfJobRequest,
    PdfJobResponse,
    PdfLink,
    read_body,
    read_request,
)
from ulak.services.pdf.configuration import artifacts_of, templates_of
from ulak.services.pdf.downloads import Artifact, Reader
from ulak.services.pdf.envelope import (
    JOB_EXPIRED,
    JOB_FAILED,
    JOB_NOT_FOUND,
    LINK_INVALID,
    NOT_ACCEPTABLE,
    Refusal,
    answering,
    envelope,
)
from ulak.services.pdf.failsafe import HealthCheck, Unavailable
from ulak.services.pdf.following import PRIVATE, RETRY_AFTER, Following, hint_of, root_of
from ulak.services.pdf.jobs import PdfJobStore
from ulak.services.pdf.listing import Listing
from ulak.services.pdf.metrics import PdfMetrics
from ulak.services.pdf.model import PdfJob, PdfJobStatus
from ulak.services.pdf.pace import Pacing
from ulak.services.pdf.readiness import readiness_router
from ulak.services.pdf.scopes import PDF_READ, PDF_RENDER
from ulak.services.pdf.sealing import Sealing, sealing_of
from ulak.services.pdf.settings import PdfRenderConfig
from ulak.services.pdf.waiting import Waiting
from ulak.services.pdf.worker import TemplateSource
from ulak.web import KNOWN, PUBLIC, Access, Caller, Routes, guarded_router
from ulak.web.answers import answer
from ulak.web.correlation import correlation_id
from ulak.web.idempotency import idempotent_route
from ulak.web.jobs import IDEMPOTENCY_KEY, LOCATED, tenant_and_actor
from ulak.web.schemas import problems
from ulak.web.seen import actor_of

ACCESS: Final = (
    Access("POST", "/pdf/jobs", PDF_RENDER, "jobs"),
    Access("POST", "/pdf/preview", PDF_RENDER, "jobs"),
    BATCH_ACCESS,
    *following.ACCESS,
    *reporting.ACCESS,
    Access("GET", "/pdf/jobs/{id}/download", PDF_READ, "job"),
    Access("POST", "/pdf/jobs/{id}/link", PDF_READ, "job"),
    # The code in the path is the credential.
    Access("GET", "/pdf/links/{id}/{code}", PUBLIC),
    Access("GET", "/pdf/ready", PUBLIC),
    Access("GET", "/version", KNOWN, "jobs"),
)
DEDUPLICATED: Final = "Deduplicated"

_NOT_AT_ALL: Final = re.compile(r"(?:^|;)\s*q\s*=\s*0(?:\.0{0,3})?\s*(?:;|$)")
_DOWNLOADS: Final[dict[int | str, dict[str, Any]]] = {
    200: {"content": {downloads.MEDIA_TYPE: {}}, "description": "The PDF."},
    202: {
        "model": PdfJobNotReady,
        "description": "It is not rendered yet.",
        "headers": RETRY_AFTER,
    },
    206: {"content": {downloads.MEDIA_TYPE: {}}, "description": "A part of the PDF."},
    304: {"description": "The caller has it already."},
    **problems(409, 410, 416, 500),
}

ASKED: Final = "ulak.pdf.asked"
"""Where the scope of a connection has the request that was read, once it was."""


def routes_of(engine: Engine, config: PdfRenderConfig) -> Routes:
    """Make the routes as the settings of this process say.

    Raises:
        BadInput: a setting cannot be used.
    """
    platform = settings.load()
    kept = wiring.idempotency_settings()
    key = wiring.identity_of(engine, platform).derive(PURPOSE)
    return make_routes(
        PdfJobStore(engine, artifacts_of(config, engine.store.clock), config),
        templates_of(config),
        guard=wiring.guard_of(engine, platform.env, kept), kept=kept,
        links=DownloadLinks(key, engine.store.clock),
        sealing=partial(sealing_of, engine, platform),
    )  # fmt: skip


def make_routes(
    jobs: PdfJobStore,
    templates: TemplateSource,
    *,
    guard: Guard,
    kept: IdempotencySettings,
    links: DownloadLinks,
    health: HealthCheck | None = None,
    reader: Reader | None = None,
    waiting: Waiting | None = None,
    pacing: Pacing | None = None,
    sealing: Callable[[], Sealing] | None = None,
) -> Routes:
    """Make the routes, and the lines that say who may call each.

    Args:
        jobs: The jobs, with their engine, artifacts and settings.
        templates: Fills templates where HTML is to stand in for a PDF.
        guard: Where the records of idempotency keys are.
        kept: How long those are kept.
        links: Signs links that download without a credential.
        health: Tells whether jobs are worked on; by default by the settings.
        reader: Reads artifacts; by default with the usual patience.
        waiting: Lets requests wait for the end of a job; by default as many as usual.
        pacing: Tells when to ask again; by default by the clock of the process.
        sealing: Makes what seals passwords of documents; by default none is taken.
    """
    config = jobs.config
    metrics = PdfMetrics(jobs.engine, heartbeat=config.heartbeat_limit)
    if health is None:
        health = HealthCheck(jobs.engine, heartbeat=config.heartbeat_limit)
    if pacing is None:
        pacing = Pacing(jobs.engine, config, metrics.totals)
    accepting = Accepting(jobs, templates, health, pacing, sealing)

    async def unavailable(request: Request, why: str) -> Response:
        """Return a request that the store, or the lack of workers, leaves undone."""
        asked: PdfJobRequest | None = request.scope.get(ASKED)
        try:
            if asked is None:
                raise Unavailable(why)
            return await asyncio.to_thread(accepting.stand_in, asked, why)
        except Unavailable as error:
            metrics.count_unavailable()
            raise Refusal(
                str(error), status=503, error_code=error.code, retry_after_s=error.retry_after_s
            ) from None

    routes = guarded_router(route_class=answering(unavailable))
    _add_creating(routes, accepting, guard, kept, pacing)
    add_batches(
        routes, Batches(accepting, pacing, metrics.count_unavailable),
        once=_once(guard, kept, "pdf.batch", accepting), item=_schema_of(PdfJobRequest),
    )  # fmt: skip
    reading = _Reading(jobs, health, Reader() if reader is None else reader, pacing)
    following.add_following(
        routes,
        Following(
            jobs, reading.seen, reading.must_be_readable, pacing,
            waiting or Waiting(jobs.engine), Listing(jobs),
        ),
    )  # fmt: skip
    reporting.add_reporting(routes, jobs, reading.seen, reading.without_pdf)
    _add_downloading(routes, reading)
    _add_links(routes, reading, links)
    readiness = readiness_router(jobs, metrics.totals, health)
    return Routes([routes, readiness], ACCESS, metrics.read, metrics.tallies, envelope)


# --- creating --------------------------------------------------------------------------


def _add_creating(
    routes: APIRouter,
    accepting: Accepting,
    guard: Guard,
    kept: IdempotencySettings,
    pacing: Pacing,
) -> None:
    largest = accepting.config.max_payload_bytes
    once = _once(guard, kept, "pdf.create", accepting)

    body = {
        "required": True,
        "content": {"application/json": {"schema": _schema_of(PdfJobRequest)}},
    }

    async def asked_of(request: Request) -> PdfJobRequest:
        """Size, schema, allow-list: in this order, and after it is known who asks."""
        asked = read_request(await read_body(request, largest=largest), accepting.config)
        accepting.must_be_allowed(asked.template_name)
        request.scope[ASKED] = asked
        return asked

    @routes.post(
        "/pdf/jobs",
        status_code=202,
        response_model=PdfJobResponse,
        responses={
            200: {
                "description": "Nothing can be rendered now, and the HTML stands in for it.",
                "content": {"text/html": {"schema": {"type": "string"}}},
            },
            202: {"headers": LOCATED["headers"] | RETRY_AFTER},
            **problems(400, 413, 429),
        },
        openapi_extra={
            "parameters": [IDEMPOTENCY_KEY],
            "requestBody": body,
        },
        dependencies=[Depends(once)],
    )
    def create_job(
        request: Request,
        principal: Caller,
        asked: PdfJobRequest = Depends(asked_of),  # noqa: B008 - annotations cannot name a local
    ) -> Response:
        """Have a template rendered. The job is durable when this answers; the same template and
        variables answer the job that is there already, with `Deduplicated: true`."""
        job, is_repeat = accepting.accept(
            asked, principal, correlation_id(request), root_of(request)
        )  # fmt: skip
        document = {
            "job_id": job.job_id, "status": job.status, "created_at": rfc3339(job.created_at)
        }  # fmt: skip
        headers = {"Location": f"{root_of(request)}/pdf/jobs/{job.job_id}"}
        headers |= hint_of(job, pacing)
        if is_repeat:
            headers[DEDUPLICATED] = "true"
        return answer(document, 202, headers=headers)

    @routes.post(
        "/pdf/preview",
        response_class=Response,
        responses={
            200: {
                "description": "The HTML that would be printed.",
                "content": {"text/html": {"schema": {"type": "string"}}},
            },
            **problems(400, 406, 413),
        },
        openapi_extra={"requestBody": body},
    )
    def preview(
        request: Request,
        principal: Caller,
        asked: PdfJobRequest = Depends(asked_of),  # noqa: B008 - annotations cannot name a local
    ) -> Response:
        """See what would be printed, as HTML that runs nothing and loads nothing; no job is made.
        Header, footer and page breaks are the browser's, and not in it."""
        if not accepts(request.headers.get("accept", ""), "text/html"):
            raise Refusal(
                "a preview is text/html: no browser is in this process that could draw; create a "
                "job for what it prints",
                status=406, error_code=NOT_ACCEPTABLE,
            )  # fmt: skip
        return accepting.preview(asked)


def _once(
    guard: Guard, kept: IdempotencySettings, scope: str, accepting: Accepting
) -> Callable[..., Any]:
    """Return the dependency that has an answer repeated under an idempotency key. Jobs are in the
    store, and their own keys keep them single; only the answer is kept by this."""
    return idempotent_route(
        guard, replace(kept.scope(scope, mode="lease"), headers=(DEDUPLICATED,)),
        identify=tenant_and_actor, policy="optional", fingerprint=accepting.fingerprint,
    )  # fmt: skip


# --- reading ---------------------------------------------------------------------------


def _add_downloading(routes: APIRouter, reading: _Reading) -> None:
    @routes.head("/pdf/jobs/{id}/download", include_in_schema=False)
    @routes.get("/pdf/jobs/{id}/download", response_class=Response, responses=_DOWNLOADS)
    async def download(id: str, request: Request, principal: Caller) -> Response:
        """Download a PDF, or a part of it: `Range`, `If-None-Match` and `If-Range` are honoured.
        Its `ETag` is its SHA-256."""
        job = await asyncio.to_thread(reading.seen, id, principal)
        return await reading.download(job, request)


def _add_links(routes: APIRouter, reading: _Reading, links: DownloadLinks) -> None:
    @routes.post(
        "/pdf/jobs/{id}/link",
        status_code=201,
        response_model=PdfLink,
        responses={202: _DOWNLOADS[202], **problems(409, 410)},
    )
    def make_link(id: str, request: Request, principal: Caller) -> Response:
        """Make a link that downloads the PDF without a credential, for five minutes."""
        job = reading.seen(id, principal)
        artifact = reading.find_artifact(job)
        if artifact is None:
            return reading.without_pdf(job)
        code = links.make_code(artifact.key, job.job_id)
        where = f"{root_of(request)}/pdf/links/{job.job_id}/{code}"
        document = {"url": where, "expires_in_seconds": int(LINK_LIFE.total_seconds())}
        return answer(document, 201, headers=PRIVATE)

    @routes.head("/pdf/links/{id}/{code}", include_in_schema=False)
    @routes.get("/pdf/links/{id}/{code}", response_class=Response, responses=_DOWNLOADS)
    async def follow_link(id: str, code: str, request: Request) -> Response:
        """Download a PDF by a link. One that is over, or never was, is not found."""
        job = await asyncio.to_thread(reading.linked, id, code, links)
        return await reading.download(job, request)


class _Reading:
    """Jobs as their owners see them, and their PDFs."""

    def __init__(
        self, jobs: PdfJobStore, health: HealthCheck, reader: Reader, pacing: Pacing
    ) -> None:
        self._jobs = jobs
        self._health = health
        self._reader = reader
        self._pacing = pacing

    def seen(self, job_id: str, principal: Principal) -> PdfJob:
        """Return a job that a caller may know of.

        Raises:
            Refusal: there is none, or it is somebody else's: the same words.
            Unavailable: the store does not answer.
        """
        job = self._get(job_id)
        is_owner = ADMIN in principal.roles or self._jobs.owns(job, actor_of(principal))
        if not (is_owner and principal.sees(job.tenant_id)):
            raise _not_found()
        return job

    def linked(self, job_id: str, code: str, links: DownloadLinks) -> PdfJob:
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
                status=404, error_code=LINK_INVALID,
            ) from None  # fmt: skip
        return job

    def find_artifact(self, job: PdfJob) -> Artifact | None:
        """Return what the report of a job says of its PDF, None when it has none."""
        if job.status is not PdfJobStatus.SUCCEEDED:
            return None
        return _artifact_in(job, self._jobs.find_report(job.job_id))

    async def download(self, job: PdfJob, request: Request) -> Response:
        """Return the PDF of a job, as a request wants it."""
        artifact = await asyncio.to_thread(self.find_artifact, job)
        if artifact is None:
            return await asyncio.to_thread(self.without_pdf, job)
        key, kept = artifact.key, self._jobs.artifacts
        if (same := downloads.unchanged(artifact, request.headers)) is not None:
            return same
        if request.method == "HEAD":
            if not await self._reader.read(job.job_id, lambda: kept.exists(key)):
                raise downloads.lost(job.job_id)
            return downloads.described(artifact, request.headers)
        pdf = await self._reader.read(job.job_id, lambda: kept.get_pdf(key))
        return downloads.download(artifact, request.headers, pdf)

    def without_pdf(self, job: PdfJob) -> Response:
        """Return a job that has no PDF yet.

        Raises:
            Refusal: it has none any more, or never will.
        """
        if job.status is PdfJobStatus.FAILED:
            raise Refusal(
                f"the job has failed with {job.error_code}; ask for the document again",
                status=409, error_code=JOB_FAILED, job_id=job.job_id,
                details={"error_code": job.error_code},
            )  # fmt: skip
        if job.status is PdfJobStatus.EXPIRED:
            raise Refusal(
                "the PDF was kept for its time and is deleted; ask for the document again",
                status=410, error_code=JOB_EXPIRED, job_id=job.job_id,
            )  # fmt: skip
        return answer(
            {"job_id": job.job_id, "status": job.status}, 202,
            headers=hint_of(job, self._pacing) | PRIVATE,
        )  # fmt: skip

    def must_be_readable(self) -> None:
        """Refuse to ask a store that does not answer: one that hangs would take its time.

        Raises:
            Unavailable: it does not.
        """
        if not self._health.look().store_answers:
            raise Unavailable("the store of jobs does not answer")

    def _get(self, job_id: str) -> PdfJob:
        self.must_be_readable()
        try:
            return self._jobs.get_job(job_id)
        except (JobNotFound, BadInput):
            raise _not_found() from None


def _artifact_in(job: PdfJob, report: dict[str, Any] | None) -> Artifact:
    said = report or {}
    key, digest, size = said.get("artifact_key"), said.get("sha256"), said.get("size")
    if not isinstance(key, str):
        raise downloads.lost(job.job_id)
    if not isinstance(digest, str) or not isinstance(size, int):
        raise downloads.unreadable(job.job_id, "nobody has noted what it should be")
    return Artifact(job.job_id, key, digest, size)


def _not_found() -> Refusal:
    # The same words whether it never was, is no id, or belongs to somebody else.
    return Refusal("there is no such job", status=404, error_code=JOB_NOT_FOUND)


def accepts(said: str, kind: str) -> bool:
    """Tell whether an `Accept` header lets an answer be of a media type; nothing said takes all."""
    wanted = [part.partition(";") for part in said.lower().split(",") if part.strip()]
    family = kind.partition("/")[0]
    for name in (kind, f"{family}/*", "*/*"):
        for media, _, parameters in wanted:
            if media.strip() == name:
                # The most particular that is said counts, also when it says no.
                return not _NOT_AT_ALL.search(parameters)
    return not wanted


def _schema_of(model: type[PdfJobRequest]) -> dict[str, Any]:
    """Describe a body for the OpenAPI document, which cannot see that a dependency reads one."""
    return copy.deepcopy(_read_schema(model))


@functools.cache  # a quarter of the time in which these routes are made
def _read_schema(model: type[PdfJobRequest]) -> dict[str, Any]:
    schema = model.model_json_schema()
    inner = schema.pop("$defs", {})
    options = inner["PdfRenderOptions"]
    options["properties"]["page"] = inner["PdfPageOptions"]
    options["properties"]["output"] = inline_schema(inner["PdfOutputOptions"], inner)
    schema["properties"]["options"] = options
    return schema
