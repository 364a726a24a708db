"""The tables of the store in memory: rows, their lock, and the steps that verbs share."""

from __future__ import annotations

import threading
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from hashlib import sha256

from ulak.clock import Clock, Instant
from ulak.core.admission import StopRow
from ulak.core.change import Change, proof_body
from ulak.core.delivery import EVERY_TOPIC, NOBODY, make_delivery
from ulak.core.job import Event, JobRow, Message, Payload, Request, Result
from ulak.store import flow_control as control
from ulak.store.batches import FIRST_HASH, Key
from ulak.store.processes import QUIET_WITHIN_S, Watchers, tell_of_forks
from ulak.store.protocol import (
    AuditRow,
    BucketRow,
    CredentialRow,
    DedupRow,
    HandlerRow,
    LimitRow,
    OutboxRow,
    PauseRow,
    Progress,
    ProofRow,
    RateRow,
    ScheduleRow,
    SlotRow,
    TickRow,
    WeightRow,
    WorkerRow,
)
from ulak.store.records import RecordId, RecordRow

Delivery = tuple[bytes, int, int, str]


class MemoryTables:
    """Plain dictionaries, each what a table would be elsewhere."""

    def __init__(self, clock: Clock) -> None:
        self.clock = clock
        self._lock = threading.RLock()
        self._is_paused = False
        tell_of_forks(self)
        self._rings: list[Callable[[], None]] = []
        self._made_due = False
        self._watchers = Watchers()
        self._moved = False
        self._jobs: dict[bytes, JobRow] = {}
        self._shelves: defaultdict[tuple[str, str], set[bytes]] = defaultdict(set)
        self._payloads: dict[bytes, Payload] = {}
        self._trails: dict[bytes, list[Event]] = {}
        self._results: defaultdict[bytes, dict[tuple[int, str, str], Result]] = defaultdict(dict)
        self._requests: defaultdict[bytes, dict[tuple[str, str], Request]] = defaultdict(dict)
        self._progress: dict[bytes, Progress] = {}
        self._keys: dict[Key, DedupRow] = {}
        self._owners: dict[bytes, dict[str, Instant]] = {}
        self._slots: defaultdict[str, dict[int, SlotRow]] = defaultdict(dict)
        self._freed: Counter[str] = Counter()
        """Slots that this batch has freed and not passed on yet, by limit."""
        self._workers: dict[str, WorkerRow] = {}
        self._lease_ends: dict[str, int] = {}
        """By the uptime of the machine: the time of day may be set."""
        self._handlers: dict[str, HandlerRow] = {}
        self._messages: dict[Delivery, OutboxRow] = {}
        self._open: dict[Delivery, None] = {}
        """The deliveries that stand in the line of their key, the oldest first."""
        self._posted = 0
        self._proofs: defaultdict[str, list[ProofRow]] = defaultdict(list)
        self._proven: set[bytes] = set()
        """Jobs whose first event has a proof: those of flows with proofs."""
        self._links: list[tuple[str, bytes, int, bytes]] = []
        """What this transaction proves: tenant, job, number of the event, body."""
        self._counts: Counter[tuple[str, int, str, str]] = Counter()
        self._schedules: dict[str, ScheduleRow] = {}
        self._ticks: dict[tuple[str, Instant], TickRow] = {}
        self._limits: dict[str, LimitRow] = {}
        self._rates: dict[str, RateRow] = {}
        self._buckets: dict[str, BucketRow] = {}
        self._pauses: dict[tuple[str, str], PauseRow] = {}
        self._asked_pauses: list[tuple[str, Instant, str]] = []
        self._weights: dict[str, WeightRow] = {}
        self._stops: dict[tuple[str, str], StopRow] = {}
        self._turns: defaultdict[str, dict[str, tuple[int, int]]] = defaultdict(dict)
        """Per family of lanes and tenant: how much it has had, and had had before its last turn."""
        self._audit: list[AuditRow] = []
        self._credentials: dict[tuple[str, str], CredentialRow] = {}
        self._records: dict[RecordId, RecordRow] = {}

    def before_fork(self) -> None:
        """A child gets a copy of everything, which must be whole."""
        self._is_paused = self._lock.acquire(timeout=QUIET_WITHIN_S)

    def after_fork_in_parent(self) -> None:
        if self._is_paused:
            self._lock.release()

    def after_fork_in_child(self) -> None:
        self._lock = threading.RLock()
        self._watchers.clear()

    @contextmanager
    def _transaction(self) -> Iterator[Instant]:
        """Hold the lock, tell the time, and ring afterwards when a job has moved or may be due."""
        with self._lock:
            self._made_due = self._moved = False
            try:
                yield self.clock.now()
            finally:
                self._chain()
            rings = tuple(self._rings) if self._made_due else ()
            moved = self._moved
        for ring in rings:
            ring()
        if moved:
            self._watchers.ring()

    def _note(
        self, now: Instant, actor: str, act: str, subject: str, note: str | None, details: str
    ) -> None:
        position = len(self._audit) + 1
        self._audit.append(AuditRow(position, now, actor, act, subject, note or None, details))

    def _put(self, row: JobRow) -> None:
        """Store a job, and keep every index and counter true. The only way a row changes."""
        self._take_away(row.id)
        self._jobs[row.id] = row
        self._moved = True
        self._counts[row.flow, row.flow_version, row.state, row.role] += 1
        for shelf in _shelves_of(row):
            self._shelves[shelf].add(row.id)
            self._made_due = self._made_due or shelf[0] == "lane"

    def _take_away(self, job_id: bytes) -> None:
        old = self._jobs.pop(job_id, None)
        if old is not None:
            self._counts[old.flow, old.flow_version, old.state, old.role] -= 1
            for shelf in _shelves_of(old):
                self._shelves[shelf].discard(job_id)

    def _on_shelf(self, kind: str, name: str = "") -> list[JobRow]:
        return [self._jobs[job_id] for job_id in self._shelves.get((kind, name), ())]

    def _forget(self, job_ids: set[bytes]) -> None:
        """Remove jobs and everything of their own; proofs stay."""
        for job_id in job_ids:
            self._take_away(job_id)
            self._payloads.pop(job_id, None)
            self._trails.pop(job_id, None)
            self._results.pop(job_id, None)
            self._requests.pop(job_id, None)
            self._progress.pop(job_id, None)
            self._owners.pop(job_id, None)
        self._keys = {k: key for k, key in self._keys.items() if key.job_id not in job_ids}
        self._drop_messages([m for m in self._messages if m[0] in job_ids])
        self._ticks = {t: tick for t, tick in self._ticks.items() if tick.job_id not in job_ids}

    def _append(self, tenant: str, events: Sequence[Event], proofs: Sequence[bytes]) -> None:
        """Add events to the trail; what they prove is chained at the end of the transaction."""
        for event in events:
            self._trails.setdefault(event.job_id, []).append(event)
            if self._handlers:
                flow = self._jobs[event.job_id].flow
                followers = [h for h in self._handlers.values() if h.flow == flow]
                self._deliver(make_delivery(flow, event), followers)
        for event, body in zip(events, proofs, strict=False):
            self._links.append((tenant, event.job_id, event.seq, body))

    def _append_own(self, tenant: str, event: Event) -> None:
        """Add an event that no change brought, and prove it if its job has proofs.

        A store knows no flows: a job whose first event has a proof is of a flow with proofs.
        """
        self._append(tenant, [event], [proof_body(event)] if event.job_id in self._proven else [])

    def _chain(self) -> None:
        for tenant, job_id, seq, body in sorted(self._links):
            chain = self._proofs[tenant]
            before = chain[-1].hash if chain else FIRST_HASH
            link = sha256(before + body).digest()
            chain.append(ProofRow(tenant, len(chain) + 1, job_id, seq, body, link))
            if seq == 1:
                self._proven.add(job_id)
        self._links.clear()

    def _post(self, messages: Sequence[Message]) -> None:
        """Write a delivery of each message for every handler that wants it, or for nobody."""
        for m in messages:
            wanted = [h for h in self._handlers.values() if h.topic in (m.topic, EVERY_TOPIC)]
            self._deliver(m, wanted or [HandlerRow(NOBODY, EVERY_TOPIC)])

    def _deliver(self, m: Message, handlers: Sequence[HandlerRow]) -> None:
        for handler in handlers:
            self._posted += 1
            delivery = (m.job_id, m.seq, m.n, handler.name)
            limit_us = handler.give_up_us
            give_up_at = None if limit_us is None else m.at + limit_us
            self._messages[delivery] = OutboxRow(
                m, handler.name, not_before=m.at, give_up_at=give_up_at, position=self._posted
            )
            self._open[delivery] = None
            self._made_due = True

    def _drop_messages(self, deliveries: Iterable[Delivery]) -> None:
        for delivery in deliveries:
            del self._messages[delivery]
            self._open.pop(delivery, None)

    def _is_in_trail(self, change: Change) -> bool:
        trail = self._trails.get(change.row.id, [])
        last = change.row.seq
        return len(trail) >= last > 0 and trail[last - 1].commit_id == change.commit_id

    def _settle(self, row: JobRow, answers: Sequence[tuple[str, str]]) -> JobRow:
        for answer in answers:
            self._requests[row.id].pop(answer, None)
        return row._replace(requests=len(self._requests[row.id]))

    def _requests_of_worker(self, worker: str) -> list[Request]:
        held = sorted(self._on_shelf("leased", worker))
        return [asked for row in held for asked in self._asked_of(row.id)]

    def _asked_of(self, job_id: bytes) -> list[Request]:
        """Return the requests for a job, the oldest first."""
        pending = self._requests.get(job_id, {}).values()
        return sorted(pending, key=lambda asked: (asked.at, asked.kind, asked.name))

    def _holder(self, key: Key | None, now: Instant) -> bytes | None:
        held = None if key is None else self._keys.get(key)
        if held is None or (held.expires_at is not None and held.expires_at <= now):
            return None
        return held.job_id

    def _take_key(self, key: Key | None, job_id: bytes, expires_at: Instant | None) -> None:
        if key is not None:
            self._keys[key] = DedupRow(*key, job_id, expires_at)

    def _free_key(self, key: Key | None, job_id: bytes) -> None:
        if key is not None and key in self._keys and self._keys[key].job_id == job_id:
            del self._keys[key]

    def _free_places(self, limit: str) -> int:
        slots = self._slots.get(limit, {}).values()
        if not slots and control.is_keyed(limit):
            # The slots of a key are opened when the first job takes one.
            return self._places_of_key(limit)
        return sum(not s.closed for s in slots) - sum(s.job_id is not None for s in slots)

    def _take_slot(self, limit: str, job_id: bytes) -> bool:
        if self._free_places(limit) <= 0:
            return False
        self._open_key(limit)
        slots = self._slots[limit]
        n = min(n for n, slot in slots.items() if slot.job_id is None and not slot.closed)
        slots[n] = slots[n]._replace(job_id=job_id)
        return True

    def _open_key(self, limit: str) -> None:
        if limit not in self._slots:
            places = range(1, self._places_of_key(limit) + 1)
            self._slots[limit] = {n: SlotRow(limit, n, None, 0) for n in places}

    def _occupy(self, limit: str, job_id: bytes) -> None:
        """Make the slot of a job that of its state; if it has none, a free or a closed one."""
        self._open_key(limit)
        for other in self._slots.keys() - {limit}:
            self._free_slot(other, job_id)
        slots = self._slots[limit]
        own = [n for n, slot in slots.items() if slot.job_id == job_id]
        free = [n for n, slot in slots.items() if slot.job_id is None and not slot.closed]
        n = min(own or free, default=max(slots, default=0) + 1)
        closed = slots[n].closed if n in slots else 1
        slots[n] = SlotRow(limit, n, job_id, closed, 1)

    def _places_of_key(self, limit: str) -> int:
        found = self._limits.get(limit) or self._limits.get(control.stage_of(limit))
        return 0 if found is None else found.n

    def _free_slot(self, limit: str, job_id: bytes) -> int:
        for n, slot in self._slots.get(limit, {}).items():
            if slot.job_id == job_id:
                self._slots[limit][n] = slot._replace(job_id=None, of_state=0)
                self._freed[limit] += 1
                return 1
        return 0

    def _pass_on_freed(self) -> int:
        """Let others into what a batch has freed, after all of it; answer how many were unparked.

        Nobody is let in to a place that the same batch has taken.
        """
        freed = sorted(self._freed.items())
        self._freed.clear()
        return sum(
            self._pass_on(limit, min(slots, self._free_places(limit))) for limit, slots in freed
        )

    def _pass_on(self, limit: str, places: int) -> int:
        chosen = sorted(self._on_shelf("parked", limit), key=urgency)[: max(places, 0)]
        for row in chosen:
            self._put(row._replace(parked_on=None))
        return len(chosen)


def urgency(row: JobRow, ageing_us: int = 0) -> tuple[int, int, bytes]:
    """The order in which jobs are unparked and claimed: waiting may count for priority."""
    if ageing_us:
        return (row.not_before + row.priority * ageing_us, row.priority, row.id)
    return (row.priority, row.not_before, row.id)


def _shelves_of(row: JobRow) -> Iterator[tuple[str, str]]:
    """Name the indexes that a row stands in: by worker, by limit or by lane, and by date."""
    if row.leased_by is not None:
        yield ("leased", row.leased_by)
    elif row.parked_on is not None:
        yield ("parked", row.parked_on)
    elif row.lane:
        yield ("lane", row.lane)
    if row.wake_at is not None:
        yield ("waking", "")
