"""The server of `ulak up`: uvicorn on a thread of its own, on an address that is ours first."""

from __future__ import annotations

import errno
import ipaddress
import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import uvicorn
from fastapi import FastAPI

from ulak.errors import BadInput, UlakError
from ulak.settings import http_address
from ulak.web.deadlines import TimedProtocol
from ulak.web.streams.hub import Hub
from ulak.web.waits import Waits

# How long requests that are being answered may take once the server is told to stop.
LAST_REQUESTS_S = 5
# How long a client may neither read nor answer before the system ends its connection: whatever
# was still to be sent to it would be kept for ever otherwise.
UNREAD_MS = 30_000
# How long a connection is kept without a request. Longer than clients and proxies keep theirs
# (httpx 5 s, most proxies 60 s): who closes first must be who sends, or a request that is on
# its way is lost with the connection.
IDLE_S = 75
CURE = "--port or ULAK_PORT"


class Server:
    """Serves an application beside a worker, so that neither waits for the other's loop. Of who
    calls, `trusted_proxies` are believed, and nobody else. Raises `BadInput`: somebody else listens
    on the address by now."""

    def __init__(self, app: FastAPI, bound: socket.socket, *, trusted_proxies: str = "") -> None:
        self._socket = bound
        host, port = bound.getsockname()[:2]
        with _explained(host, port):
            bound.listen()
        self.address = http_address(host, port)
        self.is_local = ipaddress.ip_address(host.partition("%")[0]).is_loopback
        self._uvicorn = uvicorn.Server(
            uvicorn.Config(
                app, log_config=None, access_log=False, lifespan="off",
                timeout_graceful_shutdown=LAST_REQUESTS_S, timeout_keep_alive=IDLE_S,
                http=TimedProtocol, ws="none",
                proxy_headers=bool(trusted_proxies), forwarded_allow_ips=trusted_proxies,
            )
        )  # fmt: skip
        self._app = app
        self._thread: threading.Thread | None = None
        self._stopping = False
        self.has_failed = False

    def start(self, on_failure: Callable[[], None]) -> None:
        """Begin to serve; `on_failure` is called if serving ends although nobody stopped it."""

        def serve() -> None:
            try:
                self._uvicorn.run(sockets=[self._socket])
            finally:
                self.has_failed = not self._stopping
                if self.has_failed:
                    on_failure()

        self._thread = threading.Thread(target=serve, name="ulak-web", daemon=True)
        self._thread.start()

    def stop(self) -> None:
        """Return the requests that have begun, end streams and waits, then stop; twice is
        nothing."""
        self._stopping = True
        self._uvicorn.should_exit = True
        # Neither a stream nor a wait has an end of its own that the server could wait for.
        for name in ("hub", "waits"):
            endless: Hub | Waits | None = getattr(self._app.state, name, None)
            if endless is not None:
                endless.close()
        if self._thread is not None:
            self._thread.join()
        self._socket.close()

    def must_not_have_failed(self) -> None:
        """Raise `UlakError` when it has ended although nobody stopped it."""
        if self.has_failed:
            raise UlakError("the API has ended by itself; the log says why")


def bind(host: str, port: int, *, cure: str = CURE) -> socket.socket:
    """Take an address before anything else is started, so that a taken port is an answer; nobody
    can connect yet. Port 0 lets the system choose one; `cure` names what chooses another. Raises
    `BadInput`: the address cannot be listened on, and why."""
    try:
        family, kind, protocol, _, address = socket.getaddrinfo(
            host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )[0]
        bound = socket.socket(family, kind, protocol)
    except (OSError, UnicodeError) as error:
        raise BadInput(f"{host!r} is not an address of this machine: {error}") from error
    try:
        with _explained(host, port, cure):
            bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            # Every connection that is accepted has it from here.
            bound.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, UNREAD_MS)
            bound.bind(address)
    except BadInput:
        bound.close()
        raise
    return bound


@contextmanager
def _explained(host: str, port: int, cure: str = CURE) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        if error.errno == errno.EADDRINUSE:
            raise BadInput(f"port {port} of {host} is taken; choose another with {cure}") from error
        raise BadInput(f"cannot listen on {host} port {port}: {error.strerror}") from error
