"""What becomes of a delivery that was not made."""

from datetime import timedelta
from typing import Any

import pytest

from ulak import Backoff, Refused, RetryLater
from ulak.clock import SECOND
from ulak.core.delivery import DEAD, PENDING, REFUSED, Terms, Verdict, is_overdue, judge

NOW = 1_000 * SECOND
TERMS = Terms(Backoff(delays=[timedelta(seconds=1), timedelta(seconds=5)]))


def judged(
    error: BaseException, *, tries: int = 0, give_up_at: int | None = None, terms: Terms = TERMS
) -> Verdict:
    return judge(error, terms, NOW, tries=tries, give_up_at=give_up_at, seed=b"0" * 16)


@pytest.mark.shows("E-70")
def test_a_failure_is_tried_again_by_the_schedule_and_then_dead() -> None:
    verdicts = [judged(OSError("gone"), tries=n) for n in range(3)]
    assert [(v.state, v.not_before - NOW, v.spends_try) for v in verdicts] == [
        (PENDING, SECOND, True), (PENDING, 5 * SECOND, True), (DEAD, 0, True),
    ]  # fmt: skip
    assert {v.error for v in verdicts} == {"OSError: gone"}


@pytest.mark.shows("E-70")
def test_a_refusal_is_final_at_the_first_try() -> None:
    assert judged(Refused("no such customer")) == Verdict(REFUSED, NOW, True, "no such customer")
    assert judged(Refused()).error == "refused"
    assert judged(Refused("gone", dead=True)) == Verdict(DEAD, NOW, True, "gone")


@pytest.mark.shows("E-70")
@pytest.mark.parametrize("tries", [0, 2, 50])
def test_later_spends_no_try_unless_it_says_so(tries: int) -> None:
    after = timedelta(seconds=30)
    later = judged(RetryLater(after, why="busy"), tries=tries)
    assert later == Verdict(PENDING, NOW + 30 * SECOND, False, "busy")
    spent = judged(RetryLater(after, spend_attempt=True), tries=tries)
    assert (spent.state, spent.spends_try) == (PENDING if tries < 2 else DEAD, True)
    if tries < 2:
        assert spent.not_before == NOW + 30 * SECOND


@pytest.mark.shows("E-70")
@pytest.mark.parametrize("after", [float("nan"), -1, "soon", True])
def test_a_later_that_is_no_time_is_a_failure(after: Any) -> None:
    verdict = judged(RetryLater(after))
    assert (verdict.state, verdict.not_before, verdict.spends_try) == (PENDING, NOW + SECOND, True)
    assert verdict.error.startswith("BadInput: RetryLater(after=)")


@pytest.mark.shows("E-70")
def test_a_delivery_whose_time_is_over_is_dead() -> None:
    soon = NOW + SECOND
    assert judged(OSError("gone"), give_up_at=soon + 1).state == PENDING
    for error in (OSError("gone"), RetryLater(1)):
        verdict = judged(error, give_up_at=soon)
        assert verdict.state == DEAD
        assert verdict.error.startswith("its time is over; before that: ")
    assert not is_overdue(0, NOW, NOW), "it was never tried"
    assert is_overdue(1, NOW, NOW)
    assert not is_overdue(1, NOW + 1, NOW)
    assert not is_overdue(1, None, NOW)


def test_an_error_is_kept_as_a_text_that_every_store_takes() -> None:
    assert judged(ValueError()).error == "ValueError"
    assert judged(ValueError("a\x00b\ud800")).error == "ValueError: a\ufffdb?"
    assert len(judged(ValueError("x" * 100_000)).error) < 10_000
