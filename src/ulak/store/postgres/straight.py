"""The straight way of a claim: one round trip, its BEGIN and its COMMIT included.

It looks how many jobs of which lane and priority are next and takes so many of each. It takes
nothing where more must be thought of: a lease has lapsed, something is paused, a job needs a slot
or tokens. Then it says so, and the claim goes step by step (`claims`).
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from typing import NamedTuple

from ulak.clock import Instant
from ulak.store.batches import NO_SUSPECTS, SUSPECT_LAPSES
from ulak.store.in_turn import is_family
from ulak.store.postgres import leases
from ulak.store.postgres.leases import facts_of, write_entries
from ulak.store.postgres.pipeline import LateRows
from ulak.store.postgres.session import SERVER_TIME, Transaction
from ulak.store.postgres.values import Numbers, Texts, name_arrays
from ulak.store.protocol import LARGEST_CLAIM_BYTES, ClaimRequest, Want
from ulak.store.sql.session import Row

ANY_LAPSES = 2**31

# The worker's row is held so that nobody can declare it lapsed in the middle of its claim; a
# renewal, which moves no key, need not wait. The rest is one look for those who use none of it.
_LOOK = f"""
    SELECT {SERVER_TIME} AS server_time,
        (SELECT 1 FROM ulak.workers WHERE id = %(worker)s::text FOR KEY SHARE) AS is_worker,
        EXISTS (SELECT FROM ulak.workers WHERE {leases.HAS_LAPSED}) AS any_lapsed,
        EXISTS (SELECT FROM ulak.requests) AS any_requests,
        EXISTS (SELECT FROM ulak.pauses) AS any_pauses,
        (SELECT min(ready_at) FROM ulak.buckets WHERE ready_at IS NOT NULL) AS bucket_ready_at
"""
LOOK = f"""
    {_LOOK},
        (SELECT min(until_at) FROM ulak.pauses WHERE until_at IS NOT NULL) AS pause_ends_at
"""
# Two statements, neither of which is waited for. What the first has found is handed on to the
# second in settings of the transaction: the time, which is the server's where that decides, and
# whether the way is clear.
_THEN = "current_setting('ulak.now')::bigint"
_IS_CLEAR = "current_setting('ulak.is_clear')::boolean"
_DECIDING = f"(CASE WHEN %(by_server)s::boolean THEN server_time ELSE {leases.NOW} END)"
LOOK_AHEAD = f"""
    SELECT look.*,
        set_config('ulak.is_clear', (is_worker IS NOT NULL AND NOT (
            any_lapsed OR any_pauses OR coalesce(bucket_ready_at <= {_DECIDING}, false)
        ))::text, true)::boolean,
        set_config('ulak.now', {_DECIDING}::text, true)
    FROM ({_LOOK}) AS look
