"""Events leave once each, in order, whatever happens to those who send them."""

import asyncio
import json
import logging
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta

import httpx
import pytest

from tests.services.contracts.outbox.conftest import API_KEY, Outbox, accept, away, refuse
from ulak import Engine
from ulak.errors import StoreError
from ulak.idempotency.scope import TTL
from ulak.services.contracts.outbox.claims import Attempt, settle, take
from ulak.services.contracts.outbox.desk import discard, redrive
from ulak.services.contracts.outbox.dispatcher import AT_ONCE
from ulak.services.contracts.outbox.events import StatusChange, write
from ulak.services.contracts.outbox.outcomes import LONGEST_RETRY, MOST_ATTEMPTS, Outcome

LEASE = timedelta(seconds=60)
CHANGE = StatusChange(
    1, tenant_id="acme", subject_type="order", subject_id="42", from_status="pending",
    to_status="paid", contract_version="2025-12-28",
)  # fmt: skip


def test_an_event_is_posted_to_the_remote_with_its_key(outbox: Outbox) -> None:
    outbox.write(7, actor_id="u-1")
    (attempt,) = outbox.send()
    assert attempt.outcome.verdict == "sent"
    (request,) = outbox.remote.asked
    assert (request.method, str(request.url)) == (
        "POST", "http://remote.test/v1/contract/transition",
    )  # fmt: skip
    assert request.headers["Authorization"] == f"Token {API_KEY}"
    assert request.headers["Idempotency-Key"] == "pazar:proof:status_change:7"
    assert outbox.remote.bodies == [
        {
            "idempotency_key": "pazar:proof:status_change:7", "tenant_id": "acme",
            "subject_ref": {"type": "order", "id": "42"}, "from": "pending", "to": "paid",
            "actor_id": "u-1",
            "meta": {"local_proof_id": 7, "local_contract_version": "2025-12-28"},
        }
    ]  # fmt: skip
    event = outbox.event()
    assert (event.status, event.sent_at) == ("sent", outbox.tables.now)
    assert json.loads(event.response_json or "")["ok"] is True
    assert event.response_status == 200
    assert outbox.send() == []


@pytest.mark.shows("I-48")
def test_an_event_is_there_if_and_only_if_the_change_is(outbox: Outbox) -> None:
    class Broken(Exception):
        pass

    outbox.events()  # makes the tables
    with pytest.raises(Broken), outbox.engine.transaction() as connection:  # noqa: PT012
        write(outbox.tables.joined(connection), CHANGE, now=outbox.tables.now)
        raise Broken
    assert outbox.events() == []
    with outbox.engine.transaction() as connection:
        write(outbox.tables.joined(connection), CHANGE, now=outbox.tables.now)
    assert [event.status for event in outbox.events()] == ["pending"]
    assert outbox.remote.asked == []


@pytest.mark.shows("I-49")
def test_every_attempt_sends_the_same_bytes_under_the_same_key(outbox: Outbox) -> None:
    outbox.write(7)
    outbox.remote.answer = away
    for _ in range(3):
        assert [attempt.outcome.verdict for attempt in outbox.send()] == ["retry"]
        outbox.clock.advance(timedelta(hours=1))
    outbox.remote.answer = lambda request: httpx.Response(410)
    outbox.send()
    redrive(outbox.tables, outbox.events()[0].id, actor="ada", ttl=TTL)
    outbox.remote.answer = accept
    outbox.send()
    assert [event.status for event in outbox.events()] == ["sent"]
    assert len(outbox.remote.asked) == 5
    assert len({request.content for request in outbox.remote.asked}) == 1
    keys = {request.headers["Idempotency-Key"] for request in outbox.remote.asked}
    assert keys == {"pazar:proof:status_change:7"}


