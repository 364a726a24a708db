"""How fast counters rise, worked out by hand, and the quantile of rates that are added up."""

import math
from dataclasses import replace
from itertools import accumulate, pairwise
from operator import add

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ulak.control.rate import (
    HistogramSnapshot,
    bucket_rates,
    covered_share,
    increase,
    quantile_over,
    rate,
    snapshot_family,
)
from ulak.control.tallies import Histogram

INF, NAN = math.inf, math.nan
WINDOW_MS = 300_000


def points(*at: tuple[float, float]) -> list[tuple[int, float]]:
    return [(round(seconds * 1000), value) for seconds, value in at]


def each(step: float, start: float, *values: float) -> list[tuple[int, float]]:
    return points(*((start + i * step, value) for i, value in enumerate(values)))


def rise(found: list[tuple[int, float]]) -> float:
    return increase(found, WINDOW_MS, WINDOW_MS)


# --- one counter ------------------------------------------------------------------------


@pytest.mark.shows("A-23")
def test_a_rate_is_the_increase_in_a_second() -> None:
    found = each(60, 30, 100, 160, 220, 280, 340)
    # 240 in 240 s, with 30 s uncovered at both ends
    assert rise(found) == 300.0
    assert rate(found, WINDOW_MS, WINDOW_MS) == 1.0


@pytest.mark.shows("A-23")
def test_fewer_than_two_points_have_no_rate() -> None:
    for found in ([], points((100, 5)), points((-1, 5), (100, 6)), points((100, 5), (301, 6))):
        assert math.isnan(rise(found))
        assert math.isnan(rate(found, WINDOW_MS, WINDOW_MS))
    assert math.isnan(rise(points((100, 5), (100, 6))))


@pytest.mark.shows("A-23")
def test_at_each_drop_the_value_before_it_is_added() -> None:
    # 60 - 50, and 80 and 90 before the drops, in 240 s of 300
    assert rise(each(60, 30, 50, 80, 10, 90, 60)) == (60 - 50 + 80 + 90) * 300 / 240


@pytest.mark.shows("A-23")
def test_a_near_edge_is_extrapolated_to_and_a_far_one_by_half_a_spacing() -> None:
    # spacing 50: the left edge is 54.9 away, under 1.1 spacings, and the right one 95.1
    assert rise(each(50, 54.9, 1000, 1010, 1020, 1030)) == pytest.approx(
        30 * (150 + 54.9 + 25) / 150
    )
    # exactly 1.1 spacings are far
    assert rise(each(30, 33, 1000, 1010, 1020, 1030)) == pytest.approx(30 * (90 + 15 + 15) / 90)


@pytest.mark.shows("A-23")
def test_a_counter_was_never_below_zero() -> None:
    # 20 s before the first point it was zero; the edge is 40 s away
    assert rise(each(60, 40, 20, 80, 140, 200, 260)) == 240 * (240 + 20 + 20) / 240
    # where it did not rise there is no such time
    assert rise(each(60, 40, 7, 7, 7, 7, 7)) == 0
    # and below zero there is none either
    assert rise(each(60, 40, -7, -6, -5, -4, -3)) == 4 * 300 / 240


@pytest.mark.shows("A-23")
def test_what_is_not_a_number_stays_none() -> None:
    assert math.isnan(rise(each(60, 30, NAN, 1, 2)))
    assert math.isnan(rise(each(60, 30, 1, 2, NAN)))
    assert rise(each(60, 30, 100, 110, INF)) == INF


# In these, 2.42 answers otherwise: it takes the left edge into the window.


@pytest.mark.shows("A-23")
def test_a_point_on_the_left_edge_is_outside() -> None:
    # 110 to 150 in 240 s, and 60 to the edge: 50; 2.42 takes 150 - 0 in 300 s
    assert rise(points((0, 0), (60, 110), (120, 120), (180, 130), (240, 140), (300, 150))) == 50.0


@pytest.mark.shows("A-23")
def test_one_point_beside_the_one_on_the_left_edge_is_too_few() -> None:
    assert math.isnan(rise(points((0, 100), (300, 200))))


@pytest.mark.shows("A-23")
def test_a_restart_right_after_the_left_edge_is_none_of_the_window() -> None:
    # 10 to 50 in 240 s; it was zero 60 s before the first, which is the edge; 2.42: 950 and more
    assert rise(points((0, 900), (60, 10), (120, 20), (180, 30), (240, 40), (300, 50))) == 50.0


