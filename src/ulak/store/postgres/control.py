"""Flow control, and what keeps new jobs out; the rest is in `ulak.store.sql.control`."""

from __future__ import annotations

from collections.abc import Sequence

from ulak.core.admission import EVERY_TENANT, StopRow, Waiting
from ulak.core.job import OF_STATE, OF_UNDO, NewJob, held_slot
from ulak.core.lifecycle import BUSY, READY, UNDOING
from ulak.core.policy import LimitTerms
from ulak.store import flow_control
from ulak.store.caller import Rows, Steps, take
from ulak.store.flow_control import ON_RATE, Stops
from ulak.store.postgres import slots
from ulak.store.postgres.session import Session, Transaction
from ulak.store.postgres.values import Ids, Numbers, Texts, as_arrays
from ulak.store.sql import control
from ulak.store.sql.control import IDLE_KEYS, Control, find_limit
from ulak.store.sql.session import columns

# The jobs whose slot is not what it must be where a limit counts the jobs in a busy state. Each of
# them stands in one of three indexes, and nothing that has ended does.
_MUST_BE = f"""
    CASE WHEN state = %(source)s::text THEN %(mark)s::text
         WHEN role = '{BUSY}' THEN '{OF_STATE}' ELSE '{OF_UNDO}' END
    || %(name)s::text || CASE WHEN %(keyed)s::boolean
        THEN '/' || coalesce(keys::json -> %(source)s::text ->> 'slot', '') ELSE '' END
"""
_MISPLACED = f"""
    flow = %(flow)s::text AND slot IS DISTINCT FROM ({_MUST_BE}) AND (
        state = %(source)s::text AND role = '{READY}'
        OR state = %(busy)s::text AND role IN ('{BUSY}', '{UNDOING}')
    )
"""
MISPLACED = f"""
    SELECT id FROM ulak.jobs
    WHERE leased_by IS NULL AND parked_on IS NULL AND lane <> '' AND {_MISPLACED}
    UNION SELECT id FROM ulak.jobs WHERE leased_by IS NOT NULL AND {_MISPLACED}
    UNION SELECT id FROM ulak.jobs WHERE parked_on IS NOT NULL AND {_MISPLACED}
    LIMIT %(most)s::bigint
"""
MUST_BE = f"""
    SELECT id, {_MUST_BE} FROM ulak.jobs WHERE id = ANY (%(ids)s::uuid[]) AND {_MISPLACED}
    ORDER BY id FOR NO KEY UPDATE
"""
SET_SLOTS = """
    UPDATE ulak.jobs SET slot = m.slot, parked_on = CASE
        WHEN jobs.parked_on = m.held THEN NULL ELSE jobs.parked_on END
    FROM unnest(%s::uuid[], %s::text[], %s::text[]) AS m (id, slot, held) WHERE jobs.id = m.id
"""
# A slot that is locked is being taken or given up; what is locked here is looked at once more.
_IS_LEFT = f"""
    NOT EXISTS (SELECT FROM ulak.jobs WHERE id = s.job_id
        AND slot IN ('{OF_STATE}' || s.limit_name, '{OF_UNDO}' || s.limit_name))
"""
LEFT = f"""
    SELECT limit_name, n FROM ulak.slots AS s
    WHERE of_state = 1 AND job_id IS NOT NULL AND {_IS_LEFT}
    ORDER BY limit_name, n LIMIT %s::bigint FOR UPDATE SKIP LOCKED
"""
FREE_LEFT = f"""
    UPDATE ulak.slots AS s SET job_id = NULL, of_state = 0
    FROM unnest(%s::text[], %s::bigint[]) AS k (limit_name, n)
    WHERE s.limit_name = k.limit_name AND s.n = k.n AND {_IS_LEFT}
"""

# A slot that is being taken is not free any more; those that are missing are opened again.
CLOSE_KEYS = """
    DELETE FROM ulak.slots WHERE ctid = ANY (ARRAY(
        SELECT ctid FROM ulak.slots WHERE limit_name = %s::text AND job_id IS NULL
        FOR UPDATE SKIP LOCKED
    ))
"""
# A bucket is full when what was lacking has come in since; nobody may be parked on it.
FULL_BUCKETS = f"""
    DELETE FROM ulak.buckets WHERE ctid = ANY (ARRAY(
        SELECT b.ctid FROM ulak.buckets AS b JOIN ulak.rates AS r
            ON b.name = r.name OR (b.name > r.name || '/' AND b.name < r.name || '0')
        WHERE b.level + (%s::bigint - b.filled_at) * r.n >= r.burst * r.per_us
          AND NOT EXISTS (SELECT FROM ulak.jobs WHERE parked_on = '{ON_RATE}' || b.name)
        ORDER BY b.name LIMIT %s::bigint FOR UPDATE OF b SKIP LOCKED
    ))
"""
WORTHLESS_TURNS = """
    DELETE FROM ulak.turns WHERE ctid = ANY (ARRAY(
        SELECT ctid FROM ulak.turns AS t
        WHERE passed <= (SELECT max(began) FROM ulak.turns WHERE lane = t.lane)
        ORDER BY lane, tenant LIMIT %s::bigint FOR UPDATE SKIP LOCKED
    ))
"""


def find_misplaced(db: Session, name: str, terms: LimitTerms) -> list[bytes]:
    return [row[0] for row in db.rows(MISPLACED, flow_control.adoption(name, terms))]


