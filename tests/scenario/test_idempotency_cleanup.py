"""Records end: they count as absent once they have expired, and are removed by a schedule."""

import asyncio
import threading
from datetime import timedelta

import pytest

import ulak
from tests.web.idempotent import STORES, opened, scope_of
from ulak.clock import ManualClock
from ulak.engine.engine import Engine
from ulak.errors import BadInput
from ulak.idempotency import Answer, Asked, Guard, Scope, cleanup
from ulak.idempotency.settings import IdempotencySettings
from ulak.store.memory import MemoryStore
from ulak.store.records import RecordId

WEEK = timedelta(days=7)
MANY = 25_000


@pytest.fixture(params=STORES)
def store(request, tmp_path):
    with opened(request.param, request, tmp_path) as made:
        yield made


def ask(store, key, **options):
    """Execute under a key; answers how often it was executed, and whether that was now."""
    asked = Asked(scope_of(store, "orders", **options), key, request_hash="a" * 64)
    answered = Guard(store).execute(asked, lambda run: Answer(body=b"%d" % run.attempt))
    return answered.is_replay


def kept(store, key):
    return Guard(store).record(RecordId("", "orders", key)) is not None


@pytest.mark.shows("I-21", "I-24")
def test_a_record_counts_for_a_week_from_its_end_and_is_absent_then(store):
    assert Scope("x").ttl == WEEK
    assert ask(store, "a") is False
    store.clock.advance(WEEK - timedelta(microseconds=1))
    assert ask(store, "a") is True
    store.clock.advance(timedelta(microseconds=1))
    assert not kept(store, "a")
    assert ask(store, "a") is False
    assert ask(store, "a") is True


@pytest.mark.shows("I-21", "I-22")
def test_the_clean_up_removes_what_has_expired_by_each_scope_and_says_how_many(store):
    for n in range(7):
        ask(store, f"short-{n}", ttl=timedelta(hours=1))
    ask(store, "long")
    guard = Guard(store)
    assert guard.clean_up() == 0
    store.clock.advance(timedelta(hours=1))
    assert guard.clean_up(batch=3) == 7
    assert guard.clean_up() == 0
    assert kept(store, "long")
    with pytest.raises(BadInput):
        guard.clean_up(batch=0)


@pytest.mark.shows("I-23")
def test_what_is_being_executed_is_never_removed(store):
    scope = Scope("orders", mode="lease", ttl=timedelta(seconds=1), lease=timedelta(hours=1))
    begun = Guard(store).begin(Asked(scope, "a", request_hash="a" * 64))
    store.clock.advance(timedelta(minutes=30))
    assert Guard(store).clean_up() == 0
    begun.settle(Answer(body=b"done"))
    assert kept(store, "a")
    store.clock.advance(timedelta(seconds=1))
    assert Guard(store).clean_up() == 1


@pytest.mark.shows("I-20")
def test_an_operator_has_a_record_forgotten_and_is_named_in_the_audit(store):
    ask(store, "a")
    guard, id = Guard(store), RecordId("", "orders", "a")
    assert guard.forget(id, actor="olga", note="wrong amount") is True
    assert guard.forget(id, actor="olga") is False
    assert ask(store, "a") is False
    (line,) = store.audit_trail(subject="idempotency/orders", limit=10)
    assert line.act == "forgotten"
    assert (line.actor, line.subject, line.note) == ("olga", "idempotency/orders", "wrong amount")


@pytest.mark.shows("I-23")
@pytest.mark.parametrize("name", ["sqlite", "postgres"])
def test_many_records_are_removed_in_batches_while_requests_run(name, request, tmp_path):
    with opened(name, request, tmp_path) as store:
        _fill(store, MANY)
        store.clock.advance(timedelta(hours=1))
        removed, failed, served = [], [], 0
        cleaners = [
            threading.Thread(target=lambda: removed.append(Guard(store).clean_up(batch=500)))
            for _ in range(2)
        ]
        for cleaner in cleaners:
            cleaner.start()
        while any(cleaner.is_alive() for cleaner in cleaners):
            served += 1
            try:
                ask(store, f"new-{served}")
            except Exception as error:  # noqa: BLE001 - the test is that there is none
                failed.append(error)
        for cleaner in cleaners:
            cleaner.join()
        assert failed == []
        assert sum(removed) == MANY
        assert served > 0
        assert kept(store, f"new-{served}")


def _fill(store, number):
    """Write records that expire within an hour, as fast as the database can."""
    columns = {
        "tenant_id": "''", "scope": "'orders'", "key": "'old-' || n", "status": "'completed'",
        "request_hash": "'h'", "actor_id": "''", "attempt": "1", "response_status": "200",
        "response_headers": "'[]'", "response_json": "'{}'",
    }  # fmt: skip
    now = store.clock.now()
    columns |= {name: str(now) for name in ("created_at", "updated_at")}
    columns["expires_at"] = str(now + 1)
    table = "idempotency_records"
    if store.features.dialect == "postgresql":
        table = f"ulak.{table}"
    statement = [
        "WITH RECURSIVE numbers(n) AS (SELECT 1 UNION ALL SELECT n + 1 FROM numbers WHERE n <",
        str(number), ") INSERT INTO", table, "(", ", ".join(columns), ") SELECT",
        ", ".join(columns.values()), "FROM numbers",
    ]  # fmt: skip
    transaction = store.begin()
    transaction.connection.execute(" ".join(statement))
    transaction.commit()


@pytest.mark.shows("I-22")
def test_the_schedule_of_an_engine_removes_them_at_three_every_night():
    clock = ManualClock()  # it stands at midnight
    engine = Engine(MemoryStore(clock))
    cleanup.attach(engine, IdempotencySettings())
    cleanup.attach(engine, IdempotencySettings())  # twice is nothing
    with engine:
        ask(engine.store, "a", ttl=timedelta(hours=1))
        for hours in (2, 2):
            assert engine.schedules.ticks(cleanup.NAME) == []
            clock.advance(timedelta(hours=hours))
            asyncio.run(engine.worker().run(until_idle=True))
        asyncio.run(engine.worker().run(until_idle=True))  # the job of the tick
        (tick,) = engine.schedules.ticks(cleanup.NAME)
        assert tick.due_at.hour == 3
        assert engine.result(tick.job_id) == 1


def test_a_program_that_says_nothing_has_no_schedule_of_ours():
    assert ulak.connect("memory://").kernel.schedules == {}
