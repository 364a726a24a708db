"""Flow control, which operators may change at any time, and schedules."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Final, NamedTuple, Protocol

from ulak.clock import Instant
from ulak.core.admission import StopRow
from ulak.core.job import NewJob
from ulak.core.policy import LimitTerms, RateTerms
from ulak.errors import WriteRefused
from ulak.store.protocol.jobs import LARGEST_BATCH

NO_RATES: Final[Mapping[str, RateTerms]] = MappingProxyType({})


class SlotRow(NamedTuple):
    """One place of a limited stage, or of one key of it. A closed one is not given again."""

    limit: str
    n: int
    job_id: bytes | None
    closed: int
    of_state: int = 0
    """1 when its job keeps it until it leaves the busy state, leased or not."""


class LimitRow(NamedTuple):
    """How many runs of a stage there may be at once: of the stage, or of each key of it."""

    name: str
    """`flow/state`; the slots of a key are named `flow/state/key`, and so is the row of a key that
    has a limit of its own."""
    n: int
    """How many, now."""
    declared: int
    """How many the flow declares."""
    keyed: int
    actor: str | None
    """Who has set `n`; None while it is what the flow declares."""
    at: Instant


class RateRow(NamedTuple):
    """How many tokens a bucket gets: that of a stage, or of each key of it."""

    name: str
    """`flow/state`; the bucket of a key is named `flow/state/key`."""
    n: int
    per_us: int
    burst: int
    """In force now: `n` tokens come in `per_us`, at most `burst` are kept."""
    declared_n: int
    declared_per_us: int
    declared_burst: int
    actor: str | None
    """Who has set the rate; None while it is what the flow declares."""
    at: Instant


class BucketRow(NamedTuple):
    """A bucket that is not full, or for which jobs are parked. One that has no row is full."""

    name: str
    level: int
    """In parts of a token: a token has `per_us` of them, and `n` come every microsecond."""
    filled_at: Instant
    """When the level was this."""
    ready_at: Instant | None
    """When the most urgent job parked on it can be paid; None when nobody is parked."""


class PauseRow(NamedTuple):
    """No job of this queue, flow or key is claimed until the end of the pause."""

    kind: str
    """`queue`, `flow` or `key`."""
    name: str
    until_at: Instant | None
    """When it ends by itself; None means never."""
    actor: str
    note: str | None
    at: Instant


class WeightRow(NamedTuple):
    """How many turns a tenant of fair flows has for each turn of others; without a row, one."""

    tenant: str
    weight: int
    actor: str
    at: Instant


class AuditRow(NamedTuple):
    """One act of an operator on limits, rates, pauses, weights, schedules or credentials,
    committed with the act."""

    position: int
    """Rises with every line; there may be gaps."""
    at: Instant
    actor: str
    act: str
    """`limit`, `rate`, `pause`, `resume`, `stop`, `accept` or `weight`; of credentials `created`,
    `revoked` ..."""
    subject: str
    """The limit, the rate or the tenant; a pause as `queue/...`, `flow/...` or `key/...`; a stop
    as `intake/FLOW/TENANT`; a credential as `credential/KIND/ID`."""
    note: str | None
    details: str
    """What it is now and what it was before, as JSON."""


class ControlStore(Protocol):
    """Limits, rates, pauses, weights, and the audit of what operators did."""

    def declare(
        self, limits: Mapping[str, LimitTerms], rates: Mapping[str, RateTerms] = NO_RATES
    ) -> None:
        """Take over what flows declare, except where an operator has set another value.

        A limit has exactly so many open slots; a lowered one closes and drains. A job in a closed
        slot still counts: no slot is given while as many jobs hold one, open or closed, as there
        are open slots. Of a keyed limit this holds for each key. A bucket keeps its tokens when
        its rate changes, as far as it can hold them. What is not named stays as it is.

        Where a limit counts the jobs in a busy state (`LimitTerms.busy`), those that stand there
        get slots, closed ones if there are too many, and those before it need one from now on.
        """

    def change_limit(
        self, name: str, n: int | None, *, actor: str, note: str, key: str | None = None
    ) -> LimitRow | None:
        """Set a limit, or with None go back to the declared one; audited.

        With `key`, set it for one key alone, whose row is named `flow/state/key`; with None that
        key has as many slots as the others again. Returns the limit as it is now, or None when
        there is none of this name, or none with keys.
        """

    def change_rate(
        self, name: str, terms: RateTerms | None, *, actor: str, note: str
    ) -> RateRow | None:
        """Set a rate, or with None go back to the declared one; audited.

        Returns the rate as it is now, or None when there is none of this name.
        """

    def pause(
        self, kind: str, name: str, *, until: Instant | None, actor: str, note: str
    ) -> PauseRow | None:
        """Let no job of a queue, a flow or a key be claimed until then, or until `resume`; audited.

        What runs goes on to the end of its stage. Returns the pause that this one replaces, or
        None when it was not paused.
        """

    def resume(self, kind: str, name: str, *, actor: str, note: str) -> PauseRow | None:
        """End a pause; audited. Returns what has ended, or None when it was not paused.

        A large crowd parked on a key is unparked by this and the claims that follow.
        """

    def weigh(self, tenant: str, weight: int | None, *, actor: str, note: str) -> int | None:
        """Give a tenant so many turns for each turn of others, None for one; audited.

        Returns the weight that it had, None for one.
        """

    def stop_accepting(self, stop: StopRow) -> StopRow | None:
        """Take no new jobs of a flow, and of a tenant or of all, until `accept`; audited.

        Returns the stop that this one replaces, or None.
        """

    def accept(self, flow: str, tenant: str, *, actor: str, note: str) -> StopRow | None:
        """End a stop; audited. Returns what has ended, or None when there was none."""

    def stops(self) -> list[StopRow]:
        """Return every stop, by flow and tenant."""

    def limits(self) -> list[LimitRow]:
        """Return every limit, by name."""

    def rates(self) -> list[RateRow]:
        """Return every rate, by name."""

    def buckets(self, name: str | None = None) -> list[BucketRow]:
        """Return every bucket that has a row, or the one of this name."""

    def pauses(self, *, over: bool = False) -> list[PauseRow]:
        """Return every pause that is not over, by kind and name; with `over`, those too that no
        claim has ended yet."""

    def weights(self) -> list[WeightRow]:
        """Return every weight that was set, by tenant."""

    def slots(self, limit: str | None = None) -> list[SlotRow]:
        """Return every slot, or those of one limit or key, by limit and number."""

    def audit_trail(
        self, *, subject: str | None = None, before: int | None = None, limit: int = 100
    ) -> list[AuditRow]:
        """Return what operators did, the latest first, below the position `before`."""


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
