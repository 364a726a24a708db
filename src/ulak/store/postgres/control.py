"""Flow control in PostgreSQL's own words; the rest is in `ulak.store.sql.control`."""

from __future__ import annotations

from collections.abc import Sequence

from ulak.core.job import OF_STATE, OF_UNDO, held_slot
from ulak.core.lifecycle import BUSY, READY, UNDOING
from ulak.core.policy import LimitTerms
from ulak.store import flow_control
from ulak.store.flow_control import ON_RATE
from ulak.store.postgres import slots
from ulak.store.postgres.connections import Session, Transaction
from ulak.store.postgres.values import Ids, Numbers, Texts
from ulak.store.sql import control
from ulak.store.sql.control import IDLE_KEYS, Control, find_limit

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
    """Return jobs whose slot is not what it must be where a limit counts those of a state."""
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
    ids, must_be = zip(*found, strict=True) if found else ((), ())
    t.db.execute(SET_SLOTS, (Ids(ids), Texts(must_be), Texts(held)))


CONTROL: Control[Transaction] = Control(slots.open_slots, slots.pass_on, find_misplaced, adopt)
end_pauses = CONTROL.end_pauses
pause_key = control.pause_key
paused_key = control.paused_key


def sweep(t: Transaction, limit: int) -> int:
    """Remove what counts for nothing any more."""
    idle = t.db.rows(IDLE_KEYS, (limit,))
    for (name,) in idle:
        t.db.execute(CLOSE_KEYS, (name,))
    left = t.db.rows(LEFT, (limit,))
    if left:
        names, numbers = zip(*left, strict=True)
        t.db.execute(FREE_LEFT, (Texts(names), Numbers(numbers)))
    filled = t.db.touch(FULL_BUCKETS, (t.now, limit))
    over = CONTROL.sweep_pauses(t, limit)
    worthless = t.db.touch(WORTHLESS_TURNS, (limit,))
    return len(idle) + len(left) + filled + over + worthless
