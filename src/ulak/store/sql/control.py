"""Flow control: limits, rates, pauses, weights; each act writes its line of audit."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

from ulak.clock import Instant
from ulak.core.policy import LimitTerms, RateTerms
from ulak.store import flow_control as control
from ulak.store.flow_control import KEY, ON_KEY
from ulak.store.protocol import BucketRow, LimitRow, PauseRow, RateRow, WeightRow
from ulak.store.sql import audit
from ulak.store.sql.session import Session, Transaction, columns, put

Tx = TypeVar("Tx", bound=Transaction)

# Everything that begins with `flow/state/`: a slash is followed by a zero.
_OF_KEYS = """
    {name} = %(name)s::text OR {name} > %(name)s::text || '/' AND {name} < %(name)s::text || '0'
"""

LIMITS = f"SELECT {columns(LimitRow)} FROM ulak.limits ORDER BY name"
LIMIT = f"SELECT {columns(LimitRow)} FROM ulak.limits WHERE name = %s::text FOR UPDATE"
PUT_LIMIT = put("limits", LimitRow, "name")
FORGET_LIMIT = "DELETE FROM ulak.limits WHERE name = %s::text"
SLOTS_OF_KEYS = f"""
    SELECT DISTINCT limit_name FROM ulak.slots WHERE {_OF_KEYS.format(name="limit_name")}
    ORDER BY limit_name
"""

RATES = f"SELECT {columns(RateRow)} FROM ulak.rates ORDER BY name"
RATE = f"SELECT {columns(RateRow)} FROM ulak.rates WHERE name = %s::text FOR UPDATE"
PUT_RATE = put("rates", RateRow, "name")
BUCKETS = f"SELECT {columns(BucketRow)} FROM ulak.buckets ORDER BY name"
BUCKET = f"SELECT {columns(BucketRow)} FROM ulak.buckets WHERE name = %s::text"
BUCKETS_OF_KEYS = f"""
    SELECT {columns(BucketRow)} FROM ulak.buckets WHERE {_OF_KEYS.format(name="name")}
    ORDER BY name FOR UPDATE
"""
PUT_BUCKET = put("buckets", BucketRow, "name")

PAUSES = f"""
    SELECT {columns(PauseRow)} FROM ulak.pauses WHERE until_at IS NULL OR until_at > %s::bigint
    ORDER BY kind, name
"""
PAUSE = f"""
    SELECT {columns(PauseRow)} FROM ulak.pauses
    WHERE kind = %s::text AND name = %s::text FOR UPDATE
"""
PUT_PAUSE = put("pauses", PauseRow, "kind, name")
OVER = f"""
    SELECT {columns(PauseRow)} FROM ulak.pauses /* INDEXED BY pauses_ending */
    WHERE until_at <= %s::bigint ORDER BY until_at, kind, name LIMIT %s::bigint
    FOR UPDATE SKIP LOCKED
"""
END_PAUSE = "DELETE FROM ulak.pauses WHERE kind = %s::text AND name = %s::text"

WEIGHTS = f"SELECT {columns(WeightRow)} FROM ulak.weights ORDER BY tenant"
WEIGHT = "SELECT weight FROM ulak.weights WHERE tenant = %s::text FOR UPDATE"
PUT_WEIGHT = put("weights", WeightRow, "tenant")
FORGET_WEIGHT = "DELETE FROM ulak.weights WHERE tenant = %s::text"

IDLE_KEYS = """
    SELECT limit_name FROM ulak.slots AS s
    WHERE n = 1 AND limit_name LIKE '%%/%%/%%'
      AND NOT EXISTS (
        SELECT FROM ulak.slots WHERE limit_name = s.limit_name AND job_id IS NOT NULL)
      AND NOT EXISTS (
        SELECT FROM ulak.jobs /* INDEXED BY jobs_parked */ WHERE parked_on = s.limit_name)
    ORDER BY limit_name LIMIT %s::bigint
