"""`ulak idempotency`: show, forget, cleanup."""

from datetime import timedelta

import pytest

from ulak.idempotency import Answer, Asked, Guard, Scope
from ulak.store.redis import RedisRecords

CONFIDENTIAL = b'{"iban": "nobody should read this"}'


@pytest.fixture
def answered(shop):
    """A program that has answered under two keys, of which one has expired."""
    import shop as program

    with program.engine as engine:
        for key, ttl in (("order-1", timedelta(days=1)), ("old", timedelta(microseconds=1))):
            asked = Asked(
                Scope("orders", ttl=ttl), key, request_hash="a" * 64, tenant="acme", actor="ada"
            )
            Guard(engine.store).execute(
                asked, lambda _: Answer(201, CONFIDENTIAL, (("Location", "/orders/1"),))
            )
    return shop


WHICH = ("--scope", "orders", "--key", "order-1", "--tenant", "acme")


def test_a_record_is_shown_without_what_was_answered(answered):
    said = answered.ulak("idempotency", "show", *WHICH)
    assert said.code == 0
    for fact in ("completed", "201", "ada", "order-1"):
        assert fact in said.out
    document = answered.ulak("idempotency", "show", *WHICH, "--json")
    assert "nobody should read this" not in said.out + document.out
    assert "owner_token" not in document.document
    assert document.document["response_status"] == 201
    revealed = answered.ulak("idempotency", "show", *WHICH, "--reveal", "--json")
    assert revealed.document["response"] == CONFIDENTIAL.decode()
    assert "/orders/1" in revealed.document["response_headers"]


def test_a_record_that_is_not_there_is_one_line(answered):
    for command in ("show", "forget"):
        said = answered.ulak("idempotency", command, "--scope", "orders", "--key", "order-1")
        assert said.code == 1
        assert "there is no record of the key 'order-1' in the scope 'orders'" in said.err
    old = answered.ulak("idempotency", "show", "--scope", "orders", "--key", "old")
    assert old.code == 1


@pytest.mark.shows("I-20")
def test_forgetting_a_record_is_audited(answered):
    said = answered.ulak(
        "idempotency", "forget", *WHICH, "--actor", "olga", "--note", "wrong amount"
    )
    assert said.code == 0
    assert answered.ulak("idempotency", "show", *WHICH).code == 1
    (line,) = answered.ulak("audit", "--subject", "idempotency/orders", "--json").document["audit"]
    assert (line["actor"], line["act"], line["note"]) == ("olga", "forgotten", "wrong amount")


@pytest.mark.shows("I-22")
def test_the_clean_up_tells_how_many_it_removed(answered):
    assert answered.ulak("idempotency", "cleanup", "--batch", "1", "--json").document == {
        "removed": 1
    }
    assert "removed 0 records" in answered.ulak("idempotency", "cleanup").out
    assert answered.ulak("idempotency", "show", *WHICH).code == 0


def test_doctor_shows_the_settings_of_idempotency(shop, monkeypatch):
    monkeypatch.setenv("IDEMPOTENCY_TTL_SECONDS", "3600")
    found = shop.ulak("doctor", "--json").document["settings"]
    assert found["IDEMPOTENCY_TTL_SECONDS"] == {
        "value": 3600, "source": "IDEMPOTENCY_TTL_SECONDS",
    }  # fmt: skip
    assert found["IDEMPOTENCY_BACKEND"] == {"value": "sql", "source": "default"}
    monkeypatch.setenv("IDEMPOTENCY_BACKEND", "redis")
    refused = shop.ulak("doctor")
    assert (refused.code, "IDEMPOTENCY_REDIS_URL is not set" in refused.err) == (1, True)
    monkeypatch.setenv("IDEMPOTENCY_REDIS_URL", "redis://:hunter2@cache:6379/0")
    shown = shop.ulak("doctor", "--json")
    assert "hunter2" not in shown.out
    assert shown.document["settings"]["IDEMPOTENCY_REDIS_URL"]["value"] == (
        "redis://:***@cache:6379/0"
    )


@pytest.mark.shows("I-20", "I-58")
def test_records_in_redis_are_shown_and_forgotten_and_go_by_themselves(
    shop, redis_url, monkeypatch
):
    monkeypatch.setenv("IDEMPOTENCY_BACKEND", "redis")
    monkeypatch.setenv("IDEMPOTENCY_REDIS_URL", redis_url)
    records = RedisRecords(redis_url)
    asked = Asked(
        Scope("orders", mode="lease"), "order-1", request_hash="a" * 64, tenant="acme", actor="ada"
    )
    Guard(records).execute(asked, lambda _: Answer(201, CONFIDENTIAL))
    assert "completed" in shop.ulak("idempotency", "show", *WHICH).out
    assert "redis removes by itself" in shop.ulak("idempotency", "cleanup").out
    assert shop.ulak("idempotency", "cleanup", "--json").document == {"removed": 0}
    assert shop.ulak("idempotency", "forget", *WHICH, "--actor", "olga").code == 0
    assert shop.ulak("idempotency", "show", *WHICH).code == 1
    (line,) = records.audit_trail(subject="idempotency/orders")
    assert (line.actor, line.act) == ("olga", "forgotten")
