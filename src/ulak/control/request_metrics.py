"""Requests over HTTP, each counted once, by the template of its route.

`MetricsMiddleware` knows ASGI and no framework.
"""

from __future__ import annotations

import threading
import time
from bisect import bisect_left
from collections.abc import Awaitable, Callable, MutableMapping
from operator import add
from typing import Any, Final

from ulak.control.tallies import LATENCY_SECONDS, OTHER, Family, Gauge, Tally, View

Scope = MutableMapping[str, Any]
Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]
App = Callable[[Scope, Receive, Send], Awaitable[None]]

METHODS: Final = frozenset({"GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS"})
STATUSES: Final = ("1xx", "2xx", "3xx", "4xx", "5xx")
RAISED: Final = "0xx"
"""The status class of a request whose handler has raised before it answered."""
EVENTS: Final = b"text/event-stream"
UNANSWERED: Final = "none"
"""That of a request whose caller went away before it was answered."""

Place = tuple[str, str, str]
"""Method, template and status class."""

WHOLE, LATENCY, WATCHED = 0, 1, 2
"""What was measured of a request: all of it; or, where it lasts as long as its caller likes to
watch or to wait, its latency without that, and all of it."""


class Requests:
    """The tallies of one application. A path that no route has is `other`, as is its method.

    Each request is counted in one place: how many there were, how long they took and the histogram
    that adaptive control judges are three views of it.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._counts: dict[tuple[int, Place], list[int]] = {}
        self._sums: dict[tuple[int, Place], float] = {}
        self._in_flight = Gauge("ulak_requests_in_flight", "Requests that are being answered now.")
        self.tallies: tuple[Tally, ...] = (
            View("ulak_requests", "Requests, by route and class of status.", self._read_counts),
            View(
                "ulak_request_seconds", "How long requests took until their answer had ended.",
                self._read_seconds,
            ),
            View(
                "http_request_duration_seconds",
                "How long requests took, without what callers liked to watch or to wait for.",
                self._read_durations,
            ),
            self._in_flight,
        )  # fmt: skip

    def begun(self) -> None:
        self._in_flight.add(1)

    def ended(
        self, method: str, endpoint: str, status: str, seconds: float,
        latency_s: float | None = None,
    ) -> None:  # fmt: skip
        """Count a request; `latency_s` is its latency where its caller made it last longer."""
        self._in_flight.add(-1)
        place = method, endpoint, status
        with self._lock:
            if latency_s is None:
                self._add((WHOLE, place), seconds)
            else:
                self._add((LATENCY, place), latency_s)
                self._add((WATCHED, place), seconds)

    def _add(self, key: tuple[int, Place], seconds: float) -> None:
        counts = self._counts.get(key)
        if counts is None:
            counts = self._counts[key] = [0] * (len(LATENCY_SECONDS) + 1)
            self._sums[key] = 0.0
        counts[bisect_left(LATENCY_SECONDS, seconds)] += 1
        self._sums[key] += seconds

    def _read(self, of_streams: int, labels: int = 3) -> dict[tuple[str, ...], tuple[float, ...]]:
        """Return counts and sums by the first labels."""
        found: dict[tuple[str, ...], tuple[float, ...]] = {}
        with self._lock:
            for (measured, place), counts in self._counts.items():
                if measured in (WHOLE, of_streams):
                    numbers = (*counts, self._sums[measured, place])
                    before = found.get(place[:labels])
                    added = numbers if before is None else tuple(map(add, before, numbers))
                    found[place[:labels]] = added
        return found

    def _read_counts(self) -> Family:
        series = {place: (float(sum(n)),) for place, (*n, _) in self._read(LATENCY).items()}
        return Family("ulak_requests", "counter", ("method", "route", "status"), series)

    def _read_seconds(self) -> Family:
        name, labels = "ulak_request_seconds", ("method", "route")
        return Family(name, "histogram", labels, self._read(WATCHED, 2), LATENCY_SECONDS)

    def _read_durations(self) -> Family:
        name, labels = "http_request_duration_seconds", ("method", "endpoint", "status")
        return Family(name, "histogram", labels, self._read(LATENCY), LATENCY_SECONDS)


ANSWER: Final = "ulak.answer"
"""Where the scope of a connection has how it was answered, as far as it was."""


class Answer:
    """How a request was answered, as far as it was."""

    __slots__ = (
        "endpoint", "has_raised", "is_refusal", "kind", "method", "seconds", "status",
        "stream_began_s", "waited_s", "when_ended",
    )  # fmt: skip

    def __init__(self) -> None:
        self.status = 0
        self.is_refusal = False
        """Whether it is a 503 with `Retry-After`."""
        self.kind = UNANSWERED
        self.method = self.endpoint = OTHER
        self.seconds = 0.0
        self.stream_began_s: float | None = None
        self.waited_s = 0.0
        """How long the handler has waited at the wish of its caller."""
        self.has_raised = False
        """Whether its handler has raised, before or after the response began."""
        self.when_ended: Callable[[Answer], None] | None = None
        """What is called with it when the request has ended."""

    @property
    def latency_s(self) -> float | None:
        """How long the caller had to wait of those seconds, where it is not all of them."""
        if self.stream_began_s is not None:
            return self.stream_began_s
        return max(0.0, self.seconds - self.waited_s) if self.waited_s else None


class MetricsMiddleware:
    """Counts every request by method, endpoint template and status class, also one whose handler
    raises. The template is that of `scope["route"]`, which the router sets; no path is a label."""

    def __init__(self, app: App, requests: Requests | None = None) -> None:
        self._app = app
        self.requests = Requests() if requests is None else requests

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        await self.count(scope, receive, send, Answer())

    async def count(self, scope: Scope, receive: Receive, send: Send, answer: Answer) -> None:
        """Serve a request and count it. `answer` then describes the response, if there was one."""

        async def send_and_look(message: Message) -> None:
            if message["type"] == "http.response.start":
                answer.status = status = message["status"]
                answer.kind = STATUSES[status // 100 - 1] if 100 <= status < 600 else OTHER
                if status == 503:
                    names = {name.lower() for name, _ in message.get("headers", ())}
                    answer.is_refusal = b"retry-after" in names
                if any(text.startswith(EVENTS) for _, text in message.get("headers", ())):
                    answer.stream_began_s = time.monotonic() - began
            await send(message)

        scope[ANSWER] = answer
        requests, began = self.requests, time.monotonic()
        requests.begun()
        try:
            await self._app(scope, receive, send_and_look)
        except Exception:
            # A middleware further out sends the response of an unforeseen error.
            answer.has_raised = True
            if answer.kind == UNANSWERED:
                answer.kind = RAISED
            raise
        finally:
            answer.seconds = time.monotonic() - began
            answer.method, answer.endpoint = find_template(scope)
            requests.ended(
                answer.method, answer.endpoint, answer.kind, answer.seconds, answer.latency_s
            )
            if answer.when_ended is not None:
                answer.when_ended(answer)


def find_template(scope: Scope) -> tuple[str, str]:
    """Return the method and the template of the route, both of them known."""
    template = getattr(scope.get("route"), "path", None)
    if template is None:
        return OTHER, OTHER
    return scope["method"] if scope["method"] in METHODS else OTHER, template