def adopt(t: Transaction, name: str, terms: LimitTerms, job_ids: Sequence[bytes]) -> None:
    """Give the jobs that stand in a busy state slots, and those before it the need of one.

    Jobs before limits, limits before slots: as claims and commits lock them.
    """
    facts = flow_control.adoption(name, terms) | {"ids": Ids(job_ids)}
    found: list[tuple[bytes, str]] = t.db.rows(MUST_BE, facts)
    known = find_limit(t, name)
    held = [held_slot(slot, leased=False) for _, slot in found]
    for (job_id, _), limit in zip(found, held, strict=True):
        if limit is not None and known is not None:
            slots.occupy(t, limit, job_id, (find_limit(t, limit) or known).n)
    t.db.execute(SET_SLOTS, (*as_arrays(found, Ids, Texts), Texts(held)))


CONTROL: Control[Transaction] = Control(slots.open_slots, slots.pass_on, find_misplaced, adopt)
end_pauses = CONTROL.end_pauses
pause_key = control.pause_key
paused_key = control.paused_key


def sweep(t: Transaction, limit: int) -> int:
    idle = t.db.rows(IDLE_KEYS, (limit,))
    for (name,) in idle:
        t.db.execute(CLOSE_KEYS, (name,))
    left = t.db.rows(LEFT, (limit,))
    if left:
        t.db.execute(FREE_LEFT, as_arrays(left, Texts, Numbers))
    filled = t.db.touch(FULL_BUCKETS, (t.now, limit))
    over = CONTROL.sweep_pauses(t, limit)
    worthless = t.db.touch(WORTHLESS_TURNS, (limit,))
    return len(idle) + len(left) + filled + over + worthless


# Its own stop is said before that of all tenants.
STOP_FOR = f"""
    SELECT {columns(StopRow)} FROM ulak.stops
    WHERE flow = %s::text AND tenant IN (%s::text, '{EVERY_TENANT}')
    ORDER BY tenant = '{EVERY_TENANT}' LIMIT 1
"""
_THEIRS = f"""
    FROM unnest(%(stop_flows)s::text[], %(stop_tenants)s::text[]) AS a (flow, tenant)
    JOIN ulak.stops AS s ON s.flow = a.flow AND s.tenant IN (a.tenant, '{EVERY_TENANT}')
"""
ANY_STOP_FOR = f"SELECT {_THEIRS}"
STOPS_FOR = f"""
    SELECT DISTINCT ON (a.flow, a.tenant) a.flow, a.tenant,
        {", ".join(f"s.{name}" for name in StopRow._fields)} {_THEIRS}
    ORDER BY a.flow, a.tenant, s.tenant = '{EVERY_TENANT}'
"""
# Each by an index; its conditions are repeated word by word. Parked is everything that begins
# with `flow/state`, or with that and a slash: a slash is followed by a zero.
COUNT_WAITING = """
    SELECT count(*) FROM (
        SELECT FROM ulak.jobs
        WHERE leased_by IS NULL AND parked_on IS NULL AND lane <> ''
          AND lane = ANY (%(lanes)s::text[]) AND tenant = %(tenant)s::text
        LIMIT %(limit)s::bigint
    ) AS standing
"""
COUNT_PARKED = """
    SELECT count(*) FROM (
        SELECT FROM unnest(%(names)s::text[]) AS p (name)
        JOIN ulak.jobs AS j ON j.parked_on IS NOT NULL
          AND j.parked_on >= p.name COLLATE "C" AND j.parked_on < (p.name || '0') COLLATE "C"
        WHERE j.lane = ANY (%(lanes)s::text[]) AND j.tenant = %(tenant)s::text
        LIMIT %(limit)s::bigint
    ) AS parked
"""


def find_stops(db: Session, jobs: Sequence[NewJob]) -> Stops:
    pairs = bind_pairs(jobs)
    found = db.rows(STOPS_FOR, pairs) if pairs["stop_flows"] else []
    return {(flow, tenant): StopRow(*stop) for flow, tenant, *stop in found}


def bind_pairs(jobs: Sequence[NewJob]) -> dict[str, Texts]:
    pairs = sorted({(job.row.flow, job.row.tenant) for job in jobs if not job.is_admitted})
    flows, tenants = [flow for flow, _ in pairs], [tenant for _, tenant in pairs]
    return {"stop_flows": Texts(flows), "stop_tenants": Texts(tenants)}


def find_steps(flow: str, tenant: str) -> Steps[StopRow | None]:
    found: Rows = yield STOP_FOR, (flow, tenant)
    return StopRow(*found[0]) if found else None


def count_waiting(db: Session, waiting: Waiting) -> int:
    return take(waiting_steps(waiting), lambda sql, values: Rows(db.rows(sql, values)))


def waiting_steps(waiting: Waiting) -> Steps[int]:
    facts = {
        "lanes": Texts(waiting.lanes), "tenant": waiting.tenant, "limit": waiting.limit,
        "names": Texts(waiting.parked_on),
    }  # fmt: skip
    standing: Rows = yield COUNT_WAITING, facts
    count: int = standing[0][0]
    if waiting.parked_on:
        parked: Rows = yield COUNT_PARKED, facts
        count += parked[0][0]
    return min(count, waiting.limit)
