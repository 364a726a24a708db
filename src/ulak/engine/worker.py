"""A worker: claims jobs, runs their stages, and gives every one back.

One asyncio loop. Async stages run on it, plain ones in threads, isolated ones in children.
Claims, upkeep, commits and renewals each have a thread of their own.
"""

from __future__ import annotations

import asyncio
import gc
import logging
import os
import socket
import threading
from collections.abc import AsyncIterable, Callable, Iterable
from contextlib import AsyncExitStack
from functools import partial
from typing import TYPE_CHECKING, Any, TypeVar

from ulak.clock import Instant, micros
from ulak.core.acts import can_be_taken
from ulak.core.job import Request, family_of
from ulak.core.table import find_missing
from ulak.engine.active_run import ActiveRun
from ulak.engine.attempt import Attempt, claim_one, take
from ulak.engine.claim_loop import CALM_LOOK_S, ClaimLoop, Wakeup
from ulak.engine.executor import Executor
from ulak.engine.lease import Lease
from ulak.engine.ports import StoreTime, WorkerSettings
from ulak.engine.relay import Relay
from ulak.engine.stages import Heartbeat
from ulak.engine.threads import Aside, call_on
from ulak.engine.upkeep import Upkeep
from ulak.engine.view import Job
from ulak.errors import FlowError, JobNotFound, StoreError, WriteRefused
from ulak.ids import from_text, to_text
from ulak.store.protocol import Claim, Progress, Want

if TYPE_CHECKING:
    from ulak.engine.kernel import Kernel

log = logging.getLogger("ulak.worker")

T = TypeVar("T")

# Between two passes of upkeep others may use its thread, however much is due.
SHORTEST_REST_S = 0.02
# How long the end of a worker waits for a pass of upkeep that is under way.
LONGEST_PASS_S = 2.0


