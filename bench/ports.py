"""Ports of this machine that nobody else is given."""

from __future__ import annotations

import atexit
import socket


def reserve_port() -> int:
    """Return a port on which nothing listens, at 127.0.0.1.

    While this process lives the system gives it to nobody who asks for any port. Who asks for it
    by its number gets it, as servers do (SO_REUSEADDR).
    """
    held = socket.socket()
    held.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    held.bind(("127.0.0.1", 0))
    atexit.register(held.close)  # which holds it until then
    port: int = held.getsockname()[1]
    return port
