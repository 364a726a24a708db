"""New jobs, and the order of writes.

A batch is decided change by change in the order of its caller, so that of two jobs with one key
the first is stored, against what is stored and what the batch has done so far. What it does to
other tables waits in a `Rest` until all its jobs are written.

Writes go by one order: jobs by id, keys, slots, pauses; the heads of chains come last of all. Two
that write the same rows in one order can wait for each other, never in a circle. In a file there
is one writer at a time; every store keeps the order all the same, so that what one of them answers
to a batch does not depend on how its caller happened to arrange it. (Jobs that have most columns
in common are one statement: they are by id within it.)
"""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator, Sequence
from operator import itemgetter
from typing import Any

from ulak.clock import Instant
from ulak.core.admission import EVERY_TENANT, StopRow, Waiting
from ulak.core.intake import EVENT_BEGINS, ROW_BEGINS, has_begun
from ulak.core.job import Event, JobRow, NewJob, is_of_state
from ulak.store.batches import Key, key_of
from ulak.store.caller import Rows, Steps, take
from ulak.store.flow_control import NO_STOPS, Stops
from ulak.store.protocol import Added, ScheduleRow, Tick, TickRow
from ulak.store.protocol.control import must_be_ticks
from ulak.store.sql.session import JOB_COLUMNS, Row, as_job, columns
from ulak.store.sqlite import control
from ulak.store.sqlite.rows import (
    ABSENT,
    ABSENT_TEXT,
    NULLABLE_NUMBER,
    NULLABLE_TEXT,
    Batch,
    Spread,
    insert_begun,
    inserting,
    or_absent,
)
from ulak.store.sqlite.session import Transaction, append_events

ANY_STOP = "SELECT 1 FROM main.stops LIMIT 1"
_STOPS = """
    SELECT CAST(flow AS BLOB), CAST(tenant AS BLOB), +retry_after_us, CAST(actor AS BLOB),
        CAST(note AS BLOB), +at
    FROM main.stops
"""
# Its own stop is said before that of all tenants.
STOP_FOR = f"""{_STOPS} WHERE flow = ? AND (tenant = ? OR tenant = '{EVERY_TENANT}')
    ORDER BY tenant = '{EVERY_TENANT}' LIMIT 1
"""
# The conditions of the indexes are repeated word by word.
COUNT_STANDING = """
    SELECT count(*) FROM (
        SELECT 1 FROM main.jobs INDEXED BY jobs_claimable
        WHERE leased_by IS NULL AND parked_on IS NULL AND lane <> '' AND lane = ? AND tenant = ?
        LIMIT ?
    )
"""
# Everything that begins with `flow/state`, or with that and a slash: a slash is followed by a zero.
COUNT_PARKED = """
    SELECT count(*) FROM (
        SELECT 1 FROM main.jobs INDEXED BY jobs_parked
        WHERE parked_on IS NOT NULL AND parked_on >= ?1 AND parked_on < ?1 || '0'
          AND lane = ?2 AND tenant = ?3
        LIMIT ?4
    )
"""


def find_stops(db: sqlite3.Connection, jobs: Sequence[NewJob]) -> Stops:
    if db.execute(ANY_STOP).fetchone() is None:
        return NO_STOPS
    pairs = {(job.row.flow, job.row.tenant) for job in jobs if not job.is_admitted}
    found = {pair: db.execute(STOP_FOR, pair).fetchone() for pair in sorted(pairs)}
    return {pair: _stop(row) for pair, row in found.items() if row is not None}


def find_steps(flow: str, tenant: str) -> Steps[StopRow | None]:
    found: Rows = yield STOP_FOR, (flow, tenant)
    return _stop(found[0]) if found else None


def count_waiting(db: sqlite3.Connection, waiting: Waiting) -> int:
    steps = waiting_steps(waiting)
    return take(steps, lambda sql, values: Rows(db.execute(sql, values).fetchall()))


