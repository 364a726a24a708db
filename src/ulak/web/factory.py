"""The application: every route of one engine behind one set of problem documents."""

from __future__ import annotations

import functools
import secrets
from collections.abc import Callable, Collection, Sequence
from functools import partial
from http import HTTPStatus
from typing import Literal

from fastapi import APIRouter, Depends, FastAPI

from ulak import settings, wiring
from ulak.auth.identity import Identity
from ulak.auth.principal import add_scopes
from ulak.control.operations import Operations
from ulak.control.status import read_gauges
from ulak.engine.bulk import Bulk
from ulak.engine.engine import Engine
from ulak.idempotency import Guard as IdempotencyGuard
from ulak.web import idempotency, openapi, pages, problems
from ulak.web.access import Authenticator, Routed, make_routes, merged, platform_lines
from ulak.web.callers import Guard, caller, not_allowed, serve
from ulak.web.guard import GuardChain
from ulak.web.metrics import Metrics
from ulak.web.middleware import BodyLimit, Correlation, ObserveRequests
from ulak.web.routes import adaptive, bulk, flow_control, flows, health, jobs, ops
from ulak.web.routes import identity as identity_routes
from ulak.web.segments import BySegment
from ulak.web.streams import routes as streams
from ulak.web.streams.hub import Hub
from ulak.web.waits import Waits


def app(
    engine: Engine,
    *,
    identity: Authenticator | Literal["settings"] | None = "settings",
    unready: Callable[[], str | None] = lambda: None,
    services: Sequence[Routed] = (),
    guard: IdempotencyGuard | None = None,
    platform: settings.Settings | None = None,
    platform_routes: bool | Collection[str] = True,
    swagger: bool = False,
) -> FastAPI:
    """Make the application of an engine, to be served alone or mounted in another one.

    Args:
        engine: Whose jobs it shows. It is opened by the first request that needs it.
        identity: Tells who a caller is; by default as the settings say (ULAK_SECRET,
            ULAK_ADMIN_KEY) and the store knows. With None nobody is asked: serve it where only
            those who may see every job can reach it. An `ulak.auth.identity.Identity` brings
            the routes of keys, users and logins.
        unready: Says what this process still lacks before it can work; None when nothing.
        services: Whose routes are served beside the engine's own, behind the same guard. Each
            is attached to the engine already (`ulak.service.attach`).
        guard: Where the records of idempotency keys are; by default as the settings say.
        platform: The settings that name the program, for the page at `/`, which everybody may
            read: it has the program's name and the command that prints a link to log in.
        platform_routes: False serves the routes of the services, `/health` with its probes,
            `/metrics`, `/openapi.json` and `/docs`, and nothing else of the platform's. Paths of
            its own routes, as `/auth/login`, serve those and no others: a service may then have a
            `/health` of its own. The document is in both cases about the services alone.
        swagger: Makes `/docs` the page of Swagger UI, which tries operations out. It and
            `/openapi.json` are then for everybody.

    Raises:
        BadInput: a setting cannot be used, ULAK_SECRET is needed and not set, or in production
            nothing would be kept of idempotency keys, or Redis might forget them.
        StoreError: the Redis that keeps them cannot be asked.
        NotSupported: `swagger=True` needs a package that is not installed.
        UlakError: a service is not attached; or a route of one has no line that says who may
            call it, or is taken.
    """
    if identity == "settings":
        identity = wiring.identity_of(engine, settings.load())
    scopes = add_scopes(*(service.scopes for service in services))
    if isinstance(identity, Identity):
        identity.scopes = scopes
    brought = make_routes(services, engine)
    own = platform_lines(platform_routes=platform_routes, swagger=swagger)
    access = merged(own, brought, scopes)
    made = FastAPI(
        title="ulak", docs_url=None, redoc_url=None, openapi_url=None,
        # What a redirect would name as its host, a stranger has written.
        dependencies=[Depends(caller)], redirect_slashes=False,
    )  # fmt: skip
    made.state.guard = callers = Guard(identity, access, own=own, open=engine.open)
    made.state.hub = hub = Hub(engine)
    made.state.waits = Waits()
    read_too = [routes.metrics for routes in brought.values() if routes.metrics is not None]
    counted = [routes.tallies for routes in brought.values() if routes.tallies is not None]
    state = wiring.find_guard_state(engine)
    if state is not None:
        read_too.append(state.read_metrics)
    loop = wiring.find_control_loop(engine)
    if loop is not None and loop.is_attached:
        read_too.append(partial(read_gauges, loop))
    made.state.metrics = shown = Metrics(engine, read_too, counted)
    if state is not None:
        shown.add(state.tallies.tallies)
    if guard is None and platform_routes:
        guard = wiring.guard_of(engine, settings.load().env, wiring.idempotency_settings())
    served = [
        health.health_router(engine, unready, guard),
        openapi.router(swagger=swagger),
        health.metrics_router(shown),
    ]
    if guard is not None and platform_routes:
        who = identity if isinstance(identity, Identity) else None
        platform = settings.Settings() if platform is None else platform
        acts = None if loop is None else Operations(loop)
        served += [
            *_routers_of(engine, who, guard, hub, platform),
            ops.ops_router(state, adaptive=lambda: None if acts is None else acts.summarize()),
            adaptive.adaptive_router(acts),
        ]
    paths = {line.path for line in own.values()}
    for router in served:
        if platform_routes is not True:
            router.routes = [r for r in router.routes if getattr(r, "path", "") in paths]
        serve(made, router)
    made.state.envelopes = {}
    for name, routes in brought.items():
        for router in routes.routers:
            serve(made, router, tag=name)
        if routes.envelope is not None:
            made.state.envelopes |= dict.fromkeys((a.path for a in routes.access), routes.envelope)
    callers.check(made)
    idempotency.check(made)
    shown_alone = None if platform_routes is True else brought
    # FastAPI's own way to have a document of one's own.
    made.openapi = functools.cache(  # type: ignore[method-assign]
        lambda: openapi.document_of(made, access, scopes, services=shown_alone, swagger=swagger)
    )
    problems.install(made)
    made.add_exception_handler(HTTPStatus.METHOD_NOT_ALLOWED, not_allowed)  # type: ignore[arg-type] # its own class
    made.add_middleware(BodyLimit)
    made.state.chain = None
    if state is not None:
        made.state.chain = GuardChain(state, access, brought, asks=callers.asks)
    made.add_middleware(ObserveRequests, engine=engine, requests=shown.requests)
    made.add_middleware(Correlation)
    made.router.middleware_stack = BySegment(made.router)
    return made


def _routers_of(
    engine: Engine,
    identity: Identity | None,
    guard: IdempotencyGuard,
    hub: Hub,
    platform: settings.Settings,
) -> list[APIRouter]:
    """Make the platform's own routes, without those that every application serves."""
    # What confirms a bulk act is signed, so that every process behind one address can check it.
    signing = secrets.token_bytes() if identity is None else identity.derive("bulk")
    crowds = Bulk(engine, signing)
    kept = wiring.idempotency_settings()
    made = [
        pages.router(platform, has_links=identity is not None),
        jobs.jobs_router(engine, guard, kept),
        jobs.acts_router(engine),
        bulk.bulk_router(crowds),
        identity_routes.audit_router(engine),
        flows.flows_router(engine),
        flow_control.queues_router(engine),
        flow_control.limits_router(engine),
        flows.schedules_router(engine),
        bulk.dead_letters_router(engine, crowds),
        streams.router(engine, hub),
    ]
    if identity is not None:
        made.append(identity_routes.identity_router(engine, identity, platform))
    return made
