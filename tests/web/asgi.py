"""One request to an application, without a network; a stream is left after its first words."""

import json as codec
from dataclasses import dataclass
from typing import Any
from urllib.parse import urlsplit

from tests.web.discretion import must_be_discreet


@dataclass
class Answer:
    """What came back."""

    status: int
    headers: dict[str, str]
    body: bytes


async def call(
    app: Any, method: str, url: str, *, headers: dict[str, str], json: Any = None
) -> Answer:
    """Ask, and hang up when the answer is there or begins to be endless.

    An answer that tells a secret is no answer.
    """
    import asyncio

    parts = urlsplit(url)
    body = b"" if json is None else codec.dumps(json).encode()
    sent = {"host": "ulak", **{name.lower(): value for name, value in headers.items()}}
    if json is not None:
        sent |= {"content-type": "application/json", "content-length": str(len(body))}
    scope = {
        "type": "http", "asgi": {"version": "3.0"}, "http_version": "1.1", "method": method,
        "scheme": "http", "path": parts.path, "raw_path": parts.path.encode(),
        "query_string": parts.query.encode(), "root_path": "",
        "headers": [(name.encode(), value.encode()) for name, value in sent.items()],
        "client": ("127.0.0.1", 1), "server": ("ulak", 80), "state": {},
    }  # fmt: skip
    answer = Answer(0, {}, b"")
    over = asyncio.Event()
    questions = [{"type": "http.request", "body": body, "more_body": False}]

    async def receive() -> dict[str, Any]:
        if questions:
            return questions.pop()
        await over.wait()
        return {"type": "http.disconnect"}

    async def send(message: dict[str, Any]) -> None:
        if message["type"] == "http.response.start":
            answer.status = message["status"]
            answer.headers = {k.decode(): v.decode() for k, v in message["headers"]}
            if answer.headers.get("content-type", "").startswith("text/event-stream"):
                over.set()
        else:
            answer.body += message.get("body", b"")
            if not message.get("more_body"):
                over.set()

    async with asyncio.timeout(20):
        await app(scope, receive, send)
    must_be_discreet(
        method, url, sent=(headers, json), status=answer.status,
        answer=(answer.headers.items(), answer.body),
    )  # fmt: skip
    return answer
