"""An engine inside somebody else's asynchronous program: opened with it, drained with it."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from typing import TYPE_CHECKING, Any

from ulak.engine.ports import WorkerSettings

if TYPE_CHECKING:
    from ulak.engine.engine import Engine

log = logging.getLogger("ulak.lifespan")

Lifespan = Callable[[Any], AbstractAsyncContextManager[None]]


def lifespan_of(engine: Engine, settings: WorkerSettings | None) -> Lifespan:
    """Make what FastAPI and Starlette take as `lifespan=`; no settings, no worker."""

    @asynccontextmanager
    async def lifespan(app: Any) -> AsyncIterator[None]:
        await asyncio.to_thread(engine.open)
        try:
            if settings is None:
                yield
            else:
                async with _working(engine, settings):
                    yield
        finally:
            await asyncio.to_thread(engine.close)

    return lifespan


@asynccontextmanager
async def _working(engine: Engine, settings: WorkerSettings) -> AsyncIterator[None]:
    worker = engine.worker(settings)
    working = asyncio.create_task(worker.run(), name="ulak-worker")
    working.add_done_callback(_tell_of_an_early_end)
    try:
        yield
    finally:
        worker.stop()
        await working


def _tell_of_an_early_end(working: asyncio.Task[None]) -> None:
    """A worker that fails must be heard of now, not when the program ends."""
    if not working.cancelled() and (error := working.exception()) is not None:
        log.error("the worker has ended", exc_info=error)
