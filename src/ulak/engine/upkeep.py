"""Housekeeping that any worker does: deadlines, requests, parked jobs, counters, schedules.

Every act is a guarded change, so two workers doing it at once are merely wasteful.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Hashable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from functools import partial
from typing import TYPE_CHECKING, NamedTuple

from ulak.clock import SECOND, Instant
from ulak.core import event as kinds
from ulak.core.acts import answer
from ulak.core.change import Change, Committed
from ulak.core.decide import RunFacts, decide
from ulak.core.job import JobRow, Request
from ulak.core.lifecycle import FINAL, UNDOING, WAITING
from ulak.core.outcome import Asked, Cancel, Elapsed, GivenBack, Signal
from ulak.core.schedule import Rule, dates_due
from ulak.core.table import find_missing
from ulak.engine.acts import read_note
from ulak.engine.schedules import Declared
from ulak.engine.telemetry import commit_one
from ulak.errors import Contended, StoreError, TransitionNotAllowed, UlakError, WriteRefused
from ulak.ids import to_text
from ulak.store.protocol import LARGEST_BATCH, ScheduleRow, Tick

if TYPE_CHECKING:
    from ulak.engine.kernel import Kernel

log = logging.getLogger("ulak.upkeep")
ticker_log = logging.getLogger("ulak.ticker")

# What is read, and committed, at once: so many that a commit is worth its flush, so few that
# claims hardly wait for it where there is one writer.
A_PAGE = 200
# A pass moves at most so many pages of dates, so that the rest of the pass is soon; the next pass
# follows at once.
MOST_PAGES = 5
# A page with one blocked job or schedule is parted eight or nine times. After so many vain tries
# many are blocked, and to find out which would take too long: the next pass tries again.
MOST_IN_VAIN = 30
FOLD_EVERY = 30
# Of messages that nobody wants, some hundred a second may come.
MOST_EXPIRED = 5000
# So many missed dates of one schedule at a time; the next pass follows at once.
MOST_DATES = 100
# A schedule that another program has declared otherwise is left to it, unless that one is gone.
# Longer than a busy worker needs, shorter than what makes a date a missed one. A guess.
PATIENCE = 10 * SECOND
# A clock that gains more than this on the machine's own between two passes was set. More than the
# answer of a server is late by; less than the shortest time between two dates of most schedules.
STEP = 1 * SECOND
# More things in trouble at once than a person reads; beyond it all may be named once more.
MOST_REMEMBERED = 10_000

UNRUN = GivenBack(kinds.NOT_RUN, "its worker had leased it and did not run it")


class Says(NamedTuple):
    """What the log says of a thing that others block, that is refused, or that fails."""

    blocked: str
    failed: str
    refused: str = ""
    """The same as `blocked` unless it is said."""


OF_A_STEP = Says("a step of upkeep is left out for now", "a step of upkeep fails")
OF_A_JOB = Says("upkeep must leave a job for now", "upkeep fails on a job")
OF_A_SCHEDULE = Says(
    "the job of a schedule must wait for somebody else",
    "a schedule cannot tick",
    "the job of a schedule is refused",
)


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

    def tick(self) -> int:
        """Do what is to be done now; return how many jobs were moved.

        Raises:
            StoreError: the store does not answer.
        """
        self.has_more, self._in_vain, before = False, 0, self.moved
        steps: dict[str, Callable[[], object]] = {
            "see_to_dates": self._see_to_dates,
            "ask_to_expire": self._ask_to_expire,
            "see_to_requests": self._see_to_requests,
            "unpark": self._unpark,
        }
        self._passes += 1
        if self._passes % FOLD_EVERY == 1:
            steps["fold"] = self._store.fold_counts
            steps["sweep"] = partial(self._store.sweep, A_PAGE)
            steps["expire_messages"] = partial(self._store.expire_messages, MOST_EXPIRED)
        steps["tick_schedules"] = self._tick_schedules
        for name, step in steps.items():
            with self._troubles.alone(name, OF_A_STEP, {"step": name}):
                step()
                self._troubles.over(name)
        return self.moved - before

    @property
    def next_at(self) -> Instant | None:
        return self._ticker.next_at

    def _see_to_dates(self) -> None:
        """Act on some pages of dates; the next pass takes the next ones, so that jobs of a flow or
        a state that this program lacks hide no others."""
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
        """Give back jobs that the store has leased to a worker and that it does not run. A job that
        has moved since it was read keeps what it has: its token has moved too."""
        for row in rows:
            flow = self._kernel.find_flow(row.flow, row.flow_version)
            if flow is None:
                continue
            facts = RunFacts(worker, now := self._store.clock.now())
            commit_id = self._kernel.new_commit_id()
            change = decide(flow, row, UNRUN, now, facts=facts, commit_id=commit_id)
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

    def _answer(self, row: JobRow, asked: Asked) -> Change | None:
        flow = self._kernel.find_flow(row.flow, row.flow_version)
        if flow is None or find_missing(flow.table, row) is not None:
            return None
        now, commit_id = self._store.clock.now(), self._kernel.new_commit_id()
        return answer(flow, row, asked, now, commit_id=commit_id)

    def _change(self, row: JobRow, asked: Asked) -> Change | None:
        """Make the change of a job; None when there is none to make, or none can be made."""
        with self._alone(row):
            return self._answer(row, asked)
        return None

    def _alone(self, row: JobRow) -> AbstractContextManager[None]:
        return self._troubles.alone(row.id, OF_A_JOB, _facts(row))

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
                self._troubles.refused(change.row.id, OF_A_JOB, error, facts)
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


class Ticker:
    """Ticks the schedules that this program declares, exactly as it declares them."""

    def __init__(self, kernel: Kernel, ahead_us: int) -> None:
        self._kernel = kernel
        self._store = kernel.store
        self._ahead_us = ahead_us
        self._troubles = Troubles(ticker_log, (UlakError,))
        self._in_vain = 0
        self.next_at: Instant | None = None
        self._seen = (self._store.clock.now(), self._store.clock.uptime())
        self._skipped = (0, 0)
        """From when to when the clock was last set forward: nobody could see to those dates."""

    def tick(self) -> int:
        """See to every date that has come; answer how many schedules were moved."""
        declared = self._kernel.schedules
        self.next_at = None
        if not declared:
            return 0
        now = self._look_at_clock()
        ticks: list[Tick] = []
        for row in self._due(now):
            made = declared.get(row.name)
            if made is None:
                continue
            with self._troubles.alone(row.name, OF_A_SCHEDULE, {"schedule": row.name}):
                if made.columns != row.declared:
                    self._see_to_another(row, now)
                elif row.next_at > now:
                    self._come_back(row.next_at)
                else:
                    ticks.append(self._tick_of(row, made, now))
        # Schedules in trouble come last: however many they are, the others have ticked by then.
        self._in_vain = 0
        well = [tick for tick in ticks if not self._troubles.has(tick.row.name)]
        ill = [tick for tick in ticks if self._troubles.has(tick.row.name)]
        return sum(self._write(batch) for batch in (*_batches(well), *_batches(ill)))

    def _look_at_clock(self) -> Instant:
        """Return the present instant, and see whether the clock was set since the last look."""
        (was, before), clock = self._seen, self._store.clock
        now, uptime = self._seen = clock.now(), clock.uptime()
        step = (now - was) - (uptime.us - before.us)
        if uptime.boot and uptime.boot == before.boot and step > STEP:
            ticker_log.warning("the clock was set forward", extra={"seconds": step / SECOND})
            self._skipped = (now - step, now)
        return now

    def _due(self, now: Instant) -> Iterator[ScheduleRow]:
        after = (-1, "")
        while page := self._store.due_schedules(now + self._ahead_us, A_PAGE, after=after):
            yield from page
            after = (page[-1].next_at, page[-1].name)

    def _see_to_another(self, row: ScheduleRow, now: Instant) -> None:
        """Take over a schedule that was declared otherwise and that nobody sees to."""
        if row.next_at + PATIENCE > now:
            self._come_back(row.next_at + PATIENCE)
        else:
            ticker_log.info("a schedule is taken over", extra={"schedule": row.name})
            self._kernel.keep_schedules()
            self._come_back(now)

    def _tick_of(self, row: ScheduleRow, made: Declared, now: Instant) -> Tick:
        rule = Rule(row.rule, row.zone)
        catch_up, (start, end) = row.catch_up, self._skipped
        # Of the dates that a clock was set over, one is run, whatever the schedule catches up on.
        if catch_up == "all" and row.next_at <= end:
            before = row.next_at <= start
            catch_up, now = ("all", min(now, start)) if before else ("last", min(now, end))
        dates, following = dates_due(rule, catch_up, row.next_at, now, most=MOST_DATES)
        self._come_back(following)
        payload = made.payload if dates else None
        jobs = [
            self._kernel.prepare(
                made.flow, payload, tenant=made.tenant, actor=made.submitter,
                priority=made.priority, expires=made.expires, dedup_key=made.dedup_key,
                scheduled_for=date,
            )
            for date in dates
        ]  # fmt: skip
        return Tick(row, tuple(jobs), following)

    def _write(self, ticks: list[Tick]) -> int:
        """Write them as one; when one is blocked or refused, the others without it."""
        try:
            written = self._store.tick(ticks)
        except (Contended, WriteRefused) as error:
            self._in_vain += 1
            if self._in_vain >= MOST_IN_VAIN:
                return 0
            if len(ticks) > 1:
                half = len(ticks) // 2
                return self._write(ticks[:half]) + self._write(ticks[half:])
            name = ticks[0].row.name
            self._troubles.refused(name, OF_A_SCHEDULE, error, {"schedule": name})
            return 0
        self._kernel.telemetry.ticked(ticks, written)
        for tick in ticks:
            self._troubles.over(tick.row.name)
        return sum(written)

    def _come_back(self, at: Instant) -> None:
        self.next_at = at if self.next_at is None else min(at, self.next_at)


def _batches(ticks: list[Tick]) -> Iterator[list[Tick]]:
    """Part ticks so that no batch has too many jobs."""
    batch: list[Tick] = []
    jobs = 0
    for tick in ticks:
        if batch and jobs + len(tick.jobs) > LARGEST_BATCH:
            yield batch
            batch, jobs = [], 0
        batch.append(tick)
        jobs += len(tick.jobs)
    if batch:
        yield batch


class Troubles:
    """Logs the first failure of a thing, and no other until the thing goes well again."""

    def __init__(self, log: logging.Logger, plain: tuple[type[Exception], ...] = ()) -> None:
        self._log = log
        self._plain = plain
        self._told: set[Hashable] = set()

    @contextmanager
    def alone(self, thing: Hashable, says: Says, facts: dict[str, str]) -> Iterator[None]:
        """Let what goes wrong with a thing harm it alone; a store that is away harms all."""
        try:
            yield
        except (Contended, WriteRefused) as error:
            self.refused(thing, says, error, facts)
        except StoreError:
            raise
        except Exception as error:  # noqa: BLE001 - a worker loop: the others are seen to
            trace = not isinstance(error, self._plain)
            self._tell(thing, logging.ERROR, says.failed, error, facts, trace=trace)

    def refused(
        self, thing: Hashable, says: Says, error: Contended | WriteRefused, facts: dict[str, str]
    ) -> None:
        """Log that others block a thing, or that the store refuses it."""
        if isinstance(error, Contended):
            self._tell(thing, logging.WARNING, says.blocked, error, facts)
        else:
            self._tell(thing, logging.ERROR, says.refused or says.blocked, error, facts)

    def has(self, thing: Hashable) -> bool:
        """Tell whether a thing has failed and has not gone well since."""
        return thing in self._told

    def over(self, thing: Hashable) -> None:
        """A thing went well: its next failure is logged again."""
        self._told.discard(thing)

    def _tell(
        self, thing: Hashable, level: int, message: str, error: Exception, facts: dict[str, str],
        *, trace: bool = False,
    ) -> None:  # fmt: skip
        if thing in self._told:
            return
        if len(self._told) >= MOST_REMEMBERED:
            self._told.clear()
        self._told.add(thing)
        extra = {**facts, "error": str(error) or type(error).__name__}
        self._log.log(level, message, extra=extra, exc_info=error if trace else None)
