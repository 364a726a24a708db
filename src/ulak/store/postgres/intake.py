"""New jobs: the row, the first event, the payload, the key; and the ticks that make them.

Keys are taken first, in their order, and then every job is stored that has its key or needs none.
That is not the order of other writes, and no circle can come of it: nobody else can wait for the
row of a job that is not stored yet.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from collections.abc import Set as AbstractSet
from operator import itemgetter
from types import MappingProxyType
from typing import Any, get_type_hints

from psycopg import errors

from ulak.clock import Instant
from ulak.core.admission import StopRow
from ulak.core.delivery import EVENT
from ulak.core.intake import EVENT_BEGINS, ROW_BEGINS, has_begun
from ulak.core.job import Event, JobRow, NewJob
from ulak.errors import Contended
from ulak.store.batches import Key, key_of
from ulak.store.flow_control import NO_STOPS, Stops
from ulak.store.postgres import control, trail
from ulak.store.postgres.months import month_of
from ulak.store.postgres.session import Session, Transaction
from ulak.store.postgres.values import Groups, Ids, Numbers, Sheet, Texts, as_arrays
from ulak.store.protocol import Added, ScheduleRow, Tick
from ulak.store.protocol.control import must_be_ticks
from ulak.store.sql.session import EVENT_COLUMNS, JOB_COLUMNS, Id, Row, as_job, columns

_TYPES: Mapping[Any, str] = {bytes: "uuid", int: "bigint", int | None: "bigint"}

JOB_TYPES = {name: _TYPES.get(hint, "text") for name, hint in get_type_hints(JobRow).items()}

_OWN = (
    "id", "created_at", "dedup_key", "expires_at", "scheduled_for", "changed_at", "not_before",
    "deadline_at", "wake_at",
)  # fmt: skip
_SHARED = tuple(name for name in JobRow._fields if name not in _OWN)
_own_of = itemgetter(*(JobRow._fields.index(name) for name in _OWN))
_shared_of = itemgetter(*(JobRow._fields.index(name) for name in _SHARED))

_EVENT = {f"event_{name}": kind for name, kind in (trail.OWN | trail.SHARED).items()}
_EVENT_OWN = {name: _EVENT[name] for name in _EVENT if name.removeprefix("event_") in trail.OWN}
_EVENT_SHARED = {name: _EVENT[name] for name in _EVENT if name not in _EVENT_OWN}

NEW = Sheet(
    "n",
    {name: JOB_TYPES[name] for name in _OWN} | _EVENT_OWN | {"data": "bytea", "trace": "text"},
    {name: JOB_TYPES[name] for name in _SHARED}
    | _EVENT_SHARED
    | {"schema": "bigint", "month": "bigint"},
)


# The statement that writes finds a stop itself, and fails: its error takes everything back. So no
# other answer is waited for, and where there is no stop the look costs next to nothing.
_UNLESS = "/ (CASE WHEN EXISTS ({}) THEN 0 ELSE 1 END)"


def _insert(unless: str = "", *, deliveries: bool = True) -> str:
    id, flow, at = NEW["id"], NEW["flow"], NEW["event_at"]
    # The first events, for each follower: no line has another head.
    followed = f"""
        new_deliveries AS (
            INSERT INTO ulak.deliveries (
                job_id, seq, n, key, topic, data, at, handler, not_before, head
            )
            SELECT {id}, 1, {EVENT}, {id}::text, {flow}, 'null'::bytea, {at}, h.name, {at}, 1
            FROM n, ulak.handlers AS h WHERE h.flow = {flow} ORDER BY {id}
        ),
    """
    return f"""
        WITH n AS (SELECT * FROM {NEW.source}),
        new_jobs AS (
            INSERT INTO ulak.jobs ({JOB_COLUMNS}, month)
            SELECT {NEW.columns(JobRow._fields)}, {NEW["month"]} {unless} FROM n
        ),
        new_payloads AS (
            INSERT INTO ulak.payloads (month, job_id, data, schema, trace)
            SELECT {NEW.columns(("month", "id", "data", "schema", "trace"))} FROM n
        ),
        {followed if deliveries else ""}
        new_counts AS (
            INSERT INTO ulak.count_deltas (flow, flow_version, state, role, jobs)
            SELECT {NEW.columns(("flow", "flow_version", "state", "role"))}, count(*) FROM n
            GROUP BY 1, 2, 3, 4
        )
        INSERT INTO ulak.events (month, {EVENT_COLUMNS})
        SELECT {NEW["month"]}, {NEW.columns(f"event_{name}" for name in Event._fields)} FROM n
    """


INSERT = _insert()
INSERT_UNLESS_STOPPED = _insert(_UNLESS.format(control.ANY_STOP_FOR))
# A table of deliveries into which nothing is written is felt, and so is a look for stops: these
# statements fail for every flow that was ever stopped or followed, which is then written as above.
_PARTICULAR = "SELECT FROM ulak.particular_flows WHERE flow = "
INSERT_PLAIN = _insert(_UNLESS.format(f"{_PARTICULAR} ANY (%(n_flow)s::text[])"), deliveries=False)
# A lone job, with plain values: arrays of one would cost more than the rows.
_ONE = JOB_TYPES | {"month": "bigint", "data": "bytea", "schema": "bigint", "trace": "text"}
_ONE |= {f"event_{name}": _EVENT[f"event_{name}"] for name in Event._fields[1:]}
_BEGINS = {**ROW_BEGINS, **{f"event_{name}": value for name, value in EVENT_BEGINS.items()}}
_BOUND = {name: kind for name, kind in _ONE.items() if name not in _BEGINS}
_PLACES = {name: f"${n}::{kind}" for n, (name, kind) in enumerate(_BOUND.items(), 1)}
_PLACES["event_job_id"] = _PLACES["id"]
_PLACES |= {name: "NULL" if value is None else repr(value) for name, value in _BEGINS.items()}
_bound_of_row = itemgetter(
    *(n for n, name in enumerate(JobRow._fields) if n and name not in ROW_BEGINS)
)
_bound_of_event = itemgetter(
    *(n for n, name in enumerate(Event._fields) if n and name not in EVENT_BEGINS)
)


def _places(*names: str) -> str:
    return ", ".join(_PLACES[name] for name in names)


INSERT_ONE = f"""
    WITH new_job AS (
        INSERT INTO ulak.jobs ({JOB_COLUMNS}, month)
        VALUES ({_places(*JobRow._fields, "month")} {_UNLESS.format(_PARTICULAR + _PLACES["flow"])})
    ),
    new_payload AS (
        INSERT INTO ulak.payloads (month, job_id, data, schema, trace)
        VALUES ({_places("month", "id", "data", "schema", "trace")})
    ),
    new_count AS (
        INSERT INTO ulak.count_deltas (flow, flow_version, state, role, jobs)
        VALUES ({_places("flow", "flow_version", "state", "role")}, 1)
    )
    INSERT INTO ulak.events (month, {EVENT_COLUMNS})
    VALUES ({_places("month", *(f"event_{name}" for name in Event._fields))})
