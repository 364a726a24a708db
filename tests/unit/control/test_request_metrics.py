"""`MetricsMiddleware` around a plain ASGI application."""

import asyncio
from types import SimpleNamespace

import pytest

from ulak.control.request_metrics import MetricsMiddleware, Requests
from ulak.control.tallies import LATENCY_SECONDS


def ask(middleware, path="/jobs/7", method="GET"):
    async def once():
        async def receive():
            return {"type": "http.request"}

        async def send(message):
            pass

        scope = {"type": "http", "path": path, "method": method}
        await middleware(scope, receive, send)

    asyncio.run(once())


def app(status=200, template="/jobs/{id}", error=None, content=b"application/json"):
    async def answer(scope, receive, send):
        if template is not None:
            scope["route"] = SimpleNamespace(path=template)
        if error is not None:
            raise error
        headers = [(b"content-type", content)]
        await send({"type": "http.response.start", "status": status, "headers": headers})
        await asyncio.sleep(0.02)
        await send({"type": "http.response.body", "body": b""})

    return answer


def read(requests: Requests) -> dict:
    return {tally.name: tally.read() for tally in requests.tallies}


@pytest.mark.shows("A-12")
def test_requests_are_counted_by_template_method_and_class_of_status():
    requests = Requests()
    for number in range(3):
        ask(MetricsMiddleware(app(200), requests), f"/jobs/{number}")
    ask(MetricsMiddleware(app(404), requests), method="DELETE")
    ask(MetricsMiddleware(app(404, template=None), requests), "/no/such/place")
    ask(MetricsMiddleware(app(200), requests), method="BREW")
    found = read(requests)
    assert found["ulak_requests"].series == {
        ("GET", "/jobs/{id}", "2xx"): (3,), ("DELETE", "/jobs/{id}", "4xx"): (1,),
        ("other", "other", "4xx"): (1,), ("other", "/jobs/{id}", "2xx"): (1,),
    }  # fmt: skip
    durations = found["http_request_duration_seconds"]
    assert durations.labels == ("method", "endpoint", "status")
    assert durations.bounds == LATENCY_SECONDS
    assert {1, 2} <= set(durations.bounds)
    *buckets, total = durations.series["GET", "/jobs/{id}", "2xx"]
    assert sum(buckets) == 3
    assert total >= 0.06
    *buckets, _ = found["ulak_request_seconds"].series["GET", "/jobs/{id}"]
    assert sum(buckets) == 3


@pytest.mark.shows("A-12")
def test_a_handler_that_raises_is_counted_too():
    requests = Requests()
    with pytest.raises(RuntimeError, match="broken"):
        ask(MetricsMiddleware(app(error=RuntimeError("broken")), requests))
    found = read(requests)
    assert found["ulak_requests"].series == {("GET", "/jobs/{id}", "0xx"): (1,)}
    *buckets, _ = found["http_request_duration_seconds"].series["GET", "/jobs/{id}", "0xx"]
    assert sum(buckets) == 1
    assert found["ulak_requests_in_flight"].series == {(): (0,)}


def test_a_stream_of_events_is_as_slow_as_its_beginning():
    requests = Requests()
    ask(MetricsMiddleware(app(content=b"text/event-stream; charset=utf-8"), requests))
    found = read(requests)
    assert found["ulak_requests"].series == {("GET", "/jobs/{id}", "2xx"): (1,)}
    *_, began_s = found["http_request_duration_seconds"].series["GET", "/jobs/{id}", "2xx"]
    *_, watched_s = found["ulak_request_seconds"].series["GET", "/jobs/{id}"]
    assert began_s < 0.02 <= watched_s
