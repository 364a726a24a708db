"""Where the tenants of fair flows stand, and the turns that they have had."""

from __future__ import annotations

from collections.abc import Iterable

import msgspec

from ulak.clock import Instant
from ulak.store.in_turn import PRIORITIES, Family, Standing, bounds
from ulak.store.sqlite.writer import Transaction

_STANDING = """
    FROM jobs INDEXED BY jobs_claimable
    WHERE {lane} AND leased_by IS NULL AND parked_on IS NULL AND lane <> ''
"""
# The lanes of a family in which jobs stand, each found by one step along the index.
_PRESENT = f"""
    WITH RECURSIVE present (lane) AS (
        SELECT (
            SELECT lane {_STANDING.format(lane="lane >= ?1 AND lane < ?2")} ORDER BY lane LIMIT 1
        )
        UNION ALL
        SELECT (
            SELECT lane {_STANDING.format(lane="lane > present.lane AND lane < ?2")}
            ORDER BY lane LIMIT 1
        ) FROM present WHERE present.lane IS NOT NULL
    )
"""
_HEADS = ", ".join(
    f"(SELECT not_before {_STANDING.format(lane=f'lane = present.lane AND priority = {priority}')}"
    " ORDER BY not_before LIMIT 1)"
    for priority in PRIORITIES
)
PRESENT = f"""
    {_PRESENT}
    SELECT json_group_array(json_array(present.lane, json_array({_HEADS}), passed, weight))
    FROM present
    LEFT JOIN turns ON turns.lane = ?3 AND turns.tenant = substr(present.lane, length(?1) + 1)
    LEFT JOIN weights ON weights.tenant = substr(present.lane, length(?1) + 1)
    WHERE present.lane IS NOT NULL
"""
NEVER = 2**62
_LATER = ", ".join(
    "ifnull((SELECT min(not_before) "
    + _STANDING.format(lane=f"lane = present.lane AND priority = {priority} AND not_before > ?3")
    + f"), {NEVER})"
    for priority in PRIORITIES
)
NEXT_DUE = f"{_PRESENT} SELECT min(min({_LATER})) FROM present WHERE present.lane IS NOT NULL"
BEGINS = "SELECT coalesce(max(began), 0) FROM turns WHERE lane = ?"
PUT_TURN = """
    INSERT INTO turns (lane, tenant, passed, began) VALUES (?, ?, ?, ?)
    ON CONFLICT (lane, tenant) DO UPDATE SET passed = excluded.passed, began = excluded.began
"""

_decode_present = msgspec.json.Decoder(list[Standing]).decode


def next_due(t: Transaction, family: str) -> Instant | None:
    """Return when the next delayed job of a family becomes due."""
    found: Instant | None = t.db.execute(NEXT_DUE, (*bounds(family), t.now)).fetchone()[0]
    return None if found == NEVER else found


def read(t: Transaction, name: str, lanes: Iterable[str]) -> Family:
    """Return the families that share turns as they stand."""
    standing: list[Standing] = []
    for lane in lanes:
        found = t.db.execute(PRESENT, (*bounds(lane), name)).fetchone()[0]
        standing += _decode_present(found)
    begins: int = t.db.execute(BEGINS, (name,)).fetchone()[0]
    return Family(name, standing, begins)


def write(t: Transaction, families: Iterable[Family]) -> None:
    """Write the turns that were taken."""
    t.db.executemany(PUT_TURN, [turn for family in families for turn in family.turns()])
