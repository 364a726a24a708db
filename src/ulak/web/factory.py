"""The application: every route of one engine behind one set of problem documents."""

from __future__ import annotations

from collections.abc import Callable

from fastapi import Depends, FastAPI

from ulak.engine.engine import Engine
from ulak.web import (
    dead_letters,
    flows,
    health,
    jobs,
    limits,
    problems,
    queues,
    schedules,
    streams,
)
from ulak.web.access import ACCESS
from ulak.web.callers import Authenticator, Guard, caller
from ulak.web.correlation import Correlation
from ulak.web.hub import Hub


def app(
    engine: Engine,
    *,
    identity: Authenticator | None = None,
    unready: Callable[[], str | None] = lambda: None,
) -> FastAPI:
    """Make the application of an engine, to be served alone or mounted in another one.

    Args:
        engine: Whose jobs it shows. It is opened by the first request that needs it.
        identity: Tells who a caller is. Without it nobody is asked: serve it where only those
            who may see every job can reach it.
        unready: Says what this process still lacks before it can work; None when nothing.
    """
    made = FastAPI(
        title="ulak", docs_url=None, redoc_url=None, openapi_url=None,
        dependencies=[Depends(caller)],
    )  # fmt: skip
    made.state.guard = guard = Guard(identity, ACCESS)
    made.include_router(health.router(engine, unready))
    made.include_router(jobs.router(engine))
    made.include_router(flows.router(engine))
    made.include_router(queues.router(engine))
    made.include_router(limits.router(engine))
    made.include_router(schedules.router(engine))
    made.include_router(dead_letters.router(engine))
    made.state.hub = hub = Hub(engine)
    made.include_router(streams.router(engine, hub))
    guard.check(made)
    problems.install(made)
    made.add_middleware(Correlation)
    return made
