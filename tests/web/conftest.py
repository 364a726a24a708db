"""The application of an engine on memory, asked as a client would ask it."""

import asyncio
from collections.abc import Callable, Iterator
from typing import Any

import httpx
import pytest

import ulak
import ulak.web
from tests import loop_watch
from tests.web.discretion import must_be_discreet


@pytest.fixture(autouse=True)
def free_loop() -> Iterator[None]:
    """Fail a test in which ulak waits for a store on an event loop, where it stops all requests."""
    with loop_watch.watching() as found:
        yield
    assert found == []


@pytest.fixture
def engine() -> Iterator[ulak.Engine]:
    made = ulak.connect("memory://")

    @made.job
    def greet(name: str) -> str:
        return f"hello {name}"

    made.greet = greet  # for tests that submit
    yield made
    made.close()


@pytest.fixture
def ask() -> Callable[..., httpx.Response]:
    """Send one request to an application, without a network between; no answer tells a secret."""

    def send(app: Any, path: str, *, method: str = "GET", **options: Any) -> httpx.Response:
        async def one() -> httpx.Response:
            # What an application raises must come back as an answer, as over a network.
            transport = httpx.ASGITransport(app, raise_app_exceptions=False)
            async with httpx.AsyncClient(transport=transport, base_url="http://ulak") as client:
                answer = await client.request(method, path, **options)
            must_be_discreet(
                method, path, sent=(options.get("headers") or {}, options.get("json")),
                status=answer.status_code, answer=(answer.headers.multi_items(), answer.content),
            )  # fmt: skip
            return answer

        return asyncio.run(one())

    return send
