"""A span for each request, in the trace of whoever asks."""

from __future__ import annotations

from starlette.datastructures import Headers
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from ulak.engine.engine import Engine
from ulak.web.request_metrics import asked


class TraceRequests:
    """Traces every request of an application while its engine is traced: a pure ASGI middleware.

    The caller's `traceparent` is taken over, so that a submit belongs to the trace that asked.
    """

    def __init__(self, app: ASGIApp, engine: Engine) -> None:
        self._app = app
        self._engine = engine

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        tracing = self._engine.kernel.tracing
        if tracing is None or scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        status = 0

        async def send_and_look(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
            await send(message)

        parent = Headers(scope=scope).get("traceparent")
        with tracing.span(scope["method"], "server", parent=parent) as span:
            try:
                await self._app(scope, receive, send_and_look)
            finally:
                method, route = asked(scope)
                span.rename(f"{method} {route}")
                span.note("http.request.method", method)
                span.note("http.route", route)
                if status:
                    span.note("http.response.status_code", status)
                if status >= 500:
                    span.fail(str(status))