@pytest.mark.shows("A-23")
def test_a_point_a_millisecond_inside_the_left_edge_counts() -> None:
    found = points((0.001, 0), (60, 110), (120, 120), (180, 130), (240, 140), (300, 150))
    assert rise(found) == 150.0


@pytest.mark.shows("A-23")
def test_a_counter_that_begins_in_the_window_is_extrapolated_by_half_a_spacing_at_most() -> None:
    # The edge is four spacings away, so half a spacing; that it was zero only a whole one before
    # does not widen this. 2.42 goes to the zero: 70.
    assert rise(each(30, 120, 10, 20, 30, 40, 50, 60, 70)) == 60 * (180 + 15) / 180


# --- histograms of several processes ------------------------------------------------------


EDGES = (0.5, 1.0, INF)


def history(
    *rows: tuple[float, dict[tuple[str, ...], tuple[float, ...]]],
) -> list[HistogramSnapshot]:
    return [HistogramSnapshot(round(s * 1000), EDGES, series) for s, series in rows]


@pytest.mark.shows("A-24")
def test_rates_are_added_up_per_edge_over_instances_and_labels() -> None:
    one = history(
        (30, {("a",): (0, 0, 0), ("b",): (10, 10, 10)}),
        (270, {("a",): (240, 240, 240), ("b",): (10, 250, 250)}),
    )
    two = history((30, {("a",): (500, 500, 500)}), (270, {("a",): (500, 500, 980)}))
    # extrapolated by 30 s at both ends, where the counter was not zero
    rates = bucket_rates([one, two], WINDOW_MS, WINDOW_MS)
    assert rates[0.5] == pytest.approx(rate(points((30, 0), (270, 240)), WINDOW_MS, WINDOW_MS))
    assert rates[1.0] - rates[0.5] == pytest.approx(
        rate(points((30, 10), (270, 250)), WINDOW_MS, WINDOW_MS)
    )
    assert rates[INF] - rates[1.0] == pytest.approx(480 * 300 / 240 / 300)
    # A mean of the instances' own quantiles would lie at neither.
    assert quantile_over(0.95, [one, two], WINDOW_MS, WINDOW_MS).is_saturated
    assert quantile_over(0.10, [one, two], WINDOW_MS, WINDOW_MS).value < 0.5


@pytest.mark.shows("A-23", "A-24")
def test_a_process_that_restarts_is_a_counter_that_restarts() -> None:
    one = history(
        (60, {(): (100, 100, 100)}), (120, {(): (200, 200, 210)}),
        (180, {(): (5, 5, 9)}), (240, {(): (50, 60, 70)}),
    )  # fmt: skip
    for edge, counts in zip(
        EDGES, ((100, 200, 5, 50), (100, 200, 5, 60), (100, 210, 9, 70)), strict=True
    ):
        expected = rate(each(60, 60, *counts), WINDOW_MS, WINDOW_MS)
        assert bucket_rates([one], WINDOW_MS, WINDOW_MS)[edge] == expected


@pytest.mark.shows("A-24")
def test_edges_that_change_with_a_release_are_counters_of_their_own() -> None:
    rows = [
        HistogramSnapshot(60_000, (1.0, INF), {(): (1, 2)}),
        HistogramSnapshot(120_000, (1.0, INF), {(): (3, 4)}),
        HistogramSnapshot(180_000, (1.0, 2.0, INF), {(): (5, 6, 7)}),
    ]
    rates = bucket_rates([rows], WINDOW_MS, WINDOW_MS)
    assert rates == {
        1.0: rate(each(60, 60, 1, 3, 5), WINDOW_MS, WINDOW_MS),
        INF: rate(each(60, 60, 2, 4, 7), WINDOW_MS, WINDOW_MS),
    }


@pytest.mark.shows("A-23", "A-24")
def test_a_nan_quantile_comes_of_no_traffic_no_points_and_no_numbers() -> None:
    idle = history((60, {(): (5, 5, 5)}), (120, {(): (5, 5, 5)}))
    lone = history((60, {(): (5, 5, 5)}))
    broken = history((60, {(): (5, NAN, 5)}), (120, {(): (6, 7, 8)}))
    for histories in ([idle], [lone], [broken], [broken, idle], [], [[]]):
        assert math.isnan(quantile_over(0.95, histories, WINDOW_MS, WINDOW_MS).value)


