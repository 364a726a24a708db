"""Flow control: limits, rates, pauses, weights; each act writes its line of audit."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from ulak.clock import Instant
from ulak.core.job import OF_STATE, OF_UNDO, held_slot
from ulak.core.lifecycle import BUSY, READY, UNDOING
from ulak.core.policy import LimitTerms, RateTerms
from ulak.store import flow_control as control
from ulak.store.flow_control import KEY, ON_KEY, ON_RATE
from ulak.store.postgres import audit, slots
from ulak.store.postgres.connections import Session, Transaction
from ulak.store.postgres.values import Ids, Numbers, Texts
from ulak.store.protocol import (
    BucketRow,
    LimitRow,
    PauseRow,
    RateRow,
    WeightRow,
)


def _columns(record: type[tuple[object, ...]]) -> str:
    return ", ".join(record._fields)  # type: ignore[attr-defined] # every record is a named tuple


_TEXTS = {"name", "actor", "kind", "note", "tenant"}


def _put(table: str, record: type[tuple[object, ...]], key: str) -> str:
    columns = _columns(record).split(", ")
    values = ", ".join(f"%s::{'text' if c in _TEXTS else 'bigint'}" for c in columns)
    setting = ", ".join(f"{c} = excluded.{c}" for c in columns)
    return (
        f"INSERT INTO ulak.{table} ({_columns(record)}) VALUES ({values}) "
        f"ON CONFLICT ({key}) DO UPDATE SET {setting}"
    )


LIMITS = f"SELECT {_columns(LimitRow)} FROM ulak.limits ORDER BY name"
LIMIT = f"SELECT {_columns(LimitRow)} FROM ulak.limits WHERE name = %s::text FOR UPDATE"
PUT_LIMIT = _put("limits", LimitRow, "name")
FORGET_LIMIT = "DELETE FROM ulak.limits WHERE name = %s::text"
# Everything that begins with `flow/state/`: a slash is followed by a zero.
_OF_KEYS = """
    {name} = %(name)s::text OR {name} > %(name)s::text || '/' AND {name} < %(name)s::text || '0'
"""
SLOTS_OF_KEYS = f"""
    SELECT DISTINCT limit_name FROM ulak.slots WHERE {_OF_KEYS.format(name="limit_name")}
    ORDER BY limit_name
"""

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

RATES = f"SELECT {_columns(RateRow)} FROM ulak.rates ORDER BY name"
RATE = f"SELECT {_columns(RateRow)} FROM ulak.rates WHERE name = %s::text FOR UPDATE"
PUT_RATE = _put("rates", RateRow, "name")
BUCKETS = f"SELECT {_columns(BucketRow)} FROM ulak.buckets ORDER BY name"
BUCKET = f"SELECT {_columns(BucketRow)} FROM ulak.buckets WHERE name = %s::text"
BUCKETS_OF_KEYS = f"""
    SELECT {_columns(BucketRow)} FROM ulak.buckets WHERE {_OF_KEYS.format(name="name")}
    ORDER BY name FOR UPDATE
"""
PUT_BUCKET = _put("buckets", BucketRow, "name")

PAUSES = f"""
    SELECT {_columns(PauseRow)} FROM ulak.pauses WHERE until_at IS NULL OR until_at > %s::bigint
    ORDER BY kind, name
"""
PAUSE = f"""
    SELECT {_columns(PauseRow)} FROM ulak.pauses
    WHERE kind = %s::text AND name = %s::text FOR UPDATE
"""
PUT_PAUSE = _put("pauses", PauseRow, "kind, name")
OVER = f"""
    SELECT {_columns(PauseRow)} FROM ulak.pauses
    WHERE until_at <= %s::bigint ORDER BY until_at, kind, name LIMIT %s::bigint
    FOR UPDATE SKIP LOCKED
