"""The gateway: a real nginx lets the public routes through, and nothing else."""

import socket
import threading
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest

from tests.services.publishing.gateway import nginx

BACKEND, USERS = "backend", "users-api"


@contextmanager
def stand_in(name: str) -> Iterator[str]:
    """Serve what says which server was asked, and for which path."""

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            said = f"{name} {self.path} {self.headers['Host']} {self.headers['X-Forwarded-For']}"
            self.send_response(200)
            self.send_header("Content-Length", str(len(said)))
            self.end_headers()
            self.wfile.write(said.encode())

        def log_message(self, *_: object) -> None:
            """Keep quiet."""

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        thread = threading.Thread(target=server.serve_forever, daemon=True)
        thread.start()
        try:
            yield f"127.0.0.1:{server.server_port}"
        finally:
            server.shutdown()
            thread.join()


@pytest.fixture(scope="module")
def gateway(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    with ExitStack() as stack:
        servers = {
            "backend:8000": stack.enter_context(stand_in(BACKEND)),
            "users-api:8001": stack.enter_context(stand_in(USERS)),
        }
        yield stack.enter_context(nginx(tmp_path_factory.mktemp("gateway"), servers))


def ask(gateway: str, path: str) -> tuple[int, str]:
    """Ask for a path to the letter: a client would tidy it first."""
    host, _, port = gateway.removeprefix("http://").partition(":")
    with socket.create_connection((host, int(port))) as line:
        line.sendall(f"GET {path} HTTP/1.1\r\nHost: blog\r\nConnection: close\r\n\r\n".encode())
        answer = b"".join(iter(lambda: line.recv(4096), b"")).decode()
    head, _, body = answer.partition("\r\n\r\n")
    return int(head.split()[1]), body


@pytest.mark.shows("S-43")
@pytest.mark.parametrize(
    ("path", "server"),
    [
        ("/api/users", USERS),
        ("/api/users/", USERS),
        ("/api/users/login", USERS),
        ("/api/users/me/subscription-key", USERS),
        ("/api/user", USERS),
        ("/api/user/", USERS),
        ("/api/articles", BACKEND),
        ("/api/articles/a-post/publish", BACKEND),
        ("/api/articles?author=me&limit=1", BACKEND),
        ("/api/articles/users", BACKEND),
        ("/api/usersmith", BACKEND),
        ("/ready", BACKEND),
        ("/health", BACKEND),
    ],
)
def test_each_public_path_reaches_its_server_unchanged(gateway, path, server):
    assert ask(gateway, path) == (200, f"{server} {path} blog 127.0.0.1")


@pytest.mark.shows("S-43")
@pytest.mark.parametrize(
    "path",
    [
        "/internal",
        "/internal/dlq",
        "/internal/articles/7/publish",
        "//internal/dlq",
        "/./internal/dlq",
        "/%69nternal/dlq",
        "/api/../internal/dlq",
        "/api/..%2finternal/dlq",
        "/api/%2e%2e/internal/dlq",
        "/api/users/../../internal/dlq",
        "/api%2f..%2finternal/dlq",
        "/jobs",
        "/metrics",
        "/docs",
        "/",
    ],
)
def test_nothing_else_is_there_by_whatever_way(gateway, path):
    status, body = ask(gateway, path)
    assert status == 404
    assert '"code":"not_found"' in body
    assert BACKEND not in body