@pytest.mark.shows("I-50")
def test_what_one_dispatcher_has_taken_no_other_takes_until_the_lease_ends(
    outbox: Outbox, make_engine: Callable[[], Engine]
) -> None:
    other = Outbox(make_engine())
    outbox.write(1)
    (mine,) = take(outbox.tables, 50, lease=LEASE)
    assert other.send() == []
    # Its taker has died: nobody says so, the lease ends.
    other.clock.advance(LEASE)
    outbox.clock.advance(LEASE)
    (attempt,) = other.send()
    assert attempt.outcome.verdict == "sent"
    assert attempt.event.attempts == 2
    # It was not dead after all, and its word no longer counts.
    late = Attempt(mine, Outcome("dead", why="late"))
    assert settle(outbox.tables, [late]) == []
    assert outbox.event(mine.id).status == "sent"


@pytest.mark.shows("I-50")
def test_many_dispatchers_at_once_take_each_event_once(
    outbox: Outbox, make_engine: Callable[[], Engine]
) -> None:
    for proof in range(40):
        outbox.write(proof, subject=str(proof))
    everybody = [outbox, *(Outbox(make_engine()) for _ in range(3))]
    begin = threading.Barrier(len(everybody))

    def work(one: Outbox) -> list[int]:
        begin.wait()
        taken = []
        while found := take(one.tables, 3, lease=LEASE):
            taken += [event.id for event in found]
        return taken

    with ThreadPoolExecutor(len(everybody)) as pool:
        taken = [id for ids in pool.map(work, everybody) for id in ids]
    assert len(taken) == 40
    assert len(set(taken)) == 40


# On SQLite there is one writer, and no other transaction.
@pytest.mark.shows("I-50")
@pytest.mark.parametrize("make_engine", ["postgresql"], indirect=True)
def test_a_row_that_another_transaction_is_taking_is_passed_by(
    outbox: Outbox, make_engine: Callable[[], Engine]
) -> None:
    other = Outbox(make_engine())
    outbox.write(1, subject="a")
    outbox.write(2, subject="b")
    first = outbox.events()[0].id
    with outbox.engine.transaction() as connection:
        connection.execute(
            "SELECT 1 FROM ulak.hos_outbox_events WHERE id = %s FOR UPDATE", (first,)
        )
        assert [event.aggregate for event in take(other.tables, 50, lease=LEASE)] == ["order:b"]


@pytest.mark.shows("I-51")
def test_events_of_one_subject_leave_in_order_and_one_at_a_time(outbox: Outbox) -> None:
    for proof in (1, 2, 3):
        outbox.write(proof, subject="a")
    outbox.write(4, subject="b")
    told: list[list[int]] = []
    while outbox.send():
        told.append(sorted(body["meta"]["local_proof_id"] for body in outbox.remote.bodies))
        outbox.remote.asked.clear()
    assert told == [[1, 4], [2], [3]]


@pytest.mark.shows("I-51")
def test_an_event_that_waits_holds_up_its_own_subject_only(outbox: Outbox) -> None:
    outbox.write(1, subject="a")
    outbox.remote.answer = away
    outbox.send()
    outbox.remote.answer = accept
    outbox.remote.asked.clear()
    outbox.write(2, subject="a")
    outbox.write(3, subject="b")
    # The same id of another tenant is another subject.
    outbox.write(4, subject="a", tenant_id="other")
    outbox.send()
    assert {body["meta"]["local_proof_id"] for body in outbox.remote.bodies} == {3, 4}


@pytest.mark.shows("I-51", "I-55")
@pytest.mark.parametrize("answer", [refuse, lambda request: httpx.Response(410)])
@pytest.mark.parametrize("act", ["redrive", "discard"])
def test_a_stuck_event_blocks_its_subject_until_somebody_acts(
    outbox: Outbox, answer: Callable[[httpx.Request], httpx.Response], act: str
) -> None:
    outbox.write(1, subject="a")
    outbox.write(2, subject="a")
    outbox.write(3, subject="b")
    first, second, third = (event.id for event in outbox.events())
    outbox.remote.answer = lambda request: (
        answer(request) if b'"local_proof_id":1,' in request.content else accept(request)
    )
    outbox.send()
    assert outbox.event(first).status in ("rejected", "dead")
    assert outbox.statuses()[third] == "sent"
    for _ in range(3):
        outbox.clock.advance(timedelta(hours=12))
        assert outbox.send() == []
    outbox.remote.answer = accept
    outbox.remote.asked.clear()
    if act == "redrive":
        redrive(outbox.tables, first, actor="ada", note="mended there", ttl=TTL)
    else:
        discard(outbox.tables, first, actor="ada", note="made by hand")
    while outbox.send():
        pass
    told = [body["meta"]["local_proof_id"] for body in outbox.remote.bodies]
    assert told == ([1, 2] if act == "redrive" else [2])
    assert outbox.statuses()[second] == "sent"


