"""The totals of every process, kept beside the jobs: each event of a trail is counted once.

Workers are other processes than the API, and any of them may crash right after a commit: what a
process has counted by itself would be lost with it. So a follower of the flow counts, in any
worker; how far the trail of a job was counted and what that came to are one transaction.
"""

from __future__ import annotations

import threading
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from itertools import zip_longest
from typing import Any, Final
from uuid import UUID

from ulak import Engine, Job, JobFilter
from ulak.core import event as kinds
from ulak.engine.view import JobEvent
from ulak.errors import JobNotFound
from ulak.kit.clock import to_datetime, to_instant
from ulak.services.pdf.counting import Entry, Happened, counted, engine_of
from ulak.services.pdf.flow import FLOW, entries_of, error_code_of, walk
from ulak.services.pdf.model import PdfErrorCode, PdfJobStatus
from ulak.services.pdf.schema import SCHEMA
from ulak.tables import Tables

FOLLOWER: Final = "pdf-metrics"
"""Under this name the deliveries of events are stored."""
A_BATCH: Final = 500
"""So many jobs are counted in one transaction: on SQLite nobody else writes meanwhile."""
BROWSER: Final = "browser"
"""Under this name: the browser that printed last, and when."""
NO_BROWSER: Final = "no-browser"
"""Under this name: why a browser did not start the last time, and when."""
WEASYPRINT: Final = "weasyprint"
NO_WEASYPRINT: Final = "no-weasyprint"
"""Under these names: the same of the engine that is no browser."""
_NO_BROWSER_CODES: Final = frozenset(
    {PdfErrorCode.BROWSER_LAUNCH_FAILED, PdfErrorCode.UNSUPPORTED_PLATFORM}
)


@dataclass(frozen=True, slots=True)
class Told:
    """What a worker has told last, and when."""

    text: str
    at: datetime


@dataclass(frozen=True, slots=True)
class Figures:
    """Everything that was counted so far."""

    totals: Mapping[Entry, float] = field(default_factory=dict)
    told: Mapping[str, Told] = field(default_factory=dict)


def attach(engine: Engine) -> None:
    """Have the workers of an engine count what happens to PDF jobs."""
    totals = Totals(engine)

    @engine.follow(name=FOLLOWER, flow=FLOW)
    def count(events: Sequence[JobEvent], connection: Any) -> None:
        totals.count({event.job.id: event.job for event in events}.values(), connection)


