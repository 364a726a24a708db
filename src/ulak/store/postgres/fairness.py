"""Where the tenants of fair flows stand, and the turns that they have had."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from ulak.clock import Instant
from ulak.store.in_turn import PRIORITIES, Family, Standing, bounds
from ulak.store.postgres.connections import Session
from ulak.store.postgres.values import Numbers, Texts

# Whoever takes turns from a family holds it until he has committed: what each tenant has had must
# not be counted by two at once.
HOLD = "SELECT pg_advisory_xact_lock(hashtextextended('ulak turns ' || %s::text, 0))"

_STANDING = """
    FROM ulak.jobs WHERE {lane} AND leased_by IS NULL AND parked_on IS NULL AND lane <> ''
"""
# The lanes of a family in which jobs stand, each found by one step along the index.
_PRESENT = f"""
    WITH RECURSIVE present (lane) AS (
        SELECT (
            SELECT lane {_STANDING.format(lane="lane >= %(low)s::text AND lane < %(high)s::text")}
            ORDER BY lane LIMIT 1
        )
        UNION ALL
        SELECT (
            SELECT lane
            {_STANDING.format(lane="lane > present.lane AND lane < %(high)s::text")}
            ORDER BY lane LIMIT 1
        ) FROM present WHERE present.lane IS NOT NULL
    )
"""
_HEADS = ", ".join(
    f"(SELECT not_before {_STANDING.format(lane=f'lane = present.lane AND priority = {priority}')}"
    " ORDER BY not_before LIMIT 1)"
    for priority in PRIORITIES
)
_TENANT = "substr(present.lane, length(%(low)s::text) + 1)"
PRESENT = f"""
    {_PRESENT}
    SELECT present.lane, {_HEADS}, turns.passed, weights.weight FROM present
    LEFT JOIN ulak.turns ON turns.lane = %(name)s::text AND turns.tenant = {_TENANT}
    LEFT JOIN ulak.weights ON weights.tenant = {_TENANT}
    WHERE present.lane IS NOT NULL
"""
BEGINS = "SELECT coalesce(max(began), 0) FROM ulak.turns WHERE lane = %s::text"
PUT_TURNS = """
    INSERT INTO ulak.turns (lane, tenant, passed, began)
    SELECT * FROM unnest(%s::text[], %s::text[], %s::bigint[], %s::bigint[])
    ON CONFLICT (lane, tenant) DO UPDATE SET passed = excluded.passed, began = excluded.began
"""
_LATER = ", ".join(
    "(SELECT not_before "
    + _STANDING.format(
        lane=f"lane = present.lane AND priority = {priority} AND not_before > %(now)s::bigint"
    )
    + " ORDER BY not_before LIMIT 1)"
    for priority in PRIORITIES
)
NEXT_DUE = f"{_PRESENT} SELECT min(least({_LATER})) FROM present WHERE present.lane IS NOT NULL"


def hold(db: Session, names: Iterable[str]) -> None:
    """Take hold of the turns of these names, in their order."""
    for name in sorted(names):
        db.execute(HOLD, (name,))


def read(db: Session, name: str, lanes: Iterable[str]) -> Family:
    """Return the families that share turns as they stand."""
    standing: list[Standing] = []
    for lane in lanes:
        low, high = bounds(lane)
        rows = db.rows(PRESENT, {"low": low, "high": high, "name": name})
        standing += [Standing(row[0], row[1:5], row[5], row[6]) for row in rows]
    begins = db.row(BEGINS, (name,))
    return Family(name, standing, 0 if begins is None else begins[0])


def write(db: Session, families: Sequence[Family]) -> None:
    """Write the turns that were taken."""
    turns = [turn for family in families for turn in family.turns()]
    if turns:
        lanes, tenants, passed, began = zip(*turns, strict=True)
        facts = (Texts(lanes), Texts(tenants), Numbers(passed), Numbers(began))
        db.execute(PUT_TURNS, facts)


def next_due(db: Session, family: str, now: Instant) -> Instant | None:
    """Return when the next delayed job of a family becomes due."""
    low, high = bounds(family)
    found = db.row(NEXT_DUE, {"low": low, "high": high, "now": now})
    return None if found is None else found[0]
