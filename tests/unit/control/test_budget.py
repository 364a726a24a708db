"""Error budgets and how fast they burn, counted by hand."""

import math
import tracemalloc
from collections.abc import Callable
from dataclasses import fields
from time import process_time

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ulak.control.budget import (
    BUDGET_METRICS,
    BudgetReading,
    BudgetStatus,
    ErrorBudgetCalculator,
    ErrorBudgetConfig,
    allowed_errors,
    budget_remaining,
    burn_rate,
)
from ulak.control.collector import MetricsCollector
from ulak.control.samples import DAY_MS, HOUR_MS, MINUTE_MS, MetricSample

NOW = 1_700_000_000_000
MONTH_S = 30 * 86_400
METRIC = "5xx_rate"


def config(
    target: float = 0.999, *, window_s: int = MONTH_S, threshold: float = 2.0, metric: str = METRIC
) -> ErrorBudgetConfig:
    return ErrorBudgetConfig(metric, window_s, target, threshold)


def counted(
    *rows: tuple[int, int, int], budget: ErrorBudgetConfig | None = None, **options: int
) -> BudgetReading:
    """Return the reading of a budget for rows of age in ms, bad and all events."""
    collector = MetricsCollector(30_000)
    budget = budget or config()
    for age_ms, bad, total in sorted(rows, reverse=True):
        collector.count(budget.metric, NOW - age_ms, bad, total)
    (status,) = ErrorBudgetCalculator([budget], **options).evaluate(
        [], NOW, counts=collector.event_counts
    )
    assert isinstance(status, BudgetReading)
    return status


def sampled(*rows: tuple[int, int, int], budget: ErrorBudgetConfig | None = None) -> BudgetStatus:
    samples = [MetricSample(NOW - age, total, total - bad, 0.1) for age, bad, total in rows]
    (status,) = ErrorBudgetCalculator([budget or config()]).evaluate(samples, NOW)
    return status


# --- the budget over its window -----------------------------------------------------------


targets = st.floats(0.5, 0.99999)
rows_of_samples = st.lists(
    st.tuples(st.integers(0, 2 * 86_400_000), st.integers(0, 50), st.integers(0, 5000)), max_size=20
)


@given(rows_of_samples, targets, st.integers(3600, 2 * 86_400))
@settings(max_examples=200)
@pytest.mark.shows("A-P11", "A-26", "A-27")
def test_what_is_allowed_and_what_remains(
    rows: list[tuple[int, int, int]], target: float, window_s: int
) -> None:
    """Feature: slo-adaptive-control, Property 11: allowed = (1-t)wr, and what remains of it"""
    rows = [(age, bad, bad + good) for age, bad, good in rows]
    inside = [(bad, total) for age, bad, total in rows if age <= window_s * 1000]
    actual, total = (sum(column) for column in zip(*inside, strict=True)) if inside else (0, 0)
    status = sampled(*rows, budget=config(target, window_s=window_s))
    allowed = (1 - target) * window_s * (total / window_s)
    assert status.budget_total == pytest.approx(allowed, rel=1e-12)
    assert status.budget_consumed == actual
    expected = max(0.0, 1 - actual / allowed) if allowed else 1.0
    assert status.budget_remaining_pct == pytest.approx(expected, rel=1e-9, abs=1e-9)
    # The window rolls: a millisecond after the oldest has left it, only the younger count.
    (rolled,) = ErrorBudgetCalculator([config(target, window_s=window_s)]).evaluate(
        [MetricSample(NOW - age, t, t - b, 0.1) for age, b, t in rows], NOW + window_s * 1000 + 1
    )
    assert (rolled.budget_consumed, rolled.budget_total) == (0, 0)


@given(targets, st.floats(1, 1e8), st.floats(0, 1e6))
@pytest.mark.shows("A-P11", "A-26")
def test_allowed_errors_are_those_of_the_formula(t: float, w: float, r: float) -> None:
    """Feature: slo-adaptive-control, Property 11: allowed errors for all valid t, w, r"""
    assert allowed_errors(t, w, r) == (1 - t) * w * r
    allowed = allowed_errors(t, w, r)
    for actual in (0.0, allowed / 4, allowed, 2 * allowed):
        expected = max(0.0, 1 - actual / allowed) if allowed else 1.0
        assert budget_remaining(actual, allowed) == expected


@pytest.mark.shows("A-26", "A-27")
def test_a_budget_is_what_the_requests_of_its_window_allow() -> None:
    status = counted((DAY_MS, 3, 4_000), (29 * DAY_MS, 2, 6_000), (0, 0, 0))
    assert status.budget_total == pytest.approx(10)
    assert status.budget_consumed == 5
    assert status.budget_remaining_pct == pytest.approx(0.5)
    assert status.events == 10_000


