"""What must be true of a store at every moment, checked from outside by reading it.

A `Watch` remembers of each job how far it has seen its trail, so that a check costs what is new.
It keeps books of its own - which stages have really started, which keys were given - and does
not believe the store about them.
"""

from __future__ import annotations

import json
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from fractions import Fraction
from hashlib import sha256
from typing import Any

from ulak.clock import Instant
from ulak.core import event as kinds
from ulak.core.change import Change, Committed, Receipt, frees_key
from ulak.core.flow import Flow
from ulak.core.job import SIDE, Event, JobRow, Message, family_of, held_slot, limit_name
from ulak.core.lifecycle import CLAIMABLE, DONE, FINAL, UNDOING, WAITING
from ulak.core.table import needs_of
from ulak.ids import to_text
from ulak.store.flow_control import ON_KEY, ON_RATE, keys_in
from ulak.store.protocol import Store

Key = tuple[str, str, str]
End = tuple[str, int, str]
"""The job that ended, its round and the state."""


class Seen:
    """How far a job's trail was followed."""

    __slots__ = ("owed", "row", "seq", "state", "token", "unsent")

    def __init__(self) -> None:
        self.row: JobRow | None = None
        self.seq = 0
        self.state: str | None = None
        self.token = 0
        self.owed: list[str] = []
        """Stages with an undo that have started in this round and are not undone."""
        self.unsent: set[tuple[int, int]] = set()
        """Messages, by event and number, that no relay has published yet."""


