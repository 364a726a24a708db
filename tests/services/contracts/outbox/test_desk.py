"""What operators do with events."""

import json
import logging
from datetime import timedelta
from typing import Any

import httpx
import pytest

from tests.services.contracts.outbox.conftest import Outbox, accept, away
from ulak.clock import micros
from ulak.errors import NotFound
from ulak.idempotency.scope import TTL
from ulak.services.contracts.outbox.desk import NotNow
from ulak.services.contracts.outbox.settings import LONGEST_RETRY


def kill(outbox: Outbox, *proofs: int) -> None:
    """Have events that are dead."""
    for proof in proofs:
        outbox.write(proof, subject=str(proof))
    outbox.remote.answer = lambda request: httpx.Response(400)
    outbox.send()
    outbox.remote.answer = accept
    outbox.remote.asked.clear()


def only(outbox: Outbox) -> Any:
    (event,) = outbox.events()
    return event


def test_events_are_listed_by_status_tenant_and_subject(outbox: Outbox) -> None:
    kill(outbox, 1)
    outbox.write(2, subject="b", tenant_id="other")
    outbox.write(3, subject="b")
    dead, other, third = (event.id for event in outbox.events())

    def listed(**options: Any) -> list[int]:
        return [event.id for event in outbox.events(**options)]

    assert listed(statuses=["dead"]) == [dead]
    assert listed(statuses=["dead", "pending"], tenant_id="acme") == [dead, third]
    assert listed(aggregate="order:b") == [other, third]
    assert listed(after=dead, limit=1) == [other]


@pytest.mark.shows("I-55")
def test_a_redriven_event_keeps_its_key_and_gets_all_its_attempts(outbox: Outbox) -> None:
    kill(outbox, 1)
    before = only(outbox)
    outbox.clock.advance(timedelta(days=2))
    outbox.desk.redrive(before.id, actor="ada", note="the remote is mended", ttl=TTL)
    after = only(outbox)
    assert (after.status, after.attempts) == ("pending", 0)
    assert after.give_up_at == outbox.tables.now + micros(LONGEST_RETRY)
    outbox.send()
    assert outbox.remote.bodies[0]["idempotency_key"] == before.idempotency_key
    assert only(outbox).status == "sent"


@pytest.mark.shows("I-55")
def test_an_event_that_the_remote_may_have_forgotten_is_redriven_only_by_force(
    outbox: Outbox,
) -> None:
    kill(outbox, 1)
    id = only(outbox).id
    outbox.clock.advance(TTL)
    with pytest.raises(NotNow) as refused:
        outbox.desk.redrive(id, actor="ada", ttl=TTL)
    for word in ("604800 s", "pazar:proof:status_change:1", "2026-01-01", "--force"):
        assert word in str(refused.value)
    assert only(outbox).status == "dead"
    outbox.desk.redrive(id, actor="ada", ttl=TTL, force=True)
    assert json.loads(only(outbox).acts)[0]["forced"] == "yes"
    outbox.send()
    assert only(outbox).status == "sent"


@pytest.mark.shows("I-55")
def test_a_redriven_event_is_not_tried_after_the_remote_has_forgotten_it(outbox: Outbox) -> None:
    kill(outbox, 1)
    outbox.clock.advance(TTL - timedelta(hours=2))
    outbox.desk.redrive(only(outbox).id, actor="ada", ttl=TTL)
    outbox.remote.answer = away
    outbox.clock.advance(timedelta(hours=2, seconds=1))  # no dispatcher was there until now
    outbox.send()
    assert only(outbox).status == "dead"
    assert outbox.remote.asked == []


@pytest.mark.shows("I-55")
def test_what_was_done_stands_in_the_row_and_in_the_log(
    outbox: Outbox, caplog: pytest.LogCaptureFixture
) -> None:
    kill(outbox, 1)
    id = only(outbox).id
    caplog.clear()
    with caplog.at_level(logging.INFO, "ulak.contracts.outbox"):
        outbox.desk.redrive(id, actor="ada", note="first", ttl=TTL)
        outbox.desk.discard(id, actor="bob", note="second")
    assert outbox.events() == []
    ((acts,),) = outbox.tables.read("SELECT acts FROM {schema}.hos_outbox_events")
    at = "2026-01-01T00:00:00Z"
    assert json.loads(acts) == [
        {"act": "redriven", "actor": "ada", "note": "first", "at": at, "was": "dead"},
        {"act": "discarded", "actor": "bob", "note": "second", "at": at, "was": "pending"},
    ]
    told = [(r.message, r.event_id, r.actor, r.note) for r in caplog.records]
    assert told == [
        ("an event is redriven", id, "ada", "first"),
        ("an event is discarded", id, "bob", "second"),
    ]
    audited = [(line.act, line.actor, line.note) for line in outbox.engine.inspect.audit()]
    assert audited == [("discard", "bob", "second"), ("redrive", "ada", "first")]


def test_only_what_is_stuck_is_redriven_and_only_what_is_not_under_way_is_discarded(
    outbox: Outbox,
) -> None:
    outbox.write(1)
    id = only(outbox).id
    with pytest.raises(NotNow, match="is pending; only what is dead or rejected"):
        outbox.desk.redrive(id, actor="ada", ttl=TTL)
    met: list[str] = []

    def answer(request: httpx.Request) -> httpx.Response:
        try:
            outbox.desk.discard(id, actor="ada")
        except NotNow as error:
            met.append(str(error))
        return accept(request)

    outbox.remote.answer = answer
    outbox.send()
    assert met == [f"event {id} is processing; it cannot be discarded"]
    for act in (lambda: outbox.desk.discard(id, actor="ada"),
                lambda: outbox.desk.redrive(id, actor="ada", ttl=TTL)):  # fmt: skip
        with pytest.raises(NotNow, match="is sent"):
            act()
    with pytest.raises(NotFound, match="no event 999"):
        outbox.desk.discard(999, actor="ada")


def test_what_was_discarded_is_never_sent(outbox: Outbox) -> None:
    outbox.write(1)
    id = only(outbox).id
    outbox.desk.discard(id, actor="ada")
    assert outbox.send() == {}
    with pytest.raises(NotNow, match="is discarded"):
        outbox.desk.redrive(id, actor="ada", ttl=TTL, force=True)


def test_what_was_said_of_an_event_goes_with_the_event(outbox: Outbox) -> None:
    def said() -> set[str]:
        rows = outbox.tables.read("SELECT idempotency_key FROM {schema}.hos_outbox_attempts")
        return {key.rpartition(":")[2] for (key,) in rows}

    for number, answer in ((1, accept), (2, _differ), (3, lambda _: httpx.Response(410))):
        outbox.write(number, subject=str(number))
        outbox.remote.answer = answer
        outbox.send()
    outbox.remote.answer = accept
    for number in (4, 5):
        outbox.clock.advance(timedelta(days=5))
        outbox.engine.store.expire_messages(100)
        outbox.write(number, subject=str(number))
        outbox.send()
        # A young answer stays, what is dead waits for a person, and drift is counted for ever.
        assert said() == {"2", "3", "4", *("1" if number == 4 else "5")}
    assert outbox.statuses() == {3: "dead", 4: "sent", 5: "sent"}


def _differ(request: httpx.Request) -> httpx.Response:
    return httpx.Response(200, json={"ok": True, "from": "elsewhere"})
