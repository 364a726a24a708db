"""Flow control of the store in memory: limits, rates, pauses, weights, and the lines of audit."""

from __future__ import annotations

from collections.abc import Mapping

from ulak.clock import Instant
from ulak.core.admission import EVERY_TENANT, StopRow, Waiting
from ulak.core.job import JobRow, NewJob, held_slot
from ulak.core.policy import LimitTerms, RateTerms
from ulak.store import flow_control as control
from ulak.store.flow_control import KEY, ON_KEY, ON_RATE, Bucket, ParkedJob
from ulak.store.memory.reads import MemoryReads
from ulak.store.memory.tables import urgency
from ulak.store.protocol import (
    NO_RATES,
    AuditRow,
    BucketRow,
    LimitRow,
    PauseRow,
    RateRow,
    SlotRow,
    WeightRow,
)


class MemoryControl(MemoryReads):
    """What operators set, and what a claim asks about it."""

    def declare(
        self, limits: Mapping[str, LimitTerms], rates: Mapping[str, RateTerms] = NO_RATES
    ) -> None:
        with self._transaction() as now:
            for name, limit in limits.items():
                known = self._limits.get(name)
                self._put_limit(control.declared_limit(known, name, limit, now))
                if limit.busy is not None:
                    self._adopt(name, limit)
            for name, rate in rates.items():
                stored = self._rates.get(name)
                self._put_rate(stored, control.declared_rate(stored, name, rate, now), now)

    def _adopt(self, name: str, terms: LimitTerms) -> None:
        """Give slots to the jobs that stand in a busy state already."""
        for row in sorted(self._jobs.values()):
            slot = control.slot_in(name, terms, row)
            if slot is None or slot == row.slot:
                continue
            limit = held_slot(slot, leased=False)
            if limit is not None:
                self._occupy(limit, row.id)
                row = row._replace(parked_on=None if row.parked_on == limit else row.parked_on)
            self._put(row._replace(slot=slot))

    def change_limit(
        self, name: str, n: int | None, *, actor: str, note: str, key: str | None = None
    ) -> LimitRow | None:
        with self._transaction() as now:
            known = self._limits.get(name)
            if known is None or (key is not None and not known.keyed):
                return None
            if key is None:
                new = control.changed_limit(known, n, actor, now)
                self._put_limit(new)
            else:
                new = control.limit_of_key(known, key, n, actor, now)
                known = self._limits.pop(new.name, known)
                if n is not None:
                    self._limits[new.name] = new
                self._open_slots(new.name, new.n)
            details = control.limit_details(known, new)
            self._note(now, actor, control.LIMIT_CHANGED, new.name, note, details)
            return new

    def _put_limit(self, limit: LimitRow) -> None:
        self._limits[limit.name] = limit
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

    def change_rate(
        self, name: str, terms: RateTerms | None, *, actor: str, note: str
    ) -> RateRow | None:
        with self._transaction() as now:
            known = self._rates.get(name)
            if known is None:
                return None
            new = control.changed_rate(known, terms, actor, now)
            self._put_rate(known, new, now)
            details = control.rate_details(known, new)
            self._note(now, actor, control.RATE_CHANGED, name, note, details)
            return new

    def _put_rate(self, before: RateRow | None, rate: RateRow, now: Instant) -> None:
        self._rates[rate.name] = rate
        if before is None or control.terms_of(before) == control.terms_of(rate):
            return
        for name, bucket in self._buckets.items():
            if control.stage_of(name) == rate.name:
                moved = self._buckets[name] = control.rescaled(bucket, before, rate, now)
                self._made_due = self._made_due or moved.ready_at is not None

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

    def pause(
        self, kind: str, name: str, *, until: Instant | None, actor: str, note: str
    ) -> PauseRow | None:
        with self._transaction() as now:
            return self._pause(PauseRow(kind, name, until, actor, note or None, now))

    def _pause(self, pause: PauseRow) -> PauseRow | None:
        before = self._pauses.get((pause.kind, pause.name))
        if before is not None and control.is_over(before, pause.at):
            before = None
        self._pauses[pause.kind, pause.name] = pause
        subject = f"{pause.kind}/{pause.name}"
        details = control.pause_details(pause.until_at, before)
        self._note(pause.at, pause.actor, control.PAUSED, subject, pause.note, details)
        return before

    def _pause_keys(self, now: Instant) -> None:
        asked, self._asked_pauses = sorted(self._asked_pauses), []
        for key, until, actor in asked:
            before = self._pauses.get((KEY, key))
            if before is not None and control.is_over(before, now):
                before = None
            if until <= now or control.outlasts(before, until):
                continue
            if before is None:
                self._pause(PauseRow(KEY, key, until, actor, None, now))
            else:
                self._pauses[KEY, key] = before._replace(until_at=until)

    def resume(self, kind: str, name: str, *, actor: str, note: str) -> PauseRow | None:
        with self._transaction() as now:
            pause = self._pauses.get((kind, name))
            if pause is None or control.is_over(pause, now):
                return None
            self._pauses[kind, name] = pause._replace(until_at=now)
            details = control.pause_details(now, pause)
            self._note(now, actor, control.RESUMED, f"{kind}/{name}", note, details)
            self._end_pauses(now)
            self._made_due = True
            return pause

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

    def stop_accepting(self, stop: StopRow) -> StopRow | None:
        with self._transaction():
            before = self._stops.get(stop[:2])
            self._stops[stop[:2]] = stop
            details = control.stop_details(stop, before)
            subject = control.stop_subject(stop.flow, stop.tenant)
            self._note(stop.at, stop.actor, control.STOPPED, subject, stop.note, details)
            return before

    def accept(self, flow: str, tenant: str, *, actor: str, note: str) -> StopRow | None:
        with self._transaction() as now:
            before = self._stops.pop((flow, tenant), None)
            if before is not None:
                details = control.stop_details(None, before)
                subject = control.stop_subject(flow, tenant)
                self._note(now, actor, control.ACCEPTED, subject, note, details)
            return before

    def stops(self) -> list[StopRow]:
        with self._lock:
            return [self._stops[pair] for pair in sorted(self._stops)]

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

    def weigh(self, tenant: str, weight: int | None, *, actor: str, note: str) -> int | None:
        with self._transaction() as now:
            known = self._weights.pop(tenant, None)
            before = None if known is None else known.weight
            if weight is not None:
                self._weights[tenant] = WeightRow(tenant, weight, actor, now)
            details = control.weight_details(weight, before)
            self._note(now, actor, control.WEIGHED, tenant, note, details)
            return before

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

    def limits(self) -> list[LimitRow]:
        with self._lock:
            return sorted(self._limits.values())

    def rates(self) -> list[RateRow]:
        with self._lock:
            return sorted(self._rates.values())

    def buckets(self, name: str | None = None) -> list[BucketRow]:
        with self._lock:
            return sorted(b for b in self._buckets.values() if name in (None, b.name))

    def pauses(self, *, over: bool = False) -> list[PauseRow]:
        with self._transaction() as now:
            found = [p for p in self._pauses.values() if over or not control.is_over(p, now)]
            return sorted(found, key=lambda pause: pause[:2])

    def weights(self) -> list[WeightRow]:
        with self._lock:
            return sorted(self._weights.values())

    def audit_trail(
        self, *, subject: str | None = None, before: int | None = None, limit: int = 100
    ) -> list[AuditRow]:
        with self._lock:
            return [
                line
                for line in reversed(self._audit)
                if subject in (None, line.subject) and (before is None or line.position < before)
            ][:limit]
