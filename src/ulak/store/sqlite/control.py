"""Flow control: limits, rates, pauses, weights; each act writes its line of audit."""

from __future__ import annotations

import sqlite3
from collections.abc import Mapping, Sequence

from ulak.clock import Instant
from ulak.core.job import OF_STATE, OF_UNDO, held_slot
from ulak.core.lifecycle import BUSY, READY, UNDOING
from ulak.core.policy import LimitTerms, RateTerms
from ulak.store import flow_control as control
from ulak.store.flow_control import KEY, ON_KEY
from ulak.store.protocol import (
    BucketRow,
    LimitRow,
    PauseRow,
    RateRow,
    WeightRow,
)
from ulak.store.sqlite import audit, keys
from ulak.store.sqlite.writer import Transaction


def _columns(record: type[tuple[object, ...]]) -> str:
    return ", ".join(record._fields)  # type: ignore[attr-defined] # every record is a named tuple


def _put(table: str, record: type[tuple[object, ...]], key: str) -> str:
    columns = _columns(record)
    bound = ", ".join("?" * len(columns.split(", ")))
    setting = ", ".join(f"{c} = excluded.{c}" for c in columns.split(", "))
    return (
        f"INSERT INTO {table} ({columns}) VALUES ({bound}) ON CONFLICT ({key}) DO UPDATE "
        f"SET {setting}"
    )


LIMITS = f"SELECT {_columns(LimitRow)} FROM limits ORDER BY name"
LIMIT = f"SELECT {_columns(LimitRow)} FROM limits WHERE name = ?"
PUT_LIMIT = _put("limits", LimitRow, "name")
FORGET_LIMIT = "DELETE FROM limits WHERE name = ?"
OPEN_SLOT = """
    INSERT INTO slots (limit_name, n, closed) VALUES (?, ?, 0)
    ON CONFLICT (limit_name, n) DO UPDATE SET closed = 0
"""
CLOSE_SLOTS = "UPDATE slots SET closed = 1 WHERE limit_name = ? AND n > ?"
# Everything that begins with `flow/state/`: a slash is followed by a zero.
SLOTS_OF_KEYS = """
    SELECT DISTINCT limit_name FROM slots
    WHERE limit_name = ?1 OR limit_name > ?1 || '/' AND limit_name < ?1 || '0'
    ORDER BY limit_name
"""

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

RATES = f"SELECT {_columns(RateRow)} FROM rates ORDER BY name"
RATE = f"SELECT {_columns(RateRow)} FROM rates WHERE name = ?"
PUT_RATE = _put("rates", RateRow, "name")
BUCKETS = f"SELECT {_columns(BucketRow)} FROM buckets ORDER BY name"
BUCKET = f"SELECT {_columns(BucketRow)} FROM buckets WHERE name = ?"
BUCKETS_OF_KEYS = f"""
    SELECT {_columns(BucketRow)} FROM buckets
    WHERE name = ?1 OR name > ?1 || '/' AND name < ?1 || '0' ORDER BY name
"""
PUT_BUCKET = _put("buckets", BucketRow, "name")

PAUSES = f"""
    SELECT {_columns(PauseRow)} FROM pauses WHERE until_at IS NULL OR until_at > ?
    ORDER BY kind, name
"""
PAUSE = f"SELECT {_columns(PauseRow)} FROM pauses WHERE kind = ? AND name = ?"
PUT_PAUSE = _put("pauses", PauseRow, "kind, name")
OVER = f"""
    SELECT {_columns(PauseRow)} FROM pauses INDEXED BY pauses_ending
    WHERE until_at <= ? ORDER BY until_at, kind, name LIMIT ?
"""
END_PAUSE = "DELETE FROM pauses WHERE kind = ? AND name = ?"

WEIGHTS = f"SELECT {_columns(WeightRow)} FROM weights ORDER BY tenant"
WEIGHT = "SELECT weight FROM weights WHERE tenant = ?"
PUT_WEIGHT = _put("weights", WeightRow, "tenant")
FORGET_WEIGHT = "DELETE FROM weights WHERE tenant = ?"

