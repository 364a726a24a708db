"""Housekeeping that any worker does: deadlines, requests, parked jobs, counters, schedules.

Every act is a guarded change, so two workers keeping up at once are merely wasteful.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

from ulak.clock import Instant
from ulak.core.acts import answer
from ulak.core.change import Committed
from ulak.core.decide import RunFacts, decide
from ulak.core.job import JobRow, Request
from ulak.core.lifecycle import FINAL, UNDOING, WAITING
from ulak.core.outcome import Asked, Cancel, Elapsed, GivenBack, Signal
from ulak.core.table import find_missing
from ulak.engine.telemetry import commit_one
from ulak.engine.ticker import Ticker
from ulak.errors import Contended, TransitionNotAllowed

if TYPE_CHECKING:
    from ulak.engine.engine import Engine

log = logging.getLogger("ulak.upkeep")

# As many as one pass may move, so that a pass stays short; the next one follows at once.
A_PASS = 200
FOLD_EVERY = 30


class Upkeep:
    """Moves what nobody claims: jobs whose date has come and jobs of which something is asked."""

    def __init__(self, engine: Engine, poll_us: int) -> None:
        self._engine = engine
        self._store = engine.store
        self._passes = 0
        self._dates_after: tuple[Instant, bytes] = (0, b"")
        self._asked_after = b""
        self._ticker = Ticker(engine, poll_us)

    def tick(self) -> int:
        """Do what is to be done now; answer how many jobs were moved."""
        moved = 0
        moved += self._see_to_dates()
        for row in self._store.overdue_leased(A_PASS):
            self._store.request(
                Request(row.id, "expire", "", "ulak", None, None, self._store.clock.now())
            )
        moved += self._see_to_requests()
        moved += self._store.unpark(A_PASS)
        self._passes += 1
        if self._passes % FOLD_EVERY == 1:
            self._store.fold_counts()
            self._store.sweep(A_PASS)
        return moved + self._ticker.tick()

    @property
    def next_at(self) -> Instant | None:
        """When a schedule is due before the next pass, if one is."""
        return self._ticker.next_at

    def _see_to_dates(self) -> int:
        """Act on a page of dates; the next pass takes the next page.

        Jobs that this program cannot act on, of a flow or a state that it lacks, hide nobody so.
        """
        rows = self._store.due(A_PASS, after=self._dates_after)
        is_last = len(rows) < A_PASS
        self._dates_after = (0, b"") if is_last else (rows[-1].wake_at or 0, rows[-1].id)
        return sum(self._act(row, Elapsed()) for row in rows)

    def _see_to_requests(self) -> int:
        """Settle a page of requests; jobs that do not await their signal yet are passed over."""
        found = self._store.asked(A_PASS, after=self._asked_after)
        self._asked_after = b"" if len(found) < A_PASS else found[-1][0].id
        return sum(self.attend(row, requests) for row, requests in found)

    def attend(self, row: JobRow, requests: list[Request]) -> int:
        """Settle what was asked of a job that is not leased any more; answer whether it moved."""
        if row.role in FINAL or (row.role == UNDOING and row.leased_by is None):
            ended = [r for r in requests if row.role in FINAL or r.kind != "signal"]
            if ended:
                self._store.dismiss(row.id, [(r.kind, r.name) for r in ended])
            return 0
        for request in requests:
            asked = _as_act(row, request)
            if asked is None:
                continue
            try:
                return self._act(row, asked)
            except TransitionNotAllowed as error:
                log.info("a request is refused", extra={"reason": str(error)})
                self._store.dismiss(row.id, [(request.kind, request.name)])
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
                commit_one(self._store, change, self._engine.telemetry)

    def _act(self, row: JobRow, asked: Asked) -> int:
        flow = self._engine.flows_by_version().get((row.flow, row.flow_version))
        if flow is None or find_missing(flow.table, row) is not None:
            return 0
        now, commit_id = self._store.clock.now(), self._engine.new_commit_id()
        change = answer(flow, row, asked, now, commit_id=commit_id)
        if change is None:
            return 0
        try:
            receipt = commit_one(self._store, change, self._engine.telemetry)
        except Contended as error:
            # The next pass tries again; the jobs after it need not wait for that.
            log.info("a job must wait for somebody else", extra={"reason": str(error)})
            return 0
        return int(isinstance(receipt, Committed))


def _as_act(row: JobRow, request: Request) -> Asked | None:
    """Read a request as the act it stands for, if it can be done now."""
    if request.kind == "cancel":
        return Cancel(request.actor, request.note or "")
    if request.kind == "expire":
        return Elapsed()
    if row.role == WAITING and row.awaits == request.name:
        return Signal(request.actor, request.note or "", request.name, request.data)
    return None
