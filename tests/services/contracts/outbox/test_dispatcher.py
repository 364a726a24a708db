"""Events leave once each, in order, whatever happens to those who send them."""

import json
import logging
import os
import signal
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta

import httpx
import pytest

from tests.services.contracts.outbox.conftest import API_KEY, Outbox, accept, away, proof, refuse
from ulak import Engine
from ulak.clock import micros
from ulak.core.delivery import DEAD
from ulak.errors import StoreError
from ulak.idempotency.scope import TTL
from ulak.services.contracts.ledger import HANDLER
from ulak.services.contracts.outbox import figures
from ulak.services.contracts.outbox.commands import A_FEW, _go_on
from ulak.services.contracts.outbox.desk import Event, emit
from ulak.services.contracts.outbox.figures import Limits
from ulak.services.contracts.outbox.sending import MOST_ATTEMPTS
from ulak.services.contracts.outbox.settings import LONGEST_RETRY
from ulak.store.protocol import OutboxRow, Settled

LEASE = timedelta(seconds=60)


def take(outbox: Outbox, limit: int = 50) -> list[OutboxRow]:
    """Take events as a dispatcher does that is never heard of again."""
    return outbox.engine.open().store.take_messages(HANDLER, limit, hold_us=micros(LEASE))


def test_an_event_is_posted_to_the_remote_with_its_key(outbox: Outbox) -> None:
    outbox.write(7, actor_id="u-1")
    assert outbox.send() == {"sent": 1}
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
    event = outbox.event(7)
    assert (event.status, event.sent_at) == ("sent", outbox.tables.now)
    assert json.loads(event.response_json or "")["ok"] is True
    assert event.response_status == 200
    assert outbox.send() == {}


@pytest.mark.shows("I-48")
def test_an_event_is_there_if_and_only_if_the_change_is(outbox: Outbox) -> None:
    class Broken(Exception):
        pass

    outbox.events()  # makes the tables
    with pytest.raises(Broken), outbox.engine.transaction() as connection:  # noqa: PT012
        emit(outbox.engine, connection, proof(1))
        raise Broken
    assert outbox.events() == []
    with outbox.engine.transaction() as connection:
        emit(outbox.engine, connection, proof(1))
    assert [event.status for event in outbox.events()] == ["pending"]
    assert outbox.remote.asked == []


@pytest.mark.shows("I-49")
def test_every_attempt_sends_the_same_bytes_under_the_same_key(outbox: Outbox) -> None:
    outbox.write(7)
    outbox.remote.answer = away
    for _ in range(3):
        assert outbox.send() == {"pending": 1}
        outbox.clock.advance(timedelta(hours=1))
    outbox.remote.answer = lambda request: httpx.Response(410)
    outbox.send()
    outbox.desk.redrive(outbox.events()[0].id, actor="ada", ttl=TTL)
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
    (mine,) = take(outbox)
    assert other.send() == {}
    # Its taker has died: nobody says so, the lease ends.
    other.clock.advance(LEASE)
    outbox.clock.advance(LEASE)
    assert other.send() == {"sent": 1}
    # It was not dead after all, and its word no longer counts.
    outbox.engine.store.settle_messages([Settled(mine.message, HANDLER, DEAD, error="late")])
    assert outbox.event().status == "sent"


@pytest.mark.shows("I-50")
def test_many_dispatchers_at_once_take_each_event_once(
    outbox: Outbox, make_engine: Callable[[], Engine]
) -> None:
    for number in range(40):
        outbox.write(number, subject=str(number))
    everybody = [outbox, *(Outbox(make_engine()) for _ in range(3))]
    begin = threading.Barrier(len(everybody))

    def work(one: Outbox) -> list[int]:
        begin.wait()
        taken = []
        while found := take(one, 3):
            taken += [row.position for row in found]
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
    first, second = outbox.events()
    # What a transaction of the engine's own has written has its place in the line already.
    assert [row.position for row in take(other)] == [first.id, second.id]
    other.clock.advance(LEASE)
    with outbox.engine.transaction() as connection:
        connection.execute(
            "SELECT 1 FROM ulak.deliveries WHERE position = %s FOR UPDATE", (first.id,)
        )
        assert [row.position for row in take(other)] == [second.id]


