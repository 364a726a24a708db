"""How large a request may be: a body is read before anybody asks whose it is."""

from __future__ import annotations

from typing import Final

from starlette.datastructures import Headers
from starlette.exceptions import HTTPException
from starlette.types import ASGIApp, Message, Receive, Scope, Send

LARGEST: Final = 8 * 1024 * 1024
"""Twice what a store writes in one transaction: no payload that is accepted is larger."""


class BodyLimit:
    """Refuses, with 413, a body that is larger than it may be, as soon as that is known."""

    def __init__(self, app: ASGIApp, *, largest: int = LARGEST) -> None:
        self._app = app
        self._largest = largest

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        said = Headers(scope=scope).get("content-length", "")
        size = 0

        async def measured() -> Message:
            nonlocal size
            self._refuse_beyond(int(said) if said.isdecimal() else 0)
            message = await receive()
            size += len(message.get("body", b""))
            self._refuse_beyond(size)
            return message

        await self._app(scope, measured, send)

    def _refuse_beyond(self, size: int) -> None:
        if size > self._largest:
            raise too_large(self._largest)


def too_large(largest: int) -> HTTPException:
    """Say that a body is larger than it may be."""
    return HTTPException(413, f"the body is larger than {largest:,} bytes; send less at once")
