"""The totals that are shown as metrics, kept beside the jobs: each event is counted once.

Workers are other processes than the API, and any of them may crash right after a commit. So totals
are made of trails, which are committed with what they tell of: a follower of the flow counts in any
worker, and how far a trail was counted and what that came to are one transaction.
"""

from __future__ import annotations

import threading
from bisect import bisect_left
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from importlib.resources import files
from itertools import zip_longest
from typing import Any, Final
from uuid import UUID

from ulak import Engine, Job, JobFilter
from ulak.control import Family, Telemetry
from ulak.core import event as kinds
from ulak.engine.view import JobEvent, TrailEvent
from ulak.errors import JobNotFound
from ulak.kit.clock import now, to_datetime, to_instant
from ulak.services.pdf.artifacts import WRITE_FAILED
from ulak.services.pdf.document import LAUNCH, LOAD, PRINT, REASONS, read_number
from ulak.services.pdf.flow import BLOCKED as BLOCKED_NOTE
from ulak.services.pdf.flow import FLOW, find_detail, find_entry, walk
from ulak.services.pdf.model import PdfErrorCode, PdfJobStatus
from ulak.tables import Schema, Tables

SCHEMA: Final = Schema(
    "PDF rendering",
    folder=files("ulak.services.pdf") / "sql",
    version_table="pdf_schema",
    why="every process must see who owns a job",
)

Entry = tuple[str, str]
"""A total and its label; of a histogram the bucket, or `sum`."""

JOBS: Final = "jobs"
FAILURES: Final = "failures"
RETRIES: Final = "retries"
BLOCKED: Final = "blocked"
RENDER: Final = "render"
WHOLE: Final = "whole"
EXECUTOR: Final = "executor"
BYTES: Final = "bytes"

ALONE: Final = ""
SUM: Final = "sum"

STATUSES: Final = tuple(map(str, PdfJobStatus))
# From a page that was warm (80 ms on the machine of docs/figures.md) to the largest time limit.
# 1 and 2 are the thresholds of adaptive control.
SECONDS: Final = (0.05, 0.1, 0.25, 0.5, 1.0, 2.0, 2.5, 5.0, 10.0, 30.0, 60.0, 120.0, 300.0)
# Accept to finish: three attempts and what a backlog adds.
LONG_SECONDS: Final = (*SECONDS, 900.0, 3600.0)
SIZES: Final = (1e3, 5e3, 1e4, 5e4, 1e5, 5e5, 1e6, 5e6)
BOUNDS: Final[Mapping[str, tuple[float, ...]]] = {
    RENDER: SECONDS,
    WHOLE: LONG_SECONDS,
    EXECUTOR: SECONDS,
    BYTES: SIZES,
}
"""The upper bounds of each histogram's buckets; above the last is `+Inf`."""
ABOVE: Final = "+Inf"

FOLLOWER: Final = "pdf-metrics"
A_BATCH: Final = 500
"""So many jobs are counted in one transaction: on SQLite nobody else writes meanwhile."""
BROWSER: Final = "browser"
WEASYPRINT: Final = "weasyprint"
"""The reports about an engine: its name and version as it printed last."""
NO_BROWSER: Final = "no-browser"
NO_WEASYPRINT: Final = "no-weasyprint"
"""And why it did not start the last time."""
NOT_READY: Final = "not-ready"
"""Why a worker can render nothing, as it has found out by itself."""
STORAGE: Final = "storage"
NO_STORAGE: Final = "no-storage"
"""When a PDF was stored, and when one could not be."""
_BROWSER_TIMES: Final = (LAUNCH, LOAD, PRINT)
_NO_BROWSER_CODES: Final = frozenset(
    {PdfErrorCode.BROWSER_LAUNCH_FAILED, PdfErrorCode.UNSUPPORTED_PLATFORM}
)


@dataclass(frozen=True, slots=True)
class Report:
    """The last report of workers under one name, and its time."""

    text: str
    at: datetime


