"""Somebody who is told of the ends of jobs, on loopback."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import NamedTuple

HANGS = 0
"""Instead of a status: no answer comes until the receiver is closed."""


class Told(NamedTuple):
    """One request, as it came."""

    method: str
    path: str
    headers: dict[str, str]
    """With names in lower case."""
    body: bytes


class Receiver:
    """Writes down what it is told; answers with the statuses it was given, then with 204."""

    def __init__(self, *statuses: int) -> None:
        self.told: list[Told] = []
        self._statuses = list(statuses)
        self._lock = threading.Lock()
        self._over = threading.Event()
        self._server = ThreadingHTTPServer(("127.0.0.1", 0), self._handler())
        self._server.daemon_threads = True
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.01,))
        self._thread.start()

    def url(self, path: str = "/done") -> str:
        return f"http://127.0.0.1:{self._server.server_port}{path}"

    @property
    def pattern(self) -> str:
        """What an allow-list says of it."""
        return rf"http://127\.0\.0\.1:{self._server.server_port}/.*"

    def close(self) -> None:
        self._over.set()
        self._server.shutdown()
        self._thread.join()
        self._server.server_close()

    def _handler(self) -> type[BaseHTTPRequestHandler]:
        receiver = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
                heads = {name.lower(): value for name, value in self.headers.items()}
                with receiver._lock:
                    receiver.told.append(Told(self.command, self.path, heads, body))
                    status = receiver._statuses.pop(0) if receiver._statuses else 204
                if status == HANGS:
                    receiver._over.wait()
                    return
                self.send_response(status)
                if 300 <= status < 400:
                    self.send_header("Location", receiver.url("/elsewhere"))
                self.send_header("Content-Length", "0")
                self.end_headers()

            def do_GET(self) -> None:
                self.do_POST()

            def log_message(self, *_: object) -> None:
                pass

        return Handler


@contextmanager
def receiving(*statuses: int) -> Iterator[Receiver]:
    receiver = Receiver(*statuses)
    try:
        yield receiver
    finally:
        receiver.close()
