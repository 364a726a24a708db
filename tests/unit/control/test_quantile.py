"""The quantile of classic buckets, each step of the rule worked out by hand."""

import math
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ulak.control.quantile import Quantile, histogram_quantile

INF, NAN = math.inf, math.nan


def quantile(q: float, buckets: dict[float, float]) -> Quantile:
    return histogram_quantile(q, buckets.items())


def value(q: float, buckets: dict[float, float]) -> float:
    return quantile(q, buckets).value


USUAL = {0.5: 10.0, 1.0: 40.0, 2.0: 90.0, INF: 100.0}


# --- steps 1 to 4: when there is none -------------------------------------------------


@pytest.mark.shows("A-21")
def test_a_q_outside_0_to_1_is_answered_before_the_buckets_are_looked_at() -> None:
    for buckets in (USUAL, {}, {1.0: 5.0}):
        assert math.isnan(value(NAN, buckets))
        assert value(-0.001, buckets) == -INF
        assert value(1.001, buckets) == INF
    assert not quantile(1.001, USUAL).is_saturated


@pytest.mark.shows("A-21")
def test_without_a_bucket_for_everything_there_is_no_quantile() -> None:
    assert math.isnan(value(0.5, {0.5: 10, 1.0: 40}))
    assert math.isnan(value(0.5, {0.5: 10, INF: 40, NAN: 50}))
    assert math.isnan(value(0.5, {}))


@pytest.mark.shows("A-21")
def test_one_bucket_or_nothing_counted_gives_no_quantile() -> None:
    assert math.isnan(value(0.5, {INF: 40}))
    assert math.isnan(histogram_quantile(0.5, [(INF, 20), (INF, 20)]).value)
    assert math.isnan(value(0.5, {0.5: 0, 1.0: 0, INF: 0}))


@pytest.mark.shows("A-21")
def test_edges_are_sorted_and_equal_ones_added_up() -> None:
    assert value(0.5, dict(reversed(USUAL.items()))) == value(0.5, USUAL) == 1.2
    halves = [(edge, count / 2) for edge, count in USUAL.items()]
    assert histogram_quantile(0.5, halves * 2).value == 1.2


# --- steps 5 to 7: where it lies --------------------------------------------------------


@pytest.mark.shows("A-21")
def test_inside_a_bucket_values_lie_evenly() -> None:
    # rank 50 of 100 is 10 of the 50 between 1.0 and 2.0
    assert value(0.5, USUAL) == 1.0 + 1.0 * 10 / 50
    # the lowest begins at 0
    assert value(0.05, USUAL) == 0.25
    # a count that is just reached ends its bucket
    assert value(0.4, USUAL) == 1.0
    assert value(0.0, USUAL) == 0.0


@pytest.mark.shows("A-21")
def test_a_lowest_edge_of_zero_or_less_is_its_own_value() -> None:
    assert value(0.05, {0.0: 10, 1.0: 20, INF: 20}) == 0.0
    assert value(0.05, {-2.0: 10, 1.0: 20, INF: 20}) == -2.0
    # only the lowest: from -2 to -1 is interpolated
    assert value(0.75, {-2.0: 10, -1.0: 20, INF: 20}) == -1.5
    assert not quantile(0.05, {-2.0: 10, 1.0: 20, INF: 20}).is_saturated


@pytest.mark.shows("A-21", "A-22")
def test_a_saturated_quantile_is_the_highest_finite_edge_and_says_so() -> None:
    assert quantile(0.95, USUAL) == Quantile(2.0, is_saturated=True)
    assert quantile(0.90, USUAL) == Quantile(2.0, is_saturated=False)
    assert quantile(0.5, {1.0: 0, 4.0: 0, INF: 3}) == Quantile(4.0, is_saturated=True)


@pytest.mark.shows("A-21")
def test_of_an_empty_lowest_bucket_nothing_can_be_said() -> None:
    assert math.isnan(value(0.0, {1.0: 0, 2.0: 9, INF: 9}))


