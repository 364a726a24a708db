"""Metrics for Prometheus: what an engine tells, how its store stands, what is asked over HTTP."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator

from fastapi import APIRouter
from fastapi.responses import PlainTextResponse, Response
from prometheus_client import CollectorRegistry, ProcessCollector
from prometheus_client.exposition import CONTENT_TYPE_PLAIN_0_0_4, generate_latest
from prometheus_client.metrics_core import Metric

from ulak.engine.engine import Engine
from ulak.web.callers import guarded_router
from ulak.web.gauges import Brought, Gauges
from ulak.web.instruments import Instruments
from ulak.web.labels import Labels
from ulak.web.request_metrics import Requests


class Metrics:
    """Everything that one application, or one worker, shows of an engine.

    It listens to the engine from now on. `registry` is its own: two applications in one process
    do not notice each other, and a program may register collectors of its own there.

    Args:
        engine: Whose metrics they are.
        brought: What services read besides, at each scrape.
        counted: What services have counted in this process.
    """

    def __init__(self, engine: Engine, brought: Brought = (), counted: Brought = ()) -> None:
        labels = Labels(engine)
        self.requests = Requests()
        self._instruments = Instruments(labels)
        self._gauges = Gauges(engine, labels, brought)
        self._counted = counted
        self.registry = CollectorRegistry(auto_describe=False)
        self.registry.register(self)
        ProcessCollector(registry=self.registry)
        self.close = engine.kernel.telemetry.add(self._instruments)

    def collect(self) -> Iterator[Metric]:
        """Return every metric of ulak; takes no longer than `gauges.PATIENCE_S`."""
        yield from self._instruments.families()
        yield from self.requests.families()
        for read in self._counted:
            yield from read()
        yield from self._gauges.families()

    def text(self) -> bytes:
        """Return what a scrape gets."""
        return generate_latest(self.registry)


AN_EXAMPLE = """\
# HELP ulak_jobs Jobs that stand in each state now.
# TYPE ulak_jobs gauge
ulak_jobs{flow="cutting",role="held",state="HOLD"} 3.0
"""


class Scrapes:
    """Writes the text on a thread; however many ask at once, one is being written."""

    def __init__(self, metrics: Metrics) -> None:
        self._metrics = metrics
        self._writing: asyncio.Task[bytes] | None = None

    async def text(self) -> bytes:
        """Return what a scrape gets."""
        if self._writing is None or self._writing.done():
            self._writing = asyncio.create_task(asyncio.to_thread(self._metrics.text))
        return await asyncio.shield(self._writing)


def router(metrics: Metrics) -> APIRouter:
    """Make the route that is scraped."""
    routes = guarded_router(tags=["health"])
    scrapes = Scrapes(metrics)

    @routes.get(
        "/metrics",
        response_class=PlainTextResponse,
        responses={200: {"content": {"text/plain": {"example": AN_EXAMPLE}}}},
    )
    async def read_metrics() -> Response:
        """Return every metric, in the text format of Prometheus."""
        return Response(await scrapes.text(), media_type=CONTENT_TYPE_PLAIN_0_0_4)

    return routes
