"""Housekeeping that any worker does: deadlines, requests, parked jobs, counters, schedules.

Every act is a guarded change, so two workers keeping up at once are merely wasteful.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING

from ulak.clock import Instant
from ulak.core import event as kinds
from ulak.core.acts import answer
from ulak.core.change import Change, Committed
from ulak.core.decide import RunFacts, decide
from ulak.core.job import JobRow, Request
from ulak.core.lifecycle import FINAL, UNDOING, WAITING
from ulak.core.outcome import Asked, Cancel, Elapsed, GivenBack, Signal
from ulak.core.table import find_missing
from ulak.engine.acts import read_note
from ulak.engine.telemetry import commit_one
from ulak.engine.ticker import Ticker
from ulak.engine.troubles import Troubles
from ulak.errors import Contended, StoreError, TransitionNotAllowed, WriteRefused
from ulak.ids import to_text

if TYPE_CHECKING:
    from ulak.engine.kernel import Kernel

log = logging.getLogger("ulak.upkeep")

# What is read, and committed, at once: so many that a commit is worth its flush, so few that
# claims hardly wait for it where there is one writer.
A_PAGE = 200
# A pass moves at most so many pages of dates, so that the rest of the pass is soon; the next pass
# follows at once.
MOST_PAGES = 5
# A page with one blocked job is parted eight times. After so many vain tries many are blocked, and
# to find out which would take too long: the next pass tries again.
MOST_IN_VAIN = 30
FOLD_EVERY = 30
# Of messages that nobody wants, some hundred a second may come.
MOST_EXPIRED = 5000

UNRUN = GivenBack(kinds.NOT_RUN, "its worker had leased it and did not run it")


class Upkeep:
    """Moves what nobody claims: jobs that have reached their date and jobs with requests.

    A job, a schedule or a step that the store refuses, that others block or that raises is
    logged once and left to the next pass; the rest of this pass is done all the same.
    """

    def __init__(self, kernel: Kernel, poll_us: int) -> None:
        self._kernel = kernel
        self._store = kernel.store
        self._passes = 0
        self._dates_after: tuple[Instant, bytes] = (0, b"")
        self._asked_after = b""
        self._in_vain = 0
        self._troubles = Troubles(log)
        self._ticker = Ticker(kernel, poll_us)
        self.has_more = False
        """Whether the last pass has left something undone, to keep itself short."""
        self.moved = 0
        """How many jobs and schedules were moved so far."""

    def tick(self) -> int:
        """Do what is to be done now; return how many jobs were moved.

        Raises:
            StoreError: the store does not answer.
        """
        self.has_more, self._in_vain, before = False, 0, self.moved
        steps = [self._see_to_dates, self._ask_to_expire, self._see_to_requests, self._unpark]
        self._passes += 1
        if self._passes % FOLD_EVERY == 1:
            steps += [self._fold, self._sweep, self._expire_messages]
        for step in [*steps, self._tick_schedules]:
            self._do(step)
        return self.moved - before

    @property
    def next_at(self) -> Instant | None:
        """When a schedule is due before the next pass, if one is."""
        return self._ticker.next_at

    def _do(self, step: Callable[[], None]) -> None:
        name = step.__name__.strip("_")
        try:
            step()
        except (Contended, WriteRefused) as error:
            self._troubles.tell(name, "a step of upkeep is left out for now", error, {"step": name})
        except StoreError:
            raise
        except Exception as error:  # noqa: BLE001 - a worker loop: the other steps are done
            self._troubles.tell(name, "a step of upkeep fails", error, {"step": name}, trace=True)
        else:
            self._troubles.over(name)

    def _see_to_dates(self) -> None:
        """Act on some pages of dates; the next pass takes the next ones.

        Jobs that this program cannot act on, of a flow or a state that it lacks, hide nobody so.
        """
        before = self.moved
        for _ in range(MOST_PAGES):
            rows = self._store.due(A_PAGE, after=self._dates_after)
            is_last = len(rows) < A_PAGE
            self._dates_after = (0, b"") if is_last else (rows[-1].wake_at or 0, rows[-1].id)
            changes = [self._change(row, Elapsed()) for row in rows]
            self._commit([change for change in changes if change is not None])
            if is_last:
                return
        self.has_more = self.moved > before

    def _ask_to_expire(self) -> None:
        """Ask workers to end their leased jobs that have reached their date."""
        for row in self._store.overdue_leased(A_PAGE):
            now = self._store.clock.now()
            with self._alone(row):
                self._store.request(Request(row.id, "expire", "", "ulak", None, None, now))

    def _see_to_requests(self) -> None:
        """Settle a page of requests; jobs that do not await their signal yet are passed over."""
        found = self._store.asked(A_PAGE, after=self._asked_after)
        self._asked_after = b"" if len(found) < A_PAGE else found[-1][0].id
        for row, requests in found:
            with self._alone(row):
                self.attend(row, requests)

    def _unpark(self) -> None:
        unparked = self._store.unpark(A_PAGE)
        self.moved += unparked
        self.has_more = self.has_more or unparked >= A_PAGE

    def _fold(self) -> None:
        self._store.fold_counts()

    def _sweep(self) -> None:
        self._store.sweep(A_PAGE)

    def _expire_messages(self) -> None:
        self._store.expire_messages(MOST_EXPIRED)

    def _tick_schedules(self) -> None:
        self.moved += self._ticker.tick()

    def attend(self, row: JobRow, requests: list[Request]) -> None:
        """Settle the requests for a job that is not leased any more."""
        for request in [r for r in requests if r.kind == kinds.NOTE]:
            requests.remove(request)
            change = self._answer(row, read_note(request))
            if change is None:
                return  # a program that knows its flow and its state writes them
            self._commit([change])
            row = change.row
        if row.role in FINAL or (row.role == UNDOING and row.leased_by is None):
            ended = [r for r in requests if row.role in FINAL or r.kind != "signal"]
            if ended:
                self._store.dismiss(row.id, [(r.kind, r.name) for r in ended])
            return
        for request in requests:
            asked = _as_act(row, request)
            if asked is None:
                continue
            try:
                change = self._answer(row, asked)
            except TransitionNotAllowed as error:
                log.info("a request is refused", extra={"reason": str(error)})
                self._store.dismiss(row.id, [(request.kind, request.name)])
                continue
            if change is not None:
                self._commit([change])
            return

    def give_back(self, worker: str, rows: Sequence[JobRow]) -> None:
        """Give back jobs that the store has leased to a worker and that the worker does not run.

        A job that has moved since it was read keeps what it has: its token has moved too.
        """
        for row in rows:
            flow = self._kernel.flows_by_version().get((row.flow, row.flow_version))
            if flow is None:
                continue
            now = self._store.clock.now()
            change = decide(
                flow, row, UNRUN, now, facts=RunFacts(worker, now),
                commit_id=self._kernel.new_commit_id(),
            )  # fmt: skip
            try:
                receipt = commit_one(self._store, change, self._kernel.telemetry)
            except StoreError as error:
                # The next comparison finds it again; the jobs after it need not wait for that.
                log.warning("a lease is not given back", extra=_facts(row) | {"error": str(error)})
                continue
            if isinstance(receipt, Committed):
                log.warning(
                    "a job was leased to this worker, which did not run it; it is given back",
                    extra=_facts(row),
                )

    # --- one job after the other ----------------------------------------------------

    def _answer(self, row: JobRow, asked: Asked) -> Change | None:
        flow = self._kernel.flows_by_version().get((row.flow, row.flow_version))
        if flow is None or find_missing(flow.table, row) is not None:
            return None
        now, commit_id = self._store.clock.now(), self._kernel.new_commit_id()
        return answer(flow, row, asked, now, commit_id=commit_id)

    def _change(self, row: JobRow, asked: Asked) -> Change | None:
        """Make the change of a job; None when there is none to make, or none can be made."""
        with self._alone(row):
            return self._answer(row, asked)
        return None

    @contextmanager
    def _alone(self, row: JobRow) -> Iterator[None]:
        """Let what goes wrong with a job harm that job alone."""
        facts = {"job_id": to_text(row.id), "flow": row.flow, "state": row.state}
        try:
            yield
        except (Contended, WriteRefused) as error:
            self._troubles.tell(row.id, "upkeep must leave a job for now", error, facts)
        except StoreError:
            raise
        except Exception as error:  # noqa: BLE001 - a worker loop: the other jobs are seen to
            self._troubles.tell(row.id, "upkeep fails on a job", error, facts, trace=True)

    def _commit(self, changes: Sequence[Change]) -> None:
        """Commit changes together; when one is blocked or refused, the others without it."""
        if not changes:
            return
        began = time.monotonic()
        try:
            receipts = self._store.commit(changes)
        except (Contended, WriteRefused) as error:
            self._in_vain += 1
            if len(changes) > 1 and self._in_vain < MOST_IN_VAIN:
                half = len(changes) // 2
                self._commit(changes[:half])
                self._commit(changes[half:])
                return
            for change in changes:
                facts = {"job_id": to_text(change.row.id), "flow": change.row.flow}
                self._troubles.tell(change.row.id, "upkeep must leave a job for now", error, facts)
            return
        for change in changes:
            self._troubles.over(change.row.id)
        self._kernel.telemetry.committed(changes, receipts, time.monotonic() - began)
        self.moved += sum(isinstance(receipt, Committed) for receipt in receipts)


def _facts(row: JobRow) -> dict[str, str]:
    return {"job_id": to_text(row.id), "flow": row.flow, "state": row.state}


def _as_act(row: JobRow, request: Request) -> Asked | None:
    """Read a request as the act it stands for, if it can be done now."""
    if request.kind == "cancel":
        return Cancel(request.actor, request.note or "")
    if request.kind == "expire":
        return Elapsed()
    if row.role == WAITING and row.awaits == request.name:
        return Signal(request.actor, request.note or "", request.name, request.data)
    return None
