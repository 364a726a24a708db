"""Schedules: jobs that the clock submits."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Final, NamedTuple, Protocol

from ulak.clock import Instant
from ulak.core.job import NewJob
from ulak.errors import WriteRefused
from ulak.store.protocol.jobs import LARGEST_BATCH


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


SCHEDULE_PAUSED: Final = "pause"
SCHEDULE_RESUMED: Final = "resume"


def schedule_subject(name: str) -> str:
    """Return the subject of a line of audit about a schedule."""
    return f"schedule/{name}"


def schedule_details(next_at: Instant) -> str:
    """Write the details of a line of audit: the date that a pause skips or that ends it."""
    return json.dumps({"next_at": next_at})


def must_be_ticks(ticks: Sequence[Tick]) -> None:
    """Refuse the batch before its first write.

    Raises:
        WriteRefused: a schedule has two ticks, a job has no date, or there are too many jobs.
    """
    seen: set[str] = set()
    for tick in ticks:
        name = tick.row.name
        if name in seen:
            raise WriteRefused(f"schedule {name!r} has two ticks in one batch; one is allowed")
        seen.add(name)
        if any(job.row.scheduled_for is None for job in tick.jobs):
            raise WriteRefused(f"schedule {name!r}: a job of its tick has no scheduled_for")
    jobs = sum(len(tick.jobs) for tick in ticks)
    if jobs > LARGEST_BATCH:
        raise WriteRefused(f"{jobs} jobs in one batch of ticks; {LARGEST_BATCH} are allowed")
