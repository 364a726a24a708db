"""Runs stages where they belong, and tells how each ended: as an outcome, whatever happened.

A heartbeat watches their time, tells the lease that the loop lives, and writes progress down.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Any

from ulak.core import event as kinds
from ulak.core.change import Change, Receipt
from ulak.core.outcome import Deferred, GivenBack, Held, Outcome, Raised
from ulak.core.run import Run, mark_records, reset_logged_run, set_logged_run
from ulak.engine import stage_transactions
from ulak.engine.active_run import ActiveRun
from ulak.engine.isolation import run_in_child
from ulak.engine.ports import WorkerSettings
from ulak.engine.stage_outcomes import Abandoned, Postponed, is_stopped, read_error, timed_out
from ulak.engine.threads import Threads, call_on
from ulak.engine.tracing import Tracing, traced, traced_child
from ulak.errors import StoreError, UlakError
from ulak.store.protocol import Progress

if TYPE_CHECKING:
    from ulak.engine.worker import Worker

log = logging.getLogger("ulak.worker")

Function = Callable[[Run[Any]], Any]
Ended = Callable[[ActiveRun, Outcome], None]
Settled = Callable[[ActiveRun, Change, Receipt | Outcome], None]

BEAT_S = 0.25
BEATS_PER_REPORT = 4
# So long may an async stage take to end after it was cancelled for its time: counted in beats, in
# which the loop turns, since it may stand still for longer than any time.
BEATS_TO_END = 8


class Stages:
    """Starts and stops runs; `ended` is called once for each, on the loop this was made on."""

    def __init__(
        self, settings: WorkerSettings, ended: Ended, *, tracing: Tracing | None = None
    ) -> None:
        mark_records()
        self._ended = ended
        self._tracing = tracing
        self._loop = asyncio.get_running_loop()
        self._threads = Threads(settings.threads, "stage")
        self._children = Threads(settings.processes, "child")
        self._elsewhere: deque[tuple[ActiveRun, Outcome]] = deque()
        self._collecting = False

    def start(self, run: ActiveRun) -> None:
        """Begin a run; a payload with a type is read first, so that no stage begins without it."""
        run.deadline = run.worker.time.passed_us() + run.timeout_us()
        try:
            function = run.function()
            if run.flow.payload is not None or run.flow.upgrade is not None:
                run.payload()
        except Exception as error:  # noqa: BLE001 - the runner: `upgrade` and payload classes are user code
            why = str(error) if isinstance(error, UlakError) else f"{type(error).__name__}: {error}"
            self._ended(run, Held(kinds.PAYLOAD_UNREADABLE, why))
            return
        if self._tracing is not None and run.where in ("loop", "thread"):
            function = traced(self._tracing, run, function)
        if run.where == "loop":
            run.task = self._loop.create_task(self._run_on_loop(run, function))
        elif run.where == "thread":
            self._threads.run(lambda: self._run_in_thread(run, function))
        elif run.is_before():
            # In the thread that would wait for a child: it is the stage that needs a process.
            self._children.run(lambda: self._run_in_thread(run, function))
        else:
            self._children.run(lambda: self._run_in_process(run, function))

    def interrupt(self, run: ActiveRun) -> None:
        """Stop what can be stopped: a task, a child; a thread has been asked."""
        if run.task is not None and not run.task.done():
            # Not at once: a task cancelled before its first step would never tell its end.
            self._loop.call_soon(run.task.cancel)
        elif run.interrupt is not None:
            run.interrupt()

    def commit_with_rows(self, run: ActiveRun, change: Change, settled: Settled) -> None:
        """Commit a change with the rows of its stage; `settled` is called on the loop."""
        transaction, run.transaction = run.transaction, None

        def commit() -> None:
            assert transaction is not None  # noqa: S101 - who calls this has looked
            try:
                answer = stage_transactions.commit(run, transaction, change)
            except BaseException as error:
                # Nobody knows what was written: the run cannot end here, so the worker does.
                run.worker.failed(error)
                raise
            call_on(self._loop, settled, run, change, answer)

        self._threads.run(commit)

    def roll_back(self, run: ActiveRun) -> None:
        """Take back the rows of a stage whose move is not to be, if it wrote any."""
        transaction, run.transaction = run.transaction, None
        if transaction is not None:
            self._threads.run(transaction.roll_back)

    def leave(self, run: ActiveRun) -> None:
        """Let a task that has swallowed its cancel be: the end of the loop would wait for it."""
        if run.task is not None and not run.task.done():
            asyncio.tasks._unregister_task(run.task)
            run.task._log_destroy_pending = False  # type: ignore[attr-defined] # known to asyncio only

    def close(self) -> None:
        self._threads.close()
        self._children.close()

    async def _run_on_loop(self, run: ActiveRun, function: Function) -> None:
        outcome: Outcome
        set_logged_run(run.row)  # in the context of this task, which ends with it
        try:
            returned = await function(Run(run.row, run, run.is_stopping))
            if run.unsure_spawns:
                await asyncio.to_thread(run.find_holders)
            outcome = run.read_return(returned)
        except asyncio.CancelledError as error:
            outcome = _why_cancelled(run, error)
        except Abandoned:
            outcome = GivenBack()
        except BaseException as error:  # noqa: BLE001 - the runner: whatever a stage raises is its outcome
            if self._loop.is_closed():
                return  # it was left behind, and there is no loop left for its outcome
            outcome = read_error(run.flow, error)
            if is_stopped(error):
                outcome = _why_failed(run, outcome)
        if run.is_recording():
            await run.quiet()
        self._ended(run, outcome)

    def _run_in_thread(self, run: ActiveRun, function: Function) -> None:
        outcome: Outcome
        has_returned = False
        logged = set_logged_run(run.row)
        try:
            returned = function(Run(run.row, run, run.is_stopping))
            outcome = run.read_return(returned)
            has_returned = not isinstance(outcome, Raised)
        except Postponed as postponed:
            outcome = Deferred(stage_transactions.SHORTLY, False, str(postponed))
        except Abandoned:
            outcome = GivenBack()
        except BaseException as error:  # noqa: BLE001 - the runner: whatever a stage raises is its outcome
            outcome = _why_failed(run, read_error(run.flow, error))
        try:
            if not has_returned or run.worker.committer.has_stopped:
                stage_transactions.roll_back(run)
        finally:
            reset_logged_run(logged)
            self._ended_elsewhere(run, outcome)

    def _run_in_process(self, run: ActiveRun, function: Function) -> None:
        logged = set_logged_run(run.row)
        try:
            work = partial(run_in_child, run, function)
            outcome = work() if self._tracing is None else traced_child(self._tracing, run, work)
        except BaseException as error:  # noqa: BLE001 - the runner: a child that cannot be had is an outcome
            outcome = read_error(run.flow, error)
        if isinstance(outcome, Raised):
            outcome = _why_failed(run, outcome)
        reset_logged_run(logged)
        self._ended_elsewhere(run, outcome)

    def _ended_elsewhere(self, run: ActiveRun, outcome: Outcome) -> None:
        """Tell the loop from a thread; one call wakes it for everything that has ended."""
        self._elsewhere.append((run, outcome))
        if not self._collecting:
            self._collecting = True
            call_on(self._loop, self._collect)

    def _collect(self) -> None:
        # Lowered before the queue is read: who appends later raises it again and calls.
        self._collecting = False
        while self._elsewhere:
            run, outcome = self._elsewhere.popleft()
            self._ended(run, outcome)


class Heartbeat:
    """Beats four times a second for as long as the worker's loop turns."""

    def __init__(self, worker: Worker, stages: Stages) -> None:
        self._worker = worker
        self._stages = stages
        self._reporting = False

    async def beat(self) -> None:
        """Beat until cancelled."""
        beats = 0
        while True:
            await asyncio.sleep(BEAT_S)
            beats += 1
            try:
                self._watch()
                if beats % BEATS_PER_REPORT == 0:
                    self._report()
            except Exception:  # a worker loop: the next beat must come
                log.exception("a beat failed")

    def _watch(self) -> None:
        lease, late = self._worker.lease, False
        if lease is not None:
            lease.tick()
            late = lease.is_late()
        passed_us = self._worker.time.passed_us()
        for run in self._worker.runs():
            if late:
                # Others may have taken the job by now, or nobody: the commit will tell.
                run.stopping = True
            if run.deadline <= passed_us and run.noted is None and run.change is None:
                self._overrun(run)

    def _overrun(self, run: ActiveRun) -> None:
        run.stopping = True
        if run.where == "thread":
            run.note_overrun()
        elif not run.overran:
            run.overran, run.beats_over = True, 0
            self._stages.interrupt(run)
        elif run.where == "loop":
            run.beats_over += 1
            if run.beats_over >= BEATS_TO_END:
                run.note_overrun()

    def _report(self) -> None:
        if not self._worker.progress or self._reporting:
            return
        # Not awaited: behind a claim that hangs, the loop would seem to be stuck.
        self._reporting = True
        progress, self._worker.progress = self._worker.progress, {}
        self._worker.keeper.submit(self._write, list(progress.values()))

    def _write(self, progress: list[Progress]) -> None:
        try:
            self._worker.store.report(progress)
        except StoreError as error:
            log.warning("progress was not written", extra={"error": str(error)})
        finally:
            self._reporting = False


def _why_cancelled(run: ActiveRun, error: BaseException) -> Outcome:
    if run.overran:
        return timed_out(run.timeout_us())
    if run.stopping:
        return GivenBack()
    # The stage was cancelled by something of its own: that is a failure like any other.
    return read_error(run.flow, error)


def _why_failed(run: ActiveRun, failure: Outcome) -> Outcome:
    """A stage that failed after it was told to stop did as it was told."""
    if isinstance(failure, Deferred):
        return failure  # it said itself when it is to be run again
    if run.asked is not None or run.draining:
        return GivenBack()
    if run.overran:
        return timed_out(run.timeout_us())
    return GivenBack() if run.stopping else failure
