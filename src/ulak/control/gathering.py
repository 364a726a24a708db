"""What all processes have counted, brought to a collector."""

from __future__ import annotations

import logging
import math
from collections.abc import Iterable, Mapping
from typing import Any, Final

from ulak.control.collector import MetricsCollector
from ulak.control.controller import COMPLETIONS, WINDOW_MS
from ulak.control.process_metrics import ProcessMetrics, Published
from ulak.control.quantile import histogram_quantile
from ulak.control.rate import snapshot_family
from ulak.control.samples import MetricSample
from ulak.control.signals import DEPTH, GUARD
from ulak.control.state import SourceRow
from ulak.control.subsystems import Subsystem, registered
from ulak.control.tallies import ALONE, Family
from ulak.engine.engine import Engine
from ulak.errors import UlakError

log = logging.getLogger("ulak.control")

REQUESTS: Final = "ulak_requests"
REQUEST_SECONDS: Final = "http_request_duration_seconds"
"""What every process that serves requests publishes."""
EVALUATED, BLOCKS, UNMADE = (
    "ulak_guard_evaluated", "ulak_guard_blocks", "ulak_guard_snapshot_failures",
)  # fmt: skip
EVENT_COUNTERS: Final = (REQUESTS, EVALUATED, BLOCKS, UNMADE)
GUARD_METRICS: Final = ("5xx_rate", "block_rate", "snapshot_failure_rate")
FAILED_STATUSES: Final = frozenset({"5xx", "0xx"})


