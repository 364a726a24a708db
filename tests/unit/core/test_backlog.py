"""Counts of lanes become counts of flows and queues."""

from datetime import UTC, datetime

import pytest

from ulak.clock import SECOND, to_instant
from ulak.core.backlog import (
    MOST_ENDS,
    RATE_OVER_US,
    Backlog,
    EndCount,
    LaneCount,
    Standing,
    add_up,
)

NOON = datetime(2026, 1, 31, 12, tzinfo=UTC)
AT = to_instant(NOON)


def standing(
    *counts: LaneCount,
    ends: list[EndCount] | None = None,
    totals: dict[tuple[str, str], int] | None = None,
) -> Standing:
    return Standing(AT, list(counts), {}, {}, ends or [], totals or {})


@pytest.mark.shows("E-74")
def test_lanes_of_one_flow_and_queue_are_counted_together() -> None:
    found = add_up(
        standing(
            LaneCount("print/loop/label@1#a", "due", 3),
            LaneCount("print/thread/label@2#b", "due", 4),
            LaneCount("print/loop/label@1#a", "delayed", 1),
            LaneCount("post/loop/label@1#c", "parked", 5),
            LaneCount("print/loop/fair@1#a/acme", "leased", 2),
            LaneCount("print/loop/fair@1#a/beta", "leased", 2),
        ),
        {},
    )
    assert found == [
        Backlog("fair", "print", leased=4),
        Backlog("label", "post", parked=5),
        Backlog("label", "print", due=7, delayed=1),
    ]


@pytest.mark.shows("E-74")
def test_one_count_that_is_not_exact_makes_its_kind_at_least() -> None:
    (found,) = add_up(
        standing(
            LaneCount("q/loop/f@1#a", "due", 10_000, is_exact=False),
            LaneCount("q/loop/f@1#b", "due", 5),
            LaneCount("q/loop/f@1#b", "delayed", 6),
        ),
        {},
    )
    assert (found.due, found.delayed, found.at_least) == (10_005, 6, {"due"})


@pytest.mark.shows("E-74")
@pytest.mark.parametrize(
    ("more", "total", "expected"),
    [
        ([], 90_000, (89_993, frozenset())),
        (
            [LaneCount("q/loop/f@1#b", "delayed", 1, is_exact=False)],
            90_000,
            (500, {"due", "delayed"}),
        ),
        ([LaneCount("other/loop/f@1#b", "delayed", 1)], 90_000, (500, {"due"})),
        ([], 400, (500, {"due"})),
    ],
    ids=["one kind", "two kinds", "two queues", "counted at another moment"],
)
def test_the_one_kind_that_was_not_counted_to_its_end_is_the_rest_of_the_flow(
    more: list[LaneCount], total: int, expected: tuple[int, object]
) -> None:
    counts = [
        LaneCount("q/loop/f@1#a", "due", 500, is_exact=False),
        LaneCount("q/loop/f@1#a", "delayed", 3),
        LaneCount("q/loop/f@1#a", "leased", 4),
    ]
    totals = {("f", "ready"): total - 4, ("f", "busy"): 4, ("f", "done"): 1_000, ("f", "held"): 2}
    found = {row.queue: row for row in add_up(standing(*counts, *more, totals=totals), {})}
    assert (found["q"].due, found["q"].at_least) == expected


@pytest.mark.shows("E-74")
def test_held_jobs_are_counted_apart_in_the_queue_of_their_flow() -> None:
    found = add_up(
        standing(
            LaneCount("print/loop/label@1#a", "due", 3),
            totals={("label", "held"): 2, ("label", "ready"): 3, ("foreign", "held"): 1},
        ),
        {"label": "print"},
    )
    assert found == [
        Backlog("foreign", "foreign", held=1),
        Backlog("label", "print", due=3, held=2),
    ]


@pytest.mark.shows("E-74")
def test_the_oldest_due_job_of_all_lanes_is_told() -> None:
    lanes = {"q/loop/f@1#a": AT - SECOND, "q/loop/f@1#b": AT - 2 * SECOND}
    counts = [LaneCount(lane, "due", 1) for lane in lanes]
    (found,) = add_up(Standing(AT, counts, lanes, lanes, [], {}), {})
    assert found.oldest_leased == found.oldest_due
    assert found.oldest_due == datetime(2026, 1, 31, 11, 59, 58, tzinfo=UTC)


@pytest.mark.shows("E-74")
def test_a_rate_is_of_the_last_minute() -> None:
    ends = [EndCount("f", "done", 90, AT - SECOND), EndCount("f", "failed", 30, AT - SECOND)]
    (found,) = add_up(standing(ends=ends), {})
    assert (found.flow, found.queue) == ("f", "f")
    assert (found.ended_per_second, found.done_per_second) == (2.0, 1.5)


@pytest.mark.shows("E-74")
def test_a_rate_of_many_ends_is_of_the_time_in_which_they_came() -> None:
    ends = [
        EndCount("f", "done", MOST_ENDS - 10, AT - 4 * SECOND),
        EndCount("g", "done", 10, AT - 5 * SECOND),
    ]
    f, g = add_up(standing(ends=ends), {})
    assert (f.ended_per_second, g.ended_per_second) == ((MOST_ENDS - 10) / 5, 2.0)
    assert 5 * SECOND < RATE_OVER_US
