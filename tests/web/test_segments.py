"""A request is tried against the routes that begin as it does, and against no others."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from fastapi import FastAPI
from fastapi.responses import PlainTextResponse
from starlette.routing import BaseRoute, Match, Mount, Route, Router

import ulak
import ulak.web
from ulak.web.segments import BySegment


class Watched(Route):
    """A route that remembers what it was tried on."""

    tried: list[str]

    def matches(self, scope: Any) -> tuple[Match, Any]:
        self.tried.append(scope["path"])
        return super().matches(scope)


def route(path: str, method: str = "GET") -> Watched:
    made = Watched(path, lambda request: PlainTextResponse(path), methods=[method])
    made.tried = []
    return made


def app_of(*routes: BaseRoute, by_segment: bool = True) -> FastAPI:
    app = FastAPI(docs_url=None, redoc_url=None, openapi_url=None, redirect_slashes=False)
    app.router.routes.extend(routes)
    if by_segment:
        app.router.middleware_stack = BySegment(app.router)
    return app


def ask(app: FastAPI, path: str, method: str = "GET", root: str = "") -> tuple[int, str]:
    """Send a request as a server does whose clients send any path; return status and body."""
    sent: list[Any] = []
    scope = {
        "type": "http", "asgi": {"version": "3.0"}, "http_version": "1.1", "method": method,
        "scheme": "http", "path": root + path, "raw_path": (root + path).encode(),
        "query_string": b"", "root_path": root, "headers": [(b"host", b"ulak")],
    }  # fmt: skip

    async def receive() -> Any:
        return {"type": "http.request", "body": b"", "more_body": False}

    async def send(message: Any) -> None:
        sent.append(message)

    asyncio.run(app(scope, receive, send))
    body = b"".join(message.get("body", b"") for message in sent)
    return sent[0]["status"], body.decode()


def test_routes_that_begin_with_another_segment_are_not_tried() -> None:
    jobs, letters = route("/jobs/{id}"), route("/letters")
    assert ask(app_of(jobs, letters), "/letters") == (200, "/letters")
    assert (jobs.tried, letters.tried) == ([], ["/letters"])


@pytest.mark.parametrize(
    ("path", "found"),
    [
        ("/", "/"),
        ("/jobs", "/jobs"),
        ("/jobs/7", "/jobs/{id}"),
        ("/jobs/new", "/jobs/{id}"),
        ("/jobs7", "/{any}"),
        ("/else", "/{any}"),
        ("/apart/x", "mounted /x"),
        ("/else/x", None),
        ("/jobs/7/8", None),
        ("//", None),
        ("//jobs", None),
    ],
)
@pytest.mark.parametrize("root", ["", "/behind"])
def test_the_route_is_the_first_that_fits_as_without_segments(
    path: str, found: str | None, root: str
) -> None:
    mounted = Router([Route("/x", lambda request: PlainTextResponse("mounted /x"))])
    routes = [
        route("/"), route("/jobs"), route("/jobs/{id}"), route("/jobs/new"),
        Mount("/apart", mounted), route("/{any}"),
    ]  # fmt: skip
    status, text = ask(app_of(*routes), path, root=root)
    assert (text if status == 200 else None) == found
    assert (status, text) == ask(app_of(*routes, by_segment=False), path, root=root)


def test_another_method_is_405_with_those_that_are_allowed() -> None:
    app = app_of(route("/jobs"), route("/jobs", "POST"), route("/{any}", "PUT"))
    assert ask(app, "/jobs", "POST") == (200, "/jobs")
    assert ask(app, "/jobs", "PUT") == (200, "/{any}")
    assert ask(app, "/jobs", "DELETE")[0] == 405
    assert ask(app, "/other")[0] == 405


def test_routes_that_a_program_adds_to_the_application_later_are_served() -> None:
    app = ulak.web.app(ulak.connect("memory://"), identity=None)
    assert ask(app, "/health/live")[0] == 200
    for path in ("/of-mine", "/health/of-mine"):
        app.router.routes.append(route(path))
        assert ask(app, path) == (200, path)