def waiting_steps(waiting: Waiting) -> Steps[int]:
    """Count the jobs that wait, up to the limit."""
    count = 0
    for lane in waiting.lanes:
        standing: Rows = yield COUNT_STANDING, (lane, waiting.tenant, waiting.limit)
        count += standing[0][0]
        for name in waiting.parked_on:
            parked: Rows = yield COUNT_PARKED, (name, lane, waiting.tenant, waiting.limit)
            count += parked[0][0]
    return min(count, waiting.limit)


def _stop(values: tuple[Any, ...]) -> StopRow:
    return StopRow._make(v.decode() if isinstance(v, bytes) else v for v in values)


_FREES, _TAKES = False, True


class Rest:
    """What a batch writes after the jobs that it moves: new jobs, keys, slots and pauses."""

    def __init__(self, t: Transaction) -> None:
        self._t = t
        self._new: dict[bytes, NewJob] = {}
        self._keys: dict[Key, list[tuple[bool, bytes, Instant | None]]] = {}
        self._slots: dict[str, list[tuple[bool, bytes, bool]]] = {}
        """Per limit the steps: whether a slot is taken, for which job, and whether for a state."""
        self._places: dict[str, tuple[int, int]] = {}
        """Per limit, how many places are free after so many of its steps."""
        self._pauses: list[tuple[str, Instant, str]] = []
        self.owned: list[tuple[bytes, str]] = []
        """Jobs and who owns them from now on."""

    def add(self, job: NewJob) -> None:
        self._new[job.row.id] = job
        self.take_key(job.row, job.key_expires_at)
        self.own(job.row.id, job.owner)

    def own(self, job_id: bytes, owner: str) -> None:
        if owner:
            self.owned.append((job_id, owner))

    def find_new(self, job_id: bytes) -> JobRow | None:
        job = self._new.get(job_id)
        return None if job is None else job.row

    def new_jobs(self) -> list[NewJob]:
        return [self._new[job_id] for job_id in sorted(self._new)]

    def holder_of(self, row: JobRow) -> bytes | None:
        """Return the job that will hold this job's dedup key."""
        key = key_of(row)
        if key is None:
            return None
        held = control.holder_of(self._t, key)
        for takes, job_id, _ in self._keys.get(key, ()):
            if takes:
                held = job_id
            elif held == job_id:
                held = None
        return held

    def free_key(self, row: JobRow) -> None:
        self._keep_key(row, _FREES, None)

    def take_key(self, row: JobRow, expires_at: Instant | None) -> None:
        self._keep_key(row, _TAKES, expires_at)

    def _keep_key(self, row: JobRow, takes: bool, expires_at: Instant | None) -> None:
        key = key_of(row)
        if key is not None:
            self._keys.setdefault(key, []).append((takes, row.id, expires_at))

    def free_places(self, limit: str) -> int:
        steps = self._slots.get(limit, [])
        if limit not in self._places:
            self._places[limit] = control.free_places(self._t, limit), 0
        places, seen = self._places[limit]
        for takes, job_id, _ in steps[seen:]:
            places += -1 if takes else control.holds_slot(self._t, limit, job_id)
        self._places[limit] = places, len(steps)
        return places

    def free_slot(self, limit: str, job_id: bytes) -> None:
        self._slots.setdefault(limit, []).append((_FREES, job_id, False))

    def take_slot(self, limit: str, row: JobRow) -> None:
        """Take a slot of which `free_places` knows."""
        self._slots.setdefault(limit, []).append((_TAKES, row.id, is_of_state(row.slot)))

    def has_paused_key(self, row: JobRow) -> bool:
        return control.paused_key(self._t, row.slot, row.rate) is not None

    def pause(self, key: str, until: Instant, actor: str) -> None:
        self._pauses.append((key, until, actor))

    def write(self) -> int:
        """Write keys, slots and pauses; answer how many jobs were unparked."""
        for key in sorted(self._keys):
            for takes, job_id, expires_at in self._keys[key]:
                if takes:
                    control.take_key(self._t, key, job_id, expires_at)
                else:
                    control.free_key(self._t, key, job_id)
        unparked = sum(self._write_slots())
        for name, until, actor in sorted(self._pauses):
            control.pause_key(self._t, name, until, actor)
        return unparked

    def _write_slots(self) -> Iterator[int]:
        for limit in sorted(self._slots):
            freed = 0
            steps = self._slots[limit]
            if any(takes for takes, _, _ in steps):
                control.open_slots(self._t, limit)
            for takes, job_id, of_state in steps:
                if takes:
                    control.take_slot(self._t, limit, job_id, of_state=of_state)
                else:
                    freed += control.free_slot(self._t, limit, job_id)
            # Last, so that nobody is let in to a place that this very batch has taken.
            if freed:
                places = min(freed, control.free_places(self._t, limit))
                yield control.pass_on(self._t, limit, places)