class Watch:
    """The checks of E-62, over one store."""

    def __init__(self, store: Store, flows: Mapping[str, Flow[Any]]) -> None:
        self.store = store
        self.flows = flows
        self.violations: list[str] = []
        self.seen: dict[bytes, Seen] = {}
        self.kinds: Counter[str] = Counter()
        """How many events of each kind were followed."""
        self.followed: Counter[tuple[str, int]] = Counter()
        """How many ends a job followed, by state and round."""
        self._by_key: defaultdict[Key, list[bytes]] = defaultdict(list)
        self._proofs: dict[str, tuple[int, bytes]] = {}
        self._unproven: defaultdict[str, list[tuple[bytes, int]]] = defaultdict(list)
        self._tokens: dict[str, tuple[Fraction, Instant]] = {}
        """How many tokens are left in each bucket, and since when."""
        self._ends: Counter[End] = Counter()
        """How many jobs should follow an end, less those that do."""

    def accuse(self, row: JobRow | None, what: str) -> None:
        """Write a violation down."""
        name = "" if row is None else f'job {to_text(row.id)} ({row.flow}, "{row.state}"): '
        self.violations.append(name + what)

    # --- one job ----------------------------------------------------------------

    def job(self, job_id: bytes) -> None:
        """Follow a job's trail to its end and hold its row to it."""
        row = self.store.find_job(job_id)
        seen = self.seen.get(job_id)
        if row is None:
            if seen is not None and (seen.row is None or seen.row.role not in FINAL):
                self.accuse(seen.row, "it is gone before it ended")
            return
        if seen is None:
            seen = self.seen[job_id] = Seen()
            key = _key_of(row)
            if key is not None:
                self._by_key[key].append(job_id)
            self._followed(job_id)
        new = self.store.trail(job_id, after=seen.seq, limit=10_000)
        if self.flows[row.flow].on_end is not None:
            self._ended(row, seen.state, new)
        for event in new:
            self._event(row, seen, event)
        if row.seq != seen.seq:
            self.accuse(row, f"its row counts {row.seq} events, its trail has {seen.seq}")
        if row.state != seen.state:
            self.accuse(row, f'its trail leads to "{seen.state}"')
        if row.token < seen.token:
            self.accuse(row, f"its token went back from {seen.token} to {row.token}")
        if seen.row is not None and row.version < seen.row.version:
            self.accuse(row, f"its version went back from {seen.row.version} to {row.version}")
        seen.row, seen.token = row, max(row.token, seen.token)
        if row.stood:
            # A lease that was kept into this stage counts as its start, even when the worker
            # died before it learned of that.
            self.started(row)
        self._stands_well(row, seen)

    def _event(self, row: JobRow, seen: Seen, event: Event) -> None:
        flow = self.flows[row.flow]
        if event.seq != seen.seq + 1:
            self.accuse(row, f"event {event.seq} follows event {seen.seq}")
        if event.from_state != seen.state:
            self.accuse(row, f'event {event.seq} leaves "{event.from_state}", not "{seen.state}"')
        elif (
            event.from_state is not None
            and event.from_state != event.to_state
            and (event.from_state, event.to_state) not in flow.table.legal
        ):
            self.accuse(row, f'"{event.from_state}" may not move to "{event.to_state}"')
        self.kinds[event.kind] += 1
        if not kinds.is_known(event.kind):
            self.accuse(row, f"event {event.seq} is of no kind: {event.kind!r}")
        if event.worker is not None and event.token < seen.token:
            self.accuse(row, f"event {event.seq} was written under a token that had moved")
        if event.emitted:
            self._emitted(row, event)
        if flow.proofs:
            self._unproven[row.tenant].append((row.id, event.seq))
        if event.kind == kinds.UNDONE:
            self._undone(row, seen, event.message or "")
        if event.kind == kinds.RETRIED:
            seen.owed = []
        seen.seq, seen.state = event.seq, event.to_state
        seen.token = max(seen.token, event.token)

    def _ended(self, row: JobRow, state: str | None, events: Sequence[Event]) -> None:
        """Expect a job after each commit that has brought this one into another final state."""
        places = self.flows[row.flow].table.places
        for n, event in enumerate(events):
            if n + 1 < len(events) and events[n + 1].commit_id == event.commit_id:
                continue
            if event.to_state != state and places[event.to_state].role in FINAL:
                self._ends[row.id.hex(), event.round, event.to_state] += 1
            state = event.to_state

    def _followed(self, job_id: bytes) -> None:
        payload = self.store.find_payload(job_id)
        of = None if payload is None else json.loads(payload.data)
        if isinstance(of, list):
            job, round_, state = of
            self._ends[job, round_, state] -= 1
            self.followed[state, round_] += 1

    def _emitted(self, row: JobRow, event: Event) -> None:
        stored = [
            r.message.n for r in self.store.scan_messages(row.id) if r.message.seq == event.seq
        ]
        if stored != list(range(event.emitted)):
            self.accuse(
                row, f"event {event.seq} was written with {event.emitted} messages, {stored} stored"
            )
        self.seen[row.id].unsent |= {(event.seq, n) for n in stored}

    def published(self, message: Message, *, in_order: bool) -> None:
        """A relay has published a message; the first time, they come in order per job."""
        seen, place = self.seen.get(message.job_id), (message.seq, message.n)
        if seen is None or place not in seen.unsent:
            return
        if in_order and place != min(seen.unsent):
            self.accuse(seen.row, f"message {place} was published before {min(seen.unsent)}")
        seen.unsent.discard(place)

    def _undone(self, row: JobRow, seen: Seen, stage: str) -> None:
        if stage in seen.owed:
            if seen.owed[-1] != stage:
                self.accuse(row, f'"{stage}" was undone before "{seen.owed[-1]}"')
            seen.owed.remove(stage)

    def started(self, row: JobRow) -> None:
        """A worker begins to run a stage: from now on its undo is owed."""
        place = self.flows[row.flow].table.places[row.state]
        if row.role == UNDOING or not place.has_undo or place.stage is None:
            return
        seen = self.seen[row.id]
        name = place.stage.state
        if row.token < seen.token and name in seen.owed:
            return  # a zombie begins late what its job has left behind; no order is owed to it
        seen.owed = [*(s for s in seen.owed if s != name), name]

    def supplied(self, row: JobRow, now: Instant) -> None:
        """A claim has taken slot and tokens for a run: they must have been there."""
        slot = held_slot(row.slot, leased=True)
        if slot is not None:
            held = [s.job_id for s in self.store.slots(slot) if s.job_id is not None]
            if row.id not in held:
                self.accuse(row, f"it runs without a slot of {slot}")
            limit = self.flows[row.flow].table.limits["/".join(slot.split("/", 2)[:2])]
            if len(held) > limit.n:
                self.accuse(row, f"{len(held)} run at once in {slot}, which has {limit.n}")
        if row.rate is None:
            return
        rate = self.flows[row.flow].table.rates["/".join(row.rate.split("/", 2)[:2])]
        left, since = self._tokens.get(row.rate, (Fraction(rate.burst), now))
        left = min(Fraction(rate.burst), left + Fraction((now - since) * rate.n, rate.per_us))
        if left < row.cost:
            self.accuse(row, f"its run cost {row.cost}, and {row.rate} had {float(left)}")
        self._tokens[row.rate] = (left - row.cost, now)

    def _stands_well(self, row: JobRow, seen: Seen) -> None:
        flow = self.flows[row.flow]
        if not has_a_way_on(flow, row):
            self.accuse(row, f"nothing will ever move it: {row}")
        if (row.undo_to is not None) and not row.started:
            self.accuse(row, "it is being undone and owes nothing")
        if row.role in FINAL:
            if row.undo_to is not None or row.started:
                self.accuse(row, f"it has ended and owes the undos of {row.started}")
            if row.role != DONE and seen.owed:
                self.accuse(row, f"it has ended, and {seen.owed} had started and was not undone")
            if row.role == DONE:
                seen.owed = []
        key = _key_of(row)
        if key is not None:
            self._key(row, key)

    def _key(self, row: JobRow, key: Key) -> None:
        holders = [i for i in self._by_key[key] if self._holds(self._seen_row(i))]
        if len(holders) > 1:
            # What was last seen may be older than a commit that freed the key and took it for a
            # job that it spawned, or than a prune whose answer was lost.
            holders = [i for i in holders if self._holds(self.store.find_job(i))]
        if len(holders) > 1:
            names = ", ".join(to_text(i) for i in holders)
            self.accuse(row, f"its dedup key {key[2]!r} is held by {len(holders)} jobs: {names}")
        elif holders and self.store.find_key(*key) != holders[0]:
            self.accuse(row, f"its dedup key {key[2]!r} was freed before it ended")

    def _seen_row(self, job_id: bytes) -> JobRow | None:
        seen = self.seen.get(job_id)
        return None if seen is None else seen.row

    def _holds(self, row: JobRow | None) -> bool:
        return row is not None and not (row.role in FINAL and frees_key(self.flows[row.flow], row))

    def forget(self, job_id: bytes) -> None:
        """The job was pruned."""
        seen = self.seen.pop(job_id, None)
        if seen is not None and seen.row is not None:
            key = _key_of(seen.row)
            if key is not None:
                self._by_key[key].remove(job_id)

    # --- one commit -------------------------------------------------------------

    def commit(
        self,
        changes: Sequence[Change],
        before: Sequence[JobRow | None],
        known: Sequence[bool],
        receipts: Sequence[Receipt],
    ) -> None:
        """Hold what a commit did to what its guards allow. `known` were written before."""
        for change, old, again, receipt in zip(changes, before, known, receipts, strict=True):
            new = self.store.find_job(change.row.id)
            if again:
                if not isinstance(receipt, Committed):
                    self.accuse(new, f"a repeated commit was answered {receipt}")
            elif not isinstance(receipt, Committed):
                if _guarded(new) != _guarded(old):
                    self.accuse(new, f"a commit answered {receipt} has written")
            elif old is None:
                self.accuse(new, "a change of a job that is not there was written")
            elif change.token is not None and old.token != change.token:
                self.accuse(
                    new, f"a worker wrote with token {change.token} while it was {old.token}"
                )
            elif change.version is not None and (
                old.version != change.version or old.leased_by is not None
            ):
                self.accuse(
                    new, f"an act on version {change.version} was written over {old.version}"
                )
            elif new is not None and not _is_as_committed(new, change.row):
                self.accuse(new, "its row is not what was committed")

    # --- the whole store --------------------------------------------------------

    def everything(self) -> None:
        """Check what belongs to no single job: slots, leases, counters, proofs, orphans."""
        rows = _all_jobs(self.store)
        for (job, round_, state), lacking in self._ends.items():
            if lacking:
                what = "no job follows it" if lacking > 0 else f"{-lacking} too many follow it"
                self.accuse(None, f'job {job} ended in "{state}" in round {round_}, and {what}')
        self._ends.clear()
        self._slots(rows)
        self._leases(rows)
        counted = Counter((r.flow, r.flow_version, r.state, r.role) for r in rows.values())
        kept = {tuple(count[:4]): count.jobs for count in self.store.counts() if count.jobs}
        if kept != counted:
            wrong = sorted({*kept.items()} ^ {*counted.items()})
            self.accuse(None, f"the counters are off: {wrong}")
        for orphan in self.store.scan_orphans():
            self.accuse(None, orphan)
        self._chains()

    def _slots(self, rows: Mapping[bytes, JobRow]) -> None:
        held: Counter[tuple[str, bytes]] = Counter()
        sizes: Counter[str] = Counter()
        for slot in self.store.slots():
            sizes[slot.limit] += 1 - slot.closed
            if slot.job_id is not None:
                held[slot.limit, slot.job_id] += 1
        running = {
            (limit, row.id)
            for row in rows.values()
            if (limit := held_slot(row.slot, leased=row.leased_by is not None)) is not None
        }
        for (limit, job_id), places in sorted(held.items()):
            if places > 1 or (limit, job_id) not in running:
                self.accuse(
                    rows.get(job_id), f"it holds {places} slots of {limit} and does not run there"
                )
        for limit, job_id in sorted(running - set(held)):
            self.accuse(rows[job_id], f"it runs without a slot of {limit}")
        for limit, places in Counter(limit for limit, _ in running).items():
            if places > sizes[limit]:
                self.accuse(None, f"{places} run at once in {limit}, which has {sizes[limit]}")
        self._limited_states(rows.values())

    def _limited_states(self, rows: Iterable[JobRow]) -> None:
        """Count the jobs in each busy state that is limited, whatever the slots say."""
        standing: Counter[str] = Counter()
        for row in rows:
            table = self.flows[row.flow].table
            for name, terms in table.limits.items():
                if terms.busy == row.state:
                    needs = needs_of(table.places[row.state], row.tenant, row.keys)
                    limit = limit_name(needs.slot or name)
                    standing[limit] += 1
                    if standing[limit] > terms.n:
                        self.accuse(row, f"{standing[limit]} jobs stand there, not {terms.n}")

    def _leases(self, rows: Mapping[bytes, JobRow]) -> None:
        alive = {worker.id for worker in self.store.workers()}
        for row in rows.values():
            if row.leased_by is not None and row.leased_by not in alive:
                self.accuse(row, f"{row.leased_by} has leased it and has no lease that could lapse")

    def _chains(self) -> None:
        for tenant in sorted(self.store.proof_heads()):
            proof_id, head = self._proofs.get(tenant, (0, bytes(32)))
            proven = []
            while links := self.store.scan_proofs(tenant, after=proof_id, limit=1000):
                for link in links:
                    if (
                        link.proof_id != proof_id + 1
                        or link.hash != sha256(head + link.body).digest()
                    ):
                        self.accuse(None, f"proof {link.proof_id} of {tenant!r} does not follow")
                    proof_id, head = link.proof_id, link.hash
                    proven.append((link.job_id, link.seq))
            self._proofs[tenant] = (proof_id, head)
            # A lapse is written by whoever claims next, and its job may not have been looked at.
            for job_id in sorted({job_id for job_id, _ in {*proven} - {*self._unproven[tenant]}}):
                self.job(job_id)
            if sorted(proven) != sorted(self._unproven.pop(tenant, [])):
                self.accuse(None, f"the proofs of {tenant!r} are not those of its events")


