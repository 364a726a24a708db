"""How many events of a kind there were, and how many were bad, over any of the last 30 days.

The counts of the longest short window are kept as they came. What is older lies in buckets of five
minutes, so memory and time depend on neither the number of requests nor the age of the process.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from typing import Protocol

from ulak.control.samples import DAY_MS, HOUR_MS, MINUTE_MS

RAW_MS = 6 * HOUR_MS
"""The longest short window of the burn alerts."""
BUCKET_MS = 5 * MINUTE_MS
KEEP_MS = 30 * DAY_MS


def bucket_start(timestamp_ms: int) -> int:
    """Return when the bucket of a time begins."""
    return timestamp_ms - timestamp_ms % BUCKET_MS


class WindowCounts(Protocol):
    """Events that were counted by time."""

    def between(self, start_ms: int, end_ms: int) -> tuple[int, int]:
        """Return bad and all events of a window, both ends included."""
        ...


class RunningSums:
    """Counts by time, as running sums: those of any window are two lookups."""

    def __init__(self) -> None:
        self.times: list[int] = []
        # One longer than the times: what was before the first, and then after each.
        self._bad: list[int] = [0]
        self._total: list[int] = [0]

    def add(self, at_ms: int, bad: int, total: int) -> None:
        """Count events of one time; the later the time, the cheaper."""
        place = bisect_right(self.times, at_ms)
        if place == 0 or self.times[place - 1] != at_ms:
            self.times.insert(place, at_ms)
            place += 1
            self._bad.insert(place, self._bad[place - 1])
            self._total.insert(place, self._total[place - 1])
        for after in range(place, len(self._bad)):
            self._bad[after] += bad
            self._total[after] += total

    def between(self, start_ms: int, end_ms: int) -> tuple[int, int]:
        """Return bad and all events, both ends included."""
        first = bisect_left(self.times, start_ms)
        last = max(first, bisect_right(self.times, end_ms))
        return self._bad[last] - self._bad[first], self._total[last] - self._total[first]

    def drop_before(self, at_ms: int) -> None:
        """Forget the events before a time."""
        count = bisect_left(self.times, at_ms)
        del self.times[:count], self._bad[:count], self._total[:count]


class EventCounts:
    """The counts of one metric of an error budget.

    Counts may come in any order, so a clock that was set back loses nothing. They are as fine as
    they were given for six hours, and exact in number at every age; a bucket that is partly inside
    a window is counted whole.
    """

    def __init__(self, keep_ms: int = KEEP_MS) -> None:
        self._keep_ms = keep_ms
        self._raw = RunningSums()
        self._buckets = RunningSums()

    def __len__(self) -> int:
        """Return how many counts are held, whatever the number of events."""
        return len(self._raw.times) + len(self._buckets.times)

    def add(self, at_ms: int, bad: int, total: int) -> None:
        """Count events of one time, and fold what has become older than six hours.

        Raises:
            ValueError: a count is negative.
        """
        if bad < 0 or total < 0:
            raise ValueError(f"{bad} bad of {total} events: a count is never negative")
        self._raw.add(at_ms, bad, total)
        # By the time of this call, not by the latest one: a clock that was ahead folds nothing.
        edge = bucket_start(at_ms - RAW_MS)
        while self._raw.times and self._raw.times[0] < edge:
            start = bucket_start(self._raw.times[0])
            self._buckets.add(start, *self._raw.between(start, start + BUCKET_MS - 1))
            self._raw.drop_before(start + BUCKET_MS)
        self._buckets.drop_before(at_ms - self._keep_ms - BUCKET_MS + 1)

    def fold_in(self, bucket_start_ms: int, bad: int, total: int) -> None:
        """Add a bucket that was folded by an earlier process."""
        self._buckets.add(bucket_start(bucket_start_ms), bad, total)

    def between(self, start_ms: int, end_ms: int) -> tuple[int, int]:
        """Return bad and all events of a window, both ends included."""
        bad, total = self._raw.between(start_ms, end_ms)
        old_bad, old_total = self._buckets.between(start_ms - BUCKET_MS + 1, end_ms)
        return bad + old_bad, total + old_total
