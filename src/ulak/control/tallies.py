"""Counters, gauges and histograms that are written by the batch and read by a scrape, and which
labels they may have.

Those of prometheus_client take a lock for every number and walk through every bucket: measured on
CPython 3.11, two counters and a histogram take 3.6 us a job so, and 0.3 by the batch, of the 66
that a no-op job has. prometheus_client writes the text; who only counts need not have it.
"""

from __future__ import annotations

import threading
from bisect import bisect_left
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import accumulate
from operator import add
from typing import TYPE_CHECKING, Literal

from ulak.core.job import queue_of
from ulak.engine.engine import Engine

if TYPE_CHECKING:
    from prometheus_client.metrics_core import Metric

LabelValues = tuple[str, ...]
Kind = Literal["counter", "gauge", "histogram"]

ALONE: LabelValues = ()

LATENCY_SECONDS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2, 2.5, 5, 10, 60)
"""The edges of the histograms that adaptive control judges; its default thresholds are two."""


@dataclass(frozen=True, slots=True)
class Family:
    """One metric as it stands: of one process, or of several added up."""

    name: str
    """Of a counter without `_total`."""
    kind: Kind
    labels: tuple[str, ...]
    series: Mapping[LabelValues, tuple[float, ...]]
    """For each of its labels the value; of a histogram how many values lay in each bucket, the one
    without a bound last, and then their sum."""
    bounds: tuple[float, ...] = ()
    """Of the buckets of a histogram."""

    def plus(self, other: Family | None) -> Family:
        """Return both added up. What has other labels or bounds is of another release, and is left
        out."""
        if other is None or not self._fits(other):
            return self
        series = dict(self.series)
        for labels, numbers in other.series.items():
            mine = series.get(labels)
            series[labels] = numbers if mine is None else tuple(map(add, mine, numbers))
        return replace(self, series=series)

    def _fits(self, other: Family) -> bool:
        mine = self.name, self.kind, self.labels, self.bounds
        return mine == (other.name, other.kind, other.labels, other.bounds)

    def show(self, help: str) -> Metric:
        """Return what prometheus_client writes of it."""
        # Here and not above: a worker that is not scraped need not have it.
        from prometheus_client import metrics_core as written

        if self.kind == "histogram":
            histogram = written.HistogramMetricFamily(self.name, help, labels=self.labels)
            texts = [*(str(float(bound)) for bound in self.bounds), "+Inf"]
            for labels, (*counts, total) in self.series.items():
                below = map(float, accumulate(counts))
                histogram.add_metric(labels, list(zip(texts, below, strict=True)), total)
            return histogram
        kind = written.CounterMetricFamily if self.kind == "counter" else written.GaugeMetricFamily
        family = kind(self.name, help, labels=self.labels)
        for labels, (value,) in self.series.items():
            family.add_metric(labels, value)
        return family


class Counter:
    """A number that only rises, for each of its labels. Its `name` has no `_total`. Labels that are
    `known` are there from the beginning, at 0: a rate needs the zero before the one. One that
    `is_plain` is shown by its name too."""

    def __init__(
        self, name: str, help: str, labels: Sequence[str] = (),
        known: Iterable[LabelValues] = (), *, is_plain: bool = False,
    ) -> None:  # fmt: skip
        self.name = name
        self._is_plain = is_plain
        self._help = help
        self._labels = tuple(labels)
        self._lock = threading.Lock()
        self._values: dict[LabelValues, float] = dict.fromkeys(known, 0.0)

    def add(self, labels: LabelValues, n: float = 1.0) -> None:
        with self._lock:
            self._values[labels] = self._values.get(labels, 0.0) + n

    def add_all(self, counted: Mapping[LabelValues, float]) -> None:
        with self._lock:
            for labels, n in counted.items():
                self._values[labels] = self._values.get(labels, 0.0) + n

    def read(self) -> Family:
        """Return how it stands now."""
        with self._lock:
            series = {labels: (value,) for labels, value in self._values.items()}
        return Family(self.name, "counter", self._labels, series)

    def family(self, others: Family | None = None) -> Metric:
        """Return it for a scrape, together with that of others."""
        shown = self.read().plus(others).show(self._help)
        for sample in list(shown.samples) if self._is_plain else ():
            shown.add_sample(self.name, sample.labels, sample.value)
        return shown


