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
from typing import Final, Protocol

from ulak import Engine, JobFilter
from ulak.errors import StoreError
from ulak.kit.clock import micros, now
from ulak.services.pdf.failsafe import count_workers
from ulak.services.pdf.flow import FLOW
from ulak.services.pdf.model import PdfJob, PdfJobStatus
from ulak.services.pdf.schema import SCHEMA
from ulak.services.pdf.settings import PdfRenderConfig
from ulak.services.pdf.totals import Totals
from ulak.tables import Tables

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


class Lately(Protocol):
    """Answers how long renders took lately."""

    def seconds(self) -> list[float]:
        """Return the seconds of each of the latest."""


class Pacing:
    """Looks at the pace for every request of one process: once for all, and kept for a moment."""

    def __init__(
        self,
        engine: Engine,
        config: PdfRenderConfig,
        totals: Totals,
        *,
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        self._engine = engine
        self._config = config
        self._totals = totals
        self._lately = lately_of(engine)
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
            took = self._lately.seconds()
            return Pace(
                queued=self._totals.standing().queued,
                places=max(1, workers) * self._config.concurrency,
                render_s=fmean(took) if took else USUAL_S,
            )
        except StoreError:
            return Pace()


def lately_of(engine: Engine) -> Lately:
    """Return where an engine tells how long renders took."""
    if engine.store.features.open_transactions:
        return SqlLately(Tables(engine, SCHEMA))
    return MemoryLately(engine)


class SqlLately:
    """By the last lines of the trails, which one index of the engine's finds."""

    def __init__(self, tables: Tables) -> None:
        self._tables = tables

    def seconds(self) -> list[float]:
        """Return the seconds of each of the latest."""
        since = self._tables.now - micros(WINDOW)
        rows = self._tables.read(_LATELY, since, FLOW, MOST_LOOKED_AT)
        return [max(0, took) / 1_000_000 for (took,) in rows]


class MemoryLately:
    """The same, of a store that lives in this process."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine

    def seconds(self) -> list[float]:
        """Return the seconds of each of the latest."""
        since = now(self._engine.open()) - WINDOW
        where = JobFilter(flow=FLOW, state=PdfJobStatus.SUCCEEDED)
        jobs = [job for job in self._engine.jobs(where, limit=1000) if job.changed_at >= since]
        latest = sorted(jobs, key=lambda job: job.changed_at, reverse=True)[:MOST_LOOKED_AT]
        ends = [self._engine.inspect.trail(job.id)[-1] for job in latest]
        return [
            max(0.0, (end.at - end.started_at).total_seconds())
            for end in ends
            if end.started_at is not None
        ]


# The conditions of the index are repeated word by word.
_LATELY: Final = f"""
SELECT e.at - e.started_at FROM (
    SELECT id, seq FROM {{schema}}.jobs
    WHERE lane = '' AND role <> 'held' AND role <> 'waiting' AND changed_at >= ?
        AND flow = ? AND state = '{PdfJobStatus.SUCCEEDED}'
    ORDER BY changed_at DESC LIMIT ?
) AS j JOIN {{schema}}.events AS e ON e.job_id = j.id AND e.seq = j.seq
WHERE e.started_at IS NOT NULL
"""  # noqa: S608 - made of constants
