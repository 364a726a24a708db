"""The application: every route of one engine behind one set of problem documents."""

from __future__ import annotations

from collections.abc import Callable

from fastapi import FastAPI

from ulak.engine.engine import Engine
from ulak.web import health, jobs, problems
from ulak.web.correlation import Correlation


def app(engine: Engine, *, unready: Callable[[], str | None] = lambda: None) -> FastAPI:
    """Make the application of an engine, to be served alone or mounted in another one.

    It asks nobody who they are: serve it where only those who may see every job can reach it.

    Args:
        engine: Whose jobs it shows. It is opened by the first request that needs it.
        unready: Says what this process still lacks before it can work; None when nothing.
    """
    made = FastAPI(title="ulak", docs_url=None, redoc_url=None, openapi_url=None)
    made.include_router(health.router(engine, unready))
    made.include_router(jobs.router(engine))
    problems.install(made)
    made.add_middleware(Correlation)
    return made