class Totals:
    """What the trails of PDF jobs came to: in the engine's database, or in this process where its
    store has no tables."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        has_tables = engine.store.features.open_transactions
        self._tables = Tables(engine, SCHEMA) if has_tables else None
        self._lock = threading.Lock()
        self._sums, self._counted = _Sums(), dict[str, int]()
        """What this process has counted by itself, and how far of each job."""

    def read(self) -> Figures:
        """Return everything that was counted so far.

        Raises:
            StoreError: the store does not answer.
        """
        if self._tables is None:
            with self._lock:
                for job in walk(self._engine, JobFilter(flow=FLOW)):
                    after = self._counted.get(job.id, 0)
                    self._counted[job.id] = self._take(self._sums, job, after)
                return Figures(dict(self._sums.totals), dict(self._sums.told))
        with self._tables.reading() as connection:
            totals = self._tables.execute(connection, _TOTALS)
            told = self._tables.execute(connection, _TOLD)
        return Figures(
            {(name, label): n for name, label, n in totals},
            {name: Told(text, to_datetime(at)) for name, text, at in told},
        )

    def count(self, jobs: Iterable[Job], connection: Any) -> None:
        """Count what has happened to jobs since that was done last, in an open transaction.

        Every event is counted once, whoever counts at the same time and whoever crashes, and also
        one of which the follower gets nothing: a process of the release before has written it.

        Raises:
            StoreError: the store does not answer.
        """
        tables = self._tables
        if tables is None:
            return
        tables.ensure(connection)
        tables.take_turns(connection)  # processes of the release before count too
        sums = _Sums()
        for job in jobs:
            stored_id = _store_id(tables, job.id)
            found = tables.execute(connection, _COUNTED, stored_id)
            reached = self._take(sums, job, found[0][0] if found else 0)
            tables.execute(connection, _MARK, stored_id, reached)
        for (name, label), n in sums.totals.items():
            tables.execute(connection, _ADD, name, label, n)
        for name, told in sums.told.items():
            tables.execute(connection, _TELL, name, told.text, to_instant(told.at))

    def count_all(self, jobs: Sequence[Job]) -> None:
        """Count what has happened to jobs, in transactions of its own.

        Raises:
            StoreError: the store does not answer; some may be counted.
        """
        if self._tables is not None:
            for start in range(0, len(jobs), A_BATCH):
                with self._tables.writing() as connection:
                    self.count(jobs[start : start + A_BATCH], connection)

    def forget(self, jobs: Iterable[Job]) -> None:
        """Forget how far those of these jobs were counted that are gone; what they came to stays.

        Raises:
            StoreError: the store does not answer.
        """
        tables = self._tables
        if tables is None:
            return
        gone: list[Job] = []
        for job in jobs:
            try:
                self._engine.get(job.id)
            except JobNotFound:
                gone.append(job)
        with tables.writing() as connection:
            for job in gone:
                tables.execute(connection, _FORGET, _store_id(tables, job.id))

    def _take(self, sums: _Sums, job: Job, after: int) -> int:
        """Count the events of a job that follow one; return the number of the last."""
        events = self._engine.inspect.trail(job.id, after=after)
        for event, following in zip_longest(events, events[1:]):
            is_success = event.to_state == PdfJobStatus.SUCCEEDED
            sums.take(
                Happened(
                    event, created_at=job.created_at,
                    result=self._engine.inspect.result(job.id) if is_success else None,
                    is_retried=following is not None and following.kind == kinds.RETRY,
                )
            )  # fmt: skip
        return events[-1].seq if events else after


def _store_id(tables: Tables, job_id: str) -> UUID | bytes:
    stored = UUID(job_id)
    return stored if tables.database.name == "postgresql" else stored.bytes


class _Sums:
    """What some events came to."""

    def __init__(self) -> None:
        self.totals: defaultdict[Entry, float] = defaultdict(float)
        self.told: dict[str, Told] = {}

    def take(self, happened: Happened) -> None:
        for entry, n in counted(happened):
            self.totals[entry] += n
        event = happened.event
        if event.to_state == PdfJobStatus.SUCCEEDED and (engine := engine_of(happened.result)):
            is_weasyprint = engine.lower().startswith(WEASYPRINT)
            self._tell(WEASYPRINT if is_weasyprint else BROWSER, Told(engine, event.at))
        if event.to_state == PdfJobStatus.FAILED:
            code = error_code_of(event.code)
            if code in _NO_BROWSER_CODES:
                is_weasyprint = any(e.error_detail == WEASYPRINT for e in entries_of(event))
                name = NO_WEASYPRINT if is_weasyprint else NO_BROWSER
                self._tell(name, Told(str(code), event.at))

    def _tell(self, name: str, told: Told) -> None:
        if name not in self.told or self.told[name].at <= told.at:
            self.told[name] = told


_COUNTED: Final = "SELECT seq FROM {schema}.pdf_counted WHERE job_id = ?"
_ADD: Final = """
INSERT INTO {schema}.pdf_totals (name, label, n) VALUES (?, ?, ?)
ON CONFLICT (name, label) DO UPDATE SET n = pdf_totals.n + excluded.n
"""
_MARK: Final = """
INSERT INTO {schema}.pdf_counted (job_id, seq) VALUES (?, ?)
ON CONFLICT (job_id) DO UPDATE SET seq = excluded.seq
"""
_TELL: Final = """
INSERT INTO {schema}.pdf_told (name, text, at) VALUES (?, ?, ?)
ON CONFLICT (name) DO UPDATE SET text = excluded.text, at = excluded.at
WHERE excluded.at >= pdf_told.at
"""
_FORGET: Final = "DELETE FROM {schema}.pdf_counted WHERE job_id = ?"
_TOTALS: Final = "SELECT name, label, n FROM {schema}.pdf_totals"
_TOLD: Final = "SELECT name, text, at FROM {schema}.pdf_told"