"""
# A job that is being pruned gets no owner: it is gone, and nobody waits for that. Its lock keeps
# others from pruning it, and from nothing else.
OWN = """
    INSERT INTO ulak.owners (job_id, owner, at)
    SELECT j.id, o.owner, %s::bigint
    FROM unnest(%s::uuid[], %s::text[]) AS o (job_id, owner) JOIN ulak.jobs AS j ON j.id = o.job_id
    ORDER BY o.job_id, o.owner
    FOR KEY SHARE OF j SKIP LOCKED
    ON CONFLICT (job_id, owner) DO NOTHING
"""
# A repeat locks no row of an owner; only who says since when does.
OWN_SINCE = OWN.replace("NOTHING", "UPDATE SET at = excluded.at WHERE excluded.at < owners.at")
NONE_STORED: Mapping[bytes, JobRow] = MappingProxyType({})
FIND_JOB = f"SELECT {JOB_COLUMNS} FROM ulak.jobs WHERE id = %s::uuid"
FIND_JOBS = f"SELECT {JOB_COLUMNS} FROM ulak.jobs WHERE id = ANY (%s::uuid[])"
FIND_PARTICULAR = "SELECT flow FROM ulak.particular_flows WHERE flow = ANY (%s::text[])"


def are_plain(jobs: Sequence[NewJob]) -> bool:
    for job in jobs:
        if job.row.dedup_key is not None or job.proof is not None or job.owner:
            return False
    return True


def add_plain(
    t: Transaction, jobs: Sequence[NewJob], particular: AbstractSet[str] = frozenset()
) -> list[Added]:
    """Store jobs, as if none of them were there, with a statement that nobody waits for.

    Of `particular` flows it is known that the plain statements fail.
    """
    if len(jobs) == 1:
        row, event, payload, _, _, is_admitted, _ = jobs[0]
        if not is_admitted and row.flow not in particular and has_begun(row, event):
            facts = _bound_of_row(row), (month_of(row.created_at), *payload), _bound_of_event(event)
            t.db.execute(INSERT_ONE, (Id(row.id), *facts[0], *facts[1], *facts[2]))
            t.made_due = row.lane != ""
            return [Added(row, True)]
    if jobs and particular.isdisjoint({job.row.flow for job in jobs}):
        t.db.execute(INSERT_PLAIN, bind(jobs))
    elif jobs:
        t.db.execute(INSERT_UNLESS_STOPPED, bind(jobs) | control.bind_pairs(jobs))
    t.made_due = any(job.row.lane for job in jobs)
    return [Added(job.row, True) for job in jobs]


def add_again(t: Transaction, jobs: Sequence[NewJob], found: Stops = NO_STOPS) -> list[Added]:
    """Store the jobs that are not stored already; those that a stop keeps out get the stop."""
    ids = Ids(sorted({job.row.id for job in jobs}))
    stored = {row[0]: as_job(row) for row in t.db.rows(FIND_JOBS, (ids,))}
    return add(t, jobs, stored, found)


def add_carefully(t: Transaction, jobs: Sequence[NewJob]) -> list[Added]:
    return add_again(t, jobs, control.find_stops(t.db, jobs))


def add(
    t: Transaction,
    jobs: Sequence[NewJob],
    stored: Mapping[bytes, JobRow] = NONE_STORED,
    found: Stops | None = None,
) -> list[Added]:
    """Store the jobs; a stop that was not found makes the write fail if `found` is None."""
    first: dict[Key, NewJob] = {}
    chosen: dict[bytes, NewJob] = {}
    for job in jobs:
        key = key_of(job.row)
        if job.row.id in stored or job.row.id in chosen or key in first:
            continue
        if key is not None:
            first[key] = job
        chosen[job.row.id] = job
    out: dict[bytes, StopRow] = {
        job.row.id: found[job.row.flow, job.row.tenant]
        for job in chosen.values()
        if found and not job.is_admitted and (job.row.flow, job.row.tenant) in found
    }
    wishes = {
        key: (job.row.id, job.key_expires_at) for key, job in first.items() if job.row.id not in out
    }
    held = take_keys(t, wishes)
    held |= find_holders(t, [key for key, job in first.items() if job.row.id in out])
    for key in held:
        del chosen[first[key].row.id]
    new = [chosen[job_id] for job_id in sorted(chosen) if job_id not in out]
    insert(t, new, unless_stopped=found is None)

    def answer(job: NewJob) -> Added:
        if job.row.id in stored:
            return Added(stored[job.row.id], True)
        if job.row.id in chosen:
            stop = out.get(job.row.id)
            return Added(chosen[job.row.id].row, stop is None, stop)
        key = key_of(job.row)
        assert key is not None  # noqa: S101 - nothing but a key makes a job a duplicate
        if key not in held and first[key].row.id in out:
            return Added(job.row, False, out[first[key].row.id])
        holder = held[key] if key in held else first[key].row
        # A job that holds its own key was stored by an `add` that lost its answer.
        return Added(holder, holder.id == job.row.id)

    added = [answer(job) for job in jobs]
    owned = {
        (one.row.id, job.owner)
        for one, job in zip(added, jobs, strict=True)
        if job.owner and one.stop is None
    }
    if owned:
        own(t, sorted(owned))
    return added


def own(t: Transaction, owned: Sequence[tuple[bytes, str]], since: Instant | None = None) -> None:
    at = t.now if since is None else since
    t.db.execute(OWN if since is None else OWN_SINCE, bind_owners(at, owned))


def bind_owners(now: Instant, owned: Sequence[tuple[bytes, str]]) -> tuple[Any, ...]:
    return now, *as_arrays(owned, Ids, Texts)


def is_stop(error: BaseException | None) -> bool:
    return isinstance(error, errors.DivisionByZero)


def insert(t: Transaction, jobs: Sequence[NewJob], *, unless_stopped: bool = False) -> None:
    if not jobs:
        return
    for row, event, _, _, proof, *_ in jobs:
        if row.lane:
            t.made_due = True
        if proof is not None:
            t.prove(row.tenant, [event], [proof])
    if unless_stopped:
        t.db.execute(INSERT_UNLESS_STOPPED, bind(jobs) | control.bind_pairs(jobs))
    else:
        t.db.execute(INSERT, bind(jobs))


def find_particular(db: Session, jobs: Sequence[NewJob]) -> set[str]:
    """Return the flows of these jobs that the plain statements cannot store."""
    flows = Texts(sorted({job.row.flow for job in jobs}))
    return {row[0] for row in db.rows(FIND_PARTICULAR, (flows,))}


def bind(jobs: Sequence[NewJob]) -> dict[str, Any]:
    groups = Groups()
    for row, event, payload, *_ in jobs:
        own = (*_own_of(row), *trail.own_of(event), payload.data, payload.trace)
        shared = (
            *_shared_of(row), *trail.shared_of(event), payload.schema, month_of(row.created_at),
        )  # fmt: skip
        groups.add(shared, own)
    return groups.bind(NEW)


def find_job(db: Session, job_id: bytes) -> JobRow | None:
    row = db.row(FIND_JOB, (Id(job_id),))
    return None if row is None else as_job(row)


Wish = tuple[bytes, Instant | None]
"""The job that wants a key, and when it may be taken over again."""

_KEYS = "unnest(%s::text[], %s::text[], %s::text[]) AS k (tenant, flow, key)"
_SAME_KEY = "d.tenant = k.tenant AND d.flow = k.flow AND d.key = k.key"

# A live key is not even locked: its job must be able to end meanwhile.
TAKE_FREE = """
    INSERT INTO ulak.dedup (tenant, flow, key, job_id, expires_at)
    SELECT * FROM unnest(%s::text[], %s::text[], %s::text[], %s::uuid[], %s::bigint[])
    ON CONFLICT (tenant, flow, key) DO NOTHING
    RETURNING tenant, flow, key
