"""One id per request, in the answer, in every problem document and in the log."""

from __future__ import annotations

import re
import uuid

from starlette.datastructures import Headers, MutableHeaders
from starlette.requests import Request
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from ulak.auth import asking

HEADER = "X-Correlation-ID"

# What a caller sends is echoed and logged, so it must be short and plain.
_ACCEPTED = re.compile(r"[A-Za-z0-9._-]{1,64}")
_KEY = "ulak_correlation_id"


class Correlation:
    """Takes over the caller's `X-Correlation-ID` if it is plain, else makes one."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        given = Headers(scope=scope).get(HEADER, "")
        request_id = given if _ACCEPTED.fullmatch(given) else uuid.uuid4().hex
        scope[_KEY] = request_id

        async def send_with_id(message: Message) -> None:
            if message["type"] == "http.response.start":
                MutableHeaders(scope=message)[HEADER] = request_id
            await send(message)

        token = asking.begin(request_id)
        await self._app(scope, receive, send_with_id)
        # Not after an error: whoever is outside of this logs it, as a line of this request.
        asking.end(token)


def correlation_id(request: Request) -> str:
    """Return the id of a request, '' outside the middleware."""
    found: str = request.scope.get(_KEY, "")
    return found