@pytest.mark.shows("I-51")
def test_events_of_one_subject_leave_in_order_and_one_at_a_time(outbox: Outbox) -> None:
    for number in (1, 2, 3):
        outbox.write(number, subject="a")
    outbox.write(4, subject="b")
    under_way: list[str] = []

    def answer(request: httpx.Request) -> httpx.Response:
        subject = json.loads(request.content)["subject_ref"]["id"]
        under_way.append(subject)
        answered = accept(request)
        crowds.append(under_way.count("a"))
        under_way.remove(subject)
        return answered

    crowds: list[int] = []
    outbox.remote.answer = answer
    assert outbox.send() == {"sent": 4}
    told = [body["meta"]["local_proof_id"] for body in outbox.remote.bodies]
    assert [number for number in told if number != 4] == [1, 2, 3]
    assert max(crowds) == 1


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
    outbox.remote.answer = lambda request: (
        answer(request) if b'"local_proof_id":1,' in request.content else accept(request)
    )
    outbox.send()
    assert outbox.statuses() == {
        1: "rejected" if answer is refuse else "dead", 2: "pending", 3: "sent",
    }  # fmt: skip
    for _ in range(3):
        outbox.clock.advance(timedelta(hours=12))
        assert outbox.send() == {}
    outbox.remote.answer = accept
    outbox.remote.asked.clear()
    if act == "redrive":
        outbox.desk.redrive(outbox.event(1).id, actor="ada", note="mended there", ttl=TTL)
    else:
        outbox.desk.discard(outbox.event(1).id, actor="ada", note="made by hand")
    outbox.send()
    told = [body["meta"]["local_proof_id"] for body in outbox.remote.bodies]
    assert told == ([1, 2] if act == "redrive" else [2])
    assert outbox.statuses()[2] == "sent"


def test_no_transaction_is_open_while_the_remote_is_asked(outbox: Outbox) -> None:
    outbox.write(1)

    def answer(request: httpx.Request) -> httpx.Response:
        # On SQLite this would wait for a turn in vain.
        with ThreadPoolExecutor(1) as pool:
            seen.extend(pool.submit(outbox.events).result())
        return accept(request)

    seen: list[Event] = []
    outbox.remote.answer = answer
    assert outbox.send() == {"sent": 1}
    assert [(event.status, event.attempts) for event in seen] == [("processing", 1)]
    assert seen[0].lease_until == seen[0].available_at > outbox.tables.now


def test_so_many_are_asked_at_once_and_no_more(outbox: Outbox) -> None:
    for number in range(3 * A_FEW):
        outbox.write(number, subject=str(number))
    lock = threading.Lock()
    inside, most = 0, 0
    crowd = threading.Barrier(A_FEW)

    def answer(request: httpx.Request) -> httpx.Response:
        nonlocal inside, most
        with lock:
            inside += 1
            most = max(most, inside)
        crowd.wait(120)
        with lock:
            inside -= 1
        return accept(request)

    outbox.remote.answer = answer
    assert outbox.send() == {"sent": 3 * A_FEW}
    assert most == A_FEW


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
    for number in answers:
        outbox.write(number, subject=str(number))
    outbox.remote.answer = lambda request: answers[
        json.loads(request.content)["meta"]["local_proof_id"]
    ]
    outbox.send()
    events = {
        json.loads(event.payload)["meta"]["local_proof_id"]: event for event in outbox.events()
    }
    now = outbox.tables.now
    assert {number: event.status for number, event in events.items()} == {
        1: "rejected", 2: "dead", 3: "pending", 4: "pending", 5: "pending",
    }  # fmt: skip
    assert events[1].drift == "HTTP 422: terminal_state"
    assert events[2].last_error == "HTTP 422: idempotency_key_reused: other body"
    assert events[3].available_at == now + 120_000_000
    assert {number: events[number].attempts for number in (3, 4, 5)} == {3: 1, 4: 0, 5: 1}
    assert events[4].available_at == now + 3_000_000


