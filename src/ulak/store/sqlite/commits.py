"""The one way a job changes: each change whole or not at all, a receipt for each.

A batch is first written as a whole: one guarded update over all its rows, which must touch every
one of them. Only then are events written, so that no line of a trail is ever without its move.
If the update touched fewer, everything is taken back and the changes are walked one by one.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Sequence
from typing import Any

from ulak.core.change import (
    COMMITTED,
    EVERY_STAGE,
    Change,
    Committed,
    KeyTaken,
    LeaseLost,
    Receipt,
    SlotTaken,
    Stale,
)
from ulak.core.job import FIRST_MUTABLE, SIDE, JobRow
from ulak.errors import Refused
from ulak.ids import to_text
from ulak.store.protocol import LARGEST_BATCH
from ulak.store.sqlite import intake, keys, outbox
from ulak.store.sqlite.rows import (
    INSERT_EVENTS,
    WRITE_RESULTS,
    Batch,
    Row,
    as_request,
    ones,
)
from ulak.store.sqlite.writer import Transaction

_MUTABLE = JobRow._fields[FIRST_MUTABLE:SIDE]
_GUARDS = ("id", "token", "state", "role", "seq")

# The state, role and number of events are guarded beside the token: the counters and the trail
# are written from what the change says of them, and must not be believed when it is wrong.
MOVE_LEASED = Batch(
    "UPDATE jobs SET "
    + ", ".join(f"{name} = v.column{n}" for n, name in enumerate(_MUTABLE, 1))
    + " FROM (VALUES",
    len(_MUTABLE) + len(_GUARDS),
    ") AS v WHERE "
    + " AND ".join(
        f"jobs.{name} = v.column{n}" for n, name in enumerate(_GUARDS, len(_MUTABLE) + 1)
    ),
)
MOVE_ONE = f"UPDATE jobs SET {', '.join(f'{name} = ?' for name in _MUTABLE)} WHERE id = ?"

IS_IN_TRAIL = "SELECT 1 FROM events WHERE job_id = ? AND seq = ? AND commit_id = ?"
VOID_STAGE = "DELETE FROM results WHERE job_id = ? AND stage = ?"
VOID_ALL = "DELETE FROM results WHERE job_id = ?"

ANY_REQUESTS = "SELECT EXISTS (SELECT 1 FROM requests)"
REQUESTS_OF = "SELECT * FROM requests WHERE job_id = ? ORDER BY at, kind, name"
JOBS_WITH_REQUESTS = Batch("SELECT DISTINCT job_id FROM requests WHERE job_id IN (VALUES", 1, ")")
SETTLE = "DELETE FROM requests WHERE job_id = ? AND kind = ? AND name = ?"
COUNT_REQUESTS = """
    UPDATE jobs SET requests = (SELECT count(*) FROM requests WHERE job_id = ?1) WHERE id = ?1
"""


class Roles:
    """Which role a state was last seen with.

    A guess that saves a read: the update checks it, and when it was wrong the change is written
    the slow way, which reads. A state has one role, except while undos run in it.
    """

    def __init__(self) -> None:
        self._seen: dict[tuple[str, int, str], str] = {}

    def learn(self, row: JobRow) -> None:
        """Remember the role of the state that this row stands in."""
        self._seen[row.flow, row.flow_version, row.state] = row.role

    def guess(self, row: JobRow, state: str) -> str | None:
        """Answer the role that this state of this flow had."""
        return self._seen.get((row.flow, row.flow_version, state))


def commit(t: Transaction, changes: Sequence[Change], roles: Roles) -> list[Receipt]:
    """Write the changes and answer one receipt each, in order."""
    _must_be_a_batch(changes)
    moves = _moves(changes, roles)
    if moves is not None:
        try:
            if MOVE_LEASED.write(t.db, moves) == len(moves):
                return _follow(t, changes, moves)
        except sqlite3.IntegrityError:
            # A repeated change that kept its lease, or data that no table takes: look at each.
            pass
        t.db.execute("ROLLBACK")
        t.db.execute("BEGIN IMMEDIATE")
        t.counts.clear()
        t.made_due = False
    return [_commit_one(t, change, roles) for change in changes]


def _must_be_a_batch(changes: Sequence[Change]) -> None:
    if len(changes) > LARGEST_BATCH:
        raise Refused(f"{len(changes)} changes in one commit; {LARGEST_BATCH} are allowed")
    ids = {change.row[0] for change in changes}
    if len(ids) < len(changes):
        for change in changes:
            if change.row.id not in ids:
                raise Refused(
                    f"job {to_text(change.row.id)} has two changes in one commit; one is allowed"
                )
            ids.discard(change.row.id)


def _moves(changes: Sequence[Change], roles: Roles) -> list[Row] | None:
    """Make the rows of the guarded update, or None when some change needs more than a guard."""
    moves: list[Row] = []
    for change in changes:
        row, events, origin = change.row, change.events, change.moved_from
        if change.token is None or change.takes_slot is not None or change.takes_key:
            return None
        role: str | None = row.role
        if origin is None:
            origin = row.state
        else:
            role = roles.guess(row, origin)
            if role is None:
                return None
        before = row.seq - len(events)
        if len(events) != 1 and not _follow_each_other(change, before):
            return None
        if events and events[0].seq != before + 1:
            return None
        moves.append((*row[FIRST_MUTABLE:SIDE], row[0], change.token, origin, role, before))
    return moves


def _follow_each_other(change: Change, before: int) -> bool:
    return all(event.seq == n for n, event in enumerate(change.events, before + 1))


def _follow(t: Transaction, changes: Sequence[Change], moves: list[Row]) -> list[Receipt]:
    """Write what hangs on rows that have moved."""
    INSERT_EVENTS.write(t.db, [event for change in changes for event in change.events])
    moved: dict[tuple[str, int, str, str, str, str], int] = {}
    for change, move in zip(changes, moves, strict=True):
        row = change.row
        if change.moved_from is not None:
            path = (row.flow, row.flow_version, move[-3], move[-2], row.state, row.role)
            moved[path] = moved.get(path, 0) + 1
        if row.lane and row.leased_by is None:
            t.made_due = True
    for (flow, version, old_state, old_role, state, role), jobs in moved.items():
        t.count((flow, version, old_state, old_role), -jobs)
        t.count((flow, version, state, role), jobs)
    results = [result for change in changes for result in change.results if not change.voids]
    if results:
        WRITE_RESULTS.write(t.db, results)
    for change in changes:
        if _has_more(change):
            _write_more(t, change, change.row)
    return _receipts(t, changes)


def _has_more(change: Change) -> Any:
    return (
        change.frees_key
        or change.frees_slot
        or change.messages
        or change.voids
        or change.answers
        or change.spawns
        or change.proofs
    )


def _write_more(t: Transaction, change: Change, row: JobRow) -> None:
    """Write what few changes have. The row's immutable columns are those that are stored."""
    for stage in change.voids:
        if stage == EVERY_STAGE:
            t.db.execute(VOID_ALL, (row.id,))
        else:
            t.db.execute(VOID_STAGE, (row.id, stage))
    if change.voids and change.results:
        WRITE_RESULTS.write(t.db, change.results)
    if change.answers:
        settle(t, row.id, change.answers)
    if change.proofs:
        keys.chain(t, row.tenant, change.events, change.proofs)
    if change.messages:
        outbox.post(t, change.messages)
    if change.frees_slot is not None:
        keys.free_slot(t, change.frees_slot, row.id)
    if change.takes_slot is not None:
        keys.take_slot(t, change.takes_slot, row.id)
    if change.frees_key:
        keys.free_key(t, row)
    if change.takes_key and keys.holder_of(t, row) is None:
        keys.take_key(t, row, None)
    for job in change.spawns:
        intake.add_one(t, job)