"""
HOLDERS = f"""
    SELECT d.tenant, d.flow, d.key, d.job_id, d.expires_at,
           {", ".join(f"j.{name}" for name in JobRow._fields)}
    FROM {_KEYS} JOIN ulak.dedup AS d ON {_SAME_KEY} LEFT JOIN ulak.jobs AS j ON j.id = d.job_id
"""
TAKE_OVER = """
    UPDATE ulak.dedup SET job_id = %s::uuid, expires_at = %s::bigint
    WHERE tenant = %s::text AND flow = %s::text AND key = %s::text AND job_id = %s::uuid
"""
FREE_KEYS = """
    DELETE FROM ulak.dedup AS d
    USING unnest(%s::text[], %s::text[], %s::text[], %s::uuid[]) AS k (tenant, flow, key, job_id)
    WHERE d.tenant = k.tenant AND d.flow = k.flow AND d.key = k.key AND d.job_id = k.job_id
"""
MOST_ROUNDS = 3


def take_keys(t: Transaction, wishes: Mapping[Key, Wish]) -> dict[Key, JobRow]:
    """Take what is free or has expired; return the jobs that hold the rest, by key."""
    left = dict(wishes)
    for _ in range(MOST_ROUNDS):
        for tenant, flow, key in _take_free(t.db, left):
            del left[tenant, flow, key]
        held = _take_over(t, left)
        if held.keys() == left.keys():
            return held
        # Some were freed in between: those are tried again.
    raise Contended(f"{len(left)} dedup keys change hands too fast; try again")


def find_holders(t: Transaction, keys: Sequence[Key]) -> dict[Key, JobRow]:
    return {
        (tenant, flow, name): row
        for tenant, flow, name, _, expires_at, row in _holders(t.db, sorted(keys))
        if row is not None and (expires_at is None or expires_at > t.now)
    }


def _take_free(db: Session, wishes: Mapping[Key, Wish]) -> list[Row]:
    if not wishes:
        return []
    rows = [(*key, *wishes[key]) for key in sorted(wishes)]
    return db.rows(TAKE_FREE, as_arrays(rows, Texts, Texts, Texts, Ids, Numbers))


def _take_over(t: Transaction, left: dict[Key, Wish]) -> dict[Key, JobRow]:
    """Take over what has expired, or what nobody stored holds; answer who holds the others."""
    held: dict[Key, JobRow] = {}
    for tenant, flow, name, job_id, expires_at, row in _holders(t.db, sorted(left)):
        key = (tenant, flow, name)
        own_id, own_date = left[key]
        if row is None or (expires_at is not None and expires_at <= t.now):
            if t.db.touch(TAKE_OVER, (Id(own_id), own_date, *key, Id(job_id))):
                del left[key]
        else:
            held[key] = row
    return held


def _holders(db: Session, keys: Sequence[Key]) -> list[Row]:
    if not keys:
        return []
    return [
        (*row[:5], None if row[5] is None else as_job(row[5:]))
        for row in db.rows(HOLDERS, as_arrays(keys, Texts, Texts, Texts))
    ]


def free_keys(db: Session, held: Sequence[tuple[Key, bytes]]) -> None:
    if held:
        rows = [(*key, job_id) for key, job_id in sorted(held)]
        db.execute(FREE_KEYS, as_arrays(rows, Texts, Texts, Texts, Ids))


TAKE_SCHEDULES = f"""
    SELECT {columns(ScheduleRow)} FROM ulak.schedules
    WHERE name = ANY (%s::text[]) ORDER BY name FOR UPDATE
