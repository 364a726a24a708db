"""What operators set: flow control, stops, schedules and credentials, with lines of audit."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Generic, TypeVar

from ulak.clock import Instant
from ulak.core.admission import StopRow
from ulak.core.policy import LimitTerms, RateTerms
from ulak.store import credentials
from ulak.store import flow_control as control
from ulak.store.flow_control import KEY, ON_KEY
from ulak.store.protocol import (
    AuditRow,
    BucketRow,
    CredentialRow,
    LimitRow,
    PauseRow,
    RateRow,
    ScheduleRow,
    TickRow,
    WeightRow,
)
from ulak.store.protocol.control import (
    SCHEDULE_PAUSED,
    SCHEDULE_RESUMED,
    schedule_details,
    schedule_subject,
)
from ulak.store.sql.session import (
    Session,
    Transaction,
    columns,
    fetch,
    fetch_one,
    insert,
    places,
    put,
    select,
    write_audit,
)

Tx = TypeVar("Tx", bound=Transaction)

# Everything that begins with `flow/state/`: a slash is followed by a zero.
_OF_KEYS = """
    {name} = %(name)s::text OR {name} > %(name)s::text || '/' AND {name} < %(name)s::text || '0'
"""

LIMITS = select("limits", LimitRow, "ORDER BY name")
LIMIT = select("limits", LimitRow, "WHERE name = %s::text FOR UPDATE")
PUT_LIMIT = put("limits", LimitRow, "name")
FORGET_LIMIT = "DELETE FROM ulak.limits WHERE name = %s::text"
SLOTS_OF_KEYS = f"""
    SELECT DISTINCT limit_name FROM ulak.slots WHERE {_OF_KEYS.format(name="limit_name")}
    ORDER BY limit_name
"""

RATES = select("rates", RateRow, "ORDER BY name")
RATE = select("rates", RateRow, "WHERE name = %s::text FOR UPDATE")
PUT_RATE = put("rates", RateRow, "name")
BUCKETS = select("buckets", BucketRow, "ORDER BY name")
BUCKET = select("buckets", BucketRow, "WHERE name = %s::text")
BUCKETS_OF_KEYS = select(
    "buckets", BucketRow, f"WHERE {_OF_KEYS.format(name='name')} ORDER BY name FOR UPDATE"
)
PUT_BUCKET = put("buckets", BucketRow, "name")

PAUSES = select(
    "pauses", PauseRow, "WHERE until_at IS NULL OR until_at > %s::bigint ORDER BY kind, name"
)
PAUSE = select("pauses", PauseRow, "WHERE kind = %s::text AND name = %s::text FOR UPDATE")
PUT_PAUSE = put("pauses", PauseRow, "kind, name")
OVER = f"""
    SELECT {columns(PauseRow)} FROM ulak.pauses /* INDEXED BY pauses_ending */
    WHERE until_at <= %s::bigint ORDER BY until_at, kind, name LIMIT %s::bigint
    FOR UPDATE SKIP LOCKED
"""
END_PAUSE = "DELETE FROM ulak.pauses WHERE kind = %s::text AND name = %s::text"

WEIGHTS = select("weights", WeightRow, "ORDER BY tenant")
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

STOPS = select("stops", StopRow, "ORDER BY flow, tenant")
STOP = select("stops", StopRow, "WHERE flow = %s::text AND tenant = %s::text FOR UPDATE")
PUT_STOP = put("stops", StopRow, "flow, tenant")
END_STOP = "DELETE FROM ulak.stops WHERE flow = %s::text AND tenant = %s::text"

SCHEDULES = select("schedules", ScheduleRow, "ORDER BY name")
DUE_SCHEDULES = f"""
    SELECT {columns(ScheduleRow)} FROM ulak.schedules /* INDEXED BY schedules_due */
    WHERE paused_at IS NULL AND next_at <= %s::bigint
      AND (next_at, name) > (%s::bigint, %s::text)
    ORDER BY next_at, name LIMIT %s::bigint
"""
# What was declared is taken over; the date only with a new rule, and a pause never.
KEEP_SCHEDULE = f"""
    {insert("schedules", ScheduleRow)}
    ON CONFLICT (name) DO UPDATE SET
        flow = excluded.flow, flow_version = excluded.flow_version, tenant = excluded.tenant,
        priority = excluded.priority, expires_us = excluded.expires_us,
        payload = excluded.payload, rule = excluded.rule, zone = excluded.zone,
        catch_up = excluded.catch_up,
        next_at = CASE WHEN schedules.rule = excluded.rule AND schedules.zone = excluded.zone
            THEN schedules.next_at ELSE excluded.next_at END
