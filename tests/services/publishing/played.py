"""A backend that a test plays: a real HTTP server whose answers the test says."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from uuid import UUID, uuid5

KEYS = {name: f"ulak_{name}_key" for name in ("moderation", "preview", "publish", "dlq")}
POST_ID = "0198c0de-0000-7000-8000-000000000001"
AUTHOR_ID = "0198c0de-0000-7000-8000-00000000000a"
PUBLICATION_ID = "5f0c9f0e-3f57-4c8e-9f0a-0e5a5b1f7c11"


@dataclass(frozen=True)
class Asked:
    """A request that came."""

    method: str
    path: str
    body: dict[str, Any]
    headers: dict[str, str]

    @property
    def step(self) -> str:
        """The last word of the path, `read` for the post itself."""
        return "read" if self.method == "GET" else self.path.rpartition("/")[2]


@dataclass(frozen=True)
class Answer:
    """What is answered; without a status the connection is cut."""

    status: int = 200
    body: Any = None
    headers: dict[str, str] = field(default_factory=dict)
    wait: threading.Event | None = None


def done(**data: Any) -> Answer:
    return Answer(200, {"success": True, "message": "", "data": data})


def refused(status: int, code: str, **headers: str) -> Answer:
    body = {"success": False, "code": code, "message": "it was refused", "detail": "refused"}
    return Answer(status, body, {name.replace("_", "-"): text for name, text in headers.items()})


def post(**changes: Any) -> dict[str, Any]:
    """A post as GET /internal/articles/{id} has it."""
    return {
        "id": POST_ID, "slug": "a-post", "title": "A post", "author_id": AUTHOR_ID,
        "status": "PENDING_PUBLISH", "publication_id": PUBLICATION_ID, "revision": 1,
        "verdict": None, "preview_url": None,
    } | changes  # fmt: skip


def payload(task: str = "post.moderate", **changes: Any) -> dict[str, Any]:
    """What a task of that post is told."""
    return {
        "event_id": str(uuid5(UUID(PUBLICATION_ID), f"{task}:0")), "publication_id": PUBLICATION_ID,
        "post_id": POST_ID, "author_id": AUTHOR_ID, "requested_by": AUTHOR_ID, "revision": 1,
        "enqueued_at": "2026-01-01T00:00:00.000000Z", "schema": 1,
    } | changes  # fmt: skip


class Played:
    """The server: `says` is asked for each answer."""

    def __init__(self, says: Callable[[Asked], Answer]) -> None:
        self.says = says
        self.asked: list[Asked] = []
        self.url = ""

    @property
    def steps(self) -> list[str]:
        return [asked.step for asked in self.asked]


@contextmanager
def playing(says: Callable[[Asked], Answer]) -> Iterator[Played]:
    """Serve on a port of this machine for the length of a block."""
    played = Played(says)

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def answer(self) -> None:
            length = int(self.headers.get("Content-Length", 0))
            body = json.loads(self.rfile.read(length) or b"{}")
            asked = Asked(self.command, self.path, body, dict(self.headers))
            played.asked.append(asked)
            answer = played.says(asked)
            if answer.wait is not None:
                answer.wait.wait()
            if not answer.status:
                self.close_connection = True
                return
            raw = isinstance(answer.body, bytes)
            content = answer.body if raw else json.dumps(answer.body).encode()
            self.send_response(answer.status)
            for name, text in answer.headers.items():
                self.send_header(name, text)
            self.send_header("Content-Length", str(len(content)))
            self.end_headers()
            self.wfile.write(content)

        do_GET = do_POST = do_PUT = answer  # noqa: N815 - as the server asks for them

        def log_message(self, *_: Any) -> None:
            """Say nothing."""

    class Server(ThreadingHTTPServer):
        daemon_threads = True

        def handle_error(self, *_: Any) -> None:
            """Say nothing: clients give up when a test says so."""

    with Server(("127.0.0.1", 0), Handler) as server:
        played.url = f"http://127.0.0.1:{server.server_port}"
        thread = threading.Thread(target=server.serve_forever, args=(0.01,))
        thread.start()
        yield played
        server.shutdown()
        thread.join()
