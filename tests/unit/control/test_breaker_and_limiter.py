"""The breaker and the limiter alone: time is passed in."""

import pytest

from ulak.control.breaker import BreakerState, BreakerTerms, FailureRateBreaker
from ulak.control.limiter import RateLimiter


def tell(breaker: FailureRateBreaker, now_ms: int, *, failed: bool) -> None:
    given = breaker.admit(now_ms)
    assert given is not None
    breaker.record(given, now_ms, failed=failed)


def opened(at_ms: int = 0) -> FailureRateBreaker:
    breaker = FailureRateBreaker(BreakerTerms())
    for _ in range(10):
        tell(breaker, at_ms, failed=True)
    return breaker


@pytest.mark.shows("A-9")
def test_it_opens_at_half_of_ten():
    breaker = FailureRateBreaker(BreakerTerms())
    for number in range(9):
        tell(breaker, number, failed=number < 5)
    assert breaker.state(9) == BreakerState.CLOSED, "nine are too few"
    tell(breaker, 9, failed=False)
    assert breaker.state(9) == BreakerState.CLOSED, "a success opens nothing"
    tell(breaker, 10, failed=True)
    assert breaker.state(10) == BreakerState.OPEN
    assert breaker.admit(10) is None


@pytest.mark.shows("A-9")
def test_below_half_it_stays_closed():
    breaker = FailureRateBreaker(BreakerTerms())
    for number in range(100):
        tell(breaker, number, failed=number % 100 >= 51)
    assert breaker.state(100) == BreakerState.CLOSED


@pytest.mark.shows("A-9")
def test_what_is_older_than_a_minute_does_not_count():
    breaker = FailureRateBreaker(BreakerTerms())
    for _ in range(9):
        tell(breaker, 0, failed=True)
    tell(breaker, 60_000, failed=True)
    assert breaker.state(60_000) == BreakerState.CLOSED
    early = FailureRateBreaker(BreakerTerms())
    for _ in range(9):
        tell(early, 0, failed=True)
    tell(early, 59_000, failed=True)
    assert early.state(59_000) == BreakerState.OPEN


@pytest.mark.shows("A-9")
def test_three_probes_close_it_and_no_fourth_is_let_through():
    breaker = opened()
    assert breaker.admit(29_999) is None
    probes = [breaker.admit(30_000) for _ in range(4)]
    assert [probe is not None for probe in probes] == [True, True, True, False]
    for probe in probes[:2]:
        breaker.record(probe, 30_001, failed=False)
    assert breaker.state(30_001) == BreakerState.HALF_OPEN
    breaker.record(probes[2], 30_002, failed=False)
    assert breaker.state(30_002) == BreakerState.CLOSED


@pytest.mark.shows("A-9")
def test_a_probe_that_fails_opens_it_again_for_the_whole_time():
    breaker = opened()
    tell(breaker, 30_000, failed=False)
    tell(breaker, 30_001, failed=True)
    assert breaker.admit(60_000) is None
    assert breaker.admit(60_001) is not None


def test_a_probe_that_says_nothing_gives_its_place_to_another():
    breaker = opened()
    given = [breaker.admit(30_000) for _ in range(3)]
    assert breaker.admit(30_000) is None
    breaker.release(given[0])
    assert breaker.admit(30_000) is not None


def test_probes_that_never_end_do_not_keep_it_half_open():
    breaker = opened()
    lost = [breaker.admit(30_000) for _ in range(3)]
    assert breaker.admit(59_999) is None
    assert breaker.admit(60_000) is not None
    breaker.record(lost[0], 60_001, failed=True)
    assert breaker.state(60_001) == BreakerState.HALF_OPEN, "of an earlier round"


def test_an_outcome_of_before_it_opened_says_nothing_about_now():
    breaker = FailureRateBreaker(BreakerTerms())
    slow = breaker.admit(0)
    for _ in range(10):
        tell(breaker, 0, failed=True)
    breaker.admit(30_000)
    breaker.record(slow, 30_000, failed=True)
    assert breaker.state(30_000) == BreakerState.HALF_OPEN


@pytest.mark.shows("A-9")
def test_a_window_is_a_minute_and_each_group_and_principal_has_its_own_count():
    limiter = RateLimiter()
    assert [limiter.take("reads", "ada", 2, 60_000) for _ in range(3)] == [0, 0, 60]
    assert limiter.take("reads", "olga", 2, 60_000) == 0
    assert limiter.take("writes", "ada", 2, 60_000) == 0
    assert limiter.take("reads", "ada", 2, 119_999) == 1
    assert limiter.take("reads", "ada", 2, 120_000) == 0


def test_however_many_ask_the_memory_is_bounded_and_nobody_is_let_through_uncounted():
    limiter = RateLimiter(most=10)
    assert [limiter.take("reads", f"p{n}", 3, 0) for n in range(10)] == [0] * 10
    assert [bool(limiter.take("reads", f"q{n}", 3, 0)) for n in range(5)] == [
        False, False, False, True, True,
    ]  # fmt: skip
    assert len(limiter._counts) == 11
