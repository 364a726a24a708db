"""Claims: which of the jobs that are due a worker may run.

Claimers never wait for each other: each locks the rows that it wants and skips what another has
locked. A claim first looks, without locking, how many jobs of which lane and priority are next,
and then takes so many of each.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple

from ulak.clock import Instant
from ulak.core import event as kinds
from ulak.core.job import Event, JobRow, Payload, Result
from ulak.core.lifecycle import BUSY, READY
from ulak.store.flow_control import KEY, open_lanes
from ulak.store.in_turn import FIRST_LOOK, PRIORITIES, Candidate, Family, InTurn, is_family
from ulak.store.lines import NO_SUSPECTS, SUSPECT_LAPSES, own_event
from ulak.store.postgres import control, fairness, leases, slots, trail
from ulak.store.postgres.clock import SERVER_TIME
from ulak.store.postgres.connections import Session, Transaction
from ulak.store.postgres.months import month_of
from ulak.store.postgres.supplies import MOST_PARKED, Supplies
from ulak.store.postgres.tokens import Buckets
from ulak.store.postgres.values import (
    RESULT_COLUMNS,
    Ids,
    Numbers,
    Texts,
    as_job,
    as_result,
)
from ulak.store.protocol import Claim, Claimed, ClaimRequest, Want

ANY_LAPSES = 2**31

LEAST_LOOK = 16
"""Where some may lack what they need, at least so many are looked at at once."""

# The worker's row is held so that nobody can declare it lapsed in the middle of its claim; a
# renewal, which moves no key, need not wait. The rest is one look for those who use none of it.
LOOK = f"""
    SELECT {SERVER_TIME},
        (SELECT 1 FROM ulak.workers WHERE id = %(worker)s::text FOR KEY SHARE),
        EXISTS (SELECT FROM ulak.workers WHERE {leases.HAS_LAPSED}),
        EXISTS (SELECT FROM ulak.requests),
        EXISTS (SELECT FROM ulak.pauses),
        (SELECT min(until_at) FROM ulak.pauses WHERE until_at IS NOT NULL),
        (SELECT min(ready_at) FROM ulak.buckets WHERE ready_at IS NOT NULL)
"""
PAUSED = """
    SELECT kind, name FROM ulak.pauses WHERE until_at IS NULL OR until_at > %s::bigint
"""
_CLAIMABLE = """
    lane = {lane} AND priority = {priority} AND not_before {when} %(now)s::bigint
    AND leased_by IS NULL AND parked_on IS NULL AND lane <> ''
"""
_URGENCY = """
    CASE WHEN %(ageing)s::bigint = 0 THEN {c}.priority ELSE 0 END,
    {c}.not_before + {c}.priority * %(ageing)s::bigint, {c}.priority, {c}.id
"""
_NEXT = f"""
    SELECT c.* FROM unnest(%(lanes)s::text[]) AS l (lane)
    CROSS JOIN generate_series(0, 3) AS p (priority)
    CROSS JOIN LATERAL (
        SELECT id, lane, priority, not_before, lapses, slot, rate, cost FROM ulak.jobs
        WHERE {_CLAIMABLE.format(lane="l.lane", priority="p.priority", when="<=")}
          AND lapses <= %(lapses)s::bigint
        ORDER BY not_before, id LIMIT %(places)s::bigint {{lock}}
    ) AS c
    ORDER BY {_URGENCY.format(c="c")} LIMIT %(places)s::bigint
"""
SHARES = f"""
    SELECT lane, priority, count(*), max(lapses), count(slot) + count(rate)
    FROM ({_NEXT.format(lock="")}) AS s
    GROUP BY lane, priority
"""
CANDIDATES = f"""
    SELECT {", ".join(Candidate._fields)}
    FROM ({_NEXT.format(lock="FOR NO KEY UPDATE SKIP LOCKED")}) AS s
    ORDER BY {_URGENCY.format(c="s")}