"""
END_PAUSE = "DELETE FROM ulak.pauses WHERE kind = %s::text AND name = %s::text"

WEIGHTS = f"SELECT {_columns(WeightRow)} FROM ulak.weights ORDER BY tenant"
WEIGHT = "SELECT weight FROM ulak.weights WHERE tenant = %s::text FOR UPDATE"
PUT_WEIGHT = _put("weights", WeightRow, "tenant")
FORGET_WEIGHT = "DELETE FROM ulak.weights WHERE tenant = %s::text"

IDLE_KEYS = """
    SELECT limit_name FROM ulak.slots AS s
    WHERE n = 1 AND limit_name LIKE '%%/%%/%%'
      AND NOT EXISTS (
        SELECT FROM ulak.slots WHERE limit_name = s.limit_name AND job_id IS NOT NULL)
      AND NOT EXISTS (SELECT FROM ulak.jobs WHERE parked_on = s.limit_name)
    ORDER BY limit_name LIMIT %s::bigint
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


# --- limits ---------------------------------------------------------------------


def declare(
    t: Transaction, limits: Mapping[str, LimitTerms], rates: Mapping[str, RateTerms]
) -> None:
    """Take over what flows declare, except where an operator has set another value."""
    known_limits = {row.name: row for row in limits_of(t.db)}
    known_rates = {row.name: row for row in rates_of(t.db)}
    for name, limit in sorted(limits.items()):
        if _is_declared(known_limits.get(name), limit):
            continue  # whoever starts a worker must not stop the others' claims for it
        known = _limit(t, name)
        new = control.declared_limit(known, name, limit, t.now)
        if new != known:
            _put_limit(t, new)
    for name, rate in sorted(rates.items()):
        stored = known_rates.get(name)
        if stored is None or control.declared_terms(stored) != rate:
            _declare_rate(t, name, rate)


def _is_declared(known: LimitRow | None, terms: LimitTerms) -> bool:
    return known is not None and (known.declared, known.keyed) == (terms.n, int(terms.keyed))


def find_misplaced(db: Session, name: str, terms: LimitTerms) -> list[bytes]:
    """Return jobs whose slot is not what it must be where a limit counts those of a state."""
    return [row[0] for row in db.rows(MISPLACED, control.adoption(name, terms))]


def adopt(t: Transaction, name: str, terms: LimitTerms, job_ids: Sequence[bytes]) -> None:
    """Give the jobs that stand in a busy state slots, and those before it the need of one.

    Jobs before limits, limits before slots: as claims and commits lock them.
    """
    facts = control.adoption(name, terms) | {"ids": Ids(job_ids)}
    found: list[tuple[bytes, str]] = t.db.rows(MUST_BE, facts)
    known = _limit(t, name)
    held = [held_slot(slot, leased=False) for _, slot in found]
    for (job_id, _), limit in zip(found, held, strict=True):
        if limit is not None and known is not None:
            slots.occupy(t, limit, job_id, (_limit(t, limit) or known).n)
    ids, must_be = zip(*found, strict=True) if found else ((), ())
    t.db.execute(SET_SLOTS, (Ids(ids), Texts(must_be), Texts(held)))


def change_limit(
    t: Transaction, name: str, n: int | None, *, actor: str, note: str, key: str | None = None
) -> LimitRow | None:
    """Set a limit, or that of one key, or go back to the declared one.

    The limit of the stage is locked for a key too, as a claim locks it.
    """
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
            t.db.execute(PUT_LIMIT, tuple(new))
        slots.open_slots(t, new.name, new.n)
    audit.note(t, actor, control.LIMIT_CHANGED, new.name, note, control.limit_details(known, new))
    return new


def _limit(t: Transaction, name: str) -> LimitRow | None:
    row = t.db.row(LIMIT, (name,))
    return None if row is None else LimitRow(*row)


def _put_limit(t: Transaction, limit: LimitRow) -> None:
    """Set a limit; open and close the slots that there are of it."""
    t.db.execute(PUT_LIMIT, tuple(limit))
    opened = [row[0] for row in t.db.rows(SLOTS_OF_KEYS, {"name": limit.name})]
    if not limit.keyed and limit.name not in opened:
        opened.append(limit.name)
    for name in opened:
        slots.open_slots(t, name, (_limit(t, name) or limit).n)


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
    row = t.db.row(RATE, (name,))
    return None if row is None else RateRow(*row)


