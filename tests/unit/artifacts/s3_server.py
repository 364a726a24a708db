"""An emulator of S3 in a process of its own: moto's server, a stand-in for a real bucket.

Run as a program it prints its URL and serves until its standard input ends.
"""

import os
import subprocess
import sys
import threading
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from wsgiref.types import StartResponse, WSGIApplication, WSGIEnvironment

import httpx

BUCKET = "artifacts"
A_PAGE = 10
"""How much a list answers at once; a real server would a thousand."""


@dataclass(frozen=True)
class Emulator:
    """A server that runs, with an empty bucket."""

    url: str
    process: subprocess.Popen[str]

    def stop(self) -> None:
        """Let it go down; may be called twice."""
        self.process.kill()
        self.process.wait()


@contextmanager
def emulator() -> Iterator[Emulator]:
    """Start a server, and end it."""
    with subprocess.Popen(
        [sys.executable, __file__],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
        env={**os.environ, "MOTO_S3_DEFAULT_MAX_KEYS": str(A_PAGE)},
    ) as process:
        try:
            url = process.stdout.readline().strip()
            httpx.put(f"{url}/{BUCKET}").raise_for_status()
            yield Emulator(url, process)
        finally:
            process.kill()


def one_at_a_time(app: WSGIApplication) -> WSGIApplication:
    """Let each request end before the next: moto shows an object before it has its metadata."""
    lock = threading.Lock()

    def serve(environ: WSGIEnvironment, start: StartResponse) -> Iterable[bytes]:
        with lock:
            return list(app(environ, start))

    return serve


if __name__ == "__main__":
    from moto.moto_server.werkzeug_app import (
        DomainDispatcherApplication,
        MotoRequestHandler,
        create_backend_app,
    )
    from werkzeug.serving import make_server

    app = one_at_a_time(DomainDispatcherApplication(create_backend_app))
    server = make_server("127.0.0.1", 0, app, threaded=True, request_handler=MotoRequestHandler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    print(f"http://{server.host}:{server.port}", flush=True)  # noqa: T201 - how a child says where it is
    sys.stdin.read()
