"""The one way a job changes: each change whole or not at all, a receipt for each.

A batch is first written as a whole: one guarded update over all its rows, which must touch every
one of them. The guards of operators' changes are looked at before it, which suffices where there is
one writer. Only then are events written, so that no line of a trail is ever without its move.
If the update touched fewer, everything is taken back and the changes are walked one by one.
Either way they are taken by id, and what they do to other tables is written after (`intake.Rest`).
"""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from operator import itemgetter

from ulak.core.change import COMMITTED, EVERY_STAGE, Change, Committed, KeyTaken, Receipt, SlotTaken
from ulak.core.event import ENGINE
from ulak.core.job import FIRST_MUTABLE, SIDE, JobRow, Request
from ulak.errors import WriteRefused
from ulak.ids import to_text
from ulak.store.batches import follow_each_other, must_be_a_batch, refusal_of
from ulak.store.protocol.outbox import read_flows
from ulak.store.sql.session import REQUEST_COLUMNS, Row, as_request
from ulak.store.sqlite import intake, outbox
from ulak.store.sqlite.intake import Rest
from ulak.store.sqlite.rows import ABSENT, PACKED_IDS, Spread, pack
from ulak.store.sqlite.session import FLOWS, CountKey, Transaction, append_events, keep_results

_MUTABLE = JobRow._fields[FIRST_MUTABLE:SIDE]
_OWN = (
    "version", "seq", "changed_at", "not_before", "deadline_at", "wake_at", "leased_at", "token",
)  # fmt: skip
_NULLABLE = {"deadline_at", "wake_at", "leased_at"}
_SHARED = tuple(name for name in _MUTABLE if name not in _OWN)
_GUESSED = ("old_state", "old_role", "events")
_MORE = ("frees_key", "frees_slot", "messages", "voids", "answers", "spawns", "proofs", "pauses")
# By position: reading eight names of each change takes as long as all the rest of its plan.
_own = itemgetter(*(JobRow._fields.index(name) for name in _OWN))
_shared = itemgetter(*(JobRow._fields.index(name) for name in _SHARED))
_more = itemgetter(*(Change._fields.index(name) for name in _MORE))


def _moving(shared: Mapping[str, str]) -> tuple[str, str, str]:
    own = {name: f"v.column{n}" for n, name in enumerate((*_OWN, "id", "old_token"), 1)}
    settings = own | {name: f"nullif({own[name]}, {ABSENT})" for name in _NULLABLE} | dict(shared)
    # The state, role and number of events are guarded beside the token: the counters and the
    # trail are written from what the change says of them, and it may be wrong.
    guards = {
        "id": own["id"],
        "token": own["old_token"],
        "state": shared["old_state"],
        "role": shared["old_role"],
        "seq": f"{own['seq']} - {shared['events']}",
    }
    setting = ", ".join(f"{name} = {settings[name]}" for name in _MUTABLE)
    guard = " AND ".join(f"jobs.{name} = {value}" for name, value in guards.items())
    return (
        f"UPDATE OR FAIL jobs SET {setting} FROM (VALUES",
        "(" + ", ".join("?" * len(own)) + ")",
        f") AS v WHERE {guard}",
    )


MOVE_LEASED = Spread((*_SHARED, *_GUESSED), _moving)
MOVE_ONE = f"UPDATE jobs SET {', '.join(f'{name} = ?' for name in _MUTABLE)} WHERE id = ?"
MIGRATE_ONE = "UPDATE jobs SET flow_version = ?, keys = ? WHERE id = ?"
STANDING = f"""
    SELECT json_group_array(
        json_array(hex(id), token, version, leased_by IS NULL, flow_version, keys)
    ) FROM jobs WHERE id IN {PACKED_IDS}
"""
"""One value, as `rows` says why."""

IS_IN_TRAIL = "SELECT 1 FROM events WHERE job_id = ? AND seq = ? AND commit_id = ?"
VOID_STAGE = "DELETE FROM results WHERE job_id = ? AND stage = ?"
VOID_ALL = "DELETE FROM results WHERE job_id = ? AND substr(stage, 1, 1) <> '/'"

