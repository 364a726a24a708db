"""The broken builds of `ulak.testing.broken` on SQLite, for the soak with its real processes."""

from __future__ import annotations

import sqlite3
import time
from collections.abc import Mapping, Sequence
from functools import partial
from typing import Final

from ulak.core.change import Change, Committed, Receipt
from ulak.core.job import Event, JobRow, NewJob
from ulak.store.protocol import Added, Claimed, ClaimRequest
from ulak.store.sqlite import SqliteStore, commits, control, intake
from ulak.store.sqlite.session import Transaction, own

# As long as a log writer might wait for company; a kill finds the gap soon.
GAP_S = 0.03

_TAKE_OUT_EVENT = "DELETE FROM events WHERE job_id = ? AND seq = ?"
_PUT_IN_EVENT = (
    f"INSERT OR IGNORE INTO events ({', '.join(Event._fields)}) "  # noqa: S608 - our own names
    f"VALUES ({', '.join('?' * len(Event._fields))})"
)
_SAME_KEY = "SELECT id FROM jobs WHERE tenant = ? AND flow = ? AND dedup_key = ?"
_NAME_KEY = "UPDATE jobs SET dedup_key = ? WHERE id = ?"


class NoLeaseGuard(SqliteStore):
    """Writes a worker's change whoever holds the lease now: the last writer wins."""

    def commit(self, changes: Sequence[Change]) -> list[Receipt]:
        written = self.find_commits(changes)
        return super().commit(
            [
                change if change.token is None or is_there else self._unguarded(change)
                for change, is_there in zip(changes, written, strict=True)
            ]
        )

    def _unguarded(self, change: Change) -> Change:
        stored = self.find_job(change.row.id)
        if stored is None:
            return change
        # Numbering events at the time of writing hides the conflict that their key would show.
        moved = stored.seq - (change.row.seq - len(change.events))
        return change._replace(
            token=stored.token,
            row=change.row._replace(seq=change.row.seq + moved),
            events=tuple(event._replace(seq=event.seq + moved) for event in change.events),
            messages=tuple(m._replace(seq=m.seq + moved) for m in change.messages),
        )


class EventOutsideTheTransaction(SqliteStore):
    """Commits the job first and its events after: who dies in between leaves no trace."""

    def commit(self, changes: Sequence[Change]) -> list[Receipt]:
        receipts = self._write("commit", lambda t: self._without_events(t.own, changes))
        later = [
            event
            for change, receipt in zip(changes, receipts, strict=True)
            if isinstance(receipt, Committed)
            for event in change.events
        ]
        time.sleep(GAP_S)
        self._write("commit", lambda t: t.own.db.executemany(_PUT_IN_EVENT, later))
        return receipts

    def _without_events(self, t: Transaction, changes: Sequence[Change]) -> list[Receipt]:
        receipts = commits.commit(t, changes)
        for change, receipt in zip(changes, receipts, strict=True):
            if isinstance(receipt, Committed):
                t.db.executemany(_TAKE_OUT_EVENT, [(e.job_id, e.seq) for e in change.events])
        return receipts


class DedupWithoutItsKeyTable(SqliteStore):
    """Looks for a job of the same key and inserts when there is none: two may look at once."""

    def add(self, jobs: Sequence[NewJob]) -> list[Added]:
        found = self._read(lambda db: [_first(db.own, job.row) for job in jobs])
        time.sleep(GAP_S)
        new = [job for job, first in zip(jobs, found, strict=True) if first is None]
        if new:
            self._write("add", lambda t: _add_without_keys(t.own, new))
        return [
            Added(job.row, True) if first is None else Added(first, False)
            for job, first in zip(jobs, found, strict=True)
        ]


def _first(db: sqlite3.Connection, row: JobRow) -> JobRow | None:
    if row.dedup_key is None:
        return None
    held = db.execute(_SAME_KEY, (row.tenant, row.flow, row.dedup_key)).fetchone()
    return None if held is None else intake.find_job(db, held[0])


def _add_without_keys(t: Transaction, jobs: Sequence[NewJob]) -> None:
    intake.add(t, [job._replace(row=job.row._replace(dedup_key=None)) for job in jobs])
    t.db.executemany(_NAME_KEY, [(job.row.dedup_key, job.row.id) for job in jobs])


class SlotFreedByALapse(SqliteStore):
    """Gives the slot of a state back with a lost lease, as it does that of a run."""

    def claim(self, request: ClaimRequest) -> Claimed:
        claimed = super().claim(request)
        for slot in self.slots():
            job = None if slot.job_id is None else self.find_job(slot.job_id)
            if job is not None and job.lapsed and slot.of_state:
                free = partial(control.free_slot, limit=slot.limit, job_id=job.id)
                self._write("claim", own(free))
        return claimed


BROKEN: Final[Mapping[str, type[SqliteStore]]] = {
    "no-lease-guard": NoLeaseGuard,
    "event-outside-the-transaction": EventOutsideTheTransaction,
    "dedup-without-its-key-table": DedupWithoutItsKeyTable,
    "slot-freed-by-a-lapse": SlotFreedByALapse,
}