"""
MOVE_SCHEDULES = """
    UPDATE ulak.schedules AS s SET next_at = m.next_at
    FROM unnest(%s::text[], %s::bigint[]) AS m (name, next_at) WHERE s.name = m.name
"""
TICKED = """
    SELECT t.schedule, t.due_at FROM unnest(%s::text[], %s::bigint[]) AS d (schedule, due_at)
    JOIN ulak.ticks AS t ON t.schedule = d.schedule AND t.due_at = d.due_at
"""
INSERT_TICKS = """
    INSERT INTO ulak.ticks (schedule, due_at, job_id)
    SELECT * FROM unnest(%s::text[], %s::bigint[], %s::uuid[])
"""


def tick(t: Transaction, ticks: Sequence[Tick]) -> list[bool]:
    """Write what its guard lets through: jobs first, then the ticks that name them."""
    must_be_ticks(ticks)
    names = Texts(sorted(tick.row.name for tick in ticks))
    stored = {row[0]: row for row in t.db.rows(TAKE_SCHEDULES, (names,))}
    won = [
        tick
        for tick in ticks
        if stored.get(tick.row.name) == tick.row
        and tick.row.paused_at is None
        and tick.row.next_at <= t.now
    ]
    dates = [(tick.row.name, job.row.scheduled_for or 0, job) for tick in won for job in tick.jobs]
    wanted = as_arrays([date[:2] for date in dates], Texts, Numbers)
    ticked = {tuple(row) for row in t.db.rows(TICKED, wanted)}
    fresh = [(name, due_at, job) for name, due_at, job in dates if (name, due_at) not in ticked]
    added = add_again(t, [job for _, _, job in fresh])
    if fresh:
        made = [(*date[:2], one.row.id) for date, one in zip(fresh, added, strict=True)]
        t.db.execute(INSERT_TICKS, as_arrays(made, Texts, Numbers, Ids))
    moved = [(tick.row.name, tick.next_at) for tick in won]
    t.db.execute(MOVE_SCHEDULES, as_arrays(moved, Texts, Numbers))
    written = {tick.row.name for tick in won}
    return [tick.row.name in written for tick in ticks]