def has_a_way_on(flow: Flow[Any], row: JobRow) -> bool:
    """Tell whether a job that has not ended is claimable, leased, parked, waiting or held (E-2)."""
    if row.role in FINAL or row.leased_by is not None:
        return True
    if row.role in CLAIMABLE:
        needs = {None, limit_name(row.slot or "-"), f"{ON_RATE}{row.rate}"}
        needs |= {ON_KEY + key for key in keys_in(row.slot, row.rate)}
        return family_of(row.lane) in flow.table.lanes and row.parked_on in needs
    if row.role == WAITING:
        return row.awaits is not None or row.wake_at is not None
    return row.state == flow.lifecycle.held or flow.table.places[row.state].gate is not None


def _key_of(row: JobRow) -> Key | None:
    return None if row.dedup_key is None else (row.tenant, row.flow, row.dedup_key)


def _is_as_committed(stored: JobRow, row: JobRow) -> bool:
    """A job that was parked may have got the slot that another change of the commit has freed."""
    if stored.parked_on is None and row.parked_on is not None:
        row = row._replace(parked_on=None)
    return stored[:SIDE] == row[:SIDE]


def _guarded(row: JobRow | None) -> tuple[object, ...] | None:
    return None if row is None else (row.state, row.version, row.seq, row.token, row.leased_by)


def _all_jobs(store: Store) -> dict[bytes, JobRow]:
    rows: dict[bytes, JobRow] = {}
    after = b""
    while page := store.scan_jobs(after=after, limit=1000):
        rows.update({row.id: row for row in page})
        after = page[-1].id
    return rows
