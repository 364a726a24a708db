"""Routes that answer with and without a final slash, without a redirect."""

from typing import Annotated

import pytest
from fastapi import APIRouter, Depends

import ulak.web
from ulak.errors import UlakError
from ulak.idempotency import Execution, Guard, Scope
from ulak.service import Service, attach
from ulak.settings import Settings
from ulak.web import (
    PUBLIC,
    Access,
    IdempotentRoute,
    Routes,
    SlashRoute,
    guarded_router,
    idempotent_route,
)


class Both(SlashRoute, IdempotentRoute):
    """Answers both paths, and executes once per key."""


async def who() -> tuple[str, str]:
    return "", "ada"


def make_routes(engine, _):
    protect = idempotent_route(
        Guard(engine.store), Scope("letters.write", mode="lease"), identify=who, policy="optional"
    )
    router, plain = guarded_router(route_class=Both), APIRouter(route_class=SlashRoute)
    written: list[str] = []

    @router.post("/letters", status_code=201)
    def write(execution: Annotated[Execution | None, Depends(protect)]) -> dict[str, int]:
        """Write a letter."""
        written.append("letter")
        return {"written": len(written)}

    @router.get("/letters/{letter}")
    def read(letter: str) -> dict[str, str]:
        """Read a letter."""
        return {"letter": letter}

    @plain.get("/papers")
    def papers() -> list[str]:
        """Read papers."""
        return ["A4"]

    @plain.get("/exact/{name}")
    def exact(name: str) -> str:
        """Read a name."""
        return name

    paths = ["/letters/{letter}", "/papers", "/exact/{name}"]
    lines = [Access("POST", "/letters", PUBLIC), *(Access("GET", path, PUBLIC) for path in paths)]
    return Routes([router, plain], lines, envelope=lambda problem: {"seen": problem["code"]})


LETTERS = Service("letters", attach=lambda *_: None, routes=make_routes)


@pytest.fixture
def app(engine):
    attach(LETTERS, engine, Settings())
    return ulak.web.app(engine, identity=None, services=[LETTERS], platform_routes=False)


@pytest.mark.parametrize("path", ["/letters/l1", "/letters/l1/", "/papers", "/papers/"])
def test_both_paths_are_answered_at_once(ask, app, path):
    answer = ask(app, path)
    assert answer.status_code == 200
    assert answer.json() in ({"letter": "l1"}, ["A4"])


def test_a_post_is_answered_at_once_and_a_key_is_the_same_on_both_paths(ask, app):
    assert ask(app, "/letters/", method="POST").json() == {"written": 1}
    key = {"Idempotency-Key": "letter-1"}
    first = ask(app, "/letters", method="POST", headers=key)
    again = ask(app, "/letters/", method="POST", headers=key)
    assert (first.status_code, first.json()) == (201, {"written": 2})
    assert (again.status_code, again.json()) == (201, {"written": 2})
    assert again.headers["idempotent-replayed"] == "true"


def test_one_slash_is_the_final_one(ask, app):
    for path in ("/papers//", "/letters//", "/letters/l1//"):
        assert ask(app, path).status_code in (307, 404), path
    wrong = ask(app, "/papers/", method="DELETE")
    assert (wrong.status_code, wrong.json()["seen"]) == (405, "method-not-allowed")


def test_access_document_and_metrics_have_the_plain_path_only(ask, app):
    ask(app, "/papers/")
    assert [path for path in app.openapi()["paths"] if path.endswith("/")] == []
    text = ask(app, "/metrics").text
    assert 'ulak_requests_total{method="GET",route="/papers",status="2xx"} 1.0' in text
    assert 'route="/papers/"' not in text


def test_below_a_mount_both_are_answered(ask, app):
    from fastapi import FastAPI

    outer = FastAPI()
    outer.mount("/ulak", app)
    for path in ("/ulak/papers", "/ulak/papers/", "/ulak/letters/l1/"):
        assert ask(outer, path).status_code == 200, path


def test_a_path_that_is_declared_with_its_slash_is_refused():
    router = guarded_router(route_class=SlashRoute)
    with pytest.raises(UlakError, match="/letters/: declare the path without its final slash"):
        router.get("/letters/")(lambda: None)
