"""Housekeeping that any worker does: deadlines, requests, parked jobs, counters.

Every act is a guarded change, so two workers keeping up at once are merely wasteful.
"""

from __future__ import annotations

import logging
import os
from typing import TYPE_CHECKING

from ulak.core.acts import answer
from ulak.core.change import Committed
from ulak.core.decide import RunFacts, decide
from ulak.core.job import JobRow, Request
from ulak.core.lifecycle import FINAL, UNDOING, WAITING
from ulak.core.outcome import Asked, Cancel, Elapsed, GivenBack, Signal
from ulak.errors import TransitionNotAllowed

if TYPE_CHECKING:
    from ulak.engine.engine import Engine

log = logging.getLogger("ulak.upkeep")

# As many as one pass may move, so that a pass stays short; the next one follows at once.
A_PASS = 200
FOLD_EVERY = 30


class Upkeep:
    """Moves what nobody claims: jobs whose date has come and jobs of which something is asked."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._store = engine.store
        self._passes = 0

    def tick(self) -> int:
        """Do what is to be done now; answer how many jobs were moved."""
        moved = 0
        for row in self._store.due(A_PASS):
            moved += self._act(row, Elapsed())
        for row in self._store.overdue_leased(A_PASS):
            self._store.request(
                Request(row.id, "expire", "", "ulak", None, None, self._store.clock.now())
            )
        for row, requests in self._store.asked(A_PASS):
            moved += self.attend(row, requests)
        moved += self._store.unpark(A_PASS)
        self._passes += 1
        if self._passes % FOLD_EVERY == 1:
            self._store.fold_counts()
        return moved

    def attend(self, row: JobRow, requests: list[Request]) -> int:
        """Settle what was asked of a job that is not leased any more; answer whether it moved."""
        if row.role in FINAL or (row.role == UNDOING and row.leased_by is None):
            ended = [r for r in requests if row.role in FINAL or r.kind != "signal"]
            if ended:
                self._store.dismiss(row.id, [(r.kind, r.name) for r in ended])
            return 0
        for request in requests:
            asked = _as_act(row, request)
            if asked is not None:
                return self._act(row, asked)
        return 0

    def give_back_unknown(self, worker: str, known: set[bytes]) -> None:
        """Give back what the store has leased to a worker beside the jobs that it knows of."""
        now = self._store.clock.now()
        for row in self._store.leased(worker):
            if row.id not in known:
                flow = self._engine.flows_by_version()[(row.flow, row.flow_version)]
                change = decide(
                    flow, row, GivenBack(), now, facts=RunFacts(worker, now),
                    commit_id=self._engine.new_commit_id(),
                )  # fmt: skip
                self._store.commit([change])

    def _act(self, row: JobRow, asked: Asked) -> int:
        flow = self._engine.flows_by_version().get((row.flow, row.flow_version))
        if flow is None:
            return 0
        try:
            change = answer(flow, row, asked, self._store.clock.now(), commit_id=os.urandom(16))
        except TransitionNotAllowed as error:
            log.info("a request came too late", extra={"reason": str(error)})
            return 0
        if change is None:
            return 0
        return int(isinstance(self._store.commit([change])[0], Committed))


def _as_act(row: JobRow, request: Request) -> Asked | None:
    """Read a request as the act it stands for, if it can be done now."""
    if request.kind == "cancel":
        return Cancel(request.actor, request.note or "")
    if request.kind == "expire":
        return Elapsed()
    if row.role == WAITING and row.awaits == request.name:
        return Signal(request.actor, request.note or "", request.name, request.data)
    return None