ANY_REQUESTS = "SELECT EXISTS (SELECT 1 FROM requests)"
LOOK = f"{ANY_REQUESTS}, {FLOWS}"
REQUESTS_OF = f"SELECT {REQUEST_COLUMNS} FROM requests WHERE job_id = ? ORDER BY at, kind, name"
JOBS_WITH_REQUESTS = f"SELECT DISTINCT job_id FROM requests WHERE job_id IN {PACKED_IDS}"
SETTLE = "DELETE FROM requests WHERE job_id = ? AND kind = ? AND name = ?"
COUNT_REQUESTS = """
    UPDATE jobs SET requests = (SELECT count(*) FROM requests WHERE job_id = ?1) WHERE id = ?1
"""


def commit(t: Transaction, changes: Sequence[Change]) -> list[Receipt]:
    must_be_a_batch(changes)
    ordered = sorted(changes, key=_id)
    plan = _plan(ordered, _tokens(t.db, ordered))
    if plan is not None:
        any_requests, flows = t.db.execute(LOOK).fetchone()
        t.followed = read_flows(flows)
        try:
            if MOVE_LEASED.write(t.db, plan.groups) == len(changes):
                _follow(t, ordered, plan)
                return _receipts(t, changes) if any_requests else [COMMITTED] * len(changes)
        except sqlite3.IntegrityError:
            # A repeated change that kept its lease, or data that no table takes: look at each.
            pass
        t.start_over()
    return commit_each(t, changes)


def commit_each(t: Transaction, changes: Sequence[Change]) -> list[Receipt]:
    """Write the changes one by one; nothing is begun again."""
    rest = Rest(t)
    receipts = {c.row.id: _commit_one(t, c, rest) for c in sorted(changes, key=_id)}
    intake.finish(t, rest)
    return [receipts[change.row.id] for change in changes]


def _id(change: Change) -> bytes:
    return change[0][0]


@dataclass(slots=True)
class _Plan:
    """A batch as one update: its rows by what they share, and the moves that they make."""

    groups: dict[Row, list[Row]] = field(default_factory=dict)
    moves: dict[tuple[CountKey, CountKey], int] = field(default_factory=dict)


def _tokens(db: sqlite3.Connection, changes: Sequence[Change]) -> dict[bytes, int]:
    """Return the tokens of the jobs whose operators' changes pass their guards."""
    acts = {change.row.id: change for change in changes if change.token is None}
    if not acts:
        return {}
    passed = {}
    for hexed, token, *facts in json.loads(db.execute(STANDING, (pack(acts),)).fetchone()[0]):
        change = acts[bytes.fromhex(hexed)]
        if facts == [change.version, 1, change.row.flow_version, change.row.keys]:
            passed[change.row.id] = token
    return passed


def _plan(changes: Sequence[Change], tokens: Mapping[bytes, int]) -> _Plan | None:
    """Plan the guarded update, or return None when some change needs more than a guard."""
    plan = _Plan()
    groups, moves = plan.groups, plan.moves
    for change in changes:
        row, token, origin, number = change.row, change.token, change.moved_from, len(change.events)
        if token is None:
            token = tokens.get(row.id)
        if token is None or change.takes_slot is not None or change.takes_key:
            return None
        if not follow_each_other(change, row.seq - number):
            return None
        role = change.role_from
        if origin is None or role is None:
            origin, role = row.state, row.role
        else:
            flow, version = row.flow, row.flow_version
            move = (flow, version, origin, role), (flow, version, row.state, row.role)
            moves[move] = moves.get(move, 0) + 1
        *first, deadline, wake, leased_at, new_token = _own(row)
        own = (
            *first,
            ABSENT if deadline is None else deadline,
            ABSENT if wake is None else wake,
            ABSENT if leased_at is None else leased_at,
            new_token, bytearray(row.id), token,
        )  # fmt: skip
        groups.setdefault((*_shared(row), origin, role, number), []).append(own)
    return plan


def _follow(t: Transaction, changes: Sequence[Change], plan: _Plan) -> None:
    """Write what hangs on rows that have moved."""
    append_events(t.db, [event for change in changes for event in change.events])
    for (origin, target), jobs in plan.moves.items():
        t.count(origin, -jobs)
        t.count(target, jobs)
    t.follow((change.row.flow, change.events) for change in changes)
    results = [r for change in changes if not change.voids for r in change.results]
    if results:
        keep_results(t.db, results)
    rest = None
    for change in changes:
        if change.row.lane and change.row.leased_by is None:
            t.made_due = True
        if any(_more(change)):
            rest = rest or Rest(t)
            _write_more(t, change, change.row, rest)
    if rest is not None:
        intake.finish(t, rest)


