"""Ticks with their jobs; what else is done with schedules is in `ulak.store.sql.control`."""

from __future__ import annotations

from collections.abc import Sequence

from ulak.store.protocol import ScheduleRow, Tick, TickRow
from ulak.store.protocol.schedules import must_be_ticks
from ulak.store.sql.session import columns
from ulak.store.sqlite import intake
from ulak.store.sqlite.order import Rest
from ulak.store.sqlite.writer import Transaction

FIND_SCHEDULE = f"SELECT {columns(ScheduleRow)} FROM schedules WHERE name = ?"
MOVE = "UPDATE schedules SET next_at = ? WHERE name = ?"
HAS_TICK = "SELECT 1 FROM ticks WHERE schedule = ? AND due_at = ?"
INSERT_TICK = "INSERT INTO ticks (schedule, due_at, job_id) VALUES (?, ?, ?)"


def tick(t: Transaction, ticks: Sequence[Tick]) -> list[bool]:
    """Write what its guard lets through: jobs first, then the ticks that name them."""
    must_be_ticks(ticks)
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
