"""What is served of the outbox: whether the remote can be relied on, and its metrics."""

from __future__ import annotations

from collections.abc import Iterator
from http import HTTPStatus
from types import MappingProxyType
from typing import Any, Final

from fastapi.responses import JSONResponse
from prometheus_client.metrics_core import Metric
from pydantic import BaseModel, Field

from ulak import Engine
from ulak.auth import METRICS_READ
from ulak.errors import ServiceError
from ulak.services.contracts.outbox import figures
from ulak.services.contracts.outbox.figures import Figures, Limits
from ulak.services.contracts.outbox.metrics import metrics_of
from ulak.services.contracts.scopes import KEY_HEADERS
from ulak.web import Access, Routes, guarded_router

_FRESH: Final = {"Cache-Control": "no-store"}


class OutboxReady(BaseModel):
    """The outbox stands within its limits."""

    ok: bool = Field(examples=[True])
    backlog: int = Field(description="Events that wait.", examples=[3])
    oldest_s: float = Field(description="How long the oldest has been waiting.", examples=[0.4])
    dead: int = Field(examples=[0])
    rejected: int = Field(examples=[0])
    drift: int = Field(description="Events that the remote judged otherwise.", examples=[0])
    error_rate: float = Field(examples=[0.0])
    p95_ms: float | None = Field(examples=[21.5])
    p99_ms: float | None = Field(examples=[48.0])


class NotReady(ServiceError):
    """The outbox does not stand within its limits."""

    code, status = "outbox-not-ready", HTTPStatus.SERVICE_UNAVAILABLE
    headers = MappingProxyType(_FRESH)


def routes_of(engine: Engine, limits: Limits) -> Routes:
    """Make the route of readiness, and what is scraped."""
    router = guarded_router()

    @router.get("/v1/outbox/ready", response_model=OutboxReady)
    def ready() -> JSONResponse:
        """Tell whether the remote keeps up: 503 names every limit that is exceeded.

        Changes are decided here all the same; this is about the remote.
        """
        found = figures.read(engine)
        if exceeded := limits.exceeded(found):
            raise NotReady("; ".join(exceeded), exceeded=exceeded, **_told(found))
        return JSONResponse({"ok": True, **_told(found)}, headers=_FRESH)

    def read() -> Iterator[Metric]:
        return metrics_of(figures.read(engine))

    return Routes(
        [router], [Access("GET", "/v1/outbox/ready", METRICS_READ, headers=KEY_HEADERS)], read
    )


def _told(found: Figures) -> dict[str, Any]:
    return {
        "backlog": found.backlog,
        "oldest_s": found.oldest.total_seconds(),
        "dead": found.dead,
        "rejected": found.rejected,
        "drift": found.drift,
        "error_rate": found.error_rate,
        "p95_ms": None if found.p95 is None else found.p95.total_seconds() * 1000,
        "p99_ms": None if found.p99 is None else found.p99.total_seconds() * 1000,
    }
