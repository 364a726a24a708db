"""The routes of PDF rendering: a request is validated, recorded and queued, and nothing more."""

from __future__ import annotations

import asyncio
import copy
import functools
import re
from collections.abc import Callable
from dataclasses import replace
from datetime import timedelta
from functools import partial
from http import HTTPStatus
from typing import Any, Final

from fastapi import APIRouter, Depends, Request, Response
from pydantic import BaseModel, Field

import ulak
from ulak import Engine, settings, wiring
from ulak.artifacts import DownloadLinks
from ulak.artifacts.signing import PURPOSE
from ulak.errors import UlakError
from ulak.idempotency import Guard
from ulak.idempotency.settings import IdempotencySettings
from ulak.kit.bodies import inline_schema
from ulak.kit.clock import rfc3339
from ulak.services.pdf import PDF_READ, PDF_RENDER
from ulak.services.pdf.accepting import Accepting
from ulak.services.pdf.batches import add_batches
from ulak.services.pdf.bodies import PdfJobRequest, PdfJobResponse, read_body, read_request
from ulak.services.pdf.configuration import open_jobs, templates_of
from ulak.services.pdf.failsafe import PATIENCE_S, HealthCheck, Pacing, Unavailable
from ulak.services.pdf.job_routes import (
    RETRY_AFTER,
    Reading,
    Waiting,
    add_following,
    add_getting,
    root_of,
)
from ulak.services.pdf.jobs import Created, PdfJobStore
from ulak.services.pdf.metrics import PdfMetrics
from ulak.services.pdf.model import PdfErrorCode
from ulak.services.pdf.output import Sealing, sealing_of
from ulak.services.pdf.responses import Reader, Refusal, answering, envelope
from ulak.services.pdf.settings import PdfRenderConfig
from ulak.services.pdf.templates import Templates
from ulak.services.pdf.totals import (
    BROWSER,
    NO_BROWSER,
    NO_STORAGE,
    NO_WEASYPRINT,
    NOT_READY,
    STORAGE,
    WEASYPRINT,
    Figures,
    Totals,
)
from ulak.web import KNOWN, PUBLIC, Access, Caller, Routes, guarded_router
from ulak.web.idempotency import idempotent_route
from ulak.web.problems import correlation_id, problem
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

OK: Final = "ok"
UNKNOWN: Final = "unknown"
REPORT_LASTS: Final = timedelta(minutes=2)
"""How long a report of a worker's troubles holds: each is renewed within a minute."""
_FRESH: Final = {"Cache-Control": "no-store"}
_HTML: Final[dict[str, Any]] = {"content": {"text/html": {"schema": {"type": "string"}}}}
_NOT_AT_ALL: Final = re.compile(r"(?:^|;)\s*q\s*=\s*0(?:\.0{0,3})?\s*(?:;|$)")
ASKED: Final = "ulak.pdf.asked"
"""Where the scope of a connection has the request that was read, once it was."""


def routes_of(engine: Engine, config: PdfRenderConfig) -> Routes:
    """Make the routes as the settings of this process say. Raises BadInput: a setting cannot be
    used."""
    platform = settings.load()
    kept = wiring.idempotency_settings()
    key = wiring.identity_of(engine, platform).derive(PURPOSE)
    return make_routes(
        open_jobs(engine, config),
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
    """Make the routes, and the lines that say who may call each. What is left out is made by the
    settings of `jobs`; without `sealing` no password is taken."""
    config = jobs.config
    metrics = PdfMetrics(jobs.engine, heartbeat=config.heartbeat_limit)
    health = health or HealthCheck(jobs.engine, heartbeat=config.heartbeat_limit)
    pacing = pacing or Pacing(jobs.engine, config)
    accepting = Accepting(jobs, templates, health, pacing, sealing)

    async def unavailable(request: Request, why: str) -> Response:
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
        item=_schema(), count_unavailable=metrics.count_unavailable,
    )  # fmt: skip
    reading = Reading(jobs, health, reader or Reader(), pacing)
    add_following(routes, reading, waiting or Waiting(jobs.engine))
    add_getting(routes, reading, links)
    readiness = readiness_router(jobs, metrics.totals, health)
    return Routes([routes, readiness], ACCESS, metrics.read, metrics.tallies, envelope)


def _add_creating(
    routes: APIRouter, accepting: Accepting, guard: Guard, kept: IdempotencySettings, pacing: Pacing
) -> None:
    largest = accepting.config.max_payload_bytes
    once = _once(guard, kept, "pdf.create", accepting)

    body = {"required": True, "content": {"application/json": {"schema": _schema()}}}

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
            200: _HTML
            | {"description": "Nothing can be rendered now, and the HTML stands in for it."},
            202: {"headers": LOCATED["headers"] | RETRY_AFTER},
            **problems(400, 413, 429),
        },
        openapi_extra={"parameters": [IDEMPOTENCY_KEY], "requestBody": body},
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
            200: _HTML | {"description": "The HTML that would be printed."},
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
                status=406, error_code="NOT_ACCEPTABLE",
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


def _schema() -> dict[str, Any]:
    """Describe a job for the OpenAPI document, which cannot see that a dependency reads one."""
    return copy.deepcopy(_read_schema())


