"""Schedules of an engine: declared in code, kept in the store, paused by people."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import KW_ONLY, dataclass
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Any, TypedDict, TypeVar, TypeVarTuple, Unpack, overload

from ulak.clock import Duration, Instant, micros, to_datetime, to_instant
from ulak.core.acts import must_act
from ulak.core.checks import STORABLE_NAME
from ulak.core.flow import Flow
from ulak.core.intake import NORMAL, Submission, check_payload, check_submission
from ulak.core.schedule import (
    CATCH_UPS,
    SUBMITTER_PREFIX,
    UTC,
    CatchUp,
    Rule,
    cron_rule,
    every_rule,
    next_after,
)
from ulak.engine.function import Call
from ulak.engine.new_jobs import make_dedup_key
from ulak.engine.view import Job, hide
from ulak.errors import BadInput, FlowError, UnknownName
from ulak.ids import to_text
from ulak.store import codec
from ulak.store.protocol import ScheduleRow

if TYPE_CHECKING:
    from ulak.engine.kernel import Kernel

P = TypeVar("P")
Ts = TypeVarTuple("Ts")


class ScheduleOptions(TypedDict, total=False):
    """The options of a schedule, for type checkers; `engine.schedules.add` says what each means."""

    cron: str | None
    every: Duration | None
    zone: str | None
    catch_up: CatchUp
    tenant: str
    priority: int
    expires: Duration | None


@dataclass(frozen=True, slots=True)
class Declared:
    """A schedule as this program declares it."""

    _: KW_ONLY
    name: str
    flow: Flow[Any]
    data: bytes
    """The payload, encoded: a later change of the object changes no job."""
    dedup_key: str | None
    tenant: str
    priority: int
    expires: Duration | None
    rule: Rule
    catch_up: str

    @property
    def submitter(self) -> str:
        return f"{SUBMITTER_PREFIX}{self.name}"

    @property
    def payload(self) -> Any:
        return codec.decode(self.data, Any if self.flow.payload is None else self.flow.payload)

    @property
    def columns(self) -> tuple[Any, ...]:
        expires_us = None if self.expires is None else micros(self.expires)
        return (
            self.name, self.flow.name, self.flow.version, self.tenant, self.priority, expires_us,
            self.data, self.rule.text, self.rule.zone, self.catch_up,
        )  # fmt: skip

    def row(self, now: Instant) -> ScheduleRow:
        """Return what is stored when it is new: its next date is the first one after now."""
        return ScheduleRow._make((*self.columns, next_after(self.rule, now), None, None, None))


@dataclass(frozen=True, slots=True)
class Schedule:
    """A schedule as it stood when it was read."""

    _: KW_ONLY
    name: str
    flow: str
    version: int
    tenant: str
    priority: int
    expires: timedelta | None
    payload: Any
    """What it submits, as plain data; secret fields are hidden."""
    rule: str
    """The cron expression, or `@every 300s`."""
    zone: str
    catch_up: str
    next_at: datetime
    """The first date that nobody has seen to."""
    paused_at: datetime | None
    paused_by: str | None
    pause_note: str | None
    is_declared: bool
    """Whether this program declares it; nobody ticks what nobody declares."""


@dataclass(frozen=True, slots=True)
class ScheduleTick:
    """A date that was seen to, and the job that was submitted for it."""

    due_at: datetime
    job_id: str


class Schedules:
    """`engine.schedules`: declares schedules, shows them, and lets people pause them."""

    def __init__(self, kernel: Kernel) -> None:
        self._kernel = kernel

    @overload
    def add(
        self, name: str, flow: Flow[P], payload: P, /, **options: Unpack[ScheduleOptions]
    ) -> None: ...
    @overload
    def add(self, name: str, call: Call, /, **options: Unpack[ScheduleOptions]) -> None: ...
    @overload
    def add(
        self,
        name: str,
        function: Callable[[*Ts], Any],
        /,
        *arguments: *Ts,
        **options: Unpack[ScheduleOptions],
    ) -> None: ...
    def add(  # type: ignore[misc] # mypy does not see that *Any takes *Ts
        self,
        name: str,
        flow: Any,
        /,
        *arguments: Any,
        cron: str | None = None,
        every: Duration | None = None,
        zone: str | None = None,
        catch_up: CatchUp = "last",
        tenant: str = "",
        priority: int = NORMAL,
        expires: Duration | None = None,
    ) -> None:
        """Submit a job at every date of a rule, once, whichever worker comes first.

        The job's `scheduled_for` is the date, its submitter `schedule:` and the name. The workers
        of programs that declare the schedule see to it; what was declared last holds.

        Args:
            name: Stored; a renamed schedule is another one.
            flow: A flow, or a job function, or one with its arguments (`function.bind(...)`).
            arguments: The payload of the flow, or the arguments of the function.
            cron: Five fields: minute, hour, day of month, month, day of week.
            every: An interval of whole seconds, counted from 1970 in UTC.
            zone: The time zone of `cron`, such as "Europe/Istanbul"; UTC if none is given.
            catch_up: What becomes of dates that no worker saw in time: `last` runs the latest of
                them, `all` runs each, `none` runs none that is more than a minute late.
            tenant: Whose jobs they are.
            priority: 0 is the most urgent of 0..3.
            expires: End a job as expired when it is not finished by then.

        Raises:
            FlowError: the rule, the zone, the name or the flow cannot work.
            BadInput: the payload does not fit, or an option is none.
        """
        if name in self._kernel.schedules:
            raise FlowError(f"schedule {name!r} is declared twice; give each a name of its own")
        if not STORABLE_NAME.fullmatch(name):
            raise FlowError(
                f"schedule name {name!r} cannot be stored; use letters, digits and . _ : - (100)"
            )
        if catch_up not in CATCH_UPS:
            raise FlowError(
                f"schedule {name}: catch_up={catch_up!r} is not one of {', '.join(CATCH_UPS)}"
            )
        try:
            rule = _rule(cron, every, zone)
            target, payload = self._kernel.target(flow, arguments)
        except (FlowError, BadInput) as error:
            raise type(error)(f"schedule {name}: {error}") from None
        data, key = codec.encode(payload), make_dedup_key(target, payload)
        made = Declared(
            name=name, flow=target, data=data, dedup_key=key, tenant=tenant,
            priority=priority, expires=expires, rule=rule, catch_up=catch_up,
        )  # fmt: skip
        check_submission(Submission(tenant, made.submitter, priority, None, key, expires))
        check_payload(target, made.data)
        _ = made.payload  # what cannot be read back must not be stored again and again
        self._kernel.schedules[name] = made
        if self._kernel.is_open:
            self._kernel.keep_schedules()

    def all(self) -> list[Schedule]:
        """Return every schedule, by name; those too that this program does not declare."""
        return [self._view(row) for row in self._kernel.open().store.schedules()]

    def get(self, name: str) -> Schedule:
        """Return one schedule.

        Raises:
            UnknownName: there is no such schedule.
        """
        return self._view(self._find(name))

    def ticks(
        self, name: str, *, before: datetime | None = None, limit: int = 100
    ) -> list[ScheduleTick]:
        """Return which dates of a schedule were seen to, the latest first.

        A tick is kept as long as its job. It names an older job if that held the dedup key.

        Raises:
            UnknownName: there is no such schedule.
        """
        row = self._find(name)
        until = None if before is None else to_instant(before)
        found = self._kernel.store.ticks(row.name, before=until, limit=limit)
        return [ScheduleTick(to_datetime(tick.due_at), to_text(tick.job_id)) for tick in found]

    def pause(self, name: str, *, actor: str, note: str = "") -> Schedule:
        """Let a schedule submit nothing until it is resumed. Pausing it twice changes nothing.

        Raises:
            UnknownName: there is no such schedule.
        """
        row = self._find(name)
        self._kernel.store.pause_schedule(row.name, actor=must_act(actor, note), note=note)
        return self.get(name)

    def resume(self, name: str, *, actor: str, note: str = "") -> Schedule:
        """End a pause. Dates that have passed meanwhile are skipped: they were not wanted.

        Raises:
            UnknownName: there is no such schedule.
        """
        row = self._find(name)
        following = next_after(Rule(row.rule, row.zone), self._kernel.store.clock.now())
        self._kernel.store.resume_schedule(
            row.name, next_at=following, actor=must_act(actor, note), note=note
        )
        return self.get(name)

    def run(self, name: str, *, actor: str = "") -> Job:
        """Submit a schedule's job now, even while it is paused; its `scheduled_for` is None.

        Raises:
            UnknownName: this program declares no such schedule.
        """
        made = self._kernel.schedules.get(name)
        if made is None:
            raise _unknown(name, "this program declares", self._kernel.schedules)
        self._kernel.refuse_on_a_loop("schedules.run")
        new = self._kernel.prepare(
            made.flow, made.payload, tenant=made.tenant, actor=actor or made.submitter,
            priority=made.priority, expires=made.expires,
        )  # fmt: skip
        (added,) = self._kernel.accept([new._replace(is_admitted=True)])
        return Job(added.row, created=added.created)

    def _find(self, name: str) -> ScheduleRow:
        rows = {row.name: row for row in self._kernel.open().store.schedules()}
        if name not in rows:
            raise _unknown(name, "there is", rows)
        return rows[name]

    def _view(self, row: ScheduleRow) -> Schedule:
        flow = self._kernel.find_flow(row.flow, row.flow_version)
        return Schedule(
            name=row.name, flow=row.flow, version=row.flow_version, tenant=row.tenant,
            priority=row.priority,
            expires=None if row.expires_us is None else timedelta(microseconds=row.expires_us),
            payload=hide(flow, codec.decode(row.payload)),
            rule=row.rule, zone=row.zone, catch_up=row.catch_up,
            next_at=to_datetime(row.next_at),
            paused_at=None if row.paused_at is None else to_datetime(row.paused_at),
            paused_by=row.paused_by, pause_note=row.pause_note,
            is_declared=row.name in self._kernel.schedules,
        )  # fmt: skip


def _rule(cron: str | None, every: Duration | None, zone: str | None) -> Rule:
    if (cron is None) == (every is None):
        both = "cron and every are two rules" if cron is not None else "it is never due"
        raise FlowError(f"{both}; give cron= or every=")
    if cron is not None:
        return cron_rule(cron, UTC if zone is None else zone)
    if zone is not None:
        raise FlowError(f"zone={zone!r} means nothing to every=; give cron= or leave it out")
    assert every is not None  # noqa: S101 - one of the two is given
    return every_rule(every)


def _unknown(name: str, where: str, known: dict[str, Any]) -> UnknownName:
    others = ", ".join(sorted(known)) or "none"
    return UnknownName(f"{where} no schedule {name!r}; {where} {others}")