"""


def _shares(now: str, *, if_: str = "true") -> str:
    """Write the query for how many jobs of which lane and priority are next.

    Where all that are due have a place, the one after them says when to look again.
    """
    return f"""
        SELECT lane, priority, count(*) FILTER (WHERE number <= places AND is_due) AS share,
            bool_or(is_particular) FILTER (WHERE number <= places AND is_due) AS is_particular,
            min(not_before) FILTER (WHERE NOT is_due) AS next_due
        FROM (
            SELECT c.lane, c.priority, c.not_before, c.is_due, l.places,
                c.lapses >= {SUSPECT_LAPSES} OR num_nonnulls(c.slot, c.rate) > 0 AS is_particular,
                row_number() OVER (
                    PARTITION BY l.want ORDER BY NOT c.is_due, {leases.urgency("c")}
                ) AS number
            FROM unnest(%(lanes)s::text[], %(wants)s::bigint[], %(places)s::bigint[])
                AS l (lane, want, places)
            CROSS JOIN LATERAL {leases.PRIORITIES} AS p (priority)
            CROSS JOIN LATERAL (
                SELECT id, lane, priority, not_before, lapses, slot, rate,
                    not_before <= {now} AS is_due
                FROM ulak.jobs
                WHERE {leases.standing("l")} AND priority = p.priority
                  AND lapses <= %(lapses)s::bigint
                ORDER BY not_before, id LIMIT l.places + 1
            ) AS c
            WHERE {if_}
        ) AS s
        GROUP BY lane, priority
    """


def _lease_next(now: str, lease: str, *, if_: str = "true") -> str:
    """Write the statement that leases the next jobs, or none when one of them is particular.

    It returns a row for each of them, or an empty one. The last columns say whether one of the next
    jobs is particular, and when the next one is due. Where the bytes suffice for some only, it does
    not matter for which: the next claim takes the rest.
    """
    return f"""
        WITH shares AS MATERIALIZED ({_shares(now, if_=if_)}),
        near AS MATERIALIZED (
            SELECT c.* FROM shares AS s CROSS JOIN LATERAL (
                SELECT {leases.CHOSEN} FROM ulak.jobs
                WHERE {leases.claimable("s", "s", now=now)}
                  AND lapses <= {NO_SUSPECTS} AND slot IS NULL AND rate IS NULL
                ORDER BY not_before, id LIMIT s.share FOR NO KEY UPDATE SKIP LOCKED
            ) AS c
            WHERE NOT EXISTS (SELECT FROM shares WHERE is_particular)
        ),
        chosen AS (
            SELECT * FROM (
                SELECT n.*, p.data, p.schema, p.trace, sum(octet_length(p.data)) OVER (
                    ROWS BETWEEN UNBOUNDED PRECEDING AND 1 PRECEDING
                ) AS size_before
                FROM near AS n {leases.OWN_PAYLOAD}
            ) AS measured
            WHERE size_before IS NULL OR size_before < {LARGEST_CLAIM_BYTES}
        ),
        leased AS ({lease})
        SELECT leased.*, seen.*
        FROM (SELECT bool_or(is_particular), min(next_due) FROM shares) AS seen
        LEFT JOIN leased ON true
    """


STRAIGHT = _lease_next(_THEN, leases.lease(_THEN), if_=_IS_CLEAR)
WITHOUT_ENTRIES = _lease_next(_THEN, leases.lease_without_entries(_THEN), if_=_IS_CLEAR)
ANYWAY = _lease_next(leases.NOW, leases.lease(leases.NOW))


class Look(NamedTuple):
    """What a claim sees besides jobs."""

    server_time: Instant
    is_worker: int | None
    any_lapsed: bool
    any_requests: bool
    any_pauses: bool
    bucket_ready_at: Instant | None
    pause_ends_at: Instant | None = None
    """Only asked for where there are pauses to end."""

    def next_at(self) -> Instant | None:
        return earliest(self.pause_ends_at, self.bucket_ready_at)


class Leased(NamedTuple):
    """What a statement has leased, and what it saw of the other jobs."""

    rows: list[Row]
    is_odd: bool
    """Whether nothing was leased because one of the next jobs is particular."""
    next_due: Instant | None
    """When the next job is due of a line in which all that are due have a place."""


_LOOKED = len(Look._fields) - 1


class Journey(NamedTuple):
    """The answers to both statements, once they have been waited for."""

    ahead: LateRows
    leased: LateRows

    def read(self, t: Transaction) -> tuple[Look, bool, Leased]:
        """Return them and whether the way is clear; take over the server's time."""
        row = self.ahead.rows[0]
        look = Look(*row[:_LOOKED])
        t.hear(look.server_time)
        return look, row[_LOOKED], _read(self.leased.rows)


def look(t: Transaction, request: ClaimRequest) -> Look:
    facts = {"worker": request.worker, "now": t.now, "by_server": t.by_server}
    found = t.db.row(LOOK, facts)
    assert found is not None  # noqa: S101 - a query without a table answers one row
    return Look(*found)


def is_open_to(request: ClaimRequest) -> bool:
    return not any(is_family(lane) for want in request.wants for lane in want.lanes)


def go(t: Transaction, request: ClaimRequest) -> Journey:
    """Lease what is due, if nothing is in the way. What it answers is there after the commit."""
    facts = _facts(t.now, request, request.wants, by_server=t.by_server)
    lease_next = STRAIGHT if request.entries else WITHOUT_ENTRIES
    journey = Journey(
        t.db.pipeline.later(LOOK_AHEAD, facts), t.db.pipeline.later(lease_next, facts)
    )
    if request.entries:
        t.db.pipeline.wait()
        write_entries(t, request.worker, journey.read(t)[2].rows)
    return journey


def go_anyway(
    t: Transaction, request: ClaimRequest, want: Want, *, lapses: int
) -> Sequence[Row] | None:
    """Lease what is due whatever there is besides jobs; None when a job is particular."""
    facts = _facts(t.now, request, [want], lapses=lapses)
    leased = _read(t.db.rows(ANYWAY, facts))
    if leased.is_odd:
        return None
    write_entries(t, request.worker, leased.rows)
    return leased.rows


def _read(rows: Sequence[Row]) -> Leased:
    is_odd, next_due = rows[0][-2:]
    return Leased([row for row in rows if row[0] is not None], bool(is_odd), next_due)


def _facts(
    now: Instant,
    request: ClaimRequest,
    wants: Sequence[Want],
    *,
    lapses: int | None = None,
    by_server: bool = False,
) -> dict[str, object]:
    if lapses is None:
        lapses = ANY_LAPSES if request.suspects else NO_SUSPECTS
    facts = {"now": now, "by_server": by_server, "lapses": lapses}
    return facts_of(request) | _lines(tuple(wants)) | facts


@lru_cache(64)
def _lines(wants: tuple[Want, ...]) -> dict[str, object]:
    lines = [
        (lane, number, max(want.places, 0))
        for number, want in enumerate(wants)
        for lane in want.lanes
    ]
    return name_arrays(lines, {"lanes": Texts, "wants": Numbers, "places": Numbers})


def earliest(*dates: Instant | None) -> Instant | None:
    return min((date for date in dates if date is not None), default=None)