_OWN = {
    "id": "?",
    "created_at": "?",
    "dedup_key": NULLABLE_TEXT,
    "expires_at": NULLABLE_NUMBER,
    "scheduled_for": NULLABLE_NUMBER,
    "keys": NULLABLE_TEXT,
    "changed_at": "?",
    "not_before": "?",
    "deadline_at": NULLABLE_NUMBER,
    "wake_at": NULLABLE_NUMBER,
}
_SHARED = tuple(name for name in JobRow._fields if name not in _OWN)
_shared = itemgetter(*(JobRow._fields.index(name) for name in _SHARED))
_own_of = itemgetter(*(JobRow._fields.index(name) for name in _OWN))

INSERT_JOBS = Spread(_SHARED, inserting("jobs", _OWN))
INSERT_PAYLOADS = Batch(
    "INSERT OR FAIL INTO payloads (job_id, data, schema, trace) VALUES",
    f"(?, ?, ?, {NULLABLE_TEXT})",
)
TAKE_FREE_KEYS = Batch(
    "INSERT INTO dedup (tenant, flow, key, job_id, expires_at) VALUES",
    f"(?, ?, ?, ?, {NULLABLE_NUMBER})",
    "ON CONFLICT (tenant, flow, key) DO NOTHING",
)
# One job: what a batch saves by sharing values it spends on sorting them out.
INSERT_PAYLOAD_IF_PLAIN = f"""
    INSERT INTO payloads (job_id, data, schema, trace)
    VALUES (?, ?, CASE WHEN EXISTS (SELECT 1 FROM stops) THEN NULL
        WHEN EXISTS (SELECT 1 FROM handlers WHERE flow = ?) THEN NULL ELSE ? END, {NULLABLE_TEXT})
"""
_BOUND = dict.fromkeys((name for name in JobRow._fields if name not in ROW_BEGINS), "?")
_BOUND |= _OWN | dict.fromkeys(("slot", "rate", "awaits"), NULLABLE_TEXT)
INSERT_JOB = insert_begun("jobs", JobRow._fields, ROW_BEGINS, _BOUND)
_BOUND_OF_EVENT = dict.fromkeys((name for name in Event._fields if name not in EVENT_BEGINS), "?")
INSERT_EVENT = insert_begun("events", Event._fields, EVENT_BEGINS, _BOUND_OF_EVENT)
OWN = """
    INSERT INTO owners (job_id, owner, at) SELECT id, ?, ? FROM jobs WHERE id = ?
    ON CONFLICT DO UPDATE SET at = excluded.at WHERE excluded.at < owners.at
"""
FIND_JOB = f"SELECT {JOB_COLUMNS} FROM jobs WHERE id = ?"


def add(t: Transaction, jobs: Sequence[NewJob]) -> list[Added]:
    """Store the jobs, all at once when every id is new, every key free and every flow open."""
    if len(jobs) == 1:
        if _insert_lone(t, jobs[0]):
            return [Added(jobs[0].row, True)]
    elif not find_stops(t.db, jobs):
        if _insert_all(t, jobs):
            return [Added(job.row, True) for job in jobs]
        t.start_over()
    stops, rest = find_stops(t.db, jobs), Rest(t)
    added = [admit(t, rest, job, stops) for job in jobs]
    finish(t, rest)
    return added


