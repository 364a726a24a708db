"""How fast counters rise, by the rule of Prometheus 3, and the quantile of what they count.

A counter's points are `(timestamp_ms, value)` in the order of time. The window is left-open: a
point exactly `range_ms` ago is outside.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate, pairwise
from operator import le as is_at_most
from typing import TYPE_CHECKING

from ulak.control.quantile import NO_QUANTILE, Quantile, histogram_quantile

if TYPE_CHECKING:
    from ulak.control.tallies import Family

Point = tuple[int, float]
LabelValues = tuple[str, ...]

NEAR = 1.1
"""An edge nearer than so many average spacings is where the next point would have been."""


def increase(points: Sequence[Point], at_ms: int, range_ms: int) -> float:
    """Return by how much the counter rose in `(at_ms - range_ms, at_ms]`, NaN of under two points.

    A drop is a restart from zero. What the points leave uncovered at both ends is extrapolated.
    """
    window = [point for point in points if at_ms - range_ms < point[0] <= at_ms]
    if len(window) < 2 or window[0][0] == window[-1][0]:
        return math.nan
    gained = window[-1][1] - window[0][1]
    for (_, before), (_, after) in pairwise(window):
        if after < before:
            gained += before
    span = _Span(window[0][0], window[-1][0], len(window), at_ms, range_ms)
    return gained * span.factor(window[0][1], gained)


def rate(points: Sequence[Point], at_ms: int, range_ms: int) -> float:
    """Return the `increase` in a second."""
    return increase(points, at_ms, range_ms) / (range_ms / 1000)


class _Span:
    """Where the points of a window lie, which all buckets of a snapshot share."""

    def __init__(self, first_ms: int, last_ms: int, count: int, at_ms: int, range_ms: int) -> None:
        # In seconds, as Prometheus: in milliseconds, 1.1 spacings would be rounded otherwise.
        self._sampled = (last_ms - first_ms) / 1000
        spacing = self._sampled / (count - 1)
        self._start = self._reach((first_ms - (at_ms - range_ms)) / 1000, spacing)
        self._end = self._reach((at_ms - last_ms) / 1000, spacing)

    @staticmethod
    def _reach(to_edge: float, spacing: float) -> float:
        return to_edge if to_edge < NEAR * spacing else spacing / 2

    def factor(self, first: float, gained: float) -> float:
        """Return what extrapolation multiplies by: never from before the counter was 0."""
        start = self._start
        if gained > 0 and first >= 0:
            start = min(start, self._sampled * (first / gained))
        return (self._sampled + start + self._end) / self._sampled


# --- histograms -----------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class HistogramSnapshot:
    """The cumulative counts of one histogram of one process at one time."""

    timestamp_ms: int
    bounds: tuple[float, ...]
    """The upper edges, ascending; the last is +Inf."""
    series: Mapping[LabelValues, tuple[float, ...]]
    """For each set of labels the count at or below each edge."""
    continues: bool = False
    """Whether it is known that nothing fell, vanished or was measured otherwise since the snapshot
    before. Where this is not known, every count is looked at."""

    def follows(self, before: HistogramSnapshot) -> bool:
        """Return whether this snapshot continues an earlier one."""
        return self.bounds == before.bounds and all(
            labels in self.series and all(map(is_at_most, counts, self.series[labels]))
            for labels, counts in before.series.items()
        )


def snapshot_family(family: Family, timestamp_ms: int) -> HistogramSnapshot:
    """Return a histogram of `tallies` as a snapshot."""
    series = {labels: tuple(accumulate(numbers[:-1])) for labels, numbers in family.series.items()}
    return HistogramSnapshot(timestamp_ms, (*family.bounds, math.inf), series)


Histories = Iterable[Sequence[HistogramSnapshot]]
"""For each instance its snapshots, in the order of time. A drop within is a restart."""


def quantile_over(q: float, histories: Histories, at_ms: int, range_ms: int) -> Quantile:
    """Return the quantile of everything that all instances observed in the window.

    The rates of the buckets are added up per edge, over instances and labels, and the quantile is
    taken of the sums. NaN where no bucket has two points, and where a count is NaN.
    """
    rates = bucket_rates(histories, at_ms, range_ms)
    if any(map(math.isnan, rates.values())):
        return NO_QUANTILE
    return histogram_quantile(q, rates.items())


def bucket_rates(histories: Histories, at_ms: int, range_ms: int) -> dict[float, float]:
    """Return per edge the rates of all instances and labels, added up."""
    rates: dict[float, float] = {}
    for snapshots in histories:
        inside = [s for s in snapshots if at_ms - range_ms < s.timestamp_ms <= at_ms]
        is_steady = all(snapshot.continues for snapshot in inside[1:])
        for labels in {labels for snapshot in inside for labels in snapshot.series}:
            rows = (
                inside if labels in inside[0].series else [s for s in inside if labels in s.series]
            )
            if len(rows) < 2 or rows[0].timestamp_ms == rows[-1].timestamp_ms:
                continue
            rates_of = _rates_of_ends if is_steady else _rates_of_all
            for edge, value in rates_of(rows, labels, at_ms, range_ms):
                rates[edge] = rates.get(edge, 0.0) + value
    return rates


EdgeRates = Iterable[tuple[float, float]]


def _rates_of_ends(
    rows: list[HistogramSnapshot], labels: LabelValues, at_ms: int, range_ms: int
) -> EdgeRates:
    """Return the rates of counts that only rose: the first and the last of them are enough."""
    first, last = rows[0], rows[-1]
    span = _Span(first.timestamp_ms, last.timestamp_ms, len(rows), at_ms, range_ms)
    seconds = range_ms / 1000
    for edge, a, b in zip(first.bounds, first.series[labels], last.series[labels], strict=True):
        yield edge, (b - a) * span.factor(a, b - a) / seconds


def _rates_of_all(
    rows: list[HistogramSnapshot], labels: LabelValues, at_ms: int, range_ms: int
) -> EdgeRates:
    """Return the rates of counts of which each must be looked at."""
    points: dict[float, list[Point]] = {}
    for row in rows:
        for edge, count in zip(row.bounds, row.series.get(labels, ()), strict=False):
            points.setdefault(edge, []).append((row.timestamp_ms, count))
    for edge, found in points.items():
        if len(found) > 1:
            yield edge, rate(found, at_ms, range_ms)


def covered_share(histories: Histories, at_ms: int, range_ms: int) -> float:
    """Return the share of the histogram's edges of which a series has two points in the window.

    An edge counts once for all instances and labels: a process that has just started, or an
    endpoint that was just called for the first time, is no gap in what the others tell.
    """
    known: set[float] = set()
    covered: set[float] = set()
    for snapshots in histories:
        seen: dict[LabelValues, set[float]] = {}
        for snapshot in snapshots:
            is_inside = at_ms - range_ms < snapshot.timestamp_ms <= at_ms
            if not is_inside or covered.issuperset(snapshot.bounds):
                continue
            for labels in snapshot.series:
                known.update(snapshot.bounds)
                earlier = seen.setdefault(labels, set())
                covered.update(earlier.intersection(snapshot.bounds))
                earlier.update(snapshot.bounds)
    return len(covered) / len(known) if known else 0.0
