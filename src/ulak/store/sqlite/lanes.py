"""The lanes in which jobs stand, the tenants of fair flows, and the turns that they have had."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from functools import cache

import msgspec

from ulak.clock import Instant
from ulak.store.in_turn import PRIORITIES, Family, Standing, bounds, is_family
from ulak.store.sqlite.session import Transaction

# These conditions are those of the index, word for word: SQLite takes a partial index only when
# it can see that the query implies it.
CLAIMABLE = """
    FROM jobs INDEXED BY jobs_claimable
    WHERE lane = ? AND priority = ? AND not_before {when} ?
      AND leased_by IS NULL AND parked_on IS NULL AND lane <> ''
"""
NEXT_DUE = f"SELECT min(not_before) {CLAIMABLE.format(when='>')}"
# The lanes in which jobs stand, and when the oldest of each priority is due. Most lanes are empty
# at any time, and each of those costs one look at the index.
_STANDING = """
    FROM jobs INDEXED BY jobs_claimable
    WHERE {lane} AND leased_by IS NULL AND parked_on IS NULL AND lane <> ''
"""
_HEADS = ", ".join(
    f"(SELECT min(not_before) {_STANDING.format(lane=f'lane = wanted.name AND priority = {p}')})"
    for p in PRIORITIES
)


@cache
def standing_in(lanes: int) -> str:
    return f"""
        WITH wanted (name) AS (VALUES {", ".join(["(?)"] * lanes)})
        SELECT wanted.name, {_HEADS} FROM wanted
        WHERE EXISTS (SELECT 1 {_STANDING.format(lane="lane = wanted.name")})
    """


@cache
def families_standing_in(families: int) -> str:
    inside = _STANDING.format(lane="lane >= wanted.first AND lane < wanted.behind")
    return f"""
        WITH wanted (name, first, behind) AS (VALUES {", ".join(["(?, ?, ?)"] * families)})
        SELECT wanted.name FROM wanted WHERE EXISTS (SELECT 1 {inside})
    """


StandingLanes = Mapping[str, Sequence[Instant | None]]
"""For each lane in which jobs stand, when the oldest of each priority is due; a family has none."""


def find_standing(t: Transaction, lanes: Collection[str]) -> StandingLanes:
    families = {lane: bounds(lane) for lane in lanes if is_family(lane)}
    plain = [lane for lane in lanes if lane not in families]
    found: dict[str, Sequence[Instant | None]] = {}
    if plain:
        rows = t.db.execute(standing_in(len(plain)), plain).fetchall()
        found = {row[0]: row[1:] for row in rows}
    if families:
        facts = [fact for lane, ends in families.items() for fact in (lane, *ends)]
        rows = t.db.execute(families_standing_in(len(families)), facts).fetchall()
        found.update({lane: () for (lane,) in rows})
    return found


def next_due(t: Transaction, standing: StandingLanes) -> Instant | None:
    next_at = None
    for lane, heads in standing.items():
        if is_family(lane):
            next_at = earlier(next_at, _next_of_family(t, lane))
            continue
        for priority, head in enumerate(heads):
            if head is not None and head <= t.now:
                head = t.db.execute(NEXT_DUE, (lane, priority, t.now)).fetchone()[0]
            next_at = earlier(next_at, head)
    return next_at


def earlier(a: Instant | None, b: Instant | None) -> Instant | None:
    if a is None or b is None:
        return a if b is None else b
    return min(a, b)


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
_FAMILY_HEADS = ", ".join(
    f"(SELECT not_before {_STANDING.format(lane=f'lane = present.lane AND priority = {priority}')}"
    " ORDER BY not_before LIMIT 1)"
    for priority in PRIORITIES
)
PRESENT = f"""
    {_PRESENT}
    SELECT json_group_array(json_array(present.lane, json_array({_FAMILY_HEADS}), passed, weight))
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
NEXT_OF_FAMILY = f"{_PRESENT} SELECT min(min({_LATER})) FROM present WHERE present.lane IS NOT NULL"
BEGINS = "SELECT coalesce(max(began), 0) FROM turns WHERE lane = ?"
PUT_TURN = """
    INSERT INTO turns (lane, tenant, passed, began) VALUES (?, ?, ?, ?)
    ON CONFLICT (lane, tenant) DO UPDATE SET passed = excluded.passed, began = excluded.began
"""

_decode_present = msgspec.json.Decoder(list[Standing]).decode


def _next_of_family(t: Transaction, family: str) -> Instant | None:
    found: Instant | None = t.db.execute(NEXT_OF_FAMILY, (*bounds(family), t.now)).fetchone()[0]
    return None if found == NEVER else found


def read_family(t: Transaction, name: str, lanes: Iterable[str]) -> Family:
    standing: list[Standing] = []
    for lane in lanes:
        found = t.db.execute(PRESENT, (*bounds(lane), name)).fetchone()[0]
        standing += _decode_present(found)
    begins: int = t.db.execute(BEGINS, (name,)).fetchone()[0]
    return Family(name, standing, begins)


def write_families(t: Transaction, families: Iterable[Family]) -> None:
    t.db.executemany(PUT_TURN, [turn for family in families for turn in family.turns()])
