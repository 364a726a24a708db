"""Schedules: what is declared, what is due, and ticks with their jobs."""

from __future__ import annotations

import sqlite3
from collections.abc import Sequence

from ulak.clock import Instant
from ulak.store.protocol import ScheduleRow, Tick, TickRow
from ulak.store.sqlite import audit, intake
from ulak.store.sqlite.order import Rest
from ulak.store.sqlite.writer import Transaction
from ulak.store.ticks import PAUSED, RESUMED, details_of, must_be_a_batch, subject_of

COLUMNS = ", ".join(ScheduleRow._fields)
SCHEDULES = f"SELECT {COLUMNS} FROM schedules ORDER BY name"
FIND_SCHEDULE = f"SELECT {COLUMNS} FROM schedules WHERE name = ?"
DUE = f"""
    SELECT {COLUMNS} FROM schedules INDEXED BY schedules_due
    WHERE paused_at IS NULL AND next_at <= ? AND (next_at, name) > (?, ?)
    ORDER BY next_at, name LIMIT ?
"""
# What was declared is taken over; the date only with a new rule, and a pause never.
KEEP = f"""
    INSERT INTO schedules ({COLUMNS}) VALUES ({", ".join("?" * len(ScheduleRow._fields))})
    ON CONFLICT (name) DO UPDATE SET
        flow = excluded.flow, flow_version = excluded.flow_version, tenant = excluded.tenant,
        priority = excluded.priority, expires_us = excluded.expires_us,
        payload = excluded.payload, rule = excluded.rule, zone = excluded.zone,
        catch_up = excluded.catch_up,
        next_at = CASE WHEN schedules.rule = excluded.rule AND schedules.zone = excluded.zone
            THEN schedules.next_at ELSE excluded.next_at END
"""
MOVE = "UPDATE schedules SET next_at = ? WHERE name = ?"
PAUSE = """
    UPDATE schedules SET paused_at = ?, paused_by = ?, pause_note = ?
    WHERE name = ? AND paused_at IS NULL
    RETURNING next_at
"""
RESUME = """
    UPDATE schedules SET next_at = ?, paused_at = NULL, paused_by = NULL, pause_note = NULL
    WHERE name = ? AND paused_at IS NOT NULL
"""
HAS_TICK = "SELECT 1 FROM ticks WHERE schedule = ? AND due_at = ?"
INSERT_TICK = "INSERT INTO ticks (schedule, due_at, job_id) VALUES (?, ?, ?)"
TICKS = """
    SELECT schedule, due_at, job_id FROM ticks WHERE schedule = ? AND due_at < ?
    ORDER BY due_at DESC LIMIT ?
"""
END_OF_TIME = 2**63 - 1


def keep(t: Transaction, rows: Sequence[ScheduleRow]) -> None:
    t.db.executemany(KEEP, sorted(rows))


def due(
    db: sqlite3.Connection, by: Instant, limit: int, after: tuple[Instant, str] = (-1, "")
) -> list[ScheduleRow]:
    return [ScheduleRow(*row) for row in db.execute(DUE, (by, *after, limit)).fetchall()]


def tick(t: Transaction, ticks: Sequence[Tick]) -> list[bool]:
    """Write what its guard lets through: jobs first, then the ticks that name them."""
    must_be_a_batch(ticks)
    rest = Rest(t)
    written: dict[str, bool] = {}
    made: list[TickRow] = []
    for tick in sorted(ticks, key=lambda tick: tick.row.name):
        name = tick.row.name
        stored = t.db.execute(FIND_SCHEDULE, (name,)).fetchone()
        written[name] = (
            stored == tick.row and tick.row.paused_at is None and tick.row.next_at <= t.now
        )
        if not written[name]:
            continue
        for job in tick.jobs:
            due_at = job.row.scheduled_for or 0
            if t.db.execute(HAS_TICK, (name, due_at)).fetchone() is None:
                made.append(TickRow(name, due_at, intake.admit(t, rest, job).row.id))
        t.db.execute(MOVE, (tick.next_at, name))
    intake.finish(t, rest)
    t.db.executemany(INSERT_TICK, made)
    return [written[tick.row.name] for tick in ticks]


def pause(t: Transaction, name: str, actor: str, note: str) -> bool:
    paused = t.db.execute(PAUSE, (t.now, actor, note, name)).fetchone()
    if paused is not None:
        audit.note(t, actor, PAUSED, subject_of(name), note, details_of(paused[0]))
    return paused is not None


def resume(t: Transaction, name: str, next_at: Instant, actor: str, note: str) -> bool:
    is_resumed = t.db.execute(RESUME, (next_at, name)).rowcount == 1
    if is_resumed:
        audit.note(t, actor, RESUMED, subject_of(name), note, details_of(next_at))
    return is_resumed


def every(db: sqlite3.Connection) -> list[ScheduleRow]:
    return [ScheduleRow(*row) for row in db.execute(SCHEDULES).fetchall()]


def ticks(
    db: sqlite3.Connection, schedule: str, before: Instant | None = None, limit: int = 100
) -> list[TickRow]:
    until = END_OF_TIME if before is None else before
    return [TickRow(*row) for row in db.execute(TICKS, (schedule, until, limit)).fetchall()]