class Gauge:
    """A number without labels that rises and falls; `look` returns it where it stands elsewhere."""

    def __init__(self, name: str, help: str, look: Callable[[], float] | None = None) -> None:
        self.name = name
        self._help = help
        self._look = look
        self._lock = threading.Lock()
        self._value = 0.0

    def add(self, n: float) -> None:
        with self._lock:
            self._value += n

    def read(self) -> Family:
        """Return how it stands now."""
        value = self._value if self._look is None else float(self._look())
        return Family(self.name, "gauge", (), {ALONE: (value,)})

    def family(self, others: Family | None = None) -> Metric:
        """Return it for a scrape, together with that of others."""
        return self.read().plus(others).show(self._help)


class Histogram:
    """How many values lay below each of some bounds, and their sum, for each of its labels."""

    def __init__(
        self, name: str, help: str, bounds: Sequence[float], labels: Sequence[str] = ()
    ) -> None:
        self.name = name
        self._help = help
        self._bounds = tuple(bounds)
        self._labels = tuple(labels)
        self._lock = threading.Lock()
        self._series: dict[LabelValues, tuple[list[int], list[float]]] = {}
        """Counts by bucket, and the sum; made here, and then written in place."""
        if not labels:
            self._series[ALONE] = self._empty()

    def observe(self, labels: LabelValues, values: Iterable[float]) -> None:
        bounds = self._bounds
        with self._lock:
            found = self._series.get(labels)
            if found is None:
                found = self._series[labels] = self._empty()
            counts, sums = found
            for value in values:
                counts[bisect_left(bounds, value)] += 1
                sums[0] += value

    def _empty(self) -> tuple[list[int], list[float]]:
        return [0] * (len(self._bounds) + 1), [0.0]

    def read(self) -> Family:
        """Return how it stands now."""
        with self._lock:
            series: dict[LabelValues, tuple[float, ...]] = {
                labels: (*counts, *sums) for labels, (counts, sums) in self._series.items()
            }
        return Family(self.name, "histogram", self._labels, series, self._bounds)

    def family(self, others: Family | None = None) -> Metric:
        """Return it for a scrape, together with that of others."""
        return self.read().plus(others).show(self._help)


class View:
    """A metric that is read from counts which others show too."""

    def __init__(self, name: str, help: str, read: Callable[[], Family]) -> None:
        self.name = name
        self._help = help
        self.read = read

    def family(self, others: Family | None = None) -> Metric:
        """Return it for a scrape, together with that of others."""
        return self.read().plus(others).show(self._help)


Tally = Counter | Gauge | Histogram | View


OTHER = "other"

Place = tuple[str, str]
NOWHERE: Place = (OTHER, OTHER)


class Labels:
    """The label values of one engine. A flow that is added later is known from then on."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._flows: set[str] = set()
        self._places: dict[Place, Place] = {}
        self._queues: set[str] = set()
        self._seen = 0

    def flow(self, name: str) -> str:
        if name not in self._flows:
            self._look()
        return name if name in self._flows else OTHER

    def place(self, flow: str, state: str) -> Place:
        found = self._places.get((flow, state))
        if found is None:
            self._look()
            found = self._places.get((flow, state), NOWHERE)
        return found

    def queues(self) -> list[str]:
        self._look()
        return sorted(self._queues)

    def limits(self) -> list[str]:
        """Return every limit that a flow declares, and that is not one for each key."""
        return sorted(
            name
            for flow in self._engine.inspect.flows
            for name, terms in flow.table.limits.items()
            if not terms.keyed
        )

    def schedule(self, name: str) -> str:
        return name if name in self._engine.kernel.schedules else OTHER

    def _look(self) -> None:
        flows = self._engine.inspect.flows
        if len(flows) == self._seen:
            return
        for flow in flows:
            self._flows.add(flow.name)
            self._places.update({(flow.name, s): (flow.name, s) for s in flow.table.places})
            self._queues.update(map(queue_of, flow.table.lanes))
        self._seen = len(flows)
