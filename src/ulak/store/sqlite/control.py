"""Flow control in SQLite's own words; the rest is in `ulak.store.sql.control`."""

from __future__ import annotations

import sqlite3
from collections.abc import Sequence

from ulak.core.job import OF_STATE, OF_UNDO, held_slot
from ulak.core.lifecycle import BUSY, READY, UNDOING
from ulak.core.policy import LimitTerms
from ulak.store import flow_control
from ulak.store.sql import control
from ulak.store.sql.control import Control
from ulak.store.sqlite import keys
from ulak.store.sqlite.session import SharedTransaction, own, own_read, shared
from ulak.store.sqlite.writer import Transaction

OPEN_SLOT = """
    INSERT INTO slots (limit_name, n, closed) VALUES (?, ?, 0)
    ON CONFLICT (limit_name, n) DO UPDATE SET closed = 0
"""
CLOSE_SLOTS = "UPDATE slots SET closed = 1 WHERE limit_name = ? AND n > ?"
# The jobs whose slot is not what it must be where a limit counts the jobs in a busy state. Each of
# them stands in one of these indexes, and nothing that has ended does.
_UNFINISHED = {
    "jobs_claimable": "leased_by IS NULL AND parked_on IS NULL AND lane <> ''",
    "jobs_leased": "leased_by IS NOT NULL",
    "jobs_parked": "parked_on IS NOT NULL",
}
_MUST_BE = f"""
    CASE WHEN state = :source THEN :mark WHEN role = '{BUSY}' THEN '{OF_STATE}' ELSE '{OF_UNDO}' END
    || :name || CASE WHEN :keyed
        THEN '/' || coalesce(json_extract(keys, '$."' || :source || '".slot'), '') ELSE '' END
"""
_MISPLACED = f"""
    flow = :flow AND slot IS NOT ({_MUST_BE})
    AND (state = :source AND role = '{READY}' OR state = :busy AND role IN ('{BUSY}', '{UNDOING}'))
"""
MISPLACED = (
    "SELECT id FROM ("
    + " UNION ALL ".join(
        f"SELECT id FROM jobs INDEXED BY {index} WHERE {condition} AND {_MISPLACED}"
        for index, condition in _UNFINISHED.items()
    )
    + ") ORDER BY id LIMIT :most"
)
MUST_BE = f"SELECT {_MUST_BE} FROM jobs WHERE id = :id AND {_MISPLACED}"
SET_SLOT = "UPDATE jobs SET slot = ? WHERE id = ?"
UNPARK = "UPDATE jobs SET parked_on = NULL WHERE id = ? AND parked_on = ?"
FREE_LEFT = f"""
    UPDATE slots SET job_id = NULL, of_state = 0 WHERE of_state = 1 AND job_id IS NOT NULL
    AND NOT EXISTS (SELECT 1 FROM jobs WHERE id = slots.job_id
        AND slot IN ('{OF_STATE}' || limit_name, '{OF_UNDO}' || limit_name))
"""

CLOSE_KEY = "DELETE FROM slots WHERE limit_name = ?"
# A bucket is full when what was lacking has come in since; nobody may be parked on it.
FULL_BUCKETS = f"""
    DELETE FROM buckets WHERE name IN (
        SELECT b.name FROM buckets AS b JOIN rates AS r
            ON b.name = r.name OR (b.name > r.name || '/' AND b.name < r.name || '0')
        WHERE b.level + (?1 - b.filled_at) * r.n >= r.burst * r.per_us
          AND NOT EXISTS (
            SELECT 1 FROM jobs INDEXED BY jobs_parked
            WHERE parked_on = '{flow_control.ON_RATE}' || b.name)
        ORDER BY b.name LIMIT ?2
    )
"""
WORTHLESS_TURNS = """
    DELETE FROM turns WHERE (lane, tenant) IN (
        SELECT lane, tenant FROM turns AS t
        WHERE passed <= (SELECT max(began) FROM turns WHERE lane = t.lane)
        ORDER BY lane, tenant LIMIT ?
    )
"""


def find_misplaced(db: sqlite3.Connection, name: str, terms: LimitTerms) -> list[bytes]:
    """Return jobs whose slot is not what it must be where a limit counts those of a state."""
    found = db.execute(MISPLACED, flow_control.adoption(name, terms)).fetchall()
    return [job_id for (job_id,) in found]


def adopt(t: Transaction, name: str, terms: LimitTerms, job_ids: Sequence[bytes]) -> None:
    """Give the jobs that stand in a busy state slots, and those before it the need of one."""
    facts = flow_control.adoption(name, terms)
    for job_id in job_ids:
        for (slot,) in t.db.execute(MUST_BE, {**facts, "id": job_id}).fetchall():
            limit = held_slot(slot, leased=False)
            if limit is not None:
                keys.occupy(t, limit, job_id)
                t.db.execute(UNPARK, (job_id, limit))
            t.db.execute(SET_SLOT, (slot, job_id))


def open_slots(t: Transaction, name: str, places: int) -> None:
    """Open the first so many slots of a limit, or of one key of it, and close the rest."""
    t.db.executemany(OPEN_SLOT, [(name, n) for n in range(1, places + 1)])
    t.db.execute(CLOSE_SLOTS, (name, places))


CONTROL: Control[SharedTransaction] = Control(
    own(open_slots), own(keys.pass_on), own_read(find_misplaced), own(adopt)
)
end_pauses = shared(CONTROL.end_pauses)
pause_key = shared(control.pause_key)
paused_key = shared(control.paused_key)


def sweep(t: SharedTransaction, limit: int) -> int:
    """Remove what counts for nothing any more."""
    db = t.own.db
    idle = t.db.rows(control.IDLE_KEYS, (limit,))
    db.executemany(CLOSE_KEY, idle)
    left = db.execute(FREE_LEFT).rowcount
    filled = db.execute(FULL_BUCKETS, (t.now, limit)).rowcount
    over = CONTROL.sweep_pauses(t, limit)
    worthless = db.execute(WORTHLESS_TURNS, (limit,)).rowcount
    return len(idle) + left + filled + over + worthless