IDLE_KEYS = """
    SELECT limit_name FROM slots AS s
    WHERE n = 1 AND limit_name LIKE '%/%/%'
      AND NOT EXISTS (
        SELECT 1 FROM slots WHERE limit_name = s.limit_name AND job_id IS NOT NULL)
      AND NOT EXISTS (
        SELECT 1 FROM jobs INDEXED BY jobs_parked WHERE parked_on = s.limit_name)
    ORDER BY limit_name LIMIT ?
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
            WHERE parked_on = '{control.ON_RATE}' || b.name)
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


# --- limits ---------------------------------------------------------------------


def declare(
    t: Transaction, limits: Mapping[str, LimitTerms], rates: Mapping[str, RateTerms]
) -> None:
    """Take over what flows declare, except where an operator has set another value."""
    for name, limit in sorted(limits.items()):
        known = _limit(t, name)
        new = control.declared_limit(known, name, limit, t.now)
        if new != known:
            _put_limit(t, new)
    for name, rate in sorted(rates.items()):
        _declare_rate(t, name, rate)


def find_misplaced(db: sqlite3.Connection, name: str, terms: LimitTerms) -> list[bytes]:
    """Return jobs whose slot is not what it must be where a limit counts those of a state."""
    found = db.execute(MISPLACED, control.adoption(name, terms)).fetchall()
    return [job_id for (job_id,) in found]


def adopt(t: Transaction, name: str, terms: LimitTerms, job_ids: Sequence[bytes]) -> None:
    """Give the jobs that stand in a busy state slots, and those before it the need of one."""
    facts = control.adoption(name, terms)
    for job_id in job_ids:
        for (slot,) in t.db.execute(MUST_BE, {**facts, "id": job_id}).fetchall():
            limit = held_slot(slot, leased=False)
            if limit is not None:
                keys.occupy(t, limit, job_id)
                t.db.execute(UNPARK, (job_id, limit))
            t.db.execute(SET_SLOT, (slot, job_id))


def change_limit(
    t: Transaction, name: str, n: int | None, *, actor: str, note: str, key: str | None = None
) -> LimitRow | None:
    """Set a limit, or that of one key, or go back to the declared one."""
    known = _limit(t, name)
    if known is None or (key is not None and not known.keyed):
        return None
    if key is None:
        new = control.changed_limit(known, n, actor, t.now)
        _put_limit(t, new)
    else:
        new = control.limit_of_key(known, key, n, actor, t.now)
        known = _limit(t, new.name) or known
        if n is None:
            t.db.execute(FORGET_LIMIT, (new.name,))
        else:
            t.db.execute(PUT_LIMIT, new)
        open_slots(t, new.name, new.n)
    details = control.limit_details(known, new)
    audit.note(t, actor, control.LIMIT_CHANGED, new.name, note, details)
    return new


def _limit(t: Transaction, name: str) -> LimitRow | None:
    row = t.db.execute(LIMIT, (name,)).fetchone()
    return None if row is None else LimitRow(*row)


def _put_limit(t: Transaction, limit: LimitRow) -> None:
    """Set a limit; open and close the slots that there are of it."""
    t.db.execute(PUT_LIMIT, limit)
    opened = [name for (name,) in t.db.execute(SLOTS_OF_KEYS, (limit.name,)).fetchall()]
    if not limit.keyed and limit.name not in opened:
        opened.append(limit.name)
    for name in opened:
        open_slots(t, name, (_limit(t, name) or limit).n)


def open_slots(t: Transaction, name: str, places: int) -> None:
    """Open the first so many slots of a limit, or of one key of it, and close the rest."""
    t.db.executemany(OPEN_SLOT, [(name, n) for n in range(1, places + 1)])
    t.db.execute(CLOSE_SLOTS, (name, places))


# --- rates ----------------------------------------------------------------------


def _declare_rate(t: Transaction, name: str, terms: RateTerms) -> None:
    known = _rate(t, name)
    new = control.declared_rate(known, name, terms, t.now)
    if new != known:
        _put_rate(t, known, new)


def change_rate(
    t: Transaction, name: str, terms: RateTerms | None, *, actor: str, note: str
) -> RateRow | None:
    """Set a rate, or go back to the declared one."""
    known = _rate(t, name)
    if known is None:
        return None
    new = control.changed_rate(known, terms, actor, t.now)
    _put_rate(t, known, new)
    audit.note(t, actor, control.RATE_CHANGED, name, note, control.rate_details(known, new))
    return new


def _rate(t: Transaction, name: str) -> RateRow | None:
    row = t.db.execute(RATE, (name,)).fetchone()
    return None if row is None else RateRow(*row)


def _put_rate(t: Transaction, before: RateRow | None, rate: RateRow) -> None:
    """Set a rate; its buckets keep their tokens."""
    t.db.execute(PUT_RATE, rate)
    if before is None or control.terms_of(before) == control.terms_of(rate):
        return
    for row in t.db.execute(BUCKETS_OF_KEYS, (rate.name,)).fetchall():
        bucket = control.rescaled(BucketRow(*row), before, rate, t.now)
        t.db.execute(PUT_BUCKET, tuple(bucket))
        t.made_due = t.made_due or bucket.ready_at is not None


# --- pauses ---------------------------------------------------------------------


def pause(t: Transaction, new: PauseRow) -> PauseRow | None:
    """Begin a pause; answer the one that it replaces."""
    before = _pause(t, new.kind, new.name)
    t.db.execute(PUT_PAUSE, new)
    subject = f"{new.kind}/{new.name}"
    details = control.pause_details(new.until_at, before)
    audit.note(t, new.actor, control.PAUSED, subject, new.note, details)
    return before


def pause_key(t: Transaction, key: str, until: Instant, actor: str) -> None:
    """Pause a key by a change. Only what was not paused is audited: a crowd says it often."""
    before = _pause(t, KEY, key)
    if until <= t.now or control.outlasts(before, until):
        return
    if before is None:
        pause(t, PauseRow(KEY, key, until, actor, None, t.now))
    else:
        t.db.execute(PUT_PAUSE, before._replace(until_at=until))


def resume(t: Transaction, kind: str, name: str, *, actor: str, note: str) -> PauseRow | None:
    """End a pause; answer it, or None when there is none."""
    known = _pause(t, kind, name)
    if known is None:
        return None
    t.db.execute(PUT_PAUSE, known._replace(until_at=t.now))
    details = control.pause_details(t.now, known)
    audit.note(t, actor, control.RESUMED, f"{kind}/{name}", note, details)
    end_pauses(t)
    t.made_due = True
    return known


def end_pauses(t: Transaction, limit: int = 100) -> int:
    """Unpark what was parked on keys whose pause is over; answer how many jobs."""
    unparked = 0
    for row in t.db.execute(OVER, (t.now, limit)).fetchall():
        over = PauseRow(*row)
        let_go = 0
        if over.kind == KEY:
            let_go = keys.pass_on(t, ON_KEY + over.name, control.MOST_UNPARKED)
        unparked += let_go
        if let_go < control.MOST_UNPARKED:
            t.db.execute(END_PAUSE, (over.kind, over.name))
    return unparked


def paused_key(t: Transaction, slot: str | None, rate: str | None) -> str | None:
    """Return the first key of a slot and a bucket that is paused."""
    for key in control.keys_in(slot, rate):
        if _pause(t, KEY, key) is not None:
            return key
    return None


def _pause(t: Transaction, kind: str, name: str) -> PauseRow | None:
    """Return a pause that is not over."""
    row = t.db.execute(PAUSE, (kind, name)).fetchone()
    found = None if row is None else PauseRow(*row)
    return None if found is None or control.is_over(found, t.now) else found


# --- weights, upkeep -----------------------------------------------------


def weigh(t: Transaction, tenant: str, weight: int | None, *, actor: str, note: str) -> int | None:
    """Give a tenant a weight, or take it away; answer the one that it had."""
    row = t.db.execute(WEIGHT, (tenant,)).fetchone()
    before: int | None = None if row is None else row[0]
    if weight is None:
        t.db.execute(FORGET_WEIGHT, (tenant,))
    else:
        t.db.execute(PUT_WEIGHT, (tenant, weight, actor, t.now))
    audit.note(t, actor, control.WEIGHED, tenant, note, control.weight_details(weight, before))
    return before


def sweep(t: Transaction, limit: int) -> int:
    """Remove what counts for nothing any more."""
    idle = t.db.execute(IDLE_KEYS, (limit,)).fetchall()
    t.db.executemany(CLOSE_KEY, idle)
    left = t.db.execute(FREE_LEFT).rowcount
    filled = t.db.execute(FULL_BUCKETS, (t.now, limit)).rowcount
    over = len(t.db.execute(OVER, (t.now, limit)).fetchall())
    end_pauses(t, limit)
    over -= len(t.db.execute(OVER, (t.now, limit)).fetchall())
    worthless = t.db.execute(WORTHLESS_TURNS, (limit,)).rowcount
    return len(idle) + left + filled + over + worthless


# --- reading --------------------------------------------------------------------


def limits(db: sqlite3.Connection) -> list[LimitRow]:
    return [LimitRow(*row) for row in db.execute(LIMITS).fetchall()]


def rates(db: sqlite3.Connection) -> list[RateRow]:
    return [RateRow(*row) for row in db.execute(RATES).fetchall()]


def buckets(db: sqlite3.Connection, name: str | None = None) -> list[BucketRow]:
    found = db.execute(BUCKETS) if name is None else db.execute(BUCKET, (name,))
    return [BucketRow(*row) for row in found.fetchall()]


def pauses(db: sqlite3.Connection, now: Instant) -> list[PauseRow]:
    return [PauseRow(*row) for row in db.execute(PAUSES, (now,)).fetchall()]


def weights(db: sqlite3.Connection) -> list[WeightRow]:
    return [WeightRow(*row) for row in db.execute(WEIGHTS).fetchall()]
