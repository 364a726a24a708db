"""What one look at the store tells about a watched job, or about the jobs of a filter."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, Final

from ulak.core.job import Event, JobRow
from ulak.core.lifecycle import FINAL
from ulak.engine.view import event_document, event_view
from ulak.ids import to_text
from ulak.store.protocol import CountRow, JobFilter, JobStore
from ulak.web.frames import frame
from ulak.web.watchers import News

# What one look hands to each watcher of a job, well below what a watcher may have queued.
EVENTS_PER_LOOK: Final = 100
BYTES_PER_LOOK: Final = 256 * 1024
# As many jobs of a filter as a page of a list shows.
NEWEST: Final = 100

Mark = dict[Any, Any]
"""How the jobs of a filter stand, as far as it is cheap to know."""


@dataclass(frozen=True, slots=True)
class JobLook:
    """What a look at a job found."""

    news: Sequence[News] = ()
    last_word: bytes | None = None
    """Set when the job has ended and nothing is left to be told."""
    has_more: bool = False
    """Whether there are more events than one look reads."""


def look_at_job(store: JobStore, job_id: bytes, seq: int) -> JobLook:
    """Read what happened to a job after the event of this number."""
    row = store.find_job(job_id)
    if row is None:
        return JobLook(last_word=_end(None))
    if row.seq <= seq:
        return JobLook(last_word=_end(row) if row.role in FINAL else None)
    news, size = [], 0
    # Read after the row, so it holds at least what the row says.
    for event in store.trail(job_id, after=seq, limit=EVENTS_PER_LOOK):
        news.append(News(event.seq, event_frame(event)))
        size += len(news[-1].frame)
        if size >= BYTES_PER_LOOK:
            break
    is_all = bool(news) and news[-1].seq == row.seq
    return JobLook(news, _end(row) if is_all and row.role in FINAL else None, has_more=not is_all)


def event_frame(event: Event) -> bytes:
    """Write an event of a trail: its number is the id by which a stream is resumed."""
    return frame(event.kind, event_document(event_view(event)), id=event.seq)


def _end(row: JobRow | None) -> bytes:
    """Say that a job has ended, or that it was pruned."""
    if row is None:
        return frame("end", {"state": None, "role": None, "code": None})
    return frame("end", {"state": row.state, "role": row.role, "code": row.code})


# --- lists ----------------------------------------------------------------------


def is_counted(where: JobFilter) -> bool:
    """Whether the counts of states tell of these jobs alone; they know nothing else."""
    return replace(where, flow=None, state=None, role=None) == JobFilter()


def mark_of(store: JobStore, where: JobFilter, counts: Sequence[CountRow]) -> Mark:
    """Return the counts of a filter if they tell, else the versions of its newest jobs."""
    if is_counted(where):
        return {row[:4]: row.jobs for row in counts if row.jobs and _is_of(where, row)}
    return {row.id: row.version for row in store.list_jobs(where, limit=NEWEST)}


def _is_of(where: JobFilter, row: CountRow) -> bool:
    return (
        where.flow in (None, row.flow)
        and where.state in (None, row.state)
        and where.role in (None, row.role)
    )


def difference(where: JobFilter, before: Mark, now: Mark) -> dict[str, Any]:
    """Say what has changed, as far as the marks tell: which counts, or which jobs."""
    changed = [key for key in before | now if before.get(key) != now.get(key)]
    if not is_counted(where):
        return {"jobs": [to_text(job_id) for job_id in changed]}
    names = ("flow", "version", "state", "role")
    return {
        "counts": [
            {**dict(zip(names, key, strict=True)), "jobs": now.get(key, 0)} for key in changed
        ]
    }
