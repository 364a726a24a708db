"""The one way a job changes: each change whole or not at all, a receipt for each.

The changes of workers are one guarded update. Their last events are written by the same statement,
from the rows that it moved; all else follows for those rows alone, so that no line of a trail is
ever without its move. The changes of operators and of upkeep go the same way, once their jobs are
locked and their guards have let them pass. What that update did not move, and what needs more than
a guard, is looked at one by one in the same transaction.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from operator import attrgetter, itemgetter

from ulak.clock import Instant
from ulak.core.change import COMMITTED, EVERY_STAGE, Change, Committed, KeyTaken, Receipt, SlotTaken
from ulak.core.event import ENGINE
from ulak.core.job import FIRST_MUTABLE, SIDE, Event, JobRow, NewJob, Request, Result, is_of_state
from ulak.errors import WriteRefused
from ulak.ids import to_text
from ulak.store.batches import Key, follow_each_other, key_of, must_be_a_batch, refusal_of
from ulak.store.postgres import control, intake, outbox, slots, trail
from ulak.store.postgres.intake import FIND_JOBS, JOB_TYPES
from ulak.store.postgres.months import month_of
from ulak.store.postgres.outbox import FLOWS
from ulak.store.postgres.session import Session, Transaction
from ulak.store.postgres.values import Groups, Ids, Numbers, Sheet, Texts, as_arrays
from ulak.store.protocol.outbox import read_flows
from ulak.store.sql.reads import COUNT_REQUESTS
from ulak.store.sql.session import (
    EVENT_COLUMNS,
    JOB_COLUMNS,
    REQUEST_COLUMNS,
    Id,
    Row,
    as_job,
    as_request,
)

_MUTABLE = JobRow._fields[FIRST_MUTABLE:SIDE]
_OWN = (
    "version", "seq", "changed_at", "not_before", "deadline_at", "wake_at", "leased_at", "token",
)  # fmt: skip
_SHARED = tuple(name for name in _MUTABLE if name not in _OWN)
_own_of = itemgetter(*(JobRow._fields.index(name) for name in _OWN))
_shared_of = itemgetter(*(JobRow._fields.index(name) for name in _SHARED))

# Of its last event, what the row does not say itself.
_OF_EVENT = ("token", "started_at", "at", "commit_id")
_EVENT_OWN = {f"event_{name}": trail.OWN[name] for name in _OF_EVENT}
_EVENT_SHARED = {f"event_{name}": kind for name, kind in trail.SHARED.items()}
_event_own_of = itemgetter(*(Event._fields.index(name) for name in _OF_EVENT))
_NO_EVENT_OWN: Row = (0, None, 0, b"")
_NO_EVENT_SHARED: Row = (None,) * len(trail.SHARED)

MOVES = Sheet(
    "m",
    {"id": "uuid", "old_token": "bigint"} | {name: JOB_TYPES[name] for name in _OWN} | _EVENT_OWN,
    {name: JOB_TYPES[name] for name in _SHARED}
    | _EVENT_SHARED
    | {"old_state": "text", "old_role": "text", "events": "bigint"},
)
# The event goes by the names that the update answers, its columns of groups by their number.
_WRITTEN = {
    "job_id": "moved.id",
    "seq": "moved.seq",
    **{name: f"moved.event_{name}" for name in _OF_EVENT},
    **{name: MOVES[f"event_{name}"].replace("[m.", "[moved.") for name in trail.SHARED},
}
# State, role and number of events are guarded beside the token: the counters and the trail are
# written from what the change says of them, and it may be wrong.
MOVE_LEASED = f"""
    WITH moved AS (
        UPDATE ulak.jobs SET {", ".join(f"{name} = {MOVES[name]}" for name in _MUTABLE)}
        FROM {MOVES.source}
        WHERE jobs.id = m.id AND jobs.token = m.old_token AND jobs.state = {MOVES["old_state"]}
          AND jobs.role = {MOVES["old_role"]} AND jobs.seq = m.seq - {MOVES["events"]}
        RETURNING jobs.id, jobs.seq, jobs.month, jobs.requests, m.in_group,
                  {", ".join(f"m.{name}" for name in _EVENT_OWN)}
    ), written AS (
        INSERT INTO ulak.events (month, {EVENT_COLUMNS})
        SELECT moved.month, {", ".join(_WRITTEN[name] for name in Event._fields)} FROM moved
        WHERE {_WRITTEN["kind"]} IS NOT NULL
    )
    SELECT id, requests, {FLOWS} FROM moved
