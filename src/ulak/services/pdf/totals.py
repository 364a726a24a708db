"""The totals of every process, kept beside the jobs: each event of a trail is counted once.

Workers are other processes than the API, and any of them may crash right after a commit: what a
process has counted by itself would be lost with it. So the trail is read instead, by whoever is
scraped, from where it was read last; how far that is and what it came to are one transaction.
"""

from __future__ import annotations

import json
import threading
import time
from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Any, Final, Protocol

from ulak import Engine, Job, JobFilter
from ulak.core import event as kinds
from ulak.core.job import Event
from ulak.engine.view import TrailEvent, event_view
from ulak.kit.clock import Instant, micros, to_datetime, to_instant
from ulak.services.pdf.counting import Entry, Happened, counted, engine_of
from ulak.services.pdf.flow import FLOW, QUEUE, entries_of, error_code_of, walk
from ulak.services.pdf.model import PdfErrorCode, PdfJobStatus
from ulak.services.pdf.schema import SCHEMA
from ulak.tables import Tables

# So many events are counted in one transaction: on SQLite nobody else writes meanwhile.
A_BATCH: Final = 2000
# How often a process looks for jobs that are gone.
TIDY_S: Final = 3600.0
# A job's change is dated before it is committed, by a clock that may go wrong: so much later it is
# still found. How often it is noted how far was counted is a guess below that.
LATE: Final = timedelta(minutes=10)
NOTED_EVERY: Final = timedelta(minutes=1)

BROWSER: Final = "browser"
"""Under this name: the browser that printed last, and when."""
NO_BROWSER: Final = "no-browser"
"""Under this name: why a browser did not start the last time, and when."""
WEASYPRINT: Final = "weasyprint"
NO_WEASYPRINT: Final = "no-weasyprint"
"""Under these names: the same of the engine that is no browser."""
_FOLDED: Final = "folded"
"""Under this name: when everything was counted last."""
_LANES: Final = (f"{QUEUE}/", f"{QUEUE}0")
"""The lanes of the queue lie between these: `0` follows `/`."""
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


class Totals(Protocol):
    """Where the totals are."""

    def fold(self, *, whole: bool = False) -> Figures:
        """Count what has happened since somebody did so last, and answer everything.

        Every event is counted once, whoever folds at the same time and whoever crashes. The trail
        of a job that is removed before anybody has folded is lost; clean-up folds first.

        Args:
            whole: Look at every job, and not only at those that may have moved: finds what was
                committed later than `LATE` after it was dated.

        Raises:
            StoreError: the store does not answer.
        """


def totals_of(engine: Engine) -> Totals:
    """Return the totals of an engine: in its database, or in this process where it has none."""
    if engine.store.features.open_transactions:
        return SqlTotals(Tables(engine, SCHEMA))
    return MemoryTotals(engine)


# --- in a database ---------------------------------------------------------------------

# Every job of the flow that may have moved since, each by an index of the engine's own, whose
# conditions are repeated word by word: what has ended long ago is not looked at again.
_CLAIMABLE: Final = (
    "leased_by IS NULL AND parked_on IS NULL AND lane <> '' AND lane >= ? AND lane < ?"
)
_JOBS: Final = "SELECT id, seq, flow, created_at FROM {schema}.jobs WHERE"
_NEW: Final = f"""
FROM (
    {_JOBS} {_CLAIMABLE}
    UNION ALL {_JOBS} leased_by IS NOT NULL
    UNION ALL {_JOBS} parked_on IS NOT NULL AND leased_by IS NULL
    UNION ALL {_JOBS} lane = '' AND role <> 'held' AND role <> 'waiting' AND changed_at >= ?
    UNION ALL {_JOBS} role <> 'done' AND role <> 'ready' AND role <> 'busy' AND role = 'held'
) AS j LEFT JOIN {{schema}}.pdf_counted AS c ON c.job_id = j.id
"""
_IS_NEW: Final = f"""
SELECT 1 {_NEW} WHERE j.flow = ? AND j.seq > coalesce(c.seq, 0) LIMIT 1
"""
_COLUMNS: Final = ", ".join(f"e.{name}" for name in Event._fields)
_EVENTS: Final = f"""
SELECT {_COLUMNS}, j.created_at
{_NEW} JOIN {{schema}}.events AS e ON e.job_id = j.id AND e.seq > coalesce(c.seq, 0)
WHERE j.flow = ? AND j.seq > coalesce(c.seq, 0)
ORDER BY e.job_id, e.seq LIMIT ?
"""
_RESULT: Final = """
SELECT data FROM {schema}.results WHERE job_id = ? AND stage = ? AND name = ''
ORDER BY round DESC LIMIT 1
"""
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
_TIDY: Final = """
DELETE FROM {schema}.pdf_counted
WHERE NOT EXISTS (SELECT 1 FROM {schema}.jobs WHERE id = pdf_counted.job_id)
"""
_FOLDED_AT: Final = "SELECT at FROM {schema}.pdf_told WHERE name = ?"
_TOTALS: Final = "SELECT name, label, n FROM {schema}.pdf_totals"
_TOLD: Final = "SELECT name, text, at FROM {schema}.pdf_told"


