"""A worker's heartbeat: it watches deadlines, tells the lease that the loop lives, and writes
progress down."""

from __future__ import annotations

import asyncio
import logging
from typing import TYPE_CHECKING

from ulak.engine.active import ActiveRun
from ulak.engine.stages import Stages
from ulak.engine.threads import Aside
from ulak.errors import StoreError
from ulak.store.protocol import Progress

if TYPE_CHECKING:
    from ulak.engine.worker import Worker

log = logging.getLogger("ulak.worker")

BEAT_S = 0.25
BEATS_PER_REPORT = 4
# So long may an async stage take to end after it was cancelled for its time: counted in beats, in
# which the loop turns, since it may stand still for longer than any time.
BEATS_TO_END = 8


class Heart:
    """Beats four times a second for as long as the worker's loop turns."""

    def __init__(self, worker: Worker, stages: Stages, aside: Aside) -> None:
        self._worker = worker
        self._stages = stages
        self._aside = aside
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
        said, self._worker.progress = self._worker.progress, {}
        self._aside.submit(self._write, list(said.values()))

    def _write(self, said: list[Progress]) -> None:
        try:
            self._worker.store.report(said)
        except StoreError as error:
            log.warning("progress was not written", extra={"error": str(error)})
        finally:
            self._reporting = False
