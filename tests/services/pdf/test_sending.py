"""Extra headers: sent to their host, and never to another, nor shown to anybody."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Mapping

import pytest

from tests.services.pdf.test_fetching import (
    EVERYTHING,
    LOOPBACK,
    Resolver,
    Server,
    answer,
    get,
    redirect,
)
from ulak.errors import BadInput
from ulak.services.pdf.configuration import condition, fetcher_of
from ulak.services.pdf.fetching import AllowedFetcher, ExtraHeaders
from ulak.services.pdf.security.urls import parse
from ulak.services.pdf.settings import load
from ulak.settings import Settings

TOKEN = "tok-4711-tell-nobody"  # noqa: S105 - of a server of the test's own
HEADERS = {"Authorization": f"Bearer {TOKEN}"}
MARK = f"authorization: bearer {TOKEN}\r\n"


def fetcher(*internal: str, to: Mapping[str, Mapping[str, str]]) -> AllowedFetcher:
    return AllowedFetcher(
        EVERYTHING, internal_hosts=internal, extra_headers=to, resolve=Resolver(LOOPBACK)
    )


@pytest.mark.shows("P-54")
def test_headers_are_sent_to_their_host_and_not_to_another() -> None:
    async def story() -> None:
        async with Server().running() as server:
            server.answers["/a"] = answer(b"a")
            to = {f"Files.test:{server.port}": HEADERS}
            asking = fetcher("files.test", "other.test", to=to)
            await get(asking, f"http://files.test:{server.port}/a", accept="image/*")
            await get(asking, f"http://other.test:{server.port}/a")
            assert MARK in server.asked[0]
            assert "accept: image/*\r\n" in server.asked[0]
            assert TOKEN not in server.asked[1]

    asyncio.run(story())


@pytest.mark.shows("P-54")
def test_a_redirect_takes_nothing_along_to_another_host_or_port() -> None:
    async def story() -> None:
        async with Server().running() as server, Server().running() as elsewhere:
            here, other = server.port, elsewhere.port
            server.answers |= {
                "/same": redirect("/there"),
                "/host": redirect(f"http://other.test:{here}/there"),
                "/port": redirect(f"http://files.test:{other}/there"),
                "/there": answer(b"there"),
            }
            elsewhere.answers["/there"] = answer(b"there")
            asking = fetcher("files.test", "other.test", to={f"files.test:{here}": HEADERS})
            for path in ("/same", "/host", "/port"):
                fetched = await get(asking, f"http://files.test:{here}{path}")
                assert fetched.body == b"there"
            said = [TOKEN in head for head in server.asked]
            assert said == [True, True, True, False, True], "of both hops to one host, of one else"
            assert [TOKEN in head for head in elsewhere.asked] == [False]

    asyncio.run(story())


def test_a_public_host_gets_nothing_in_the_clear(monkeypatch: pytest.MonkeyPatch) -> None:
    # The server of the test is on loopback, and only here counts as public.
    monkeypatch.setattr("ulak.services.pdf.fetching.is_public", lambda address: True)

    async def story() -> None:
        async with Server().running() as server:
            asking = fetcher(to={f"files.test:{server.port}": HEADERS})
            await get(asking, f"http://files.test:{server.port}/a")
            assert len(server.asked) == 1
            assert TOKEN not in server.asked[0]

    asyncio.run(story())


@pytest.mark.parametrize(
    ("url", "is_internal", "is_sent"),
    [
        ("https://files.test/a", False, True),
        ("https://FILES.test:443/a", False, True),
        ("http://files.test/a", False, False),
        ("http://files.test/a", True, True),
        ("https://files.test:8443/a", False, False),
        ("https://files.test.evil.test/a", False, False),
        ("https://sub.files.test/a", False, False),
    ],
)
def test_nothing_is_sent_in_the_clear_or_to_a_host_that_looks_alike(
    url: str, is_internal: bool, is_sent: bool
) -> None:
    extra = ExtraHeaders({"files.test": HEADERS})
    assert bool(extra.find(parse(url), is_internal=is_internal)) == is_sent
    assert TOKEN not in repr(extra)


@pytest.mark.parametrize(
    "said",
    [
        TOKEN,
        f'["{TOKEN}"]',
        json.dumps({"files.test": TOKEN}),
        json.dumps({"files.test/path": HEADERS}),
        json.dumps({"user@files.test": HEADERS}),
        json.dumps({"files.test": {"Host": TOKEN}}),
        json.dumps({"files.test": {"Cookie": TOKEN}}),
        json.dumps({"files.test": {"Not a name": TOKEN}}),
        json.dumps({"files.test": {"X-Token": f"{TOKEN}\r\nX-More: 1"}}),
        json.dumps({"files.test": {"X-Token": [TOKEN]}}),
    ],
)
def test_what_cannot_be_sent_stops_the_start_and_is_not_told(said: str) -> None:
    with pytest.raises(BadInput, match="PDF_EXTRA_HEADERS") as caught:
        load({"PDF_EXTRA_HEADERS": said})
    assert TOKEN not in str(caught.value)


@pytest.mark.shows("P-54")
@pytest.mark.plants_secrets
def test_the_setting_is_in_force_and_shown_to_nobody() -> None:
    environ = {
        "PDF_EXTRA_HEADERS": json.dumps({"127.0.0.1:{port}": HEADERS}),
        "PDF_URL_ALLOWLIST": json.dumps(list(EVERYTHING)),
        "PDF_INTERNAL_HOSTS": "127.0.0.1",
    }

    async def story() -> None:
        async with Server().running() as server:
            said = environ["PDF_EXTRA_HEADERS"].replace("{port}", str(server.port))
            config = load({**environ, "PDF_EXTRA_HEADERS": said})
            asking = fetcher_of(config)
            await asking.fetch(f"http://127.0.0.1:{server.port}/a", method="GET", headers={})
            assert MARK in server.asked[0]
            assert TOKEN not in repr(config)
            shown = condition(Settings(), {**environ, "PDF_EXTRA_HEADERS": said})
            assert shown.settings["PDF_EXTRA_HEADERS"] == ("set", "PDF_EXTRA_HEADERS")
            assert TOKEN not in repr(shown)

    asyncio.run(story())
