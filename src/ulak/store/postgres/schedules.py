"""Ticks with their jobs; what else is done with schedules is in `ulak.store.sql.schedules`."""

from __future__ import annotations

from collections.abc import Sequence

from ulak.store.postgres import intake
from ulak.store.postgres.connections import Transaction
from ulak.store.postgres.values import Ids, Numbers, Texts
from ulak.store.protocol import ScheduleRow, Tick
from ulak.store.protocol.schedules import must_be_ticks
from ulak.store.sql.session import columns

TAKE_SCHEDULES = f"""
    SELECT {columns(ScheduleRow)} FROM ulak.schedules
    WHERE name = ANY (%s::text[]) ORDER BY name FOR UPDATE
"""
MOVE = """
    UPDATE ulak.schedules AS s SET next_at = m.next_at
    FROM unnest(%s::text[], %s::bigint[]) AS m (name, next_at) WHERE s.name = m.name
"""
TICKED = """
    SELECT t.schedule, t.due_at FROM unnest(%s::text[], %s::bigint[]) AS d (schedule, due_at)
    JOIN ulak.ticks AS t ON t.schedule = d.schedule AND t.due_at = d.due_at
"""
INSERT_TICKS = """
    INSERT INTO ulak.ticks (schedule, due_at, job_id)
    SELECT * FROM unnest(%s::text[], %s::bigint[], %s::uuid[])
"""


def tick(t: Transaction, ticks: Sequence[Tick]) -> list[bool]:
    """Write what its guard lets through: jobs first, then the ticks that name them."""
    must_be_ticks(ticks)
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
