"""Whether the process lives, whether it can work, and what it measures."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from http import HTTPStatus
from typing import Final

from fastapi import APIRouter, Request
from fastapi.responses import JSONResponse, PlainTextResponse, Response
from prometheus_client.exposition import CONTENT_TYPE_PLAIN_0_0_4

from ulak.engine.engine import Engine
from ulak.engine.worker import find_complaint
from ulak.errors import StoreError, UlakError
from ulak.idempotency import Guard
from ulak.web.callers import guarded_router
from ulak.web.metrics import Metrics
from ulak.web.problems import problem
from ulak.web.schemas import Health, HealthIndex, Readiness

# Longer than a store's slow moments. A probe must wait longer, or it hears of no reason.
PATIENCE_S = 2.0
NOT_READY = "not-ready"


# What readiness says besides while records of idempotency keys are kept where they may be lost.
MAY_FORGET: Final = {"durable": False}


def health_router(
    engine: Engine, unready: Callable[[], str | None], guard: Guard | None = None
) -> APIRouter:
    routes = guarded_router(tags=["health"])
    probe = StoreProbe(engine, guard)

    @routes.head("/health", include_in_schema=False)
    @routes.get("/health", response_model=HealthIndex)
    async def health(request: Request) -> dict[str, str]:
        """Tell that the process lives, and where to ask whether it can work."""
        where = request.scope.get("root_path", "") + "/health"
        return {"status": "live", "live": f"{where}/live", "ready": f"{where}/ready"}

    @routes.head("/health/live", include_in_schema=False)
    @routes.get("/health/live", response_model=Health)
    async def live() -> dict[str, str]:
        """Tell that the process lives; nothing else is asked."""
        return {"status": "live"}

    @routes.head("/health/ready", include_in_schema=False, response_model=None)
    @routes.get("/health/ready", response_model=Readiness)
    async def ready(request: Request) -> JSONResponse:
        """Tell whether the process can work: 503 says what it lacks."""
        lacking = unready() or find_complaint(list(engine.kernel.working_here))
        if lacking is None:
            lacking = await probe.complaint()
        if lacking is not None:
            return problem(
                request, HTTPStatus.SERVICE_UNAVAILABLE, code=NOT_READY, detail=lacking,
                headers={"Cache-Control": "no-store"},
            )  # fmt: skip
        document = {"status": "ready", **probe.warning}
        return JSONResponse(document, headers={"Cache-Control": "no-store"})

    return routes


class StoreProbe:
    """Tries whether the store reads and writes, and whether that of idempotency records reads; of
    many probes at once, one does it for all. A store that hangs would otherwise take one more
    thread with every probe."""

    def __init__(self, engine: Engine, guard: Guard | None = None) -> None:
        self._engine = engine
        self._guard = guard
        self._asking: asyncio.Task[None] | None = None

    @property
    def warning(self) -> dict[str, bool]:
        """What to say besides of a process that can work."""
        return MAY_FORGET if self._guard is not None and self._guard.may_forget else {}

    async def complaint(self) -> str | None:
        """Return why the store cannot be used, None when it answers."""
        if self._asking is None or self._asking.done():
            self._asking = asyncio.create_task(asyncio.to_thread(self._ask))
        try:
            async with asyncio.timeout(PATIENCE_S):
                await asyncio.shield(self._asking)
        except TimeoutError:
            return f"the store has not answered within {PATIENCE_S:g} s"
        except StoreError as error:
            return f"the store does not answer: {error}"
        except (UlakError, OSError) as error:
            return str(error)
        return None

    def _ask(self) -> None:
        store = self._engine.open().store
        store.workers()
        # A file that is locked or full can still be read. This waits for a turn and writes nothing.
        store.report(())
        if self._guard is not None:
            self._guard.check()


AN_EXAMPLE = """\
# HELP ulak_jobs Jobs that stand in each state now.
# TYPE ulak_jobs gauge
ulak_jobs{flow="orders",role="held",state="HOLD"} 3.0
"""


def metrics_router(metrics: Metrics) -> APIRouter:
    """Make the route that is scraped."""
    routes = guarded_router(tags=["health"])
    writing: asyncio.Task[bytes] | None = None

    @routes.get(
        "/metrics",
        response_class=PlainTextResponse,
        responses={200: {"content": {"text/plain": {"example": AN_EXAMPLE}}}},
    )
    async def read_metrics() -> Response:
        """Return every metric, in the text format of Prometheus."""
        nonlocal writing
        if writing is None or writing.done():  # however many ask at once, one text is written
            writing = asyncio.create_task(asyncio.to_thread(metrics.text))
        return Response(await asyncio.shield(writing), media_type=CONTENT_TYPE_PLAIN_0_0_4)

    return routes
