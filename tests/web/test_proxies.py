"""Whom a proxy names is believed of those that are trusted, and of nobody else."""

import httpx
import pytest
from fastapi import Request

import ulak.web
from ulak.errors import BadInput
from ulak.settings import Settings, load
from ulak.web import read_client_address
from ulak.web.server import Server, bind


def ask(engine, trusted: str, **headers: str) -> tuple[str, str]:
    """Return what a server believes: the address and the scheme of a request."""
    app = ulak.web.app(engine, identity=None)
    seen: list[tuple[str, str]] = []

    @app.middleware("http")
    async def look(request: Request, call_next):
        seen.append((read_client_address(request), request.url.scheme))
        return await call_next(request)

    bound = bind("127.0.0.1", 0)
    server = Server(app, bound, trusted_proxies=trusted)
    server.start(on_failure=lambda: None)
    try:
        assert httpx.get(f"{server.address}/health/live", headers=headers).status_code == 200
    finally:
        server.stop()
    return seen[0]


SAID = {"X-Forwarded-For": "6.6.6.6, 203.0.113.7, 10.1.2.3", "X-Forwarded-Proto": "https"}


def test_nobody_is_believed_unless_somebody_says_so(engine) -> None:
    assert ask(engine, "", **SAID) == ("127.0.0.1", "http")
    assert ask(engine, "10.0.0.0/8", **SAID) == ("127.0.0.1", "http")


def test_the_first_address_that_no_trusted_proxy_has_is_believed(engine) -> None:
    """What is left of it the caller itself may have written."""
    assert ask(engine, "127.0.0.1,10.1.0.0/16", **SAID) == ("203.0.113.7", "https")
    assert ask(engine, "127.0.0.0/8", **SAID) == ("10.1.2.3", "https")


def test_proxies_are_addresses_and_networks() -> None:
    assert Settings().trusted_proxies == ""
    found = load({"ULAK_TRUSTED_PROXIES": "127.0.0.1, 10.0.0.0/8,::1"})
    assert found.trusted_proxies == "127.0.0.1/32,10.0.0.0/8,::1/128"
    for bad in ("proxy.local", "10.0.0.1/8", "10.0.0.0/99", ","):
        with pytest.raises(BadInput, match=r"ULAK_TRUSTED_PROXIES.*write addresses or networks"):
            load({"ULAK_TRUSTED_PROXIES": bad})
