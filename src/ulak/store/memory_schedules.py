"""The schedules of the store in memory."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence

from ulak.clock import Instant
from ulak.core.job import NewJob
from ulak.store.memory_control import MemoryControl
from ulak.store.protocol import Added, ScheduleRow, Tick, TickRow
from ulak.store.protocol.schedules import (
    SCHEDULE_PAUSED,
    SCHEDULE_RESUMED,
    must_be_ticks,
    schedule_details,
    schedule_subject,
)


class MemorySchedules(MemoryControl):
    """What the clock submits: schedules, and a tick for each date that was seen to."""

    @abstractmethod
    def _add(self, job: NewJob, now: Instant) -> Added:
        """Store one new job, or answer the holder of its key."""

    def keep_schedules(self, rows: Sequence[ScheduleRow]) -> None:
        with self._transaction():
            for row in rows:
                stored = self._schedules.get(row.name)
                if stored is None:
                    self._schedules[row.name] = row
                    continue
                is_same_rule = (row.rule, row.zone) == (stored.rule, stored.zone)
                self._schedules[row.name] = row._replace(
                    next_at=stored.next_at if is_same_rule else row.next_at,
                    paused_at=stored.paused_at, paused_by=stored.paused_by,
                    pause_note=stored.pause_note,
                )  # fmt: skip

    def due_schedules(
        self, by: Instant, limit: int, *, after: tuple[Instant, str] = (-1, "")
    ) -> list[ScheduleRow]:
        with self._lock:
            running = [row for row in self._schedules.values() if row.paused_at is None]
            dated = sorted((row.next_at, row.name) for row in running if row.next_at <= by)
            return [self._schedules[name] for at, name in dated if (at, name) > after][:limit]

    def tick(self, ticks: Sequence[Tick]) -> list[bool]:
        with self._transaction() as now:
            must_be_ticks(ticks)
            ordered = sorted(ticks, key=lambda tick: tick.row.name)
            written = {tick.row.name: self._tick(tick, now) for tick in ordered}
            return [written[tick.row.name] for tick in ticks]

    def _tick(self, tick: Tick, now: Instant) -> bool:
        row = self._schedules.get(tick.row.name)
        if row is None or row != tick.row or row.paused_at is not None or row.next_at > now:
            return False
        for job in tick.jobs:
            due_at = job.row.scheduled_for or 0
            if (row.name, due_at) not in self._ticks:
                added = self._add(job, now)
                self._ticks[row.name, due_at] = TickRow(row.name, due_at, added.row.id)
        self._schedules[row.name] = row._replace(next_at=tick.next_at)
        return True

    def pause_schedule(self, name: str, *, actor: str, note: str) -> bool:
        with self._transaction() as now:
            row = self._schedules.get(name)
            if row is None or row.paused_at is not None:
                return False
            self._schedules[name] = row._replace(paused_at=now, paused_by=actor, pause_note=note)
            details = schedule_details(row.next_at)
            self._note(now, actor, SCHEDULE_PAUSED, schedule_subject(name), note, details)
            return True

    def resume_schedule(self, name: str, *, next_at: Instant, actor: str, note: str) -> bool:
        with self._transaction() as now:
            row = self._schedules.get(name)
            if row is None or row.paused_at is None:
                return False
            self._schedules[name] = row._replace(
                next_at=next_at, paused_at=None, paused_by=None, pause_note=None
            )
            self._note(
                now,
                actor,
                SCHEDULE_RESUMED,
                schedule_subject(name),
                note,
                schedule_details(next_at),
            )
            return True

    def schedules(self) -> list[ScheduleRow]:
        with self._lock:
            return [row for _, row in sorted(self._schedules.items())]

    def ticks(
        self, schedule: str, *, before: Instant | None = None, limit: int = 100
    ) -> list[TickRow]:
        with self._lock:
            own = [tick for tick in self._ticks.values() if tick.schedule == schedule]
            wanted = [tick for tick in own if before is None or tick.due_at < before]
            return sorted(wanted, reverse=True)[:limit]