"""
# The first of each line, for those who take turns.
LINES = f"""
    SELECT r.lane, r.priority, {", ".join(f"c.{name}" for name in Candidate._fields)}
    FROM unnest(%(lanes)s::text[], %(priorities)s::bigint[]) AS r (lane, priority)
    CROSS JOIN LATERAL (
        SELECT {", ".join(Candidate._fields)} FROM ulak.jobs
        WHERE {_CLAIMABLE.format(lane="r.lane", priority="r.priority", when="<=")}
          AND lapses <= %(lapses)s::bigint
        ORDER BY not_before, id LIMIT %(places)s::bigint FOR NO KEY UPDATE SKIP LOCKED
    ) AS c
    ORDER BY c.not_before, c.id
"""
NEXT_DUE = f"""
    SELECT min(c.not_before) FROM unnest(%(lanes)s::text[]) AS l (lane)
    CROSS JOIN generate_series(0, 3) AS p (priority)
    CROSS JOIN LATERAL (
        SELECT not_before FROM ulak.jobs
        WHERE {_CLAIMABLE.format(lane="l.lane", priority="p.priority", when=">")}
        ORDER BY not_before LIMIT 1
    ) AS c
"""
_LEASED = f"""
    leased AS (
        UPDATE ulak.jobs AS j SET
            leased_by = %(worker)s::text, leased_at = %(now)s::bigint, token = token + 1, stood = 1,
            state = coalesce(e.busy, j.state),
            role = CASE WHEN e.busy IS NULL THEN j.role ELSE '{BUSY}' END,
            version = version + (e.busy IS NOT NULL)::integer,
            seq = seq + (e.busy IS NOT NULL)::integer,
            changed_at = CASE WHEN e.busy IS NULL THEN j.changed_at ELSE %(now)s::bigint END
        FROM chosen LEFT JOIN unnest(
            %(flows)s::text[], %(versions)s::bigint[], %(states)s::text[], %(busy)s::text[]
        ) AS e (flow, flow_version, state, busy)
          ON e.flow = chosen.flow AND e.flow_version = chosen.flow_version
         AND e.state = chosen.state AND chosen.role = '{READY}'
        WHERE j.id = chosen.id
        RETURNING {", ".join(f"j.{name}" for name in JobRow._fields)}, j.month,
                  CASE WHEN e.busy IS NOT NULL THEN chosen.state END AS origin
    )
    SELECT leased.*, p.data, p.schema FROM leased
    JOIN ulak.payloads AS p ON p.job_id = leased.id AND p.month = leased.month
"""
_CHOSEN = "id, flow, flow_version, state, role"
LEASE_SHARES = f"""
    WITH chosen AS MATERIALIZED (
        SELECT c.* FROM unnest(%(share_lanes)s::text[], %(priorities)s::bigint[],
                               %(shares)s::bigint[]) AS s (lane, priority, share)
        CROSS JOIN LATERAL (
            SELECT {_CHOSEN} FROM ulak.jobs
            WHERE {_CLAIMABLE.format(lane="s.lane", priority="s.priority", when="<=")}
              AND lapses <= {NO_SUSPECTS} AND slot IS NULL AND rate IS NULL
            ORDER BY not_before, id LIMIT s.share FOR NO KEY UPDATE SKIP LOCKED
        ) AS c
    ), {_LEASED}
"""
LEASE_IDS = f"""
    WITH chosen AS MATERIALIZED (
        SELECT {_CHOSEN} FROM ulak.jobs WHERE id = ANY (%(ids)s::uuid[])
    ), {_LEASED}
"""
PARK = """
    UPDATE ulak.jobs SET parked_on = p.parked_on
    FROM unnest(%s::uuid[], %s::text[]) AS p (id, parked_on) WHERE jobs.id = p.id
"""
RESULTS = f"""
    SELECT {RESULT_COLUMNS} FROM ulak.results
    WHERE job_id = ANY (%s::uuid[]) AND month = ANY (%s::bigint[])
    ORDER BY job_id, round, stage, name