@pytest.mark.shows("A-26")
def test_the_window_rolls_with_each_tick() -> None:
    rows = (30 * DAY_MS, 5, 1000), (0, 1, 1000)
    assert sampled(*rows).budget_consumed == 6
    assert sampled((30 * DAY_MS + 1, 5, 1000), (0, 1, 1000)).budget_consumed == 1
    assert sampled((-1, 5, 1000)).budget_consumed == 0
    # counts leave by the bucket of five minutes
    assert counted((30 * DAY_MS, 5, 1000), (0, 1, 1000)).budget_consumed == 6
    assert counted((30 * DAY_MS + 5 * MINUTE_MS, 5, 1000), (0, 1, 1000)).budget_consumed == 1


@pytest.mark.shows("A-27")
def test_zero_traffic_leaves_the_budget_whole() -> None:
    for status in (sampled(), sampled((0, 0, 0)), counted(), counted((0, 0, 0))):
        assert (status.budget_remaining_pct, status.burn_rate) == (1.0, 0.0)
        assert not status.is_exhausted
        assert not status.is_burn_rate_exceeded
        assert status.is_gone


@pytest.mark.shows("A-27", "A-28")
def test_target_1_allows_nothing() -> None:
    for read in (sampled, counted):
        clean = read((0, 0, 5000), budget=config(1.0))
        assert (clean.budget_total, clean.budget_remaining_pct, clean.burn_rate) == (0, 1.0, 0.0)
        assert not clean.is_exhausted
        assert not clean.is_burn_rate_exceeded
        dirty = read((0, 1, 5000), budget=config(1.0))
        assert (dirty.budget_remaining_pct, dirty.burn_rate) == (0.0, math.inf)
        assert dirty.is_exhausted
        assert dirty.is_burn_rate_exceeded


@pytest.mark.shows("A-27")
def test_the_fields_are_those_of_the_spec_and_each_metric_has_its_subsystem() -> None:
    assert [field.name for field in fields(BudgetStatus)] == [
        "subsystem_id", "metric", "budget_total", "budget_consumed", "budget_remaining_pct",
        "burn_rate", "is_exhausted", "is_burn_rate_exceeded",
    ]  # fmt: skip
    assert [field.name for field in fields(ErrorBudgetConfig)] == [
        "metric", "window_seconds", "slo_target", "burn_rate_threshold",
    ]  # fmt: skip


@pytest.mark.shows("A-25")
def test_each_budget_metric_has_counts_of_its_own() -> None:
    collector = MetricsCollector(30_000)
    configs = [config(metric=metric) for metric in BUDGET_METRICS]
    for i, metric in enumerate(list(BUDGET_METRICS)[:-1]):
        collector.count(metric, NOW, i, 1000)
    statuses = ErrorBudgetCalculator(configs).evaluate([], NOW, counts=collector.event_counts)
    assert [(s.subsystem_id, s.metric, s.budget_consumed) for s in statuses] == [
        ("guard", "5xx_rate", 0), ("guard", "block_rate", 1), ("guard", "snapshot_failure_rate", 2),
        ("pdf", "failed_jobs_rate", 3), ("pdf", "queue_unavailable_rate", 0),
    ]  # fmt: skip


# --- exhaustion and burn -------------------------------------------------------------------


@pytest.mark.shows("A-28")
def test_a_budget_is_exhausted_by_its_last_error() -> None:
    assert not sampled((0, 9, 10_000)).is_exhausted
    assert sampled((0, 10, 10_000)).is_exhausted
    # (1 - 0.9) * 10 is a little less than 1, and (1 - 0.7) * 10 a little more than 3
    assert sampled((0, 1, 10), budget=config(0.9)).is_exhausted
    assert (1 - 0.7) * 10 > 3
    assert sampled((0, 3, 10), budget=config(0.7)).is_exhausted
    # within 1e-9 of what is allowed, and not within 1e-8
    assert sampled((0, 10**9, 10**12 + 500), budget=config(0.999)).is_exhausted
    assert not sampled((0, 10**9, 10**12 + 10_000), budget=config(0.999)).is_exhausted


@pytest.mark.shows("A-28")
def test_nothing_consumed_exhausts_nothing() -> None:
    assert not sampled((0, 0, 0)).is_exhausted
    assert not sampled((0, 0, 10_000), budget=config(1.0)).is_exhausted


