"""What is asked over HTTP: how often, how long it took, and what is being answered now."""

from __future__ import annotations

import logging
import time
from collections.abc import Iterator
from typing import Final

from prometheus_client.metrics_core import Metric
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from ulak.web.labels import OTHER
from ulak.web.tallies import Counter, Gauge, Histogram

log = logging.getLogger("ulak.requests")

METHODS: Final = frozenset({"GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS"})
STATUSES: Final = ("1xx", "2xx", "3xx", "4xx", "5xx")
SECONDS: Final = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 60)
UNANSWERED: Final = "none"
"""The status of a request whose caller went away before it was answered."""


class Requests:
    """The tallies of one application. A path that no route has is `other`, as is its method."""

    def __init__(self) -> None:
        self._requests = Counter(
            "ulak_requests", "Requests, by route and class of status.",
            ("method", "route", "status"),
        )  # fmt: skip
        self._seconds = Histogram(
            "ulak_request_seconds", "How long requests took until their answer had ended.",
            SECONDS, ("method", "route"),
        )  # fmt: skip
        self._in_flight = Gauge("ulak_requests_in_flight", "Requests that are being answered now.")

    def families(self) -> Iterator[Metric]:
        """Return everything, as a scrape shows it."""
        yield self._requests.family()
        yield self._seconds.family()
        yield self._in_flight.family()

    def begun(self) -> None:
        """A request has come."""
        self._in_flight.add(1)

    def ended(self, method: str, route: str, status: str, seconds: float) -> None:
        """A request was answered, or its caller has gone."""
        self._in_flight.add(-1)
        self._requests.add((method, route, status))
        self._seconds.observe((method, route), (seconds,))


class CountRequests:
    """Counts every request of an application: a pure ASGI middleware.

    With the logger `ulak.requests` at DEBUG it also writes a line for each.
    """

    def __init__(self, app: ASGIApp, requests: Requests) -> None:
        self._app = app
        self._requests = requests

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        status = UNANSWERED

        async def send_and_look(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = _class_of(message["status"])
            await send(message)

        began = time.monotonic()
        self._requests.begun()
        try:
            await self._app(scope, receive, send_and_look)
        except Exception:
            # Whoever is outside of this answers it, as what nobody foresaw.
            status = "5xx" if status == UNANSWERED else status
            raise
        finally:
            seconds = time.monotonic() - began
            method, route = asked(scope)
            self._requests.ended(method, route, status, seconds)
            if log.isEnabledFor(logging.DEBUG):
                facts = {"method": method, "route": route, "status": status, "seconds": seconds}
                log.debug("a request was answered", extra=facts)


def asked(scope: Scope) -> tuple[str, str]:
    """Return the method and the template of the route, both of them known."""
    route = getattr(scope.get("route"), "path", None)
    if route is None:
        return OTHER, OTHER
    return scope["method"] if scope["method"] in METHODS else OTHER, route


def _class_of(status: int) -> str:
    return STATUSES[status // 100 - 1] if 100 <= status < 600 else OTHER
