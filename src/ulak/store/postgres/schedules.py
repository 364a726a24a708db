"""Schedules: what is declared, what is due, and ticks with their jobs."""

from __future__ import annotations

from collections.abc import Sequence

from ulak.clock import Instant
from ulak.store.postgres import audit, intake
from ulak.store.postgres.connections import Session, Transaction
from ulak.store.postgres.values import Ids, Numbers, Texts
from ulak.store.protocol import ScheduleRow, Tick, TickRow
from ulak.store.ticks import PAUSED, RESUMED, details_of, must_be_a_batch, subject_of

COLUMNS = ", ".join(ScheduleRow._fields)
_TYPES = {
    "flow_version": "bigint", "priority": "bigint", "expires_us": "bigint", "payload": "bytea",
    "next_at": "bigint", "paused_at": "bigint",
}  # fmt: skip
_VALUES = ", ".join(f"%s::{_TYPES.get(name, 'text')}" for name in ScheduleRow._fields)

SCHEDULES = f"SELECT {COLUMNS} FROM ulak.schedules ORDER BY name"
TAKE_SCHEDULES = f"""
    SELECT {COLUMNS} FROM ulak.schedules WHERE name = ANY (%s::text[]) ORDER BY name FOR UPDATE
"""
DUE = f"""
    SELECT {COLUMNS} FROM ulak.schedules
    WHERE paused_at IS NULL AND next_at <= %s::bigint
      AND (next_at, name) > (%s::bigint, %s::text)
    ORDER BY next_at, name LIMIT %s::bigint
"""
# What was declared is taken over; the date only with a new rule, and a pause never.
KEEP = f"""
    INSERT INTO ulak.schedules AS s ({COLUMNS}) VALUES ({_VALUES})
    ON CONFLICT (name) DO UPDATE SET
        flow = excluded.flow, flow_version = excluded.flow_version, tenant = excluded.tenant,
        priority = excluded.priority, expires_us = excluded.expires_us,
        payload = excluded.payload, rule = excluded.rule, zone = excluded.zone,
        catch_up = excluded.catch_up,
        next_at = CASE WHEN s.rule = excluded.rule AND s.zone = excluded.zone
            THEN s.next_at ELSE excluded.next_at END
"""
MOVE = """
    UPDATE ulak.schedules AS s SET next_at = m.next_at
    FROM unnest(%s::text[], %s::bigint[]) AS m (name, next_at) WHERE s.name = m.name
"""
PAUSE = """
    UPDATE ulak.schedules SET paused_at = %s::bigint, paused_by = %s::text, pause_note = %s::text
    WHERE name = %s::text AND paused_at IS NULL
    RETURNING next_at
"""
RESUME = """
    UPDATE ulak.schedules
    SET next_at = %s::bigint, paused_at = NULL, paused_by = NULL, pause_note = NULL
    WHERE name = %s::text AND paused_at IS NOT NULL
"""
TICKED = """
    SELECT t.schedule, t.due_at FROM unnest(%s::text[], %s::bigint[]) AS d (schedule, due_at)
    JOIN ulak.ticks AS t ON t.schedule = d.schedule AND t.due_at = d.due_at
"""
INSERT_TICKS = """
    INSERT INTO ulak.ticks (schedule, due_at, job_id)
    SELECT * FROM unnest(%s::text[], %s::bigint[], %s::uuid[])
"""
TICKS = """
    SELECT schedule, due_at, job_id FROM ulak.ticks
    WHERE schedule = %s::text AND due_at < %s::bigint ORDER BY due_at DESC LIMIT %s::bigint
"""
END_OF_TIME = 2**63 - 1


def keep(t: Transaction, rows: Sequence[ScheduleRow]) -> None:
    for row in sorted(rows):
        t.db.execute(KEEP, tuple(row))


def due(
    db: Session, by: Instant, limit: int, after: tuple[Instant, str] = (-1, "")
) -> list[ScheduleRow]:
    return [ScheduleRow(*row) for row in db.rows(DUE, (by, *after, limit))]


def tick(t: Transaction, ticks: Sequence[Tick]) -> list[bool]:
    """Write what its guard lets through: jobs first, then the ticks that name them."""
    must_be_a_batch(ticks)
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
    facts = (Texts([name for name, _, _ in dates]), Numbers([due_at for _, due_at, _ in dates]))
    ticked = {tuple(row) for row in t.db.rows(TICKED, facts)}
    fresh = [(name, due_at, job) for name, due_at, job in dates if (name, due_at) not in ticked]
    added = intake.add_again(t, [job for _, _, job in fresh])
    if fresh:
        jobs = Ids([answer.row.id for answer in added])
        t.db.execute(
            INSERT_TICKS, (Texts([f[0] for f in fresh]), Numbers([f[1] for f in fresh]), jobs)
        )
    moved = (Texts([tick.row.name for tick in won]), Numbers([tick.next_at for tick in won]))
    t.db.execute(MOVE, moved)
    written = {tick.row.name for tick in won}
    return [tick.row.name in written for tick in ticks]


def pause(t: Transaction, name: str, actor: str, note: str) -> bool:
    paused = t.db.rows(PAUSE, (t.now, actor, note, name))
    for (next_at,) in paused:
        audit.note(t, actor, PAUSED, subject_of(name), note, details_of(next_at))
    return bool(paused)


def resume(t: Transaction, name: str, next_at: Instant, actor: str, note: str) -> bool:
    is_resumed = t.db.touch(RESUME, (next_at, name)) == 1
    if is_resumed:
        audit.note(t, actor, RESUMED, subject_of(name), note, details_of(next_at))
    return is_resumed


def every(db: Session) -> list[ScheduleRow]:
    return [ScheduleRow(*row) for row in db.rows(SCHEDULES)]


def ticks(
    db: Session, schedule: str, before: Instant | None = None, limit: int = 100
) -> list[TickRow]:
    until = END_OF_TIME if before is None else before
    return [TickRow(*row) for row in db.rows(TICKS, (schedule, until, limit))]
