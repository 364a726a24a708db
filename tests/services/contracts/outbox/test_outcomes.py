"""What becomes of an event, for every answer that a remote may give."""

import json
from datetime import UTC, datetime, timedelta
from email.utils import format_datetime
from random import Random
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ulak.clock import SECOND, micros, to_datetime, to_instant
from ulak.services.contracts.outbox.outcomes import (
    CAP,
    LONGEST_RETRY,
    MOST_ATTEMPTS,
    Fault,
    Outcome,
    Reply,
    Uniform,
    delay_s,
    is_overdue,
    judge,
    seconds_of,
)

NOW = to_instant(datetime(2026, 1, 1, tzinfo=UTC))
GIVE_UP_AT = NOW + micros(LONGEST_RETRY)


def dice(seed: int) -> Uniform:
    return Random(seed).uniform  # noqa: S311 - a test that can be repeated


def judged(
    reply: Reply | Fault, *, attempts: int = 1, give_up_at: int = GIVE_UP_AT, seed: int = 7
) -> Outcome:
    return judge(reply, attempts=attempts, give_up_at=give_up_at, now=NOW, uniform=dice(seed))


def answer(status: int, retry_after: str | None = None, **members: Any) -> Reply:
    headers = {} if retry_after is None else {"retry-after": retry_after}
    return Reply(status, body=json.dumps(members).encode(), headers=headers)


@pytest.mark.shows("I-53")
@pytest.mark.parametrize(
    ("reply", "verdict"),
    [
        (answer(200, ok=True, proof_id=7), "sent"),
        (answer(201, ok=True), "sent"),
        (Reply(204), "sent"),
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
def test_what_is_still_in_progress_waits_as_told_and_is_not_counted() -> None:
    busy = answer(409, "5", code="idempotency_in_progress")
    for attempts in (1, MOST_ATTEMPTS, 5 * MOST_ATTEMPTS):
        outcome = judged(busy, attempts=attempts)
        assert (outcome.verdict, outcome.is_counted) == ("retry", False)
        assert outcome.retry_at == NOW + 5 * SECOND
        assert not outcome.is_failure
    # It does not last for ever all the same.
    assert judged(busy, give_up_at=NOW + 4 * SECOND).verdict == "dead"
    untold = judged(answer(409, code="idempotency_in_progress"))
    assert untold.retry_at == NOW + SECOND


FAILURES = [Fault("refused"), Reply(503), answer(404, ok=False, reason="subject_not_found")]


@pytest.mark.shows("I-54")
@given(st.integers(1, MOST_ATTEMPTS - 1), st.sampled_from(FAILURES), st.integers())
def test_a_retry_is_due_within_the_bound_of_its_number(
    attempts: int, reply: Reply | Fault, seed: int
) -> None:
    outcome = judged(reply, attempts=attempts, seed=seed)
    assert outcome.verdict == "retry"
    assert outcome.is_counted
    assert NOW <= outcome.retry_at <= NOW + SECOND * min(3600, 2 * 2**attempts)


@pytest.mark.shows("I-54")
def test_the_delay_is_uniform_from_nothing_to_the_bound() -> None:
    uniform = dice(1)
    for retry, bound in ((1, 4), (2, 8), (5, 64), (11, 3600), (100_000, 3600)):
        drawn = [delay_s(retry, uniform) for _ in range(2000)]
        assert 0 <= min(drawn) < bound * 0.01
        assert bound * 0.99 < max(drawn) <= bound
        assert sum(drawn) / len(drawn) == pytest.approx(bound / 2, rel=0.1)


@pytest.mark.shows("I-54")
@given(st.integers(0, 10**6), st.integers(1, MOST_ATTEMPTS - 1), st.integers(), st.booleans())
def test_the_longer_of_delay_and_retry_after_wins(
    told_s: int, attempts: int, seed: int, as_date: bool
) -> None:
    told = str(told_s)
    if as_date:
        told = format_datetime(to_datetime(NOW) + timedelta(seconds=told_s), usegmt=True)
    far = NOW + micros(timedelta(days=100))
    drawn = NOW + round(delay_s(attempts, dice(seed)) * SECOND)
    outcome = judged(answer(503, told), attempts=attempts, seed=seed, give_up_at=far)
    assert outcome.retry_at == max(drawn, NOW + told_s * SECOND)


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
    assert judged(Fault("refused"), attempts=MOST_ATTEMPTS - 1).verdict == "retry"
    last = judged(Fault("refused"), attempts=MOST_ATTEMPTS)
    assert (last.verdict, last.is_failure) == ("dead", True)
    assert "20 attempts" in last.why
    assert "refused" in last.why

    assert judged(Fault("refused"), give_up_at=NOW + micros(CAP)).verdict == "retry"
    late = judged(Fault("refused"), give_up_at=NOW - 1)
    assert late.verdict == "dead"
    # Who asks for more patience than there is learns so at once, and not in three days.
    assert judged(answer(503, "86400"), give_up_at=NOW + 86_399 * SECOND).verdict == "dead"


@pytest.mark.shows("I-54")
def test_what_was_never_sent_is_never_too_late() -> None:
    assert not is_overdue(was_tried=False, give_up_at=NOW - 1, now=NOW)
    assert is_overdue(was_tried=True, give_up_at=NOW - 1, now=NOW)
    assert not is_overdue(was_tried=True, give_up_at=NOW, now=NOW)


members = st.dictionaries(
    st.sampled_from(["ok", "code", "reason", "detail"]),
    st.none() | st.booleans() | st.text() | st.lists(st.text())
    | st.sampled_from(["subject_not_found", "idempotency_in_progress", "idempotency_key_reused"]),
)  # fmt: skip
bodies = st.binary() | members.map(lambda found: json.dumps(found).encode())


@pytest.mark.shows("I-53")
@given(st.integers(100, 599), bodies, st.integers(1, 30), st.integers(-10, 10**12))
def test_any_answer_has_exactly_one_outcome(
    status: int, body: bytes, attempts: int, left: int
) -> None:
    reply = Reply(status, body=body)
    outcome = judged(reply, attempts=attempts, give_up_at=NOW + left)
    assert (outcome.retry_at is not None) == (outcome.verdict == "retry")
    if outcome.verdict == "retry":
        assert NOW <= outcome.retry_at <= NOW + left
        assert attempts < MOST_ATTEMPTS or not outcome.is_counted
    if outcome.verdict == "sent":
        assert 200 <= status < 300
        assert reply.document.get("ok") is not False
    if outcome.verdict == "rejected":
        assert reply.document.get("ok") is False
    outcome.why.encode()  # a database takes it
    assert "\x00" not in outcome.why
    assert bool(outcome.why) == (outcome.verdict != "sent")