"""
PAUSE_SCHEDULE = """
    UPDATE ulak.schedules SET paused_at = %s::bigint, paused_by = %s::text, pause_note = %s::text
    WHERE name = %s::text AND paused_at IS NULL
    RETURNING next_at
"""
RESUME_SCHEDULE = """
    UPDATE ulak.schedules
    SET next_at = %s::bigint, paused_at = NULL, paused_by = NULL, pause_note = NULL
    WHERE name = %s::text AND paused_at IS NOT NULL
"""
TICKS = select(
    "ticks",
    TickRow,
    "WHERE schedule = %s::text AND due_at < %s::bigint ORDER BY due_at DESC LIMIT %s::bigint",
)
END_OF_TIME = 2**63 - 1

CREDENTIALS = select("credentials", CredentialRow, "WHERE kind = %s::text ORDER BY id")
CREDENTIAL = select("credentials", CredentialRow, "WHERE kind = %s::text AND id = %s::text")
ADD_CREDENTIAL = f"{insert('credentials', CredentialRow)} ON CONFLICT (kind, id) DO NOTHING"
CHANGE_CREDENTIAL = f"""
    UPDATE ulak.credentials SET ({columns(CredentialRow)}) = ({places(CredentialRow)})
    WHERE kind = %s::text AND id = %s::text
"""
NOTE_USE = """
    UPDATE ulak.credentials SET used_at = %(at)s::bigint
    WHERE kind = %(kind)s::text AND id = %(id)s::text
      AND (used_at IS NULL OR used_at < %(at)s::bigint)
"""
FORGET_CREDENTIALS = """
    DELETE FROM ulak.credentials WHERE kind = %s::text AND expires_at < %s::bigint
