"""Does the store keep its promises? Every job looked at, by the verbs that any store has.

Nothing is locked and nothing is written, so workers may go on meanwhile: what looks wrong is
read again, and only what stays wrong is reported.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from hashlib import sha256
from typing import TYPE_CHECKING, Any, Final

from ulak.clock import SECOND, Instant, rfc3339, to_datetime
from ulak.core.change import proof_body
from ulak.core.flow import Flow
from ulak.core.job import Event, JobRow, held_slot, limit_name
from ulak.core.lifecycle import FINAL
from ulak.core.schedule import SUBMITTER_PREFIX
from ulak.core.table import needs_of
from ulak.engine import replay
from ulak.engine.replay import Damage, message_damage, row_damage, should_hold_key, trail_damage
from ulak.engine.why import has_overrun, overdue_s
from ulak.ids import to_text
from ulak.store.flow_control import ON_KEY, ON_RATE, is_keyed, is_over, keys_in, stage_of, terms_of
from ulak.store.protocol import DedupRow, SlotRow, Store

if TYPE_CHECKING:
    from ulak.engine.kernel import Kernel

PAYLOAD_MISSING: Final = "payload-missing"
RESULT_UNSEEN: Final = "result-unseen"
REQUESTS_OFF: Final = "requests-off"
COUNTER_OFF: Final = "counter-off"
SLOT_NOT_LEASED: Final = "slot-not-leased"
SLOT_DOUBLED: Final = "slot-doubled"
SLOT_WRONG: Final = "slot-wrong"
SLOT_MISSING: Final = "slot-missing"
STATE_OVERFULL: Final = "state-overfull"
PARKED_WITHOUT_LIMIT: Final = "parked-without-limit"
SLOT_BEYOND_LIMIT: Final = "slot-beyond-limit"
BUCKET_OVERFULL: Final = "bucket-overfull"
BUCKET_OF_NO_RATE: Final = "bucket-of-no-rate"
PAUSE_NOT_ENDED: Final = "pause-not-ended"
LEASE_WITHOUT_WORKER: Final = "lease-without-worker"
LEASE_WITHOUT_RUN: Final = "lease-without-run"
KEY_NOT_FREED: Final = "key-not-freed"
KEY_OF_NO_JOB: Final = "key-of-no-job"
KEY_NOT_HELD: Final = "key-not-held"
PROOF_MISSING: Final = "proof-missing"
PROOF_BROKEN: Final = "proof-broken"
PROOF_DIFFERS: Final = "proof-differs"
TICK_MISSING: Final = "tick-missing"
TICK_DOUBLED: Final = "tick-doubled"
ORPHAN: Final = "orphan"

KINDS: Final = (
    *replay.KINDS, PAYLOAD_MISSING, RESULT_UNSEEN, REQUESTS_OFF, COUNTER_OFF, SLOT_NOT_LEASED,
    SLOT_DOUBLED, SLOT_WRONG, SLOT_MISSING, STATE_OVERFULL, PARKED_WITHOUT_LIMIT, SLOT_BEYOND_LIMIT,
    BUCKET_OVERFULL, BUCKET_OF_NO_RATE, PAUSE_NOT_ENDED, LEASE_WITHOUT_WORKER,
    LEASE_WITHOUT_RUN, KEY_NOT_FREED, KEY_OF_NO_JOB, KEY_NOT_HELD, PROOF_MISSING, PROOF_BROKEN,
    PROOF_DIFFERS, TICK_MISSING, TICK_DOUBLED, ORPHAN,
)  # fmt: skip
"""Every kind of damage that is looked for. Shown on every surface, so they are for ever."""

A_PAGE = 500
# A job that moves at every look is alive; what is wrong with it will still be wrong later.
LOOKS = 5
# A worker claims every second; a minute later it has ended every pause that is over.
PATIENCE_US = 60 * SECOND
FIRST_HASH = bytes(32)

Counts = Counter[tuple[str, int, str, str]]


@dataclass(frozen=True, slots=True)
class Finding:
    """One damage. `kind` is stable; `job_id` is '' when no single job is concerned."""

    kind: str
    job_id: str
    sentence: str


def verify(kernel: Kernel) -> list[Finding]:
    """Look at everything and answer what is wrong; an empty list means that nothing is. Jobs of
    flows or versions that this program does not declare are checked for what needs no table. The
    cost is a few reads per job."""
    kernel.open()
    return list(_Verifier(kernel).findings())


class _Verifier:
    def __init__(self, kernel: Kernel) -> None:
        self._store: Store = kernel.store
        self._flows = kernel.flows_by_version()
        self._proved: dict[bytes, int] = {}
        self._walked: dict[str, tuple[int, bytes]] = {}
        self._unproved: list[tuple[JobRow, int]] = []
        self._limited: dict[str, list[bytes]] = {}
        """For each limit of a state, or key of it, the jobs that stand there."""

    def findings(self) -> Iterator[Finding]:
        yield from self._chains()
        seen: Counts = Counter()
        for row in self._rows():
            seen[row.flow, row.flow_version, row.state, row.role] += 1
            limit = self._limit_of_state(row)
            if limit is not None:
                self._limited.setdefault(limit, []).append(row.id)
            yield from self._settled(row, self._damage)
        yield from self._counters(seen)
        yield from self._overfull_states()
        yield from self._slots()
        yield from self._buckets()
        yield from self._pauses()
        for key in self._store.scan_keys():
            yield from self._key(key)
        # Proofs are committed with their events: those of events that were read just now are
        # in the chains by now.
        yield from self._chains()
        yield from self._missing_proofs()
        for sentence in self._store.scan_orphans():
            yield Finding(ORPHAN, "", sentence)

    def _rows(self) -> Iterator[JobRow]:
        after = b""
        while page := self._store.scan_jobs(after=after, limit=A_PAGE):
            yield from page
            after = page[-1].id

    def _flow(self, row: JobRow) -> Flow[Any] | None:
        return self._flows.get((row.flow, row.flow_version))

    def _settled(self, row: JobRow, look: Callable[[JobRow], list[Damage]]) -> Iterator[Finding]:
        """Look at a job, and look again for as long as it moves while it is looked at."""
        for _ in range(LOOKS):
            damages = look(row)
            if not damages:
                return
            fresh = self._store.find_job(row.id)
            if fresh is None:
                return
            if fresh == row:
                for damage in damages:
                    yield Finding(damage.kind, to_text(row.id), damage.sentence)
                return
            row = fresh

    def _damage(self, row: JobRow) -> list[Damage]:
        flow = self._flow(row)
        events = self._trail(row.id)
        damages = [
            *trail_damage(row, events, flow),
            *message_damage(events, self._store.scan_messages(row.id)),
            *row_damage(row, flow),
            *self._belongings(row, flow),
            *self._unrun(row, flow, events),
        ]
        if flow is not None and flow.proofs and not damages:
            self._remember_unproved(row, events)
        return damages

    def _trail(self, job_id: bytes) -> list[Event]:
        events: list[Event] = []
        while page := self._store.trail(job_id, after=events[-1].seq if events else 0):
            events += page
        return events

    def _belongings(self, row: JobRow, flow: Flow[Any] | None) -> Iterator[Damage]:
        """What belongs to a job and stands in other tables."""
        store = self._store
        if store.find_payload(row.id) is None:
            yield Damage(PAYLOAD_MISSING, "its payload is not there")
        if not row.has_results and store.find_results(row.id):
            yield Damage(RESULT_UNSEEN, "it has results, and its row says that it has none")
        asked = len(store.pending_requests(row.id))
        if asked != row.requests:
            yield Damage(REQUESTS_OFF, f"{asked} requests wait for it, its row says {row.requests}")
        if row.dedup_key is not None and should_hold_key(row, flow, store.clock.now()):
            holder = store.find_key(row.tenant, row.flow, row.dedup_key)
            if holder != row.id:
                who = "nobody holds it" if holder is None else f"job {to_text(holder)} holds it"
                yield Damage(KEY_NOT_HELD, f"it should hold the key {row.dedup_key!r}; {who}")
        if row.leased_by is not None and row.leased_by not in {w.id for w in store.workers()}:
            text = f"{row.leased_by} has leased it and is not registered, so the lease never lapses"
            yield Damage(LEASE_WITHOUT_WORKER, text)
        slot = held_slot(row.slot, leased=row.leased_by is not None) or self._limit_of_state(row)
        if slot is not None and row.id not in {held.job_id for held in store.slots(slot)}:
            does = "runs" if row.leased_by is not None else f'stands in "{row.state}"'
            yield Damage(SLOT_MISSING, f"it {does} without a slot of {slot}")
        if row.parked_on is not None and not self._will_be_unparked(row, row.parked_on):
            text = f"it is parked on {row.parked_on}, which will not unpark it"
            yield Damage(PARKED_WITHOUT_LIMIT, text)

        if row.scheduled_for is not None and row.submitter.startswith(SUBMITTER_PREFIX):
            yield from self._tick(row, row.scheduled_for)

    def _unrun(self, row: JobRow, flow: Flow[Any] | None, events: list[Event]) -> Iterator[Damage]:
        """What a living worker has leased, it runs: a run past its timeout ends or says so."""
        now = self._store.clock.now()
        late_s = overdue_s(row, flow, now) if row.leased_by is not None else 0.0
        if late_s <= 0 or has_overrun(row, events):
            return
        for worker in self._store.workers():
            if worker.id == row.leased_by and worker.expires_at > now and worker.lanes:
                text = f"{row.leased_by} lives and has leased it, and a run of it would have ended "
                text += f"{late_s:.0f} s ago"
                yield Damage(LEASE_WITHOUT_RUN, text)

    def _limit_of_state(self, row: JobRow) -> str | None:
        flow = self._flow(row)
        if flow is None or not flow.table.keeps or row.state not in flow.table.places:
            return None
        needs = needs_of(flow.table.places[row.state], row.tenant, row.keys)
        return held_slot(needs.slot, leased=False)

    def _will_be_unparked(self, row: JobRow, name: str) -> bool:
        """Tell whether what a job is parked on is something that it needs and that exists."""
        if name.startswith(ON_RATE):
            stages = {rate.name for rate in self._store.rates()}
            return name == f"{ON_RATE}{row.rate}" and stage_of(row.rate or "") in stages
        if name.startswith(ON_KEY):
            return name.removeprefix(ON_KEY) in keys_in(row.slot, row.rate)
        is_own = row.slot is not None and name == limit_name(row.slot)
        if not is_own or self._store.slots(name):
            return is_own
        # The slots of a key are opened by whoever needs one.
        return is_keyed(name) and stage_of(name) in {limit.name for limit in self._store.limits()}

    def _tick(self, row: JobRow, due_at: Instant) -> Iterator[Damage]:
        """What a schedule has submitted has its tick, and is the only one that has it."""
        name = row.submitter.removeprefix(SUBMITTER_PREFIX)
        when = rfc3339(to_datetime(due_at))
        found = self._store.ticks(name, before=due_at + 1, limit=1)
        if not found or found[0].due_at != due_at:
            yield Damage(TICK_MISSING, f"schedule {name} has no tick for {when}, its date")
        elif found[0].job_id != row.id:
            other = to_text(found[0].job_id)
            yield Damage(TICK_DOUBLED, f"schedule {name} has made job {other} for {when} as well")

    def _counters(self, seen: Counts) -> Iterator[Finding]:
        """Compare the counters with a count; a difference that stays the same is damage."""
        off = self._difference(seen)
        for _ in range(LOOKS):
            if not off:
                return
            again: Counts = Counter(
                (row.flow, row.flow_version, row.state, row.role) for row in self._rows()
            )
            before, off = off, {k: v for k, v in self._difference(again).items() if off.get(k) == v}
            if off == before:
                break
        for (flow, version, state, role), (counter, jobs) in sorted(off.items()):
            text = f'{flow} version {version}: the counter of "{state}" ({role}) says {counter}, '
            text += f"there are {jobs} jobs"
            yield Finding(COUNTER_OFF, "", text)

    def _difference(self, seen: Counts) -> dict[tuple[str, int, str, str], tuple[int, int]]:
        said = Counter(
            {(c.flow, c.flow_version, c.state, c.role): c.jobs for c in self._store.counts()}
        )
        keys = seen.keys() | said.keys()
        return {key: (said[key], seen[key]) for key in keys if said[key] != seen[key]}

    def _overfull_states(self) -> Iterator[Finding]:
        """No more jobs stand in a limited state than may, those that drain aside."""
        for limit, job_ids in sorted(self._limited.items()):
            for _ in range(LOOKS):
                # Those that stand there at two looks in a row stood there together.
                rows = [self._store.find_job(job_id) for job_id in job_ids]
                standing = [r for r in rows if r is not None and self._limit_of_state(r) == limit]
                most = self._places(limit)
                if len(standing) <= most:
                    break
                if rows == [self._store.find_job(job_id) for job_id in job_ids]:
                    state = standing[0].state
                    text = f'{len(standing)} jobs of {limit} stand in "{state}", {most} may'
                    yield Finding(STATE_OVERFULL, "", text)
                    break

    def _places(self, limit: str) -> int:
        limits = {row.name: row.n for row in self._store.limits()}
        slots = self._store.slots(limit)
        draining = sum(slot.closed for slot in slots if slot.job_id is not None)
        return limits.get(limit, limits.get(stage_of(limit), 0)) + draining

    def _slots(self) -> Iterator[Finding]:
        holders: Counter[bytes] = Counter()
        for slot in self._store.slots():
            if slot.job_id is None:
                continue
            holders[slot.job_id] += 1
            yield from self._slot(slot, slot.job_id)
        for job_id in (job_id for job_id, held in holders.items() if held > 1):
            now = [s for s in self._store.slots() if s.job_id == job_id]
            if len(now) > 1:
                places = ", ".join(f"{s.limit} {s.n}" for s in now)
                yield Finding(SLOT_DOUBLED, to_text(job_id), f"it holds {len(now)} slots: {places}")

        yield from self._open_slots()

    def _open_slots(self) -> Iterator[Finding]:
        limits = {limit.name: limit.n for limit in self._store.limits()}
        opened = Counter(slot.limit for slot in self._store.slots() if not slot.closed)
        for name, places in sorted(opened.items()):
            allowed = limits.get(name, limits.get(stage_of(name), 0))
            now = sum(not slot.closed for slot in self._store.slots(name))
            if places > allowed and now > allowed:
                text = f"{name} has {now} open slots, its limit is {allowed}"
                yield Finding(SLOT_BEYOND_LIMIT, "", text)

    def _buckets(self) -> Iterator[Finding]:
        rates = {rate.name: terms_of(rate) for rate in self._store.rates()}
        for bucket in self._store.buckets():
            terms = rates.get(stage_of(bucket.name))
            if terms is None:
                yield Finding(BUCKET_OF_NO_RATE, "", f"the bucket {bucket.name} has no rate")
            elif bucket.level > terms.burst * terms.per_us:
                tokens = bucket.level / terms.per_us
                text = f"the bucket {bucket.name} has {tokens:g} tokens and holds {terms.burst}"
                yield Finding(BUCKET_OVERFULL, "", text)

    def _pauses(self) -> Iterator[Finding]:
        """A pause ends with the first claim after its date: none is left if a worker lives."""
        now = self._store.clock.now()
        if not any(worker.expires_at > now for worker in self._store.workers()):
            return
        for pause in self._store.pauses(over=True):
            if not is_over(pause, now - PATIENCE_US):
                continue
            yield Finding(
                PAUSE_NOT_ENDED,
                "",
                f"the {pause.kind} {pause.name} is paused past its end, and no claim has ended it",
            )

    def _slot(self, slot: SlotRow, job_id: bytes) -> Iterator[Finding]:
        row = self._store.find_job(job_id)
        if row is None:
            if slot in self._store.slots():
                text = f"slot {slot.limit} {slot.n}: no such job"
                yield Finding(SLOT_NOT_LEASED, to_text(job_id), text)
            return

        def look(row: JobRow) -> list[Damage]:
            if slot not in self._store.slots():
                return []
            is_kept = held_slot(row.slot, leased=False) is not None
            if row.leased_by is None and not (is_kept and slot.of_state):
                stands = "has ended" if row.role in FINAL else "is not leased"
                return [
                    Damage(SLOT_NOT_LEASED, f"it {stands} and holds slot {slot.limit} {slot.n}")
                ]
            needs = held_slot(row.slot, leased=True)
            if needs != slot.limit or is_kept != bool(slot.of_state):
                return [
                    Damage(
                        SLOT_WRONG,
                        f"it needs a slot of {row.slot} and holds {slot.limit} {slot.n}"
                        f"{' of its state' if slot.of_state else ''}",
                    )
                ]
            return []

        yield from self._settled(row, look)

    def _key(self, key: DedupRow) -> Iterator[Finding]:
        row = self._store.find_job(key.job_id)
        if row is None or (row.tenant, row.flow, row.dedup_key) != key[:3]:
            # An expired key may be taken over at any time; one that is gone by now is no damage.
            if self._is_stored(key):
                yield Finding(
                    KEY_OF_NO_JOB,
                    to_text(key.job_id),
                    f"the key {key.key!r} of {key.flow} is held by a job that "
                    + ("does not exist" if row is None else f"has the key {row.dedup_key!r}"),
                )
            return

        def look(row: JobRow) -> list[Damage]:
            must = should_hold_key(row, self._flow(row), self._store.clock.now())
            if must is not False or not self._is_stored(key):
                return []
            return [Damage(KEY_NOT_FREED, f'it ended in "{row.state}" and still holds {key.key!r}')]

        yield from self._settled(row, look)

    def _is_stored(self, key: DedupRow) -> bool:
        now = self._store.clock.now()
        if key.expires_at is not None and key.expires_at <= now:
            return False
        return self._store.find_key(key.tenant, key.flow, key.key) == key.job_id

    def _chains(self) -> Iterator[Finding]:
        for tenant, head in self._store.proof_heads().items():
            yield from self._chain(tenant, head)

    def _chain(self, tenant: str, head: tuple[int, bytes]) -> Iterator[Finding]:
        number, link = self._walked.get(tenant, (0, FIRST_HASH))
        whose = f"the chain of tenant {tenant!r}"
        while page := self._store.scan_proofs(tenant, after=number, limit=A_PAGE):
            for proof in page:
                if proof.proof_id != number + 1:
                    yield Finding(PROOF_MISSING, "", f"{whose}: {proof.proof_id} follows {number}")
                elif proof.hash != sha256(link + proof.body).digest():
                    text = f"{whose}: proof {proof.proof_id} does not follow from the one before it"
                    yield Finding(PROOF_BROKEN, to_text(proof.job_id), text)
                number, link = proof.proof_id, proof.hash
                self._proved[proof.job_id] = self._proved.get(proof.job_id, 0) | 1 << proof.seq
                yield from self._proved_event(proof.job_id, proof.seq, proof.body)
        self._walked[tenant] = (number, link)
        if number < head[0]:
            yield Finding(PROOF_MISSING, "", f"{whose} ends with {number}, its head is {head[0]}")
        elif number == head[0] and link != head[1]:
            yield Finding(PROOF_BROKEN, "", f"{whose}: its head is not the hash of its last proof")

    def _proved_event(self, job_id: bytes, seq: int, body: bytes) -> Iterator[Finding]:
        """A proof stands for an event as it was; pruned jobs leave their proofs behind."""
        event = next(iter(self._store.trail(job_id, after=seq - 1, limit=1)), None)
        if event is not None and event.seq == seq and proof_body(event) != body:
            text = f"event {seq} is not what its proof stands for"
            yield Finding(PROOF_DIFFERS, to_text(job_id), text)

    def _remember_unproved(self, row: JobRow, events: list[Event]) -> None:
        proved = self._proved.get(row.id, 0)
        self._unproved += [(row, event.seq) for event in events if not proved >> event.seq & 1]

    def _missing_proofs(self) -> Iterator[Finding]:
        for row, seq in self._unproved:
            if not self._proved.get(row.id, 0) >> seq & 1:
                yield Finding(PROOF_MISSING, to_text(row.id), f"event {seq} has no proof")
