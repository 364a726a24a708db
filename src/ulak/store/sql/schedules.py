"""Schedules: what is declared, what is due, and the ticks that there were."""

from __future__ import annotations

from collections.abc import Sequence

from ulak.clock import Instant
from ulak.store.protocol import ScheduleRow, TickRow
from ulak.store.protocol.schedules import (
    SCHEDULE_PAUSED,
    SCHEDULE_RESUMED,
    schedule_details,
    schedule_subject,
)
from ulak.store.sql import audit
from ulak.store.sql.session import Session, Transaction, columns, insert

SCHEDULES = f"SELECT {columns(ScheduleRow)} FROM ulak.schedules ORDER BY name"
DUE = f"""
    SELECT {columns(ScheduleRow)} FROM ulak.schedules /* INDEXED BY schedules_due */
    WHERE paused_at IS NULL AND next_at <= %s::bigint
      AND (next_at, name) > (%s::bigint, %s::text)
    ORDER BY next_at, name LIMIT %s::bigint
"""
# What was declared is taken over; the date only with a new rule, and a pause never.
KEEP = f"""
    {insert("schedules", ScheduleRow)}
    ON CONFLICT (name) DO UPDATE SET
        flow = excluded.flow, flow_version = excluded.flow_version, tenant = excluded.tenant,
        priority = excluded.priority, expires_us = excluded.expires_us,
        payload = excluded.payload, rule = excluded.rule, zone = excluded.zone,
        catch_up = excluded.catch_up,
        next_at = CASE WHEN schedules.rule = excluded.rule AND schedules.zone = excluded.zone
            THEN schedules.next_at ELSE excluded.next_at END
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


def pause(t: Transaction, name: str, actor: str, note: str) -> bool:
    paused = t.db.row(PAUSE, (t.now, actor, note, name))
    if paused is not None:
        audit.note(
            t, actor, SCHEDULE_PAUSED, schedule_subject(name), note, schedule_details(paused[0])
        )
    return paused is not None


def resume(t: Transaction, name: str, next_at: Instant, actor: str, note: str) -> bool:
    is_resumed = t.db.touch(RESUME, (next_at, name)) == 1
    if is_resumed:
        audit.note(
            t, actor, SCHEDULE_RESUMED, schedule_subject(name), note, schedule_details(next_at)
        )
    return is_resumed


def every(db: Session) -> list[ScheduleRow]:
    return [ScheduleRow(*row) for row in db.rows(SCHEDULES)]


def ticks(
    db: Session, schedule: str, before: Instant | None = None, limit: int = 100
) -> list[TickRow]:
    until = END_OF_TIME if before is None else before
    return [TickRow(*row) for row in db.rows(TICKS, (schedule, until, limit))]
