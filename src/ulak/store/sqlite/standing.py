"""How jobs stand, counted along the indexes: what is counted costs, not what is stored."""

from __future__ import annotations

import sqlite3

from ulak.clock import Instant
from ulak.core.backlog import MOST_ENDS, RATE_OVER_US, Standing
from ulak.core.intake import PRIORITIES
from ulak.store.standing import LIMIT, Counts, count_parked, make_standing

# The conditions of the indexes are repeated word by word.
_FREE = """
    FROM jobs INDEXED BY jobs_claimable
    WHERE leased_by IS NULL AND parked_on IS NULL AND lane <> ''
"""
_OF_LANE = f"{_FREE} AND lane = lanes.lane AND priority"
_FIRST = " UNION ALL ".join(f"SELECT min(not_before) AS first {_OF_LANE} = {n}" for n in PRIORITIES)


def _count(condition: str) -> str:
    return (
        f"(SELECT count(*) FROM (SELECT 1 {_OF_LANE} IN (0, 1, 2, 3) "
        f"AND not_before {condition} ?1 LIMIT ?2))"
    )


FREE = f"""
    WITH RECURSIVE lanes (lane) AS (
        SELECT min(lane) {_FREE}
        UNION ALL
        SELECT (SELECT min(lane) {_FREE} AND lane > lanes.lane) FROM lanes WHERE lane IS NOT NULL
    )
    SELECT lane, {_count("<=")}, {_count(">")}, (SELECT min(first) FROM ({_FIRST}))
    FROM lanes WHERE lane IS NOT NULL LIMIT ?2
"""
NEXT_PARKED = """
    SELECT min(parked_on) FROM jobs INDEXED BY jobs_parked
    WHERE parked_on IS NOT NULL AND parked_on >= ?
"""
PARKED = """
    SELECT lane, count(*) FROM (
        SELECT lane FROM jobs INDEXED BY jobs_parked
        WHERE parked_on IS NOT NULL AND parked_on >= ? AND parked_on < ? LIMIT ?
    ) GROUP BY lane
"""
LEASED = """
    SELECT lane, count(*) FROM (
        SELECT lane FROM jobs INDEXED BY jobs_leased WHERE leased_by IS NOT NULL LIMIT ?
    ) GROUP BY lane
"""
ENDS = """
    SELECT flow, role, count(*), min(changed_at) FROM (
        SELECT flow, role, changed_at FROM jobs INDEXED BY jobs_ended
        WHERE lane = '' AND role <> 'held' AND role <> 'waiting' AND changed_at > ?
        ORDER BY changed_at DESC LIMIT ?
    ) GROUP BY flow, role
"""


def count(db: sqlite3.Connection, now: Instant) -> Standing:
    """Count how jobs stand."""

    def find(name: str) -> str | None:
        found: str | None = db.execute(NEXT_PARKED, (name,)).fetchone()[0]
        return found

    def count_between(name: str, end: str) -> Counts:
        return db.execute(PARKED, (name, end, LIMIT)).fetchall()

    return make_standing(
        now,
        db.execute(FREE, (now, LIMIT)).fetchall(),
        count_parked(find, count_between),
        db.execute(LEASED, (LIMIT,)).fetchall(),
        db.execute(ENDS, (now - RATE_OVER_US, MOST_ENDS)).fetchall(),
    )
