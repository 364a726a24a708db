"""The metrics of a process that has no API of its own."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from ulak.engine.engine import Engine
from ulak.errors import BadInput, NotSupported

HOST = "127.0.0.1"


@contextmanager
def serving(engine: Engine, port: int | None) -> Iterator[str | None]:
    """Show an engine's metrics on this machine while the block lasts; answers the address.

    Nobody is asked who they are, so no other machine can reach it. Without a port nothing is shown.

    Raises:
        NotSupported: the extra is not installed.
        BadInput: the port cannot be listened on.
    """
    if port is None:
        yield None
        return
    try:
        from prometheus_client import start_http_server

        from ulak.web.metrics import Metrics
    except ModuleNotFoundError as error:
        raise NotSupported(
            f"--metrics-port needs the web extra ({error.name} is missing); pip install 'ulak[web]'"
        ) from error
    metrics = Metrics(engine)
    try:
        server, thread = start_http_server(port, addr=HOST, registry=metrics.registry)
    except OSError as error:
        metrics.close()
        raise BadInput(
            f"cannot show metrics on {HOST} port {port}: {error.strerror}; "
            "choose another with --metrics-port"
        ) from error
    try:
        yield f"http://{HOST}:{server.server_port}/metrics"
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
        metrics.close()