def _write_more(t: Transaction, change: Change, row: JobRow, rest: Rest) -> None:
    """Write what few changes have. The row's immutable columns are those that are stored."""
    for stage in change.voids:
        if stage == EVERY_STAGE:
            t.db.execute(VOID_ALL, (row.id,))
        else:
            t.db.execute(VOID_STAGE, (row.id, stage))
    if change.voids and change.results:
        keep_results(t.db, change.results)
    if change.answers:
        settle(t, row.id, change.answers)
    if change.proofs:
        t.prove(row.tenant, change.events, change.proofs)
    if change.messages:
        outbox.post(t, change.messages)
    if change.frees_slot is not None:
        rest.free_slot(change.frees_slot, row.id)
    if change.takes_slot is not None:
        rest.take_slot(change.takes_slot, change.row)
    if change.frees_key:
        rest.free_key(row)
    if change.takes_key and rest.holder_of(row) is None:
        rest.take_key(row, None)
    for job in change.spawns:
        intake.admit(t, rest, job)
    for key, until in change.pauses:
        rest.pause(key, until, change.events[-1].actor if change.events else ENGINE)


def _receipts(t: Transaction, changes: Sequence[Change]) -> list[Receipt]:
    ids = pack(change.row.id for change in changes)
    jobs = {job_id for (job_id,) in t.db.execute(JOBS_WITH_REQUESTS, (ids,)).fetchall()}
    return [
        Committed(_requests_of(t, change.row.id)) if change.row.id in jobs else COMMITTED
        for change in changes
    ]


def _requests_of(t: Transaction, job_id: bytes) -> tuple[Request, ...]:
    return tuple(map(as_request, t.db.execute(REQUESTS_OF, (job_id,)).fetchall()))


def settle(t: Transaction, job_id: bytes, answers: Sequence[tuple[str, str]]) -> None:
    t.db.executemany(SETTLE, [(job_id, *answer) for answer in answers])
    t.db.execute(COUNT_REQUESTS, (job_id,))


def _commit_one(t: Transaction, change: Change, rest: Rest) -> Receipt:
    old = intake.find_job(t.db, change.row.id)
    if not is_in_trail(t.db, change):
        refusal = refusal_of(change, old) or _lack(change, rest)
        if refusal is not None:
            return refusal
        assert old is not None  # noqa: S101 - no guard lets an absent job pass
        _write_one(t, change, old, rest)
    if old is not None and old.requests:
        return Committed(_requests_of(t, change.row.id))
    return COMMITTED


def is_in_trail(db: sqlite3.Connection, change: Change) -> bool:
    facts = (change.row.id, change.row.seq, change.commit_id)
    return db.execute(IS_IN_TRAIL, facts).fetchone() is not None


def _lack(change: Change, rest: Rest) -> Receipt | None:
    if change.takes_slot is not None and (
        rest.free_places(change.takes_slot) <= 0 or rest.has_paused_key(change.row)
    ):
        return SlotTaken(change.takes_slot)
    if change.takes_key:
        holder = rest.holder_of(change.row)
        if holder is not None and holder != change.row.id:
            return KeyTaken(holder)
    return None


def _write_one(t: Transaction, change: Change, old: JobRow, rest: Rest) -> None:
    row = change.row
    before = old.seq
    if len(change.events) != row.seq - before or not follow_each_other(change, before):
        raise WriteRefused(
            f"job {to_text(row.id)}: its events do not follow number {before} of the trail"
        )
    t.db.execute(MOVE_ONE, (*row[FIRST_MUTABLE:SIDE], row.id))
    version = old.flow_version
    if change.token is None and (row.flow_version, row.keys) != (version, old.keys):
        version = row.flow_version
        t.db.execute(MIGRATE_ONE, (version, row.keys, row.id))
    append_events(t.db, change.events)
    t.follow([(old.flow, change.events)])
    left = (old.flow, old.flow_version, old.state, old.role)
    entered = (old.flow, version, row.state, row.role)
    if left != entered:
        t.count(left, -1)
        t.count(entered, 1)
    if row.lane and row.leased_by is None:
        t.made_due = True
    if change.results and not change.voids:
        keep_results(t.db, change.results)
    _write_more(t, change, old, rest)
