"""The routes that services bring, behind the same guard as ulak's own."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Protocol

from fastapi import APIRouter
from fastapi.routing import APIRoute
from prometheus_client.metrics_core import Metric

from ulak.auth.principal import AccessScope, Scopes
from ulak.engine.engine import Engine
from ulak.errors import UlakError
from ulak.web.access import KNOWN, PUBLIC, Access, table
from ulak.web.callers import each_route
from ulak.web.problems import Envelope

ReadMetrics = Callable[[], Iterable[Metric]]
"""Reads metrics from the store, when somebody scrapes."""


@dataclass(frozen=True, slots=True)
class Routes:
    """The routes of a service, who may call each, and what it adds to `/metrics`."""

    routers: Sequence[APIRouter]
    access: Sequence[Access]
    metrics: ReadMetrics | None = None
    """Called at each scrape, with the engine's own look at the store and within its patience; a
    service that fails to answer is left out of that scrape."""
    tallies: ReadMetrics | None = None
    """What this process itself has counted: shown too when the store does not answer, since that
    may be what is counted. It must ask nobody."""
    envelope: Envelope | None = None
    """Returns, for the problem document of any error of these routes, the members that the
    service's specification names besides. It must not fail."""


class Routed(Protocol):
    """A service, as far as it concerns the application; `ulak.service.Service` is one."""

    @property
    def name(self) -> str:
        """What it is called."""

    @property
    def routes(self) -> Callable[[Engine, Any], Routes] | None:
        """Makes its routes; None when it has none."""

    @property
    def scopes(self) -> Sequence[AccessScope]:
        """What callers of its routes may be allowed to do."""


def routes_of(services: Iterable[Routed], engine: Engine) -> dict[str, Routes]:
    """Have services make their routes, by the name of each.

    Raises:
        UlakError: a service was not attached to the engine, or a route would not be guarded.
    """
    brought: dict[str, Routes] = {}
    for service in services:
        if service.name not in engine.kernel.attached:
            raise UlakError(
                f'the service "{service.name}" is not attached to this engine; call '
                "ulak.service.attach(service, engine, settings) before the application is made"
            )
        if service.routes is not None:
            _, left = engine.kernel.attached[service.name]
            brought[service.name] = service.routes(engine, left)
    for name, routes in brought.items():
        served = [route for router in routes.routers for route in each_route(router.routes)]
        if unseen := [str(route.path) for route in served if not _is_guarded(route)]:
            raise UlakError(
                f'the service "{name}": nobody would guard {", ".join(unseen)}; declare plain '
                "routes, in routers that are not included in others under a prefix"
            )
    return brought


def _is_guarded(route: Any) -> bool:
    """Tell whether the guard is asked, and knows the route by the path that is called."""
    original = getattr(route, "original_route", route)
    return isinstance(original, APIRoute) and route.path == original.path


def merged(
    own: Mapping[tuple[str, str], Access], brought: Mapping[str, Routes], scopes: Scopes
) -> Mapping[tuple[str, str], Access]:
    """Return the table of everything that is served.

    Raises:
        UlakError: two want to serve the same, or a line names a scope that nobody declares.
    """
    access = dict(own)
    for name, routes in brought.items():
        lines = table(_with_scope(name, line, scopes) for line in routes.access)
        if taken := sorted(f"{method} {path}" for method, path in lines.keys() & access.keys()):
            raise UlakError(
                f'the service "{name}" cannot serve {", ".join(taken)}: somebody else does'
            )
        access |= lines
    return access


def _with_scope(name: str, line: Access, scopes: Scopes) -> Access:
    """Give a line the scope that it names."""
    if line.scope in (KNOWN, PUBLIC):
        return line
    if line.scope not in scopes:
        raise UlakError(
            f'the service "{name}": {line.method} {line.path} needs the scope {line.scope!r}, '
            "which nobody declares; declare it by Service(scopes=[AccessScope(...)])"
        )
    return replace(line, scope=scopes[line.scope])