class SqlTotals:
    """Totals in the engine's own database, the same from every process."""

    def __init__(self, tables: Tables) -> None:
        self._tables = tables
        self._tidied_at = time.monotonic()

    def fold(self, *, whole: bool = False) -> Figures:
        """Count what is new and answer everything; see `Totals`."""
        now = self._tables.now
        folded_at = 0 if whole else self._folded_at()
        since = max(0, folded_at - micros(LATE))
        while self._is_behind(since):
            self._fold_some(since)
        if now - folded_at >= micros(NOTED_EVERY):
            self._note(now)
        if time.monotonic() - self._tidied_at > TIDY_S:
            self.tidy()
        with self._tables.reading() as connection:
            totals = self._tables.execute(connection, _TOTALS)
            told = self._tables.execute(connection, _TOLD)
        return Figures(
            {(name, label): n for name, label, n in totals},
            {name: Told(text, to_datetime(at)) for name, text, at in told if name != _FOLDED},
        )

    def tidy(self) -> None:
        """Forget how far jobs were counted that are gone; what they came to stays."""
        with self._tables.writing() as connection:
            self._tables.execute(connection, _TIDY)
        self._tidied_at = time.monotonic()

    def _folded_at(self) -> Instant:
        found = self._tables.read(_FOLDED_AT, _FOLDED)
        return int(found[0][0]) if found else 0

    def _note(self, at: Instant) -> None:
        with self._tables.writing() as connection:
            self._tables.execute(connection, _TELL, _FOLDED, "", at)

    def _is_behind(self, since: Instant) -> bool:
        # Asked without a lock first: most scrapes find nothing new, and must hold nobody up.
        return bool(self._tables.read(_IS_NEW, *_LANES, since, FLOW))

    def _fold_some(self, since: Instant) -> None:
        run = self._tables.execute
        with self._tables.writing() as connection:
            self._tables.take_turns(connection)  # one folds at a time
            rows = run(connection, _EVENTS, *_LANES, since, FLOW, A_BATCH)
            events = _whole_jobs([(Event(*row[:-1]), to_datetime(row[-1])) for row in rows])
            sums = _Sums()
            for number, (event, created_at) in enumerate(events, 1):
                following = events[number][0] if number < len(events) else None
                is_retried = (
                    following is not None
                    and following.job_id == event.job_id
                    and following.kind == kinds.RETRY
                )
                result = self._result_of(connection, event)
                sums.take(
                    Happened(
                        event_view(event), created_at=created_at, result=result,
                        is_retried=is_retried,
                    )
                )  # fmt: skip
            for (name, label), n in sums.totals.items():
                run(connection, _ADD, name, label, n)
            for name, told in sums.told.items():
                run(connection, _TELL, name, told.text, to_instant(told.at))
            for job_id, seq in {event.job_id: event.seq for event, _ in events}.items():
                run(connection, _MARK, job_id, seq)

    def _result_of(self, connection: Any, event: Event) -> Any:
        if event.to_state != PdfJobStatus.SUCCEEDED:
            return None
        stage = PdfJobStatus.QUEUED.value
        left = self._tables.execute(connection, _RESULT, event.job_id, stage)
        return _read(left[0][0]) if left else None


# --- in memory -------------------------------------------------------------------------


class MemoryTotals:
    """Totals of a store that lives and ends with this process."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._one = threading.Lock()
        self._counted: dict[str, int] = {}
        self._sums = _Sums()

    def fold(self, *, whole: bool = False) -> Figures:
        """Count what is new and answer everything; see `Totals`."""
        with self._one:
            for job in walk(self._engine, JobFilter(flow=FLOW)):
                self._fold_job(job)
            return Figures(dict(self._sums.totals), dict(self._sums.told))

    def _fold_job(self, job: Job) -> None:
        events = self._engine.inspect.trail(job.id, after=self._counted.get(job.id, 0))
        for number, event in enumerate(events, 1):
            is_retried = number < len(events) and events[number].kind == kinds.RETRY
            self._sums.take(
                Happened(
                    event, created_at=job.created_at, result=self._result_of(job, event),
                    is_retried=is_retried,
                )
            )  # fmt: skip
            self._counted[job.id] = event.seq

    def _result_of(self, job: Job, event: TrailEvent) -> Any:
        if event.to_state != PdfJobStatus.SUCCEEDED:
            return None
        return self._engine.inspect.result(job.id)


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


def _whole_jobs(events: list[tuple[Event, datetime]]) -> list[tuple[Event, datetime]]:
    """Leave out the last job of a full batch: a failure whose retry is in the next one would
    count as an end."""
    last = events[-1][0].job_id if events else None
    if len(events) < A_BATCH or events[0][0].job_id == last:
        return events
    return [pair for pair in events if pair[0].job_id != last]


def _read(text: str | bytes) -> Any:
    try:
        return json.loads(text)
    except ValueError:
        return None  # whatever it is, it is nothing that could be counted
