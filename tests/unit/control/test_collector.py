"""What the collector keeps, for how long, and how it answers."""

import math
from dataclasses import fields

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ulak.control.collector import MetricsCollector, SourceHealth
from ulak.control.rate import bucket_rates, quantile_over, rate
from ulak.control.samples import DAY_MS, HOUR_MS, MINUTE_MS, MetricSample

INTERVAL = 30_000
BEGIN = 1_700_000_000_000
BOUNDS = (1.0, math.inf)


def make_collector() -> MetricsCollector:
    return MetricsCollector(INTERVAL)


def sample(at_ms: int, total: int = 10, good: int = 9, latency: float = 0.5) -> MetricSample:
    return MetricSample(at_ms, total, good, latency)


sources = st.sampled_from(["guard", "jobs", "requests"])
times = st.integers(BEGIN, BEGIN + 6 * HOUR_MS)
all_samples = st.builds(
    MetricSample, times, st.integers(0, 10**6), st.integers(0, 10**6), st.floats(0, 100),
    st.integers(0, 5),
)  # fmt: skip
ingested = st.lists(st.tuples(sources, all_samples), max_size=30)


# --- samples ------------------------------------------------------------------------------


@given(ingested, times, times)
@settings(max_examples=200)
@pytest.mark.shows("A-P8", "A-14")
def test_what_is_ingested_is_returned(
    rows: list[tuple[str, MetricSample]], one_ms: int, other_ms: int
) -> None:
    """Feature: slo-adaptive-control, Property 8: what is ingested is returned unchanged"""
    start_ms, end_ms = sorted((one_ms, other_ms))
    collector = make_collector()
    for source_id, ingested in rows:
        collector.ingest(source_id, ingested)
    inside = [row for row in rows if start_ms <= row[1].timestamp_ms <= end_ms]
    for source_id in ("guard", "jobs", "requests"):
        expected = [s for name, s in inside if name == source_id]
        found = collector.get_samples(source_id, start_ms, end_ms)
        assert found == sorted(expected, key=lambda s: s.timestamp_ms)
    expected = [s for _, s in sorted(inside, key=lambda row: (row[1].timestamp_ms, row[0]))]
    assert collector.get_all_samples(start_ms, end_ms) == expected
    latest = {source_id: s.timestamp_ms for source_id, s in rows}
    assert {h.source_id: h.last_sample_ms for h in collector.check_health(BEGIN)} == latest


@pytest.mark.shows("A-14")
def test_windows_include_both_ends() -> None:
    collector = make_collector()
    for at_ms in (99, 100, 200, 201):
        collector.ingest("requests", sample(at_ms))
    assert [s.timestamp_ms for s in collector.get_samples("requests", 100, 200)] == [100, 200]
    assert [s.timestamp_ms for s in collector.get_all_samples(100, 200)] == [100, 200]
    assert collector.get_samples("nobody", 100, 200) == []


@pytest.mark.shows("A-13", "A-14")
def test_all_sources_come_merged_by_time_and_then_by_source() -> None:
    collector = make_collector()
    for source_id in ("requests", "guard", "jobs"):
        collector.ingest(source_id, sample(5, total=len(source_id)))
    collector.ingest("requests", sample(4, total=1))
    expected = [1, len("guard"), len("jobs"), len("requests")]
    assert [s.total_requests for s in collector.get_all_samples(0, 9)] == expected
    assert [s.total_requests for s in collector.collect_all()] == expected
    assert make_collector().collect_all() == []


# --- health -------------------------------------------------------------------------------


@pytest.mark.shows("A-15")
def test_a_registered_source_that_was_never_heard_is_stale() -> None:
    assert [field.name for field in fields(SourceHealth)] == [
        "source_id", "last_sample_ms", "is_stale",
    ]  # fmt: skip
    collector = make_collector()
    assert collector.check_health(0) == []
    collector.register("jobs")
    collector.ingest("requests", sample(0))
    collector.register("requests")
    assert collector.check_health(0) == [
        SourceHealth("jobs", 0, is_stale=True), SourceHealth("requests", 0, is_stale=False),
    ]  # fmt: skip


