"""How jobs stand, counted along the indexes: what is counted costs, not what is stored."""

from __future__ import annotations

from ulak.clock import Instant
from ulak.core.backlog import MOST_ENDS, RATE_OVER_US, Standing
from ulak.core.intake import PRIORITIES
from ulak.store.postgres.connections import Session
from ulak.store.standing import LIMIT, Counts, count_parked, make_standing

# The conditions of the indexes are repeated word by word.
_FREE = "FROM ulak.jobs WHERE leased_by IS NULL AND parked_on IS NULL AND lane <> ''"
_OF_LANE = f"{_FREE} AND lane = lanes.lane AND priority"


def _count(condition: str) -> str:
    """Count jobs, each priority by a range of the index, and none beyond the limit."""
    ranges = " UNION ALL ".join(
        f"SELECT 1 {_OF_LANE} = {n} AND not_before {condition} %(now)s::bigint" for n in PRIORITIES
    )
    return f"(SELECT count(*) FROM ({ranges} LIMIT %(limit)s::bigint) AS counted)"


_FIRST = ", ".join(
    f"(SELECT not_before {_OF_LANE} = {n} ORDER BY not_before LIMIT 1)" for n in PRIORITIES
)
FREE = f"""
    WITH RECURSIVE lanes (lane) AS (
        (SELECT lane {_FREE} ORDER BY lane LIMIT 1)
        UNION ALL
        SELECT (SELECT lane {_FREE} AND lane > lanes.lane ORDER BY lane LIMIT 1)
        FROM lanes WHERE lane IS NOT NULL
    )
    SELECT lane, {_count("<=")}, {_count(">")}, least({_FIRST})
    FROM lanes WHERE lane IS NOT NULL LIMIT %(limit)s::bigint
"""
NEXT_PARKED = """
    SELECT parked_on FROM ulak.jobs WHERE parked_on IS NOT NULL AND parked_on >= %s::text
    ORDER BY parked_on LIMIT 1
"""
# In the order of an index, so that it is read and no more of the table than is counted.
PARKED = """
    SELECT lane, count(*) FROM (
        SELECT lane FROM ulak.jobs
        WHERE parked_on IS NOT NULL AND parked_on >= %s::text AND parked_on < %s::text
        ORDER BY parked_on LIMIT %s::bigint
    ) AS counted GROUP BY lane
"""
LEASED = """
    SELECT lane, count(*) FROM (
        SELECT lane FROM ulak.jobs WHERE leased_by IS NOT NULL
        ORDER BY leased_by LIMIT %s::bigint
    ) AS counted GROUP BY lane
"""
ENDS = """
    SELECT flow, role, count(*), min(changed_at) FROM (
        SELECT flow, role, changed_at FROM ulak.jobs
        WHERE lane = '' AND role <> 'held' AND role <> 'waiting' AND changed_at > %s::bigint
        ORDER BY changed_at DESC LIMIT %s::bigint
    ) AS counted GROUP BY flow, role
"""


def count(db: Session, now: Instant) -> Standing:
    """Count how jobs stand."""

    def find(name: str) -> str | None:
        found = db.row(NEXT_PARKED, (name,))
        return None if found is None else found[0]

    def count_between(name: str, end: str) -> Counts:
        return db.rows(PARKED, (name, end, LIMIT))

    return make_standing(
        now,
        db.rows(FREE, {"now": now, "limit": LIMIT}),
        count_parked(find, count_between),
        db.rows(LEASED, (LIMIT,)),
        db.rows(ENDS, (now - RATE_OVER_US, MOST_ENDS)),
    )
