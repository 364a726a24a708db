"""How fast jobs are rendered now, and when to ask again for one that is not.

A hint for callers and nothing more: whatever cannot be found out is guessed, and a wrong hint costs
a request too many or a moment too late.
"""

from __future__ import annotations

import math
import threading
import time
from collections.abc import Callable
from dataclasses import KW_ONLY, dataclass
from datetime import timedelta
from statistics import fmean
from typing import Final

from ulak import Engine, JobFilter
from ulak.errors import UlakError
from ulak.kit.clock import now
from ulak.services.pdf.failsafe import count_workers
from ulak.services.pdf.flow import FLOW
from ulak.services.pdf.model import PdfJob, PdfJobStatus
from ulak.services.pdf.settings import PdfRenderConfig

UNFINISHED: Final = (PdfJobStatus.QUEUED, PdfJobStatus.RUNNING)
SOONEST_S: Final = 1
LATEST_S: Final = 60
WINDOW: Final = timedelta(minutes=5)
"""Renders that are older say nothing about now."""
MOST_LOOKED_AT: Final = 50
"""So many of the latest renders are enough for a mean."""
# Where nothing was rendered lately; a guess: a cold browser and a page take about so long.
USUAL_S: Final = 2.0
KEPT_S: Final = 2.0
"""So long is kept what was found out, as health is."""


@dataclass(frozen=True, slots=True)
class Pace:
    """How it goes now."""

    _: KW_ONLY
    queued: int = 0
    """Jobs that are queued and due."""
    places: int = 1
    """Pages at once, of all workers together."""
    render_s: float = USUAL_S
    """How long an attempt takes, by the mean of the latest that succeeded."""

    def retry_after_s(self, status: PdfJobStatus) -> int:
        """Return in how many whole seconds to ask again for a job, from 1 to 60.

        A job that runs has one render to go; one that is queued has the queue before it, and its
        own.
        """
        ahead = self.queued / self.places if status is PdfJobStatus.QUEUED else 0.0
        wait = math.ceil(self.render_s * (1 + ahead))
        return max(SOONEST_S, min(LATEST_S, wait))


class Pacing:
    """Looks at the pace for every request of one process: once for all, and kept for a moment."""

    def __init__(
        self,
        engine: Engine,
        config: PdfRenderConfig,
        *,
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        self._engine = engine
        self._config = config
        self._monotonic = monotonic
        self._lock = threading.Lock()
        self._kept: tuple[float, Pace] | None = None

    def look(self) -> Pace:
        """Return the pace, or what it was a moment ago; waits, so it is called in a thread.

        A store that does not answer is no error here: then it is the usual pace.
        """
        # One asks, and whoever comes meanwhile waits for that answer and not for the store.
        with self._lock:
            now = self._monotonic()
            if self._kept is None or now - self._kept[0] >= KEPT_S:
                self._kept = (now, self._measure())
            return self._kept[1]

    def hint(self, job: PdfJob) -> dict[str, str]:
        """Return the header that says when to ask again, of a job that has not ended."""
        if job.status not in UNFINISHED:
            return {}
        return {"Retry-After": str(self.look().retry_after_s(job.status))}

    def _measure(self) -> Pace:
        try:
            workers = count_workers(self._engine, heartbeat=self._config.heartbeat_limit)
            took = _find_lately(self._engine)
            return Pace(
                queued=count_queued(self._engine),
                places=max(1, workers) * self._config.concurrency,
                render_s=fmean(took) if took else USUAL_S,
            )
        except UlakError:  # the store does not answer, or a job was pruned meanwhile
            return Pace()


def count_queued(engine: Engine) -> int:
    """Count the jobs that wait for a worker, or for another attempt of their tenant to end: a
    delayed retry counts when it is due.

    Raises:
        StoreError: the store does not answer.
    """
    queued = (FLOW, PdfJobStatus.QUEUED)
    counts = engine.inspect.counts()
    standing = sum(row.jobs for row in counts if (row.flow, row.state) == queued)
    return max(0, standing - sum(b.delayed for b in engine.inspect.backlog() if b.flow == FLOW))


def _find_lately(engine: Engine) -> list[float]:
    """Return how many seconds each of the latest renders took."""
    where = JobFilter(
        flow=FLOW, state=PdfJobStatus.SUCCEEDED, role="done",
        changed_since=now(engine.open()) - WINDOW,
    )  # fmt: skip
    jobs = engine.jobs(where, limit=1000)
    latest = sorted(jobs, key=lambda job: job.changed_at, reverse=True)[:MOST_LOOKED_AT]
    ends = [engine.inspect.trail(job.id)[-1] for job in latest]
    return [
        max(0.0, (end.at - end.started_at).total_seconds())
        for end in ends
        if end.started_at is not None
    ]
