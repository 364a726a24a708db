"""An address of its own for a service, with routes of its own there. Needs the web extra."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import KW_ONLY, dataclass
from functools import partial
from typing import Any, Final

from fastapi import FastAPI

from ulak.engine.engine import Engine
from ulak.service import Address, Service
from ulak.settings import HIGHEST_PORT, read_variables, whole_number
from ulak.web import app

__all__ = ["OwnAddress"]

PLATFORM_PATHS: Final = (
    "/auth/login", "/auth/me", "/health/live", "/health/ready", "/metrics", "/openapi.json",
    "/docs",
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