@pytest.mark.shows("A-28")
def test_a_burn_exactly_at_its_threshold_is_not_exceeded() -> None:
    at = sampled((0, 5, 10), budget=config(0.75, threshold=2.0))
    assert (at.burn_rate, at.is_burn_rate_exceeded) == (2.0, False)
    assert sampled((0, 6, 10), budget=config(0.75, threshold=2.0)).is_burn_rate_exceeded


@pytest.mark.shows("A-27")
def test_the_burn_of_the_ladder_is_that_of_the_last_hour() -> None:
    for read in (sampled, counted):
        status = read((HOUR_MS + 1, 500, 1000), (HOUR_MS, 1, 1000), (0, 2, 500))
        assert status.burn_rate == pytest.approx(3 / 1500 / 0.001)
        assert status.budget_consumed == 503
    assert burn_rate(3, 1500, 0.5) == 3 / 1500 / 0.5


@pytest.mark.shows("A-29")
def test_a_budget_acts_on_a_thousand_events_only() -> None:
    assert counted((0, 10, 1000)).is_acting
    assert not counted((0, 10, 999)).is_acting
    assert counted((0, 10, 999)).is_exhausted
    # older events of the window count too
    assert counted((0, 10, 500), (9 * DAY_MS, 0, 500)).is_acting
    assert not counted((0, 10, 500), (31 * DAY_MS, 0, 500)).is_acting
    assert counted((0, 10, 200), min_budget_events=200).is_acting


@pytest.mark.shows("A-29")
def test_a_budget_acts_only_while_it_burns() -> None:
    # exhausted by what happened yesterday, but now it burns at 1, or just above, or not at all
    old = (DAY_MS, 500, 1000)
    assert counted(old, (0, 2, 1000)).is_acting
    at_one = counted(old, (0, 5, 10), budget=config(0.5, threshold=2.0))
    assert (at_one.burn_rate, at_one.is_acting, at_one.is_gone) == (1.0, False, False)
    over = counted(old)
    assert over.is_exhausted
    assert (over.is_acting, over.is_gone) == (False, True)


@pytest.mark.shows("A-29")
def test_a_budget_that_is_neither_exhausted_nor_burns_too_fast_does_not_act() -> None:
    # burns at 1.5 in this hour, after a month without an error
    status = counted((20 * DAY_MS, 0, 1_000_000), (0, 3, 2000))
    assert status.burn_rate == pytest.approx(1.5)
    assert not status.is_acting
    assert not status.is_gone


def test_a_status_without_its_events_is_taken_to_have_enough() -> None:
    status = BudgetStatus("guard", METRIC, 1.0, 2.0, 0.0, 3.0, True, True)
    assert status.is_acting


@pytest.mark.shows("A-30")
def test_a_restart_does_not_refill_a_budget() -> None:
    before, after = MetricsCollector(30_000), MetricsCollector(30_000)
    for collector in (before, after):  # the second counts what was stored
        for day in range(29):
            collector.count(METRIC, NOW - (29 - day) * DAY_MS, 1, 1000)
        collector.count(METRIC, NOW - HOUR_MS, 0, 1)
    readings = [
        ErrorBudgetCalculator([config()]).evaluate([], NOW, counts=collector.event_counts)
        for collector in (before, after)
    ]
    assert readings[0] == readings[1]
    assert readings[0][0].budget_consumed == 29


# --- windows and alerts --------------------------------------------------------------------


@pytest.mark.shows("A-31")
def test_burn_rates_are_computed_over_seven_windows() -> None:
    windows = {
        "5m": 5, "30m": 30, "1h": 60, "2h": 120, "6h": 360, "1d": 1440, "3d": 4320,
    }  # fmt: skip
    # ten events at the edge of each window, one of them bad per window so far
    ages = [minutes * MINUTE_MS for minutes in windows.values()]
    status = counted(*((age, i, 10) for i, age in enumerate(ages)))
    assert list(status.burn_rates) == list(windows)
    for i, name in enumerate(windows):
        bad, total = sum(range(i + 1)), 10 * (i + 1)
        assert status.burn_rates[name] == pytest.approx(bad / total / 0.001), name


def alerts(
    *rows: tuple[int, int, int], window_s: int = MONTH_S, min_alert_events: int = 10
) -> list[tuple[str, str, str, float]]:
    budget = config(window_s=window_s)
    status = counted(*rows, budget=budget, min_alert_events=min_alert_events)
    return [(a.severity, a.long_window, a.short_window, round(a.factor, 6)) for a in status.alerts]


