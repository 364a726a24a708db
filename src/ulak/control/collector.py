"""What the sources of the control loop have measured, in bounded memory."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Mapping
from dataclasses import dataclass, replace
from operator import attrgetter

from ulak.control.event_counts import BUCKET_MS, KEEP_MS, RAW_MS, EventCounts, bucket_start
from ulak.control.rate import HistogramSnapshot, LabelValues
from ulak.control.samples import MINUTE_MS, MetricSample

SNAPSHOTS_MS = 6 * MINUTE_MS
"""A little over the five minutes of the canonical queries, for a tick that comes late."""

_time_of = attrgetter("timestamp_ms")


@dataclass(frozen=True)
class SourceHealth:
    """Whether a source still speaks. One that was never heard has 0, and is stale."""

    source_id: str
    last_sample_ms: int
    is_stale: bool


class MetricsCollector:
    """Keeps samples, histograms, gauges and event counts of the sources. Not for several threads.

    Samples and event counts are kept as they came for six hours, and then in buckets of five
    minutes for 30 days: a folded sample has the sums of its bucket, its highest latency and its
    latest time. Times are those of the store, handed in; a clock set back loses nothing.

    Args:
        keep_ms: How long, where a budget has a window of more than 30 days.
    """

    def __init__(self, control_loop_interval_ms: int, *, keep_ms: int = KEEP_MS) -> None:
        self._interval_ms = control_loop_interval_ms
        self._keep_ms = keep_ms
        self._samples: dict[str, list[MetricSample]] = {}
        self._folded: dict[str, list[MetricSample]] = {}
        self._last_ms: dict[str, int] = {}
        self._histograms: dict[str, dict[str, list[HistogramSnapshot]]] = {}
        self._gauges: dict[tuple[str, str], tuple[int, float]] = {}
        self._counts: dict[str, EventCounts] = {}
        # A source publishes three times in an interval. Fewer samples than six hours bring are
        # not looked through for old ones.
        self._many = 3 * RAW_MS // max(1, control_loop_interval_ms)

    # --- sources and samples ----------------------------------------------------------

    def register(self, source_id: str) -> None:
        """Expect a source, so that one that was never heard is reported as stale."""
        self._samples.setdefault(source_id, [])

    def ingest(self, source_id: str, sample: MetricSample) -> None:
        """Keep a sample; its source was last heard at the time of this one, even an earlier one."""
        self.register(source_id)
        samples = self._samples[source_id]
        samples.insert(bisect_right(samples, sample.timestamp_ms, key=_time_of), sample)
        self._last_ms[source_id] = sample.timestamp_ms
        if len(samples) > self._many:
            self._fold(source_id, sample.timestamp_ms)

    def get_samples(
        self, source_id: str, window_start_ms: int, window_end_ms: int
    ) -> list[MetricSample]:
        """Return what a source sent, by time, both ends included; of an unknown one nothing."""
        return [
            sample
            for samples in (self._folded.get(source_id, []), self._samples.get(source_id, []))
            for sample in samples[
                bisect_left(samples, window_start_ms, key=_time_of) : bisect_right(
                    samples, window_end_ms, key=_time_of
                )
            ]
        ]

    def get_all_samples(self, window_start_ms: int, window_end_ms: int) -> list[MetricSample]:
        """Return what all sources sent, by time and then by source, both ends included."""
        return sorted(
            (
                sample
                for source_id in sorted(self._samples)
                for sample in self.get_samples(source_id, window_start_ms, window_end_ms)
            ),
            key=_time_of,
        )

    def collect_all(self) -> list[MetricSample]:
        """Return every sample that is held, by time and then by source."""
        held = [*self._samples.values(), *self._folded.values()]
        times = [sample.timestamp_ms for samples in held for sample in samples]
        return self.get_all_samples(min(times), max(times)) if times else []

    def check_health(self, now_ms: int) -> list[SourceHealth]:
        """Return every source, by name: stale when silent for longer than one interval."""
        return [
            SourceHealth(
                source_id,
                self._last_ms.get(source_id, 0),
                source_id not in self._last_ms
                or now_ms - self._last_ms[source_id] > self._interval_ms,
            )
            for source_id in sorted(self._samples)
        ]

    def _fold(self, source_id: str, at_ms: int) -> None:
        samples = self._samples[source_id]
        folded = self._folded.setdefault(source_id, [])
        old = bisect_left(samples, bucket_start(at_ms - RAW_MS), key=_time_of)
        for sample in samples[:old]:
            place = bisect_left(folded, bucket_start(sample.timestamp_ms), key=_time_of)
            end_ms = bucket_start(sample.timestamp_ms) + BUCKET_MS
            if place < len(folded) and folded[place].timestamp_ms < end_ms:
                folded[place] = _together(folded[place], sample)
            else:
                folded.insert(place, sample)
        del samples[:old]
        del folded[: bisect_left(folded, at_ms - self._keep_ms, key=_time_of)]

    # --- histograms, gauges and event counts -------------------------------------------

    def ingest_histogram(
        self,
        source_id: str,
        instance: str,
        at_ms: int,
        bounds: tuple[float, ...],
        series: Mapping[LabelValues, tuple[float, ...]],
    ) -> None:
        """Keep the cumulative counts that a process has of the histogram of a source.

        Args:
            instance: The process. Counts that drop within one are those of a restart.
            bounds: The upper edges, ascending, the last +Inf.
            series: For each set of labels the count at or below each edge.
        """
        instances = self._histograms.setdefault(source_id, {})
        snapshots = instances.setdefault(instance, [])
        # After a clock was set back, what it said before would make the counts seem to drop.
        del snapshots[bisect_left(snapshots, at_ms, key=_time_of) :]
        snapshot = HistogramSnapshot(at_ms, bounds, series)
        continues = bool(snapshots) and snapshot.follows(snapshots[-1])
        snapshots.append(replace(snapshot, continues=continues))
        for name, kept in list(instances.items()):
            del kept[: bisect_left(kept, at_ms - SNAPSHOTS_MS, key=_time_of)]
            if not kept:
                del instances[name]

    def get_histogram(self, source_id: str) -> list[list[HistogramSnapshot]]:
        """Return the snapshots of each process, as `quantile_over` takes them."""
        return [list(snapshots) for snapshots in self._histograms.get(source_id, {}).values()]

    def ingest_gauge(self, source_id: str, name: str, at_ms: int, value: float) -> None:
        """Keep how a gauge of a source stands."""
        self._gauges[source_id, name] = at_ms, value

    def find_gauge(self, source_id: str, name: str) -> tuple[int, float] | None:
        """Return when a gauge was last read, and its value; None if it never was."""
        return self._gauges.get((source_id, name))

    def count(self, metric: str, at_ms: int, bad: int, total: int) -> None:
        """Count events of a budget metric: all, and the bad ones among them."""
        self._find_counts(metric).add(at_ms, bad, total)

    def fold_in(self, metric: str, bucket_start_ms: int, bad: int, total: int) -> None:
        """Add a five-minute bucket of a budget metric that an earlier process folded."""
        self._find_counts(metric).fold_in(bucket_start_ms, bad, total)

    @property
    def event_counts(self) -> Mapping[str, EventCounts]:
        """The event counts of each budget metric, for `ErrorBudgetCalculator.evaluate`."""
        return self._counts

    def _find_counts(self, metric: str) -> EventCounts:
        found = self._counts.get(metric)
        if found is None:
            found = self._counts[metric] = EventCounts(self._keep_ms)
        return found


def _together(one: MetricSample, other: MetricSample) -> MetricSample:
    """Return two samples as one: the sums, the highest latency, the latest time."""
    latencies = [
        latency
        for latency in (one.latency_p99_seconds, other.latency_p99_seconds)
        if latency == latency  # NaN is not equal to itself
    ]
    return MetricSample(
        max(one.timestamp_ms, other.timestamp_ms),
        one.total_requests + other.total_requests,
        one.successful_requests + other.successful_requests,
        max(latencies, default=one.latency_p99_seconds),
        one.false_positive_alerts + other.false_positive_alerts,
    )
