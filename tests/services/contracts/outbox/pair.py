"""Two contract services: one here, and a remote that is served over HTTP on this machine."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from dataclasses import replace
from datetime import timedelta
from typing import Any

from tests.services.contracts.house import House
from ulak.clock import Clock
from ulak.engine.engine import Engine
from ulak.service import Service
from ulak.services.contracts.outbox import modes
from ulak.services.contracts.outbox.desk import list_events
from ulak.services.contracts.outbox.dispatcher import AT_ONCE, Dispatcher
from ulak.services.contracts.outbox.events import Event
from ulak.services.contracts.outbox.outcomes import Fault, Reply
from ulak.services.contracts.outbox.remote import Remote, Session
from ulak.services.contracts.outbox.settings import RemoteSettings
from ulak.services.contracts.outbox.tables import Tables
from ulak.services.contracts.scopes import CONTRACT_READ, CONTRACT_TRANSITION
from ulak.web.server import Server
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
            attach=lambda *_: None,
            routes=lambda engine, _: modes.routes_of(engine, self.settings),
            scopes=(CONTRACT_READ, CONTRACT_TRANSITION),
        )

    @property
    def tables(self) -> Tables:
        return Tables(self.engine)

    def dispatcher(self) -> Dispatcher:
        return Dispatcher(self.tables, Remote(self.settings))

    def events(self) -> list[Event]:
        return list_events(self.tables, limit=1000)


def towards(address: str, **options: Any) -> RemoteSettings:
    """Return settings for a remote that answers late on a busy machine."""
    return replace(SETTINGS, **{"timeout": PATIENCE, "base_url": address, **options})


@contextmanager
def served(house: House) -> Iterator[str]:
    """Serve a house on an address of this machine."""
    server = Server(house.app, host="127.0.0.1", port=0)
    server.start(lambda: None)
    try:
        yield server.address
    finally:
        server.stop()


def dispatch_and_die(url: str, address: str) -> None:
    """Send what is due, and die when the remote has answered and nobody has written that down."""

    class Dying(Remote):
        @asynccontextmanager
        async def session(self) -> AsyncIterator[Session]:
            async with super().session() as session:
                yield DiesWhenAnswered(session)

    class DiesWhenAnswered(Session):
        def __init__(self, session: Session) -> None:
            self._session = session

        async def ask(self, *asked: Any, **options: Any) -> Reply | Fault:
            reply = await self._session.ask(*asked, **options)
            assert isinstance(reply, Reply), reply
            print(reply.status, reply.body.decode(), flush=True)  # noqa: T201 - its last words
            os.kill(os.getpid(), signal.SIGKILL)
            return reply

    with Engine(store_of(url)) as engine:
        Dispatcher(Tables(engine), Dying(towards(address))).send_once()


def dispatch_for_ever(url: str, address: str) -> None:
    """Send until somebody kills this process, with leases that lapse soon."""
    with Engine(store_of(url)) as engine:
        remote = Remote(towards(address, timeout=timedelta(seconds=2)))
        dispatcher = Dispatcher(
            Tables(engine), remote, uniform=lambda low, high: min(high, 0.05),
            slack=timedelta(milliseconds=200),
        )  # fmt: skip
        print("begun", flush=True)  # noqa: T201 - for whoever started it
        while True:
            dispatcher.send_once(limit=AT_ONCE)
            time.sleep(0.01)