@given(st.integers(1, 10**7), st.integers(0, 10**12), st.integers(-(10**7), 10**7))
@settings(max_examples=200)
@pytest.mark.shows("A-P9", "A-15")
def test_a_source_that_is_silent_for_longer_than_an_interval_is_stale(
    interval_ms: int, last_ms: int, beyond_ms: int
) -> None:
    """Feature: slo-adaptive-control, Property 9: silent for longer than an interval is stale"""
    collector = MetricsCollector(interval_ms)
    collector.ingest("requests", sample(last_ms))
    (health,) = collector.check_health(last_ms + interval_ms + beyond_ms)
    assert health == SourceHealth("requests", last_ms, is_stale=beyond_ms > 0)


@pytest.mark.shows("A-15")
def test_exactly_one_interval_old_is_not_stale() -> None:
    collector = make_collector()
    collector.ingest("requests", sample(BEGIN))
    assert not collector.check_health(BEGIN + INTERVAL)[0].is_stale
    assert collector.check_health(BEGIN + INTERVAL + 1)[0].is_stale


@pytest.mark.shows("A-15")
def test_all_stale_is_said_of_each_source() -> None:
    collector = make_collector()
    for source_id in ("requests", "jobs"):
        collector.ingest(source_id, sample(BEGIN))
    assert all(health.is_stale for health in collector.check_health(BEGIN + HOUR_MS))


@pytest.mark.shows("A-14", "A-15")
def test_a_clock_step_backwards_loses_nothing() -> None:
    collector = make_collector()
    for at_ms in (BEGIN, BEGIN + HOUR_MS, BEGIN + 1000):
        collector.ingest("requests", sample(at_ms))
        collector.count("5xx_rate", at_ms, 1, 10)
    found = collector.get_samples("requests", BEGIN, BEGIN + HOUR_MS)
    assert [s.timestamp_ms - BEGIN for s in found] == [0, 1000, HOUR_MS]
    (health,) = collector.check_health(BEGIN + 1000 + INTERVAL + 1)
    assert health == SourceHealth("requests", BEGIN + 1000, is_stale=True)
    counts = collector.event_counts["5xx_rate"]
    assert counts.between(BEGIN, BEGIN + 1000) == (2, 20)
    assert counts.between(BEGIN, BEGIN + HOUR_MS) == (3, 30)


# --- bounded memory -----------------------------------------------------------------------


@pytest.mark.shows("A-16")
def test_old_samples_are_folded_and_the_counts_stay_exact() -> None:
    collector = MetricsCollector(180_000)
    days, step = 31, 60_000
    now = BEGIN + days * DAY_MS
    made = [
        MetricSample(at_ms, i % 7, i % 3, (i % 100) / 10, i % 2)
        for i, at_ms in enumerate(range(BEGIN, now + 1, step))
    ]
    for one in made:
        collector.ingest("requests", one)
    held = collector.collect_all()
    assert len(held) <= 30 * 288 + 6 * 66
    raw_from = now - 6 * HOUR_MS
    assert collector.get_samples("requests", raw_from, now) == [
        s for s in made if s.timestamp_ms >= raw_from
    ]
    # Whole buckets of the 30 days.
    start = (now - 30 * DAY_MS) // (5 * MINUTE_MS) * (5 * MINUTE_MS) + 5 * MINUTE_MS
    expected = [s for s in made if s.timestamp_ms >= start]
    found = collector.get_samples("requests", start, now)
    for name in ("total_requests", "successful_requests", "false_positive_alerts"):
        assert sum(getattr(s, name) for s in found) == sum(getattr(s, name) for s in expected)
    assert max(s.latency_p99_seconds for s in found[:100]) == 9.9
    assert held[0].timestamp_ms >= now - 30 * DAY_MS


@pytest.mark.shows("A-16")
def test_a_folded_sample_keeps_the_latency_that_is_a_number() -> None:
    collector = MetricsCollector(12 * HOUR_MS)  # one sample is what six hours bring
    for at_ms, latency in ((0, math.nan), (1, 0.7), (2, math.nan), (3, 0.2), (HOUR_MS, math.nan)):
        collector.ingest("requests", sample(at_ms, latency=latency))
    collector.ingest("requests", sample(DAY_MS))
    first, second, _ = collector.collect_all()
    assert first == MetricSample(3, 40, 36, 0.7)
    assert math.isnan(second.latency_p99_seconds)


