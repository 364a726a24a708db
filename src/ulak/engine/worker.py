"""A worker: claims jobs, runs their stages, and gives every one back.

One asyncio loop. Async stages run on it, plain ones in threads, isolated ones in children.
Claims use a thread aside, upkeep another, commits the committer's, renewals the lease's; only
this file knows how they meet.
"""

from __future__ import annotations

import asyncio
import logging
import os
import socket
import threading
from collections.abc import Callable
from contextlib import AsyncExitStack
from dataclasses import replace
from datetime import timedelta
from functools import partial
from typing import TYPE_CHECKING, Any, TypeVar

from ulak.clock import Instant, micros
from ulak.core import event as kinds
from ulak.core.acts import lacks
from ulak.core.change import Change, Committed, LeaseLost, Receipt, SlotTaken
from ulak.core.decide import RunFacts, decide, lapse_answer
from ulak.core.flow import Flow
from ulak.core.job import JobRow, Request, flow_of, names_stage, queue_of
from ulak.core.outcome import Finished, GivenBack, Held, Outcome, Parked, Passed
from ulak.core.table import Place, find_missing, kept_entries
from ulak.engine.active import ActiveRun
from ulak.engine.bell import Bell
from ulak.engine.committer import Committer, Entry, Settled
from ulak.engine.crossing import call_on
from ulak.engine.failure_log import log_lapse
from ulak.engine.heart import Heart
from ulak.engine.lease import Lease
from ulak.engine.pools import Pools
from ulak.engine.ports import StoreTime, WorkerSettings
from ulak.engine.relay import Relay
from ulak.engine.stages import Stages
from ulak.engine.taking import Attempt, claim_one, take
from ulak.engine.threads import Aside
from ulak.engine.upkeep import Upkeep
from ulak.engine.view import Job
from ulak.errors import FlowError, JobNotFound, StoreError, TransitionNotAllowed, WriteRefused
from ulak.ids import CommitIds, from_text, to_text
from ulak.store.flow_control import FLOW, QUEUE
from ulak.store.protocol import Claim, Claimed, ClaimRequest, Progress, Want

if TYPE_CHECKING:
    from ulak.engine.kernel import Kernel

log = logging.getLogger("ulak.worker")

T = TypeVar("T")

