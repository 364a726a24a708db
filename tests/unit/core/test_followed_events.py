"""How events come together for a follower, and what becomes of those that failed."""

import pytest

from ulak import Backoff, Refused, RetryLater
from ulak.clock import SECOND
from ulak.core.delivery import DEAD, PENDING, REFUSED, Terms, count_whole, judge_events
from ulak.core.job import Event

NOW = 1_000 * SECOND
TERMS = Terms(Backoff(1, delays=[5]), block=True)


def events(*commits: str) -> list[Event]:
    """Make events of these commits."""
    return [
        Event(b"j" * 16, n, "moved", None, "s", "a", None, None, None, 1, 0, None, 0, None, 0, 0, c)
        for n, c in enumerate((text.encode() for text in commits), 1)
    ]


@pytest.mark.shows("E-71")
@pytest.mark.parametrize(
    ("commits", "limit", "whole"),
    [("aabb", 9, 4), ("aabb", 4, 4), ("aabb", 3, 2), ("aabb", 2, 2), ("aabb", 1, 1), ("", 3, 0)],
)
def test_a_batch_ends_with_a_commit(commits: str, limit: int, whole: int) -> None:
    assert count_whole(events(*commits), limit) == whole


@pytest.mark.shows("E-71")
def test_of_several_jobs_each_is_tried_again_alone_and_spends_nothing() -> None:
    for error in (OSError("gone"), Refused("no")):
        verdict = judge_events(error, TERMS, NOW, tries=0, jobs=3, seed=b"")
        assert (verdict.state, verdict.not_before, verdict.spends_try) == (PENDING, NOW, False)
    later = judge_events(RetryLater(30), TERMS, NOW, tries=0, jobs=3, seed=b"")
    assert (later.state, later.not_before) == (PENDING, NOW + 30 * SECOND)


@pytest.mark.shows("E-71")
def test_a_job_alone_is_tried_by_the_schedule_and_then_dead() -> None:
    def judge(error: BaseException, tries: int) -> tuple[str, int]:
        verdict = judge_events(error, TERMS, NOW, tries=tries, jobs=1, seed=b"")
        return verdict.state, verdict.not_before - NOW

    assert judge(OSError("gone"), 0) == (PENDING, 5 * SECOND)
    assert judge(OSError("gone"), 1) == (DEAD, 0)
    assert judge(Refused("no"), 0) == (REFUSED, 0)