@given(
    st.lists(
        st.tuples(st.integers(0, 32 * 24 * 12), st.integers(0, 9), st.integers(0, 9)), max_size=60
    ),
    st.integers(0, 32 * 24 * 12),
)
@pytest.mark.shows("A-16", "A-25")
def test_event_counts_are_exact_at_every_age(rows: list[tuple[int, int, int]], window: int) -> None:
    collector = make_collector()
    now = 32 * DAY_MS
    for bucket, bad, good in sorted(rows):
        collector.count("5xx_rate", bucket * 5 * MINUTE_MS, bad, bad + good)
    collector.count("5xx_rate", now, 0, 0)
    start = max(now - 30 * DAY_MS, now - window * 5 * MINUTE_MS)
    inside = [(bad, good) for bucket, bad, good in rows if bucket * 5 * MINUTE_MS >= start]
    expected = (sum(bad for bad, _ in inside), sum(bad + good for bad, good in inside))
    assert collector.event_counts["5xx_rate"].between(start, now) == expected


@pytest.mark.shows("A-16")
def test_event_counts_are_as_fine_as_they_came_for_six_hours() -> None:
    collector = make_collector()
    now = BEGIN + 12 * HOUR_MS + 12_345
    for at_ms in range(BEGIN, now + 1, 1000):
        collector.count("5xx_rate", at_ms, 1, 2)
    counts = collector.event_counts["5xx_rate"]
    for window_ms in (0, 1, 345, 1000, 5 * MINUTE_MS, 6 * HOUR_MS):
        count = sum(now - window_ms <= at_ms for at_ms in range(BEGIN, now + 1, 1000))
        assert counts.between(now - window_ms, now) == (count, 2 * count)
    # Older ones by the bucket, and one that is partly inside is whole.
    edge = BEGIN // (5 * MINUTE_MS) * (5 * MINUTE_MS) + HOUR_MS
    whole = sum(edge <= at_ms for at_ms in range(BEGIN, now + 1, 1000))
    assert counts.between(edge, now)[0] == whole
    assert counts.between(edge + 5 * MINUTE_MS - 1, now)[0] == whole
    assert counts.between(edge + 5 * MINUTE_MS, now)[0] == whole - 300
    assert len(counts) < 6 * 3600 + 300 + 6 * 12 + 12


@pytest.mark.shows("A-16", "A-30")
def test_memory_does_not_grow_with_the_number_of_events() -> None:
    held = []
    for size in (1, 10**6):
        collector = make_collector()
        for at_ms in range(BEGIN, BEGIN + 40 * DAY_MS, 10 * MINUTE_MS):
            collector.count("5xx_rate", at_ms, size, 2 * size)
        held.append(len(collector.event_counts["5xx_rate"]))
    assert held[0] == held[1] <= 30 * 144 + 3


@pytest.mark.shows("A-16", "A-30")
def test_buckets_of_an_earlier_process_count_as_if_they_had_been_seen() -> None:
    one, other = make_collector(), make_collector()
    begin = BEGIN // 300_000 * 300_000
    now = begin + 10 * DAY_MS
    buckets = range(begin, now - DAY_MS, 300_000)
    for start in buckets:
        one.count("5xx_rate", start + 77, 1, 10)
        other.fold_in("5xx_rate", start, 1, 10)
    for collector in (one, other):
        collector.count("5xx_rate", now, 5, 5)
        assert collector.event_counts["5xx_rate"].between(now - 9 * DAY_MS, now) == (
            5 + 8 * 288, 5 + 8 * 2880,
        )  # fmt: skip


