"""Who may call what: one table, from which routes are guarded, documented and tested.

A route without a line here is not served: the application refuses to start. A service brings lines
of its own, with its routes.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import KW_ONLY, dataclass, replace
from typing import Any, Final, Literal, Protocol, runtime_checkable

from fastapi import APIRouter, routing
from fastapi.routing import APIRoute
from prometheus_client.metrics_core import Metric

from ulak.auth import principal
from ulak.engine.engine import Engine
from ulak.errors import UlakError
from ulak.web.problems import Envelope

About = Literal["job", "jobs", "all"]
"""What a route is about: one job (a foreign tenant's is not found), the jobs of the caller's
tenant, or the whole installation."""

KNOWN: Final = "known"
"""Instead of a scope: whoever has a good credential."""
PUBLIC: Final = "public"
"""Instead of a scope: everybody, without a credential."""
Authenticate = Callable[[str], principal.Principal | None]
"""Tells who a credential is: returns None, or raises `Unauthenticated`, when it is not good. It is
called on a thread."""


@runtime_checkable
class Authenticator(Protocol):
    """Tells who a credential is, and may remember it for a moment."""

    def recall(self, credential: str) -> principal.Principal | None:
        """Return who this is, if that is known without waiting for anything; it is called on the
        loop. None: `authenticate` is asked."""

    def authenticate(self, credential: str) -> principal.Principal | None:
        """Return who this is. It is called on a thread; None, or `Unauthenticated` that is raised,
        says that the credential is not good."""


@dataclass(frozen=True, slots=True)
class Access:
    """One line: what a call needs."""

    method: str
    path: str
    scope: str
    """An `AccessScope`, or the name of one that the platform or the service declares."""
    about: About = "all"
    _: KW_ONLY
    authenticate: Authenticate | Authenticator | None = None
    """Knows the callers of this route, instead of the platform's identity: a service's own users.
    It is asked even where the application asks nobody else. On a `PUBLIC` route a caller may send
    no credential; one that is sent must be good."""
    schemes: tuple[str, ...] = ()
    """The schemes of `Authorization` that the route takes, such as `("Token",)`, and no other
    header then. Without any, a route of the platform's identity takes `Bearer`, `Token`, the
    headers that stand for them and the cookie of a login; one with `authenticate` takes `Bearer`
    and `Token`."""
    headers: tuple[str, ...] = ()
    """Further headers that may hold a key of the platform's, by their names."""

    @property
    def is_public(self) -> bool:
        return self.scope == PUBLIC

    @property
    def is_optional(self) -> bool:
        """Whether a caller may send a credential, and need not."""
        return self.is_public and self.authenticate is not None

    @property
    def needed(self) -> principal.AccessScope | None:
        """What the caller must be allowed to do; None when any caller, or any known one, may.
        Raises `UlakError`: the scope is a text that was not looked up: nobody may be let in by
        it."""
        if self.scope in (KNOWN, PUBLIC):
            return None
        if not isinstance(self.scope, principal.AccessScope):
            raise UlakError(f"{self.method} {self.path}: nothing is known of {self.scope!r}")
        return self.scope

    @property
    def takes(self) -> tuple[str, ...]:
        """The schemes of `Authorization` that it takes; none where the platform's usual ways are
        open."""
        return self.schemes or (("Bearer", "Token") if self.authenticate is not None else ())


def table(lines: Iterable[Access]) -> Mapping[tuple[str, str], Access]:
    return {(line.method, line.path): line for line in lines}


ACCESS: Final = table(
    [
        Access("GET", "/", PUBLIC),
        Access("GET", "/health", PUBLIC),
        Access("GET", "/health/live", PUBLIC),
        Access("GET", "/health/ready", PUBLIC),
        Access("GET", "/metrics", principal.METRICS_READ),
        Access("GET", "/openapi.json", KNOWN, "jobs"),
        Access("GET", "/docs", KNOWN, "jobs"),
        Access("POST", "/auth/login", PUBLIC),
        Access("GET", "/auth/link", PUBLIC),
        Access("POST", "/auth/logout", PUBLIC),
        Access("GET", "/auth/me", KNOWN, "jobs"),
        Access("GET", "/keys", principal.IDENTITY),
        Access("POST", "/keys", principal.IDENTITY),
        Access("POST", "/keys/{id}/rotate", principal.IDENTITY),
        Access("POST", "/keys/{id}/revoke", principal.IDENTITY),
        Access("GET", "/users", principal.IDENTITY),
        Access("POST", "/users", principal.IDENTITY),
        Access("POST", "/users/{name}/password", principal.IDENTITY),
        Access("POST", "/users/{name}/disable", principal.IDENTITY),
        Access("GET", "/audit", principal.AUDIT_READ),
        Access("GET", "/jobs", principal.JOBS_READ, "jobs"),
        Access("POST", "/jobs", principal.JOBS_SUBMIT, "jobs"),
        Access("POST", "/jobs/bulk", principal.JOBS_ACT, "jobs"),
        Access("GET", "/jobs/{id}", principal.JOBS_READ, "job"),
        Access("GET", "/jobs/{id}/trail", principal.JOBS_READ, "job"),
        Access("GET", "/jobs/{id}/payload", principal.JOBS_READ, "job"),
        Access("GET", "/jobs/{id}/result", principal.JOBS_READ, "job"),
        Access("GET", "/jobs/{id}/why", principal.JOBS_READ, "job"),
        Access("GET", "/jobs/{id}/events", principal.JOBS_READ, "job"),
        Access("POST", "/jobs/{id}/approve", principal.JOBS_ACT, "job"),
        Access("POST", "/jobs/{id}/decide", principal.JOBS_ACT, "job"),
        Access("POST", "/jobs/{id}/release", principal.JOBS_ACT, "job"),
        Access("POST", "/jobs/{id}/retry", principal.JOBS_ACT, "job"),
        Access("POST", "/jobs/{id}/cancel", principal.JOBS_ACT, "job"),
        Access("POST", "/jobs/{id}/signal", principal.JOBS_SIGNAL, "job"),
        Access("GET", "/events", principal.JOBS_READ, "jobs"),
        Access("GET", "/counts", principal.JOBS_READ, "jobs"),
        Access("GET", "/flows", principal.JOBS_READ, "jobs"),
        Access("GET", "/flows/{name}", principal.JOBS_READ, "jobs"),
        Access("GET", "/flows/{name}/diagram", principal.JOBS_READ, "jobs"),
        Access("GET", "/queues", principal.QUEUES_READ),
        Access("GET", "/backlog", principal.QUEUES_READ),
        Access("POST", "/queues/{name}/pause", principal.QUEUES_PAUSE),
        Access("POST", "/queues/{name}/resume", principal.QUEUES_PAUSE),
        Access("GET", "/pauses", principal.QUEUES_READ),
        Access("PUT", "/pauses/{kind}/{name:path}", principal.QUEUES_PAUSE),
        Access("DELETE", "/pauses/{kind}/{name:path}", principal.QUEUES_PAUSE),
        Access("GET", "/limits", principal.QUEUES_READ),
        Access("PUT", "/limits/{flow}/{state}", principal.QUEUES_LIMIT),
        Access("DELETE", "/limits/{flow}/{state}", principal.QUEUES_LIMIT),
        Access("GET", "/rates", principal.QUEUES_READ),
        Access("PUT", "/rates/{flow}/{state}", principal.QUEUES_LIMIT),
        Access("DELETE", "/rates/{flow}/{state}", principal.QUEUES_LIMIT),
        Access("GET", "/weights", principal.QUEUES_READ),
        Access("PUT", "/weights/{tenant:path}", principal.QUEUES_LIMIT),
        Access("DELETE", "/weights/{tenant:path}", principal.QUEUES_LIMIT),
        Access("GET", "/workers", principal.QUEUES_READ),
        Access("GET", "/schedules", principal.QUEUES_READ),
        Access("GET", "/schedules/{name}/ticks", principal.QUEUES_READ),
        Access("POST", "/schedules/{name}/pause", principal.QUEUES_PAUSE),
        Access("POST", "/schedules/{name}/resume", principal.QUEUES_PAUSE),
        Access("GET", "/dead-letters", principal.JOBS_READ, "jobs"),
        Access("POST", "/dead-letters/redrive", principal.JOBS_ACT, "jobs"),
        Access("POST", "/dead-letters/{id}/redrive", principal.JOBS_ACT, "job"),
        Access("GET", "/outbox/dead", principal.QUEUES_READ),
        Access("POST", "/outbox/dead/{id:path}/revive", principal.QUEUES_PAUSE),
        Access("GET", "/admin/ops/status", principal.OPS),
        Access("GET", "/admin/ops/kill-switches", principal.OPS),
        Access("PUT", "/admin/ops/kill-switches/{name:path}", principal.OPS),
        Access("GET", "/admin/ops/adaptive/status", principal.OPS),
        Access("GET", "/admin/ops/adaptive/config", principal.OPS),
        Access("PATCH", "/admin/ops/adaptive/config", principal.OPS),
        Access("GET", "/admin/ops/adaptive/allowlist", principal.OPS),
        Access("PUT", "/admin/ops/adaptive/allowlist", principal.OPS),
        Access("POST", "/admin/ops/adaptive/guard/restore", principal.OPS),
        Access("GET", "/admin/ops/adaptive/events", principal.OPS),
        Access("GET", "/admin/ops/adaptive/audit", principal.OPS),
        Access("POST", "/admin/ops/adaptive/simulate", principal.OPS),
        Access("GET", "/admin/ops/adaptive/overrides/{subsystem}", principal.OPS),
        Access("PUT", "/admin/ops/adaptive/overrides/{subsystem}", principal.OPS),
        Access("DELETE", "/admin/ops/adaptive/overrides/{subsystem}", principal.OPS),
    ]
)


ALWAYS: Final = frozenset(
    {"/health", "/health/live", "/health/ready", "/metrics", "/openapi.json", "/docs"}
)
"""The paths that every application serves, also one without the platform's own routes."""


def platform_lines(
    *, platform_routes: bool | Collection[str] = True, swagger: bool = False
) -> Mapping[tuple[str, str], Access]:
    """Return the lines of what an application serves besides the routes of services. Raises
    `UlakError`: the platform has no such path."""
    lines = dict(ACCESS)
    if platform_routes is not True:
        paths = ALWAYS if platform_routes is False else frozenset(platform_routes)
        if unknown := sorted(paths - {line.path for line in ACCESS.values()}):
            raise UlakError(f"ulak has no route {', '.join(unknown)}; write paths as /auth/login")
        # No link logs a browser in there, so there is no cookie; a credential comes in one way.
        lines = {
            at: replace(line, schemes=("Bearer", "Token"))
            for at, line in ACCESS.items()
            if line.path in paths
        }
    if swagger:
        shown = ("/openapi.json", "/docs", "/docs/{name}")
        lines |= table(Access("GET", path, PUBLIC) for path in shown)
    return lines


ReadMetrics = Callable[[], Iterable[Metric]]


@dataclass(frozen=True, slots=True)
class RateLimit:
    """How many requests each principal may make in a minute to a group of routes of a service.

    Args:
        group: Its name. Every group has counters of its own.
        per_minute: Returns the limit; 0 is none. It is called about once a second, on a thread.
        methods: Of the routes; by default every one.
        paths: Their templates, as the lines of access have them; by default every one.
    """

    group: str
    per_minute: Callable[[], int]
    _: KW_ONLY
    methods: Collection[str] = ()
    paths: Collection[str] = ()

    def covers(self, line: Access) -> bool:
        """Tell whether a route is in the group."""
        is_method = not self.methods or line.method in self.methods
        return is_method and (not self.paths or line.path in self.paths)


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
    service's specification names: they are added, or take the place of those that the document
    has, except `status`. It must not fail."""
    rate_limits: Sequence[RateLimit] = ()
    """The limits of route groups; a route is in the first that covers it, and one that is in none
    has the limits of the platform. They hold where the store has tables."""


class Routed(Protocol):
    """A service, as far as it concerns the application; `ulak.service.Service` is one."""

    @property
    def name(self) -> str: ...

    @property
    def routes(self) -> Callable[[Engine, Any], Routes] | None: ...

    @property
    def scopes(self) -> Sequence[principal.AccessScope]: ...


def make_routes(services: Iterable[Routed], engine: Engine) -> dict[str, Routes]:
    """Have services make their routes, by the name of each. Raises `UlakError`: a service was not
    attached to the engine, or a route would not be guarded."""
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


def each_route(routes: Iterable[Any]) -> Iterator[Any]:
    # Of routers that were included, newer releases list the router and not its routes.
    found: Iterator[Any] = getattr(routing, "iter_route_contexts", iter)(routes)
    return found


def _is_guarded(route: Any) -> bool:
    """Tell whether the guard is asked, and knows the route by the path that is called."""
    original = getattr(route, "original_route", route)
    return isinstance(original, APIRoute) and route.path == original.path


def merged(
    own: Mapping[tuple[str, str], Access], brought: Mapping[str, Routes], scopes: principal.Scopes
) -> Mapping[tuple[str, str], Access]:
    """Return the table of everything that is served. Raises `UlakError`: two want to serve the
    same, or a line names a scope that nobody declares."""
    access = dict(own)
    for name, routes in brought.items():
        lines = table(_with_scope(name, line, scopes) for line in routes.access)
        if taken := sorted(f"{method} {path}" for method, path in lines.keys() & access.keys()):
            raise UlakError(
                f'the service "{name}" cannot serve {", ".join(taken)}: somebody else does'
            )
        access |= lines
    return access


def _with_scope(name: str, line: Access, scopes: principal.Scopes) -> Access:
    if line.scope in (KNOWN, PUBLIC):
        return line
    if line.scope not in scopes:
        raise UlakError(
            f'the service "{name}": {line.method} {line.path} needs the scope {line.scope!r}, '
            "which nobody declares; declare it by Service(scopes=[AccessScope(...)])"
        )
    return replace(line, scope=scopes[line.scope])