class Gathering:
    """Brings what all processes have counted to a collector, once for each tick."""

    def __init__(self, engine: Engine, collector: MetricsCollector) -> None:
        self._collector = collector
        self._processes = ProcessMetrics(engine)
        self._subsystems = registered(engine).subsystems
        self._seen: dict[str, list[int]] = {}
        """What each counter stood at in the last tick, by its source, process and metric."""
        self._is_first = True
        self._buckets: dict[str, tuple[float, ...]] = {}
        self.rows: list[SourceRow] = []
        """What the last tick has brought, to be stored."""

    def load(self, seen: Mapping[str, list[int]]) -> None:
        """Go on with the counters that the tick before has left, in whatever process."""
        if seen:
            self._seen, self._is_first = {name: list(n) for name, n in seen.items()}, False

    @property
    def seen(self) -> Mapping[str, list[int]]:
        return self._seen

    def replay(self, rows: Iterable[SourceRow]) -> None:
        """Take in what ticks of other processes have stored."""
        for row in rows:
            feed(self._collector, row)

    def collect(self, now_ms: int) -> None:
        """Read every source. One that does not answer is not heard, and stale soon."""
        self.rows = []
        present: set[str] = set()
        published = self._processes.read_families((REQUEST_SECONDS, *EVENT_COUNTERS))
        self._collect_guard(published, now_ms, present)
        for each in list(self._subsystems.values()):
            self._collector.register(each.name)
            try:
                self._collect_subsystem(each, published, now_ms, present)
            except (UlakError, OSError) as error:
                facts = {"source": each.name, "error": str(error)}
                log.warning("a source of adaptive control does not answer", extra=facts)
                present |= {key for key in self._seen if key.startswith(f"{each.name}/")}
        # A process that has ended comes back under another name.
        self._seen = {key: numbers for key, numbers in self._seen.items() if key in present}
        self._is_first = False
        for row in self.rows:
            feed(self._collector, row)

    def _collect_guard(
        self, published: Iterable[Published], now_ms: int, present: set[str]
    ) -> None:
        serving = {row.process for row in published if row.family.name == REQUEST_SECONDS}
        if not serving:
            return
        counts = dict.fromkeys(GUARD_METRICS, (0, 0))
        histograms: dict[str, list[Any]] = {}
        at_ms = 0
        for row in published:
            if row.process not in serving:
                continue
            key = f"{GUARD}/{row.process}/{row.family.name}"
            if row.family.name == REQUEST_SECONDS:
                heard_ms = min(now_ms, row.at // 1000)
                at_ms = max(at_ms, heard_ms)
                if now_ms - heard_ms <= WINDOW_MS:
                    histograms[row.process] = _histogram(row.family, heard_ms)
                continue
            for metric, numbers in _count_events(row.family).items():
                gained = self._gain(f"{key}/{metric}", numbers, present)
                counts[metric] = _add(counts[metric], gained)
        bad, total = counts["5xx_rate"]
        sample = [at_ms, total, total - bad, self._find_p99(GUARD, histograms)]
        data = {"sample": sample, "counts": counts, "histograms": histograms}
        self.rows.append(SourceRow(now_ms, GUARD, data))

    def _collect_subsystem(
        self, each: Subsystem, published: Iterable[Published], now_ms: int, present: set[str]
    ) -> None:
        depth = each.depth()
        data: dict[str, Any] = {"gauges": {DEPTH: depth.due, COMPLETIONS: depth.ended_per_second}}
        sample: list[Any] = [now_ms, 0, 0, 0.0]
        counts: dict[str, tuple[int, int]] = {}
        if each.telemetry is not None:
            found = each.telemetry()
            numbers = (found.failed, found.finished)
            # A failed job that a person retries is a failure no more: these may fall.
            key = f"{each.name}/store/jobs"
            bad, total = self._gain(key, numbers, present, is_monotonic=False)
            counts["failed_jobs_rate"] = bad, total
            data["histograms"] = {"store": _histogram(found.histogram, now_ms)}
            p99 = self._find_p99(each.name, data["histograms"])
            sample = [now_ms, total, total - bad, p99]
        for row in published:
            if each.creates and row.family.name == REQUESTS:
                made = _count_requests(row.family, each.creates)
                gained = self._gain(f"{each.name}/{row.process}/creates", made, present)
                before = counts.get("queue_unavailable_rate", (0, 0))
                counts["queue_unavailable_rate"] = _add(before, gained)
        data |= {"sample": sample, "counts": counts}
        self.rows.append(SourceRow(now_ms, each.name, data))

    def _gain(
        self, key: str, numbers: tuple[int, int], present: set[str], *, is_monotonic: bool = True
    ) -> tuple[int, int]:
        """Return by how much two counters rose since the last tick. A monotonic one that fell has
        begun anew; what had been counted before the very first tick does not count."""
        present.add(key)
        before = self._seen.get(key)
        self._seen[key] = list(numbers)
        if before is None:
            return (0, 0) if self._is_first else numbers
        if is_monotonic and any(now < was for now, was in zip(numbers, before, strict=True)):
            return numbers
        return max(0, numbers[0] - before[0]), max(0, numbers[1] - before[1])

    def _find_p99(self, source_id: str, histograms: Mapping[str, list[Any]]) -> float:
        """Return the 99th percentile of what was observed since the last tick, 0 of nothing."""
        sums: dict[float, float] = {}
        for process, (_, bounds, cumulative) in histograms.items():
            key = f"{source_id}/{process}"
            before = self._buckets.get(key, ())
            is_same = len(before) == len(cumulative) and before[-1] <= cumulative[-1]
            start = before if is_same else [0.0] * len(cumulative)
            self._buckets[key] = tuple(cumulative)
            for edge, count, was in zip((*bounds, math.inf), cumulative, start, strict=True):
                sums[edge] = sums.get(edge, 0.0) + count - was
        found = histogram_quantile(0.99, sums.items()).value
        return 0.0 if math.isnan(found) else found


def feed(collector: MetricsCollector, row: SourceRow) -> None:
    """Hand a collector what one tick has read of a source; a sample that it has already is left
    out."""
    data = row.data
    for metric, (bad, total) in data.get("counts", {}).items():
        if total:
            collector.count(metric, row.at_ms, bad, total)
    at_ms, total, successful, p99 = data["sample"]
    last = {h.source_id: h.last_sample_ms for h in collector.check_health(row.at_ms)}
    if at_ms != last.get(row.source_id):
        collector.ingest(row.source_id, MetricSample(at_ms, total, successful, p99))
    for process, (heard_ms, bounds, cumulative) in data.get("histograms", {}).items():
        collector.ingest_histogram(
            row.source_id, process, heard_ms, (*bounds, math.inf), {ALONE: tuple(cumulative)}
        )
    for name, value in data.get("gauges", {}).items():
        collector.ingest_gauge(row.source_id, name, row.at_ms, value)


def _histogram(family: Family, at_ms: int) -> list[Any]:
    """Return a histogram with all its labels added up: its time, edges and cumulative counts."""
    nothing = (0.0,) * (len(family.bounds) + 1)
    series = [nothing, *snapshot_family(family, at_ms).series.values()]
    return [at_ms, family.bounds, [sum(counts) for counts in zip(*series, strict=True)]]


def _count_requests(family: Family, routes: Iterable[tuple[str, str]] | None) -> tuple[int, int]:
    """Return how many requests failed, and all, of some routes or of every one."""
    bad = total = 0.0
    places = [family.labels.index(name) for name in ("method", "route", "status")]
    for labels, (value,) in family.series.items():
        method, route, status = (labels[place] for place in places)
        if routes is None or (method, route) in routes:
            total += value
            bad += value if status in FAILED_STATUSES else 0.0
    return int(bad), int(total)


def _count_events(family: Family) -> dict[str, tuple[int, int]]:
    """Return bad and all events of the guard's budget metrics by a counter."""
    if family.name == REQUESTS:
        return {"5xx_rate": _count_requests(family, None)}
    n = int(sum(value for (value,) in family.series.values()))
    return {
        EVALUATED: {"block_rate": (0, n), "snapshot_failure_rate": (0, n)},
        BLOCKS: {"block_rate": (n, 0)},
        UNMADE: {"snapshot_failure_rate": (n, n)},
    }[family.name]


def _add(one: tuple[int, int], other: tuple[int, int]) -> tuple[int, int]:
    return one[0] + other[0], one[1] + other[1]
