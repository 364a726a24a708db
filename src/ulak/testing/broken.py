"""Stores that are broken on purpose, each the way a plausible shortcut would break it.

They show that the simulator and the soak see what they are there to see: a build with one of
these in place of its store must fail them.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from ulak.clock import Clock, Instant
from ulak.core.change import Change, Receipt
from ulak.core.job import Event, NewJob, held_slot
from ulak.store.batches import Key, key_of
from ulak.store.memory import MemoryStore
from ulak.store.protocol import Added


class Gapped(MemoryStore):
    """A store with a gap where one transaction should be; whoever tests it acts in the gap."""

    def __init__(self, clock: Clock | None = None) -> None:
        super().__init__(clock)
        self.between: Callable[[], None] = lambda: None


class NoLeaseGuard(MemoryStore):
    """Writes a worker's change whoever holds the lease now: the last writer wins."""

    def commit(self, changes: Sequence[Change]) -> list[Receipt]:
        with self._transaction():
            return super().commit([self._unguarded(change) for change in changes])

    def _unguarded(self, change: Change) -> Change:
        stored = self._jobs.get(change.row.id)
        if change.token is None or stored is None or self._is_in_trail(change):
            return change
        # Numbering events at the time of writing hides the conflict that their key would show.
        moved = stored.seq - (change.row.seq - len(change.events))
        return change._replace(
            token=stored.token,
            row=change.row._replace(seq=change.row.seq + moved),
            events=tuple(event._replace(seq=event.seq + moved) for event in change.events),
            messages=tuple(m._replace(seq=m.seq + moved) for m in change.messages),
        )


class EventOutsideTheTransaction(Gapped):
    """Commits the job first and its events after: who dies in between leaves no trace."""

    def __init__(self, clock: Clock | None = None) -> None:
        super().__init__(clock)
        self._later: list[tuple[str, Sequence[Event], Sequence[bytes]]] | None = None

    def commit(self, changes: Sequence[Change]) -> list[Receipt]:
        self._later = []
        receipts = super().commit(changes)
        later, self._later = self._later, None
        self.between()
        with self._transaction():
            for tenant, events, proofs in later or ():
                super()._append(tenant, events, proofs)
        return receipts

    def _append(self, tenant: str, events: Sequence[Event], proofs: Sequence[bytes]) -> None:
        if self._later is None:
            super()._append(tenant, events, proofs)
        else:
            self._later.append((tenant, events, proofs))


class DedupWithoutItsKeyTable(Gapped):
    """Keeps the key as a column of the job: it looks for one, finds none and inserts.

    Two that look at once both insert, and no primary key tells them apart.
    """

    def __init__(self, clock: Clock | None = None) -> None:
        super().__init__(clock)
        self._column: dict[bytes, Key] = {}
        self._has_looked = False

    def add(self, jobs: Sequence[NewJob]) -> list[Added]:
        now = self.clock.now()
        found = [self._holder(key_of(job.row), now) for job in jobs]
        self.between()
        self._has_looked = True
        with self._transaction() as now:
            added = [
                self._add(job, now)
                if holder not in self._jobs
                else Added(self._jobs[holder], False)
                for job, holder in zip(jobs, found, strict=True)
            ]
        self._has_looked = False
        return added

    def _holder(self, key: Key | None, now: Instant) -> bytes | None:
        if key is None or self._has_looked:
            return None
        return next((job_id for job_id, held in self._column.items() if held == key), None)

    def _take_key(self, key: Key | None, job_id: bytes, expires_at: Instant | None) -> None:
        if key is not None:
            self._column[job_id] = key

    def _free_key(self, key: Key | None, job_id: bytes) -> None:
        self._column.pop(job_id, None)

    def _forget(self, job_ids: set[bytes]) -> None:
        super()._forget(job_ids)
        self._column = {i: key for i, key in self._column.items() if i not in job_ids}


class SlotFreedByALapse(MemoryStore):
    """Gives the slot of a state back with a lost lease, as it does that of a run."""

    def _give_back_lapsed(self, now: Instant) -> int:
        leased = [row for row in self._jobs.values() if row.leased_by is not None]
        unparked = super()._give_back_lapsed(now)
        for row in leased:
            slot = held_slot(row.slot, leased=False)
            if slot is not None and self._jobs[row.id].leased_by is None:
                self._free_slot(slot, row.id)
        return unparked + self._pass_on_freed()


BROKEN = (NoLeaseGuard, EventOutsideTheTransaction, DedupWithoutItsKeyTable, SlotFreedByALapse)