def test_no_transaction_is_open_while_the_remote_is_asked(outbox: Outbox) -> None:
    outbox.write(1)

    def answer(request: httpx.Request) -> httpx.Response:
        # On SQLite this would wait for a turn in vain.
        with ThreadPoolExecutor(1) as pool:
            seen.extend(pool.submit(outbox.events).result())
        return accept(request)

    seen: list[object] = []
    outbox.remote.answer = answer
    assert [attempt.outcome.verdict for attempt in outbox.send()] == ["sent"]
    assert [event.status for event in seen] == ["processing"]


def test_so_many_are_asked_at_once_and_no_more(outbox: Outbox) -> None:
    for proof in range(3 * AT_ONCE):
        outbox.write(proof, subject=str(proof))
    lock = threading.Lock()
    inside, most = 0, 0

    class Transport(httpx.AsyncBaseTransport):
        async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
            nonlocal inside, most
            with lock:
                inside += 1
                most = max(most, inside)
            for _ in range(5):
                await asyncio.sleep(0)
            with lock:
                inside -= 1
            return accept(request)

    outbox.dispatcher._remote._transport = Transport()
    assert len(outbox.send()) == 3 * AT_ONCE
    assert most == AT_ONCE


@pytest.mark.shows("I-53")
def test_what_a_remote_says_is_written_down(outbox: Outbox) -> None:
    answers = {
        1: httpx.Response(422, json={"ok": False, "reason": "terminal_state"}),
        2: httpx.Response(422, json={"code": "idempotency_key_reused", "detail": "other body"}),
        3: httpx.Response(503, headers={"Retry-After": "120"}),
        4: httpx.Response(409, json={"code": "idempotency_in_progress"},
                          headers={"Retry-After": "3"}),
        5: httpx.Response(404, json={"ok": False, "reason": "subject_not_found"}),
    }  # fmt: skip
    for proof in answers:
        outbox.write(proof, subject=str(proof))
    outbox.remote.answer = lambda request: answers[
        json.loads(request.content)["meta"]["local_proof_id"]
    ]
    outbox.send()
    events = {
        json.loads(event.payload)["meta"]["local_proof_id"]: event for event in outbox.events()
    }
    now = outbox.tables.now
    assert {proof: event.status for proof, event in events.items()} == {
        1: "rejected", 2: "dead", 3: "pending", 4: "pending", 5: "pending",
    }  # fmt: skip
    assert events[1].drift == "HTTP 422: terminal_state"
    assert events[2].last_error == "HTTP 422: idempotency_key_reused: other body"
    assert events[3].available_at == now + 120_000_000
    assert {proof: events[proof].attempts for proof in (3, 4, 5)} == {3: 1, 4: 0, 5: 1}
    assert events[4].available_at == now + 3_000_000


@pytest.mark.shows("I-54")
def test_an_event_dies_after_its_last_attempt(outbox: Outbox) -> None:
    outbox.write(1)
    outbox.remote.answer = away
    verdicts = []
    while attempts := outbox.send():
        verdicts.append(attempts[0].outcome.verdict)
        outbox.clock.advance(timedelta(hours=1))
    assert verdicts == ["retry"] * (MOST_ATTEMPTS - 1) + ["dead"]
    assert "20 attempts: ConnectError: connection refused" in (outbox.event().last_error or "")