@pytest.mark.shows("A-24")
def test_labels_that_appear_later_have_a_window_of_their_own() -> None:
    rows = history(
        (30, {("a",): (1, 2, 3)}),
        (90, {("a",): (2, 3, 4), ("b",): (1, 1, 1)}),
        (150, {("a",): (3, 4, 5), ("b",): (9, 9, 9)}),
    )
    assert bucket_rates([rows], WINDOW_MS, WINDOW_MS)[0.5] == pytest.approx(
        rate(each(60, 30, 1, 2, 3), WINDOW_MS, WINDOW_MS)
        + rate(each(60, 90, 1, 9), WINDOW_MS, WINDOW_MS)
    )


rows_of_counts = st.lists(st.tuples(*[st.integers(0, 50)] * 3), min_size=2, max_size=8)


@given(rows_of_counts, st.booleans(), st.booleans())
@pytest.mark.shows("A-24")
def test_one_series_has_the_rates_of_its_counters(
    rows: list[tuple[int, int, int]], is_rising: bool, are_compared: bool
) -> None:
    if is_rising:
        rows = list(accumulate(rows, lambda one, other: tuple(map(add, one, other))))
    snapshots = history(*((20 + 30 * i, {(): row}) for i, row in enumerate(rows)))
    if are_compared:  # as the collector does, so that rising counts take the shorter way
        snapshots[1:] = [
            replace(after, continues=after.follows(before)) for before, after in pairwise(snapshots)
        ]
    expected = {
        edge: rate(each(30, 20, *column), WINDOW_MS, WINDOW_MS)
        for edge, column in zip(EDGES, zip(*rows, strict=True), strict=True)
    }
    assert bucket_rates([snapshots], WINDOW_MS, WINDOW_MS) == pytest.approx(expected, rel=1e-12)


@pytest.mark.shows("A-23")
def test_a_snapshot_continues_what_neither_fell_nor_vanished_nor_changed() -> None:
    before = HistogramSnapshot(1, EDGES, {("a",): (1, 2, 3)})
    for series, expected in (
        ({("a",): (1, 2, 3)}, True), ({("a",): (1, 2, 9), ("b",): (0, 0, 0)}, True),
        ({("a",): (0, 2, 9)}, False), ({("b",): (1, 2, 3)}, False), ({}, False),
        ({("a",): (NAN, 2, 3)}, False),
    ):  # fmt: skip
        assert HistogramSnapshot(2, EDGES, series).follows(before) is expected
    assert not HistogramSnapshot(2, (0.5, 2.0, INF), {("a",): (1, 2, 3)}).follows(before)


@pytest.mark.shows("A-17")
def test_an_edge_is_covered_by_two_points_of_any_one_series() -> None:
    lone = history((60, {("a",): (1, 1, 1)}), (120, {("b",): (1, 1, 1)}))
    assert covered_share([lone], WINDOW_MS, WINDOW_MS) == 0.0
    assert covered_share([lone, lone], WINDOW_MS, WINDOW_MS) == 0.0
    twice = history((60, {("a",): (1, 1, 1)}), (120, {("a",): (1, 1, 1)}))
    assert covered_share([lone, twice], WINDOW_MS, WINDOW_MS) == 1.0
    # a point on the left edge is outside, as it is for the rate
    old = history((0, {("a",): (1, 1, 1)}), (120, {("a",): (1, 1, 1)}))
    assert covered_share([old], WINDOW_MS, WINDOW_MS) == 0.0
    wider = [*twice, HistogramSnapshot(180_000, (0.5, 1.0, 2.0, INF), {("a",): (1, 1, 1, 1)})]
    assert covered_share([wider], WINDOW_MS, WINDOW_MS) == 0.75
    assert covered_share([], WINDOW_MS, WINDOW_MS) == 0.0


def test_a_histogram_of_a_process_becomes_a_snapshot() -> None:
    histogram = Histogram("x", "help", (0.5, 1.0), ("path",))
    histogram.observe(("/a",), [0.1, 0.7, 0.7, 9.0])
    snapshot = snapshot_family(histogram.read(), 5)
    assert snapshot == HistogramSnapshot(5, EDGES, {("/a",): (1, 3, 4)})