class Worker:
    """Runs the stages of an engine's flows until it is stopped.

    Every run ends in exactly one commit, or its lease lapses and another worker takes the job.
    `run` returns after a drain: claims stop, stages are asked to stop and waited for, what
    ended is committed, and leases that are really free are given back without spending an
    attempt.
    """

    def __init__(self, kernel: Kernel, settings: WorkerSettings) -> None:
        self.kernel = kernel
        self.settings = settings
        self.store = kernel.store
        self.id = ""
        self.lease: Lease | None = None
        self.progress: dict[bytes, Progress] = {}
        self.time = StoreTime(kernel.store.clock)
        self.executor = Executor(self)
        self.committer = self.executor.committer
        self.new_commit_id = self.executor.new_commit_id
        self.upkeep = Upkeep(kernel, micros(settings.poll))
        self.relay = Relay(kernel, hold_us=micros(settings.lease))
        self.aside = Aside("claimer")
        self.keeper = Aside("upkeep")
        """A thread of its own: whatever upkeep waits for, claims go on."""
        self._resources: dict[type, Any] = {}
        self._unready: list[tuple[str, Callable[[], str | None]]] = []
        """By queue, what says whether its resource can be used."""
        self._told_closed: dict[str, str] = {}
        """The queues that the store was told to be closed here, each with the reason."""
        self._has_begun = threading.Event()
        self.has_ended = False
        self._failure: BaseException | None = None
        """What has ended one of its threads or tasks; `run` raises it after a hurried drain."""
        self._is_told = False
        """It runs the jobs that it is told of, and claims no others: it serves no lane."""
        self._after_outage = False
        """It could not register when it last tried: the others could not renew either."""

    def take(self, job_id: str, *, name: str = "hand") -> Attempt | None:
        """Lease one job to the caller, who does its stage and ends the attempt.

        None when it is not due, is leased or parked, or has ended; of two who take a job one has
        it, in the trail by `name`. The lease is renewed until the attempt is ended or this
        process dies.

        Raises:
            JobNotFound: there is none.
            NotSupported: its stage has a rate, which only ordinary claims pay.
            TransitionNotAllowed: this program lacks its version or its state.
        """
        return take(self.kernel, job_id, worker=name, lease=self.settings.lease)

    def work_on(self, job_id: str) -> Job:
        """Run one job's stages here and now, and return how it stands then.

        For a queue of another make that carries ids of jobs. Nothing is done when the job is not
        due, is leased by somebody else, is paused or has ended: a message that comes twice is
        harmless. On an event loop, await `run(only=job_id)`.

        Raises:
            JobNotFound: there is none.
            NotSupported: its stage has a rate, which only ordinary claims pay.
            BadInput: on the thread of an event loop.
        """
        self.kernel.refuse_on_a_loop("worker().work_on")
        asyncio.run(self.run(only=job_id))
        return Job(self.kernel.get_row(job_id))

    def now(self) -> Instant:
        return self.time.now()

    def resource(self, kind: type[T]) -> T:
        """Return this worker's resource of a type.

        Raises:
            FlowError: the engine was given none.
        """
        try:
            found: T = self._resources[kind]
        except KeyError:
            declared = self.kernel.resources.get(kind)
            raise FlowError(
                f"no resource of type {kind.__name__}; give the engine one with "
                f"@engine.resource({kind.__name__})"
                if declared is None
                else f"{kind.__name__} is opened by workers of the queue "
                f'"{declared.queue}", and this one does not serve it'
            ) from None
        return found

    @property
    def is_registered(self) -> bool:
        """Whether it has a lease and takes jobs."""
        return self.lease is not None and not (self.executor.lost or self.executor.stopping)

    def unready(self) -> str | None:
        """Say why jobs are not safe with this worker: no lease, or an old one; else None."""
        return "the worker is not registered" if self.lease is None else self.lease.complaint()

    def runs(self) -> list[ActiveRun]:
        """Return every run that has not been settled."""
        return list(self.executor.running.values())

    @property
    def running(self) -> int:
        """How many stages run; after `run` has returned, how many would not stop in time."""
        return len(self.executor.running)

    def stop(self) -> None:
        """Begin to drain. May be called from any thread or a signal handler, before `run` too."""
        self.executor.stopping = True
        if self._has_begun.is_set():
            self.wakeup.ring()

    def hurry(self) -> None:
        """End a drain soon: cancel async stages and kill children now, wait for threads no more."""
        self.stop()
        if self._has_begun.is_set():
            call_on(self._loop, self.executor.hurry)

    def failed(self, error: BaseException) -> None:
        """End, since a part of the worker has: half a worker keeps jobs and does nothing for them.
        May be called from any thread. `run` raises the error."""
        if self._failure is None:
            self._failure = error
            log.critical("the worker ends", extra={"error": repr(error), "worker": self.id})
        self.hurry()

    def ask(self, run: ActiveRun, request: Request) -> None:
        self.executor.ask(run, request)

    def asked(self, requests: list[Request]) -> None:
        """Called by the lease's thread with what it learned."""
        call_on(self._loop, self.take_claimed, [], requests)

    def lease_lost(self) -> None:
        """Called by the lease's thread: nothing that runs here may count any more."""
        call_on(self._loop, self.executor.abandon_all)

    async def run(
        self, *, until_idle: bool = False, only: str | AsyncIterable[str] | None = None
    ) -> None:
        """Work until stopped, or until nothing is left that could be done now, or on one job
        only, for as long as its lease is kept from stage to stage.

        `only` may also yield the ids of jobs: they are run one after the other, and the next is
        asked for when the one before has been left. One that is due and cannot be had by its id,
        since it needs a slot or pays a rate, waits its turn, and the next of its stage is run.

        What a thread or a task of the worker raises ends it, and is raised here.
        """
        try:
            await self._run(until_idle=until_idle, only=only)
        finally:
            self.has_ended = True
        if self._failure is not None:
            raise self._failure

    async def _run(self, *, until_idle: bool, only: str | AsyncIterable[str] | None) -> None:
        self._loop = asyncio.get_running_loop()
        self.wakeup = Wakeup(self.store, micros(self.settings.glance) / 1e6)
        self.executor.start(self._loop, self.wakeup)
        claims = ClaimLoop(self)
        self._has_begun.set()
        async with AsyncExitStack() as stack:
            for kind, resource in self.kernel.resources.items():
                if resource.queue is None or self.settings.serves(resource.queue):
                    opened = await stack.enter_async_context(resource.factory())
                    self._resources[kind] = opened
            self.committer.start()
            if only is None:
                # Whoever is told which job to run runs it, and says why it cannot.
                self._unready = [
                    (str(resource.queue), partial(resource.unready, self._resources[kind]))
                    for kind, resource in self.kernel.resources.items()
                    if resource.unready is not None and kind in self._resources
                ]
                self.executor.pools.closed = self._closed
            if only is None and not until_idle:
                self.kernel.working_here.append(self)
                stack.callback(self.kernel.working_here.remove, self)
            self._is_told = only is not None
            self.executor.lost = not await self.has_registered()
            stop_ringing = self.kernel.on_ring(self.wakeup.ring)
            heartbeat = Heartbeat(self, self.executor.stages)
            background = [
                asyncio.create_task(heartbeat.beat(), name="ulak-heartbeat"),
                asyncio.create_task(self._keep_up(claims), name="ulak-upkeep"),
                asyncio.create_task(claims.compare_leases(), name="ulak-leases"),
                asyncio.create_task(self.relay.run(), name="ulak-relay"),
            ]
            for task in background:
                task.add_done_callback(self._ended_early)
            try:
                if only is None:
                    try:
                        await claims.run(until_idle=until_idle)
                    except Exception as error:
                        log.critical("claims have failed", exc_info=True)
                        self.failed(error)  # what runs is still committed, or given back
                elif isinstance(only, str):
                    await self._work_on(from_text(only))
                else:
                    await self._work_on_each(only, claims)
                await self.executor.drain()
            finally:
                stop_ringing()
                for task in background:
                    task.cancel()
                await asyncio.gather(*background, return_exceptions=True)
                # A pass that is under way still uses the store.
                await asyncio.wait([self.keeper.run(_nothing)], timeout=LONGEST_PASS_S)
                await self.aside.run(self._leave)

    def _ended_early(self, task: asyncio.Task[None]) -> None:
        if not task.cancelled() and (error := task.exception()) is not None:
            log.critical("a task of the worker has failed", exc_info=error)
            self.failed(error)

    async def _work_on_each(self, job_ids: AsyncIterable[str], claims: ClaimLoop) -> None:
        async for job_id in job_ids:
            # As before a claim: after an outage others have the time to renew their leases.
            while not self.executor.stopping and not await self._may_claim():
                await asyncio.sleep(CALM_LOOK_S)
            try:
                await self._work_on(from_text(job_id), claims)
            except (JobNotFound, StoreError) as error:
                log.warning("a job is not run", extra={"job_id": job_id, "error": str(error)})
            if self.executor.stopping:
                return

    async def _may_claim(self) -> bool:
        if self.executor.lost and not await self.has_registered():
            return False
        return self.lease is None or self.lease.is_calm()

    async def _work_on(self, job_id: bytes, claims: ClaimLoop | None = None) -> None:
        """Run a job, or with `claims` the next of its stage if it cannot be had by its id."""
        row = await self.aside.run(self.store.find_job, job_id)
        if row is None:
            raise JobNotFound(to_text(job_id))
        flow = self.kernel.find_flow(row.flow, row.flow_version)
        is_served = self.executor.pools.find(row.lane) is not None
        if flow is None or find_missing(flow.table, row) or not is_served:
            return
        pauses = await self.aside.run(self.store.pauses)
        self.executor.paused = frozenset((pause.kind, pause.name) for pause in pauses)
        if self.executor.is_paused(row.lane):
            return
        claim = None
        if claims is None or row.rate is None:
            claim = await self.aside.run(claim_one, self.kernel, flow, job_id, self.id)
        if claim is not None:
            asked: list[Request] = []
            if claim.row.requests:
                asked = await self.aside.run(self.store.pending_requests, job_id)
            self.take_claimed([claim], asked)
        elif claims is not None and can_be_taken(row, self.now()):
            request = claims.request((Want((family_of(row.lane),), 1),))
            claimed = await self.aside.run(self.store.claim, request)
            self.take_claimed(claimed.claims, claimed.requests)
        while self.executor.running and not self.executor.stopping:
            await self.executor.wait_for_one()

    def take_claimed(self, claims: list[Claim], requests: list[Request]) -> None:
        """Begin what was claimed, and pass on what is asked of the jobs that run here."""
        # After a long standstill others may hold these by now: the commit will tell.
        is_late = self.lease is not None and self.lease.is_late()
        may_run = not (self.executor.stopping or self.executor.lost or is_late)
        begin = self.executor.begin
        for claim in claims:
            asked = [r for r in requests if r.job_id == claim.row.id] if requests else []
            begin(claim, asked, may_run=may_run)
        for request in requests:
            run = self.executor.running.get(request.job_id)
            if run is not None:
                self.executor.ask(run, request)

    async def _keep_up(self, claims: ClaimLoop) -> None:
        """Do the store's housekeeping about once a second, or when a schedule is due. An outage is
        logged when it begins: its length is told by what else fails, and by readiness."""
        has_failed = False
        while True:
            try:
                await self.keeper.run(self.upkeep.tick)
                has_failed = False
            except StoreError as error:
                self.kernel.telemetry.failed("upkeep")
                if not has_failed:
                    log.warning("upkeep fails", extra={"error": str(error)})
                has_failed = True
            except Exception:  # a worker loop: housekeeping goes on
                log.exception("upkeep failed")
            rest = 0.0 if self.upkeep.has_more else claims.until(self.upkeep.next_at)
            await asyncio.sleep(max(SHORTEST_REST_S, rest))

    async def has_registered(self) -> bool:
        """Register anew, and return whether the store answered."""
        try:
            lanes = [] if self._is_told else self.executor.pools.lanes
            await self.aside.run(self._register, lanes, self._closed())
        except WriteRefused:
            raise  # the store answers and will not have it: no later attempt would be better
        except StoreError as error:
            log.warning("the worker has no lease", extra={"error": str(error)})
            self._after_outage = True
            return False
        return True

    def _register(self, lanes: list[str], closed: dict[str, str]) -> None:
        if self.lease is not None:
            self.lease.stop()
        self.id = f"{socket.gethostname()}-{os.getpid()}-{os.urandom(6).hex()}"
        self._enlist(lanes, closed)
        self.executor.lost = False
        self.lease = Lease(
            self.store, self.id, micros(self.settings.lease) / 1e6, self,
            telemetry=self.kernel.telemetry, after_outage=self._after_outage,
        )  # fmt: skip
        self._after_outage = False
        self.lease.start()

    async def tell_what_it_serves(self) -> None:
        """Register anew when a queue was closed or opened again since, by what the resources say.

        A store that does not answer is told at the next look.
        """
        closed, lease = self._closed(), self.lease
        if closed == self._told_closed or lease is None or lease.is_late():
            return
        log.warning("the queues that the worker serves have changed", extra={"closed": closed})
        try:
            await self.aside.run(self._enlist, self.executor.pools.lanes, closed)
        except StoreError as error:
            log.warning("the worker cannot say what it serves", extra={"error": str(error)})

    def _enlist(self, lanes: list[str], closed: dict[str, str]) -> None:
        """Write down that it lives, and what it serves."""
        about = f"{socket.gethostname()} process {os.getpid()}"
        about += "".join(f"; takes no job of {queue}: {why}" for queue, why in closed.items())
        lease_us = micros(self.settings.lease)
        self.time.hear(self.store.register(self.id, lease_us=lease_us, lanes=lanes, about=about))
        self._told_closed = closed

    def _closed(self) -> dict[str, str]:
        """Return the queues of which no job may be taken now, each with the reason."""
        said = {queue: unready() for queue, unready in self._unready}
        return {queue: why for queue, why in said.items() if why is not None}

    def _leave(self) -> None:
        """End the lease last; jobs of threads that still run must wait until it lapses."""
        if self.lease is not None:
            self.lease.stop()
        if not self.executor.running:
            try:
                self.store.unregister(self.id)
            except StoreError as error:
                log.warning("the lease is left to lapse", extra={"error": str(error)})
        self.executor.stages.close()
        self.keeper.close()
        self.aside.close()


def find_complaint(workers: Iterable[Worker]) -> str | None:
    """Return why jobs are not safe with one of these workers; None when they are with all."""
    return next((said for worker in workers if (said := worker.unready()) is not None), None)


def _nothing() -> None:
    """Be the last piece of work of a thread."""


# A run leaves some thirty small objects that live until its commit and hold no cycles. With the
# interpreter's thresholds they are walked through again and again; these cost a tenth less time
# per job (`python -m bench.figures drain`) and, at a few hundred bytes each, some megabytes. A full
# loop of 500 runs stays below the first.
YOUNG, MIDDLE, OLD = 25_000, 20, 20


def settle_in() -> None:
    """Have the garbage collector leave alone what was loaded, and look less often.

    For a process whose only work is ulak's, after the program is loaded.
    """
    gc.collect()
    gc.freeze()
    gc.set_threshold(YOUNG, MIDDLE, OLD)