"""
LOCK = f"""
    SELECT {FLOWS}, {JOB_COLUMNS} FROM ulak.jobs WHERE id = ANY (%s::uuid[])
    ORDER BY id FOR NO KEY UPDATE
"""
MOVE_ONE = f"""
    UPDATE ulak.jobs SET {", ".join(f"{name} = %s::{JOB_TYPES[name]}" for name in _MUTABLE)}
    WHERE id = %s::uuid
"""
MIGRATE = """
    UPDATE ulak.jobs SET flow_version = m.flow_version, keys = m.keys
    FROM unnest(%s::uuid[], %s::bigint[], %s::text[]) AS m (id, flow_version, keys)
    WHERE jobs.id = m.id
"""
IS_IN_TRAIL = """
    SELECT 1 FROM ulak.events
    WHERE job_id = %s::uuid AND seq = %s::bigint AND commit_id = %s::bytea AND month = %s::bigint
"""
VOID_STAGE = "DELETE FROM ulak.results WHERE job_id = %s::uuid AND stage = %s::text"
VOID_ALL = "DELETE FROM ulak.results WHERE job_id = %s::uuid AND left(stage, 1) <> '/'"

REQUESTS_OF = f"""
    SELECT {REQUEST_COLUMNS} FROM ulak.requests WHERE job_id = ANY (%s::uuid[])
    ORDER BY at, kind, name
"""
SETTLE = """
    DELETE FROM ulak.requests WHERE job_id = %s::uuid AND (kind, name) IN (
        SELECT * FROM unnest(%s::text[], %s::text[])
    )
"""


_id = attrgetter("row.id")


def commit(t: Transaction, changes: Sequence[Change]) -> list[Receipt]:
    """Write the changes and answer one receipt each, in order."""
    must_be_a_batch(changes)
    ordered = sorted(changes, key=_id)
    plain = [change for change in ordered if _is_plain(change)]
    stored: dict[bytes, JobRow] = {}
    if len(plain) < len(ordered):
        # Taken by id, all of them, before any is written.
        stored = _lock(t, ordered)
        plain = [c for c in ordered if _is_plain(c) or _may_pass(c, stored.get(c.row.id))]
    moved = _move(t, plain, stored)
    left = [change for change in ordered if change.row.id not in moved]
    if left and not stored:
        stored = _look(t, left)
    rest = Rest(t)
    receipts: dict[bytes, Receipt] = {}
    for change in ordered:
        if change.row.id in moved:
            receipts[change.row.id] = COMMITTED
            if change.token is None:
                _count_difference(t, stored[change.row.id], change.row, change.row.flow_version)
            else:
                _count_move(t, change)
            rest.follow(change, stored.get(change.row.id, change.row))
        else:
            receipts[change.row.id] = _commit_one(t, change, stored.get(change.row.id), rest)
    rest.write()
    asked = [job_id for job_id, requests in moved.items() if requests]
    asked += [c.row.id for c in left if (row := stored.get(c.row.id)) and row.requests]
    for job_id, requests in _requests_of(t.db, asked).items():
        if isinstance(receipts[job_id], Committed):
            receipts[job_id] = Committed(tuple(requests))
    return [receipts[change.row.id] for change in changes]


def _is_plain(change: Change) -> bool:
    """Tell whether a guard is all that this change needs."""
    return (
        change.token is not None
        and change.takes_slot is None
        and not change.takes_key
        and follow_each_other(change, change.row.seq - len(change.events))
    )


def _may_pass(change: Change, old: JobRow | None) -> bool:
    """Tell whether a change of an operator has passed its guard, and needs nothing else.

    Its version moves with every change: one that passes was never written before.
    """
    return (
        change.token is None
        and change.takes_slot is None
        and not change.takes_key
        and old is not None
        and refusal_of(change, old) is None
        and follow_each_other(change, change.row.seq - len(change.events))
    )


def _move(
    t: Transaction, changes: Sequence[Change], stored: Mapping[bytes, JobRow]
) -> dict[bytes, int]:
    """Move what its guard lets through; answer the ids, each with its number of requests.

    The jobs of operators' changes are `stored`, and locked: their tokens cannot move either.
    """
    if not changes:
        return {}
    groups = Groups()
    for change in changes:
        row, events = change.row, change.events
        origin, role = change.moved_from, change.role_from
        if origin is None or role is None:
            origin, role = row.state, row.role
        own, shared = _NO_EVENT_OWN, _NO_EVENT_SHARED
        if events:
            own, shared = _event_own_of(events[-1]), trail.shared_of(events[-1])
        token = stored[row.id].token if change.token is None else change.token
        groups.add(
            (*_shared_of(row), *shared, origin, role, len(events)),
            (row.id, token, *_own_of(row), *own),
        )
    found = t.db.rows(MOVE_LEASED, groups.bind(MOVES))
    moved: dict[bytes, int] = {job_id: requests for job_id, requests, _ in found}
    if found:
        t.followed = read_flows(found[0][-1])
    earlier = [
        (month_of(change.row.created_at), event)
        for change in changes
        if len(change.events) > 1 and change.row.id in moved
        for event in change.events[:-1]
    ]
    trail.append(t.db, earlier)
    passed = [c.row for c in changes if c.token is None and c.row.id in moved]
    _migrate(t.db, [(row, stored[row.id]) for row in passed])
    return moved


def _migrate(db: Session, rows: Iterable[tuple[JobRow, JobRow]]) -> None:
    """Write what only operators' changes may move, for each new row and the one it replaces."""
    new = [
        (row.id, row.flow_version, row.keys)
        for row, old in rows
        if (row.flow_version, row.keys) != (old.flow_version, old.keys)
    ]
    if new:
        db.execute(MIGRATE, as_arrays(new, Ids, Numbers, Texts))


