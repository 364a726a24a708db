"""Whether there is enough telemetry to decide on."""

from __future__ import annotations

import math
from dataclasses import dataclass

from ulak.control.collector import SourceHealth
from ulak.control.rate import Histories, covered_share
from ulak.control.samples import MINUTE_MS, MetricSample

MIN_SAMPLES = "min_samples"
BUCKET_COVERAGE = "bucket_coverage"
SOURCE_STALE = "source_stale"

WINDOW_MS = 5 * MINUTE_MS
INTERVAL_MS = 30_000


@dataclass(frozen=True)
class SufficiencyConfig:
    """What is enough. `required_samples` gives `min_samples` for another interval."""

    min_samples: int
    min_bucket_coverage_pct: float
    check_source_stale: bool


@dataclass(frozen=True)
class SufficiencyResult:
    """Whether there is enough, and everything that is missing."""

    is_sufficient: bool
    sample_count: int
    required_samples: int
    bucket_coverage_pct: float
    stale_sources: list[str]
    reason: str
    """The failing conditions, separated by commas; empty when sufficient."""

    @property
    def reasons(self) -> tuple[str, ...]:
        """The failing conditions: `min_samples`, `bucket_coverage`, `source_stale`."""
        return tuple(self.reason.split(", ")) if self.reason else ()


def required_samples(window_ms: int, interval_ms: int, ratio: float) -> int:
    """Return how many samples a window needs: so much of those that its intervals bring."""
    # Rounding of the product must not demand one more.
    return math.ceil(window_ms / interval_ms * ratio - 1e-9)


class TelemetrySufficiencyChecker:
    """Judges the telemetry of one subsystem."""

    def __init__(self, config: SufficiencyConfig) -> None:
        self._config = config

    def check(
        self,
        samples: list[MetricSample],
        source_health: list[SourceHealth],
        *,
        now_ms: int | None = None,
        window_ms: int = WINDOW_MS,
        interval_ms: int = INTERVAL_MS,
        histogram: Histories | None = None,
    ) -> SufficiencyResult:
        """Return whether the samples of the window, their spread and their sources are enough.

        Args:
            now_ms: The end of the window; without it that of the latest sample.
            histogram: The snapshots of the subsystem's histogram. None leaves it out of the
                coverage; one without snapshots covers nothing.
        """
        if now_ms is None:
            now_ms = max((sample.timestamp_ms for sample in samples), default=0)
        inside = [s for s in samples if now_ms - window_ms <= s.timestamp_ms <= now_ms]
        slots = math.ceil(window_ms / interval_ms)
        # Slots end now. A sample exactly one window old is the end of a slot before the first.
        filled = {(now_ms - sample.timestamp_ms) // interval_ms for sample in inside} - {slots}
        coverage = len(filled) / slots
        if histogram is not None:
            coverage = min(coverage, covered_share(histogram, now_ms, window_ms))
        stale = [health.source_id for health in source_health if health.is_stale]
        failing = {
            MIN_SAMPLES: len(inside) < self._config.min_samples,
            BUCKET_COVERAGE: coverage < self._config.min_bucket_coverage_pct,
            SOURCE_STALE: self._config.check_source_stale and bool(stale),
        }
        reason = ", ".join(name for name, fails in failing.items() if fails)
        return SufficiencyResult(
            not reason, len(inside), self._config.min_samples, coverage, stale, reason
        )
