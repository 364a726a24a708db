"""What streams tell: events as bytes, the news of one watcher, and one look at the store."""

from __future__ import annotations

import asyncio
import json
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final, NamedTuple

from ulak.core.job import Event, JobRow
from ulak.core.lifecycle import FINAL
from ulak.engine.view import event_document, event_view
from ulak.ids import to_text
from ulak.store.protocol import CountRow, JobFilter, JobStore

MEDIA_TYPE: Final = "text/event-stream"

ALIVE: Final = b": alive\n\n"
"""A comment: nobody is told, but whoever stands between knows that the line is in use."""


def frame(kind: str, data: Any, *, id: int | None = None) -> bytes:
    """Write one event; with an id, a client that comes back says that this was its last."""
    # JSON as it is written here has no line breaks, so one data line holds it.
    text = json.dumps(data, separators=(",", ":"))
    mark = "" if id is None else f"id: {id}\n"
    return f"{mark}event: {kind}\ndata: {text}\n\n".encode()


def opening(*, retry_ms: int, id: int | None = None) -> bytes:
    """Write what a stream begins with: when to come back, and what to say then."""
    mark = "" if id is None else f"id: {id}\n"
    return f"{mark}retry: {retry_ms}\n\n".encode()


# A reader that lags behind by so much reads too slowly; it comes back and resumes where it was.
MOST_QUEUED: Final = 256
MOST_QUEUED_BYTES: Final = 1024 * 1024

# What is handed to the connection at once: as much as uvicorn takes before it makes us wait.
MOST_AT_ONCE: Final = 64 * 1024


class News(NamedTuple):
    """Something to be told: the number of an event, or of a hint, and its bytes. The bytes are made
    once and shared by every watcher."""

    seq: int
    frame: bytes


class Watcher:
    """The news of one stream. Everything here happens on one event loop."""

    def __init__(self, *, start: int = 0, after: int = 0) -> None:
        self.start = start
        """What has this number, or a lower one, is not among the news: the store has it."""
        self.position = after
        self.on_close: Callable[[], object] = lambda: None
        self.on_taken: Callable[[], object] = lambda: None
        self.waits_since = 0.0
        self._news: deque[News] = deque()
        self._bytes = 0
        self._last_word: bytes | None = None
        self._is_cut = False
        self._stirred = asyncio.Event()

    @property
    def is_behind(self) -> bool:
        return self.position < self.start and not self._is_cut

    @property
    def queued(self) -> int:
        return len(self._news)

    def offer(self, news: News) -> bool:
        """Add news; False when too much waits already, and nothing was added."""
        if self._last_word is not None:
            return True
        if not self._news:
            self.waits_since = asyncio.get_running_loop().time()
        elif (
            # One that is larger than the bound by itself must still be tellable.
            len(self._news) >= MOST_QUEUED or self._bytes + len(news.frame) > MOST_QUEUED_BYTES
        ):
            return False
        self._news.append(news)
        self._bytes += len(news.frame)
        self._stirred.set()
        return True

    def finish(self, last_word: bytes) -> None:
        """End the stream with a last word, after everything that is still to be told."""
        if self._last_word is None:
            self._last_word = last_word
            self._stirred.set()

    def cut(self, last_word: bytes) -> None:
        """End the stream with a last word, and tell nothing else before it."""
        self._news.clear()
        self._bytes = 0
        self._is_cut = True
        self._last_word = last_word
        self._stirred.set()
        self.on_close()

    async def take(self, timeout_s: float) -> bytes | None:
        """Return what is to be sent next, b'' when there is nothing yet, None after the last word.
        What was told already, because it was read from the store, is left out."""
        try:
            async with asyncio.timeout(timeout_s):
                await self._stirred.wait()
        except TimeoutError:
            return b""
        chunk = bytearray()
        while self._news and len(chunk) < MOST_AT_ONCE:
            news = self._news.popleft()
            self._bytes -= len(news.frame)
            if news.seq > self.position:
                self.position = news.seq
                chunk += news.frame
        if chunk:
            self.waits_since = asyncio.get_running_loop().time()
            if not self._news:
                self.on_taken()
            return bytes(chunk)
        if self._last_word is None:
            self._stirred.clear()
            return b""
        word, self._last_word = self._last_word, b""
        return word or None


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
    has_more: bool = False


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
    if row is None:
        return frame("end", {"state": None, "role": None, "code": None})
    return frame("end", {"state": row.state, "role": row.role, "code": row.code})


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
