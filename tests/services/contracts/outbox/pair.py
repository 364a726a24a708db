"""Two contract services: one here, and a remote that is served over HTTP on this machine."""

from __future__ import annotations

import os
import signal
from collections import Counter
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import replace
from datetime import timedelta
from typing import Any

from fastapi import FastAPI

from tests.services.contracts.house import House
from ulak import Backoff, WorkerSettings
from ulak.clock import Clock
from ulak.engine.engine import Engine
from ulak.service import Service
from ulak.services.contracts import CONTRACT_READ, CONTRACT_TRANSITION
from ulak.services.contracts.ledger import HANDLER
from ulak.services.contracts.outbox import modes
from ulak.services.contracts.outbox.desk import Desk, Event
from ulak.services.contracts.outbox.remote import Fault, Remote, Reply
from ulak.services.contracts.outbox.sending import declare
from ulak.services.contracts.outbox.settings import RemoteSettings
from ulak.web.server import Server, bind
from ulak.wiring import store_of

NOWHERE = "http://127.0.0.1:1"
"""An address where nobody listens."""
PATIENCE = timedelta(seconds=30)
SETTINGS = RemoteSettings(
    mode="hybrid", base_url=NOWHERE, api_key="service", retries=0
)  # `service` is a caller that tests/web/people.py knows


class Home(House):
    """A house whose mode is that of the settings."""

    def __init__(self, url: str, settings: RemoteSettings, *, clock: Clock | None = None) -> None:
        self.settings = settings
        super().__init__(url, clock=clock)

    def _service(self) -> Service:
        return Service(
            "contracts",
            attach=lambda engine, _: modes.attach(engine, self.settings),
            routes=lambda engine, decider: modes.routes_of(engine, self.settings, decider),
            scopes=(CONTRACT_READ, CONTRACT_TRANSITION),
        )

    def send(self) -> Counter[str]:
        """Send what is due; return how many deliveries came into which state."""
        return self.engine.outbox.deliver(HANDLER)

    def events(self) -> list[Event]:
        return Desk(self.engine).events(limit=1000)


def towards(address: str, **options: Any) -> RemoteSettings:
    """Return settings for a remote that answers late on a busy machine."""
    return replace(SETTINGS, **{"timeout": PATIENCE, "base_url": address, **options})


def served(house: House) -> AbstractContextManager[str]:
    """Serve a house on an address of this machine."""
    return serving(house.app)


@contextmanager
def serving(app: FastAPI) -> Iterator[str]:
    """Serve an application on an address of this machine."""
    server = Server(app, bind("127.0.0.1", 0))
    server.start(lambda: None)
    try:
        yield server.address
    finally:
        server.stop()


def dispatch_and_die(url: str, address: str) -> None:
    """Send what is due, and die when the remote has answered and nobody has written that down."""

    class Dying(Remote):
        def ask(self, *asked: Any, **options: Any) -> Reply | Fault:
            reply = super().ask(*asked, **options)
            assert isinstance(reply, Reply), reply
            print(reply.status, reply.body.decode(), flush=True)  # noqa: T201 - its last words
            os.kill(os.getpid(), signal.SIGKILL)
            return reply

    with Engine(store_of(url)) as engine:
        declare(engine, Dying(towards(address)))
        engine.outbox.deliver(HANDLER)


def dispatch_for_ever(url: str, address: str) -> None:
    """Send until somebody kills this process, by a worker whose lease lapses soon."""
    with Engine(store_of(url)) as engine:
        soon = Backoff(1000, delays=[timedelta(milliseconds=50)] * 1000)
        declare(engine, Remote(towards(address, timeout=timedelta(seconds=2))), retry=soon)
        with engine.working(WorkerSettings(lease=timedelta(seconds=1.5))):
            print("begun", flush=True)  # noqa: T201 - for whoever started it
            signal.pause()