# --- step 3: counts that fall, and counts that differ by rounding --------------------


@pytest.mark.shows("A-21")
def test_a_count_that_falls_is_raised_and_noted() -> None:
    found = quantile(0.8, {1: 10, 2: 50, 3: 40, 4: 90, INF: 100})
    # as if 3 had 50: rank 80 is 30 of the 40 between 3 and 4
    assert found == Quantile(3.75, is_forced_monotonic=True)
    # the raised count is what the next is compared with
    assert quantile(1.0, {1: 60, 2: 50, 4: 55, INF: 60}).value == 1.0
    assert quantile(0.95, {1: 10, INF: 5}) == Quantile(0.95, is_forced_monotonic=True)
    assert not quantile(0.5, USUAL).is_forced_monotonic


# In these, 2.42 has no tolerance: what it answers is in the comment.


@pytest.mark.shows("A-21")
def test_a_rise_by_rounding_alone_is_no_rise() -> None:
    # 5e-11 of 200: rank 100.00000000002 is above both, so in the bucket to 4; 2.42: 1.4
    found = quantile(0.5000000000001, {1: 100, 2: 100 + 5e-11, 4: 200, INF: 200})
    assert found.value == pytest.approx(2.0 + 2 * 2e-11 / 100, rel=1e-12)
    assert not found.is_forced_monotonic


@pytest.mark.shows("A-21")
def test_a_fall_by_rounding_alone_is_not_noted() -> None:
    found = quantile(0.75, {1: 100, 2: 100 - 5e-11, 4: 200, INF: 200})
    assert found == Quantile(3.0, is_forced_monotonic=False)


@pytest.mark.shows("A-21")
def test_a_rise_beyond_rounding_counts() -> None:
    # 1e-9 of 200 is five times the tolerance: rank 100 + 5e-10 lies half between 1 and 2
    found = quantile(0.5 + 2.5e-12, {1: 100, 2: 100 + 1e-9, 4: 200, INF: 200})
    assert 1.0 < found.value < 2.0


@pytest.mark.shows("A-21")
def test_rounding_does_not_add_up_from_bucket_to_bucket() -> None:
    # each is within 2e-10 of the one before, but the third is not of the first, which stays
    step = 1.5e-10
    found = quantile(0.5 + 5e-13, {1: 100, 2: 100 + step, 4: 100 + 2 * step, 8: 200, INF: 200})
    # rank 100 + 1e-10: above 1 and 2, in the bucket from 2 to 4; 2.42: between 1 and 2
    assert 2.0 < found.value < 4.0


@pytest.mark.shows("A-21", "A-22")
def test_a_total_that_is_higher_by_rounding_alone_does_not_saturate() -> None:
    # 2.42: the rank lies above 100, so in +Inf; its answer is 1 as well, but as a lower bound
    assert quantile(1.0, {1: 100, INF: 100 + 1e-10}) == Quantile(1.0, is_saturated=False)
    assert quantile(1.0, {1: 100, INF: 100 + 1e-9}).is_saturated


@pytest.mark.shows("A-21")
def test_counts_beyond_what_their_sum_can_hold_are_still_compared() -> None:
    assert value(0.75, {1: 1e308, 2: 1.7e308, INF: 1.7e308}) == pytest.approx(1.39285714, rel=1e-6)


counts = st.lists(st.integers(0, 1000), min_size=2, max_size=12)


@given(counts, st.lists(st.floats(0, 1), min_size=2, max_size=8))
@pytest.mark.shows("A-21")
def test_a_higher_q_never_has_a_lower_quantile(steps: list[int], asked: list[float]) -> None:
    edges = [*map(float, range(1, len(steps))), INF]
    buckets = {edge: float(sum(steps[: i + 1])) for i, edge in enumerate(edges)}
    found = [value(q, buckets) for q in sorted(asked)]
    for lower, higher in pairwise(found):
        assert math.isnan(lower) or lower <= higher
    assert all(math.isnan(one) or 0 <= one <= edges[-2] for one in found)
