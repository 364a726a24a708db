"""An outbox on either database, whose clock the test turns, and a remote that the test plays."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from random import Random
from typing import Any

import httpx
import pytest

from tests.conformance.stores import postgres, sqlite
from tests.databases import Databases
from ulak import Engine
from ulak.clock import ManualClock
from ulak.services.contracts.outbox.claims import Attempt
from ulak.services.contracts.outbox.desk import list_events
from ulak.services.contracts.outbox.dispatcher import Dispatcher
from ulak.services.contracts.outbox.events import Event, StatusChange, write
from ulak.services.contracts.outbox.remote import Remote
from ulak.services.contracts.outbox.settings import RemoteSettings
from ulak.services.contracts.outbox.tables import Tables

API_KEY = "k-of-the-remote"
SETTINGS = RemoteSettings(mode="hybrid", base_url="http://remote.test", api_key=API_KEY)


def make_tables(url: str) -> None:
    """What every database of these tests begins with."""
    engine = Engine(postgres(url))
    with engine, Tables(engine).transaction():
        pass


@pytest.fixture(params=["sqlite", "postgresql"])
def make_engine(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Callable[[], Engine]]:
    """Makes engines on one and the same store, each as a process of its own would."""
    made: list[Engine] = []

    def on(factory: Callable[[str], Any], place: str) -> Callable[[], Engine]:
        def make() -> Engine:
            made.append(Engine(factory(place)))
            return made[-1]

        return make

    if request.param == "sqlite":
        yield on(sqlite, str(tmp_path / "outbox.db"))
        for engine in made:
            engine.close()
        return
    databases: Databases = request.getfixturevalue("databases")
    with databases.lend(make_tables) as url:
        yield on(postgres, url)
        for engine in made:
            engine.close()


@dataclass
class Played:
    """A remote of which the test says how it answers, and that remembers what it was asked."""

    answer: Callable[[httpx.Request], httpx.Response]
    asked: list[httpx.Request] = field(default_factory=list)

    def __call__(self, request: httpx.Request) -> httpx.Response:
        self.asked.append(request)
        return self.answer(request)

    @property
    def bodies(self) -> list[dict[str, Any]]:
        return [json.loads(request.content) for request in self.asked]


def accept(request: httpx.Request) -> httpx.Response:
    """Return as a contract service does that agrees."""
    body = json.loads(request.content)
    return httpx.Response(200, json={"ok": True, "from": body["from"], "to": body["to"]})


def refuse(request: httpx.Request) -> httpx.Response:
    """Return as one that does not."""
    return httpx.Response(422, json={"ok": False, "reason": "terminal_state"})


def away(request: httpx.Request) -> httpx.Response:
    """Be unreachable."""
    raise httpx.ConnectError("connection refused")


class Outbox:
    """The outbox of one process."""

    def __init__(self, engine: Engine, *, retries: int = 0) -> None:
        self.engine = engine
        self.tables = Tables(engine)
        self.remote = Played(accept)
        settings = RemoteSettings(
            mode="hybrid", base_url=SETTINGS.base_url, api_key=API_KEY, retries=retries
        )
        self.dispatcher = Dispatcher(
            self.tables,
            Remote(settings, transport=httpx.MockTransport(self.remote)),
            uniform=Random(7).uniform,  # noqa: S311 - dice that fall the same every time
        )

    @property
    def clock(self) -> ManualClock:
        clock = self.engine.store.clock
        assert isinstance(clock, ManualClock)
        return clock

    def write(self, proof_id: int, subject: str = "42", **options: Any) -> None:
        change = StatusChange(
            proof_id,
            **{
                "tenant_id": "acme", "subject_type": "order", "subject_id": subject,
                "from_status": "pending", "to_status": "paid", "contract_version": "2025-12-28",
                **options,
            },
        )  # fmt: skip
        with self.tables.transaction() as session:
            write(session, change, now=self.tables.now)

    def send(self, limit: int = 50) -> list[Attempt]:
        return self.dispatcher.send_once(limit)

    def events(self, **options: Any) -> list[Event]:
        return list_events(self.tables, **options)

    def event(self, id: int = 1) -> Event:
        return next(event for event in self.events() if event.id == id)

    def statuses(self) -> dict[int, str]:
        return {event.id: event.status for event in self.events()}


@pytest.fixture
def outbox(make_engine: Callable[[], Engine]) -> Outbox:
    return Outbox(make_engine())
