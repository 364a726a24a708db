"""A steady load, and the rate at which runs begin, as the ledger shows it.

A run that begins was claimed, and the stage before it was committed: so runs begun are moves.
"""

from __future__ import annotations

import statistics
import threading
import time
from bisect import bisect_left
from collections import Counter
from pathlib import Path

from bench.soak.ledger import Reader
from bench.soak.storm import Children

TICK_S = 0.05
WINDOW_S = 3.0
STEP_S = 0.25
# So many orders may be ahead of the submitter: on a machine that is too slow for the rate they
# would become more and more, and take long after the fault.
MOST_AHEAD = 100
SHARE = 0.8
"""So much of the former rate counts as the former rate."""


class Pace(threading.Thread):
    """Lets the submitter place orders at a fixed rate, and notes when each run began."""

    def __init__(self, children: Children, ledger: Path, *, orders_per_s: float) -> None:
        super().__init__(name="pace", daemon=True)
        self.orders = 0
        """How many were allowed so far."""
        self.ready: set[int] = set()
        """The process ids of the workers that have been ready."""
        self._children = children
        self._reader = Reader(ledger)
        self._orders_per_s = orders_per_s
        self._begun: list[float] = []
        self._begun_by: Counter[int] = Counter()
        self._accepted: set[str] = set()
        self._stopped = threading.Event()

    def run(self) -> None:
        began = time.monotonic()
        while not self._stopped.wait(TICK_S):
            self._read()
            if not self.ready:
                began = time.monotonic()  # whatever the start takes, no orders pile up
            wanted = int((time.monotonic() - began) * self._orders_per_s)
            allowed = min(wanted, len(self._accepted) + MOST_AHEAD)
            if allowed > self.orders:
                self._children.allow(allowed)
                self.orders = allowed

    def stop(self) -> None:
        """Allow no more orders, and note no more runs."""
        self._stopped.set()
        self.join()
        self._reader.close()

    def _read(self) -> None:
        now = time.monotonic()
        for line in self._reader.read():
            if line.kind == "begin":
                self._begun.append(now)
                self._begun_by[line.pid] += 1
            elif line.kind == "accepted":
                self._accepted.add(line.words[0])
            elif line.kind == "ready":
                self.ready.add(line.pid)

    def count_runs(self, pid: int | None = None) -> int:
        """Return how many runs have begun, in all or in one process."""
        return len(self._begun) if pid is None else self._begun_by[pid]

    def rate(self, since: float, until: float) -> float:
        """Return the runs a second that began between two moments of the monotonic clock."""
        begun = bisect_left(self._begun, until) - bisect_left(self._begun, since)
        return begun / (until - since)

    def usual_rate(self, since: float, until: float) -> float:
        """Return the median rate of all windows between two moments."""
        window = min(WINDOW_S, until - since)
        steps = int((until - since - window) / STEP_S) + 1
        starts = [since + step * STEP_S for step in range(steps)]
        return statistics.median(self.rate(start, start + window) for start in starts)

    def wait_for_rate(self, former: float, *, since: float, within_s: float) -> float | None:
        """Return how long after a moment the first window begins that has the former rate.

        None when no window that begins within so many seconds has it.
        """
        start = since
        while start <= since + within_s:
            time.sleep(max(0.0, start + WINDOW_S + 2 * TICK_S - time.monotonic()))
            if self.rate(start, start + WINDOW_S) >= SHARE * former:
                return start - since
            start += STEP_S
        return None
