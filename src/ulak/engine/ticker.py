"""Submits what the clock says. Any number of workers may do so at once: of each date one wins."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from ulak.clock import SECOND, Instant
from ulak.core.schedule import Rule, dates_due
from ulak.engine.schedules import Declared
from ulak.engine.troubles import Troubles
from ulak.errors import Contended, StoreError, UlakError, WriteRefused
from ulak.store.protocol import LARGEST_BATCH, ScheduleRow, Tick

if TYPE_CHECKING:
    from ulak.engine.kernel import Kernel

log = logging.getLogger("ulak.ticker")

A_PAGE = 200
# So many missed dates of one schedule at a time; the next pass follows at once.
MOST_DATES = 100
# A batch with one blocked tick is parted nine times. After so many vain tries many are blocked, and
# the next pass tries again.
MOST_IN_VAIN = 30
# A schedule that another program has declared otherwise is left to it, unless that one is gone.
# Longer than a busy worker needs, shorter than what makes a date a missed one. A guess.
PATIENCE = 10 * SECOND
# A clock that gains more than this on the machine's own between two passes was set. More than the
# answer of a server is late by; less than the shortest time between two dates of most schedules.
STEP = 1 * SECOND


class Ticker:
    """Ticks the schedules that this program declares, exactly as it declares them."""

    def __init__(self, kernel: Kernel, ahead_us: int) -> None:
        self._kernel = kernel
        self._store = kernel.store
        self._ahead_us = ahead_us
        self._troubles = Troubles(log)
        self._in_vain = 0
        self.next_at: Instant | None = None
        """When there is something to do again, if that is soon."""
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
            with self._alone(row):
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
            log.warning("the clock was set forward", extra={"seconds": step / SECOND})
            self._skipped = (now - step, now)
        return now

    def _due(self, now: Instant) -> Iterator[ScheduleRow]:
        """What is due now or before the next pass."""
        after = (-1, "")
        while page := self._store.due_schedules(now + self._ahead_us, A_PAGE, after=after):
            yield from page
            after = (page[-1].next_at, page[-1].name)

    def _see_to_another(self, row: ScheduleRow, now: Instant) -> None:
        """Take over a schedule that was declared otherwise and that nobody sees to."""
        if row.next_at + PATIENCE > now:
            self._come_back(row.next_at + PATIENCE)
        else:
            log.info("a schedule is taken over", extra={"schedule": row.name})
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

    @contextmanager
    def _alone(self, row: ScheduleRow) -> Iterator[None]:
        """Let a schedule that cannot be seen to harm itself alone."""
        try:
            yield
        except (Contended, WriteRefused) as error:
            self._complain(row, error)
        except StoreError:
            raise
        except Exception as error:  # noqa: BLE001 - a worker loop: the other schedules are seen to
            trace = not isinstance(error, UlakError)
            facts = {"schedule": row.name}
            self._troubles.tell(row.name, "a schedule cannot tick", error, facts, trace=trace)

    def _complain(self, row: ScheduleRow, error: Contended | WriteRefused) -> None:
        message = "the job of a schedule is refused"
        if isinstance(error, Contended):
            message = "the job of a schedule must wait for somebody else"
        self._troubles.tell(row.name, message, error, {"schedule": row.name})

    def _write(self, ticks: list[Tick]) -> int:
        """Write them as one. When the job of one is refused, or a foreign transaction holds its
        key, the others are written all the same."""
        try:
            written = self._store.tick(ticks)
        except (Contended, WriteRefused) as error:
            self._in_vain += 1
            if self._in_vain >= MOST_IN_VAIN:
                return 0
            if len(ticks) > 1:
                half = len(ticks) // 2
                return self._write(ticks[:half]) + self._write(ticks[half:])
            self._complain(ticks[0].row, error)
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
