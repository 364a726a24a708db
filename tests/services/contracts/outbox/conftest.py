"""An outbox on either database, whose clock the test turns, and a remote that the test plays."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.conformance.stores import postgres, sqlite
from tests.databases import Databases
from ulak import Engine
from ulak.clock import ManualClock
from ulak.services.contracts.ledger import HANDLER, SCHEMA, STATUS_CHANGE, Proof
from ulak.services.contracts.outbox.desk import Desk, Event, emit
from ulak.services.contracts.outbox.remote import Remote
from ulak.services.contracts.outbox.sending import declare
from ulak.services.contracts.outbox.settings import RemoteSettings
from ulak.tables import Tables

API_KEY = "k-of-the-remote"
SETTINGS = RemoteSettings(mode="hybrid", base_url="http://remote.test", api_key=API_KEY)


def make_tables(url: str) -> None:
    """What every database of these tests begins with."""
    with Engine(postgres(url)) as engine:
        Tables(engine, SCHEMA).ensure()


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


def proof(proof_id: int, subject: str = "42", **options: Any) -> Proof:
    """Return the proof of a change, as far as an event tells of it."""
    told = {
        "tenant_id": "acme", "actor_id": None, "source": "", "subject_type": "order",
        "from_status": "pending", "to_status": "paid", "request_id": None,
        "contract_version": "2025-12-28", **options,
    }  # fmt: skip
    return Proof(
        proof_id=proof_id, occurred_at=0, kind=STATUS_CHANGE, subject_id=subject, payload="{}",
        idempotency_key=None, request_hash="", prev_hash="", hash="", **told,
    )  # fmt: skip


class Outbox:
    """The outbox of one process."""

    def __init__(self, engine: Engine, *, retries: int = 0) -> None:
        self.engine = engine
        self.tables = Tables(engine, SCHEMA)
        self.desk = Desk(engine)
        self.remote = Played(accept)
        settings = RemoteSettings(
            mode="hybrid", base_url=SETTINGS.base_url, api_key=API_KEY, retries=retries
        )
        self.asking = Remote(settings, transport=httpx.MockTransport(self.remote))
        declare(engine, self.asking)

    @property
    def clock(self) -> ManualClock:
        clock = self.engine.store.clock
        assert isinstance(clock, ManualClock)
        return clock

    def write(self, proof_id: int, subject: str = "42", **options: Any) -> None:
        with self.tables.writing() as connection:
            emit(self.engine, connection, proof(proof_id, subject, **options))

    def send(self, limit: int = 50) -> Counter[str]:
        """Send what is due; return how many deliveries came into which state."""
        return self.engine.outbox.deliver(HANDLER, limit=limit)

    def events(self, **options: Any) -> list[Event]:
        return self.desk.events(**options)

    def event(self, proof_id: int = 1) -> Event:
        ends = f":{proof_id}"
        return next(each for each in self.events() if each.idempotency_key.endswith(ends))

    def statuses(self) -> dict[int, str]:
        return {event.body["meta"]["local_proof_id"]: event.status for event in self.events()}


@pytest.fixture
def outbox(make_engine: Callable[[], Engine]) -> Outbox:
    return Outbox(make_engine())
