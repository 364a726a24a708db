"""The store in memory: the reference, and the plainest statement of what a store does.

Every verb runs under one lock, so each is one transaction. Nothing survives the process.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from ulak.clock import Clock, Instant, SystemClock
from ulak.core import event as kinds
from ulak.core.change import COMMITTED, EVERY_STAGE, Change, Committed, KeyTaken, Receipt, SlotTaken
from ulak.core.delivery import NOBODY
from ulak.core.job import (
    EVERY_TENANT,
    FIRST_MUTABLE,
    OF_STATE,
    SIDE,
    JobRow,
    Message,
    Request,
    is_of_state,
    lane_before,
    wanted_slot,
)
from ulak.core.lifecycle import BUSY, FINAL, READY
from ulak.errors import WriteRefused
from ulak.ids import to_text
from ulak.store import flow_control as control
from ulak.store.batches import (
    SUSPECT_LAPSES,
    is_full,
    key_of,
    must_be_a_batch,
    own_event,
    refusal_of,
)
from ulak.store.flow_control import KEY, ON_KEY, ON_RATE, open_lanes
from ulak.store.memory.intake import MemoryIntake
from ulak.store.memory.tables import urgency
from ulak.store.protocol import (
    LARGEST_CLAIM_BYTES,
    Claim,
    Claimed,
    ClaimRequest,
    Features,
    Progress,
    Renewal,
    WorkerRow,
    jobs,
)

Paused = frozenset[tuple[str, str]]
Due = tuple[str, JobRow]
"""A job and what its lane or its family was without a stage: the stages share their turns."""


class MemoryStore(MemoryIntake):
    """A `Store` in the memory of this process."""

    features = Features(
        name="memory",
        durable=False,
        shared=False,
        flow_control=True,
        durability="everything is lost when the process ends",
    )

    def __init__(self, clock: Clock | None = None) -> None:
        super().__init__(SystemClock() if clock is None else clock)

    def open(self) -> None:
        """Nothing to do."""

    def close(self) -> None:
        """Nothing to do: what is stored lives as long as the object."""

    def migrate(self) -> tuple[int, int]:
        return (1, 1)

    def commit(self, changes: Sequence[Change]) -> list[Receipt]:
        with self._transaction() as now:
            self._must_be_writable(changes)
            # By id, as every store writes: what is answered does not depend on the caller's order.
            ordered = sorted(changes, key=lambda change: change.row.id)
            receipts = {change.row.id: self._commit(change, now) for change in ordered}
            self._pass_on_freed()
            self._pause_keys(now)
            return [receipts[change.row.id] for change in changes]

    def _must_be_writable(self, changes: Sequence[Change]) -> None:
        """Refuse the batch before its first write: what fails later would leave half of it."""
        must_be_a_batch(changes)
        for change in changes:
            name, row = to_text(change.row.id), self._jobs.get(change.row.id)
            if self._is_in_trail(change) or refusal_of(change, row) is not None:
                continue
            if change.messages and self._are_known(change.messages):
                raise WriteRefused(f"job {name}: two messages have one identity (job, seq, n)")
            stored = self._jobs[change.row.id].seq
            if [e.seq for e in change.events] != list(range(stored + 1, change.row.seq + 1)):
                raise WriteRefused(
                    f"job {name}: its events do not follow number {stored} of the trail"
                )

    def _are_known(self, messages: Sequence[Message]) -> bool:
        """Tell whether two of these messages have one identity, or one is stored already."""
        own, names = {m[:3] for m in messages}, (NOBODY, *self._handlers)
        is_stored = any((*m, name) in self._messages for m in own for name in names)
        return is_stored or len(own) < len(messages)

    def _commit(self, change: Change, now: Instant) -> Receipt:
        if not self._is_in_trail(change):
            refusal = refusal_of(change, self._jobs.get(change.row.id)) or self._lack(change, now)
            if refusal is not None:
                return refusal
            self._write_change(change, now)
        pending = self._asked_of(change.row.id)
        return Committed(tuple(pending)) if pending else COMMITTED

    def _lack(self, change: Change, now: Instant) -> Receipt | None:
        if change.takes_slot is not None and (
            self._free_places(change.takes_slot) <= 0
            or self._paused_key(change.row, now) is not None
        ):
            return SlotTaken(change.takes_slot)
        if change.takes_key:
            holder = self._holder(key_of(change.row), now)
            if holder not in (None, change.row.id):
                return KeyTaken(holder)
        return None

    def _write_change(self, change: Change, now: Instant) -> None:
        old = self._jobs[change.row.id]
        if change.token is None:
            old = old._replace(flow_version=change.row.flow_version, keys=change.row.keys)
        row = JobRow._make((*old[:FIRST_MUTABLE], *change.row[FIRST_MUTABLE:SIDE], *old[SIDE:]))
        self._put(self._settle(row, change.answers))
        self._append(row.tenant, change.events, change.proofs)
        results = self._results[row.id]
        for stage, name in [(key[1], key) for key in results]:
            if stage in change.voids or (EVERY_STAGE in change.voids and stage[0] != "/"):
                del results[name]
        results.update({(r.round, r.stage, r.name): r for r in change.results})
        self._post(change.messages)
        if change.frees_slot is not None:
            self._free_slot(change.frees_slot, row.id)
        if change.takes_slot is not None:
            self._take_slot(change.takes_slot, row.id)
            if is_of_state(row.slot):
                self._occupy(change.takes_slot, row.id)
        if change.frees_key:
            self._free_key(key_of(row), row.id)
        if change.takes_key and self._holder(key_of(row), now) is None:
            self._take_key(key_of(row), row.id, None)
        for job in change.spawns:
            self._add(job, now)
        actor = change.events[-1].actor if change.events else kinds.ENGINE
        self._asked_pauses += [(key, until, actor) for key, until in change.pauses]

    def claim(self, request: ClaimRequest) -> Claimed:
        with self._transaction() as now:
            unparked = self._give_back_lapsed(now)
            unparked += self._end_pauses(now) + self._unpark_paid(now)
            if request.worker not in self._workers:
                return Claimed([], now, [], None, unparked)
            paused = frozenset(
                (p.kind, p.name) for p in self._pauses.values() if not control.is_over(p, now)
            )
            claims = self._take(request, paused, now)
            return Claimed(
                claims,
                now,
                self._requests_of_worker(request.worker),
                now if is_full(request.wants, claims) else self._next_at(request, paused, now),
                unparked,
                frozenset((kind, name) for kind, name in paused if kind != KEY),
            )

    def _next_at(self, request: ClaimRequest, paused: Paused, now: Instant) -> Instant | None:
        lanes = {lane for want in request.wants for lane in open_lanes(want.lanes, paused)}
        dates = [row.not_before for lane in lanes for row in self._standing(lane)]
        dates += [b.ready_at for b in self._buckets.values() if b.ready_at is not None]
        dates += [p.until_at for p in self._pauses.values() if p.until_at is not None]
        return min((date for date in dates if date > now), default=None)

    def _give_back_lapsed(self, now: Instant) -> int:
        uptime_us = self.clock.uptime().us
        lapsed = [id for id, ends_us in self._lease_ends.items() if ends_us <= uptime_us]
        for worker in [self._workers[id] for id in lapsed]:
            for row in sorted(self._on_shelf("leased", worker.id)):
                # The token moves, so that the vanished worker cannot write over its successor.
                lost = row._replace(
                    leased_by=None, token=row.token + 1, lapses=row.lapses + 1, lapsed=1,
                    not_before=now, version=row.version + 1, seq=row.seq + 1,
                )  # fmt: skip
                self._put(lost)
                held = lost._replace(token=row.token)
                event = own_event(held, kinds.LAPSED, row.state, kinds.ENGINE, worker.id, now)
                self._append_own(row.tenant, event)
                slot = wanted_slot(row.slot)
                if slot is not None:
                    self._free_slot(slot, row.id)
            del self._workers[worker.id], self._lease_ends[worker.id]
        return self._pass_on_freed()

    def _take(self, request: ClaimRequest, paused: Paused, now: Instant) -> list[Claim]:
        claims: list[Claim] = []
        suspects, size = request.suspects, 0
        for want in request.wants:
            free = want.places
            due = [
                (lane_before(lane), row)
                for lane in open_lanes(want.lanes, paused)
                for row in self._standing(lane)
                if row.not_before <= now
            ]
            for lane, row in self._in_order(due, request.ageing_us):
                is_suspect = row.lapses >= SUSPECT_LAPSES
                if free <= 0 or size >= LARGEST_CLAIM_BYTES:
                    break
                if is_suspect and not suspects:
                    continue
                if not self._has_what_it_needs(row, now):
                    continue
                if lane.endswith(EVERY_TENANT):
                    self._take_turn(lane, row.tenant)
                claims.append(self._lease(row, request, now))
                size += len(claims[-1].payload.data)
                free -= 1
                suspects = suspects and not is_suspect
        return claims

    def _standing(self, lane: str) -> list[JobRow]:
        """Return the jobs of a lane, or of every lane of a family."""
        if not lane.endswith(EVERY_TENANT):
            return self._on_shelf("lane", lane)
        return [
            row
            for kind, name in list(self._shelves)
            if kind == "lane" and name.startswith(lane[:-1])
            for row in self._on_shelf("lane", name)
        ]

    def _in_order(self, due: list[Due], ageing_us: int) -> Iterator[Due]:
        """Return who is next, the most urgent first; of a family, the tenant in turn."""
        due.sort(key=lambda found: urgency(found[1], ageing_us), reverse=True)
        while due:
            lane, first = due[-1]
            chosen = len(due) - 1
            if lane.endswith(EVERY_TENANT):
                # Each has been sorted: the last of a tenant is its most urgent job.
                last = {
                    row.tenant: n
                    for n, (other, row) in enumerate(due)
                    if other == lane and row.priority == first.priority
                }
                chosen = last[min(last, key=lambda tenant: (self._had(lane, tenant), tenant))]
            yield due.pop(chosen)

    def _has_what_it_needs(self, row: JobRow, now: Instant) -> bool:
        key, slot = self._paused_key(row, now), wanted_slot(row.slot)
        if key is not None:
            self._put(row._replace(parked_on=ON_KEY + key))
        elif slot is not None and self._free_places(slot) <= 0:
            self._put(row._replace(parked_on=slot))
        elif row.rate is not None and not self._can_pay(row.rate, row, now):
            self._put(row._replace(parked_on=ON_RATE + row.rate))
            self._await_payment(row.rate, now)
        else:
            if slot is not None:
                self._take_slot(slot, row.id)
            self._pay(row, now)
            return True
        return False

    def _lease(self, row: JobRow, request: ClaimRequest, now: Instant) -> Claim:
        """Give a job to a worker, entering the busy state of its stage on the way."""
        leased = row._replace(leased_by=request.worker, leased_at=now, token=row.token + 1, stood=1)
        entry = (row.flow, row.flow_version, row.state)
        busy = request.entries.get(entry)
        # A job that undoes may stand in a state of the same name; its undo enters nothing.
        if busy is not None and row.role == READY:
            slot = wanted_slot(row.slot)
            if slot is not None and entry in request.keeps:
                leased = leased._replace(slot=OF_STATE + slot)
                self._occupy(slot, row.id)
            leased = leased._replace(
                state=busy, role=BUSY, version=row.version + 1, seq=row.seq + 1, changed_at=now
            )
            event = own_event(leased, kinds.ENTERED, row.state, request.worker, request.worker, now)
            self._append_own(row.tenant, event)
        self._put(leased)
        results = self.find_results(row.id) if row.has_results else []
        return Claim(leased, self._payloads[row.id], tuple(results))

    def register(self, worker: str, *, lease_us: int, lanes: Sequence[str], about: str) -> Instant:
        with self._transaction() as now:
            served = " ".join(lanes)
            self._workers[worker] = WorkerRow(worker, now, now, now + lease_us, served, about)
            self._lease_ends[worker] = self.clock.uptime().us + lease_us
            return now

    def renew(self, worker: str, *, lease_us: int) -> Renewal:
        with self._transaction() as now:
            row = self._workers.get(worker)
            if row is None:
                return Renewal(False, now, [])
            self._workers[worker] = row._replace(renewed_at=now, expires_at=now + lease_us)
            self._lease_ends[worker] = self.clock.uptime().us + lease_us
            return Renewal(True, now, self._requests_of_worker(worker))

    def unregister(self, worker: str) -> None:
        with self._transaction() as now:
            row = self._workers.pop(worker, None)
            self._lease_ends.pop(worker, None)
            if row is not None and self._on_shelf("leased", worker):
                # The row stays, lapsed, for the next claimer: there is one way of rescue only.
                self._workers[worker] = row._replace(expires_at=now)
                self._lease_ends[worker] = self.clock.uptime().us
                self._made_due = True

    def leased(self, worker: str) -> list[JobRow]:
        with self._lock:
            return sorted(self._on_shelf("leased", worker))

    def request(self, request: Request) -> bool:
        with self._transaction():
            row = self._jobs.get(request.job_id)
            if row is None:
                return False
            self._requests[row.id].setdefault((request.kind, request.name), request)
            self._put(self._settle(row, ()))
            return row.leased_by is not None

    def dismiss(self, job_id: bytes, answers: Sequence[tuple[str, str]]) -> None:
        with self._transaction():
            if job_id in self._jobs:
                self._put(self._settle(self._jobs[job_id], answers))

    def report(self, progress: Sequence[Progress]) -> None:
        with self._transaction():
            self._progress.update({p.job_id: p for p in progress if p.job_id in self._jobs})

    def due(self, limit: int, *, after: tuple[Instant, bytes] = (0, b"")) -> list[JobRow]:
        with self._transaction() as now:
            free = [row for row in self._waking(now) if row.leased_by is None]
            return [row for row in free if (row.wake_at or 0, row.id) > after][:limit]

    def find_claimable(self, lane: str, limit: int) -> list[JobRow]:
        with self._transaction() as now:
            # Leased and parked jobs are on other shelves.
            found = [row for row in self._on_shelf("lane", lane) if row.not_before <= now]
            return sorted(found, key=lambda row: (row.priority, row.not_before, row.id))[:limit]

    def overdue_leased(self, limit: int) -> list[JobRow]:
        with self._transaction() as now:
            leased = [row for row in self._waking(now) if row.leased_by is not None]
            asked = {
                job_id
                for job_id, own in self._requests.items()
                for kind, _ in own
                if kind == "expire"
            }
            return [row for row in leased if row.id not in asked][:limit]

    def _waking(self, now: Instant) -> list[JobRow]:
        dated = [(row.wake_at, row.id, row) for row in self._on_shelf("waking")]
        return [row for wake_at, _, row in sorted(dated) if wake_at is not None and wake_at <= now]

    def asked(self, limit: int, *, after: bytes = b"") -> list[tuple[JobRow, list[Request]]]:
        with self._transaction():
            asked = sorted(i for i, requests in self._requests.items() if requests and i > after)
            free = [job_id for job_id in asked if self._jobs[job_id].leased_by is None][:limit]
            return [(self._jobs[i], self._asked_of(i)) for i in free]

    def unpark(self, limit: int) -> int:
        with self._transaction() as now:
            unparked = 0
            for name in sorted(
                n for (kind, n), ids in self._shelves.items() if kind == "parked" and ids
            ):
                if name.startswith(ON_RATE):
                    bucket = self._buckets.get(name.removeprefix(ON_RATE))
                    if bucket is None or bucket.ready_at is None:
                        self._await_payment(name.removeprefix(ON_RATE), now)
                    continue
                places = limit if is_of_state(name) else self._free_places(name)
                if name.startswith(ON_KEY):
                    places = 0 if (KEY, name.removeprefix(ON_KEY)) in self._pauses else limit
                unparked += self._pass_on(name, min(places, limit - unparked))
            return unparked

    def fold_counts(self) -> None:
        """Nothing to do: the sums themselves are kept."""

    def ended(
        self, flow: str, state: str, *, before: Instant, limit: int, after: bytes = b""
    ) -> list[JobRow]:
        with self._transaction():
            return [
                row
                for row in sorted(self._jobs.values())
                if (row.flow, row.state) == (flow, state)
                and row.role in FINAL
                and row.changed_at < before
                and row.id > after
            ][:limit]

    def prune(
        self,
        *,
        before: Instant,
        limit: int,
        actor: str = "",
        note: str = "",
        of: tuple[str, str] | None = None,
    ) -> int:
        with self._transaction() as now:
            kept = {k.job_id for k in self._keys.values() if (k.expires_at or 0) > now}
            kept |= {delivery[0] for delivery in self._open}
            ended = [
                row.id
                for row in sorted(self._jobs.values())
                if row.role in FINAL
                and row.changed_at < before
                and row.id not in kept
                and of in (None, (row.flow, row.state))
            ][:limit]
            self._forget(set(ended))
            if ended and actor:
                details = jobs.prune_details(len(ended), before)
                self._note(now, actor, jobs.PRUNE, jobs.PRUNE_SUBJECT, note, details)
            return len(ended)