@pytest.mark.shows("I-54")
def test_an_event_dies_after_its_last_attempt(outbox: Outbox) -> None:
    outbox.write(1)
    outbox.remote.answer = away
    states: list[str] = []
    while found := outbox.send():
        states += found
        outbox.clock.advance(timedelta(hours=1))
    assert states == ["pending"] * (MOST_ATTEMPTS - 1) + ["dead"]
    event = outbox.event()
    assert (event.attempts, event.last_error) == (20, "ConnectError: connection refused")


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
    answers = iter([httpx.Response(502), httpx.Response(503)])
    outbox.remote.answer = lambda request: next(answers, None) or accept(request)
    assert outbox.send() == {"sent": 1}
    assert outbox.event().attempts == 0, "none has failed"
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


LOGIN = "<html><title>Sign in</title></html>"


@pytest.mark.shows("I-53")
def test_a_login_page_is_no_answer_of_the_remote(
    outbox: Outbox, caplog: pytest.LogCaptureFixture
) -> None:
    outbox.write(1, subject="a")
    outbox.write(2, subject="a")
    outbox.remote.answer = lambda request: httpx.Response(200, html=LOGIN)
    with caplog.at_level(logging.WARNING, "ulak.contracts.outbox"):
        assert outbox.send() == {"pending": 1}
    first = outbox.event(1)
    assert (first.status, first.attempts, first.response_json) == ("pending", 1, LOGIN)
    assert "no answer of the remote" in (first.last_error or "")
    assert "drift: the remote judges otherwise" in caplog.text
    found = figures.read(outbox.engine)
    assert (found.drift, found.failed, found.backlog) == (1, 1, 2)
    assert Limits().exceeded(found) == ["errors: 1 of 1 events failed, less than 0.1% may"]
    # The way to the remote is mended: nothing was lost, and what was there before is still told.
    outbox.remote.answer = accept
    outbox.clock.advance(timedelta(hours=1))
    assert outbox.send() == {"sent": 2}
    assert figures.read(outbox.engine).drift == 1


@pytest.mark.shows("I-53")
@pytest.mark.parametrize("where", ["body", "header"])
def test_an_answer_that_repeats_the_key_is_one_of_the_remote(outbox: Outbox, where: str) -> None:
    outbox.write(1)

    def answer(request: httpx.Request) -> httpx.Response:
        key = json.loads(request.content)["idempotency_key"]
        if where == "body":
            return httpx.Response(202, json={"idempotency_key": key})
        return httpx.Response(204, headers={"Idempotency-Key": key})

    outbox.remote.answer = answer
    assert outbox.send() == {"sent": 1}
    assert outbox.event().drift is None


@pytest.mark.shows("I-50")
def test_a_loop_that_is_stopped_awaits_what_it_is_sending_and_takes_no_more(
    outbox: Outbox,
) -> None:
    for number in range(A_FEW + 4):
        outbox.write(number, subject=str(number))

    def answer(request: httpx.Request) -> httpx.Response:
        os.kill(os.getpid(), signal.SIGTERM)
        return accept(request)

    outbox.remote.answer = answer
    _go_on(outbox.engine, 0.01)
    statuses = [event.status for event in outbox.events()]
    assert (statuses.count("sent"), statuses.count("pending")) == (A_FEW, 4)
    assert len(outbox.remote.asked) == A_FEW
    waiting = outbox.events(statuses=["pending"])
    assert {(event.attempts, event.available_at) for event in waiting} == {(0, outbox.tables.now)}


@pytest.mark.parametrize("failure", [StoreError, RuntimeError])
def test_a_round_that_fails_does_not_end_the_loop(
    outbox: Outbox, monkeypatch: pytest.MonkeyPatch, failure: type[Exception]
) -> None:
    outbox.write(1)
    real, failures = outbox.engine.store.take_messages, iter([True])

    def failing(*arguments: object, **options: object) -> list[OutboxRow]:
        if next(failures, False):
            raise failure("the disk is full")
        return real(*arguments, **options)

    monkeypatch.setattr(outbox.engine.store, "take_messages", failing)

    def answer(request: httpx.Request) -> httpx.Response:
        os.kill(os.getpid(), signal.SIGTERM)
        return accept(request)

    outbox.remote.answer = answer
    _go_on(outbox.engine, 0.01)
    assert [event.status for event in outbox.events()] == ["sent"]
