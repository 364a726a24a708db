"""Routes that answer with and without a final slash."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from fastapi.routing import APIRoute
from starlette.routing import Match
from starlette.types import Receive, Scope, Send

from ulak.errors import UlakError


class SlashRoute(APIRoute):
    """A route that answers its path with one final slash too, without a redirect: of a POST, a
    client that follows one may make a GET.

    Everything that comes after sees the plain path: the lines of access, metrics, the handler and
    an idempotency key. `class Both(SlashRoute, IdempotentRoute)` joins it with another class.
    Raises `UlakError`: the path that is declared has the slash.
    """

    def __init__(self, path: str, endpoint: Callable[..., Any], **options: Any) -> None:
        if path.endswith("/"):
            raise UlakError(f"{path}: declare the path without its final slash; it answers both")
        super().__init__(path, endpoint, **options)

    def matches(self, scope: Scope) -> tuple[Match, Scope]:
        """Match the plain path, whichever of both was asked for."""
        return super().matches({**scope, "path": _plain(scope)} if _has_slash(scope) else scope)

    async def handle(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve a request as one for the plain path."""
        if _has_slash(scope):
            scope["path"] = _plain(scope)
        await super().handle(scope, receive, send)


def _has_slash(scope: Scope) -> bool:
    return str(scope.get("path", "")).endswith("/")


def _plain(scope: Scope) -> str:
    return str(scope["path"])[:-1]
