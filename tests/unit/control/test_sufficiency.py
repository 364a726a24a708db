"""Whether there is enough telemetry to decide on."""

import math
from dataclasses import fields

import pytest

from ulak.control.collector import SourceHealth
from ulak.control.rate import HistogramSnapshot
from ulak.control.samples import MetricSample
from ulak.control.sufficiency import (
    SufficiencyConfig,
    SufficiencyResult,
    TelemetrySufficiencyChecker,
    required_samples,
)

NOW = 10_000_000
INTERVAL = 30_000
FRESH = [SourceHealth("requests", NOW, is_stale=False)]
STALE = [*FRESH, SourceHealth("jobs", 0, is_stale=True), SourceHealth("guard", 5, is_stale=True)]
BOUNDS = (0.5, 1.0, math.inf)


def samples(*ages_ms: int) -> list[MetricSample]:
    return [MetricSample(NOW - age_ms, 1, 1, 0.1) for age_ms in ages_ms]


def spread(count: int) -> list[MetricSample]:
    """Return one sample in each of the latest intervals."""
    return samples(*range(0, count * INTERVAL, INTERVAL))


def histogram(*ages_ms: int, bounds: tuple[float, ...] = BOUNDS) -> list[list[HistogramSnapshot]]:
    counts = {(): tuple(1.0 for _ in bounds)}
    return [[HistogramSnapshot(NOW - age_ms, bounds, counts) for age_ms in ages_ms]]


def check(
    given: list[MetricSample],
    health: list[SourceHealth] = FRESH,
    *,
    min_samples: int = 8,
    min_coverage: float = 0.8,
    check_stale: bool = True,
    snapshots: list[list[HistogramSnapshot]] | None = None,
) -> SufficiencyResult:
    checker = TelemetrySufficiencyChecker(
        SufficiencyConfig(min_samples, min_coverage, check_source_stale=check_stale)
    )
    return checker.check(given, health, now_ms=NOW, histogram=snapshots)


@pytest.mark.shows("A-17")
def test_the_result_has_the_fields_of_the_spec() -> None:
    assert [field.name for field in fields(SufficiencyResult)] == [
        "is_sufficient", "sample_count", "required_samples", "bucket_coverage_pct",
        "stale_sources", "reason",
    ]  # fmt: skip
    assert check(spread(10)) == SufficiencyResult(True, 10, 8, 1.0, [], "")
    assert check(spread(10)).reasons == ()


@pytest.mark.shows("A-17")
@pytest.mark.parametrize(
    ("window_ms", "interval_ms", "ratio", "required"),
    [
        (300_000, 30_000, 0.8, 8), (300_000, 2_000, 0.8, 120), (300_000, 40_000, 0.8, 6),
        (300_000, 30_000, 0.81, 9), (300_000, 3_000, 0.07, 7), (300_000, 600_000, 0.8, 1),
    ],
)  # fmt: skip
def test_required_is_a_share_of_the_intervals_rounded_up(
    window_ms: int, interval_ms: int, ratio: float, required: int
) -> None:
    assert required_samples(window_ms, interval_ms, ratio) == required


@pytest.mark.shows("A-17", "A-18")
def test_too_few_samples_are_insufficient() -> None:
    assert check(spread(8)).is_sufficient
    few = check(spread(7), min_coverage=0.1)
    assert (few.is_sufficient, few.sample_count, few.required_samples) == (False, 7, 8)
    assert (few.reason, few.reasons) == ("min_samples", ("min_samples",))


@pytest.mark.shows("A-17")
def test_samples_count_in_the_five_minutes_with_both_ends() -> None:
    edges = samples(300_000, 0)
    outside = samples(300_001, -1)
    assert check([*edges, *outside], min_samples=2).sample_count == 2


@pytest.mark.shows("A-17", "A-18")
def test_samples_in_too_few_intervals_are_insufficient() -> None:
    # twenty samples, in seven of ten intervals
    crowded = samples(*(age + i * INTERVAL for i in range(7) for age in (0, 9_999, 29_999)))
    result = check(crowded)
    assert result.bucket_coverage_pct == 0.7
    assert (result.is_sufficient, result.reason) == (False, "bucket_coverage")
    # exactly the share is enough
    assert check(spread(8)).bucket_coverage_pct == 0.8
    # one that is as old as the window fills no interval of it
    assert check([*spread(7), *samples(300_000)]).bucket_coverage_pct == 0.7


@pytest.mark.shows("A-17")
def test_edges_with_fewer_than_two_points_are_insufficient() -> None:
    assert check(spread(10), snapshots=histogram(60_000, 0)).is_sufficient
    once = check(spread(10), snapshots=histogram(0))
    assert (once.bucket_coverage_pct, once.reason) == (0.0, "bucket_coverage")
    # of four edges, the new one has a single point
    grown = histogram(60_000, 30_000)
    grown[0] += histogram(0, bounds=(0.5, 1.0, 2.0, math.inf))[0]
    result = check(spread(10), snapshots=grown)
    assert (result.bucket_coverage_pct, result.is_sufficient) == (0.75, False)
    # the smaller share counts
    assert check(spread(5), snapshots=grown).bucket_coverage_pct == 0.5


@pytest.mark.shows("A-17", "A-23")
def test_zero_traffic_leaves_a_histogram_without_series_which_covers_nothing() -> None:
    assert not check(spread(10), snapshots=[]).is_sufficient
    empty = [[HistogramSnapshot(NOW - age, BOUNDS, {}) for age in (60_000, 0)]]
    assert check(spread(10), snapshots=empty).reason == "bucket_coverage"


@pytest.mark.shows("A-17", "A-18")
def test_any_stale_source_is_insufficient() -> None:
    result = check(spread(10), STALE)
    assert (result.is_sufficient, result.reason) == (False, "source_stale")
    assert result.stale_sources == ["jobs", "guard"]
    assert check(spread(10), STALE, check_stale=False).is_sufficient


@pytest.mark.shows("A-17", "A-18")
def test_all_stale_lists_every_failing_condition() -> None:
    result = check([], STALE[1:])
    assert result.reason == "min_samples, bucket_coverage, source_stale"
    assert result.reasons == ("min_samples", "bucket_coverage", "source_stale")
    assert (result.sample_count, result.bucket_coverage_pct) == (0, 0.0)


@pytest.mark.shows("A-17")
def test_without_a_time_the_window_ends_with_the_latest_sample() -> None:
    checker = TelemetrySufficiencyChecker(SufficiencyConfig(8, 0.8, check_source_stale=True))
    assert checker.check(spread(10), FRESH).is_sufficient
    assert not checker.check([], FRESH).is_sufficient
    faster = checker.check(
        samples(*range(0, 60_000, 6_000)), FRESH, window_ms=60_000, interval_ms=6_000
    )
    assert faster.is_sufficient
