"""Routes of a service, each declared together with the line that says who may call it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Any, TypeVar

from ulak.web.access import About, Access
from ulak.web.callers import guarded_router

Endpoint = TypeVar("Endpoint", bound=Callable[..., Any])


class RouteTable:
    """Routes of one kind of callers:

        routes = RouteTable({"headers": ("X-Letters-Key",)}, route_class=SlashRoute)

        @routes("GET", "/letters", KNOWN)
        def list_letters(principal: Caller) -> Response: ...

        Routes([routes.router], routes.access)

    A dependency of a route that has `openapi_extra`, as those of `ulak.kit.bodies`, describes what
    it reads in the OpenAPI document.

    Args:
        callers: What every line of access has besides, as `Access` takes it.
        prefix: Before each path.
        response_model: Of each route that names no other.
        options: As of `guarded_router`.
    """

    def __init__(
        self,
        callers: Mapping[str, Any] = MappingProxyType({}),
        *,
        prefix: str = "",
        response_model: Any = None,
        **options: Any,
    ) -> None:
        self.router = guarded_router(**options)
        self.access: list[Access] = []
        self._callers, self._prefix = callers, prefix
        self._usual = {"response_model": response_model}

    def __call__(
        self, method: str, path: str, scope: str, about: About = "all", **options: Any
    ) -> Callable[[Endpoint], Endpoint]:
        """Declare a route and its line; `options` as of `APIRouter.api_route`."""
        path = self._prefix + path
        self.access.append(Access(method, path, scope, about, **self._callers))

        def declare(endpoint: Endpoint) -> Endpoint:
            self.router.add_api_route(path, endpoint, methods=[method], **self._usual | options)
            route: Any = self.router.routes[-1]
            for dependency in route.dependant.dependencies:
                described = getattr(dependency.call, "openapi_extra", {})
                route.openapi_extra = {**described, **(route.openapi_extra or {})}
            return endpoint

        return declare
