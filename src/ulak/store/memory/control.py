"""Flow control of the store in memory: limits, rates, pauses, weights, and the lines of audit."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

from ulak.clock import Instant
from ulak.core.admission import EVERY_TENANT, StopRow, Waiting
from ulak.core.job import JobRow, NewJob, held_slot
from ulak.core.policy import LimitTerms
from ulak.store import flow_control as control
from ulak.store.flow_control import KEY, ON_KEY, ON_RATE, Bucket, ParkedJob
from ulak.store.memory.reads import MemoryReads
from ulak.store.memory.tables import urgency
from ulak.store.operators import BUCKETS, Draft, OperatorVerbs, Table, put_pause
from ulak.store.protocol import AuditRow, BucketRow, LimitRow, PauseRow, SlotRow

T = TypeVar("T")


class MemoryControl(MemoryReads, OperatorVerbs):
    """What operators set, and what a claim asks about it."""

    def _decide(self, kind: str, work: Callable[[Draft], T]) -> T:
        with self._transaction() as now:
            return work(MemoryDraft(self, now))

    def _rows(self, table: Table) -> list[Any]:
        with self._lock:
            return [row for _, row in sorted(self._table(table).items())]

    def _table(self, table: Table) -> dict[Any, Any]:
        rows: dict[Any, Any] = getattr(self, f"_{table.name}")
        return rows

    def _adopt(self, name: str, terms: LimitTerms) -> None:
        with self._transaction():
            for row in sorted(self._jobs.values()):
                slot = control.slot_in(name, terms, row)
                if slot is None or slot == row.slot:
                    continue
                limit = held_slot(slot, leased=False)
                if limit is not None:
                    self._occupy(limit, row.id)
                    row = row._replace(parked_on=None if row.parked_on == limit else row.parked_on)
                self._put(row._replace(slot=slot))

    def _open_all(self, limit: LimitRow) -> None:
        opened = [name for name in self._slots if control.stage_of(name) == limit.name]
        if not limit.keyed and limit.name not in opened:
            opened.append(limit.name)
        for name in opened:
            self._open_slots(name, self._limits.get(name, limit).n)

    def _open_slots(self, name: str, places: int) -> None:
        slots = self._slots[name]
        for n in range(1, max(places, len(slots)) + 1):
            slot = slots.get(n, SlotRow(name, n, None, 0))
            slots[n] = slot._replace(closed=int(n > places))

    def _open_bucket(self, name: str, now: Instant) -> Bucket | None:
        """Return a bucket as it is now, or None when there is no such rate."""
        rate = self._rates.get(control.stage_of(name))
        if rate is None:
            return None
        stored = self._buckets.get(name)
        first = min(self._on_shelf("parked", ON_RATE + name), key=urgency, default=None)
        head = None if first is None else (*urgency(first), first.cost)
        return control.open_bucket(control.terms_of(rate), stored and stored[1:], head, now)

    def _find_parked(self, name: str) -> list[ParkedJob]:
        return sorted((*urgency(r), r.cost) for r in self._on_shelf("parked", ON_RATE + name))

    def _put_bucket(self, name: str, bucket: Bucket) -> None:
        self._buckets[name] = BucketRow(name, *bucket.level, bucket.ready_at)

    def _can_pay(self, rate: str, row: JobRow, now: Instant) -> bool:
        bucket = self._open_bucket(rate, now)
        return bucket is not None and bucket.can_pay(row.cost, urgency(row))

    def _pay(self, row: JobRow, now: Instant) -> None:
        if row.rate is not None and (bucket := self._open_bucket(row.rate, now)) is not None:
            bucket.pay(row.cost)
            self._put_bucket(row.rate, bucket)

    def _await_payment(self, name: str, now: Instant) -> None:
        if (bucket := self._open_bucket(name, now)) is not None:
            bucket.look_after()
            self._put_bucket(name, bucket)

    def _unpark_paid(self, now: Instant) -> int:
        """Unpark, from every bucket that has filled, as many as it pays for."""
        ready = [b for b in self._buckets.values() if b.ready_at is not None and b.ready_at <= now]
        unparked = 0
        for name, *_ in ready:
            if (bucket := self._open_bucket(name, now)) is not None:
                jobs = bucket.let_go(self._find_parked(name))
                self._put_bucket(name, bucket)
                unparked += self._pass_on(ON_RATE + name, jobs)
        return unparked

    def _pause_keys(self, now: Instant) -> None:
        asked, self._asked_pauses = sorted(self._asked_pauses), []
        for key, until, actor in asked:
            before = self._pauses.get((KEY, key))
            if before is not None and control.is_over(before, now):
                before = None
            if until <= now or control.outlasts(before, until):
                continue
            if before is None:
                put_pause(MemoryDraft(self, now), PauseRow(KEY, key, until, actor, None, now))
            else:
                self._pauses[KEY, key] = before._replace(until_at=until)

    def _end_pauses(self, now: Instant) -> int:
        unparked = 0
        for pause in [p for p in self._pauses.values() if control.is_over(p, now)]:
            crowd = self._on_shelf("parked", ON_KEY + pause.name) if pause.kind == KEY else []
            for row in sorted(crowd, key=urgency)[: control.MOST_UNPARKED]:
                self._put(row._replace(parked_on=None))
                unparked += 1
            if len(crowd) <= control.MOST_UNPARKED:
                del self._pauses[pause.kind, pause.name]
        return unparked

    def _paused_key(self, row: JobRow, now: Instant) -> str | None:
        for key in control.keys_in(row.slot, row.rate):
            pause = self._pauses.get((KEY, key))
            if pause is not None and not control.is_over(pause, now):
                return key
        return None

    def _stop_for(self, job: NewJob) -> StopRow | None:
        if job.is_admitted:
            return None
        row = job.row
        every = self._stops.get((row.flow, EVERY_TENANT))
        return self._stops.get((row.flow, row.tenant), every)

    def count_waiting(self, waiting: Waiting) -> int:
        with self._lock:
            names = [
                (kind, name)
                for kind, name in self._shelves
                if (kind == "lane" and name in waiting.lanes)
                or (kind == "parked" and any(p <= name < p + "0" for p in waiting.parked_on))
            ]
            rows = [row for kind, name in names for row in self._on_shelf(kind, name)]
            mine = [r for r in rows if r.lane in waiting.lanes and r.tenant == waiting.tenant]
            return min(len(mine), waiting.limit)

    def _had(self, family: str, tenant: str) -> int:
        turns = self._turns[family]
        begins = max((began for _, began in turns.values()), default=0)
        return max(begins, turns.get(tenant, (0, 0))[0])

    def _take_turn(self, family: str, tenant: str) -> None:
        had = self._had(family, tenant)
        known = self._weights.get(tenant)
        weight = 1 if known is None else known.weight
        self._turns[family][tenant] = (had + control.price_of_turn(weight), had)

    def sweep(self, limit: int) -> int:
        with self._transaction() as now:
            idle = [
                name
                for name, slots in sorted(self._slots.items())
                if control.is_keyed(name)
                and all(slot.job_id is None for slot in slots.values())
                and not self._on_shelf("parked", name)
            ][:limit]
            for name in idle:
                del self._slots[name]
            left = [
                slot
                for slots in self._slots.values()
                for slot in slots.values()
                if slot.of_state and slot.job_id is not None and not self._keeps_slot(slot)
            ][:limit]
            for slot in left:
                self._slots[slot.limit][slot.n] = slot._replace(job_id=None, of_state=0)
            filled = [b.name for b in sorted(self._buckets.values()) if self._is_full(b, now)][
                :limit
            ]
            for name in filled:
                del self._buckets[name]
            over = sum(control.is_over(p, now) for p in self._pauses.values())
            self._end_pauses(now)
            over -= sum(control.is_over(p, now) for p in self._pauses.values())
            worthless = [
                (family, tenant)
                for family, turns in sorted(self._turns.items())
                for tenant, (passed, _) in sorted(turns.items())
                if passed <= max(began for _, began in turns.values())
            ][:limit]
            for family, tenant in worthless:
                del self._turns[family][tenant]
            return len(idle) + len(left) + len(filled) + over + len(worthless)

    def _keeps_slot(self, slot: SlotRow) -> bool:
        row = self._jobs.get(slot.job_id or b"")
        return row is not None and held_slot(row.slot, leased=False) == slot.limit

    def _is_full(self, row: BucketRow, now: Instant) -> bool:
        bucket = self._open_bucket(row.name, now)
        if bucket is None or bucket.first is not None:
            return False
        return bucket.level.parts >= control.full(bucket.terms, now).parts

    def audit_trail(
        self, *, subject: str | None = None, before: int | None = None, limit: int = 100
    ) -> list[AuditRow]:
        with self._lock:
            return [
                line
                for line in reversed(self._audit)
                if subject in (None, line.subject) and (before is None or line.position < before)
            ][:limit]


class MemoryDraft:
    """What one act reads and writes, under the lock."""

    def __init__(self, store: MemoryControl, now: Instant) -> None:
        self._store = store
        self.now = now

    def find(self, table: Table, *name: str) -> Any:
        return self._store._table(table).get(_name(table, name))

    def find_all(self, table: Table) -> list[Any]:
        return list(self._store._table(table).values())

    def put(self, table: Table, row: Any) -> None:
        self._store._table(table)[_name(table, row[: table.names])] = row

    def drop(self, table: Table, *name: str) -> None:
        self._store._table(table).pop(_name(table, name), None)

    def note(self, actor: str, act: str, subject: str, note: str | None, details: str) -> None:
        self._store._note(self.now, actor, act, subject, note, details)

    def open_slots(self, limit: str, places: int) -> None:
        self._store._open_slots(limit, places)

    def open_all(self, limit: LimitRow) -> None:
        self._store._open_all(limit)

    def put_bucket(self, bucket: BucketRow) -> None:
        self.put(BUCKETS, bucket)
        self._store._made_due = self._store._made_due or bucket.ready_at is not None

    def let_in(self) -> None:
        self._store._end_pauses(self.now)
        self._store._made_due = True


def _name(table: Table, name: tuple[str, ...]) -> str | tuple[str, ...]:
    return name if table.names > 1 else name[0]
