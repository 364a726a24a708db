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
        for labels in {labels for snapshot in inside for labels in snapshot.series}:
            rows = [
                (s.timestamp_ms, s.bounds, s.series[labels]) for s in inside if labels in s.series
            ]
            for edge, value in _rates_of(rows, at_ms, range_ms):
                rates[edge] = rates.get(edge, 0.0) + value
    return rates


def covered_share(histories: Histories, at_ms: int, range_ms: int) -> float:
    """Return the share of the histogram's edges of which a series has two points in the window.

    An edge counts once for all instances and labels: a process that has just started, or an
    endpoint that was just called for the first time, is no gap in what the others tell.
    """
    points: dict[float, int] = {}
    for snapshots in histories:
        inside = [s for s in snapshots if at_ms - range_ms < s.timestamp_ms <= at_ms]
        found: dict[tuple[LabelValues, float], int] = {}
        for snapshot in inside:
            for labels in snapshot.series:
                for edge in snapshot.bounds:
                    found[labels, edge] = found.get((labels, edge), 0) + 1
        for (_, edge), count in found.items():
            points[edge] = max(points.get(edge, 0), count)
    return sum(count >= 2 for count in points.values()) / len(points) if points else 0.0


Row = tuple[int, tuple[float, ...], tuple[float, ...]]


def _rates_of(rows: list[Row], at_ms: int, range_ms: int) -> list[tuple[float, float]]:
    """Return edge and rate of one series of labels."""
    first_ms, bounds, first = rows[0]
    last_ms, _, last = rows[-1]
    if first_ms == last_ms:
        return []
    if all(_only_rises(one, next_) for one, next_ in pairwise(rows)):
        # The common case, as it is for `increase`, but with what all edges share worked out once.
        span = _Span(first_ms, last_ms, len(rows), at_ms, range_ms)
        seconds = range_ms / 1000
        return [
            (edge, (b - a) * span.factor(a, b - a) / seconds)
            for edge, a, b in zip(bounds, first, last, strict=True)
        ]
    points: dict[float, list[Point]] = {}
    for timestamp_ms, edges, counts in rows:
        for edge, count in zip(edges, counts, strict=True):
            points.setdefault(edge, []).append((timestamp_ms, count))
    return [
        (edge, rate(found, at_ms, range_ms)) for edge, found in points.items() if len(found) > 1
    ]


def _only_rises(one: Row, after: Row) -> bool:
    if one[1] is not after[1] and one[1] != after[1]:
        return False
    return one[2] == after[2] or all(map(is_at_most, one[2], after[2]))