@pytest.mark.shows("I-54")
def test_a_retry_that_comes_too_late_is_not_made(outbox: Outbox) -> None:
    outbox.write(1, subject="tried")
    outbox.remote.answer = away
    outbox.send()
    outbox.write(2, subject="never sent")
    outbox.remote.answer = accept
    outbox.remote.asked.clear()
    outbox.clock.advance(LONGEST_RETRY + timedelta(seconds=1))  # every dispatcher was away
    outbox.send()
    tried, never_sent = outbox.events()
    assert (tried.status, never_sent.status) == ("dead", "sent")
    assert len(outbox.remote.asked) == 1
    assert "connection refused" in (tried.last_error or "")


def test_a_request_that_finds_nobody_is_repeated_at_once(
    make_engine: Callable[[], Engine],
) -> None:
    outbox = Outbox(make_engine(), retries=2)
    outbox.write(1)
    answers = iter([httpx.Response(502), httpx.Response(503), httpx.Response(200)])
    outbox.remote.answer = lambda request: next(answers)
    (attempt,) = outbox.send()
    assert (attempt.outcome.verdict, attempt.event.attempts) == ("sent", 1)
    assert len(outbox.remote.asked) == 3
    # Who names a time is heard, and who has judged is not asked again.
    for patient in (httpx.Response(503, headers={"Retry-After": "9"}), httpx.Response(500)):
        outbox.remote.asked.clear()
        outbox.write(100 + patient.status_code, subject=str(patient.status_code))
        outbox.remote.answer = lambda request, patient=patient: patient
        outbox.send()
        assert len(outbox.remote.asked) == 1


@pytest.mark.shows("I-57")
@pytest.mark.parametrize(
    ("answer", "drift"),
    [
        ({"ok": True, "from": "pending", "to": "paid", "contract_version": "2025-12-28"}, None),
        ({"ok": True, "from": "paid", "to": "paid", "changed": False},
         "from is 'paid' there and 'pending' here"),
        ({"ok": True, "from": "pending", "to": "paid", "contract_version": "2030-01-01"},
         "contract_version is '2030-01-01' there and '2025-12-28' here"),
        ({"ok": False, "reason": "invalid_transition"}, "HTTP 200: invalid_transition"),
    ],
    ids=["the same", "another way", "another version", "refused"],
)  # fmt: skip
def test_a_difference_is_logged_and_kept_as_drift(
    outbox: Outbox, caplog: pytest.LogCaptureFixture, answer: dict[str, object], drift: str | None
) -> None:
    outbox.write(1)
    outbox.remote.answer = lambda request: httpx.Response(200, json=answer)
    with caplog.at_level(logging.WARNING, "ulak.contracts.outbox"):
        outbox.send()
    assert outbox.event().drift == drift
    told = [record.drift for record in caplog.records if record.message.startswith("drift")]
    assert told == ([] if drift is None else [drift])


def test_stopping_gives_back_what_was_only_taken(outbox: Outbox) -> None:
    for proof in range(AT_ONCE + 4):
        outbox.write(proof, subject=str(proof))

    def answer(request: httpx.Request) -> httpx.Response:
        outbox.dispatcher.stop()
        return accept(request)

    outbox.remote.answer = answer
    outbox.dispatcher.run()
    statuses = [event.status for event in outbox.events()]
    assert set(statuses) == {"sent", "pending"}
    assert statuses.count("sent") == len(outbox.remote.asked)
    returned = [event for event in outbox.events() if event.status == "pending"]
    assert {(event.attempts, event.owner_token) for event in returned} == {(0, None)}


@pytest.mark.parametrize("failure", [StoreError, RuntimeError])
def test_a_round_that_fails_does_not_end_the_loop(
    outbox: Outbox, monkeypatch: pytest.MonkeyPatch, failure: type[Exception]
) -> None:
    outbox.write(1)
    real, failures = outbox.engine.transaction, iter([True])

    def failing():
        if next(failures, False):
            raise failure("the disk is full")
        return real()

    monkeypatch.setattr(outbox.engine, "transaction", failing)

    def answer(request: httpx.Request) -> httpx.Response:
        outbox.dispatcher.stop()
        return accept(request)

    outbox.remote.answer = answer
    outbox.dispatcher.run(pause_s=0)
    assert [event.status for event in outbox.events()] == ["sent"]