@pytest.mark.shows("A-16")
@pytest.mark.parametrize("days", [30, 60])
def test_a_longer_window_is_kept_as_long_as_it_asks_for(days: int) -> None:
    collector = MetricsCollector(12 * HOUR_MS, keep_ms=days * DAY_MS)
    for at_ms in range(BEGIN, BEGIN + 90 * DAY_MS + 1, DAY_MS // 2):
        collector.count("5xx_rate", at_ms, 1, 1)
        collector.ingest("requests", sample(at_ms))
    assert collector.event_counts["5xx_rate"].between(0, BEGIN + 90 * DAY_MS) == (2 * days + 1,) * 2
    assert len(collector.collect_all()) == 2 * days + 1


def test_a_negative_count_is_refused() -> None:
    for bad, total in ((-1, 5), (0, -1)):
        with pytest.raises(ValueError, match="never negative"):
            make_collector().count("5xx_rate", BEGIN, bad, total)


# --- histograms and gauges ----------------------------------------------------------------


def publish(collector: MetricsCollector, instance: str, at_ms: int, *counts: float) -> None:
    collector.ingest_histogram("requests", instance, at_ms, BOUNDS, {("/x",): counts})


@pytest.mark.shows("A-13", "A-24")
def test_histograms_are_kept_by_instance_and_added_up() -> None:
    collector = make_collector()
    for i in range(11):
        publish(collector, "a", BEGIN + i * INTERVAL, 10 * i, 10 * i)
        publish(collector, "b", BEGIN + i * INTERVAL, 0, 10 * i)
    histories = collector.get_histogram("requests")
    assert [len(snapshots) for snapshots in histories] == [11, 11]
    found = quantile_over(0.25, histories, BEGIN + 300_000, 300_000)
    assert found.value == pytest.approx(0.5)
    assert quantile_over(0.95, histories, BEGIN + 300_000, 300_000).is_saturated
    assert collector.get_histogram("jobs") == []


@pytest.mark.shows("A-23", "A-24")
def test_a_process_that_restarts_is_a_counter_that_restarts() -> None:
    collector = make_collector()
    counted = [100, 130, 160, 20, 50, 80]
    for i, count in enumerate(counted):
        publish(collector, "a", BEGIN + i * INTERVAL, count, count)
    points = [(BEGIN + i * INTERVAL, count) for i, count in enumerate(counted)]
    for last in (2, 3, 5):
        now = BEGIN + last * INTERVAL
        rates = bucket_rates(collector.get_histogram("requests"), now, 300_000)
        assert rates[1.0] == rates[math.inf] == rate(points, now, 300_000)


@pytest.mark.shows("A-16")
def test_snapshots_are_kept_for_a_little_over_five_minutes() -> None:
    collector = make_collector()
    publish(collector, "gone", BEGIN, 1, 1)
    for i in range(1000):
        publish(collector, "a", BEGIN + i * 10_000, i, i)
    (snapshots,) = collector.get_histogram("requests")
    assert 31 <= len(snapshots) <= 40
    assert snapshots[-1].timestamp_ms - snapshots[0].timestamp_ms >= 5 * MINUTE_MS


@pytest.mark.shows("A-23")
def test_a_clock_step_backwards_is_no_restart_of_a_histogram() -> None:
    collector = make_collector()
    at_ms = (0, 30, 60, 90, 20, 50)  # the counter rises all the time
    for i, seconds in enumerate(at_ms):
        publish(collector, "a", BEGIN + seconds * 1000, 100 * i, 100 * i)
    (snapshots,) = collector.get_histogram("requests")
    counts = [snapshot.series[("/x",)][1] for snapshot in snapshots]
    assert counts == [0, 400, 500]


@pytest.mark.shows("A-13")
def test_a_gauge_is_what_was_read_last() -> None:
    collector = make_collector()
    assert collector.find_gauge("jobs", "queue_depth") is None
    collector.ingest_gauge("jobs", "queue_depth", BEGIN, 7)
    collector.ingest_gauge("jobs", "queue_depth", BEGIN + 1, 0)
    collector.ingest_gauge("jobs", "running", BEGIN, 3)
    assert collector.find_gauge("jobs", "queue_depth") == (BEGIN + 1, 0)
    assert collector.find_gauge("jobs", "running") == (BEGIN, 3)
    assert collector.find_gauge("requests", "running") is None
