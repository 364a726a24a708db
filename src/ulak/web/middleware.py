"""What every request goes through: its id, its trace, its count, and who sends its body."""

from __future__ import annotations

import logging
import re
import uuid
from contextlib import nullcontext
from http import HTTPStatus
from typing import Final

from starlette.datastructures import Headers, MutableHeaders
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from ulak.auth.principal import CURRENT_REQUEST, CurrentRequest
from ulak.control.request_metrics import Answer, MetricsMiddleware, Requests
from ulak.engine.engine import Engine
from ulak.engine.tracing import Span
from ulak.errors import UlakError
from ulak.web import callers
from ulak.web.problems import CORRELATION_HEADER, CORRELATION_KEY

# What a caller sends is echoed and logged, so it must be short and plain.
_ACCEPTED = re.compile(r"[A-Za-z0-9._-]{1,64}")


class Correlation:
    """Takes over the caller's `X-Correlation-ID` if it is plain, else makes one. No browser may
    take an answer for what its type does not say."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        given = Headers(scope=scope).get(CORRELATION_HEADER, "")
        request_id = given if _ACCEPTED.fullmatch(given) else uuid.uuid4().hex
        scope[CORRELATION_KEY] = request_id

        async def send_with_id(message: Message) -> None:
            if message["type"] == "http.response.start":
                headers = MutableHeaders(scope=message)
                headers[CORRELATION_HEADER] = request_id
                headers.setdefault("X-Content-Type-Options", "nosniff")
            await send(message)

        token = CURRENT_REQUEST.set(CurrentRequest(request_id))
        await self._app(scope, receive, send_with_id)
        # Not after an error: whoever is outside of this logs it, as a line of this request.
        CURRENT_REQUEST.reset(token)


log = logging.getLogger("ulak.requests")


class ObserveRequests(MetricsMiddleware):
    """Counts every request and, while its engine is traced, spans it. The caller's `traceparent` is
    taken over, so that a submit belongs to the trace that asked. With the logger `ulak.requests` at
    DEBUG it also writes a line for each."""

    def __init__(self, app: ASGIApp, engine: Engine, requests: Requests) -> None:
        super().__init__(app, requests)
        self._engine = engine

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        tracing, answer = self._engine.kernel.tracing, Answer()
        is_logged = log.isEnabledFor(logging.DEBUG)
        if tracing is None and not is_logged:
            await self.count(scope, receive, send, answer)
            return
        span = None
        if tracing is not None:
            parent = Headers(scope=scope).get("traceparent")
            span = tracing.span(scope["method"], "server", parent=parent)
        with nullcontext() if span is None else span as traced:
            try:
                await self.count(scope, receive, send, answer)
            finally:
                if is_logged:
                    facts = {
                        "method": answer.method, "route": answer.endpoint, "status": answer.kind,
                        "seconds": answer.seconds,
                    }  # fmt: skip
                    log.debug("a request was answered", extra=facts)
                if traced is not None:
                    _describe(traced, answer.method, answer.endpoint, answer.status)


def _describe(span: Span, method: str, route: str, status: int) -> None:
    span.rename(f"{method} {route}")
    span.note("http.request.method", method)
    span.note("http.route", route)
    if status:
        span.note("http.response.status_code", status)
    if status >= 500:
        span.fail(str(status))


LARGEST: Final = 8 * 1024 * 1024
"""Twice what a store writes in one transaction: no payload that is accepted is larger."""
LARGEST_OF_STRANGERS: Final = 64 * 1024
"""Of those who need not say who they are: a login, a registration."""


class BodyLimit:
    """Asks who calls before the first byte of a body is read, and refuses, with 413, a body that is
    larger than it may be, as soon as that is known."""

    def __init__(
        self, app: ASGIApp, *, largest: int = LARGEST, of_strangers: int = LARGEST_OF_STRANGERS
    ) -> None:
        self._app = app
        self._largest = largest
        self._of_strangers = of_strangers

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        size, largest = 0, None

        async def measured() -> Message:
            nonlocal size, largest
            if largest is None:
                largest = await self._find_bound(scope)
                said = Headers(scope=scope).get("content-length", "")
                if said.isdecimal() and int(said) > largest:
                    raise too_large(largest)
            message = await receive()
            size += len(message.get("body", b""))
            if size > largest:
                raise too_large(largest)
            return message

        await self._app(scope, measured, send)

    async def _find_bound(self, scope: Scope) -> int:
        """Return how large the body may be. Raises `HTTPException`: this caller may not call."""
        try:
            is_stranger = await callers.is_stranger(Request(scope))
        except UlakError as refusal:
            # FastAPI takes every other class for a body that cannot be read.
            raise HTTPException(HTTPStatus.UNAUTHORIZED) from refusal
        return self._of_strangers if is_stranger else self._largest


def too_large(largest: int) -> HTTPException:
    return HTTPException(413, f"the body is larger than {largest:,} bytes; send less at once")
