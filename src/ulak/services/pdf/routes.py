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
from ulak.artifacts.signing import PURPOSE
from ulak.idempotency import Guard
from ulak.idempotency.settings import IdempotencySettings
from ulak.kit.bodies import inline_schema
from ulak.kit.clock import rfc3339
from ulak.services.pdf import PDF_READ, PDF_RENDER
from ulak.services.pdf.accepting import Accepting
from ulak.services.pdf.batches import add_batches
from ulak.services.pdf.bodies import PdfJobRequest, PdfJobResponse, read_body, read_request
from ulak.services.pdf.configuration import artifacts_of, templates_of
from ulak.services.pdf.downloads import Reader
from ulak.services.pdf.envelope import NOT_ACCEPTABLE, Refusal, answering, envelope
from ulak.services.pdf.failsafe import HealthCheck, Unavailable
from ulak.services.pdf.jobs import Created, PdfJobStore
from ulak.services.pdf.metrics import PdfMetrics
from ulak.services.pdf.pace import Pacing
from ulak.services.pdf.readiness import readiness_router
from ulak.services.pdf.reading import (
    RETRY_AFTER,
    Reading,
    Waiting,
    add_following,
    add_getting,
    root_of,
)
from ulak.services.pdf.sealing import Sealing, sealing_of
from ulak.services.pdf.settings import PdfRenderConfig
from ulak.services.pdf.templates import Templates
from ulak.web import KNOWN, PUBLIC, Access, Caller, Routes, guarded_router
from ulak.web.idempotency import idempotent_route
from ulak.web.problems import correlation_id
from ulak.web.routes.jobs import IDEMPOTENCY_KEY, LOCATED, tenant_and_actor
from ulak.web.schemas import answer, problems

ACCESS: Final = (
    Access("POST", "/pdf/jobs", PDF_RENDER, "jobs"),
    Access("POST", "/pdf/preview", PDF_RENDER, "jobs"),
    Access("POST", "/pdf/batches", PDF_RENDER, "jobs"),
    Access("GET", "/pdf/jobs", PDF_READ, "jobs"),
    Access("GET", "/pdf/jobs/{id}", PDF_READ, "job"),
    Access("DELETE", "/pdf/jobs/{id}", PDF_RENDER, "job"),
    Access("GET", "/pdf/jobs/{id}/report", PDF_READ, "job"),
    Access("GET", "/pdf/jobs/{id}/download", PDF_READ, "job"),
    Access("POST", "/pdf/jobs/{id}/link", PDF_READ, "job"),
    # The code in the path is the credential.
    Access("GET", "/pdf/links/{id}/{code}", PUBLIC),
    Access("GET", "/pdf/ready", PUBLIC),
    Access("GET", "/version", KNOWN, "jobs"),
)
DEDUPLICATED: Final = "Deduplicated"

_NOT_AT_ALL: Final = re.compile(r"(?:^|;)\s*q\s*=\s*0(?:\.0{0,3})?\s*(?:;|$)")
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
    templates: Templates,
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
        pacing = Pacing(jobs.engine, config)
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
        routes, accepting, pacing, once=_once(guard, kept, "pdf.batch", accepting),
        item=_schema_of(PdfJobRequest), count_unavailable=metrics.count_unavailable,
    )  # fmt: skip
    reading = Reading(jobs, health, reader or Reader(), pacing)
    add_following(routes, reading, waiting or Waiting(jobs.engine))
    add_getting(routes, reading, links)
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
        [accepted] = accepting.accept_all(
            [asked], principal, correlation_id(request), root_of(request)
        )  # fmt: skip
        if not isinstance(accepted, Created):
            raise accepted
        job = accepted.job
        document = {
            "job_id": job.job_id, "status": job.status, "created_at": rfc3339(job.created_at)
        }  # fmt: skip
        headers = {"Location": f"{root_of(request)}/pdf/jobs/{job.job_id}"}
        headers |= pacing.hint(job)
        if accepted.is_repeat:
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