"""

_BELOW = "position < %s::bigint ORDER BY position DESC LIMIT %s::bigint"
AUDIT = select("audit", AuditRow, f"WHERE {_BELOW}")
AUDIT_OF = select("audit", AuditRow, f"WHERE subject = %s::text AND {_BELOW}")
LAST_POSITION = 2**62


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
            row = known_limits.get(name)
            if row is not None and (row.declared, row.keyed) == (limit.n, int(limit.keyed)):
                continue  # whoever starts a worker must not stop the others' claims for it
            known = find_limit(t, name)
            new = control.declared_limit(known, name, limit, t.now)
            if new != known:
                self._put_limit(t, new)
        for name, rate in sorted(rates.items()):
            stored = known_rates.get(name)
            if stored is None or control.declared_terms(stored) != rate:
                before = _find_rate(t, name)
                declared = control.declared_rate(before, name, rate, t.now)
                if declared != before:
                    _put_rate(t, before, declared)

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
        write_audit(t, actor, control.LIMIT_CHANGED, new.name, note, details)
        return new

    def _put_limit(self, t: Tx, limit: LimitRow) -> None:
        t.db.execute(PUT_LIMIT, tuple(limit))
        opened = [row[0] for row in t.db.rows(SLOTS_OF_KEYS, {"name": limit.name})]
        if not limit.keyed and limit.name not in opened:
            opened.append(limit.name)
        for name in opened:
            self.open_slots(t, name, (find_limit(t, name) or limit).n)

    def resume(self, t: Tx, kind: str, name: str, *, actor: str, note: str) -> PauseRow | None:
        """End a pause and return it, or None when there is none."""
        known = _find_pause(t, kind, name)
        if known is None:
            return None
        t.db.execute(PUT_PAUSE, tuple(known._replace(until_at=t.now)))
        details = control.pause_details(t.now, known)
        write_audit(t, actor, control.RESUMED, f"{kind}/{name}", note, details)
        self.end_pauses(t)
        t.made_due = True
        return known

    def end_pauses(self, t: Tx, limit: int = 100) -> int:
        """Unpark what was parked on keys whose pause is over; return how many jobs."""
        unparked = 0
        for over in fetch(t.db, PauseRow, OVER, (t.now, limit)):
            let_go = 0
            if over.kind == KEY:
                let_go = self.pass_on(t, ON_KEY + over.name, control.MOST_UNPARKED)
            unparked += let_go
            if let_go < control.MOST_UNPARKED:
                t.db.execute(END_PAUSE, (over.kind, over.name))
        return unparked

    def sweep_pauses(self, t: Tx, limit: int) -> int:
        over = len(t.db.rows(OVER, (t.now, limit)))
        self.end_pauses(t, limit)
        return over - len(t.db.rows(OVER, (t.now, limit)))


def find_limit(t: Transaction, name: str) -> LimitRow | None:
    """Return a limit, locked until the transaction ends."""
    return fetch_one(t.db, LimitRow, LIMIT, (name,))


def change_rate(
    t: Transaction, name: str, terms: RateTerms | None, *, actor: str, note: str
) -> RateRow | None:
    known = _find_rate(t, name)
    if known is None:
        return None
    new = control.changed_rate(known, terms, actor, t.now)
    _put_rate(t, known, new)
    write_audit(t, actor, control.RATE_CHANGED, name, note, control.rate_details(known, new))
    return new


def _find_rate(t: Transaction, name: str) -> RateRow | None:
    return fetch_one(t.db, RateRow, RATE, (name,))


def _put_rate(t: Transaction, before: RateRow | None, rate: RateRow) -> None:
    """Set a rate; its buckets keep their tokens."""
    t.db.execute(PUT_RATE, tuple(rate))
    if before is None or control.terms_of(before) == control.terms_of(rate):
        return
    for row in fetch(t.db, BucketRow, BUCKETS_OF_KEYS, {"name": rate.name}):
        bucket = control.rescaled(row, before, rate, t.now)
        t.db.execute(PUT_BUCKET, tuple(bucket))
        t.made_due = t.made_due or bucket.ready_at is not None


def pause(
    t: Transaction, kind: str, name: str, *, until: Instant | None, actor: str, note: str
) -> PauseRow | None:
    before = _find_pause(t, kind, name)
    t.db.execute(PUT_PAUSE, (kind, name, until, actor, note or None, t.now))
    details = control.pause_details(until, before)
    write_audit(t, actor, control.PAUSED, f"{kind}/{name}", note, details)
    return before


def pause_key(t: Transaction, key: str, until: Instant, actor: str) -> None:
    """Pause a key by a change. Only what was not paused is audited: a crowd says it often."""
    before = _find_pause(t, KEY, key)
    if until <= t.now or control.outlasts(before, until):
        return
    if before is None:
        pause(t, KEY, key, until=until, actor=actor, note="")
    else:
        t.db.execute(PUT_PAUSE, tuple(before._replace(until_at=until)))


def paused_key(t: Transaction, slot: str | None, rate: str | None) -> str | None:
    keys = control.keys_in(slot, rate)
    return next((key for key in keys if _find_pause(t, KEY, key) is not None), None)


def _find_pause(t: Transaction, kind: str, name: str) -> PauseRow | None:
    found = fetch_one(t.db, PauseRow, PAUSE, (kind, name))
    return None if found is None or control.is_over(found, t.now) else found


def weigh(t: Transaction, tenant: str, weight: int | None, *, actor: str, note: str) -> int | None:
    row = t.db.row(WEIGHT, (tenant,))
    before: int | None = None if row is None else row[0]
    if weight is None:
        t.db.execute(FORGET_WEIGHT, (tenant,))
    else:
        t.db.execute(PUT_WEIGHT, (tenant, weight, actor, t.now))
    write_audit(t, actor, control.WEIGHED, tenant, note, control.weight_details(weight, before))
    return before


def stop_accepting(t: Transaction, stop: StopRow) -> StopRow | None:
    before = fetch_one(t.db, StopRow, STOP, (stop.flow, stop.tenant))
    t.db.execute(PUT_STOP, tuple(stop))
    subject = control.stop_subject(stop.flow, stop.tenant)
    details = control.stop_details(stop, before)
    write_audit(t, stop.actor, control.STOPPED, subject, stop.note, details)
    return before


def accept(t: Transaction, flow: str, tenant: str, *, actor: str, note: str) -> StopRow | None:
    before = fetch_one(t.db, StopRow, STOP, (flow, tenant))
    if before is not None:
        t.db.execute(END_STOP, (flow, tenant))
        subject, details = control.stop_subject(flow, tenant), control.stop_details(None, before)
        write_audit(t, actor, control.ACCEPTED, subject, note, details)
    return before


def keep_schedules(t: Transaction, rows: Sequence[ScheduleRow]) -> None:
    for row in sorted(rows):
        t.db.execute(KEEP_SCHEDULE, tuple(row))


def find_due_schedules(
    db: Session, by: Instant, limit: int, after: tuple[Instant, str] = (-1, "")
) -> list[ScheduleRow]:
    return fetch(db, ScheduleRow, DUE_SCHEDULES, (by, *after, limit))


def pause_schedule(t: Transaction, name: str, actor: str, note: str) -> bool:
    paused = t.db.row(PAUSE_SCHEDULE, (t.now, actor, note, name))
    if paused is not None:
        _audit_schedule(t, actor, SCHEDULE_PAUSED, name, note, paused[0])
    return paused is not None


def resume_schedule(t: Transaction, name: str, next_at: Instant, actor: str, note: str) -> bool:
    is_resumed = t.db.touch(RESUME_SCHEDULE, (next_at, name)) == 1
    if is_resumed:
        _audit_schedule(t, actor, SCHEDULE_RESUMED, name, note, next_at)
    return is_resumed


def _audit_schedule(
    t: Transaction, actor: str, act: str, name: str, note: str, next_at: Instant
) -> None:
    details = schedule_details(next_at)
    write_audit(t, actor, act, schedule_subject(name), note, details)


def find_ticks(
    db: Session, schedule: str, before: Instant | None = None, limit: int = 100
) -> list[TickRow]:
    until = END_OF_TIME if before is None else before
    return fetch(db, TickRow, TICKS, (schedule, until, limit))


def add_credential(t: Transaction, row: CredentialRow, *, act: str, actor: str, note: str) -> bool:
    is_new = t.db.touch(ADD_CREDENTIAL, tuple(row)) == 1
    if is_new:
        details = credentials.credential_details(row, None)
        write_audit(t, actor, act, credentials.credential_subject(row), note, details)
    return is_new


def change_credential(
    t: Transaction, row: CredentialRow, *, act: str, actor: str, note: str
) -> bool:
    stored = fetch_one(t.db, CredentialRow, f"{CREDENTIAL} FOR UPDATE", (row.kind, row.id))
    new = credentials.changed_credential(row, stored)
    if new is None:
        return False
    t.db.execute(CHANGE_CREDENTIAL, (*new, row.kind, row.id))
    details = credentials.credential_details(new, stored)
    write_audit(t, actor, act, credentials.credential_subject(row), note, details)
    return True


def note_use(t: Transaction, kind: str, id: str, at: Instant) -> None:
    t.db.execute(NOTE_USE, {"kind": kind, "id": id, "at": at})


def note_refusal(t: Transaction, kind: str, id: str, *, act: str, actor: str, note: str) -> None:
    write_audit(t, actor, act, credentials.make_subject(kind, id), note, "{}")


def forget_credentials(t: Transaction, kind: str, before: Instant) -> int:
    return t.db.touch(FORGET_CREDENTIALS, (kind, before))


def find_credential(db: Session, kind: str, id: str) -> CredentialRow | None:
    return fetch_one(db, CredentialRow, CREDENTIAL, (kind, id))


def find_credentials(db: Session, kind: str) -> list[CredentialRow]:
    return fetch(db, CredentialRow, CREDENTIALS, (kind,))


find_limits = partial(fetch, record=LimitRow, statement=LIMITS)
find_rates = partial(fetch, record=RateRow, statement=RATES)
find_weights = partial(fetch, record=WeightRow, statement=WEIGHTS)
find_stops = partial(fetch, record=StopRow, statement=STOPS)
find_schedules = partial(fetch, record=ScheduleRow, statement=SCHEDULES)


def find_buckets(db: Session, name: str | None = None) -> list[BucketRow]:
    if name is None:
        return fetch(db, BucketRow, BUCKETS)
    return fetch(db, BucketRow, BUCKET, (name,))


def find_pauses(db: Session, now: Instant, *, over: bool = False) -> list[PauseRow]:
    return fetch(db, PauseRow, PAUSES, (0 if over else now,))


def find_audit(
    db: Session, subject: str | None = None, before: int | None = None, limit: int = 100
) -> list[AuditRow]:
    below = LAST_POSITION if before is None else before
    if subject is None:
        return fetch(db, AuditRow, AUDIT, (below, limit))
    return fetch(db, AuditRow, AUDIT_OF, (subject, below, limit))
