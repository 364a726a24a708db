"""How the outbox stands: figures that are read from the store, so that every process sees the
same, the limits within which the remote can be relied on, and the route and metrics of both."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import KW_ONLY, dataclass
from datetime import timedelta
from http import HTTPStatus
from types import MappingProxyType
from typing import Any, Final

from fastapi.responses import JSONResponse
from prometheus_client.metrics_core import GaugeMetricFamily, Metric
from pydantic import BaseModel, Field

from ulak import Engine
from ulak.auth import METRICS_READ
from ulak.errors import ServiceError
from ulak.kit.clock import micros, to_datetime
from ulak.services.contracts import KEY_HEADERS
from ulak.services.contracts.ledger import HANDLER, SCHEMA
from ulak.tables import Tables
from ulak.web import Routes, RouteTable

WINDOW: Final = timedelta(minutes=5)
"""The attempts of how long count for latency and errors: as long as an event may be late."""

_FRESH: Final = {"Cache-Control": "no-store"}

_DRIFT: Final = "SELECT count(*) FROM {schema}.hos_outbox_attempts WHERE drift IS NOT NULL"
_ATTEMPTED: Final = """
SELECT count(*), count(CASE WHEN failed_at > ? THEN 1 END) FROM {schema}.hos_outbox_attempts
WHERE attempted_at > ?
"""
_RANKED: Final = """
SELECT duration_us FROM {schema}.hos_outbox_attempts WHERE attempted_at > ?
ORDER BY duration_us LIMIT 1 OFFSET ?
"""


@dataclass(frozen=True, slots=True)
class Figures:
    """How the outbox stands now."""

    _: KW_ONLY
    backlog: int = 0
    """Events that are to be sent and were not yet."""
    oldest: timedelta = timedelta()
    dead: int = 0
    rejected: int = 0
    drift: int = 0
    attempted: int = 0
    failed: int = 0
    p95: timedelta | None = None
    """How long the remote took for the last attempts; None without any."""
    p99: timedelta | None = None

    @property
    def error_rate(self) -> float:
        """The share of the attempted events of which an attempt failed."""
        return self.failed / self.attempted if self.attempted else 0.0


@dataclass(frozen=True, slots=True)
class Limits:
    """Each figure must stay below its limit."""

    _: KW_ONLY
    backlog: int = 100
    oldest: timedelta = timedelta(minutes=5)
    dead: int = 1
    p95: timedelta = timedelta(milliseconds=300)
    p99: timedelta = timedelta(milliseconds=800)
    error_rate: float = 0.001

    def exceeded(self, figures: Figures) -> list[str]:
        """Return a sentence for each limit that is exceeded."""
        return list(self._each(figures))

    def _each(self, figures: Figures) -> Iterator[str]:
        if figures.backlog >= self.backlog:
            yield f"backlog: {figures.backlog} events wait, fewer than {self.backlog} may"
        if figures.oldest >= self.oldest:
            yield (
                f"oldest: an event has been waiting for {figures.oldest.total_seconds():.0f} s, "
                f"less than {self.oldest.total_seconds():.0f} s are allowed"
            )
        if figures.dead >= self.dead:
            yield f"dead: {figures.dead} events are dead, fewer than {self.dead} may be"
        for name, took, most in (("p95", figures.p95, self.p95), ("p99", figures.p99, self.p99)):
            if took is not None and took >= most:
                yield (
                    f"{name}: the remote takes {took.total_seconds() * 1000:.0f} ms, less than "
                    f"{most.total_seconds() * 1000:.0f} are allowed"
                )
        if figures.error_rate >= self.error_rate:
            yield (
                f"errors: {figures.failed} of {figures.attempted} events failed, "
                f"less than {self.error_rate:.1%} may"
            )


def read(engine: Engine) -> Figures:
    """Read how the outbox stands."""
    tables = Tables(engine, SCHEMA)
    now = tables.now
    since = now - micros(WINDOW)
    counts = {each.state: each for each in engine.outbox.counts() if each.handler == HANDLER}
    waiting = counts.get("pending") or counts.get("unhandled")
    with tables.reading() as connection:
        ((drift,),) = tables.execute(connection, _DRIFT)
        ((attempted, failed),) = tables.execute(connection, _ATTEMPTED, since, since)

        def percentile(percent: int) -> timedelta | None:
            """Return the nearest rank: the smallest that so many do not exceed."""
            if not attempted:
                return None
            rank = -(-attempted * percent // 100)
            ((duration,),) = tables.execute(connection, _RANKED, since, rank - 1)
            return timedelta(microseconds=duration)

        p95, p99 = percentile(95), percentile(99)
    return Figures(
        backlog=waiting.deliveries if waiting else 0,
        oldest=to_datetime(now) - waiting.oldest_at if waiting else timedelta(),
        dead=counts["dead"].deliveries if "dead" in counts else 0,
        rejected=counts["refused"].deliveries if "refused" in counts else 0,
        drift=drift,
        attempted=attempted,
        failed=failed,
        p95=p95,
        p99=p99,
    )


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
    routes = RouteTable({"headers": KEY_HEADERS})

    @routes("GET", "/v1/outbox/ready", METRICS_READ, response_model=OutboxReady)
    def ready() -> JSONResponse:
        """Tell whether the remote keeps up: 503 names every limit that is exceeded.

        Changes are decided here all the same; this is about the remote.
        """
        found = read(engine)
        if exceeded := limits.exceeded(found):
            raise NotReady("; ".join(exceeded), exceeded=exceeded, **_document(found))
        return JSONResponse({"ok": True, **_document(found)}, headers=_FRESH)

    return Routes([routes.router], routes.access, lambda: _metrics(read(engine)))


def _document(found: Figures) -> dict[str, Any]:
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
