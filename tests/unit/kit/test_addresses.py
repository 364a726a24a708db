"""An address of a service's own: its routes there, ulak's logins and probes, and nothing else."""

import asyncio

import httpx
import pytest

import ulak
from tests.web.people import Known, as_
from ulak.auth.principal import ANYBODY
from ulak.errors import BadInput
from ulak.kit.addresses import OwnAddress
from ulak.kit.bodies import bounded_body, read_object
from ulak.service import Service, attach
from ulak.settings import Settings
from ulak.web import KNOWN, PUBLIC, Routes, RouteTable, actor_of, answer


def make_routes(*_: object) -> Routes:
    route = RouteTable()

    @route("GET", "/health", PUBLIC)
    def health():
        """Tell how it is."""
        return answer({"service": "letters"})

    @route("POST", "/jobs", KNOWN)
    def write(body: bytes = bounded_body(20)):
        """Write a letter."""
        return answer(read_object(body), 201)

    return Routes([route.router], route.access)


LETTERS = Service("letters", attach=lambda *_: None, routes=make_routes)
OWN = OwnAddress(LETTERS, variable="LETTERS_PORT", usual_port=8025)


def test_the_port_is_that_of_the_variable(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("LETTERS_PORT", raising=False)
    assert OWN.read_port() == 8025
    monkeypatch.setenv("LETTERS_PORT", "0")
    made = OWN.make(ulak.connect("memory://"))
    assert (made.port, made.variable) == (0, "LETTERS_PORT")
    monkeypatch.setenv("LETTERS_PORT", "70000")
    with pytest.raises(BadInput, match="LETTERS_PORT: it is '70000'"):
        OWN.read_port()


def test_bodies_are_bounded_objects_and_health_is_the_services_own() -> None:
    engine = ulak.connect("memory://")
    attach(LETTERS, engine, Settings())
    app = OWN.make_app(engine, identity=Known())

    def ask(method: str, path: str, content: bytes = b"", who: str = "viewer") -> httpx.Response:
        async def once() -> httpx.Response:
            transport = httpx.ASGITransport(app)
            async with httpx.AsyncClient(transport=transport, base_url="http://x") as client:
                return await client.request(method, path, content=content, headers=as_(who))

        return asyncio.run(once())

    assert ask("GET", "/health").json() == {"service": "letters"}
    assert ask("GET", "/health/live").json() == {"status": "live"}
    assert ask("GET", "/flows").status_code == 404
    assert ask("POST", "/jobs", b"x" * 99, who="nobody").status_code == 401
    assert ask("POST", "/jobs", b'{"to": "ada"}').json() == {"to": "ada"}
    assert ask("POST", "/jobs", b"x" * 21).json()["code"] == "payload-too-large"
    for body, said in ((b"{", "body: not JSON at character"), (b"[]", "body: write a JSON object")):
        told = ask("POST", "/jobs", body)
        assert (told.status_code, told.json()["detail"].startswith(said)) == (422, True)
    engine.close()


def test_a_caller_who_was_not_asked_is_anonymous() -> None:
    assert actor_of(Known().people["viewer"]) == "vera"
    assert actor_of(ANYBODY) == "anonymous"
