"""Routes of services: each declared with the line that says who may call it, and an address where
they have paths of their own.

    route = RouteTable(prefix="/letters")

    @route("GET", "/{id}", READ)
    def read(id: str) -> Response: ...

    return Routes([route.router], route.access)

Needs the web extra.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import KW_ONLY, dataclass
from functools import partial
from typing import Any, Final, TypeVar

from fastapi import FastAPI
from fastapi.routing import APIRoute

from ulak.engine.engine import Engine
from ulak.service import Address, Service
from ulak.settings import HIGHEST_PORT, read_variables, whole_number
from ulak.web import Access, SlashRoute, app, guarded_router

__all__ = ["OwnAddress", "RouteTable"]

Endpoint = TypeVar("Endpoint", bound=Callable[..., Any])

PLATFORM_PATHS: Final = (
    "/auth/login", "/auth/me", "/health/live", "/health/ready", "/metrics", "/openapi.json",
    "/docs",
)  # fmt: skip


class RouteTable:
    """Routes with one prefix, each with its line of access; what else `Access` takes, as
    `authenticate=` and `schemes=`, is the same for all."""

    def __init__(
        self, *, prefix: str = "", route_class: type[APIRoute] = SlashRoute,
        response_model: Any = None, **access: Any,
    ) -> None:  # fmt: skip
        self.router = guarded_router(route_class=route_class)
        self.access: list[Access] = []
        self._prefix, self._model, self._options = prefix, response_model, access

    def __call__(
        self, method: str, path: str, scope: str, *, status: int = 200, **described: Any
    ) -> Callable[[Endpoint], Endpoint]:
        """Declare a route; `described` is added to its operation of the OpenAPI document."""
        whole = self._prefix + path
        self.access.append(Access(method, whole, scope, **self._options))
        return self.router.api_route(
            whole, methods=[method], status_code=status, response_model=self._model,
            openapi_extra=described,
        )  # fmt: skip


@dataclass(frozen=True, slots=True)
class OwnAddress:
    """An address at which a service is served without ulak's own routes, but for logins, probes,
    metrics and documents."""

    service: Service
    """The one that is attached, with the routes that it has there."""
    _: KW_ONLY
    variable: str
    """The environment variable that chooses the port."""
    usual_port: int
    platform_paths: Sequence[str] = PLATFORM_PATHS

    def read_port(self) -> int:
        """Return the port. Raises `BadInput`: the variable holds none."""
        found = read_variables({self.variable: whole_number(0, HIGHEST_PORT)})
        return int(found.get(self.variable, self.usual_port))

    def make_app(
        self, engine: Engine, unready: Callable[[], str | None] = lambda: None, **options: Any
    ) -> FastAPI:
        """Make the application; options as of `ulak.web.app`."""
        return app(
            engine, unready=unready, services=[self.service], platform_routes=self.platform_paths,
            **options,
        )  # fmt: skip

    def make(self, engine: Engine) -> Address:
        """Return what `Service(address=)` wants. Raises `BadInput`, as `read_port`."""
        return Address(self.read_port(), self.variable, partial(self.make_app, engine))