# How long a hurried drain still waits: enough for what was cancelled to be committed. A guess.
HURRY_S = 1.0
SUSPECT_LAPSES = 2
# A worker with no free place looks this often for what is asked of its jobs.
LOOK_EVERY_S = 0.5
# How often a worker looks for jobs that the release before has stored, after a look in vain: a
# claim costs the more, the more lanes it names.
LOOK_BACK_EVERY_S = 0.5
# How often a worker that must not claim yet, after an outage, looks whether it may.
CALM_LOOK_S = 0.05
# After a claim that failed although the lease can be renewed.
AGAIN_S = 0.2
# How often a worker compares its leases with its runs: one read by an index. A guess.
COMPARE_EVERY_S = 5.0
# How long a job that this program cannot run is left to others; guesses.
SHORTEST_LEAVE, LONGEST_LEAVE = timedelta(minutes=1), timedelta(hours=1)
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
        self.progress: dict[bytes, Progress] = {}
        self.time = StoreTime(kernel.store.clock)
        self.committer = Committer(
            kernel.store, self._deliver, telemetry=kernel.telemetry, failed=self.failed
        )
        self.upkeep = Upkeep(kernel, micros(settings.poll))
        self._relay = Relay(kernel, hold_us=micros(settings.lease))
        self._flows = kernel.flows_by_version()
        self._pools = Pools(self._flows.values(), settings, kernel.resources.values())
        self._entries = {
            (flow.name, flow.version, state): during
            for flow in self._flows.values()
            for state, during in flow.table.entries.items()
        }
        self._keeps = kept_entries(self._flows.values())
        self._running: dict[bytes, ActiveRun] = {}
        self._known: dict[tuple[str, int, str, str], Flow[Any]] = {}
        """By flow, version, state and role of the jobs that this program can run."""
        self._aside = Aside("claimer")
        self._keeper = Aside("upkeep")
        """A thread of its own: whatever upkeep waits for, claims go on."""
        self._resources: dict[type, Any] = {}
        self._lease: Lease | None = None
        self.new_commit_id = CommitIds()
        self._outgoing: list[Entry] = []
        self._saturated = False
        self._paused: frozenset[tuple[str, str]] = frozenset()
        """The queues and flows that were paused when the last claim looked."""
        self._claim: asyncio.Future[Claimed] | None = None
        """The claim that is under way."""
        self._looked_at = 0.0
        self._looks_back = False
        """Whether the last claim has looked for jobs of the release before."""
        self._look_back_at = 0.0
        self._finished_since = False
        """Whether a run has ended since the last claim was sent."""
        self._moved_before = 0
        """How many jobs upkeep had moved when the last claim was sent."""
        self._stopping = False
        self._hurried_at: float | None = None
        self._has_begun = threading.Event()
        self._has_ended = False
        self._failure: BaseException | None = None
        """What has ended one of its threads or tasks; `run` raises it after a hurried drain."""
        self._lost = False
        self._after_outage = False
        """It could not register when it last tried: the others could not renew either."""
        self._mute_stages: set[tuple[str, int, str]] = set()
        """The stages of which the log says that they return when they must stop."""
        self._is_unsure = False
        """A claim got no answer: the store may have leased jobs that are not known here."""

    # --- one job ----------------------------------------------------------------

    def take(self, job_id: str, *, name: str = "hand") -> Attempt | None:
        """Lease one job to the caller, who does its stage and ends the attempt.

        None when it is not due, is leased or parked, or has ended; of two who take a job one has
        it. The lease is renewed until the attempt is ended or this process dies.

        Args:
            job_id: The job.
            name: What the trail calls the one who takes it.

        Raises:
            JobNotFound: there is none.
            NotSupported: its stage has a rate, which only ordinary claims pay.
            TransitionNotAllowed: this program lacks its version or its state.
        """
        return take(self.kernel, job_id, worker=name, lease=self.settings.lease)

    def work_on(self, job_id: str) -> Job:
        """Run one job's stages here and now, and return how it stands then.

        For a queue of another make that carries ids of jobs. Nothing is done when the job is not
        due, is leased by somebody else or has ended: a message that comes twice is harmless. On
        an event loop, await `run(only=job_id)`.

        Raises:
            JobNotFound: there is none.
            NotSupported: its stage has a rate, which only ordinary claims pay.
            BadInput: on the thread of an event loop.
        """
        self.kernel.refuse_on_a_loop("worker().work_on")
        asyncio.run(self.run(only=job_id))
        return Job(self.kernel.get_row(job_id))

    # --- for everybody ----------------------------------------------------------

    def now(self) -> Instant:
        """Return the store's time."""
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
        return self._lease is not None and not (self._lost or self._stopping)

    @property
    def has_ended(self) -> bool:
        """Whether `run` has returned or raised."""
        return self._has_ended

    @property
    def lease(self) -> Lease | None:
        """The lease it has now, if any."""
        return self._lease

    def unready(self) -> str | None:
        """Say why jobs are not safe with this worker: no lease, or an old one; None when they are.

        A store that answers others may still have left this worker's renewals without an answer.
        """
        if self._lease is None:
            return "the worker is not registered"
        return self._lease.complaint()

    def runs(self) -> list[ActiveRun]:
        """Every run that has not been settled."""
        return list(self._running.values())

    @property
    def running(self) -> int:
        """How many stages run; after `run` has returned, how many would not stop in time."""
        return len(self._running)

    def stop(self) -> None:
        """Begin to drain. May be called from any thread or a signal handler, before `run` too."""
        self._stopping = True
        if self._has_begun.is_set():
            self._bell.ring()

    def hurry(self) -> None:
        """End a drain soon: cancel async stages and kill children now, wait for threads no more."""
        self.stop()
        if self._has_begun.is_set():
            call_on(self._loop, self._hurry)

    def failed(self, error: BaseException) -> None:
        """End, since a part of the worker has: half a worker keeps jobs and does nothing for them.

        May be called from any thread. `run` raises the error.
        """
        if self._failure is None:
            self._failure = error
            log.critical("the worker ends", extra={"error": repr(error), "worker": self.id})
        self.hurry()

    def _hurry(self) -> None:
        if self._hurried_at is None:
            self._hurried_at = self._loop.time()
        self._settled_one.set()

    async def run(self, *, until_idle: bool = False, only: str | None = None) -> None:
        """Work until stopped, or until nothing is left that could be done now, or on one job
        only, for as long as its lease is kept from stage to stage.

        Whatever a thread or a task of the worker raises ends it, and is raised here.
        """
        try:
            await self._run(until_idle=until_idle, only=only)
        finally:
            self._has_ended = True
        if self._failure is not None:
            raise self._failure

    async def _run(self, *, until_idle: bool, only: str | None) -> None:
        self._loop = asyncio.get_running_loop()
        self._bell = Bell(self.store, micros(self.settings.glance) / 1e6)
        self._stages = Stages(self.settings, self._ended, tracing=self.kernel.tracing)
        self._heart = Heart(self, self._stages, self._keeper)
        self._settled_one = asyncio.Event()
        self._has_begun.set()
        async with AsyncExitStack() as stack:
            for kind, resource in self.kernel.resources.items():
                if resource.queue is None or self.settings.serves(resource.queue):
                    opened = await stack.enter_async_context(resource.factory())
                    self._resources[kind] = opened
            self.committer.start()
            if only is None and not until_idle:
                self.kernel.working_here.append(self)
                stack.callback(self.kernel.working_here.remove, self)
            self._lost = not await self._has_registered()
            stop_ringing = self.kernel.on_ring(self._bell.ring)
            background = [
                asyncio.create_task(self._heart.beat(), name="ulak-heart"),
                asyncio.create_task(self._keep_up(), name="ulak-upkeep"),
                asyncio.create_task(self._compare_leases(), name="ulak-leases"),
                asyncio.create_task(self._relay.run(self._loop), name="ulak-relay"),
            ]
            for task in background:
                task.add_done_callback(self._ended_early)
            try:
                if only is None:
                    try:
                        await self._claim_until_stopped(until_idle)
                    except Exception as error:
                        log.critical("claims have failed", exc_info=True)
                        self.failed(error)  # what runs is still committed, or given back
                else:
                    await self._work_on(from_text(only))
                await self._drain()
            finally:
                stop_ringing()
                for task in background:
                    task.cancel()
                await asyncio.gather(*background, return_exceptions=True)
                # A pass that is under way still uses the store.
                await asyncio.wait([self._keeper.run(_nothing)], timeout=LONGEST_PASS_S)
                await self._aside.run(self._leave)

    def _ended_early(self, task: asyncio.Task[None]) -> None:
        if not task.cancelled() and (error := task.exception()) is not None:
            log.critical("a task of the worker has failed", exc_info=error)
            self.failed(error)

    # --- claiming ---------------------------------------------------------------

    async def _claim_until_stopped(self, until_idle: bool) -> None:
        pause = micros(self.settings.poll) / 1e6
        while not self._stopping:
            if self._lost:
                self._bell.hush()
                if not await self._has_registered():
                    await self._bell.sleep(pause)
                    continue
            if not self._may_claim():
                await asyncio.sleep(CALM_LOOK_S)
                continue
            rest = self._looked_at + LOOK_EVERY_S - self._loop.time()
            if self._claim is None and rest > 0 and not self._pools.wants():
                self._bell.hush()
                await self._bell.sleep(rest)
                continue
            if self._claim is None:
                self._begin_claim()
            assert self._claim is not None  # noqa: S101 - just begun, or by a ring
            try:
                claimed = await self._claim
            except StoreError as error:
                self.kernel.telemetry.failed("claim")
                log.warning("claims fail", extra={"error": str(error), "worker": self.id})
                if self._lease is not None:
                    self._lease.trouble()
                self._is_unsure = True
                await self._bell.sleep(min(pause, AGAIN_S))
                continue
            finally:
                self._claim = None
            if self._is_unsure:
                self._is_unsure = not await self._has_compared_leases()
            taken = len(claimed.claims)
            if self._saturated and taken:
                continue
            if until_idle:
                if not taken and not self._looks_back:
                    self._look_back_at = 0.0
                elif not taken and await self._is_idle():
                    return
                continue
            await self._bell.sleep(self._until(claimed.next_at), on_ring=self._answer_ring)
        if self._claim is not None:
            # Begun by a ring just before the end: what it has leased is to be given back.
            await asyncio.wait([self._claim])

    async def _work_on(self, job_id: bytes) -> None:
        row = await self._aside.run(self.store.find_job, job_id)
        if row is None:
            raise JobNotFound(to_text(job_id))
        flow = self._flows.get((row.flow, row.flow_version))
        if flow is None or find_missing(flow.table, row) or self._pools.find(row.lane) is None:
            return
        claim = await self._aside.run(
            claim_one, self.store, flow, job_id, self.id, self.new_commit_id, self.kernel.telemetry
        )
        if claim is None:
            return
        asked: list[Request] = []
        if claim.row.requests:
            asked = await self._aside.run(self.store.pending_requests, job_id)
        self._take([claim], asked)
        while self._running and not self._stopping:
            self._settled_one.clear()
            await self._settled_one.wait()

    def _may_claim(self) -> bool:
        return self._lease is None or self._lease.is_calm()

    def _begin_claim(self) -> None:
        """Send a claim; what it leases begins as soon as it is known.

        With no place free the claim takes nothing, but it still learns what is asked of the jobs
        that run here.
        """
        self._bell.hush()
        self._looked_at = self._loop.time()
        self._finished_since = False
        self._moved_before = self.upkeep.moved
        self._looks_back = self._looked_at >= self._look_back_at
        wants = self._pools.wants(looks_back=self._looks_back)
        request = ClaimRequest(
            self.id, wants, self._entries, self._no_suspect_runs(), micros(self.settings.ageing),
            self._keeps,
        )  # fmt: skip
        self._claim = self._aside.run(self.store.claim, request, then=partial(self._took, wants))

    def _answer_ring(self) -> None:
        """A ring has come while nothing was to be done: do not wait until the loop comes round."""
        if self._may_claim() and self._pools.wants() and not (self._stopping or self._lost):
            self._begin_claim()

    def _took(self, wants: tuple[Want, ...], claimed: Claimed) -> None:
        self.time.hear(claimed.now)
        took_s = self._loop.time() - self._looked_at
        self._paused = claimed.paused
        if self._looks_back and all(names_stage(claim.row.lane) for claim in claimed.claims):
            self._look_back_at = self._loop.time() + LOOK_BACK_EVERY_S
        self._take(claimed.claims, claimed.requests)
        self._saturated = self._pools.is_saturated(wants, len(claimed.claims))
        self.kernel.telemetry.claimed(claimed, took_s)

    async def _has_registered(self) -> bool:
        try:
            await self._aside.run(self._register)
        except WriteRefused:
            raise  # the store answers and will not have it: no later attempt would be better
        except StoreError as error:
            log.warning("the worker has no lease", extra={"error": str(error)})
            self._after_outage = True
            return False
        return True

    async def _has_compared_leases(self) -> bool:
        """Give back the jobs that are leased to this worker and do not run here.

        They are of a claim that lost its answer; renewing, the worker would keep them for ever.
        Leases are read by the thread that claims, so that whatever it has claimed before is known
        here by the time the answer comes. A run that has ended since has moved its job's token.
        """
        worker = self.id
        try:
            rows = await self._aside.run(self.store.leased, worker)
            unknown = [row for row in rows if row.id not in self._running]
            if unknown:
                await self._aside.run(self.upkeep.give_back, worker, unknown)
        except StoreError as error:
            log.warning("leases could not be read", extra={"error": str(error)})
            return False
        return True

    def _until(self, next_at: Instant | None) -> float:
        """Return how long nothing will be due, as far as this worker knows."""
        pause = micros(self.settings.poll) / 1e6
        if next_at is None:
            return pause
        return min(pause, max(0.0, (next_at - self.now()) / 1e6))

    def _no_suspect_runs(self) -> bool:
        return not any(run.row.lapses >= SUSPECT_LAPSES for run in self._running.values())

    async def _is_idle(self) -> bool:
        """Whether nothing runs and upkeep and relay find nothing to do either."""
        if self._running:
            self._settled_one.clear()
            await self._settled_one.wait()
            return False
        if self._finished_since:
            # What it left may have become due after the claim had looked.
            return False
        try:
            await self._keeper.run(self.upkeep.tick)
            sent = await self._relay.send_once(self._loop)
        except StoreError as error:
            log.warning("upkeep fails", extra={"error": str(error)})
            await self._bell.sleep(micros(self.settings.poll) / 1e6)
            return False
        return self.upkeep.moved == self._moved_before and not sent

    def _take(self, claims: list[Claim], requests: list[Request]) -> None:
        # After a long standstill others may hold these by now: the commit will tell.
        may_run = not (self._stopping or self._lost or (self._lease and self._lease.is_late()))
        for claim in claims:
            asked = [r for r in requests if r.job_id == claim.row.id] if requests else []
            self._begin(claim, asked, may_run=may_run)
        for request in requests:
            run = self._running.get(request.job_id)
            if run is not None:
                self.ask(run, request)

    def _begin(self, claim: Claim, asked: list[Request], *, may_run: bool) -> None:
        row = claim.row
        standing = (row.flow, row.flow_version, row.state, row.role)
        flow = self._known.get(standing)
        if flow is None or row.started or row.undo_to is not None:
            flow = self._flows[row.flow, row.flow_version]
            if (missing := find_missing(flow.table, row)) is not None:
                self._leave_to_others(flow, row, missing)
                return
            self._known[standing] = flow
        run = ActiveRun(self, flow, row, claim.payload, claim.results, self.time.now())
        run.pool = self._pools.take(row.lane)
        self._running[row.id] = run
        if row.lapsed:
            answer = lapse_answer(flow, row)
            if answer is not None:
                self._ended(run, answer)
                return
            log_lapse(row)
        if not may_run or (asked and any(run.ask(request) for request in asked)):
            # A cancel or an expiry that waits for a job which was just claimed is answered so.
            self._ended(run, GivenBack())
            return
        self._stages.start(run)

    def _leave_to_others(self, flow: Flow[Any], row: JobRow, missing: str) -> None:
        """Give back a job that was found in a lane which does not name its stage.

        It is left the longer, the longer it has stood there, so that this is not done for ever.
        """
        now = self.now()
        stood = timedelta(microseconds=now - row.changed_at)
        after = max(SHORTEST_LEAVE, min(stood, LONGEST_LEAVE))
        outcome = GivenBack(kinds.STATE_UNKNOWN, lacks(flow, missing), after)
        log.warning(
            "a job is in a state that this program lacks",
            extra={"job_id": to_text(row.id), "flow": row.flow, "state": row.state},
        )

        def give_back(_why: str = "") -> Change:
            return decide(
                flow, row, outcome, now, facts=RunFacts(row.leased_by or self.id, now),
                commit_id=self.new_commit_id(),
            )  # fmt: skip

        self.committer.offer([Entry(give_back(), lambda *_: None, give_back)])

    # --- ending ----------------------------------------------------------------

    def _ended(self, run: ActiveRun, outcome: Outcome) -> None:
        """Decide what the end of a run means, and have it committed.

        If that fails, so does the worker: the run would never end.
        """
        try:
            if run.lost:
                self._stages.roll_back(run)
                self._finish(run)
                return
            if run.saw_stop and isinstance(outcome, Finished) and outcome.to is None:
                outcome = self._finished_after_stop(run, outcome)
            run.outcome = outcome
            if run.transaction is not None:
                self._commit_together(run, outcome)
                return
            self._offer(run, self._decide(run, outcome, run_may_keep=not run.stopping))
        except Exception as error:
            log.exception("a run could not be ended", extra={"job_id": to_text(run.row.id)})
            self.failed(error)

    def _finished_after_stop(self, run: ActiveRun, outcome: Finished) -> Finished:
        """Mark the end of a run that saw its stop and returned plainly; say so once per stage."""
        stage = (run.row.flow, run.row.flow_version, run.stage_name())
        if stage not in self._mute_stages:
            self._mute_stages.add(stage)
            log.warning(
                "a stage was told to stop and returned, so it counts as finished; "
                "run.checkpoint() or ulak.Stopped says that it was not",
                extra={"flow": run.row.flow, "state": run.row.state, "job_id": to_text(run.row.id)},
            )
        return replace(outcome, after_stop=True)

    def _decide(self, run: ActiveRun, outcome: Outcome, *, run_may_keep: bool) -> Change:
        may_keep = partial(self._may_keep, run) if run_may_keep else None
        facts = RunFacts(
            run.row.leased_by or self.id, run.started_at, may_keep, run.asked, run.notes
        )
        try:
            return decide(
                run.flow, run.row, outcome, self.time.now(), facts=facts,
                commit_id=self.new_commit_id(),
            )  # fmt: skip
        except Exception as error:  # noqa: BLE001 - the runner: whatever a stage answers, its job goes on
            self._stages.roll_back(run)
            why = str(error)
            if not isinstance(error, TransitionNotAllowed):
                why = f"what it returned cannot be used: {type(error).__name__}: {error}"
            held = Held(kinds.BAD_OUTCOME, why)
            return decide(
                run.flow, run.row, held, self.now(), facts=run.facts(),
                commit_id=self.new_commit_id(),
            )  # fmt: skip

    # --- stages with a transaction of their own (`together`) --------------------------

    def _commit_together(self, run: ActiveRun, outcome: Outcome) -> None:
        change = self._decide(run, outcome, run_may_keep=False)
        if run.transaction is None:
            self._offer(run, change)
            return
        run.change = change
        self._stages.commit_together(run, change, self._settled_together)

    def _settled_together(self, run: ActiveRun, change: Change, answer: Receipt | Outcome) -> None:
        if isinstance(answer, Receipt):
            self._settled(run, change, answer)
        else:
            run.change = None
            self._ended(run, answer)

    def _may_keep(self, run: ActiveRun, place: Place) -> bool:
        """Whether the lease may go on to this stage (E-28); the place in its pool is taken then."""
        if self._stopping or self._lost or (self._paused and self._is_paused(place.lane)):
            return False
        if self._saturated and (
            run.flow.fair  # others wait, and every stage is a turn
            or run.kept_stages >= self.settings.keep_stages
            or self.now() - run.kept_since > micros(self.settings.keep_for)
        ):
            return False
        pool = self._pools.change(run.pool, place.lane)
        if pool is None:
            return False
        run.pool = pool
        return True

    def _is_paused(self, lane: str) -> bool:
        return (QUEUE, queue_of(lane)) in self._paused or (FLOW, flow_of(lane)) in self._paused

    def _offer(self, run: ActiveRun, change: Change) -> None:
        """Queue a change; everything that ends in one turn of the loop is handed over together."""
        run.change = change
        if not self._outgoing:
            self._loop.call_soon(self._hand_over)
        self._outgoing.append(Entry(change, partial(self._settled, run), run.hold_instead))

    def _hand_over(self) -> None:
        outgoing, self._outgoing = self._outgoing, []
        self.committer.offer(outgoing)

    # --- settling ---------------------------------------------------------------

    def _deliver(self, settled: Settled) -> None:
        """Called by the committer: one hop to the loop for a whole batch."""
        call_on(self._loop, self._settle_all, settled)

    def _settle_all(self, settled: Settled) -> None:
        for entry, receipt in settled:
            try:
                entry.settle(entry.change, receipt)
            except Exception as error:
                log.exception("a commit could not be settled")
                self.failed(error)

    def _settled(self, run: ActiveRun, change: Change, receipt: Receipt) -> None:
        if isinstance(receipt, SlotTaken) and run.outcome is not None:
            if isinstance(run.outcome, Passed):
                run.outcome = Parked(receipt.limit)
            # No slot for the next stage: move there all the same, and let go of the job.
            self._offer(run, self._decide(run, run.outcome, run_may_keep=False))
            return
        if not isinstance(receipt, Committed):
            if isinstance(receipt, LeaseLost):
                log.info("a run lost its lease", extra={"job_id": to_text(run.row.id)})
            self._finish(run)
            return
        if change.row.leased_by is None:
            self._finish(run)
            if receipt.requests:
                row = change.row
                self._keeper.submit(self.upkeep.attend, row, list(receipt.requests))
            return
        run.go_on(change, self.now())
        for request in receipt.requests:
            run.ask(request)
        if run.stopping or self._stopping:
            # Asked, draining or late since the move was decided: the next stage does not begin.
            self._ended(run, GivenBack())
            return
        self._stages.start(run)

    def _finish(self, run: ActiveRun) -> None:
        # After a lost lease the same job may run here again, beside what is left of this run.
        if self._running.get(run.row.id) is run:
            del self._running[run.row.id]
            self.progress.pop(run.row.id, None)
        self._pools.give_back(run.pool)
        self._finished_since = True
        self._settled_one.set()
        if self._saturated or self._stopping:
            self._bell.wake()

    # --- being asked ------------------------------------------------------------

    def ask(self, run: ActiveRun, request: Request) -> None:
        """Pass a request on to a running stage."""
        if run.asked is None and run.ask(request):
            self._stages.interrupt(run)

    def asked(self, requests: list[Request]) -> None:
        """Called by the lease's thread with what it learned."""
        call_on(self._loop, self._take, [], requests)

    def lease_lost(self) -> None:
        """Called by the lease's thread: nothing that runs here may count any more."""
        call_on(self._loop, self._abandon_all)

    def _abandon_all(self) -> None:
        self._lost = True
        for run in self.runs():
            run.stopping = True
            self._stages.interrupt(run)
        self._bell.wake()

    # --- the background ---------------------------------------------------------

    async def _keep_up(self) -> None:
        """Do the store's housekeeping about once a second; two workers doing so is only waste.

        A schedule that is due earlier is seen to when it is due.
        """
        while True:
            try:
                await self._keeper.run(self.upkeep.tick)
            except StoreError as error:
                self.kernel.telemetry.failed("upkeep")
                log.warning("upkeep fails", extra={"error": str(error)})
            except Exception:  # a worker loop: housekeeping goes on
                log.exception("upkeep failed")
            rest = 0.0 if self.upkeep.has_more else self._until(self.upkeep.next_at)
            await asyncio.sleep(max(SHORTEST_REST_S, rest))

    async def _compare_leases(self) -> None:
        """Find what a claim has leased although its answer never came: it may do so much later."""
        while True:
            await asyncio.sleep(COMPARE_EVERY_S)
            if not self._lost:
                await self._has_compared_leases()

    # --- beginning and end ------------------------------------------------------

    def _register(self) -> None:
        if self._lease is not None:
            self._lease.stop()
        lease_s = micros(self.settings.lease) / 1e6
        self.id = f"{socket.gethostname()}-{os.getpid()}-{os.urandom(6).hex()}"
        lanes = self._pools.lanes
        about = f"{socket.gethostname()} process {os.getpid()}"
        now = self.store.register(self.id, lease_us=int(lease_s * 1e6), lanes=lanes, about=about)
        self.time.hear(now)
        self._lost = False
        self._lease = Lease(
            self.store, self.id, lease_s, self, telemetry=self.kernel.telemetry,
            after_outage=self._after_outage,
        )  # fmt: skip
        self._after_outage = False
        self._lease.start()

    async def _drain(self) -> None:
        deadline = self._loop.time() + micros(self.settings.drain) / 1e6
        for run in self._running.values():
            run.stopping = run.draining = True
        # Async stages get most of the time to end by themselves, then the rest to be cancelled.
        patience = self._loop.time() + 0.8 * (deadline - self._loop.time())
        await self._wait_until_empty(lambda: self._hurried_at or patience)
        for run in self.runs():
            if run.where != "thread":
                self._stages.interrupt(run)
        await self._wait_until_empty(
            lambda: (
                deadline if self._hurried_at is None else min(deadline, self._hurried_at + HURRY_S)
            )
        )
        if self._outgoing:
            self._hand_over()
        for run in self.runs():
            self._stages.leave(run)
        left = max(deadline - self._loop.time(), HURRY_S)
        await self._loop.run_in_executor(None, self.committer.close, left)
        await asyncio.sleep(0)

    async def _wait_until_empty(self, deadline: Callable[[], float]) -> None:
        """Wait until nothing runs, or until a deadline that may come nearer meanwhile."""
        while self._running and self._loop.time() < deadline():
            self._settled_one.clear()
            try:
                async with asyncio.timeout_at(deadline()):
                    await self._settled_one.wait()
            except TimeoutError:
                continue

    def _leave(self) -> None:
        """End the lease last; jobs of threads that still run must wait until it lapses."""
        if self._lease is not None:
            self._lease.stop()
        if not self._running:
            try:
                self.store.unregister(self.id)
            except StoreError as error:
                log.warning("the lease is left to lapse", extra={"error": str(error)})
        self._stages.close()
        self._keeper.close()
        self._aside.close()


def _nothing() -> None:
    """Be the last piece of work of a thread."""