def _insert_lone(t: Transaction, job: NewJob) -> bool:
    """Store a job, or return False: nothing is written."""
    # A look at its key costs little; to write a duplicate and take it back costs much.
    if job.row.dedup_key is not None and Rest(t).holder_of(job.row) is not None:
        return False
    try:
        if _insert_plain(t, job):
            if job.owner:
                own(t, [(job.row.id, job.owner)])
            if job.row.dedup_key is None or _take_free_keys(t, [job]):
                return True
    except sqlite3.IntegrityError:
        pass  # a stop, a follower, an id that is stored, or data that no table takes
    t.start_over()
    return False


def _insert_all(t: Transaction, jobs: Sequence[NewJob]) -> bool:
    """Store all the jobs, or return False: the transaction must be started over."""
    try:
        _insert(t, sorted(jobs, key=_id))
        own(t, [(job.row.id, job.owner) for job in jobs if job.owner])
        return _take_free_keys(t, jobs)
    except sqlite3.IntegrityError:
        # An id that is stored, or data that no table takes: look at each.
        return False


def _take_free_keys(t: Transaction, jobs: Sequence[NewJob]) -> bool:
    keyed = [
        (row.tenant, row.flow, row.dedup_key, bytearray(row.id), or_absent(expires_at))
        for row, _, _, expires_at, *_ in jobs
        if row.dedup_key is not None
    ]
    if not keyed:
        return True
    keyed.sort()
    return TAKE_FREE_KEYS.write(t.db, keyed) == len(keyed)


def _insert(t: Transaction, jobs: Sequence[NewJob]) -> None:
    groups: dict[Row, list[Row]] = {}
    for job in jobs:
        row = job.row
        own_id, created, key, expires, scheduled, keys, changed, due, deadline, wake = _own_of(row)
        own = (
            bytearray(own_id), created, ABSENT_TEXT if key is None else key,
            ABSENT if expires is None else expires, ABSENT if scheduled is None else scheduled,
            ABSENT_TEXT if keys is None else keys, changed, due,
            ABSENT if deadline is None else deadline, ABSENT if wake is None else wake,
        )  # fmt: skip
        groups.setdefault(_shared(row), []).append(own)
        t.count((row.flow, row.flow_version, row.state, row.role), 1)
        if row.lane:
            t.made_due = True
    INSERT_JOBS.write(t.db, groups)
    INSERT_PAYLOADS.write(
        t.db,
        [
            (bytearray(row.id), bytearray(data), schema, ABSENT_TEXT if trace is None else trace)
            for row, _, (data, schema, trace), *_ in jobs
        ],
    )
    append_events(t.db, [job.event for job in jobs])
    for job in jobs:
        if job.proof is not None:
            t.prove(job.row.tenant, [job.event], [job.proof])
    t.follow((job.row.flow, [job.event]) for job in jobs)


def _insert_plain(t: Transaction, job: NewJob) -> bool:
    """Store a job that has just begun, else return False. Fails where there is a stop, and where
    its flow is followed."""
    row, event, (data, schema, trace), _, proof, *_ = job
    if not has_begun(row, event):
        return False
    (
        own_id, tenant, flow, flow_version, created_at, submitter, dedup_key, priority, expires_at,
        scheduled_for, keys, state, role, _, _, _, _, _, changed_at, _, _, _, _, _, _,
        lane, not_before, slot, rate, cost, _, awaits, deadline_at, wake_at, *_,
    ) = row  # fmt: skip
    job_id = bytearray(own_id)
    said = ABSENT_TEXT if trace is None else trace
    t.db.execute(INSERT_PAYLOAD_IF_PLAIN, (job_id, bytearray(data), flow, schema, said))
    t.db.execute(
        INSERT_JOB,
        (
            job_id, tenant, flow, flow_version, created_at, submitter,
            ABSENT_TEXT if dedup_key is None else dedup_key, priority,
            ABSENT if expires_at is None else expires_at,
            ABSENT if scheduled_for is None else scheduled_for,
            ABSENT_TEXT if keys is None else keys, state, role, changed_at, lane, not_before,
            ABSENT_TEXT if slot is None else slot, ABSENT_TEXT if rate is None else rate, cost,
            ABSENT_TEXT if awaits is None else awaits,
            ABSENT if deadline_at is None else deadline_at, ABSENT if wake_at is None else wake_at,
        ),
    )  # fmt: skip
    _, _, _, _, to_state, actor, *_, at, _, commit_id = event
    t.db.execute(INSERT_EVENT, (job_id, to_state, actor, at, bytearray(commit_id)))
    t.counts[flow, flow_version, state, role] = 1
    if lane:
        t.made_due = True
    if proof is not None:
        t.prove(tenant, [event], [proof])
    return True


