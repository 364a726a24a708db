"""Upkeep: what somebody must look at now and then."""

from __future__ import annotations

from typing import Protocol

from ulak.clock import Instant
from ulak.core.job import JobRow, Request


class UpkeepStore(Protocol):
    """What no worker or person comes for: dates that have passed, sums, and what is left over."""

    def due(self, limit: int, *, after: tuple[Instant, bytes] = (0, b"")) -> list[JobRow]:
        """Return jobs that nobody has leased and that are past their `wake_at`, the oldest first.

        `after` is the (wake_at, id) of the last job of the page before.
        """

    def overdue_leased(self, limit: int) -> list[JobRow]:
        """Return leased jobs past their `wake_at` for which no expiry is requested."""

    def asked(self, limit: int, *, after: bytes = b"") -> list[tuple[JobRow, list[Request]]]:
        """Return unleased jobs that have requests, by id, above `after`."""

    def unpark(self, limit: int) -> int:
        """Unpark jobs whose limit has a free slot that no commit has passed on, and those whose
        bucket or pause nobody will look at again; at most so many jobs.

        Looks at a bounded part of what jobs are parked on; the next call goes on from there.
        """

    def sweep(self, limit: int) -> int:
        """Remove up to `limit` of each: slots of keys that nobody holds or waits for, full
        buckets, pauses that are over, and turns that count for nothing; free slots of a state
        that their job does not keep any more; return how many.
        """

    def fold_counts(self) -> None:
        """Sum up the deltas that commits appended; the sums stay the same."""