def _receipts(t: Transaction, changes: Sequence[Change]) -> list[Receipt]:
    receipts: list[Receipt] = [COMMITTED] * len(changes)
    if t.db.execute(ANY_REQUESTS).fetchone()[0]:
        asked = JOBS_WITH_REQUESTS.read(t.db, ones(change.row.id for change in changes))
        jobs = {job_id for (job_id,) in asked}
        for n, change in enumerate(changes):
            if change.row.id in jobs:
                receipts[n] = Committed(_requests_of(t, change.row.id))
    return receipts


def _requests_of(t: Transaction, job_id: bytes) -> tuple[Any, ...]:
    return tuple(map(as_request, t.db.execute(REQUESTS_OF, (job_id,)).fetchall()))


def settle(t: Transaction, job_id: bytes, answers: Sequence[tuple[str, str]]) -> None:
    """Drop settled requests and count those that are left."""
    t.db.executemany(SETTLE, [(job_id, *answer) for answer in answers])
    t.db.execute(COUNT_REQUESTS, (job_id,))


def _commit_one(t: Transaction, change: Change, roles: Roles) -> Receipt:
    """Write one change after reading the row that it changes."""
    old = intake.find_job(t.db, change.row.id)
    if not is_in_trail(t.db, change):
        refusal = _guard(change, old) or _lack(t, change)
        if refusal is not None:
            return refusal
        assert old is not None  # noqa: S101 - no guard lets an absent job pass
        roles.learn(old)
        _write_one(t, change, old)
    if old is not None and old.requests:
        return Committed(_requests_of(t, change.row.id))
    return COMMITTED


def is_in_trail(db: sqlite3.Connection, change: Change) -> bool:
    """Tell whether this very change was written: its last event carries its commit id."""
    facts = (change.row.id, change.row.seq, change.commit_id)
    return db.execute(IS_IN_TRAIL, facts).fetchone() is not None


def _guard(change: Change, old: JobRow | None) -> Receipt | None:
    """Answer the refusal when somebody came first."""
    if change.token is not None:
        return None if old is not None and old.token == change.token else LeaseLost()
    if old is None or old.version != change.version or old.leased_by is not None:
        return Stale(old)
    return None


def _lack(t: Transaction, change: Change) -> Receipt | None:
    """Answer the refusal when the change needs what is not to be had."""
    if change.takes_slot is not None and keys.free_places(t, change.takes_slot) <= 0:
        return SlotTaken(change.takes_slot)
    if change.takes_key:
        holder = keys.holder_of(t, change.row)
        if holder is not None and holder != change.row.id:
            return KeyTaken(holder)
    return None


def _write_one(t: Transaction, change: Change, old: JobRow) -> None:
    row = change.row
    before = old.seq
    if len(change.events) != row.seq - before or not _follow_each_other(change, before):
        raise Refused(
            f"job {to_text(row.id)}: its events do not follow number {before} of the trail"
        )
    t.db.execute(MOVE_ONE, (*row[FIRST_MUTABLE:SIDE], row.id))
    INSERT_EVENTS.write(t.db, change.events)
    if (old.state, old.role) != (row.state, row.role):
        t.count((old.flow, old.flow_version, old.state, old.role), -1)
        t.count((old.flow, old.flow_version, row.state, row.role), 1)
    if row.lane and row.leased_by is None:
        t.made_due = True
    if change.results and not change.voids:
        WRITE_RESULTS.write(t.db, change.results)
    _write_more(t, change, old)
