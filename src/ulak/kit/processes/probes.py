"""What a worker without an API shows on this machine: its metrics, and whether it can work."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http import HTTPStatus
from socketserver import ThreadingMixIn
from threading import Thread
from typing import TYPE_CHECKING, Any
from wsgiref.simple_server import WSGIRequestHandler, WSGIServer, make_server

from ulak.errors import BadInput, NotSupported

if TYPE_CHECKING:
    from ulak.web.metrics import Metrics

HOST = "127.0.0.1"

Unready = Callable[[], str | None]
"""Says what a process lacks before it can work; None when nothing."""


def import_metrics() -> type[Metrics]:
    """Return the class of metrics. Raises `NotSupported`: the extra is not installed."""
    try:
        from ulak.web.metrics import Metrics
    except ModuleNotFoundError as error:
        raise NotSupported(
            f"--metrics-port needs the web extra ({error.name} is missing); pip install 'ulak[web]'"
        ) from error
    return Metrics


@contextmanager
def serving_probes(metrics: Metrics, port: int, unready: Unready) -> Iterator[str]:
    """Show metrics, and whether this process can work, while the block lasts; return the address.
    Nobody is asked who they are, so no other machine can reach it. Raises `BadInput`: the port
    cannot be listened on."""

    def answer(environment: dict[str, Any], start: Callable[..., object]) -> list[bytes]:
        status, kind, body = _answer(environment["PATH_INFO"], metrics, unready)
        headers = [("Content-Type", kind), ("Cache-Control", "no-store")]
        start(f"{status.value} {status.phrase}", headers)
        return [] if environment["REQUEST_METHOD"] == "HEAD" else [body]

    try:
        server = make_server(HOST, port, answer, _Server, _Silent)
    except OSError as error:
        raise BadInput(
            f"cannot show metrics on {HOST} port {port}: {error.strerror}; "
            "choose another with --metrics-port"
        ) from error
    thread = Thread(target=server.serve_forever, name="ulak-probes", daemon=True)
    thread.start()
    try:
        yield f"http://{HOST}:{server.server_port}"
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


def _answer(path: str, metrics: Metrics, unready: Unready) -> tuple[HTTPStatus, str, bytes]:
    if path == "/health/live":
        return _document(HTTPStatus.OK, {"status": "live"})
    if path != "/health/ready":
        return HTTPStatus.OK, "text/plain; version=0.0.4; charset=utf-8", metrics.text()
    lacking = unready()
    if lacking is None:
        return _document(HTTPStatus.OK, {"status": "ready"})
    from ulak.web import problem_document  # there, as the class of metrics is

    status = HTTPStatus.SERVICE_UNAVAILABLE
    problem = problem_document(status, "not-ready", detail=lacking)
    return _document(status, problem, kind="application/problem+json")


def _document(
    status: HTTPStatus, document: dict[str, Any], *, kind: str = "application/json"
) -> tuple[HTTPStatus, str, bytes]:
    return status, kind, json.dumps(document).encode()


class _Server(ThreadingMixIn, WSGIServer):
    daemon_threads = True


class _Silent(WSGIRequestHandler):
    timeout = 30.0

    def log_message(self, *_: object) -> None:
        """Leave the log to what matters."""
