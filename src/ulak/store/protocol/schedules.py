"""Schedules: jobs that the clock submits."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple, Protocol

from ulak.clock import Instant
from ulak.core.job import NewJob


class ScheduleRow(NamedTuple):
    """What the clock submits, and when next. Columns that are declared come first."""

    name: str
    flow: str
    flow_version: int
    tenant: str
    priority: int
    expires_us: int | None
    payload: bytes
    rule: str
    """A cron expression or an interval, as `ulak.core.schedule` writes it."""
    zone: str
    catch_up: str
    """Which of the dates are run that nobody saw in time: `none`, `last` or `all`."""

    next_at: Instant
    """The first date that nobody has seen to."""
    paused_at: Instant | None = None
    """Set exactly while it is paused; nobody ticks it then."""
    paused_by: str | None = None
    pause_note: str | None = None

    @property
    def declared(self) -> tuple[object, ...]:
        """What a program declares: two rows that agree in it make the same jobs."""
        return self[: ScheduleRow._fields.index("next_at")]


class Tick(NamedTuple):
    """What is to be written for one schedule whose date has come."""

    row: ScheduleRow
    """The schedule as it was read; the guard."""
    jobs: tuple[NewJob, ...]
    """One for each date that is run: its `scheduled_for`. None when every date is skipped."""
    next_at: Instant
    """The first date after those."""


class TickRow(NamedTuple):
    """A date of a schedule, and the job that was stored for it."""

    schedule: str
    due_at: Instant
    job_id: bytes


class ScheduleStore(Protocol):
    """Schedules and their ticks."""

    def keep_schedules(self, rows: Sequence[ScheduleRow]) -> None:
        """Store what a program declares.

        A new name is stored as given. Of a stored one the declared columns are taken over;
        `next_at` moves only when the rule or the zone has changed, and a pause stays. Schedules
        that are not named stay as they are.
        """

    def due_schedules(
        self, by: Instant, limit: int, *, after: tuple[Instant, str] = (-1, "")
    ) -> list[ScheduleRow]:
        """Return schedules that are not paused and are due by then, the earliest first.

        `after` is the (next_at, name) of the last one of the page before.
        """

    def tick(self, ticks: Sequence[Tick]) -> list[bool]:
        """Store the jobs of schedules with a tick row for each, and move `next_at`; answer for
        each, in order, whether it was written.

        A tick is written whole while the stored schedule is exactly `tick.row`, is not paused,
        and `next_at` has come by the store's time. Otherwise nothing of it is: of several
        processes one wins. Neither harms its neighbours. A date that has a tick row gets no
        second job. A job whose dedup key is held is not stored: its tick row names the holder.
        Repeating a `tick` whose answer was lost is safe. At most one tick per schedule, at most
        `LARGEST_BATCH` jobs. Schedules are taken by name, before any job is written.

        Raises:
            WriteRefused: the data of some job cannot be stored, or the batch is none; nothing
                was written.
            StoreError: nothing was written, or it is not known.
        """

    def pause_schedule(self, name: str, *, actor: str, note: str) -> bool:
        """Let nobody tick a schedule from now on; audited, of the subject `schedule/name`.

        Returns False, and writes nothing, when there is none or it is paused.
        """

    def resume_schedule(self, name: str, *, next_at: Instant, actor: str, note: str) -> bool:
        """End a pause; audited. The next date is `next_at`, after those that passed meanwhile.

        Returns False, and writes nothing, when there is none or it is not paused.
        """

    def schedules(self) -> list[ScheduleRow]:
        """Return every schedule, by name, undeclared ones too."""

    def ticks(
        self, schedule: str, *, before: Instant | None = None, limit: int = 100
    ) -> list[TickRow]:
        """Return the ticks of a schedule, the latest first, due before then."""