def admit(t: Transaction, rest: Rest, job: NewJob, stops: Stops = NO_STOPS) -> Added:
    """Decide to store a job; else return the one in its place, or the stop that keeps it out."""
    stored = rest.find_new(job.row.id) or find_job(t.db, job.row.id)
    if stored is not None:
        return Added(stored, True)
    holder = rest.holder_of(job.row)
    if holder is not None:
        first = rest.find_new(holder) or find_job(t.db, holder)
        if first is not None:
            rest.own(first.id, job.owner)
            return Added(first, False)
    stop = None if job.is_admitted else stops.get((job.row.flow, job.row.tenant))
    if stop is not None:
        return Added(job.row, False, stop)
    rest.add(job)
    return Added(job.row, True)


def finish(t: Transaction, rest: Rest) -> None:
    """Write what a batch leaves besides the jobs that it moves."""
    new = rest.new_jobs()
    if new:
        _insert(t, new)
    rest.write()
    own(t, rest.owned)


def own(t: Transaction, owned: Sequence[tuple[bytes, str]], since: Instant | None = None) -> None:
    """Add owners to jobs, unless they have been that for as long."""
    if owned:
        at = t.now if since is None else since
        t.db.executemany(OWN, [(owner, at, job_id) for job_id, owner in sorted(owned)])


def _id(job: NewJob) -> bytes:
    return job.row.id


def find_job(db: sqlite3.Connection, job_id: bytes) -> JobRow | None:
    row = db.execute(FIND_JOB, (job_id,)).fetchone()
    return None if row is None else as_job(row)


FIND_SCHEDULE = f"SELECT {columns(ScheduleRow)} FROM schedules WHERE name = ?"
MOVE_SCHEDULE = "UPDATE schedules SET next_at = ? WHERE name = ?"
HAS_TICK = "SELECT 1 FROM ticks WHERE schedule = ? AND due_at = ?"
INSERT_TICK = "INSERT INTO ticks (schedule, due_at, job_id) VALUES (?, ?, ?)"


def tick(t: Transaction, ticks: Sequence[Tick]) -> list[bool]:
    """Write what its guard lets through: jobs first, then the ticks that name them."""
    must_be_ticks(ticks)
    rest = Rest(t)
    written: dict[str, bool] = {}
    made: list[TickRow] = []
    for tick in sorted(ticks, key=lambda tick: tick.row.name):
        name = tick.row.name
        stored = t.db.execute(FIND_SCHEDULE, (name,)).fetchone()
        written[name] = (
            stored == tick.row and tick.row.paused_at is None and tick.row.next_at <= t.now
        )
        if not written[name]:
            continue
        for job in tick.jobs:
            due_at = job.row.scheduled_for or 0
            if t.db.execute(HAS_TICK, (name, due_at)).fetchone() is None:
                made.append(TickRow(name, due_at, admit(t, rest, job).row.id))
        t.db.execute(MOVE_SCHEDULE, (tick.next_at, name))
    finish(t, rest)
    t.db.executemany(INSERT_TICK, made)
    return [written[tick.row.name] for tick in ticks]