def _count_difference(t: Transaction, old: JobRow, row: JobRow, version: int) -> None:
    before = (old.flow, old.flow_version, old.state, old.role)
    after = (old.flow, version, row.state, row.role)
    if before != after:
        t.count(before, -1)
        t.count(after, 1)


def _count_move(t: Transaction, change: Change) -> None:
    row, origin, role = change.row, change.moved_from, change.role_from
    if origin is not None and role is not None:
        t.count((row.flow, row.flow_version, origin, role), -1)
        t.count((row.flow, row.flow_version, row.state, row.role), 1)


def _lock(t: Transaction, changes: Sequence[Change]) -> dict[bytes, JobRow]:
    found = t.db.rows(LOCK, (Ids([change.row.id for change in changes]),))
    if found:
        t.followed = read_flows(found[0][0])
    return {row[1]: as_job(row[1:]) for row in found}


def _look(t: Transaction, changes: Sequence[Change]) -> dict[bytes, JobRow]:
    """Read the jobs of changes that their guard has stopped.

    A lease that is lost stays lost, so those are not locked: the jobs of this batch that come
    after them are locked already, and to go back would be to wait in a circle.
    """
    ids = Ids([change.row.id for change in changes])
    stored = {row[0]: as_job(row) for row in t.db.rows(FIND_JOBS, (ids,))}
    held = [c for c in changes if (row := stored.get(c.row.id)) and row.token == c.token]
    return stored | _lock(t, held) if held else stored


def _commit_one(t: Transaction, change: Change, old: JobRow | None, rest: Rest) -> Receipt:
    if old is not None and is_in_trail(t.db, change, old):
        return COMMITTED
    refusal = refusal_of(change, old) or _lack(t, change, rest)
    if refusal is not None:
        return refusal
    assert old is not None  # noqa: S101 - no guard lets an absent job pass
    row, before = change.row, old.seq
    if len(change.events) != row.seq - before or not follow_each_other(change, before):
        raise WriteRefused(
            f"job {to_text(row.id)}: its events do not follow number {before} of the trail"
        )
    t.db.execute(MOVE_ONE, (*row[FIRST_MUTABLE:SIDE], Id(row.id)))
    version = old.flow_version
    if change.token is None:
        _migrate(t.db, [(row, old)])
        version = row.flow_version
    month = month_of(old.created_at)
    trail.append(t.db, [(month, event) for event in change.events])
    _count_difference(t, old, row, version)
    rest.follow(change, old)
    return COMMITTED


def is_in_trail(db: Session, change: Change, row: JobRow) -> bool:
    """Tell whether this very change was written: its last event carries its commit id."""
    facts = (Id(change.row.id), change.row.seq, change.commit_id, month_of(row.created_at))
    return db.row(IS_IN_TRAIL, facts) is not None


