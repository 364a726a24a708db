"""The engine's verbs for an event loop: one thin adapter, no second implementation."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Iterable
from contextlib import AbstractAsyncContextManager, asynccontextmanager, suppress
from functools import partial, wraps
from typing import TYPE_CHECKING, Any, ParamSpec, TypeVar, TypeVarTuple, Unpack, overload

from ulak.clock import Duration
from ulak.core.event import ENGINE, SUBMITTED_AGAIN, check_kind
from ulak.core.flow import Flow
from ulak.core.intake import NORMAL, CallOptions, LoneSubmitOptions, SubmitOptions
from ulak.core.job import NewJob
from ulak.engine.flow_control import FlowControl
from ulak.engine.function import Call
from ulak.engine.inspect import Inspect, Owners, Retention
from ulak.engine.kernel import next_part
from ulak.engine.new_jobs import add_steps, find_asking, must_admit
from ulak.engine.outbox import Outbox
from ulak.engine.ports import WorkerSettings
from ulak.engine.reads import Waiting, must_wait_for
from ulak.engine.schedules import Schedules
from ulak.engine.threads import call_on
from ulak.engine.tracing import FLOW, describe_submit, submitting
from ulak.engine.view import Job
from ulak.store import caller
from ulak.store.protocol import Added

if TYPE_CHECKING:
    from ulak.engine.engine import Engine


A = ParamSpec("A")
R = TypeVar("R")
P = TypeVar("P")
Ts = TypeVarTuple("Ts")


def awaited(verb: Callable[A, R]) -> Callable[A, Awaitable[R]]:
    """Return a verb to be awaited: it runs on a thread, which its store may hold up."""

    @wraps(verb)
    async def run(*arguments: A.args, **options: A.kwargs) -> R:
        if options.get("connection") is not None:
            return await caller.from_loop(partial(verb, *arguments, **options))
        return await asyncio.to_thread(verb, *arguments, **options)

    return run


class AsyncSchedules:
    def __init__(self, schedules: Schedules) -> None:
        self.all, self.get = awaited(schedules.all), awaited(schedules.get)
        self.ticks, self.pause = awaited(schedules.ticks), awaited(schedules.pause)
        self.resume, self.run = awaited(schedules.resume), awaited(schedules.run)


class AsyncFlowControl:
    def __init__(self, control: FlowControl) -> None:
        self.set_limit, self.limits = awaited(control.set_limit), awaited(control.limits)
        self.set_rate, self.rates = awaited(control.set_rate), awaited(control.rates)
        self.pause, self.resume = awaited(control.pause), awaited(control.resume)
        self.stop_accepting, self.accept = awaited(control.stop_accepting), awaited(control.accept)
        self.pauses, self.stops = awaited(control.pauses), awaited(control.stops)
        self.set_weight, self.weights = awaited(control.set_weight), awaited(control.weights)


class AsyncOutbox:
    def __init__(self, outbox: Outbox) -> None:
        self.deliveries, self.dead = awaited(outbox.deliveries), awaited(outbox.dead)
        self.counts, self.handlers = awaited(outbox.counts), awaited(outbox.handlers)
        self.deliver, self.forget = awaited(outbox.deliver), awaited(outbox.forget)
        self.redrive, self.discard = awaited(outbox.redrive), awaited(outbox.discard)


class AsyncInspect:
    def __init__(self, inspect: Inspect) -> None:
        self.counts, self.backlog = awaited(inspect.counts), awaited(inspect.backlog)
        self.trail, self.audit = awaited(inspect.trail), awaited(inspect.audit)
        self.payload, self.result = awaited(inspect.payload), awaited(inspect.result)
        self.why, self.verify = awaited(inspect.why), awaited(inspect.verify)


class AsyncOwners:
    def __init__(self, owners: Owners) -> None:
        self.all, self.jobs = awaited(owners.all), awaited(owners.jobs)
        self.add = awaited(owners.add)


class AsyncRetention:
    def __init__(self, retention: Retention) -> None:
        self.ended, self.prune = awaited(retention.ended), awaited(retention.prune)


class AsyncEngine:
    """`engine.aio`: every verb of the engine, to be awaited. The promises are the engine's."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._kernel = engine.kernel
        self.schedules = AsyncSchedules(engine.schedules)
        self.flow_control = AsyncFlowControl(engine.flow_control)
        self.outbox = AsyncOutbox(engine.outbox)
        self.inspect = AsyncInspect(engine.inspect)
        self.owners = AsyncOwners(engine.owners)
        self.retention = AsyncRetention(engine.retention)
        self.get = awaited(engine.get)
        self.find = awaited(engine.find)
        self.jobs = awaited(engine.jobs)
        self.decide = awaited(engine.decide)
        self.release = awaited(engine.release)
        self.retry = awaited(engine.retry)
        self.cancel = awaited(engine.cancel)
        self.expire = awaited(engine.expire)
        self.signal = awaited(engine.signal)
        self.note = awaited(engine.note)
        self.emit = awaited(engine.emit)

    @overload
    async def submit(
        self, flow: Flow[P], payload: P, /, **options: Unpack[LoneSubmitOptions]
    ) -> Job: ...
    @overload
    async def submit(self, call: Call[R], /, **options: Unpack[LoneSubmitOptions]) -> Job[R]: ...
    @overload
    async def submit(
        self,
        function: Callable[[*Ts], Coroutine[Any, Any, R]],
        /,
        *arguments: *Ts,
        **options: Unpack[LoneSubmitOptions],
    ) -> Job[R]: ...
    @overload
    async def submit(
        self, function: Callable[[*Ts], R], /, *arguments: *Ts, **options: Unpack[LoneSubmitOptions]
    ) -> Job[R]: ...
    async def submit(  # type: ignore[misc] # mypy does not see that *Any takes *Ts
        self,
        flow: Any,
        /,
        *arguments: Any,
        tenant: str = "",
        actor: str = "",
        priority: int = NORMAL,
        after: Duration | None = None,
        expires: Duration | None = None,
        dedup_key: str | None = None,
        connection: Any = None,
        repeat_note: str | None = None,
    ) -> Job:
        """Accept a job, sharing its commit with every other submit of this moment."""
        make = partial(
            self._kernel.prepare, flow, *arguments, tenant=tenant, actor=actor,
            priority=priority, after=after, expires=expires, dedup_key=dedup_key,
        )  # fmt: skip
        if repeat_note is not None:
            check_kind(repeat_note)
        await self._ready()
        with submitting(self._kernel.tracing) as span:
            if connection is not None:
                guest = caller.find_guest(self._kernel.store)
                added = await caller.write_async(
                    guest, connection, lambda: add_steps(self._kernel, guest, make())
                )
                self._kernel.telemetry.accepted((added,), None)
            else:
                (added,) = await self._accept([make()])
            describe_submit(span, added.row)
        job = Job(added.row, created=added.created)
        if repeat_note is not None and not job.created:
            who = actor or ENGINE
            await self.note(job.id, repeat_note, SUBMITTED_AGAIN, actor=who, connection=connection)
        return job

    @overload
    async def submit_many(
        self, flow: Flow[P], payloads: Iterable[P], **options: Unpack[SubmitOptions]
    ) -> list[Job]: ...
    @overload
    async def submit_many(
        self, flow: Callable[..., Any], payloads: Iterable[Any], **options: Unpack[SubmitOptions]
    ) -> list[Job]: ...
    async def submit_many(
        self, flow: Any, payloads: Iterable[Any], **options: Unpack[SubmitOptions]
    ) -> list[Job]:
        """Accept many jobs of one flow or function, in few transactions."""
        await self._ready()
        with submitting(self._kernel.tracing) as span:
            new = self._kernel.prepare_many(flow, payloads, options)
            for job in new[:1]:
                span.note(FLOW, job.row.flow)
            added = await self._accept(new)
        return [Job(a.row, created=a.created) for a in added]

    async def _ready(self) -> None:
        """Open the engine before it is asked on the loop, which a store would hold up."""
        if not self._kernel.is_open:
            await asyncio.to_thread(self._kernel.open)

    async def _accept(self, jobs: list[NewJob]) -> list[Added]:
        kernel = self._kernel
        flow = find_asking(kernel, jobs)
        if flow is not None:
            await asyncio.to_thread(must_admit, kernel, flow, jobs)
        added: list[Added] = []
        while len(added) < len(jobs):
            answer = asyncio.wrap_future(kernel.intake.offer(next_part(jobs, added)))
            try:
                async with asyncio.timeout(kernel.submit_timeout_s):
                    added += await answer
            except TimeoutError:
                raise kernel.unknown_outcome(jobs, stored=len(added)) from None
        return added

    async def wait(
        self, job_id: str, *, until: str | None = None, timeout: Duration | None = None
    ) -> Job:
        """Wait until a job has ended, or stands in the state `until`, and return it."""
        await self._ready()
        loop, moved = asyncio.get_running_loop(), asyncio.Event()

        def ring() -> None:
            call_on(loop, moved.set)

        with Waiting(self._engine, job_id, until=until, timeout=timeout, ring=ring) as waiting:
            while (job := await asyncio.to_thread(waiting.look)) is None:
                await asyncio.sleep(waiting.rest_s)
                with suppress(TimeoutError):
                    async with asyncio.timeout(waiting.pause_s):
                        await moved.wait()
                moved.clear()
            return job

    @overload
    async def call(self, flow: Flow[P], payload: P, /, **options: Unpack[CallOptions]) -> Any: ...
    @overload
    async def call(self, call: Call[R], /, **options: Unpack[CallOptions]) -> R: ...
    async def call(
        self, flow: Any, /, *arguments: Any, timeout: Duration | None = None, **options: Any
    ) -> Any:
        """Submit a job, wait for its end and return its result."""
        must_wait_for(timeout, options)
        job = await self.submit(flow, *arguments, **options)
        return await self.result(await self.wait(job.id, timeout=timeout))

    @overload
    async def result(self, job: Job[R]) -> R: ...
    @overload
    async def result(self, job: str) -> Any: ...
    async def result(self, job: Job[Any] | str) -> Any:
        """Return what the last stage that returned something has returned, or None."""
        return await asyncio.to_thread(self._engine.result, job)


log = logging.getLogger("ulak.lifespan")

Lifespan = Callable[[Any], AbstractAsyncContextManager[None]]


def lifespan_of(engine: Engine, settings: WorkerSettings | None) -> Lifespan:
    """Make what FastAPI and Starlette take as `lifespan=`; no settings, no worker."""

    @asynccontextmanager
    async def lifespan(app: Any) -> AsyncIterator[None]:
        await asyncio.to_thread(engine.open)
        try:
            if settings is None:
                yield
            else:
                async with _working(engine, settings):
                    yield
        finally:
            await asyncio.to_thread(engine.close)

    return lifespan


@asynccontextmanager
async def _working(engine: Engine, settings: WorkerSettings) -> AsyncIterator[None]:
    worker = engine.worker(settings)
    working = asyncio.create_task(worker.run(), name="ulak-worker")
    working.add_done_callback(_tell_of_an_early_end)
    try:
        yield
    finally:
        worker.stop()
        await working


def _tell_of_an_early_end(working: asyncio.Task[None]) -> None:
    """A worker that fails must be heard of now, not when the program ends."""
    if not working.cancelled() and (error := working.exception()) is not None:
        log.error("the worker has ended", exc_info=error)
