"""Events of the release before are moved to the engine's deliveries, beside its processes."""

import json
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, suppress
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.conformance.stores import make_schema
from tests.scenario.doubles import eventually
from tests.services.contracts.house import House, backdoor
from tests.services.contracts.outbox.conftest import SETTINGS, accept, proof
from tests.services.contracts.test_schema import make_by_hand
from ulak.clock import ManualClock, micros
from ulak.errors import Contended
from ulak.services.contracts.ledger import HANDLER, SCHEMA
from ulak.services.contracts.outbox import figures
from ulak.services.contracts.outbox.desk import Desk, emit, key_of
from ulak.services.contracts.outbox.remote import Remote
from ulak.services.contracts.outbox.sending import declare
from ulak.tables import Tables

NOW = datetime(2026, 1, 1, tzinfo=UTC)
MINUTE = micros(timedelta(minutes=1))
DAY = micros(timedelta(days=1))

# --- statements of the release before, word for word ---------------------------------------

WRITE = """
INSERT INTO {schema}.hos_outbox_events (tenant_id, event_type, aggregate, payload,
    idempotency_key, status, available_at, give_up_at, created_at, updated_at)
VALUES (?, ?, ?, ?, ?, 'pending', ?, ?, ?, ?)
"""
READ = [
    """
SELECT count(*), min(created_at) FROM {schema}.hos_outbox_events
WHERE status IN ('pending', 'processing') AND discarded_at IS NULL
""",
    """
SELECT status, count(*) FROM {schema}.hos_outbox_events
WHERE status IN ('rejected', 'dead') AND discarded_at IS NULL GROUP BY status
""",
    "SELECT count(*) FROM {schema}.hos_outbox_events WHERE drift IS NOT NULL",
    """
SELECT count(*), count(CASE WHEN failed_at > 0 THEN 1 END) FROM {schema}.hos_outbox_events
WHERE attempted_at > 0
""",
    """
SELECT duration_us FROM {schema}.hos_outbox_events WHERE attempted_at > 0
ORDER BY duration_us LIMIT 1 OFFSET 0
""",
    """
SELECT id, tenant_id, event_type, aggregate, payload, idempotency_key, status, attempts,
    last_error, available_at, lease_until, owner_token, give_up_at, sent_at, response_status,
    response_json, drift, discarded_at, acts, created_at, updated_at
FROM {schema}.hos_outbox_events WHERE discarded_at IS NULL AND id > 0 ORDER BY id LIMIT 50
""",
]
TAKE = "UPDATE {schema}.hos_outbox_events SET status = 'processing' WHERE id = ? RETURNING id"


