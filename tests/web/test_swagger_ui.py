"""Swagger UI, in a real browser: operations are tried out, and nothing comes from elsewhere."""

import re

import pytest

import ulak.web
from tests.web.browsing import SwaggerUI, browsing, serving
from ulak.auth import SERVICE, AccessScope, Directory, Keys, Principal
from ulak.errors import NotSupported
from ulak.service import Service, attach
from ulak.settings import Settings
from ulak.web import KNOWN, PUBLIC, Access, Caller, Routes, guarded_router, swagger_ui

TOKEN = "a-token-of-ada-and-of-nobody-else"  # noqa: S105 - it guards nothing
PAPERS = AccessScope("letters:papers", "read papers", roles={SERVICE})


def find_ada(token: str) -> Principal | None:
    return Principal("ada", tenant=None, roles=frozenset()) if token == TOKEN else None


def make_routes(engine, _):
    router = guarded_router()

    @router.get("/letters/mine")
    def mine(principal: Caller) -> dict[str, str]:
        """Read one's own."""
        return {"reader": principal.name}

    @router.get("/letters/papers")
    def papers(principal: Caller) -> dict[str, str]:
        """Read papers."""
        return {"reader": principal.name}

    @router.get("/letters/{letter}")
    def read(letter: str, principal: Caller) -> dict[str, str]:
        """Read one, as anybody."""
        return {"letter": letter, "reader": principal.name or "anybody"}

    ada = {"authenticate": find_ada, "schemes": ("Bearer",)}
    access = [
        Access("GET", "/letters/mine", KNOWN, **ada),
        Access("GET", "/letters/papers", PAPERS, authenticate=Keys(engine), schemes=("Token",)),
        Access("GET", "/letters/{letter}", PUBLIC, **ada),
    ]
    return Routes([router], access)


LETTERS = Service("letters", attach=lambda *_: None, routes=make_routes, scopes=[PAPERS])


@pytest.fixture
def app(engine):
    attach(LETTERS, engine, Settings())
    return ulak.web.app(
        engine, identity=None, services=[LETTERS], platform_routes=False, swagger=True
    )


@pytest.mark.shows("S-45")
def test_operations_are_tried_out_with_both_credentials_and_nothing_is_asked_elsewhere(engine, app):
    keys = Directory(engine.open().store, scopes={PAPERS: PAPERS})
    key = keys.create_key("press", roles=[SERVICE], scopes=[PAPERS], actor="ada").text
    with serving(app) as address, browsing() as tab:
        tab.page.goto(f"{address}/docs")
        shown = SwaggerUI(tab.page)
        status, body = shown.execute("letters", "get_letters_letter", letter="l1")
        assert (status, "anybody" in body) == ("200", True)
        assert tab.complaints == []
        status, body = shown.execute("letters", "get_letters_papers")
        assert (status, "unauthenticated" in body) == ("401", True)
        tab.complaints.clear()  # of the refusal
        shown.authorise(bearer=TOKEN, token=f"Token {key}")
        for operation in ("get_letters_mine", "get_letters_letter"):
            status, body = shown.execute("letters", operation)
            assert (status, '"reader": "ada"' in body) == ("200", True), body
        status, body = shown.execute("letters", "get_letters_papers")
        assert (status, '"reader": "key:press"' in body) == ("200", True), body
        assert tab.complaints == []
        own = (f"{address}/", "data:")
        assert [url for url in tab.asked if not url.startswith(own)] == []
        assert f"{address}/docs/swagger-ui-bundle.js" in tab.asked


@pytest.mark.shows("S-45")
def test_the_page_is_for_everybody_and_its_policy_allows_its_own_files_only(ask, app):
    page = ask(app, "/docs")
    policy = page.headers["content-security-policy"]
    rules = dict(rule.split(" ", 1) for rule in policy.split("; "))
    assert (rules["default-src"], rules["script-src"], rules["connect-src"]) == (
        "'none'", "'self'", "'self'",
    )  # fmt: skip
    assert "http" not in policy
    assert "<script>" not in page.text
    for name in re.findall(r'(?:src|href)="(docs/[^"]+)"', page.text):
        assert ask(app, f"/{name}").status_code == 200, name
    missing = ask(app, "/docs/pyproject.toml")
    assert (missing.status_code, missing.json()["code"]) == (404, "not-found")
    assert ask(app, "/openapi.json").status_code == 200


def test_the_document_has_the_schemes_of_its_routes_in_the_words_of_swagger_ui(app):
    document = app.openapi()
    assert document["info"]["title"] == "letters"
    assert list(document["components"]["securitySchemes"]) == ["bearer", "token"]
    token = document["components"]["securitySchemes"]["token"]
    assert (token["type"], token["name"]) == ("apiKey", "Authorization")
    security = {path: read["get"]["security"] for path, read in document["paths"].items()}
    assert security["/letters/mine"] == [{"bearer": []}]
    assert security["/letters/papers"] == [{"token": ["letters:papers"]}]
    assert security["/letters/{letter}"] == [{}, {"bearer": []}]


def test_below_a_mount_its_files_are_found(ask, app):
    from fastapi import FastAPI

    outer = FastAPI()
    outer.mount("/ulak", app)
    assert ask(outer, "/ulak/docs").status_code == 200
    assert "SwaggerUIBundle" in ask(outer, "/ulak/docs/start.js").text
    assert ask(outer, "/ulak/openapi.json").json()["servers"] == [{"url": "/ulak"}]


def test_without_its_files_the_package_is_named(engine, monkeypatch):
    monkeypatch.setattr(swagger_ui, "PACKAGE", "a_package_that_nobody_has")
    with pytest.raises(NotSupported, match="pip install 'fastapi-swagger"):
        ulak.web.app(engine, identity=None, swagger=True)
    ulak.web.app(engine, identity=None)