def _lack(t: Transaction, change: Change, rest: Rest) -> Receipt | None:
    """Take the key and the slot that the change needs, or answer what it lacks."""
    row, limit = change.row, change.takes_slot
    if limit is not None or change.takes_key:
        rest.give_up()
    free: list[int] = []
    if limit is not None and control.paused_key(t, row.slot, row.rate) is None:
        places = min(1, slots.free_of(t.db, [limit])[limit])
        free = slots.find_free(t.db, {limit: places})[limit]
    if limit is not None and not free:
        return SlotTaken(limit)
    key = key_of(row) if change.takes_key else None
    if key is not None:
        holder = intake.take_keys(t, {key: (row.id, None)}).get(key)
        if holder is not None and holder.id != row.id:
            return KeyTaken(holder.id)
    if limit is not None:
        # A job holds one slot at a time: the one of the stage before is given up first.
        if change.frees_slot is not None:
            rest.free_slots.append((change.frees_slot, row.id))
            rest.give_up()
        slots.write(t.db, [(limit, free[0], row.id)], of_state=is_of_state(row.slot))
    return None


class Rest:
    """What a batch writes after its jobs: results, messages, keys, new jobs, slots."""

    def __init__(self, t: Transaction) -> None:
        self._t = t
        self._results: list[tuple[int, Result]] = []
        self._spawns: list[NewJob] = []
        self._free_keys: list[tuple[Key, bytes]] = []
        self.free_slots: list[tuple[str, bytes]] = []
        self._freed: Counter[str] = Counter()
        self._messages: list[Change] = []
        self._pauses: list[tuple[str, Instant, str]] = []

    def follow(self, change: Change, row: JobRow) -> None:
        """Note what hangs on a change that was written. The row's fixed columns are the stored."""
        t = self._t
        t.follow(row.flow, change.events)
        if change.row.lane and change.row.leased_by is None:
            t.made_due = True
        for stage in change.voids:
            if stage == EVERY_STAGE:
                t.db.execute(VOID_ALL, (Id(row.id),))
            else:
                t.db.execute(VOID_STAGE, (Id(row.id), stage))
        if change.results:
            month = month_of(row.created_at)
            self._results += [(month, result) for result in change.results]
        if change.answers:
            settle(t.db, row.id, change.answers)
        if change.proofs:
            t.prove(row.tenant, change.events, change.proofs)
        if change.messages:
            self._messages.append(change)
        if change.frees_slot is not None and change.takes_slot is None:
            self.free_slots.append((change.frees_slot, row.id))
        key = key_of(row)
        if change.frees_key and key is not None:
            self._free_keys.append((key, row.id))
        self._spawns += change.spawns
        for paused, until in change.pauses:
            actor = change.events[-1].actor if change.events else ENGINE
            self._pauses.append((paused, until, actor))

    def give_up(self) -> None:
        """Free the keys and slots of the changes so far: the next one may take them."""
        intake.free_keys(self._t.db, self._free_keys)
        self._freed += slots.leave(self._t.db, self.free_slots)
        self._free_keys, self.free_slots = [], []

    def write(self) -> None:
        """Write it all: jobs before keys, keys before slots, slots before pauses."""
        t = self._t
        trail.keep(t.db, self._results)
        outbox.post(t, [m for change in self._messages for m in change.messages])
        self.give_up()
        if self._spawns:
            intake.add_again(t, self._spawns)
        # Last, so that nobody is let in to a place that this very batch has taken.
        slots.let_in(t, self._freed)
        for paused, until, actor in sorted(self._pauses):
            control.pause_key(t, paused, until, actor)


def _requests_of(db: Session, ids: Iterable[bytes]) -> dict[bytes, list[Request]]:
    wanted = list(ids)
    found: dict[bytes, list[Request]] = {}
    if wanted:
        for row in db.rows(REQUESTS_OF, (Ids(wanted),)):
            found.setdefault(row[0], []).append(as_request(row))
    return found


def settle(db: Session, job_id: bytes, answers: Sequence[tuple[str, str]]) -> None:
    db.execute(SETTLE, (Id(job_id), *as_arrays(answers, Texts, Texts)))
    db.execute(COUNT_REQUESTS, {"id": Id(job_id)})
