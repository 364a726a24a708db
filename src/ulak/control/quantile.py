"""The quantile of a classic histogram, by the rule of Prometheus 3, step by step."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass

TOLERANCE = 1e-12
"""Counts that differ by less, relative to their sum, differ by rounding alone."""


@dataclass(frozen=True, slots=True)
class Quantile:
    """A quantile, and how far it can be trusted. No value is NaN, on which nothing may rest."""

    value: float
    is_saturated: bool = False
    """The true value is at least this: it lies above the highest finite edge."""
    is_forced_monotonic: bool = False
    """A cumulative count was lower than the one before it, and was raised."""


NO_QUANTILE = Quantile(math.nan)


def histogram_quantile(q: float, buckets: Iterable[tuple[float, float]]) -> Quantile:
    """Return the quantile `q` of cumulative buckets `(le, count)`, in any order.

    Inside a bucket values are taken to lie evenly. NaN where there is none: `q` is NaN, there is
    no bucket `+Inf`, fewer than two buckets are left, or nothing was counted.
    """
    if math.isnan(q):
        return NO_QUANTILE
    if not 0 <= q <= 1:
        return Quantile(-math.inf if q < 0 else math.inf)
    # An edge that is NaN comes last, so that the highest is not +Inf.
    ordered = sorted(buckets, key=lambda bucket: (math.isnan(bucket[0]), bucket[0]))
    if not ordered or ordered[-1][0] != math.inf:
        return NO_QUANTILE
    merged: dict[float, float] = {}
    for edge, count in ordered:
        merged[edge] = merged.get(edge, 0.0) + count
    edges = list(merged)
    counts, is_forced = _raise_to_monotonic(list(merged.values()))
    if len(edges) < 2 or counts[-1] == 0:
        return Quantile(math.nan, is_forced_monotonic=is_forced)

    rank = q * counts[-1]
    found = next((i for i, count in enumerate(counts[:-1]) if count >= rank), None)
    if found is None:
        return Quantile(edges[-2], is_saturated=True, is_forced_monotonic=is_forced)
    if found == 0 and edges[0] <= 0:
        return Quantile(edges[0], is_forced_monotonic=is_forced)
    start, below = (edges[found - 1], counts[found - 1]) if found else (0.0, 0.0)
    inside = counts[found] - below
    # Of an empty lowest bucket nothing can be said: 0/0.
    share = (rank - below) / inside if inside else math.nan
    return Quantile(start + (edges[found] - start) * share, is_forced_monotonic=is_forced)


def _raise_to_monotonic(counts: list[float]) -> tuple[list[float], bool]:
    """Return the counts without a decrease, and whether one was more than rounding."""
    is_forced = False
    previous = counts[0]
    for i, count in enumerate(counts):
        # Multiplied first: the sum of two counts may be more than a float holds.
        if abs(count - previous) < TOLERANCE * abs(count) + TOLERANCE * abs(previous):
            counts[i] = previous
        elif count < previous:
            counts[i] = previous
            is_forced = True
        else:
            previous = count
    return counts, is_forced
