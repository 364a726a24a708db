"""What operators set, decided once for every store that keeps it in tables by name.

A verb decides from a `Draft`: what it has read there is still so when it is written, or it is
decided again. Each of them, and its line of audit, is what `ulak.store.protocol` promises.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final, NamedTuple, Protocol, TypeVar

from ulak.clock import Clock, Instant
from ulak.core.admission import StopRow
from ulak.core.policy import LimitTerms, RateTerms
from ulak.store import flow_control as control
from ulak.store.credentials import (
    changed_credential,
    credential_details,
    credential_subject,
    make_subject,
)
from ulak.store.protocol import (
    NO_RATES,
    BucketRow,
    CredentialRow,
    LimitRow,
    PauseRow,
    RateRow,
    ScheduleRow,
    WeightRow,
)
from ulak.store.protocol.control import (
    SCHEDULE_PAUSED,
    SCHEDULE_RESUMED,
    schedule_details,
    schedule_subject,
)

T = TypeVar("T")


class Table(NamedTuple):
    """Rows that are found by a name, or by two."""

    name: str
    row: Callable[..., Any]
    names: int = 1
    """How many columns, the first of a row, are its name."""


LIMITS: Final = Table("limits", LimitRow)
RATES: Final = Table("rates", RateRow)
BUCKETS: Final = Table("buckets", BucketRow)
PAUSES: Final = Table("pauses", PauseRow, 2)
WEIGHTS: Final = Table("weights", WeightRow)
STOPS: Final = Table("stops", StopRow, 2)
SCHEDULES: Final = Table("schedules", ScheduleRow)
CREDENTIALS: Final = Table("credentials", CredentialRow, 2)


class Draft(Protocol):
    """What one act reads and writes, at one moment."""

    now: Instant

    def find(self, table: Table, *name: str) -> Any:
        """Return a row, or None."""

    def find_all(self, table: Table) -> list[Any]:
        """Return every row."""

    def put(self, table: Table, row: Any) -> None:
        """Write a row."""

    def drop(self, table: Table, *name: str) -> None:
        """Remove a row, if there is one."""

    def note(self, actor: str, act: str, subject: str, note: str | None, details: str) -> None:
        """Write a line of audit."""

    def open_slots(self, limit: str, places: int) -> None:
        """Have so many slots open of a limit, or of one of its keys."""

    def open_all(self, limit: LimitRow) -> None:
        """Have the slots of a limit open as it says now, and those of its keys."""

    def put_bucket(self, bucket: BucketRow) -> None:
        """Write a bucket; who waits for it may be paid earlier."""

    def let_in(self) -> None:
        """Unpark those whose pauses are over, and ring."""


class OperatorVerbs(ABC):
    """Limits, rates, pauses, weights, stops, schedules and credentials."""

    clock: Clock

    @abstractmethod
    def _decide(self, kind: str, work: Callable[[Draft], T]) -> T:
        """Do what `work` decides; `kind` names the write in `ulak.store.faults`."""

    @abstractmethod
    def _rows(self, table: Table) -> list[Any]:
        """Return every row of a table by name."""

    @abstractmethod
    def _adopt(self, name: str, terms: LimitTerms) -> None:
        """Give slots to the jobs that stand in the busy state of a limit already."""

    # Limits and rates ------------------------------------------------------------

    def declare(
        self, limits: Mapping[str, LimitTerms], rates: Mapping[str, RateTerms] = NO_RATES
    ) -> None:
        def work(draft: Draft) -> None:
            for name, terms in limits.items():
                known = draft.find(LIMITS, name)
                _put_limit(draft, control.declared_limit(known, name, terms, draft.now))
            for name, rate in rates.items():
                stored = draft.find(RATES, name)
                _put_rate(draft, stored, control.declared_rate(stored, name, rate, draft.now))

        self._decide("declare", work)
        for name, terms in sorted(limits.items()):
            if terms.busy is not None:
                self._adopt(name, terms)

    def change_limit(
        self, name: str, n: int | None, *, actor: str, note: str, key: str | None = None
    ) -> LimitRow | None:
        def work(draft: Draft) -> LimitRow | None:
            known = draft.find(LIMITS, name)
            if known is None or (key is not None and not known.keyed):
                return None
            if key is None:
                new = control.changed_limit(known, n, actor, draft.now)
                _put_limit(draft, new)
            else:
                new = control.limit_of_key(known, key, n, actor, draft.now)
                known = draft.find(LIMITS, new.name) or known
                if n is None:
                    draft.drop(LIMITS, new.name)
                else:
                    draft.put(LIMITS, new)
                draft.open_slots(new.name, new.n)
            details = control.limit_details(known, new)
            draft.note(actor, control.LIMIT_CHANGED, new.name, note, details)
            return new

        return self._decide("limit", work)

    def change_rate(
        self, name: str, terms: RateTerms | None, *, actor: str, note: str
    ) -> RateRow | None:
        def work(draft: Draft) -> RateRow | None:
            known = draft.find(RATES, name)
            if known is None:
                return None
            new = control.changed_rate(known, terms, actor, draft.now)
            _put_rate(draft, known, new)
            details = control.rate_details(known, new)
            draft.note(actor, control.RATE_CHANGED, name, note, details)
            return new

        return self._decide("rate", work)

    def limits(self) -> list[LimitRow]:
        return self._rows(LIMITS)

    def rates(self) -> list[RateRow]:
        return self._rows(RATES)

    def buckets(self, name: str | None = None) -> list[BucketRow]:
        return [bucket for bucket in self._rows(BUCKETS) if name in (None, bucket.name)]

    # Pauses, weights and stops ---------------------------------------------------

    def pause(
        self, kind: str, name: str, *, until: Instant | None, actor: str, note: str
    ) -> PauseRow | None:
        def work(draft: Draft) -> PauseRow | None:
            return put_pause(draft, PauseRow(kind, name, until, actor, note or None, draft.now))

        return self._decide("pause", work)

    def resume(self, kind: str, name: str, *, actor: str, note: str) -> PauseRow | None:
        def work(draft: Draft) -> PauseRow | None:
            before = _find_pause(draft, kind, name)
            if before is not None:
                draft.put(PAUSES, before._replace(until_at=draft.now))
                details = control.pause_details(draft.now, before)
                draft.note(actor, control.RESUMED, f"{kind}/{name}", note, details)
                draft.let_in()
            return before

        return self._decide("resume", work)

    def pauses(self, *, over: bool = False) -> list[PauseRow]:
        now = self.clock.now()
        return [row for row in self._rows(PAUSES) if over or not control.is_over(row, now)]

    def weigh(self, tenant: str, weight: int | None, *, actor: str, note: str) -> int | None:
        def work(draft: Draft) -> int | None:
            known = draft.find(WEIGHTS, tenant)
            before = None if known is None else int(known.weight)
            if weight is None:
                draft.drop(WEIGHTS, tenant)
            else:
                draft.put(WEIGHTS, WeightRow(tenant, weight, actor, draft.now))
            details = control.weight_details(weight, before)
            draft.note(actor, control.WEIGHED, tenant, note, details)
            return before

        return self._decide("weigh", work)

    def weights(self) -> list[WeightRow]:
        return self._rows(WEIGHTS)

    def stop_accepting(self, stop: StopRow) -> StopRow | None:
        def work(draft: Draft) -> StopRow | None:
            before: StopRow | None = draft.find(STOPS, stop.flow, stop.tenant)
            draft.put(STOPS, stop)
            details = control.stop_details(stop, before)
            subject = control.stop_subject(stop.flow, stop.tenant)
            draft.note(stop.actor, control.STOPPED, subject, stop.note, details)
            return before

        return self._decide("stop", work)

    def accept(self, flow: str, tenant: str, *, actor: str, note: str) -> StopRow | None:
        def work(draft: Draft) -> StopRow | None:
            before: StopRow | None = draft.find(STOPS, flow, tenant)
            if before is not None:
                draft.drop(STOPS, flow, tenant)
                details = control.stop_details(None, before)
                subject = control.stop_subject(flow, tenant)
                draft.note(actor, control.ACCEPTED, subject, note, details)
            return before

        return self._decide("stop", work)

    def stops(self) -> list[StopRow]:
        return self._rows(STOPS)

    # Schedules -------------------------------------------------------------------

    def keep_schedules(self, rows: Sequence[ScheduleRow]) -> None:
        def work(draft: Draft) -> None:
            for row in rows:
                stored: ScheduleRow | None = draft.find(SCHEDULES, row.name)
                draft.put(SCHEDULES, row if stored is None else _kept(row, stored))

        self._decide("schedules", work)

    def schedules(self) -> list[ScheduleRow]:
        return self._rows(SCHEDULES)

    def due_schedules(
        self, by: Instant, limit: int, *, after: tuple[Instant, str] = (-1, "")
    ) -> list[ScheduleRow]:
        running = [row for row in self.schedules() if row.paused_at is None and row.next_at <= by]
        dated = sorted(running, key=lambda row: (row.next_at, row.name))
        return [row for row in dated if (row.next_at, row.name) > after][:limit]

    def pause_schedule(self, name: str, *, actor: str, note: str) -> bool:
        def work(draft: Draft) -> bool:
            row: ScheduleRow | None = draft.find(SCHEDULES, name)
            if row is None or row.paused_at is not None:
                return False
            paused = row._replace(paused_at=draft.now, paused_by=actor, pause_note=note)
            _put_schedule(draft, paused, SCHEDULE_PAUSED, actor, note)
            return True

        return self._decide("schedule-pause", work)

    def resume_schedule(self, name: str, *, next_at: Instant, actor: str, note: str) -> bool:
        def work(draft: Draft) -> bool:
            row: ScheduleRow | None = draft.find(SCHEDULES, name)
            if row is None or row.paused_at is None:
                return False
            resumed = row._replace(next_at=next_at, paused_at=None, paused_by=None, pause_note=None)
            _put_schedule(draft, resumed, SCHEDULE_RESUMED, actor, note)
            return True

        return self._decide("schedule-pause", work)

    # Credentials -----------------------------------------------------------------

    def add_credential(self, row: CredentialRow, *, act: str, actor: str, note: str) -> bool:
        def work(draft: Draft) -> bool:
            if draft.find(CREDENTIALS, row.kind, row.id) is not None:
                return False
            draft.put(CREDENTIALS, row)
            details = credential_details(row, None)
            draft.note(actor, act, credential_subject(row), note, details)
            return True

        return self._decide("credential", work)

    def change_credential(self, row: CredentialRow, *, act: str, actor: str, note: str) -> bool:
        def work(draft: Draft) -> bool:
            stored: CredentialRow | None = draft.find(CREDENTIALS, row.kind, row.id)
            new = changed_credential(row, stored)
            if new is None:
                return False
            draft.put(CREDENTIALS, new)
            details = credential_details(new, stored)
            draft.note(actor, act, credential_subject(row), note, details)
            return True

        return self._decide("credential", work)

    def note_use(self, kind: str, id: str, at: Instant) -> None:
        def work(draft: Draft) -> None:
            row: CredentialRow | None = draft.find(CREDENTIALS, kind, id)
            if row is not None and (row.used_at is None or row.used_at < at):
                draft.put(CREDENTIALS, row._replace(used_at=at))

        self._decide("credential", work)

    def note_refusal(self, kind: str, id: str, *, act: str, actor: str, note: str) -> None:
        subject = make_subject(kind, id)
        self._decide("credential", lambda draft: draft.note(actor, act, subject, note, "{}"))

    def credentials(self, kind: str) -> list[CredentialRow]:
        return [row for row in self._rows(CREDENTIALS) if row.kind == kind]

    def forget_credentials(self, kind: str, *, before: Instant) -> int:
        def work(draft: Draft) -> int:
            over = [
                row
                for row in draft.find_all(CREDENTIALS)
                if row.kind == kind and row.expires_at is not None and row.expires_at < before
            ]
            for row in over:
                draft.drop(CREDENTIALS, row.kind, row.id)
            return len(over)

        return self._decide("credential", work)


def put_pause(draft: Draft, pause: PauseRow) -> PauseRow | None:
    """Write a pause and its line of audit; return the one that it replaces, if that is not over."""
    before = _find_pause(draft, pause.kind, pause.name)
    draft.put(PAUSES, pause)
    details = control.pause_details(pause.until_at, before)
    subject = f"{pause.kind}/{pause.name}"
    draft.note(pause.actor, control.PAUSED, subject, pause.note, details)
    return before


def _find_pause(draft: Draft, kind: str, name: str) -> PauseRow | None:
    pause: PauseRow | None = draft.find(PAUSES, kind, name)
    return None if pause is None or control.is_over(pause, draft.now) else pause


def _put_limit(draft: Draft, limit: LimitRow) -> None:
    draft.put(LIMITS, limit)
    draft.open_all(limit)


def _put_rate(draft: Draft, before: RateRow | None, rate: RateRow) -> None:
    draft.put(RATES, rate)
    if before is None or control.terms_of(before) == control.terms_of(rate):
        return
    for bucket in draft.find_all(BUCKETS):
        if control.stage_of(bucket.name) == rate.name:
            draft.put_bucket(control.rescaled(bucket, before, rate, draft.now))


def _kept(row: ScheduleRow, stored: ScheduleRow) -> ScheduleRow:
    is_same_rule = (row.rule, row.zone) == (stored.rule, stored.zone)
    return row._replace(
        next_at=stored.next_at if is_same_rule else row.next_at,
        paused_at=stored.paused_at, paused_by=stored.paused_by, pause_note=stored.pause_note,
    )  # fmt: skip


def _put_schedule(draft: Draft, row: ScheduleRow, act: str, actor: str, note: str) -> None:
    draft.put(SCHEDULES, row)
    draft.note(actor, act, schedule_subject(row.name), note, schedule_details(row.next_at))