@dataclass(frozen=True, slots=True)
class Figures:
    """Everything that was counted so far."""

    totals: Mapping[Entry, float]
    reports: Mapping[str, Report]
    """By name, such as `BROWSER`."""
    at: datetime
    """When it was read, by the store's clock."""


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
        """Return everything that was counted so far. Raises StoreError: the store does not
        answer."""
        if self._tables is None:
            with self._lock:
                for job in walk(self._engine, JobFilter(flow=FLOW)):
                    after = self._counted.get(job.id, 0)
                    self._counted[job.id] = self._take(self._sums, job, after)
                at = now(self._engine)
                return Figures(dict(self._sums.totals), dict(self._sums.reports), at)
        with self._tables.reading() as connection:
            totals = self._tables.execute(connection, _TOTALS)
            reports = self._tables.execute(connection, _REPORTS)
        return Figures(
            {(name, label): n for name, label, n in totals},
            {name: Report(text, to_datetime(at)) for name, text, at in reports},
            now(self._engine),
        )

    def read_telemetry(self) -> Telemetry:
        """Return what adaptive control wants to know. Raises StoreError: the store does not
        answer."""
        found = self.read().totals
        # A failed attempt that is tried again is counted as a retry too.
        failed = found.get((JOBS, PdfJobStatus.FAILED), 0) - found.get((RETRIES, ALONE), 0)
        finished = failed + found.get((JOBS, PdfJobStatus.SUCCEEDED), 0)
        bounds = BOUNDS[RENDER]
        counts = tuple(found.get((RENDER, bound), 0.0) for bound in (*map(str, bounds), ABOVE))
        numbers = (*counts, found.get((RENDER, SUM), 0.0))
        histogram = Family("pdf_render_duration_seconds", "histogram", (), {(): numbers}, bounds)
        return Telemetry(max(0, int(finished)), max(0, int(failed)), histogram)

    def count(self, jobs: Iterable[Job], connection: Any) -> None:
        """Count what has happened to jobs since that was done last, in an open transaction.

        Every event is counted once, whoever counts at the same time and whoever crashes, also one
        of which the follower gets nothing. Raises StoreError: the store does not answer.
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
        for name, report in sums.reports.items():
            tables.execute(connection, _REPORT, name, report.text, to_instant(report.at))

    def count_all(self, jobs: Sequence[Job]) -> None:
        """Count what has happened to jobs, in transactions of its own; a failure may leave some
        uncounted."""
        if self._tables is not None:
            for start in range(0, len(jobs), A_BATCH):
                with self._tables.writing() as connection:
                    self.count(jobs[start : start + A_BATCH], connection)

    def report(self, texts: Mapping[str, str]) -> None:
        """Publish what a worker has found out about itself, each under its name. Raises StoreError:
        the store does not answer."""
        if self._tables is None:
            return
        at = to_instant(now(self._engine))
        with self._tables.writing() as connection:
            for name, text in texts.items():
                self._tables.execute(connection, _REPORT, name, text, at)

    def forget(self, jobs: Iterable[Job]) -> None:
        """Forget how far jobs that are gone were counted; what they came to stays."""
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
            result = self._engine.inspect.result(job.id) if is_success else None
            is_retried = following is not None and following.kind == kinds.RETRY
            sums.add(event, job, result, is_retried=is_retried)
        return events[-1].seq if events else after


def is_given_back(event: TrailEvent) -> bool:
    """Tell whether a line says that an attempt was put off without spending a retry."""
    return event.kind == kinds.RETRY and event.from_state == event.to_state


def _store_id(tables: Tables, job_id: str) -> UUID | bytes:
    stored = UUID(job_id)
    return stored if tables.database.name == "postgresql" else stored.bytes


class _Sums:
    """What some events came to."""

    def __init__(self) -> None:
        self.totals: defaultdict[Entry, float] = defaultdict(float)
        self.reports: dict[str, Report] = {}

    def add(self, event: TrailEvent, job: Job, result: Any, *, is_retried: bool) -> None:
        """Count one event, nothing when it is no transition; `result` is what a run has left that
        succeeded, and a retried job is queued again by the same commit."""
        if is_given_back(event) and find_detail(event) == WRITE_FAILED:
            self._report(NO_STORAGE, Report(WRITE_FAILED, event.at))
        if event.kind == BLOCKED_NOTE:
            self._count_blocked(event.details)
        entry = find_entry(event)
        if entry is None:
            return
        self.totals[JOBS, str(entry.status)] += 1
        if entry.error_code is not None:
            self.totals[FAILURES, str(entry.error_code)] += 1
        if entry.is_retry:
            self.totals[RETRIES, ALONE] += 1
        has_succeeded = entry.status is PdfJobStatus.SUCCEEDED
        has_failed = entry.status is PdfJobStatus.FAILED
        if event.from_state == PdfJobStatus.RUNNING and (has_succeeded or has_failed):
            left = result if has_succeeded else event.details
            self._measure(event, left, None if is_retried else job.created_at)
            if has_succeeded:
                self._observe(BYTES, read_number(_member(left, "size")))
        if has_succeeded:
            self._report(STORAGE, Report("ok", event.at))
            engine = _member(result, "engine")
            if isinstance(engine, str) and engine:
                is_weasyprint = engine.lower().startswith(WEASYPRINT)
                self._report(WEASYPRINT if is_weasyprint else BROWSER, Report(engine, event.at))
        elif entry.error_code in _NO_BROWSER_CODES:
            name = NO_WEASYPRINT if entry.error_detail == WEASYPRINT else NO_BROWSER
            self._report(name, Report(str(entry.error_code), event.at))

    def _measure(self, event: TrailEvent, left: Any, created_at: datetime | None) -> None:
        """Add the end of an attempt to the histograms, and the URLs that it was refused."""
        timings = _member(left, "timings")
        took = read_number(_member(timings, "total"))
        if took is None and event.started_at is not None:
            # A run that failed has no timings of its own: then the attempt counts as a whole.
            took = max(0.0, (event.at - event.started_at).total_seconds())
        self._observe(RENDER, took)
        parts = [read_number(_member(timings, name)) for name in _BROWSER_TIMES]
        if any(part is not None for part in parts):
            self._observe(EXECUTOR, sum(part for part in parts if part is not None))
        if created_at is not None:
            self._observe(WHOLE, max(0.0, (event.at - created_at).total_seconds()))
        self._count_blocked(_member(left, "blocked"))

    def _count_blocked(self, blocked: Any) -> None:
        for reason in REASONS:
            if n := read_number(_member(blocked, reason)):
                self.totals[BLOCKED, reason] += n

    def _observe(self, name: str, value: float | None) -> None:
        if value is not None:
            bounds = BOUNDS[name]
            at = bisect_left(bounds, value)
            self.totals[name, str(bounds[at]) if at < len(bounds) else ABOVE] += 1
            self.totals[name, SUM] += value

    def _report(self, name: str, report: Report) -> None:
        if name not in self.reports or self.reports[name].at <= report.at:
            self.reports[name] = report


# What a run has left was written by another process, of another release perhaps: what is not
# there, or is of another kind, is not counted, and harms nothing else.


def _member(value: Any, name: str) -> Any:
    return value.get(name) if isinstance(value, Mapping) else None


_COUNTED: Final = "SELECT seq FROM {schema}.pdf_counted WHERE job_id = ?"
_ADD: Final = """
INSERT INTO {schema}.pdf_totals (name, label, n) VALUES (?, ?, ?)
ON CONFLICT (name, label) DO UPDATE SET n = pdf_totals.n + excluded.n
"""
_MARK: Final = """
INSERT INTO {schema}.pdf_counted (job_id, seq) VALUES (?, ?)
ON CONFLICT (job_id) DO UPDATE SET seq = excluded.seq
"""
_REPORT: Final = """
INSERT INTO {schema}.pdf_told (name, text, at) VALUES (?, ?, ?)
ON CONFLICT (name) DO UPDATE SET text = excluded.text, at = excluded.at
WHERE excluded.at >= pdf_told.at
"""
_FORGET: Final = "DELETE FROM {schema}.pdf_counted WHERE job_id = ?"
_TOTALS: Final = "SELECT name, label, n FROM {schema}.pdf_totals"
_REPORTS: Final = "SELECT name, text, at FROM {schema}.pdf_told"
