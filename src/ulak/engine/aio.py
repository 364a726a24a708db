"""The engine's verbs for an event loop: one thin adapter, no second implementation."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Collection, Iterable
from contextlib import suppress
from datetime import datetime
from functools import partial
from typing import TYPE_CHECKING, Any, TypeVar, TypeVarTuple, Unpack, overload

from ulak.clock import Duration, read_micros
from ulak.core.flow import Flow
from ulak.core.intake import NORMAL, LoneSubmitOptions, SubmitOptions
from ulak.core.job import NewJob
from ulak.core.policy import Rate
from ulak.engine.crossing import call_on
from ulak.engine.function import Call
from ulak.engine.intake import guest_of
from ulak.engine.outbox import DeadMessage
from ulak.engine.ports import WorkerSettings
from ulak.engine.reads import EVERY_JOB
from ulak.engine.scheduling import Schedule, ScheduleTick
from ulak.engine.steering import AuditLine, Pause, StageLimit, StageRate, Weight
from ulak.engine.taking import LEASE, Attempt
from ulak.engine.tracing import FLOW, describe_submit, submitting
from ulak.engine.verify import Finding
from ulak.engine.view import Job, TrailEvent
from ulak.engine.why import Why
from ulak.store import caller
from ulak.store.protocol import LARGEST_BATCH, Added, CountRow, JobFilter

if TYPE_CHECKING:
    from ulak.engine.engine import Engine

P = TypeVar("P")
Ts = TypeVarTuple("Ts")

USUAL = WorkerSettings()
LONGEST_WAIT_S = 0.2


class AsyncEngine:
    """`engine.aio`: every verb of the engine, to be awaited. The promises are the engine's."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine

    @overload
    async def submit(
        self, flow: Flow[P], payload: P, /, **options: Unpack[LoneSubmitOptions]
    ) -> Job: ...
    @overload
    async def submit(self, call: Call, /, **options: Unpack[LoneSubmitOptions]) -> Job: ...
    @overload
    async def submit(
        self,
        function: Callable[[*Ts], Any],
        /,
        *arguments: *Ts,
        **options: Unpack[LoneSubmitOptions],
    ) -> Job: ...
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
    ) -> Job:
        """Accept a job, sharing its commit with every other submit of this moment."""
        make = partial(
            self._engine.prepare, flow, *arguments, tenant=tenant, actor=actor,
            priority=priority, after=after, expires=expires, dedup_key=dedup_key,
        )  # fmt: skip
        await self._ready()
        with submitting(self._engine.tracing) as span:
            if connection is not None:
                added = await caller.add_async(guest_of(self._engine.store), connection, make)
                self._engine.telemetry.accepted((added,), None)
            else:
                added = (await self._offer([make()], slice(0, 1)))[0]
            describe_submit(span, added.row)
        return Job(added.row, created=added.created)

    @overload
    async def submit_many(
        self, flow: Flow[P], payloads: Iterable[P], **options: Unpack[SubmitOptions]
    ) -> list[Job]: ...
    @overload
    async def submit_many(
        self,
        flow: Callable[..., Any],
        payloads: Iterable[Any],
        **options: Unpack[SubmitOptions],
    ) -> list[Job]: ...
    async def submit_many(
        self, flow: Any, payloads: Iterable[Any], **options: Unpack[SubmitOptions]
    ) -> list[Job]:
        """Accept many jobs of one flow or function, in few transactions."""
        await self._ready()
        with submitting(self._engine.tracing) as span:
            new = self._engine.prepare_many(flow, payloads, options)
            for job in new[:1]:
                span.note(FLOW, job.row.flow)
            parts = [slice(at, at + LARGEST_BATCH) for at in range(0, len(new), LARGEST_BATCH)]
            added = [a for part in parts for a in await self._offer(new, part)]
        return [Job(a.row, created=a.created) for a in added]

    async def work_on(self, job_id: str, settings: WorkerSettings = USUAL) -> Job:
        """Run one job's stages on this loop, as a worker would, and answer how it stands then."""
        await self._ready()
        worker = self._engine.worker(settings)
        await worker.run(only=job_id)
        return await self.get(job_id)

    async def _ready(self) -> None:
        """Open the engine before it is asked on the loop, which a store would hold up."""
        if not self._engine.is_open:
            await asyncio.to_thread(self._engine.open)

    async def _offer(self, jobs: list[NewJob], part: slice) -> list[Added]:
        """Offer a part of the jobs of one call; those before it are stored."""
        engine = self._engine
        answer = asyncio.wrap_future(engine.intake.offer(jobs[part]))
        try:
            async with asyncio.timeout(engine.submit_timeout_s):
                return await answer
        except TimeoutError:
            raise engine.unknown_outcome(jobs, stored=part.start) from None

    async def decide(
        self,
        job_id: str,
        choice: str,
        *,
        actor: str,
        note: str = "",
        data: object = None,
        roles: Collection[str] | None = None,
    ) -> Job:
        """Answer a gate."""
        return await asyncio.to_thread(
            self._engine.decide, job_id, choice, actor=actor, note=note, data=data, roles=roles
        )

    async def approve(
        self,
        job_id: str,
        *,
        actor: str,
        note: str = "",
        data: object = None,
        roles: Collection[str] | None = None,
    ) -> Job:
        """Give the decision or the release that a job is waiting for."""
        return await asyncio.to_thread(
            self._engine.approve, job_id, actor=actor, note=note, data=data, roles=roles
        )

    async def release(self, job_id: str, *, actor: str, note: str = "") -> Job:
        """Let a held job go on."""
        return await asyncio.to_thread(self._engine.release, job_id, actor=actor, note=note)

    async def retry(self, job_id: str, *, actor: str, note: str = "") -> Job:
        """Run a failed job again."""
        return await asyncio.to_thread(self._engine.retry, job_id, actor=actor, note=note)

    async def cancel(self, job_id: str, *, actor: str, note: str = "") -> Job:
        """End a job."""
        return await asyncio.to_thread(self._engine.cancel, job_id, actor=actor, note=note)

    async def expire(
        self, job_id: str, *, actor: str, note: str = "", state: str | None = None
    ) -> Job:
        """End a job whose time is over by the program's own count."""
        return await asyncio.to_thread(
            self._engine.expire, job_id, actor=actor, note=note, state=state
        )

    async def take(
        self, job_id: str, *, worker: str = "hand", lease: Duration = LEASE
    ) -> Attempt | None:
        """Lease one job to the caller, who does its stage; the attempt's own verbs block."""
        return await asyncio.to_thread(self._engine.take, job_id, worker=worker, lease=lease)

    async def prune(
        self,
        *,
        ended_before: datetime,
        of: tuple[str, str] | None = None,
        limit: int = 500,
        actor: str = "",
        note: str = "",
    ) -> int:
        """Remove jobs that ended before then, with their trails."""
        act = partial(
            self._engine.prune, ended_before=ended_before, of=of, limit=limit, actor=actor,
            note=note,
        )  # fmt: skip
        return await asyncio.to_thread(act)

    async def find(self, flow: str, key: str, *, tenant: str = "") -> Job | None:
        """Return the job that holds a dedup key now, or None when it is free."""
        return await asyncio.to_thread(self._engine.find, flow, key, tenant=tenant)

    async def ended(
        self, flow: str, state: str, *, before: datetime, after: str | None = None, limit: int = 100
    ) -> list[Job]:
        """Return finished jobs that came into this state of a flow before then, by id."""
        return await asyncio.to_thread(
            self._engine.ended, flow, state, before=before, after=after, limit=limit
        )

    async def signal(
        self,
        job: str | tuple[str, str],
        name: str,
        data: object = None,
        *,
        actor: str = "",
        note: str = "",
        tenant: str = "",
    ) -> Job:
        """Tell a job that something happened outside."""
        act = partial(self._engine.signal, job, name, data, actor=actor, note=note, tenant=tenant)
        return await asyncio.to_thread(act)

    async def get(self, job_id: str) -> Job:
        """Return a job as it stands now."""
        return await asyncio.to_thread(self._engine.get, job_id)

    async def jobs(
        self, where: JobFilter = EVERY_JOB, *, after: str | None = None, limit: int = 100
    ) -> list[Job]:
        """Return jobs, newest first."""
        return await asyncio.to_thread(self._engine.jobs, where, after=after, limit=limit)

    async def trail(self, job_id: str, *, after: int = 0, limit: int = 1000) -> list[TrailEvent]:
        """Return what happened to a job, in order."""
        return await asyncio.to_thread(self._engine.trail, job_id, after=after, limit=limit)

    async def payload(self, job_id: str, *, reveal: bool = False) -> Any:
        """Return a job's payload as plain data."""
        return await asyncio.to_thread(self._engine.payload, job_id, reveal=reveal)

    async def result(self, job_id: str) -> Any:
        """Return what the job's last stage has returned."""
        return await asyncio.to_thread(self._engine.result, job_id)

    async def counts(self) -> list[CountRow]:
        """Return how many jobs stand in each state."""
        return await asyncio.to_thread(self._engine.counts)

    async def schedules(self) -> list[Schedule]:
        """Return every schedule, by name."""
        return await asyncio.to_thread(self._engine.schedules)

    async def get_schedule(self, schedule: str) -> Schedule:
        """Return one schedule."""
        return await asyncio.to_thread(self._engine.get_schedule, schedule)

    async def ticks(
        self, schedule: str, *, before: datetime | None = None, limit: int = 100
    ) -> list[ScheduleTick]:
        """Return which dates of a schedule were seen to, the latest first."""
        return await asyncio.to_thread(self._engine.ticks, schedule, before=before, limit=limit)

    async def pause_schedule(self, schedule: str, *, actor: str, note: str = "") -> Schedule:
        """Let a schedule submit nothing until it is resumed."""
        pause = self._engine.pause_schedule
        return await asyncio.to_thread(pause, schedule, actor=actor, note=note)

    async def resume_schedule(self, schedule: str, *, actor: str, note: str = "") -> Schedule:
        """End a pause; dates that have passed meanwhile are skipped."""
        resume = self._engine.resume_schedule
        return await asyncio.to_thread(resume, schedule, actor=actor, note=note)

    async def run_schedule(self, schedule: str, *, actor: str = "") -> Job:
        """Submit a schedule's job now, besides its dates."""
        return await asyncio.to_thread(self._engine.run_schedule, schedule, actor=actor)

    async def why(self, job_id: str, *, tenant: str | None = None) -> Why:
        """Return why a job stands where it stands."""
        return await asyncio.to_thread(self._engine.why, job_id, tenant=tenant)

    async def verify(self) -> list[Finding]:
        """Look at everything that is stored and answer what is wrong."""
        return await asyncio.to_thread(self._engine.verify)

    async def set_limit(
        self, name: str, n: int | None, *, actor: str, note: str = ""
    ) -> StageLimit:
        """Set how many runs of a stage there may be at once."""
        return await asyncio.to_thread(self._engine.set_limit, name, n, actor=actor, note=note)

    async def limits(self) -> list[StageLimit]:
        """Return every limit and who has set it."""
        return await asyncio.to_thread(self._engine.limits)

    async def set_rate(
        self, name: str, rate: Rate | None, *, actor: str, note: str = ""
    ) -> StageRate:
        """Set the rate of a stage."""
        return await asyncio.to_thread(self._engine.set_rate, name, rate, actor=actor, note=note)

    async def rates(self) -> list[StageRate]:
        """Return every rate and who has set it."""
        return await asyncio.to_thread(self._engine.rates)

    async def pause(
        self,
        *,
        queue: str | None = None,
        flow: str | None = None,
        key: str | None = None,
        actor: str,
        note: str = "",
        until: datetime | Duration | None = None,
    ) -> Pause:
        """Let no job of a queue, a flow or a key be begun."""
        act = partial(
            self._engine.pause, queue=queue, flow=flow, key=key, actor=actor, note=note, until=until
        )
        return await asyncio.to_thread(act)

    async def resume(
        self,
        *,
        queue: str | None = None,
        flow: str | None = None,
        key: str | None = None,
        actor: str,
        note: str = "",
    ) -> Pause:
        """End a pause."""
        act = partial(self._engine.resume, queue=queue, flow=flow, key=key, actor=actor, note=note)
        return await asyncio.to_thread(act)

    async def pauses(self) -> list[Pause]:
        """Return every pause that is not over."""
        return await asyncio.to_thread(self._engine.pauses)

    async def set_weight(
        self, tenant: str, weight: int | None, *, actor: str, note: str = ""
    ) -> Weight | None:
        """Give a tenant so many turns in fair flows for each turn of others."""
        return await asyncio.to_thread(
            self._engine.set_weight, tenant, weight, actor=actor, note=note
        )

    async def weights(self) -> list[Weight]:
        """Return every weight that was set."""
        return await asyncio.to_thread(self._engine.weights)

    async def audit(
        self, *, subject: str | None = None, before: int | None = None, limit: int = 100
    ) -> list[AuditLine]:
        """Return what operators did, the latest first."""
        act = partial(self._engine.audit, subject=subject, before=before, limit=limit)
        return await asyncio.to_thread(act)

    async def dead_messages(self, *, limit: int = 100) -> list[DeadMessage]:
        """Return messages that gave up, the oldest first."""
        return await asyncio.to_thread(partial(self._engine.dead_messages, limit=limit))

    async def revive(self, message_id: str, *, actor: str, note: str = "") -> DeadMessage:
        """Let a dead message be tried again."""
        return await asyncio.to_thread(self._engine.revive, message_id, actor=actor, note=note)

    async def wait(
        self, job_id: str, *, until: str | None = None, timeout: Duration | None = None
    ) -> Job:
        """Wait until a job has ended, or stands in the state `until`, and answer it."""
        deadline = None
        if timeout is not None:
            deadline = time.monotonic() + read_micros(timeout, "timeout=") / 1e6
        loop, moved = asyncio.get_running_loop(), asyncio.Event()

        def ring() -> None:
            call_on(loop, moved.set)

        stop = self._engine.on_move(ring)
        try:
            while True:
                moved.clear()
                job = await self.get(job_id)
                if job.is_final or job.state == until:
                    return job
                left = LONGEST_WAIT_S
                if deadline is not None:
                    left = min(left, deadline - time.monotonic())
                    if left <= 0:
                        raise TimeoutError(
                            f'job {job_id} is still in "{job.state}" after {timeout}'
                        )
                with suppress(TimeoutError):
                    async with asyncio.timeout(left):
                        await moved.wait()
        finally:
            stop()