"""

_WIDTH = len(JobRow._fields)


class _Look(NamedTuple):
    """What a claim sees besides jobs."""

    server_time: Instant
    is_worker: int | None
    any_lapsed: bool
    any_requests: bool
    any_pauses: bool
    pause_ends_at: Instant | None
    bucket_ready_at: Instant | None

    def next_at(self) -> Instant | None:
        return _earliest(self.pause_ends_at, self.bucket_ready_at)


def claim(t: Transaction, request: ClaimRequest) -> Claimed:
    """Give back lapsed leases, then lease what is due."""
    look = _look(t, request)
    t.hear(look.server_time)
    unparked, buckets = 0, Buckets(t)
    if look.any_lapsed:
        unparked += leases.give_back_lapsed(t)
        look = _look(t, request)
    # Families first, then buckets, then limits: two claims never wait for each other in a circle.
    fairness.hold(t.db, {lane for want in request.wants for lane in want.lanes if is_family(lane)})
    if look.pause_ends_at is not None and look.pause_ends_at <= t.now:
        unparked += control.end_pauses(t)
    if look.bucket_ready_at is not None and look.bucket_ready_at <= t.now:
        unparked += buckets.unpark_paid()
    if not look.is_worker:
        buckets.write()
        return Claimed([], t.now, [], None, unparked)
    paused: frozenset[tuple[str, str]] = frozenset()
    if look.any_pauses:
        paused = frozenset((row[0], row[1]) for row in t.db.rows(PAUSED, (t.now,)))
    wants = [Want(open_lanes(want.lanes, paused), want.places) for want in request.wants]
    lanes = list(dict.fromkeys(lane for want in wants for lane in want.lanes))
    search = _Search(t, request, buckets, {name for kind, name in paused if kind == KEY})
    claims = [claim for want in wants for claim in search.take(want)]
    requests = leases.requests_of(t.db, request.worker) if look.any_requests else []
    if buckets.write() or look.next_at() is not None:
        look = _look(t, request)
    next_at: Instant | None = t.now
    if not search.is_cut:
        next_at = _earliest(_next_due(t, lanes), look.next_at())
    stopped = frozenset(pause for pause in paused if pause[0] != KEY)
    return Claimed(claims, t.now, requests, next_at, unparked, stopped)


def _look(t: Transaction, request: ClaimRequest) -> _Look:
    facts = {"worker": request.worker, "now": t.now, "by_server": t.by_server}
    found = t.db.row(LOOK, facts)
    assert found is not None  # noqa: S101 - a query without a table answers one row
    return _Look(*found)


class _Search:
    """One claim's walk along the lanes: most urgent first, then longest due."""

    def __init__(
        self, t: Transaction, request: ClaimRequest, buckets: Buckets, paused_keys: set[str]
    ) -> None:
        self._t = t
        self._request = request
        self._buckets = buckets
        self._paused_keys = paused_keys
        self._most_lapses = ANY_LAPSES if request.suspects else NO_SUSPECTS
        self._parked = 0
        self.is_cut = False
        """It stopped before it had seen everything."""
        entries = list(request.entries.items())
        self._facts = {
            "now": t.now,
            "worker": request.worker,
            "ageing": request.ageing_us,
            "flows": Texts([key[0] for key, _ in entries]),
            "versions": Numbers([key[1] for key, _ in entries]),
            "states": Texts([key[2] for key, _ in entries]),
            "busy": Texts([busy for _, busy in entries]),
        }

    def take(self, want: Want) -> list[Claim]:
        """Lease up to `places` jobs, each with what it needs; park those that lack something."""
        if want.places <= 0 or not want.lanes or self.is_cut:
            return []
        if any(map(is_family, want.lanes)):
            return self._take_in_turn(want)
        facts = {
            **self._facts, "lanes": Texts(want.lanes), "places": want.places,
            "lapses": self._most_lapses,
        }  # fmt: skip
        shares = self._t.db.rows(SHARES, facts)
        if not shares:
            return []
        lanes, priorities, numbers, lapses, particular = zip(*shares, strict=True)
        if max(lapses) >= SUSPECT_LAPSES or any(particular):
            return self._take_singly(facts, want.places)
        facts |= {
            "share_lanes": Texts(lanes),
            "priorities": Numbers(priorities),
            "shares": Numbers(numbers),
        }
        return self._lease(LEASE_SHARES, facts)

    def _take_singly(self, facts: dict[str, object], places: int) -> list[Claim]:
        """Look at each due job in the order of urgency."""
        taken: list[Claim] = []
        while places > 0 and not self.is_cut:
            # Some of them will be parked: the next look should not be needed for each of those.
            look = max(places, LEAST_LOOK)
            facts |= {"places": look, "lapses": self._most_lapses}
            found = [Candidate(*row) for row in self._t.db.rows(CANDIDATES, facts)]
            shelf = Supplies(self._t, self._buckets, self._paused_keys)
            shelf.bring(found, places)
            chosen: list[bytes] = []
            for candidate in found:
                if len(chosen) == places:
                    break
                if self._may_run(candidate, shelf):
                    chosen.append(candidate.id)
            self._park(shelf)
            if chosen:
                taken += self._lease(LEASE_IDS, {**facts, "ids": Ids(chosen)})
                places -= len(chosen)
            if len(found) < look:
                break
        return taken

    def _take_in_turn(self, want: Want) -> list[Claim]:
        """Let the tenants of fair flows take turns."""
        families = [fairness.read(self._t.db, lane) for lane in want.lanes if is_family(lane)]
        lanes = [lane for lane in want.lanes if not is_family(lane)]
        lines = _Lines(self._t, {**self._facts, "lapses": self._most_lapses})
        lines.look_ahead(lanes, families, want.places)
        order = InTurn(
            lanes, families, self._t.now, ageing_us=self._request.ageing_us, find=lines.find
        )
        shelf = Supplies(self._t, self._buckets, self._paused_keys)
        shelf.bring(lines.found(), want.places)
        chosen: list[bytes] = []
        for line, candidate in order:
            shelf.bring([candidate], 1)
            if self._may_run(candidate, shelf):
                chosen.append(candidate.id)
                if line.family is not None:
                    line.family.take_turn(line.tenant)
            if len(chosen) == want.places or shelf.parked_many():
                break
        self._park(shelf)
        fairness.write(self._t.db, families)
        if not chosen:
            return []
        claims = self._lease(LEASE_IDS, {**self._facts, "ids": Ids(chosen)})
        by_id = {claim.row.id: claim for claim in claims}
        return [by_id[job_id] for job_id in chosen]

    def _may_run(self, candidate: Candidate, shelf: Supplies) -> bool:
        is_suspect = candidate.lapses >= SUSPECT_LAPSES
        if (is_suspect and self._most_lapses < candidate.lapses) or not shelf.supply(candidate):
            return False
        if is_suspect:
            self._most_lapses = NO_SUSPECTS
        return True

    def _park(self, shelf: Supplies) -> None:
        """Write what was taken, and park those that lacked something."""
        slots.write(self._t.db, shelf.taken)
        if shelf.parked:
            ids, reasons = zip(*sorted(shelf.parked), strict=True)
            self._t.db.execute(PARK, (Ids(ids), Texts(reasons)))
            self._parked += len(shelf.parked)
            self.is_cut = self._parked >= MOST_PARKED

    def _lease(self, statement: str, facts: dict[str, object]) -> list[Claim]:
        t = self._t
        claims: list[Claim] = []
        entered: list[tuple[str, int, Event]] = []
        with_results: list[JobRow] = []
        for found in t.db.rows(statement, {**facts, "now": t.now}):
            row = as_job(found[:_WIDTH])
            month, origin, data, schema = found[_WIDTH:]
            claims.append(Claim(row, Payload(data, schema), ()))
            if row.has_results:
                with_results.append(row)
            if origin is not None:
                worker = self._request.worker
                event = own_event(row, kinds.ENTERED, origin, worker, worker, t.now)
                entered.append((row.tenant, month, event))
                t.count((row.flow, row.flow_version, origin, READY), -1)
                t.count((row.flow, row.flow_version, row.state, BUSY), 1)
        trail.append_own(t, entered)
        if with_results:
            results = _results_of(t.db, with_results)
            claims = [c._replace(results=tuple(results.get(c.row.id, ()))) for c in claims]
        claims.sort(key=self._urgency)
        return claims

    def _urgency(self, claim: Claim) -> tuple[int, int, bytes]:
        row, ageing = claim.row, self._request.ageing_us
        if ageing:
            return (row.not_before + row.priority * ageing, row.priority, row.id)
        return (row.priority, row.not_before, row.id)


