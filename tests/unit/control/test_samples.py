"""Samples against objectives."""

import math
from dataclasses import fields

import pytest

from ulak.control.samples import (
    DAY_MS,
    MetricSample,
    SloEvalResult,
    SloEvaluator,
    SloKind,
    SloTarget,
)

NOW = 1_000_000
WINDOW = 100_000


def sample(
    at_ms: int = NOW, total: int = 100, good: int = 100, latency: float = 0.1, alerts: int = 0
) -> MetricSample:
    return MetricSample(at_ms, total, good, latency, alerts)


def evaluate(
    kind: SloKind, target: float, samples: list[MetricSample], now_ms: int = NOW
) -> SloEvalResult:
    (result,) = SloEvaluator([SloTarget(kind, target, WINDOW)]).evaluate_all(samples, now_ms)
    return result


@pytest.mark.shows("A-10")
def test_the_records_have_the_fields_of_the_spec() -> None:
    assert [field.name for field in fields(MetricSample)] == [
        "timestamp_ms", "total_requests", "successful_requests", "latency_p99_seconds",
        "false_positive_alerts",
    ]  # fmt: skip
    assert MetricSample(1, 2, 3, 4.0).false_positive_alerts == 0
    assert [field.name for field in fields(SloEvalResult)] == [
        "kind", "target", "observed", "met", "error_budget_remaining", "samples_in_window",
    ]  # fmt: skip
    assert [kind.value for kind in SloKind] == ["availability", "latency_p99", "correctness"]


@pytest.mark.shows("A-10", "A-11")
def test_availability_is_the_share_of_all_requests_and_not_a_mean_of_shares() -> None:
    samples = [sample(total=1000, good=985), *[sample(total=10, good=10)] * 4]
    result = evaluate(SloKind.AVAILABILITY, 0.99, samples)
    assert result.observed == 1025 / 1040
    assert result == SloEvalResult(
        SloKind.AVAILABILITY, 0.99, 1025 / 1040, False, 0.0, samples_in_window=5
    )
    half = evaluate(SloKind.AVAILABILITY, 0.98, [sample(total=100, good=99)] * 5)
    assert half.met
    assert half.error_budget_remaining == pytest.approx(0.5)
    exact = evaluate(SloKind.AVAILABILITY, 0.5, [sample(total=10, good=5)] * 5)
    assert (exact.met, exact.error_budget_remaining) == (True, 0.0)


@pytest.mark.shows("A-11")
def test_zero_traffic_is_full_availability() -> None:
    result = evaluate(SloKind.AVAILABILITY, 0.999, [sample(total=0, good=0)] * 5)
    assert (result.observed, result.met, result.error_budget_remaining) == (1.0, True, 1.0)


@pytest.mark.shows("A-11")
def test_target_1_has_no_budget_to_spend() -> None:
    perfect = evaluate(SloKind.AVAILABILITY, 1.0, [sample()] * 5)
    assert (perfect.met, perfect.error_budget_remaining) == (True, 1.0)
    flawed = evaluate(SloKind.AVAILABILITY, 1.0, [sample(total=1000, good=999)] * 5)
    assert (flawed.met, flawed.error_budget_remaining) == (False, 0.0)


@pytest.mark.shows("A-11")
def test_latency_is_the_highest_and_may_equal_its_target() -> None:
    samples = [sample(latency=latency) for latency in (0.1, 0.2, 2.0, 0.3, 0.1)]
    result = evaluate(SloKind.LATENCY_P99, 2.0, samples)
    assert (result.observed, result.met, result.error_budget_remaining) == (2.0, True, 1.0)
    result = evaluate(SloKind.LATENCY_P99, 1.99, samples)
    assert (result.observed, result.met, result.error_budget_remaining) == (2.0, False, 0.0)


@pytest.mark.shows("A-11")
def test_a_latency_that_is_not_a_number_decides_nothing() -> None:
    mixed = [sample(latency=latency) for latency in (math.nan, 0.2, 3.0, math.nan, 0.1)]
    assert evaluate(SloKind.LATENCY_P99, 2.0, mixed).observed == 3.0
    none = evaluate(SloKind.LATENCY_P99, 2.0, [sample(latency=math.nan)] * 5)
    assert math.isnan(none.observed)
    assert none.met


@pytest.mark.shows("A-11")
def test_correctness_is_the_sum_of_false_alerts() -> None:
    samples = [sample(alerts=alerts) for alerts in (0, 1, 2, 0, 0)]
    result = evaluate(SloKind.CORRECTNESS, 3, samples)
    assert (result.observed, result.met, result.error_budget_remaining) == (3, True, 1.0)
    result = evaluate(SloKind.CORRECTNESS, 2, samples)
    assert (result.met, result.error_budget_remaining) == (False, 0.0)


@pytest.mark.shows("A-11")
def test_fewer_than_five_samples_say_nothing() -> None:
    bad = sample(good=0, latency=99.0, alerts=9)
    for kind, target in (("availability", 0.9), ("latency_p99", 1.0), ("correctness", 0)):
        few = evaluate(SloKind(kind), target, [bad] * 4)
        assert (few.met, few.error_budget_remaining, few.samples_in_window) == (True, 1.0, 4)
        assert not evaluate(SloKind(kind), target, [bad] * 5).met


@pytest.mark.shows("A-11")
def test_windows_include_both_ends() -> None:
    edges = [sample(NOW - WINDOW), sample(NOW)]
    outside = [sample(NOW - WINDOW - 1, good=0), sample(NOW + 1, good=0)]
    inside = [sample(NOW - 5)] * 3
    result = evaluate(SloKind.AVAILABILITY, 0.9, [*edges, *outside, *inside])
    assert (result.samples_in_window, result.observed) == (5, 1.0)


@pytest.mark.shows("A-10", "A-11")
def test_without_targets_it_has_those_of_the_ladder() -> None:
    samples = [sample(NOW - i, good=99, latency=2.5, alerts=1) for i in range(5)]
    old = [sample(NOW - 29 * DAY_MS, total=500, good=400, latency=9.0, alerts=5)]
    results = SloEvaluator().evaluate_all([*old, *samples], NOW)
    assert [(r.kind.value, r.target, r.observed, r.met) for r in results] == [
        ("availability", 0.999, 0.895, False),
        ("latency_p99", 2.0, 2.5, False),
        ("correctness", 0, 5, False),
    ]
