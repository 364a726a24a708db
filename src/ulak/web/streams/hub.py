"""Who watches what: one look at the store for all who wait for the same news.

A stream is a hint to read again (E-46). The hub looks when a commit of any process may have moved a
job, and once a second besides; each watched job is read once, however many watch it. What it
finds goes to its watchers through queues with a bound: whoever reads too slowly is dropped.
"""

from __future__ import annotations

import asyncio
import itertools
import logging
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from datetime import timedelta
from functools import partial
from typing import Final

from ulak.engine.engine import Engine
from ulak.engine.reads import EVERY_JOB
from ulak.engine.threads import call_on
from ulak.errors import Overloaded, StoreError
from ulak.store.protocol import JobFilter
from ulak.web.streams.news import (
    JobLook,
    Mark,
    News,
    Watcher,
    difference,
    frame,
    is_counted,
    look_at_job,
    mark_of,
)

log = logging.getLogger("ulak.web.streams")

MOST_WATCHERS: Final = 1000
COME_BACK_AFTER: Final = timedelta(seconds=5)

# A ring may be lost, and a store that is far away may have none.
GLANCE_S: Final = 1.0
# Between two looks, so that a busy process does not read a watched job for each of its moves; and
# a look over many jobs is followed by a rest that leaves the store three quarters of the time.
REST_S: Final = 0.03
REST_PER_LOOK: Final = 3.0
# Hints make every reader of a list ask for it again: two a second are plenty.
HINT_EVERY_S: Final = 0.5
# Whoever takes nothing for so long, though something waits, reads too slowly.
PATIENCE_S: Final = 30.0

DROPPED: Final = frame("dropped", {"why": "you read too slowly; come back and resume"})
STOPPING: Final = frame("stopping", {"why": "the server stops; come back and resume"})


@dataclass(slots=True, eq=False)
class WatchedJob:
    """A job that somebody watches."""

    id: bytes
    seq: int
    """Every event up to this one was handed out."""
    watchers: set[Watcher] = field(default_factory=set)
    has_more: bool = False

    @property
    def is_awaited(self) -> bool:
        """Whether somebody has taken all there was: news come as fast as the fastest reads."""
        return any(not watcher.queued for watcher in self.watchers)


@dataclass(slots=True, eq=False)
class WatchedList:
    """A filter whose jobs somebody watches."""

    where: JobFilter
    mark: Mark
    """How they stood when the last hint was given."""
    watchers: set[Watcher] = field(default_factory=set)