@pytest.fixture(params=["sqlite", "postgres"])
def url(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[str]:
    """A store that has never heard of contracts."""
    if request.param == "sqlite":
        yield f"sqlite:///{tmp_path / 'contracts.db'}"
        return
    with request.getfixturevalue("databases").lend(make_schema) as url:
        yield url


def payload(number: int, subject: str) -> str:
    """The body of an event as the release before wrote it."""
    members = {
        "idempotency_key": key_of(number), "tenant_id": "acme",
        "subject_ref": {"type": "order", "id": subject}, "from": "pending", "to": "paid",
        "meta": {"local_proof_id": number, "local_contract_version": "2025-12-28", "t": "\u00fc\n"},
    }  # fmt: skip
    return json.dumps(members, ensure_ascii=False, separators=(",", ":"))


def values(number: int, subject: str, now: int) -> tuple[Any, ...]:
    return (
        "acme", "status_change", f"order:{subject}", payload(number, subject), key_of(number), now,
        now + 3 * DAY, now, now,
    )  # fmt: skip


def fill(house: House, now: int) -> None:
    """Leave an event in every place where one can stand, in the table of the release before."""
    for number, subject in enumerate("aaabbcc", start=1):
        house.sql(WRITE, *values(number, subject, now))

    def change(number: int, **columns: Any) -> None:
        named = ", ".join(f"{name} = ?" for name in columns)
        statement = f"UPDATE {{schema}}.hos_outbox_events SET {named} WHERE id = ?"  # noqa: S608
        house.sql(statement, *columns.values(), number)

    change(1, status="sent", attempts=1, sent_at=now, response_status=200, response_json='{"ok":1}',
           attempted_at=now, duration_us=9, drift="from is 'x' there")  # fmt: skip
    change(2, status="rejected", attempts=1, last_error="HTTP 422", response_status=422,
           drift="HTTP 422", attempted_at=now, duration_us=7,
           acts='[{"act": "redriven", "actor": "ada"}]')  # fmt: skip
    change(4, status="processing", attempts=1, owner_token=None, lease_until=now + MINUTE,
           available_at=now + MINUTE)  # fmt: skip
    change(6, status="dead", attempts=20, failed_at=now, attempted_at=now, duration_us=8,
           discarded_at=now)  # fmt: skip


@pytest.mark.shows("I-51", "E-90")
def test_events_of_the_release_before_are_moved_with_their_past_and_told(url: str) -> None:
    clock, told = ManualClock(NOW), list[int]()
    now = clock.now()
    with closing(House(url, clock=clock)) as house:
        house.engine.open()
        make_by_hand(house, 2)
        fill(house, now)
        before = house.sql(READ[-1])
        read = [house.sql(statement) for statement in READ[:-1]]

        def answer(request: httpx.Request) -> httpx.Response:
            told.append(json.loads(request.content)["meta"]["local_proof_id"])
            return accept(request)

        declare(house.engine, Remote(SETTINGS, transport=httpx.MockTransport(answer)))
        desk = Desk(house.engine)
        events = {event.body["meta"]["local_proof_id"]: event for event in desk.events()}
        assert {number: event.status for number, event in events.items()} == {
            1: "sent", 2: "rejected", 3: "pending", 4: "pending", 5: "pending", 7: "pending",
        }  # fmt: skip
        assert [event.payload for event in events.values()] == [row[4] for row in before]
        assert (events[1].response_json, events[1].drift) == ('{"ok":1}', "from is 'x' there")
        assert (events[2].attempts, events[2].last_error) == (1, "HTTP 422")
        assert json.loads(events[2].acts) == [{"act": "redriven", "actor": "ada"}]
        assert (events[4].attempts, events[4].available_at) == (1, now + MINUTE)
        assert events[7].give_up_at == now + 3 * DAY
        # What is behind one that is rejected, or that a dispatcher had taken, waits.
        assert house.engine.outbox.deliver(HANDLER) == {"sent": 1}
        assert told == [7]
        clock.advance(timedelta(minutes=2))
        assert house.engine.outbox.deliver(HANDLER) == {"sent": 2}
        desk.redrive(events[2].id, actor="ada", ttl=SETTINGS.ttl)
        assert house.engine.outbox.deliver(HANDLER) == {"sent": 2}
        assert told == [7, 4, 5, 2, 3]
        assert figures.read(house.engine).drift == read[2][0][0] == 2
        assert house.engine.inspect.verify() == []


@pytest.mark.shows("I-48", "E-90")
def test_processes_of_the_release_before_write_and_read_events_and_send_none(url: str) -> None:
    clock, told = ManualClock(NOW), list[int]()
    now = clock.now()
    with closing(House(url, clock=clock)) as house:
        house.engine.open()
        make_by_hand(house, 2)
        fill(house, now)
        read = [house.sql(statement) for statement in READ[:-1]]
        Tables(house.engine, SCHEMA).ensure()
        assert [house.sql(statement) for statement in READ[:-1]] == read
        assert len(house.sql(READ[-1])) == 6
        declare(house.engine, Remote(SETTINGS, transport=httpx.MockTransport(
            lambda request: told.append(json.loads(request.content)["meta"]["local_proof_id"])
            or accept(request)
        )))  # fmt: skip
        # Of the same subject, one by each release, in turns.
        with Tables(house.engine, SCHEMA).writing() as connection:
            emit(house.engine, connection, proof(8, "c"))
        house.sql(WRITE, *values(9, "c", now))
        with Tables(house.engine, SCHEMA).writing() as connection:
            emit(house.engine, connection, proof(10, "c"))
        last = Desk(house.engine).events()[-1]
        with backdoor(url) as (db, schema, mark), pytest.raises(Exception, match="view"):
            db.execute(TAKE.format(schema=schema).replace("?", mark), (last.id,))
        assert house.engine.outbox.deliver(HANDLER) == {"sent": 4}
        assert told == [7, 8, 9, 10]


@pytest.mark.shows("E-90")
def test_events_that_are_written_while_they_are_moved_are_all_there(
    url: str, open_house: Callable[..., House]
) -> None:
    house = open_house()
    house.engine.open()
    make_by_hand(house, 2)
    moved, begun, numbers = threading.Event(), threading.Event(), list[int]()

    def write() -> None:
        """Be a process of the release before, with one connection that it keeps."""
        left = 20
        with backdoor(url) as (db, schema, mark):
            if schema == "main":
                db.execute("PRAGMA busy_timeout = 120000")
            statement = WRITE.format(schema=schema).replace("?", mark)
            while left:
                number = len(numbers) + 1
                db.execute(statement, values(number, str(number % 3), number))
                db.commit()
                numbers.append(number)
                begun.set()
                left -= moved.is_set()
                time.sleep(0.005)  # a file has one writer, and who moves must have a turn

    def move() -> bool:
        with suppress(Contended):  # the writer was quicker each time
            Tables(house.engine, SCHEMA).ensure()
            return True
        return False

    with ThreadPoolExecutor(1) as thread:
        writing = thread.submit(write)
        assert begun.wait(120)
        try:
            eventually(move)
        finally:
            moved.set()
        writing.result(120)
    found = Desk(house.engine).events(limit=10**6)
    assert [event.body["meta"]["local_proof_id"] for event in found] == numbers