"""


@dataclass(frozen=True, slots=True)
class Control(Generic[Tx]):
    """The acts that touch slots, or jobs that are parked: each database does that its own way."""

    open_slots: Callable[[Tx, str, int], None]
    """Opens the first so many slots of a limit, or of one key of it, and closes the rest."""
    pass_on: Callable[[Tx, str, int], int]
    """Unparks so many jobs that are parked on a name; returns how many."""
    find_misplaced: Callable[[Any, str, LimitTerms], list[bytes]]
    """Finds jobs whose slot is not what it must be where a limit counts those of a state."""
    adopt: Callable[..., None]
    """Gives such jobs that stand in a busy state slots, and those before it the need of one."""

    def declare(
        self, t: Tx, limits: Mapping[str, LimitTerms], rates: Mapping[str, RateTerms]
    ) -> None:
        """Take over what flows declare, except where an operator has set another value."""
        known_limits = {row.name: row for row in find_limits(t.db)}
        known_rates = {row.name: row for row in find_rates(t.db)}
        for name, limit in sorted(limits.items()):
            if _is_declared(known_limits.get(name), limit):
                continue  # whoever starts a worker must not stop the others' claims for it
            known = find_limit(t, name)
            new = control.declared_limit(known, name, limit, t.now)
            if new != known:
                self._put_limit(t, new)
        for name, rate in sorted(rates.items()):
            stored = known_rates.get(name)
            if stored is None or control.declared_terms(stored) != rate:
                _declare_rate(t, name, rate)

    def change_limit(
        self, t: Tx, name: str, n: int | None, *, actor: str, note: str, key: str | None = None
    ) -> LimitRow | None:
        """Set a limit, or that of one key, or go back to the declared one.

        The limit of the stage is locked for a key too, as a claim locks it.
        """
        known = find_limit(t, name)
        if known is None or (key is not None and not known.keyed):
            return None
        if key is None:
            new = control.changed_limit(known, n, actor, t.now)
            self._put_limit(t, new)
        else:
            new = control.limit_of_key(known, key, n, actor, t.now)
            known = find_limit(t, new.name) or known
            if n is None:
                t.db.execute(FORGET_LIMIT, (new.name,))
            else:
                t.db.execute(PUT_LIMIT, tuple(new))
            self.open_slots(t, new.name, new.n)
        details = control.limit_details(known, new)
        audit.note(t, actor, control.LIMIT_CHANGED, new.name, note, details)
        return new

    def _put_limit(self, t: Tx, limit: LimitRow) -> None:
        """Set a limit; open and close the slots that there are of it."""
        t.db.execute(PUT_LIMIT, tuple(limit))
        opened = [row[0] for row in t.db.rows(SLOTS_OF_KEYS, {"name": limit.name})]
        if not limit.keyed and limit.name not in opened:
            opened.append(limit.name)
        for name in opened:
            self.open_slots(t, name, (find_limit(t, name) or limit).n)

    def resume(self, t: Tx, kind: str, name: str, *, actor: str, note: str) -> PauseRow | None:
        """End a pause; answer it, or None when there is none."""
        known = _pause(t, kind, name)
        if known is None:
            return None
        t.db.execute(PUT_PAUSE, tuple(known._replace(until_at=t.now)))
        details = control.pause_details(t.now, known)
        audit.note(t, actor, control.RESUMED, f"{kind}/{name}", note, details)
        self.end_pauses(t)
        t.made_due = True
        return known

    def end_pauses(self, t: Tx, limit: int = 100) -> int:
        """Unpark what was parked on keys whose pause is over; answer how many jobs."""
        unparked = 0
        for row in t.db.rows(OVER, (t.now, limit)):
            over = PauseRow(*row)
            let_go = 0
            if over.kind == KEY:
                let_go = self.pass_on(t, ON_KEY + over.name, control.MOST_UNPARKED)
            unparked += let_go
            if let_go < control.MOST_UNPARKED:
                t.db.execute(END_PAUSE, (over.kind, over.name))
        return unparked

    def sweep_pauses(self, t: Tx, limit: int) -> int:
        """Remove pauses that are over; answer how many."""
        over = len(t.db.rows(OVER, (t.now, limit)))
        self.end_pauses(t, limit)
        return over - len(t.db.rows(OVER, (t.now, limit)))


def _is_declared(known: LimitRow | None, terms: LimitTerms) -> bool:
    return known is not None and (known.declared, known.keyed) == (terms.n, int(terms.keyed))


def find_limit(t: Transaction, name: str) -> LimitRow | None:
    """Return a limit, locked until the transaction ends."""
    row = t.db.row(LIMIT, (name,))
    return None if row is None else LimitRow(*row)


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


def pause(
    t: Transaction, kind: str, name: str, *, until: Instant | None, actor: str, note: str
) -> PauseRow | None:
    """Begin a pause; answer the one that it replaces."""
    before = _pause(t, kind, name)
    t.db.execute(PUT_PAUSE, (kind, name, until, actor, note or None, t.now))
    details = control.pause_details(until, before)
    audit.note(t, actor, control.PAUSED, f"{kind}/{name}", note, details)
    return before


def pause_key(t: Transaction, key: str, until: Instant, actor: str) -> None:
    """Pause a key by a change. Only what was not paused is audited: a crowd says it often."""
    before = _pause(t, KEY, key)
    if until <= t.now or control.outlasts(before, until):
        return
    if before is None:
        pause(t, KEY, key, until=until, actor=actor, note="")
    else:
        t.db.execute(PUT_PAUSE, tuple(before._replace(until_at=until)))


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


# --- weights ---------------------------------------------------------------------


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


# --- reading --------------------------------------------------------------------


def find_limits(db: Session) -> list[LimitRow]:
    return [LimitRow(*row) for row in db.rows(LIMITS)]


def find_rates(db: Session) -> list[RateRow]:
    return [RateRow(*row) for row in db.rows(RATES)]


def find_buckets(db: Session, name: str | None = None) -> list[BucketRow]:
    found = db.rows(BUCKETS) if name is None else db.rows(BUCKET, (name,))
    return [BucketRow(*row) for row in found]


def find_pauses(db: Session, now: Instant, *, over: bool = False) -> list[PauseRow]:
    return [PauseRow(*row) for row in db.rows(PAUSES, (0 if over else now,))]


def find_weights(db: Session) -> list[WeightRow]:
    return [WeightRow(*row) for row in db.rows(WEIGHTS)]