PAIRS: list[tuple[str, str, str, float]] = [
    ("page", "1h", "5m", 14.4), ("page", "6h", "30m", 6.0),
    ("ticket", "1d", "2h", 3.0), ("ticket", "3d", "6h", 1.0),
]  # fmt: skip
LONG = {"1h": HOUR_MS, "6h": 6 * HOUR_MS, "1d": DAY_MS, "3d": 3 * DAY_MS}


@pytest.mark.shows("A-31")
def test_four_pairs_alert_when_everything_fails() -> None:
    assert alerts((0, 1000, 1000)) == PAIRS


@pytest.mark.shows("A-31")
@pytest.mark.parametrize("pair", PAIRS, ids=lambda pair: pair[1])
def test_a_pair_alerts_above_its_factor_and_not_at_it(pair: tuple[str, str, str, float]) -> None:
    bad = round(pair[3] * 1000)  # of a million, at a target of 99.9 %
    assert pair in alerts((0, bad + 1, 1_000_000))
    assert pair not in alerts((0, bad - 1, 1_000_000))


@pytest.mark.shows("A-31")
def test_a_factor_that_is_just_reached_does_not_alert() -> None:
    budget = config(0.75, window_s=10 * 86_400)  # the last pair has 0.1 * 10 / 3, the first 4.8
    factor = 0.1 * 30 / 3
    assert factor == 1.0
    exactly = config(0.75)
    assert not counted((0, 250, 1000), budget=exactly).alerts
    assert counted((0, 251, 1000), budget=exactly).alerts
    assert not counted((0, 250, 1000), budget=budget).alerts[1:]


@pytest.mark.shows("A-31")
@pytest.mark.parametrize("pair", PAIRS, ids=lambda pair: pair[1])
def test_both_windows_of_a_pair_must_be_over(pair: tuple[str, str, str, float]) -> None:
    # An incident that has ended: the long window is over its factor, the short one is not.
    short_ms = LONG[pair[1]] // 12
    past = (short_ms + MINUTE_MS, 100_000, 1_000_000), (0, 0, 1000)
    assert pair not in alerts(*past)
    # One that has just begun: the short window is over, and the long one is not.
    fresh = (LONG[pair[1]] - 10 * MINUTE_MS, 0, 10**9), (0, 1000, 1000)
    assert pair not in alerts(*fresh)


@pytest.mark.shows("A-31")
def test_the_factors_are_recomputed_for_another_period() -> None:
    week = 7 * 86_400
    assert alerts((0, 1000, 1000), window_s=week) == [
        ("page", "1h", "5m", 3.36), ("page", "6h", "30m", 1.4),
        ("ticket", "1d", "2h", 0.7), ("ticket", "3d", "6h", round(0.7 / 3, 6)),
    ]  # fmt: skip


@pytest.mark.shows("A-31")
def test_thin_traffic_is_muted() -> None:
    assert alerts((0, 9, 9)) == []
    assert alerts((0, 10, 10)) == PAIRS
    assert alerts((0, 2, 2), min_alert_events=2) == PAIRS
    # each window by itself: nine events in five minutes mute only the pair that asks for these
    assert alerts((0, 9, 9), (20 * MINUTE_MS, 9, 9)) == PAIRS[1:]


# --- what it costs -------------------------------------------------------------------------


def measure(work: Callable[[], object]) -> float:
    """Return the least CPU time of several runs."""
    times = []
    for _ in range(5):
        began = process_time()
        for _ in range(20):
            work()
        times.append((process_time() - began) / 20)
    return min(times)


@pytest.mark.shows("A-16")
def test_an_evaluation_of_30_days_costs_the_same_for_a_hundred_times_the_requests() -> None:
    costs, sizes = [], []
    for requests in (10**4, 10**6):
        collector = MetricsCollector(30_000)
        ticks = 30 * 48
        tracemalloc.start()
        for tick in range(ticks):
            for metric in BUDGET_METRICS:
                share = requests * (tick + 1) // ticks - requests * tick // ticks
                collector.count(metric, NOW - (ticks - tick) * 30 * MINUTE_MS, share // 50, share)
        sizes.append(tracemalloc.get_traced_memory()[0])
        tracemalloc.stop()
        calculator = ErrorBudgetCalculator([config(metric=metric) for metric in BUDGET_METRICS])
        counts = collector.event_counts
        costs.append(measure(lambda c=calculator, n=counts: c.evaluate([], NOW, counts=n)))  # type: ignore[misc]
    assert sizes[1] < 1.5 * sizes[0]
    # Generous, for a busy machine; it takes a few tenths of a millisecond.
    assert costs[1] < 3 * costs[0] + 0.001
    assert max(costs) < 0.02
