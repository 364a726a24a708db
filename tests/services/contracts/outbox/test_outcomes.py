"""What becomes of an event, for every answer that a remote may give."""

import json
from datetime import UTC, datetime, timedelta
from email.utils import format_datetime
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ulak import Message, Refused, RetryLater
from ulak.clock import SECOND, micros, to_datetime, to_instant
from ulak.core import delivery
from ulak.core.delivery import Terms, Verdict
from ulak.services.contracts.outbox.remote import Fault, Reply
from ulak.services.contracts.outbox.sending import (
    MOST_ATTEMPTS,
    RETRY,
    Outcome,
    Sender,
    judge,
    seconds_of,
)
from ulak.services.contracts.outbox.settings import LONGEST_RETRY

NOW = to_instant(datetime(2026, 1, 1, tzinfo=UTC))
GIVE_UP_AT = NOW + micros(LONGEST_RETRY)
KEY = "pazar:proof:status_change:7"
SENT = {"idempotency_key": KEY, "from": "pending", "to": "paid"}


def judged(reply: Reply | Fault) -> Outcome:
    return judge(reply, SENT, now=NOW)


def ended(reply: Reply | Fault, *, tries: int = 0, give_up_at: int = GIVE_UP_AT) -> Verdict:
    """What the engine makes of an answer, of an event with so many failures before it."""
    sender = Sender.__new__(Sender)
    sender._retry = RETRY
    data = {"tenant_id": "acme", "aggregate": "order:1", "idempotency_key": KEY}
    message = Message("m", "", "t", "k", data, to_datetime(NOW), tries)
    with pytest.raises((RetryLater, Refused)) as raised:
        sender._end(message, judged(reply))
    terms = Terms(RETRY, micros(LONGEST_RETRY), block=True)
    return delivery.judge(
        raised.value, terms, NOW, tries=tries, give_up_at=give_up_at, seed=b"m"
    )  # fmt: skip


def answer(status: int, retry_after: str | None = None, **members: Any) -> Reply:
    headers = {} if retry_after is None else {"retry-after": retry_after}
    return Reply(status, body=json.dumps(members).encode(), headers=headers)


@pytest.mark.shows("I-53")
@pytest.mark.parametrize(
    ("reply", "verdict"),
    [
        (answer(200, ok=True, proof_id=7), "sent"),
        (answer(201, ok=True), "sent"),
        (Reply(204), "retry"),
        (Reply(204, headers={"idempotency-key": KEY}), "sent"),
        (answer(202, idempotency_key=KEY), "sent"),
        (answer(200, idempotency_key="pazar:proof:status_change:8"), "retry"),
        (answer(200), "retry"),
        (answer(200, ok="yes"), "retry"),
        (Reply(200, body=b"<html><title>Sign in</title></html>"), "retry"),
        (answer(200, ok=False, reason="terminal_state"), "rejected"),
        (answer(422, ok=False, reason="invalid_transition"), "rejected"),
        (answer(422, ok=False, reason="unknown_subject_type"), "rejected"),
        (answer(409, ok=False, reason="stale_status"), "rejected"),
        (answer(409, ok=False, reason="stale_version"), "rejected"),
        (answer(404, ok=False, reason="subject_not_found", retryable=True), "retry"),
        (answer(404, code="subject_not_found"), "retry"),
        (answer(404, code="not-found"), "dead"),
        (Reply(404, body=b"<h1>no such page</h1>"), "dead"),
        (answer(422, code="idempotency_key_reused"), "dead"),
        (answer(422, code="tenant_mismatch"), "dead"),
        (answer(400, code="idempotency_key_invalid"), "dead"),
        (Reply(400), "dead"),
        (answer(410, code="WORLD_CLOSED"), "dead"),
        (Reply(405), "dead"),
        (Reply(413), "dead"),
        (answer(409, code="idempotency_response_not_stored"), "dead"),
        (answer(409, code="idempotency_in_progress"), "retry"),
        (answer(409, code="idempotency_lease_lost"), "retry"),
        (Reply(409), "retry"),
        (answer(503, code="idempotency_store_unavailable"), "retry"),
        (answer(401, code="unauthenticated"), "retry"),
        (answer(403, code="forbidden"), "retry"),
        (Reply(408), "retry"),
        (Reply(425), "retry"),
        (answer(429, ok=False, reason="slow_down"), "retry"),
        (Reply(500, body=b"\xff"), "retry"),
        (answer(502, ok=False, reason="upstream"), "retry"),
        (Reply(302), "retry"),
        (Fault("no answer within 1.5 s"), "retry"),
    ],
    ids=lambda value: str(getattr(value, "status", value))[:20],
)
def test_each_answer_has_its_outcome(reply: Reply | Fault, verdict: str) -> None:
    assert judged(reply).verdict == verdict


@pytest.mark.shows("I-53")
def test_the_words_of_an_answer_decide_before_its_status() -> None:
    # The same number, three meanings.
    assert judged(answer(409, code="idempotency_in_progress")).verdict == "retry"
    assert judged(answer(409, ok=False, reason="stale_status")).verdict == "rejected"
    assert judged(answer(409, code="idempotency_response_not_stored")).verdict == "dead"


@pytest.mark.shows("I-53")
def test_what_is_no_answer_of_the_remote_is_drift_and_a_failure() -> None:
    outcome = judged(Reply(200, body=b"<html>", headers={"retry-after": "5"}))
    assert (outcome.verdict, outcome.is_failure, outcome.wait.total_seconds()) == ("retry", True, 5)
    assert outcome.drift == outcome.why
    assert "HOS_BASE_URL" in outcome.why