class _Lines:
    """The lines of those who take turns: the first of each are read at once."""

    def __init__(self, t: Transaction, facts: dict[str, object]) -> None:
        self._t = t
        self._facts = facts
        self._ahead: dict[tuple[str, int], list[Candidate]] = {}
        self._depth = 0

    def look_ahead(self, lanes: Sequence[str], families: Sequence[Family], places: int) -> None:
        """Read as much of every line as its share of the places may need."""
        lines = [(lane, priority) for lane in lanes for priority in PRIORITIES]
        for family in families:
            for standing in family.lanes:
                lines += [
                    (standing.lane, priority)
                    for priority, head in zip(PRIORITIES, standing.heads, strict=True)
                    if head is not None and head <= self._t.now
                ]
        if lines:
            self._depth = max(FIRST_LOOK, 2 * places // len(lines))
            self._ahead = {line: [] for line in lines}
            for line, candidate in self._read(lines, self._depth):
                self._ahead[line].append(candidate)

    def found(self) -> list[Candidate]:
        """Answer all that were read ahead."""
        return [candidate for line in self._ahead.values() for candidate in line]

    def find(self, lane: str, priority: int, limit: int) -> list[Candidate]:
        """Answer the first so many of a line."""
        ahead = self._ahead.get((lane, priority), [])
        if limit <= self._depth or len(ahead) < self._depth:
            return ahead[:limit]
        return [candidate for _, candidate in self._read([(lane, priority)], limit)]

    def _read(
        self, lines: Sequence[tuple[str, int]], limit: int
    ) -> Iterator[tuple[tuple[str, int], Candidate]]:
        lanes, priorities = zip(*lines, strict=True)
        facts = {
            **self._facts, "lanes": Texts(lanes), "priorities": Numbers(priorities),
            "places": limit,
        }  # fmt: skip
        for row in self._t.db.rows(LINES, facts):
            yield (row[0], row[1]), Candidate(*row[2:])


def _results_of(db: Session, rows: Sequence[JobRow]) -> dict[bytes, list[Result]]:
    found: dict[bytes, list[Result]] = {}
    months = sorted({month_of(row.created_at) for row in rows})
    for row in db.rows(RESULTS, (Ids([row.id for row in rows]), Numbers(months))):
        found.setdefault(row[0], []).append(as_result(row))
    return found


def _next_due(t: Transaction, lanes: Sequence[str]) -> Instant | None:
    dates = [fairness.next_due(t.db, lane, t.now) for lane in lanes if is_family(lane)]
    plain = [lane for lane in lanes if not is_family(lane)]
    if plain:
        found = t.db.row(NEXT_DUE, {"lanes": Texts(plain), "now": t.now})
        dates.append(None if found is None else found[0])
    return _earliest(*dates)


def _earliest(*dates: Instant | None) -> Instant | None:
    return min((date for date in dates if date is not None), default=None)