class Hub:
    """Tells everybody who watches one application. Its streams live on one event loop."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._jobs: dict[bytes, WatchedJob] = {}
        self._lists: dict[JobFilter, WatchedList] = {}
        self._loop: asyncio.AbstractEventLoop | None = None
        self._looking: asyncio.Task[None] | None = None
        self._stop_ringing: Callable[[], None] = lambda: None
        self._bell = asyncio.Event()
        self._rung = False
        self._closed = False
        self._counts: Mark = {}
        self._lists_at = 0.0
        self._lists_rung = False
        self._hints = itertools.count(1)
        self.connected = 0
        self.dropped = 0

    @property
    def watchers(self) -> Iterator[Watcher]:
        for watched in self._all():
            yield from watched.watchers

    def _all(self) -> Iterator[WatchedJob | WatchedList]:
        yield from self._jobs.values()
        yield from self._lists.values()

    @contextmanager
    def watching_job(self, job_id: bytes, *, seq: int, after: int) -> Iterator[Watcher]:
        """Watch a job as long as the block lasts: every event above `after`. `seq` is the number of
        its last event when it was read a moment ago. Raises `Overloaded`: too many watch, or the
        server stops."""
        with self._connected():
            job = self._jobs.setdefault(job_id, WatchedJob(job_id, seq))
            watcher = Watcher(start=job.seq, after=after)
            watcher.on_taken = partial(self._go_on, job)
            job.watchers.add(watcher)
            self._ring_here()
            try:
                yield watcher
            finally:
                job.watchers.discard(watcher)
                if not job.watchers and self._jobs.get(job_id) is job:
                    del self._jobs[job_id]

    @contextmanager
    def watching_list(self, where: JobFilter, mark: Mark) -> Iterator[Watcher]:
        """Watch the jobs of a filter as long as the block lasts. `mark` is what `read_mark`
        answered a moment ago: whatever has changed since is hinted at. Raises `Overloaded`: too
        many watch, or the server stops."""
        with self._connected():
            listing = self._lists.setdefault(where, WatchedList(where, mark))
            watcher = Watcher()
            listing.watchers.add(watcher)
            self._ring_here()
            try:
                yield watcher
            finally:
                listing.watchers.discard(watcher)
                if not listing.watchers and self._lists.get(where) is listing:
                    del self._lists[where]

    def read_mark(self, where: JobFilter) -> Mark:
        store = self._engine.open().store
        return mark_of(store, where, store.counts() if is_counted(where) else ())

    def close(self) -> None:
        """End every stream, and begin none any more; may be called from any thread."""
        self._closed = True
        if self._loop is not None:
            call_on(self._loop, self._cut_all)

    @contextmanager
    def _connected(self) -> Iterator[None]:
        """Count a stream; the first one wakes the hub, with the last one it goes to sleep."""
        if self._closed:
            raise Overloaded(
                "the server stops; come back in a moment", retry_after=timedelta(seconds=1)
            )
        if self.connected >= MOST_WATCHERS:
            raise Overloaded(
                f"{self.connected} streams are open, no more can be; come back, or ask with GET",
                retry_after=COME_BACK_AFTER,
            )
        self.connected += 1
        if self.connected == 1:
            self._begin()
        try:
            yield
        finally:
            self.connected -= 1
            if self.connected == 0:
                self._end()

    def _begin(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._bell, self._rung = asyncio.Event(), False
        self._counts, self._lists_at, self._lists_rung = {}, 0.0, False
        self._stop_ringing = self._engine.store.on_move(self._ring)
        self._looking = asyncio.create_task(self._look_on(), name="ulak-hub")
        self._looking.add_done_callback(self._has_ended)

    def _end(self) -> None:
        self._stop_ringing()
        self._loop = None
        if self._looking is not None:
            self._looking.cancel()
            self._looking = None

    def _has_ended(self, looking: asyncio.Task[None]) -> None:
        """A hub that fails must be heard of, and nobody may wait for news that will not come."""
        if not looking.cancelled() and (error := looking.exception()) is not None:
            log.error("the hub of the streams has ended", exc_info=error)
            self._cut_all()

    def _cut_all(self) -> None:
        for watcher in tuple(self.watchers):
            watcher.cut(STOPPING)

    def _ring(self) -> None:
        """Have the hub look, from any thread; a crowd of rings is one."""
        loop = self._loop
        if not self._rung and loop is not None:
            self._rung = True
            call_on(loop, self._ring_here)

    def _ring_here(self) -> None:
        self._rung = True
        self._bell.set()

    def _go_on(self, job: WatchedJob) -> None:
        if job.has_more:
            self._ring_here()

    async def _look_on(self) -> None:
        loop = asyncio.get_running_loop()
        while True:
            began = loop.time()
            self._lists_rung |= self._rung
            self._rung = False
            self._bell.clear()
            try:
                await self._look(began)
            except StoreError as error:
                # Whoever watches will be told when the store is back.
                log.warning("the streams cannot be served", extra={"error": str(error)})
            for watcher in tuple(self.watchers):
                if watcher.queued and loop.time() - watcher.waits_since > PATIENCE_S:
                    self._drop(watcher)
            took = loop.time() - began
            await asyncio.sleep(min(max(REST_S, REST_PER_LOOK * took), GLANCE_S))
            if not any(job.has_more and job.is_awaited for job in self._jobs.values()):
                waits_for_lists = self._lists_rung and self._lists
                wait_s = self._lists_at - loop.time() if waits_for_lists else GLANCE_S
                with suppress(TimeoutError):
                    async with asyncio.timeout(max(0.0, wait_s)):
                        await self._bell.wait()

    async def _look(self, now: float) -> None:
        jobs = [(job, job.seq) for job in self._jobs.values() if job.is_awaited]
        if jobs:
            looks = await asyncio.to_thread(self._look_at_jobs, jobs)
            for (job, _), look in zip(jobs, looks, strict=True):
                self._tell_of_job(job, look)
        if self._lists and now >= self._lists_at:
            lists, was_rung = tuple(self._lists.values()), self._lists_rung
            self._lists_at, self._lists_rung = now + HINT_EVERY_S, False
            self._counts, marks = await asyncio.to_thread(self._look_at_lists, lists, was_rung)
            for listing, mark in zip(lists, marks, strict=False):
                self._tell_of_list(listing, mark)

    def _look_at_jobs(self, jobs: Sequence[tuple[WatchedJob, int]]) -> list[JobLook]:
        return [look_at_job(self._engine.store, job.id, seq) for job, seq in jobs]

    def _look_at_lists(
        self, lists: Sequence[WatchedList], was_rung: bool
    ) -> tuple[Mark, list[Mark]]:
        """Read the counts, in a thread, and the marks of lists if there is any news at all."""
        store = self._engine.store
        rows = store.counts()
        counts = mark_of(store, EVERY_JOB, rows)
        if counts == self._counts and not was_rung:
            return counts, []
        return counts, [mark_of(store, listing.where, rows) for listing in lists]

    def _tell_of_job(self, job: WatchedJob, look: JobLook) -> None:
        job.has_more = look.has_more
        if look.news:
            job.seq = look.news[-1].seq
        for watcher in tuple(job.watchers):
            if not all(watcher.offer(news) for news in look.news):
                self._drop(watcher)
            elif look.last_word is not None:
                watcher.finish(look.last_word)
        if look.last_word is not None and self._jobs.get(job.id) is job:
            # Whoever comes from now on watches it anew: it may be retried.
            del self._jobs[job.id]

    def _tell_of_list(self, listing: WatchedList, mark: Mark) -> None:
        if mark == listing.mark:
            return
        number, said = next(self._hints), difference(listing.where, listing.mark, mark)
        news = News(number, frame("changed", said, id=number))
        listing.mark = mark
        for watcher in tuple(listing.watchers):
            if not watcher.offer(news):
                self._drop(watcher)

    def _drop(self, watcher: Watcher) -> None:
        """Let go of a watcher that reads too slowly; the others do not wait for it."""
        log.info("a stream reads too slowly and is dropped", extra={"queued": watcher.queued})
        self.dropped += 1
        for watched in self._all():
            watched.watchers.discard(watcher)
        watcher.cut(DROPPED)
