"""Begins the runs of a worker, has the end of each committed once, and settles what that says.

All of it happens on the worker's loop.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from dataclasses import replace
from datetime import timedelta
from functools import partial
from typing import TYPE_CHECKING, Any

from ulak.clock import micros
from ulak.core import event as kinds
from ulak.core.acts import lacks
from ulak.core.change import Change, Committed, LeaseLost, Receipt, SlotTaken
from ulak.core.decide import RunFacts, decide, lapse_answer
from ulak.core.flow import Flow
from ulak.core.job import JobRow, Request, flow_of, queue_of
from ulak.core.outcome import Finished, GivenBack, Held, Outcome, Parked, Passed
from ulak.core.table import Place, find_missing
from ulak.engine.active_run import ActiveRun
from ulak.engine.claim_loop import Pools, Wakeup
from ulak.engine.committer import Committer, Entry, Settled
from ulak.engine.stages import Stages
from ulak.engine.telemetry import log_lapse
from ulak.engine.threads import call_on
from ulak.errors import TransitionNotAllowed
from ulak.ids import CommitIds, to_text
from ulak.store.flow_control import FLOW, QUEUE
from ulak.store.protocol import LARGEST_BATCH, Claim

if TYPE_CHECKING:
    from ulak.engine.worker import Worker

log = logging.getLogger("ulak.worker")

# How long a hurried drain still waits: enough for what was cancelled to be committed. A guess.
HURRY_S = 1.0
# How long a job that this program cannot run is left to others; guesses.
SHORTEST_LEAVE, LONGEST_LEAVE = timedelta(minutes=1), timedelta(hours=1)


class Executor:
    """The runs of one worker, from their claim until their commit is acknowledged."""

    def __init__(self, worker: Worker) -> None:
        kernel = worker.kernel
        self.worker = worker
        self._time = worker.time
        self._settings = worker.settings
        self._keep_for_us = micros(worker.settings.keep_for)
        self.committer = Committer(
            kernel.store, self._deliver, telemetry=kernel.telemetry, failed=worker.failed,
            largest=kernel.store.features.batch or LARGEST_BATCH,
        )  # fmt: skip
        self.new_commit_id = CommitIds()
        self.running: dict[bytes, ActiveRun] = {}
        self._flows = kernel.flows_by_version()
        self.pools = Pools(
            self._flows.values(), worker.settings, kernel.resources.values(),
            most=kernel.store.features.batch,
        )  # fmt: skip
        self._known: dict[tuple[str, int, str, str], Flow[Any]] = {}
        """By flow, version, state and role of the jobs that this program can run."""
        self._outgoing: list[Entry] = []
        self._hurried_at: float | None = None
        self._mute_stages: set[tuple[str, int, str]] = set()
        """The stages of which the log says that they return when they must stop."""
        self.stopping = False
        self.lost = False
        """The worker has no lease: nothing that it runs may count any more."""
        self.saturated = False
        self.paused: frozenset[tuple[str, str]] = frozenset()
        """The queues and flows that were paused when the last claim looked."""
        self.finished_since = False

    def start(self, loop: asyncio.AbstractEventLoop, wakeup: Wakeup) -> None:
        self._loop = loop
        self._wakeup = wakeup
        self._one_settled = asyncio.Event()
        self.stages = Stages(self._settings, self._ended, tracing=self.worker.kernel.tracing)

    def begin(self, claim: Claim, asked: list[Request], *, may_run: bool) -> None:
        """Begin the run of a claimed job, or end it at once."""
        row = claim.row
        standing = (row.flow, row.flow_version, row.state, row.role)
        flow = self._known.get(standing)
        if flow is None or row.started or row.undo_to is not None:
            flow = self._flows[row.flow, row.flow_version]
            if (missing := find_missing(flow.table, row)) is not None:
                self._leave_to_others(flow, row, missing)
                return
            self._known[standing] = flow
        now, pool = self._time.now(), self.pools.take(row.lane)
        place = flow.table.places[row.state]
        run = ActiveRun(self.worker, flow, row, place, claim.payload, claim.results, now, now, pool)
        self.running[row.id] = run
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
        self.stages.start(run)

    def _leave_to_others(self, flow: Flow[Any], row: JobRow, missing: str) -> None:
        """Give back a job that was found in a lane which does not name its stage, for the longer,
        the longer it has stood there."""
        now = self._time.now()
        stood = timedelta(microseconds=now - row.changed_at)
        after = max(SHORTEST_LEAVE, min(stood, LONGEST_LEAVE))
        outcome = GivenBack(kinds.STATE_UNKNOWN, lacks(flow, missing), after)
        log.warning(
            "a job is in a state that this program lacks",
            extra={"job_id": to_text(row.id), "flow": row.flow, "state": row.state},
        )

        def give_back(_why: str = "") -> Change:
            facts = RunFacts(row.leased_by or self.worker.id, now)
            return decide(flow, row, outcome, now, facts=facts, commit_id=self.new_commit_id())

        self.committer.offer([Entry(give_back(), lambda *_: None, give_back)])

    def _ended(self, run: ActiveRun, outcome: Outcome) -> None:
        """Decide what the end of a run means, and have it committed; the worker ends if that
        fails, since the run never would."""
        try:
            if run.lost:
                self.stages.roll_back(run)
                self._finish(run)
                return
            if run.saw_stop and isinstance(outcome, Finished) and outcome.to is None:
                outcome = self._finished_after_stop(run, outcome)
            run.outcome = outcome
            if run.transaction is not None:
                self._commit_with_rows(run, outcome)
                return
            self._offer(run, self._decide(run, outcome, run_may_keep=not run.stopping))
        except Exception as error:
            log.exception("a run could not be ended", extra={"job_id": to_text(run.row.id)})
            self.worker.failed(error)

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
            run.row.leased_by or self.worker.id, run.started_at, may_keep, run.asked, run.notes
        )
        try:
            return decide(
                run.flow, run.row, outcome, self._time.now(), facts=facts,
                commit_id=self.new_commit_id(),
            )  # fmt: skip
        except Exception as error:  # noqa: BLE001 - the runner: whatever a stage answers, its job goes on
            self.stages.roll_back(run)
            why = str(error)
            if not isinstance(error, TransitionNotAllowed):
                why = f"what it returned cannot be used: {type(error).__name__}: {error}"
            return run.decide(Held(kinds.BAD_OUTCOME, why))

    def _may_keep(self, run: ActiveRun, place: Place) -> bool:
        """Whether the lease may go on to this stage (E-28); the place in its pool is taken then."""
        if self.stopping or self.lost or (self.paused and self.is_paused(place.lane)):
            return False
        if self.saturated and (
            run.flow.fair  # others wait, and every stage is a turn
            or run.kept_stages >= self._settings.keep_stages
            or self._time.now() - run.kept_since > self._keep_for_us
        ):
            return False
        pool = self.pools.change(run.pool, place.lane)
        if pool is None:
            return False
        run.pool = pool
        return True

    def is_paused(self, lane: str) -> bool:
        return (QUEUE, queue_of(lane)) in self.paused or (FLOW, flow_of(lane)) in self.paused

    def _commit_with_rows(self, run: ActiveRun, outcome: Outcome) -> None:
        change = self._decide(run, outcome, run_may_keep=False)
        if run.transaction is None:
            self._offer(run, change)
            return
        run.change = change
        self.stages.commit_with_rows(run, change, self._settled_with_rows)

    def _settled_with_rows(self, run: ActiveRun, change: Change, end: Receipt | Outcome) -> None:
        if isinstance(end, Receipt):
            self._settled(run, change, end)
        else:
            run.change = None
            self._ended(run, end)

    def _offer(self, run: ActiveRun, change: Change) -> None:
        """Queue a change; everything that ends in one turn of the loop is offered at once."""
        run.change = change
        if not self._outgoing:
            self._loop.call_soon(self._hand_over)
        self._outgoing.append(Entry(change, partial(self._settled, run), run.hold_instead))

    def _hand_over(self) -> None:
        outgoing, self._outgoing = self._outgoing, []
        self.committer.offer(outgoing)

    def _deliver(self, settled: Settled) -> None:
        """Called by the committer: one hop to the loop for a whole batch."""
        call_on(self._loop, self._settle_all, settled)

    def _settle_all(self, settled: Settled) -> None:
        for entry, receipt in settled:
            try:
                entry.settle(entry.change, receipt)
            except Exception as error:
                log.exception("a commit could not be settled")
                self.worker.failed(error)

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
                attend = self.worker.upkeep.attend
                self.worker.keeper.submit(attend, change.row, list(receipt.requests))
            return
        run.go_on(change, self._time.now())
        for request in receipt.requests:
            run.ask(request)
        if run.stopping or self.stopping:
            # Asked, draining or late since the move was decided: the next stage does not begin.
            self._ended(run, GivenBack())
            return
        self.stages.start(run)

    def _finish(self, run: ActiveRun) -> None:
        # After a lost lease the same job may run here again, beside what is left of this run.
        if self.running.get(run.row.id) is run:
            del self.running[run.row.id]
            self.worker.progress.pop(run.row.id, None)
        self.pools.give_back(run.pool)
        self.finished_since = True
        self._one_settled.set()
        if self.saturated or self.stopping:
            self._wakeup.wake()

    async def wait_for_one(self) -> None:
        """Wait until a run has ended, or a drain is hurried."""
        self._one_settled.clear()
        await self._one_settled.wait()

    def ask(self, run: ActiveRun, request: Request) -> None:
        if run.asked is None and run.ask(request):
            self.stages.interrupt(run)

    def abandon_all(self) -> None:
        self.lost = True
        for run in tuple(self.running.values()):
            run.stopping = True
            self.stages.interrupt(run)
        self._wakeup.wake()

    def hurry(self) -> None:
        if self._hurried_at is None:
            self._hurried_at = self._loop.time()
        self._one_settled.set()

    async def drain(self) -> None:
        """Ask every run to stop, wait for as long as the settings say, and commit what ended."""
        deadline = self._loop.time() + micros(self._settings.drain) / 1e6
        for run in self.running.values():
            run.stopping = run.draining = True
        # Async stages get most of the time to end by themselves, then the rest to be cancelled.
        patience = self._loop.time() + 0.8 * (deadline - self._loop.time())
        await self._wait_until_empty(lambda: self._hurried_at or patience)
        for run in tuple(self.running.values()):
            if run.where != "thread":
                self.stages.interrupt(run)
        await self._wait_until_empty(
            lambda: min(deadline, (self._hurried_at or deadline) + HURRY_S)
        )
        if self._outgoing:
            self._hand_over()
        for run in tuple(self.running.values()):
            self.stages.leave(run)
        left = max(deadline - self._loop.time(), HURRY_S)
        await self._loop.run_in_executor(None, self.committer.close, left)
        await asyncio.sleep(0)

    async def _wait_until_empty(self, deadline: Callable[[], float]) -> None:
        while self.running and self._loop.time() < deadline():
            self._one_settled.clear()
            try:
                async with asyncio.timeout_at(deadline()):
                    await self._one_settled.wait()
            except TimeoutError:
                continue
