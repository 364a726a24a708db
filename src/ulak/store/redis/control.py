"""Flow control, schedules and credentials: decided here, by what all stores share, and written if
nobody came between."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Final, NamedTuple, TypeVar

from ulak.clock import Instant
from ulak.core.admission import StopRow
from ulak.core.job import OF_STATE, OF_UNDO
from ulak.core.lifecycle import BUSY, READY, UNDOING
from ulak.core.policy import LimitTerms, RateTerms
from ulak.errors import Contended
from ulak.store import flow_control as control
from ulak.store.credentials import (
    changed_credential,
    credential_details,
    credential_subject,
    make_subject,
)
from ulak.store.protocol import (
    NO_RATES,
    AuditRow,
    BucketRow,
    CredentialRow,
    LimitRow,
    PauseRow,
    RateRow,
    ScheduleRow,
    SlotRow,
    TickRow,
    WeightRow,
)
from ulak.store.protocol.control import (
    SCHEDULE_PAUSED,
    SCHEDULE_RESUMED,
    schedule_details,
    schedule_subject,
)
from ulak.store.redis.base import MOST_READ, MOST_TRIES, RedisBase
from ulak.store.redis.values import NUL, job_id, pack, raw, read_map, unpack

R = TypeVar("R")
T = TypeVar("T")

LIMITS: Final = "ulak:limits"
RATES: Final = "ulak:rates"
BUCKETS: Final = "ulak:buckets"
PAUSES: Final = "ulak:pauses"
WEIGHTS: Final = "ulak:weights"
STOPS: Final = "ulak:stops"
SCHEDULES: Final = "ulak:schedules"
CREDENTIALS: Final = "ulak:credentials"


class Draft:
    """What one act writes: rows that it has read stay as they were until then, or nothing is."""

    def __init__(self, store: RedisBase, now: Instant) -> None:
        self._store = store
        self.now = now
        self._checks: dict[tuple[str, str], bytes | None] = {}
        self._writes: list[tuple[str, str, object]] = []
        self._acts: list[tuple[object, ...]] = []

    def find(self, key: str, field: str) -> list[Any] | None:
        """Read a row, which must not change until this is written."""
        found: bytes | None = self._store.do("HGET", key, field)
        self._checks[key, field] = found
        return None if found is None else unpack(found)

    def find_all(self, key: str) -> dict[str, list[Any]]:
        """Read every row of a table; new ones may come."""
        found = read_map(self._store.do("HGETALL", key))
        self._checks |= {(key, name): row for name, row in found.items()}
        return {name: unpack(row) for name, row in found.items()}

    def watch(self, key: str, field: str) -> None:
        """Have a field of a hash stay as it is until this is written."""
        self._checks[key, field] = self._store.do("HGET", key, field)

    def put(self, key: str, field: str, row: Sequence[object] | None) -> None:
        """Write a row, None to remove it."""
        self._checks.setdefault((key, field), None)
        self._writes.append((key, field, None if row is None else raw(pack(row))))

    def act(self, verb: str, *args: object) -> None:
        """Do something else with it, by its name in `control.lua`."""
        self._acts.append((verb, *args))

    def note(self, actor: str, act: str, subject: str, note: str | None, details: str) -> None:
        self.act("note", actor, act, subject, note or None, details)

    def write(self, kind: str) -> bool:
        """Write it; False when somebody came between."""
        checks = [
            (*at, None if value is None else raw(value)) for at, value in self._checks.items()
        ]
        return bool(self._store.call("swap", checks, self._writes, self._acts, kind=kind))


class Adoption(NamedTuple):
    """The jobs that a limit of a busy state takes over, as `control.lua` wants it."""

    name: str
    terms: LimitTerms

    def write(self) -> dict[str, object]:
        flow, source = control.parts_of_limit(self.name)
        busy = self.terms.busy
        marks = {
            f"{source}/{READY}": self.terms.mark,
            f"{busy}/{BUSY}": OF_STATE,
            f"{busy}/{UNDOING}": OF_UNDO,
        }
        return {
            "name": self.name, "flow": flow, "source": source, "busy": busy, "marks": marks,
            "keyed": self.terms.keyed,
        }  # fmt: skip


class RedisControl(RedisBase):
    """What operators set."""

    def _decide(self, kind: str, work: Callable[[Draft], T]) -> T:
        """Do what `work` decides, from what it reads, at one moment."""
        for _ in range(MOST_TRIES):
            draft = Draft(self, self._read_time())
            answer = work(draft)
            if draft.write(kind):
                return answer
        raise Contended(f"{self._server.address}: others change the same; try again")

    def _read_time(self) -> Instant:
        return self.clock.now()

    def _rows(self, key: str) -> dict[str, list[Any]]:
        rows = sorted(read_map(self.do("HGETALL", key)).items())
        return {name: unpack(row) for name, row in rows}

    def declare(
        self, limits: Mapping[str, LimitTerms], rates: Mapping[str, RateTerms] = NO_RATES
    ) -> None:
        def work(draft: Draft) -> None:
            known = draft.find_all(LIMITS) if limits else {}
            for name, terms in limits.items():
                row = None if name not in known else _limit(name, known[name])
                declared = control.declared_limit(row, name, terms, draft.now)
                self._put_limit(draft, declared)
            for name, terms_of_rate in rates.items():
                found = draft.find(RATES, name)
                stored = None if found is None else _rate(name, found)
                new = control.declared_rate(stored, name, terms_of_rate, draft.now)
                self._put_rate(draft, stored, new)

        self._decide("declare", work)
        for name, terms in sorted(limits.items()):
            if terms.busy is not None:
                self.call("adopt", Adoption(name, terms).write(), kind="declare")

    @staticmethod
    def _put_limit(draft: Draft, limit: LimitRow) -> None:
        draft.put(LIMITS, limit.name, _facts(limit))
        draft.act("open_all", limit.name, bool(limit.keyed))

    def change_limit(
        self, name: str, n: int | None, *, actor: str, note: str, key: str | None = None
    ) -> LimitRow | None:
        def work(draft: Draft) -> LimitRow | None:
            rows = draft.find_all(LIMITS)
            if name not in rows:
                return None
            known = _limit(name, rows[name])
            if key is not None and not known.keyed:
                return None
            if key is None:
                new = control.changed_limit(known, n, actor, draft.now)
                self._put_limit(draft, new)
            else:
                new = control.limit_of_key(known, key, n, actor, draft.now)
                if new.name in rows:
                    known = _limit(new.name, rows[new.name])
                draft.put(LIMITS, new.name, None if n is None else _facts(new))
                draft.act("open_slots", new.name, new.n)
            details = control.limit_details(known, new)
            draft.note(actor, control.LIMIT_CHANGED, new.name, note, details)
            return new

        return self._decide("limit", work)

    def change_rate(
        self, name: str, terms: RateTerms | None, *, actor: str, note: str
    ) -> RateRow | None:
        def work(draft: Draft) -> RateRow | None:
            found = draft.find(RATES, name)
            if found is None:
                return None
            known = _rate(name, found)
            new = control.changed_rate(known, terms, actor, draft.now)
            self._put_rate(draft, known, new)
            details = control.rate_details(known, new)
            draft.note(actor, control.RATE_CHANGED, name, note, details)
            return new

        return self._decide("rate", work)

    def _put_rate(self, draft: Draft, before: RateRow | None, rate: RateRow) -> None:
        draft.put(RATES, rate.name, _facts(rate))
        if before is None or control.terms_of(before) == control.terms_of(rate):
            return
        for name, row in draft.find_all(BUCKETS).items():
            if control.stage_of(name) == rate.name:
                moved = control.rescaled(BucketRow(name, *row), before, rate, draft.now)
                draft.act("put_bucket", *moved)
                draft.act("ring")

    def pause(
        self, kind: str, name: str, *, until: Instant | None, actor: str, note: str
    ) -> PauseRow | None:
        def work(draft: Draft) -> PauseRow | None:
            field = NUL.join((kind, name))
            before = _find_pause(draft, field)
            if before is not None and control.is_over(before, draft.now):
                before = None
            draft.put(PAUSES, field, (until, actor, note or None, draft.now))
            details = control.pause_details(until, before)
            draft.note(actor, control.PAUSED, f"{kind}/{name}", note, details)
            return before

        return self._decide("pause", work)

    def resume(self, kind: str, name: str, *, actor: str, note: str) -> PauseRow | None:
        def work(draft: Draft) -> PauseRow | None:
            field = NUL.join((kind, name))
            before = _find_pause(draft, field)
            if before is None or control.is_over(before, draft.now):
                return None
            draft.put(PAUSES, field, (draft.now, *before[3:]))
            details = control.pause_details(draft.now, before)
            draft.note(actor, control.RESUMED, f"{kind}/{name}", note, details)
            draft.act("end_pauses")
            draft.act("ring")
            return before

        return self._decide("resume", work)

    def weigh(self, tenant: str, weight: int | None, *, actor: str, note: str) -> int | None:
        def work(draft: Draft) -> int | None:
            known = draft.find(WEIGHTS, tenant)
            before = None if known is None else int(known[0])
            new = None if weight is None else (weight, actor, draft.now)
            draft.put(WEIGHTS, tenant, new)
            details = control.weight_details(weight, before)
            draft.note(actor, control.WEIGHED, tenant, note, details)
            return before

        return self._decide("weigh", work)

    def stop_accepting(self, stop: StopRow) -> StopRow | None:
        def work(draft: Draft) -> StopRow | None:
            before = _find_stop(draft, field := NUL.join(stop[:2]))
            draft.put(STOPS, field, stop[2:])
            details = control.stop_details(stop, before)
            subject = control.stop_subject(stop.flow, stop.tenant)
            draft.note(stop.actor, control.STOPPED, subject, stop.note, details)
            return before

        return self._decide("stop", work)

    def accept(self, flow: str, tenant: str, *, actor: str, note: str) -> StopRow | None:
        def work(draft: Draft) -> StopRow | None:
            before = _find_stop(draft, field := NUL.join((flow, tenant)))
            if before is not None:
                draft.put(STOPS, field, None)
                details = control.stop_details(None, before)
                subject = control.stop_subject(flow, tenant)
                draft.note(actor, control.ACCEPTED, subject, note, details)
            return before

        return self._decide("stop", work)

    def stops(self) -> list[StopRow]:
        return sorted(_stop(name, row) for name, row in self._rows(STOPS).items())

    def limits(self) -> list[LimitRow]:
        return [_limit(name, row) for name, row in self._rows(LIMITS).items()]

    def rates(self) -> list[RateRow]:
        return [_rate(name, row) for name, row in self._rows(RATES).items()]

    def buckets(self, name: str | None = None) -> list[BucketRow]:
        rows = self._rows(BUCKETS).items()
        return [BucketRow(each, *row) for each, row in rows if name in (None, each)]

    def pauses(self, *, over: bool = False) -> list[PauseRow]:
        now = self._read_time()
        found = [_pause(name, row) for name, row in self._rows(PAUSES).items()]
        return sorted(
            (pause for pause in found if over or not control.is_over(pause, now)),
            key=lambda pause: pause[:2],
        )

    def weights(self) -> list[WeightRow]:
        return [WeightRow(tenant, *row) for tenant, row in self._rows(WEIGHTS).items()]

    def slots(self, limit: str | None = None) -> list[SlotRow]:
        rows = []
        for name, flat in self.call("slots", limit):
            found = {int(n): row.decode().split("|", 2) for n, row in read_map(flat).items()}
            for n, (closed, of_state, held_by) in sorted(found.items()):
                holder = job_id(held_by[:36]) if held_by else None
                rows.append(SlotRow(name.decode(), n, holder, int(closed), int(of_state)))
        return rows

    def audit_trail(
        self, *, subject: str | None = None, before: int | None = None, limit: int = 100
    ) -> list[AuditRow]:
        found: list[AuditRow] = []
        last: int = self.do("LLEN", "ulak:audit")
        end = last if before is None else min(last, before - 1)
        while end > 0 and len(found) < limit:
            start = max(0, end - MOST_READ)
            page = self.do("LRANGE", "ulak:audit", start, end - 1)
            lines = [AuditRow(start + n, *unpack(row)) for n, row in enumerate(page, 1)]
            found += [line for line in reversed(lines) if subject in (None, line.subject)]
            end = start
        return found[:limit]

    # Schedules -------------------------------------------------------------------

    def keep_schedules(self, rows: Sequence[ScheduleRow]) -> None:
        def work(draft: Draft) -> None:
            for row in rows:
                found = draft.find(SCHEDULES, row.name)
                new = row
                if found is not None:
                    stored = read_schedule(found)
                    is_same_rule = (row.rule, row.zone) == (stored.rule, stored.zone)
                    new = row._replace(
                        next_at=stored.next_at if is_same_rule else row.next_at,
                        paused_at=stored.paused_at, paused_by=stored.paused_by,
                        pause_note=stored.pause_note,
                    )  # fmt: skip
                draft.put(SCHEDULES, row.name, new)

        self._decide("schedules", work)

    def schedules(self) -> list[ScheduleRow]:
        return [read_schedule(row) for row in self._rows(SCHEDULES).values()]

    def due_schedules(
        self, by: Instant, limit: int, *, after: tuple[Instant, str] = (-1, "")
    ) -> list[ScheduleRow]:
        running = [row for row in self.schedules() if row.paused_at is None and row.next_at <= by]
        dated = sorted(running, key=lambda row: (row.next_at, row.name))
        return [row for row in dated if (row.next_at, row.name) > after][:limit]

    def pause_schedule(self, name: str, *, actor: str, note: str) -> bool:
        def change(row: ScheduleRow, now: Instant) -> ScheduleRow | None:
            is_paused = row.paused_at is not None
            return None if is_paused else row._replace(
                paused_at=now, paused_by=actor, pause_note=note
            )  # fmt: skip

        return self._change_schedule(name, change, SCHEDULE_PAUSED, actor, note)

    def resume_schedule(self, name: str, *, next_at: Instant, actor: str, note: str) -> bool:
        def change(row: ScheduleRow, now: Instant) -> ScheduleRow | None:
            is_paused = row.paused_at is not None
            return None if not is_paused else row._replace(
                next_at=next_at, paused_at=None, paused_by=None, pause_note=None
            )  # fmt: skip

        return self._change_schedule(name, change, SCHEDULE_RESUMED, actor, note)

    def _change_schedule(
        self,
        name: str,
        change: Callable[[ScheduleRow, Instant], ScheduleRow | None],
        act: str,
        actor: str,
        note: str,
    ) -> bool:
        def work(draft: Draft) -> bool:
            found = draft.find(SCHEDULES, name)
            new = None if found is None else change(read_schedule(found), draft.now)
            if new is None:
                return False
            draft.put(SCHEDULES, name, new)
            draft.note(actor, act, schedule_subject(name), note, schedule_details(new.next_at))
            return True

        return self._decide("schedule-pause", work)

    def ticks(
        self, schedule: str, *, before: Instant | None = None, limit: int = 100
    ) -> list[TickRow]:
        upto = "+inf" if before is None else f"({before}"
        key, most = f"ulak:ticks:{schedule}", ("LIMIT", 0, limit)
        found = self.do("ZREVRANGEBYSCORE", key, upto, "-inf", *most)
        parts = (each.decode().split(":", 1) for each in found)
        return [TickRow(schedule, int(at), job_id(owner)) for at, owner in parts]

    # Credentials -----------------------------------------------------------------

    def add_credential(self, row: CredentialRow, *, act: str, actor: str, note: str) -> bool:
        def work(draft: Draft) -> bool:
            key = f"{CREDENTIALS}:{row.kind}"
            if draft.find(key, row.id) is not None:
                return False
            draft.put(key, row.id, row)
            details = credential_details(row, None)
            draft.note(actor, act, credential_subject(row), note, details)
            return True

        return self._decide("credential", work)

    def change_credential(self, row: CredentialRow, *, act: str, actor: str, note: str) -> bool:
        def work(draft: Draft) -> bool:
            key = f"{CREDENTIALS}:{row.kind}"
            found = draft.find(key, row.id)
            stored = None if found is None else CredentialRow(*found)
            new = changed_credential(row, stored)
            if new is None:
                return False
            draft.put(key, row.id, new)
            details = credential_details(new, stored)
            draft.note(actor, act, credential_subject(row), note, details)
            return True

        return self._decide("credential", work)

    def note_use(self, kind: str, id: str, at: Instant) -> None:
        def work(draft: Draft) -> None:
            key = f"{CREDENTIALS}:{kind}"
            found = draft.find(key, id)
            row = None if found is None else CredentialRow(*found)
            if row is not None and (row.used_at is None or row.used_at < at):
                draft.put(key, id, row._replace(used_at=at))

        self._decide("credential", work)

    def note_refusal(self, kind: str, id: str, *, act: str, actor: str, note: str) -> None:
        subject = make_subject(kind, id)
        self._decide("credential", lambda draft: draft.note(actor, act, subject, note, "{}"))

    def find_credential(self, kind: str, id: str) -> CredentialRow | None:
        key = f"{CREDENTIALS}:{kind}"
        found = self.do("HGET", key, id)
        return None if found is None else CredentialRow(*unpack(found))

    def credentials(self, kind: str) -> list[CredentialRow]:
        return [CredentialRow(*row) for row in self._rows(f"{CREDENTIALS}:{kind}").values()]

    def forget_credentials(self, kind: str, *, before: Instant) -> int:
        def work(draft: Draft) -> int:
            key = f"{CREDENTIALS}:{kind}"
            rows = [CredentialRow(*row) for row in draft.find_all(key).values()]
            over = [r for r in rows if r.expires_at is not None and r.expires_at < before]
            for row in over:
                draft.put(key, row.id, None)
            return len(over)

        return self._decide("credential", work)


def _facts(row: LimitRow | RateRow) -> tuple[object, ...]:
    """Return a row without its name, by which it is found."""
    return row[1:]


def _limit(name: str, row: Iterable[Any]) -> LimitRow:
    return LimitRow(name, *row)


def _rate(name: str, row: Iterable[Any]) -> RateRow:
    return RateRow(name, *row)


def _pause(field: str, row: Iterable[Any]) -> PauseRow:
    kind, name = field.split(NUL)
    return PauseRow(kind, name, *row)


def _stop(field: str, row: Iterable[Any]) -> StopRow:
    flow, tenant = field.split(NUL)
    return StopRow(flow, tenant, *row)


def _find_pause(draft: Draft, field: str) -> PauseRow | None:
    row = draft.find(PAUSES, field)
    return None if row is None else _pause(field, row)


def _find_stop(draft: Draft, field: str) -> StopRow | None:
    row = draft.find(STOPS, field)
    return None if row is None else _stop(field, row)


def read_schedule(row: Sequence[Any]) -> ScheduleRow:
    """Read a schedule; its payload is bytes."""
    return ScheduleRow(*row)