def _put_rate(t: Transaction, before: RateRow | None, rate: RateRow) -> None:
    """Set a rate; its buckets keep their tokens."""
    t.db.execute(PUT_RATE, tuple(rate))
    if before is None or control.terms_of(before) == control.terms_of(rate):
        return
    for row in t.db.rows(BUCKETS_OF_KEYS, {"name": rate.name}):
        bucket = control.rescaled(BucketRow(*row), before, rate, t.now)
        t.db.execute(PUT_BUCKET, tuple(bucket))
        t.made_due = t.made_due or bucket.ready_at is not None


# --- pauses ---------------------------------------------------------------------


def pause(t: Transaction, new: PauseRow) -> PauseRow | None:
    """Begin a pause; answer the one that it replaces."""
    before = _pause(t, new.kind, new.name)
    t.db.execute(PUT_PAUSE, tuple(new))
    details = control.pause_details(new.until_at, before)
    audit.note(t, new.actor, control.PAUSED, f"{new.kind}/{new.name}", new.note, details)
    return before


def pause_key(t: Transaction, key: str, until: Instant, actor: str) -> None:
    """Pause a key by a change. Only what was not paused is audited: a crowd says it often."""
    before = _pause(t, KEY, key)
    if until <= t.now or control.outlasts(before, until):
        return
    if before is None:
        pause(t, PauseRow(KEY, key, until, actor, None, t.now))
    else:
        t.db.execute(PUT_PAUSE, tuple(before._replace(until_at=until)))


def resume(t: Transaction, kind: str, name: str, *, actor: str, note: str) -> PauseRow | None:
    """End a pause; answer it, or None when there is none."""
    known = _pause(t, kind, name)
    if known is None:
        return None
    t.db.execute(PUT_PAUSE, tuple(known._replace(until_at=t.now)))
    details = control.pause_details(t.now, known)
    audit.note(t, actor, control.RESUMED, f"{kind}/{name}", note, details)
    end_pauses(t)
    t.made_due = True
    return known


def end_pauses(t: Transaction, limit: int = 100) -> int:
    """Unpark what was parked on keys whose pause is over; answer how many jobs."""
    unparked = 0
    for row in t.db.rows(OVER, (t.now, limit)):
        over = PauseRow(*row)
        let_go = 0
        if over.kind == KEY:
            let_go = slots.pass_on(t, ON_KEY + over.name, control.MOST_UNPARKED)
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
    row = t.db.row(PAUSE, (kind, name))
    found = None if row is None else PauseRow(*row)
    return None if found is None or control.is_over(found, t.now) else found


# --- weights, upkeep -----------------------------------------------------


def weigh(t: Transaction, tenant: str, weight: int | None, *, actor: str, note: str) -> int | None:
    """Give a tenant a weight, or take it away; answer the one that it had."""
    row = t.db.row(WEIGHT, (tenant,))
    before: int | None = None if row is None else row[0]
    if weight is None:
        t.db.execute(FORGET_WEIGHT, (tenant,))
    else:
        t.db.execute(PUT_WEIGHT, (tenant, weight, actor, t.now))
    audit.note(t, actor, control.WEIGHED, tenant, note, control.weight_details(weight, before))
    return before


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
    over = len(t.db.rows(OVER, (t.now, limit)))
    end_pauses(t, limit)
    over -= len(t.db.rows(OVER, (t.now, limit)))
    worthless = t.db.touch(WORTHLESS_TURNS, (limit,))
    return len(idle) + len(left) + filled + over + worthless


# --- reading --------------------------------------------------------------------


def limits_of(db: Session) -> list[LimitRow]:
    return [LimitRow(*row) for row in db.rows(LIMITS)]


def rates_of(db: Session) -> list[RateRow]:
    return [RateRow(*row) for row in db.rows(RATES)]


def buckets(db: Session, name: str | None = None) -> list[BucketRow]:
    found = db.rows(BUCKETS) if name is None else db.rows(BUCKET, (name,))
    return [BucketRow(*row) for row in found]


def pauses(db: Session, now: Instant) -> list[PauseRow]:
    return [PauseRow(*row) for row in db.rows(PAUSES, (now,))]


def weights(db: Session) -> list[WeightRow]:
    return [WeightRow(*row) for row in db.rows(WEIGHTS)]
