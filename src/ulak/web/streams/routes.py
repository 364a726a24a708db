"""Jobs as they move: streams of server-sent events.

A stream is a hint to read again: whoever misses one loses nothing. A job's stream is resumed by
the number of its last event; the stream of a list is told to read the list again.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from contextlib import AbstractContextManager
from typing import Annotated, Any, Final

from fastapi import APIRouter, Header, Query, Request, Response
from pydantic import Field
from starlette.types import Receive, Scope, Send

from ulak.auth.principal import Principal
from ulak.engine.engine import Engine
from ulak.engine.view import Job
from ulak.errors import Forbidden, JobNotFound, StoreError, Unauthenticated
from ulak.ids import from_text
from ulak.web.callers import Caller, caller, get_visible_job, guarded_router
from ulak.web.routes.jobs import JobPath
from ulak.web.schemas import HIGHEST_SEQ, Conditions, Parameters, problems
from ulak.web.streams.hub import Hub
from ulak.web.streams.news import ALIVE, MEDIA_TYPE, Watcher, event_frame, frame, opening

log = logging.getLogger("ulak.web.streams")

HEARTBEAT_S: Final = 15.0
# With the two seconds for which a principal is remembered, within the five that are promised.
CHECK_EVERY_S: Final = 2.5
# How long a client that was cut off has to take the last word.
LAST_WORD_S: Final = 2.0
RETRY_MS: Final = 2000
EVENTS_PER_PAGE: Final = 50

REREAD: Final = frame("reread", {"why": "what happened while you were away is not known"})
AWAY: Final = frame("stopping", {"why": "the store does not answer; come back and resume"})
REFUSED: Final = frame("refused", {"why": "the credential is not good any more"})

AN_EVENT: Final = {
    "description": "One event of the stream.",
    "type": "object",
    "properties": {
        "id": {"type": "string", "description": "What a client resumes after."},
        "event": {"type": "string", "description": "What kind of event it is."},
        "data": {"type": "string", "description": "A JSON document."},
    },
    "required": ["event", "data"],
    "example": {"id": "3", "event": "moved", "data": '{"seq": 3, "kind": "moved"}'},
}
STREAM: Final[dict[int | str, dict[str, Any]]] = {
    200: {
        "description": "Events until the client leaves, or `end`.",
        "content": {MEDIA_TYPE: {"schema": AN_EVENT}},
    },
    **problems(429),
}

LastEventId = Annotated[
    int | None,
    Header(ge=0, le=HIGHEST_SEQ, description="The id of the last event; before `after`."),
]


class FromQuery(Parameters):
    """Where to begin."""

    after: int = Field(0, ge=0, le=HIGHEST_SEQ, description="Only events above this number.")


class EventStream(Response):
    """Tells one watcher's news for as long as its client reads them and may.

    `watching` begins to watch; the watcher is gone with the end of the stream. `is_welcome` tells,
    now and then, whether the caller may still see this, and `missed` reads from the store what a
    watcher is behind with, empty when there is no more.
    """

    media_type = MEDIA_TYPE

    def __init__(
        self,
        *,
        watching: Callable[[], AbstractContextManager[Watcher]],
        opening: bytes,
        is_welcome: Callable[[], Awaitable[bool]],
        missed: Callable[[Watcher], Awaitable[bytes]] | None = None,
    ) -> None:
        # X-Accel-Buffering: nginx would otherwise keep events until it has a page of them.
        super().__init__(headers={"Cache-Control": "no-store", "X-Accel-Buffering": "no"})
        del self.headers["content-length"]
        self._watching = watching
        self._opening = opening
        self._is_welcome = is_welcome
        self._missed = missed

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        loop = asyncio.get_running_loop()
        # What is raised here, before the first byte, is answered as a problem.
        with self._watching() as watcher:
            telling = asyncio.create_task(self._tell(watcher, send))
            leaving = asyncio.create_task(_has_left(receive))
            # Whoever does not read would keep the last word waiting for ever.
            watcher.on_close = lambda: loop.call_later(LAST_WORD_S, telling.cancel)
            try:
                await asyncio.wait((telling, leaving), return_when=asyncio.FIRST_COMPLETED)
            finally:
                telling.cancel()
                leaving.cancel()
                ended = await asyncio.gather(telling, leaving, return_exceptions=True)
        for error in ended:
            if isinstance(error, Exception):
                raise error

    async def _tell(self, watcher: Watcher, send: Send) -> None:
        loop = asyncio.get_running_loop()

        async def put(chunk: bytes, *, more: bool = True) -> None:
            await send({"type": "http.response.body", "body": chunk, "more_body": more})

        await send(
            {"type": "http.response.start", "status": self.status_code, "headers": self.raw_headers}
        )
        await put(self._opening)
        try:
            while self._missed is not None and watcher.is_behind:
                await put(await self._missed(watcher))
        except StoreError as error:
            log.warning("a stream cannot be served", extra={"error": str(error)})
            watcher.cut(AWAY)
        told_at = checked_at = loop.time()
        while (chunk := await watcher.take(CHECK_EVERY_S)) is not None:
            now = loop.time()
            if now - checked_at >= CHECK_EVERY_S:
                checked_at = now
                if not await self._is_welcome():
                    await put(REFUSED)
                    break
            if chunk or now - told_at >= HEARTBEAT_S:
                told_at = now
                await put(chunk or ALIVE)
        await put(b"", more=False)


def router(engine: Engine, hub: Hub) -> APIRouter:
    routes = guarded_router(tags=["events"])

    @routes.get("/jobs/{id}/events", status_code=200, response_class=EventStream, responses=STREAM)
    async def watch_job(
        request: Request,
        id: JobPath,
        principal: Caller,
        query: Annotated[FromQuery, Query()],
        last_event_id: LastEventId = None,
    ) -> EventStream:
        """Stream every event of a job's trail, from the first or after `Last-Event-ID`, then live.

        `id` is the event's number, `event` its kind, `data` the event. Ends with `end` when the
        job has ended.
        """
        job, seq = await asyncio.to_thread(_found, engine, id, principal)
        job_id = from_text(job.id)
        after = query.after if last_event_id is None else last_event_id
        return EventStream(
            watching=lambda: hub.watching_job(job_id, seq=seq, after=after),
            opening=opening(retry_ms=RETRY_MS),
            missed=lambda watcher: _missed(engine, job_id, watcher),
            is_welcome=lambda: _is_welcome(request, lambda now: now.sees(job.tenant)),
        )

    @routes.get("/events", status_code=200, response_class=EventStream, responses=STREAM)
    async def watch_jobs(
        request: Request,
        principal: Caller,
        query: Annotated[Conditions, Query()],
        last_event_id: Annotated[str | None, Header()] = None,
    ) -> EventStream:
        """Stream a hint, `changed`, when jobs of a filter have changed: read the list again.

        Its `data` says which counts, or which jobs, as far as that is cheap to know. Whoever
        comes back with `Last-Event-ID` is told to `reread` first.
        """
        where = query.filter_for(principal)
        mark = await asyncio.to_thread(hub.read_mark, where)
        return EventStream(
            watching=lambda: hub.watching_list(where, mark),
            opening=opening(retry_ms=RETRY_MS, id=0) + (b"" if last_event_id is None else REREAD),
            is_welcome=lambda: _is_welcome(request, lambda now: now.tenant == principal.tenant),
        )

    return routes


async def _has_left(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass


def _found(engine: Engine, job_id: str, principal: Principal) -> tuple[Job, int]:
    job = get_visible_job(engine, job_id, principal)
    row = engine.store.find_job(from_text(job.id))
    if row is None:  # pruned in between
        raise JobNotFound(job_id)
    return job, row.seq


async def _missed(engine: Engine, job_id: bytes, watcher: Watcher) -> bytes:
    """Read the next page of what happened before the watcher came."""
    events = await asyncio.to_thread(
        engine.store.trail, job_id, after=watcher.position, limit=EVENTS_PER_PAGE
    )
    # Without any, the job was pruned meanwhile.
    watcher.position = events[-1].seq if events else watcher.start
    return b"".join(map(event_frame, events))


async def _is_welcome(request: Request, sees: Callable[[Principal], bool]) -> bool:
    """Ask again who calls: a key may have been revoked, a person's roles taken away."""
    try:
        return sees(await caller(request))
    except (Unauthenticated, Forbidden):
        return False
    except StoreError:
        return True  # nobody can tell now, and nothing is read from the store either