@pytest.mark.shows("I-53")
def test_what_is_still_in_progress_waits_as_told_and_is_not_counted() -> None:
    busy = answer(409, "5", code="idempotency_in_progress")
    assert not judged(busy).is_failure
    for tries in (0, MOST_ATTEMPTS - 1, 5 * MOST_ATTEMPTS):
        end = ended(busy, tries=tries)
        assert (end.state, end.spends_try, end.not_before) == ("pending", False, NOW + 5 * SECOND)
    # It does not last for ever all the same.
    assert ended(busy, give_up_at=NOW + 4 * SECOND).state == "dead"
    untold = answer(409, code="idempotency_in_progress")
    assert ended(untold).not_before == NOW + SECOND


FAILURES = [Fault("refused"), Reply(503), answer(404, ok=False, reason="subject_not_found")]


@pytest.mark.shows("I-54")
@given(st.integers(1, MOST_ATTEMPTS - 1), st.sampled_from(FAILURES))
def test_a_retry_is_due_within_the_bound_of_its_number(attempts: int, reply: Reply | Fault) -> None:
    end = ended(reply, tries=attempts - 1)
    assert (end.state, end.spends_try) == ("pending", True)
    assert NOW <= end.not_before <= NOW + SECOND * min(3600, 2 * 2**attempts)


@pytest.mark.shows("I-54")
def test_the_delay_is_uniform_from_nothing_to_the_bound() -> None:
    for retry, bound in ((1, 4), (2, 8), (5, 64), (11, 3600), (19, 3600)):
        waits = [RETRY.delay_us(retry, str(n).encode()) for n in range(2000)]
        drawn = [wait / SECOND for wait in waits if wait is not None]
        assert len(drawn) == 2000
        assert 0 <= min(drawn) < bound * 0.01
        assert bound * 0.99 < max(drawn) <= bound
        assert sum(drawn) / len(drawn) == pytest.approx(bound / 2, rel=0.1)


@pytest.mark.shows("I-54")
@given(st.integers(0, 10**5), st.integers(0, MOST_ATTEMPTS - 2), st.booleans())
def test_the_longer_of_delay_and_retry_after_wins(told_s: int, tries: int, as_date: bool) -> None:
    told = str(told_s)
    if as_date:
        told = format_datetime(to_datetime(NOW) + timedelta(seconds=told_s), usegmt=True)
    drawn = RETRY.delay_us(tries + 1, b"m")
    assert drawn is not None
    end = ended(answer(503, told), tries=tries)
    assert end.not_before == NOW + max(drawn, told_s * SECOND)


@pytest.mark.parametrize(
    ("header", "expected"),
    [
        (None, 0), ("", 0), ("soon", 0), ("-3", 0), ("1.5", 0), ("\u0663", 0), (" 7 ", 7),
        ("Thu, 01 Jan 2026 00:00:30 GMT", 30), ("Thu, 01 Jan 2026 00:00:30 -0000", 30),
        ("Wed, 31 Dec 2025 23:59:00 GMT", 0), ("Thu, 99 Jan 2026 00:00:30 GMT", 0),
    ],
)  # fmt: skip
def test_retry_after_is_read_as_seconds_or_a_date(header: str | None, expected: int) -> None:
    assert seconds_of(header, NOW) == expected


@given(st.text() | st.integers().map(str) | st.just("9" * 5000))
def test_no_retry_after_is_too_odd_to_be_read(header: str) -> None:
    assert 0 <= seconds_of(header, NOW) <= timedelta(days=366).total_seconds()


@pytest.mark.shows("I-54")
def test_after_twenty_attempts_or_three_days_it_is_dead() -> None:
    refused = Fault("refused")
    assert ended(refused, tries=MOST_ATTEMPTS - 2).state == "pending"
    last = ended(refused, tries=MOST_ATTEMPTS - 1)
    assert (last.state, last.error) == ("dead", "refused")
    assert judged(refused).is_failure

    assert ended(refused, give_up_at=NOW + 3600 * SECOND + 1).state == "pending"
    assert ended(refused, give_up_at=NOW - 1).state == "dead"
    # Who asks for more patience than there is learns so at once, and not in three days.
    assert ended(answer(503, "86400"), give_up_at=NOW + 86_399 * SECOND).state == "dead"


@pytest.mark.shows("I-53")
def test_what_is_rejected_and_what_is_dead_end_at_once() -> None:
    assert ended(answer(422, ok=False, reason="terminal_state")).state == "refused"
    assert ended(answer(410, code="WORLD_CLOSED")).state == "dead"


members = st.dictionaries(
    st.sampled_from(["ok", "code", "reason", "detail"]),
    st.none() | st.booleans() | st.text() | st.lists(st.text())
    | st.sampled_from(["subject_not_found", "idempotency_in_progress", "idempotency_key_reused"]),
)  # fmt: skip
bodies = st.binary() | members.map(lambda found: json.dumps(found).encode())


@pytest.mark.shows("I-53")
@given(st.integers(100, 599), bodies)
def test_any_answer_has_exactly_one_outcome(status: int, body: bytes) -> None:
    reply = Reply(status, body=body)
    outcome = judged(reply)
    assert (outcome.wait > timedelta()) <= (outcome.verdict == "retry")
    assert outcome.is_counted or outcome.verdict == "retry"
    if outcome.verdict == "sent":
        assert 200 <= status < 300
        assert reply.document.get("ok") is True
    if outcome.verdict == "rejected":
        assert reply.document.get("ok") is False
    outcome.why.encode()  # a database takes it
    assert "\x00" not in outcome.why
    assert bool(outcome.why) == (outcome.verdict != "sent")
