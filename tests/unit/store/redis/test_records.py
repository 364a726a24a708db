"""What is Redis' own about idempotency records: expiry, time, keys, and what it promises."""

import time
from collections.abc import Iterator

import pytest
from redis.cluster import key_slot

from ulak.clock import SECOND
from ulak.errors import BadInput, NotSupported, StoreError
from ulak.idempotency import Answer, Asked, Guard, Scope
from ulak.store.records import RecordId
from ulak.store.redis import RedisRecords
from ulak.testing.conformance.records import BY_ADA, HASH, OTHER_HASH, answered, record
from ulak.testing.servers import EVICTING, NOT_KEPT, Redis

MOMENT = SECOND // 20
PATIENCE_S = 60.0


@pytest.fixture
def records(redis_url: str) -> Iterator[RedisRecords]:
    """Records by the server's own time."""
    made = RedisRecords(redis_url)
    made.open()
    yield made
    made.close()


def keys(records: RedisRecords) -> set[str]:
    return {key.decode() for key in records.server.client.scan_iter()}


def await_nothing(records: RedisRecords) -> None:
    """Wait until Redis has removed every key by itself."""
    deadline = time.monotonic() + PATIENCE_S
    while keys(records):
        assert time.monotonic() < deadline
        time.sleep(0.01)


@pytest.mark.shows("I-58", "I-24")
def test_what_has_expired_goes_by_itself_and_the_former_owner_changes_nothing(
    records: RedisRecords,
) -> None:
    row = records.claim_record(record(), ttl_us=MOMENT, lease_us=MOMENT).row
    await_nothing(records)
    assert records.finish_record(answered(row), ttl_us=SECOND) is False
    assert records.release_record(row) is False
    assert records.renew_records([row], lease_us=[SECOND]) == [False]
    assert keys(records) == set()
    assert records.claim_record(record(request_hash=OTHER_HASH), ttl_us=MOMENT, lease_us=1).is_mine


@pytest.mark.shows("I-58")
def test_an_answer_goes_by_itself_when_its_time_has_come(records: RedisRecords) -> None:
    row = records.claim_record(record(), ttl_us=3600 * SECOND, lease_us=SECOND).row
    assert records.finish_record(answered(row), ttl_us=MOMENT)
    await_nothing(records)
    assert records.clean_records(10) == 0


@pytest.mark.shows("I-23")
def test_no_key_expires_before_its_lease_does(records: RedisRecords) -> None:
    row = records.claim_record(record(), ttl_us=1, lease_us=3600 * SECOND).row
    (key,) = keys(records)
    assert records.server.client.ttl(key) > 3000
    assert records.renew_records([row], lease_us=[7200 * SECOND]) == [True]
    assert records.server.client.ttl(key) > 7000
    assert records.mark_record(row._replace(recovery_point="a"), lease_us=10_000 * SECOND)
    assert records.server.client.ttl(key) > 9000


@pytest.mark.shows("I-26")
def test_the_time_of_leases_is_the_servers(
    records: RedisRecords, redis_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    claim = records.claim_record(record(), ttl_us=3600 * SECOND, lease_us=60 * SECOND)
    late = RedisRecords(redis_url)
    # This machine's clock is a day ahead: to it, the lease lapsed long ago.
    day = 24 * 3600 * 1_000_000_000
    told = time.time_ns
    monkeypatch.setattr(time, "time_ns", lambda: told() + day)
    other = late.claim_record(record(), ttl_us=3600 * SECOND, lease_us=60 * SECOND)
    assert (other.is_mine, other.row) == (False, claim.row)
    assert late.find_records([claim.row.id]) == [claim.row]
    assert abs(late.clock.now() - claim.now) < 3600 * SECOND


def test_a_key_can_be_read_and_all_of_them_are_in_one_slot(records: RedisRecords) -> None:
    for row in (record(), record(tenant_id="", scope="a/b", key="{x}%"), record(tenant_id="ä")):
        records.claim_record(row, ttl_us=SECOND * 60, lease_us=None)
    assert records.forget_record(record().id, **BY_ADA)
    records.claim_record(record(), ttl_us=SECOND * 60, lease_us=None)
    assert keys(records) == {
        "{ulak:idempotency}:record:acme/orders.charge/order-1",
        "{ulak:idempotency}:record:/a%2Fb/{x}%25",
        "{ulak:idempotency}:record:%C3%A4/orders.charge/order-1",
        "{ulak:idempotency}:audit",
    }
    assert len({key_slot(key.encode()) for key in keys(records)}) == 1


def test_the_audit_is_read_page_by_page(records: RedisRecords) -> None:
    for n in range(7):
        row = record(f"order-{n}", scope=f"scope-{n % 2}")
        records.claim_record(row, ttl_us=SECOND * 60, lease_us=None)
        assert records.forget_record(row.id, **BY_ADA)
    lines = records.audit_trail()
    assert [line.subject[-1] for line in lines] == list("0101010")
    assert sorted((line.position for line in lines), reverse=True) == [x.position for x in lines]
    assert records.audit_trail(before=lines[2].position, limit=3) == lines[3:6]
    assert records.audit_trail(subject="idempotency/scope-1", limit=2) == [lines[1], lines[3]]


# --- what the server keeps ----------------------------------------------------------------


@pytest.mark.shows("I-59")
@pytest.mark.parametrize(
    ("settings", "why"),
    [(NOT_KEPT, "set appendonly yes"), (EVICTING, "set maxmemory-policy noeviction")],
    ids=["not kept", "evicting"],
)
def test_a_server_that_may_forget_is_refused_unless_that_is_wanted(
    settings: dict[str, str], why: str
) -> None:
    asked = Asked(Scope("x", mode="lease"), "k", request_hash=HASH)
    with Redis(settings=settings) as server:
        refused = RedisRecords(server.url())
        with pytest.raises(BadInput, match=why) as sentence:
            refused.open()
        assert "IDEMPOTENCY_REDIS_ALLOW_VOLATILE=1" in str(sentence.value)
        with pytest.raises(StoreError, match=why):
            refused.claim_record(record(), ttl_us=SECOND, lease_us=SECOND)
        with pytest.raises(StoreError, match=why):
            refused.find_records([RecordId("", "", "")])
        assert not refused.features.durable
        allowed = RedisRecords(server.url(), may_forget=True)
        allowed.open()
        assert (allowed.features.durable, Guard(allowed).may_forget) == (False, True)
        assert why in allowed.features.durability
        assert not Guard(allowed).execute(asked, lambda _: Answer()).is_replay


@pytest.mark.shows("I-59")
def test_a_server_that_appends_is_durable(records: RedisRecords) -> None:
    assert records.features.durable
    assert not Guard(records).may_forget
    assert records.features.durability == "a power cut costs nothing that was answered"


# --- what it cannot do --------------------------------------------------------------------


@pytest.mark.shows("I-58")
def test_what_needs_a_shared_transaction_is_refused_by_name(records: RedisRecords) -> None:
    guard = Guard(records)
    with pytest.raises(NotSupported, match="the redis store has no transaction to share"):
        guard.begin(Asked(Scope("orders.charge"), "k", request_hash=HASH))
    leased = Asked(Scope("orders.charge", mode="lease"), "k", request_hash=HASH)
    with pytest.raises(BadInput, match="commit by phases"):
        guard.execute(leased, lambda execution: execution.connection)
    with pytest.raises(NotSupported, match="the redis store has no transaction for rows"):
        guard.execute(leased, lambda e: e.phase("book", lambda phase: phase.connection))
    assert guard.record(leased.id) is None, "an operation that failed leaves its key free"
