"""What is served of the outbox: whether the remote can be relied on, and figures for Prometheus."""

from __future__ import annotations

from collections.abc import Iterator
from http import HTTPStatus
from types import MappingProxyType
from typing import Any, Final

from fastapi.responses import JSONResponse
from prometheus_client.metrics_core import GaugeMetricFamily, Metric
from pydantic import BaseModel, Field

from ulak import Engine
from ulak.auth import METRICS_READ
from ulak.errors import ServiceError
from ulak.services.contracts import KEY_HEADERS
from ulak.services.contracts.outbox import figures
from ulak.services.contracts.outbox.figures import WINDOW, Figures, Limits
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

    access = Access("GET", "/v1/outbox/ready", METRICS_READ, headers=KEY_HEADERS)
    return Routes([router], [access], lambda: _metrics(figures.read(engine)))


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


def _metrics(found: Figures) -> Iterator[Metric]:
    """Return the gauges: the same from every process, so that a dashboard takes their maximum."""
    over = f"over the last {WINDOW.total_seconds():.0f} s"
    gauges = {
        "hos_outbox_backlog": ("Events that are to be sent and were not yet.", found.backlog),
        "hos_outbox_oldest_pending_seconds":
            ("How long the oldest of them has been waiting.", found.oldest.total_seconds()),
        "hos_outbox_dead": ("Events that gave up, each of which blocks its subject.", found.dead),
        "hos_outbox_rejected":
            ("Events that the remote refused, each of which blocks its subject.", found.rejected),
        "hos_outbox_drift": ("Events that the remote has judged otherwise, ever.", found.drift),
        "hos_outbox_error_ratio":
            (f"Share of attempted events of which an attempt failed, {over}.", found.error_rate),
    }  # fmt: skip
    for name, (about, value) in gauges.items():
        yield GaugeMetricFamily(name, about, value)
    latency = GaugeMetricFamily(
        "hos_outbox_latency_seconds", f"How long the remote took, {over}; absent without any.",
        labels=["quantile"],
    )  # fmt: skip
    for quantile, took in (("0.95", found.p95), ("0.99", found.p99)):
        if took is not None:
            latency.add_metric([quantile], took.total_seconds())
    yield latency
