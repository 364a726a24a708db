"""A body that is too large is refused before it is read, and before anybody is asked."""

import asyncio
from typing import Any

import pytest

import ulak.web
from ulak.web.middleware import LARGEST


def send(app: Any, chunks: list[bytes], headers: list[tuple[bytes, bytes]]) -> tuple[int, int]:
    """Send a body in chunks; answers the status, and how many chunks were taken."""
    scope = {
        "type": "http", "asgi": {"version": "3.0"}, "http_version": "1.1", "method": "POST",
        "scheme": "http", "path": "/jobs", "raw_path": b"/jobs", "query_string": b"",
        "root_path": "", "headers": [(b"content-type", b"application/json"), *headers],
        "client": ("127.0.0.1", 1), "server": ("ulak", 80), "state": {},
    }  # fmt: skip
    waiting, status = list(chunks), 0

    async def receive() -> dict[str, Any]:
        body = waiting.pop(0)
        return {"type": "http.request", "body": body, "more_body": bool(waiting)}

    async def hear(message: dict[str, Any]) -> None:
        nonlocal status
        status = message.get("status", status)

    asyncio.run(app(scope, receive, hear))
    return status, len(chunks) - len(waiting)


@pytest.fixture
def app(engine: ulak.Engine) -> Any:
    return ulak.web.app(engine, identity=None)


def test_a_length_that_is_too_large_is_refused_unread(app: Any) -> None:
    length = str(LARGEST + 1).encode()
    assert send(app, [b"{"], [(b"content-length", length)]) == (413, 0)


def test_a_body_without_a_length_is_refused_when_it_has_become_too_large(app: Any) -> None:
    chunk = b" " * (LARGEST // 4)
    assert send(app, [chunk] * 20, []) == (413, 5)


def test_the_largest_body_is_read(app: Any) -> None:
    body = b'{"flow": "greet", "payload": ["ada"]}'.ljust(LARGEST)
    assert send(app, [body], [(b"content-length", str(LARGEST).encode())]) == (201, 1)