@functools.cache  # a quarter of the time in which these routes are made
def _read_schema() -> dict[str, Any]:
    schema = PdfJobRequest.model_json_schema()
    inner = schema.pop("$defs", {})
    options = inner["PdfRenderOptions"]
    options["properties"]["page"] = inner["PdfPageOptions"]
    options["properties"]["output"] = inline_schema(inner["PdfOutputOptions"], inner)
    schema["properties"]["options"] = options
    return schema


class PdfReady(BaseModel):
    """Everything that a render needs is there."""

    status: str = Field(examples=["ready"])
    checks: dict[str, str] = Field(
        description="`store`, `storage`, `workers` and `browser`: ok, or what is wrong; a browser "
        "of which no worker has told yet is unknown. `weasyprint` likewise, once a template has "
        "needed it.",
        examples=[{"store": "ok", "storage": "ok", "workers": "ok", "browser": "ok"}],
    )


class Versions(BaseModel):
    """What is installed, as far as this process can tell."""

    ulak: str = Field(examples=["0.1.0"])
    engines: dict[str, str | None] = Field(
        description="The browser that printed last, as its worker told; null before the first. "
        "`weasyprint` once it has printed.",
        examples=[{"chromium": "HeadlessChrome/156.0.8078.79", "weasyprint": "WeasyPrint/70.0"}],
    )


def readiness_router(jobs: PdfJobStore, totals: Totals, health: HealthCheck) -> APIRouter:
    """Make the routes of readiness and version.

    They are apart from `/health/ready`, which tells of this process: a balancer that took every API
    away while no worker lives would take the fail-safe away with it.
    """
    routes = guarded_router()
    reader = Reader(at_once=1, patience_s=PATIENCE_S)

    async def storage() -> str:
        try:
            await reader.read("", jobs.artifacts.backend.check)
        except (Refusal, UlakError):
            return "artifacts cannot be kept or read now"
        return OK

    async def read_figures() -> Figures | None:
        try:
            return await reader.read("", totals.read)
        except (Refusal, UlakError):
            return None

    @routes.get("/pdf/ready", response_model=PdfReady)
    async def ready(request: Request) -> Response:
        """Tell whether PDFs are rendered now: the store, the storage, a worker that was heard of
        lately, and how its browser last started. 503 says what is missing."""
        found = await asyncio.to_thread(health.look)
        figures = await read_figures() if found.store_answers else None
        checks = {
            "store": OK if found.store_answers else "it does not answer",
            "storage": _storage_in(figures) or await storage(),
            "workers": OK if found.workers else "none that can render was heard of lately",
            "browser": _engine_in(figures, BROWSER, NO_BROWSER),
        }
        if not found.workers and (why := _latest(figures, NOT_READY)):
            # Its code alone: the rest names what is on the worker's machine, and anybody may ask.
            checks["workers"] += f"; one of them: {why.partition(':')[0]}"
        if figures is not None and {WEASYPRINT, NO_WEASYPRINT} & figures.reports.keys():
            checks["weasyprint"] = _engine_in(figures, WEASYPRINT, NO_WEASYPRINT)
        if wrong := {n: said for n, said in checks.items() if said not in (OK, UNKNOWN)}:
            return problem(
                request, HTTPStatus.SERVICE_UNAVAILABLE,
                code=PdfErrorCode.PDF_RENDER_UNAVAILABLE.lower().replace("_", "-"),
                detail="; ".join(f"{name}: {said}" for name, said in wrong.items()),
                headers=_FRESH, checks=checks,
            )  # fmt: skip
        return answer({"status": "ready", "checks": checks}, headers=_FRESH)

    @routes.get("/version", response_model=Versions)
    async def version() -> Response:
        """Tell the release of ulak, and what printed last of each engine."""
        figures = await read_figures()
        known = {} if figures is None else figures.reports
        engines: dict[str, Any] = {"chromium": known[BROWSER].text if BROWSER in known else None}
        if WEASYPRINT in known:
            engines["weasyprint"] = known[WEASYPRINT].text
        return answer({"ulak": ulak.__version__, "engines": engines}, headers=_FRESH)

    return routes


def _latest(figures: Figures | None, name: str) -> str:
    """Return the text of a report that still holds, '' when there is none."""
    report = None if figures is None else figures.reports.get(name)
    if report is None or figures is None or figures.at - report.at > REPORT_LASTS:
        return ""
    return report.text


def _storage_in(figures: Figures | None) -> str:
    """Return what workers say of the storage, '' when a write has succeeded since the last that
    failed."""
    said = _latest(figures, NO_STORAGE)
    if not said or figures is None:
        return ""
    stored = figures.reports.get(STORAGE)
    is_over = stored is not None and stored.at > figures.reports[NO_STORAGE].at
    return "" if is_over else f"{said}: a worker could not store a PDF"


def _engine_in(figures: Figures | None, well: str, ill: str) -> str:
    """Return how an engine last started, by what the trail says under these names."""
    if figures is None:
        return UNKNOWN
    printed, failed = figures.reports.get(well), figures.reports.get(ill)
    if failed is not None and (printed is None or failed.at > printed.at):
        return f"the last start failed with {failed.text}"
    return UNKNOWN if printed is None else OK
