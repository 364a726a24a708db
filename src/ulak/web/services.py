"""The routes that services bring, behind the same guard as ulak's own."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from fastapi import APIRouter
from fastapi.routing import APIRoute
from prometheus_client.metrics_core import Metric

from ulak.engine.engine import Engine
from ulak.errors import UlakError
from ulak.web.access import Access, table
from ulak.web.callers import each_route

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


class Routed(Protocol):
    """A service, as far as it concerns the application; `ulak.service.Service` is one."""

    @property
    def name(self) -> str:
        """What it is called."""

    @property
    def routes(self) -> Callable[[Engine], Routes] | None:
        """Makes its routes; None when it has none."""


def routes_of(services: Iterable[Routed], engine: Engine) -> dict[str, Routes]:
    """Have services make their routes, by the name of each.

    Raises:
        UlakError: a route would not be guarded.
    """
    brought = {s.name: s.routes(engine) for s in services if s.routes is not None}
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
    own: Mapping[tuple[str, str], Access], brought: Mapping[str, Routes]
) -> Mapping[tuple[str, str], Access]:
    """Return the table of everything that is served.

    Raises:
        UlakError: two want to serve the same.
    """
    access = dict(own)
    for name, routes in brought.items():
        lines = table(routes.access)
        if taken := sorted(f"{method} {path}" for method, path in lines.keys() & access.keys()):
            raise UlakError(
                f'the service "{name}" cannot serve {", ".join(taken)}: somebody else does'
            )
        access |= lines
    return access
