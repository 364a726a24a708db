"""What one line of a job's trail adds to the totals that are shown as metrics.

Pure: whoever keeps the totals asks here, once for every event. The trail is committed with the
change that it tells of, so totals that are made of it cannot disagree with what happened, whichever
process did it and whichever crashed right after.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterator, Mapping
from dataclasses import KW_ONLY, dataclass
from datetime import datetime
from typing import Any, Final

from ulak.engine.view import TrailEvent
from ulak.services.pdf.document import REASONS
from ulak.services.pdf.flow import entries_of
from ulak.services.pdf.model import PdfErrorCode, PdfJobStatus
from ulak.services.pdf.steps import LAUNCH, LOAD, PRINT

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
"""The label of what has none."""
SUM: Final = "sum"

STATUSES: Final = tuple(map(str, PdfJobStatus))
OF_THE_API: Final = frozenset(
    {PdfErrorCode.PDF_RENDER_UNAVAILABLE, PdfErrorCode.BACKPRESSURE_ACTIVE}
)
JOB_CODES: Final = tuple(str(code) for code in PdfErrorCode if code not in OF_THE_API)
"""The codes that a job may fail with."""

# From a page that was warm (80 ms on the machine of docs/figures.md) to the largest time limit.
SECONDS: Final = (0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 120.0, 300.0)
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

_BROWSER_TIMES: Final = (LAUNCH, LOAD, PRINT)
_ATTEMPT_ENDS: Final = frozenset({PdfJobStatus.SUCCEEDED, PdfJobStatus.FAILED})


@dataclass(frozen=True, slots=True)
class Happened:
    """One event of a trail, with what else must be known of its job."""

    event: TrailEvent
    _: KW_ONLY
    created_at: datetime
    """When the job was accepted."""
    result: Any = None
    """What the run has left, of the event by which it succeeded."""
    is_retried: bool = False
    """Whether the same commit queues the job again."""


def counted(happened: Happened) -> Iterator[tuple[Entry, float]]:
    """Return what an event adds to which total; nothing when it is no transition."""
    before = happened.event.from_state
    for entry in entries_of(happened.event):
        yield (JOBS, str(entry.status)), 1
        if entry.error_code is not None:
            yield (FAILURES, str(entry.error_code)), 1
        if entry.is_retry:
            yield (RETRIES, ALONE), 1
        if before == PdfJobStatus.RUNNING and entry.status in _ATTEMPT_ENDS:
            yield from _measured(happened, has_succeeded=entry.status is PdfJobStatus.SUCCEEDED)


def bucket_of(name: str, value: float) -> str:
    """Name the bucket of a histogram that a value falls into."""
    bounds = BOUNDS[name]
    at = bisect_left(bounds, value)
    return str(bounds[at]) if at < len(bounds) else ABOVE


def engine_of(result: Any) -> str:
    """Return the browser that a result names, '' when it names none."""
    return _text(_member(result, "engine"))


def _measured(happened: Happened, *, has_succeeded: bool) -> Iterator[tuple[Entry, float]]:
    """Return what the end of an attempt adds to the histograms, and which URLs it was refused."""
    event = happened.event
    left = happened.result if has_succeeded else event.details
    timings = _member(left, "timings")
    took = _number(_member(timings, "total"))
    if took is None and event.started_at is not None:
        # A run that failed has no timings of its own: then the attempt counts as a whole.
        took = max(0.0, (event.at - event.started_at).total_seconds())
    yield from _observed(RENDER, took)
    parts = [_number(_member(timings, name)) for name in _BROWSER_TIMES]
    if any(part is not None for part in parts):
        yield from _observed(EXECUTOR, sum(part for part in parts if part is not None))
    if not happened.is_retried:
        yield from _observed(WHOLE, max(0.0, (event.at - happened.created_at).total_seconds()))
    if has_succeeded:
        yield from _observed(BYTES, _number(_member(left, "size")))
    blocked = _member(left, "blocked")
    for reason in REASONS:
        if n := _number(_member(blocked, reason)):
            yield (BLOCKED, reason), n


def _observed(name: str, value: float | None) -> Iterator[tuple[Entry, float]]:
    if value is not None:
        yield (name, bucket_of(name, value)), 1
        yield (name, SUM), value


# What a run has left was written by another process, of another release perhaps: what is not
# there, or is of another kind, is not counted, and harms nothing else.


def _member(value: Any, name: str) -> Any:
    return value.get(name) if isinstance(value, Mapping) else None


def _number(value: Any) -> float | None:
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    return float(value) if is_number and 0 <= value < float("inf") else None


def _text(value: Any) -> str:
    return value if isinstance(value, str) else ""
