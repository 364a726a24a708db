"""Whether PDFs can be rendered, and by what: for probes and for people.

Apart from `/health/ready`, which tells of this process: a balancer that took every API away while
no worker lives would take the fail-safe away with it.
"""

from __future__ import annotations

import asyncio
from http import HTTPStatus
from typing import Any, Final

from fastapi import APIRouter, Request, Response
from pydantic import BaseModel, Field

import ulak
from ulak.errors import UlakError
from ulak.services.pdf.downloads import Reader
from ulak.services.pdf.envelope import Refusal
from ulak.services.pdf.failsafe import HealthCheck
from ulak.services.pdf.jobs import PdfJobStore
from ulak.services.pdf.model import PdfErrorCode
from ulak.services.pdf.totals import (
    BROWSER,
    NO_BROWSER,
    NO_WEASYPRINT,
    WEASYPRINT,
    Figures,
    Totals,
)
from ulak.web import guarded_router
from ulak.web.problems import problem
from ulak.web.schemas import answer

OK: Final = "ok"
UNKNOWN: Final = "unknown"
# As long as the other probes wait.
PATIENCE_S: Final = 2.0
_FRESH: Final = {"Cache-Control": "no-store"}


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
    """Make the routes of readiness and version."""
    routes = guarded_router()
    reader = Reader(at_once=1, patience_s=PATIENCE_S)

    async def storage() -> str:
        try:
            await reader.read("", jobs.artifacts.backend.check)
        except (Refusal, UlakError):
            return "artifacts cannot be kept or read now"
        return OK

    async def told() -> Figures | None:
        try:
            return await reader.read("", totals.read)
        except (Refusal, UlakError):
            return None

    @routes.get("/pdf/ready", response_model=PdfReady)
    async def ready(request: Request) -> Response:
        """Tell whether PDFs are rendered now: the store, the storage, a worker that was heard of
        lately, and how its browser last started. 503 says what is missing."""
        found = await asyncio.to_thread(health.look)
        figures = await told() if found.store_answers else None
        checks = {
            "store": OK if found.store_answers else "it does not answer",
            "storage": await storage(),
            "workers": OK if found.workers else "none was heard of lately",
            "browser": _engine_in(figures, BROWSER, NO_BROWSER),
        }
        if figures is not None and {WEASYPRINT, NO_WEASYPRINT} & figures.told.keys():
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
        figures = await told()
        known = {} if figures is None else figures.told
        engines: dict[str, Any] = {"chromium": known[BROWSER].text if BROWSER in known else None}
        if WEASYPRINT in known:
            engines["weasyprint"] = known[WEASYPRINT].text
        return answer({"ulak": ulak.__version__, "engines": engines}, headers=_FRESH)

    return routes


def _engine_in(figures: Figures | None, well: str, ill: str) -> str:
    """Return how an engine last started, by what the trail says under these names."""
    if figures is None:
        return UNKNOWN
    printed, failed = figures.told.get(well), figures.told.get(ill)
    if failed is not None and (printed is None or failed.at > printed.at):
        return f"the last start failed with {failed.text}"
    return UNKNOWN if printed is None else OK
