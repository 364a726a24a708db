"""Claims: which of the jobs that are due a worker may run, the lanes in which they stand, and the
turns that tenants of fair flows have had."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from functools import cache
from typing import NamedTuple

import msgspec

from ulak.clock import Instant
from ulak.core.change import earlier
from ulak.core.job import wanted_slot
from ulak.store.batches import NO_SUSPECTS, SUSPECT_LAPSES, is_full
from ulak.store.flow_control import ON_KEY, ON_RATE, open_lanes
from ulak.store.in_turn import (
    PRIORITIES,
    Candidate,
    Family,
    InTurn,
    Standing,
    bounds,
    families_by_turns,
    is_family,
)
from ulak.store.protocol import LARGEST_CLAIM_BYTES, Claimed, ClaimRequest, Want
from ulak.store.sqlite import control
from ulak.store.sqlite.control import Buckets
from ulak.store.sqlite.leases import LAPSED, give_back_lapsed, lease, requests_of
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

ANY_LAPSES = 2**31

# A claim that finds a crowd before one slot parks no more of it than this in one transaction, a
# few milliseconds; the next claim goes on.
MOST_PARKED = 500

NOTHING_PAUSED: frozenset[tuple[str, str]] = frozenset()

CANDIDATES = f"""
    SELECT json_group_array(json_array(
        not_before, hex(id), priority, lapses, slot, rate, cost,
        (SELECT length(data) FROM payloads WHERE job_id = found.id)
    ))
    FROM (
        SELECT not_before, id, priority, lapses, slot, rate, cost {CLAIMABLE.format(when="<=")}
          AND lapses <= ?
        ORDER BY not_before, id LIMIT ?
    ) AS found
"""
# The same without looking at each: enough when there is nothing to choose among them.
CROWD = f"""
    SELECT group_concat(hex(id), ''), coalesce(max(lapses), 0), count(slot) + count(rate),
        sum((SELECT length(data) FROM payloads WHERE job_id = found.id))
    FROM (
        SELECT id, lapses, slot, rate {CLAIMABLE.format(when="<=")} AND lapses <= ?
        ORDER BY not_before, id LIMIT ?
    ) AS found
"""
# More ranges than this are looked at singly. A guess: flows have fewer stages in which jobs wait.
MOST_MERGED = 16


@cache
def _crowds(ranges: int) -> str:
    one = f"""
        SELECT * FROM (
            SELECT not_before, priority, id, lapses, slot, rate {CLAIMABLE.format(when="<=")}
              AND lapses <= ?
            ORDER BY not_before, id LIMIT ?
        )
    """
    return f"""
        SELECT group_concat(hex(id), ''), coalesce(max(lapses), 0), count(slot) + count(rate),
            sum((SELECT length(data) FROM payloads WHERE job_id = found.id))
        FROM (
            SELECT * FROM ({" UNION ALL ".join([one] * ranges)})
            ORDER BY not_before + priority * ?, priority, id LIMIT ?
        ) AS found
    """


PARK = "UPDATE jobs SET parked_on = ? WHERE id = ?"

# Whether a lease has lapsed and whether there are requests; whether it is a worker, when
# the first pause ends and the first bucket has filled for somebody, and whether a queue or a flow
# is paused: one step for those who use none of it.
LOOK = f"""
    SELECT EXISTS (SELECT 1 {LAPSED}),
        EXISTS (SELECT 1 FROM requests),
        EXISTS (SELECT 1 FROM workers WHERE id = ?4),
        (SELECT min(until_at) FROM pauses INDEXED BY pauses_ending WHERE until_at IS NOT NULL),
        (SELECT min(ready_at) FROM buckets INDEXED BY buckets_ready WHERE ready_at IS NOT NULL),
        EXISTS (SELECT 1 FROM pauses WHERE kind = 'queue' OR kind = 'flow')
"""
PAUSED = "SELECT kind, name FROM pauses WHERE kind <> 'key' AND (until_at IS NULL OR until_at > ?)"
_decode_candidates = msgspec.json.Decoder(list[Candidate]).decode


class _Look(NamedTuple):
    """What a claim sees besides jobs."""

    any_lapsed: int
    any_requests: int
    is_worker: int
    pause_ends_at: Instant | None
    bucket_ready_at: Instant | None
    any_paused: int

    def next_at(self) -> Instant | None:
        dates = (self.pause_ends_at, self.bucket_ready_at)
        return min((date for date in dates if date is not None), default=None)


def claim(t: Transaction, request: ClaimRequest) -> Claimed:
    """Give back lapsed leases, then lease what is due."""
    unparked = 0
    look = _look(t, request.worker)
    if look.any_lapsed:
        unparked = give_back_lapsed(t)
        look = _look(t, request.worker)
    buckets = Buckets(t)
    if look.pause_ends_at is not None and look.pause_ends_at <= t.now:
        unparked += control.end_pauses(t)
    if look.bucket_ready_at is not None and look.bucket_ready_at <= t.now:
        unparked += buckets.unpark_paid()
    if not look.is_worker:
        buckets.write()
        return Claimed([], t.now, [], None, unparked)
    wants, paused = request.wants, NOTHING_PAUSED
    if look.any_paused:
        paused = frozenset(t.db.execute(PAUSED, (t.now,)).fetchall())
        wants = tuple(Want(open_lanes(want.lanes, paused), want.places) for want in wants)
    standing = find_standing(t, {lane for want in wants for lane in want.lanes})
    search = _Search(t, buckets, request, standing)
    chosen = [job_id for want in wants for job_id in search.choose(want)]
    claims = lease(t, chosen, request) if chosen else []
    next_at: Instant | None = t.now
    if buckets.write() or look.next_at() is not None:
        look = _look(t, request.worker)
    if not (search.is_cut or is_full(request.wants, claims)):
        next_at = earlier(next_due(t, standing), look.next_at())
    requests = requests_of(t, request.worker) if look.any_requests else []
    return Claimed(claims, t.now, requests, next_at, unparked, paused)


def _look(t: Transaction, worker: str) -> _Look:
    return _Look(*t.db.execute(LOOK, (t.now, *t.uptime(), worker)).fetchone())


class _Search:
    """One claim's walk along the lanes: most urgent first, then longest due."""

    def __init__(
        self, t: Transaction, buckets: Buckets, request: ClaimRequest, standing: StandingLanes
    ) -> None:
        self._t = t
        self._buckets = buckets
        self._standing = standing
        self._ageing_us = request.ageing_us
        self._most_lapses = ANY_LAPSES if request.suspects else NO_SUSPECTS
        self._chosen: set[str] = set()
        self._crowds: list[bytes] = []
        self._lanes: set[str] = set()
        self._free: dict[str, int] = {}
        self._parked = 0
        self._size = 0
        self.is_cut = False

    def choose(self, want: Want) -> Iterator[bytes]:
        """Return up to `places` jobs, each with what it needs; park those that lack something."""
        lanes = [lane for lane in want.lanes if lane in self._standing]
        fresh = self._lanes.isdisjoint(lanes)
        self._lanes.update(lanes)
        if not fresh:
            # What an earlier want took from these lanes must be known one by one.
            self._chosen.update(job_id.hex().upper() for job_id in self._crowds)
        if any(map(is_family, lanes)):
            yield from self._in_turn(lanes, want.places)
        elif self._ageing_us:
            yield from self._aged(lanes, want.places, fresh=fresh)
        else:
            yield from self._by_priority(lanes, want.places, fresh=fresh)

    def _by_priority(self, lanes: Sequence[str], free: int, *, fresh: bool) -> Iterator[bytes]:
        every = self._ranges(lanes)
        for priority in sorted({level for _, level in every}):
            if free <= 0 or self.is_cut:
                return
            ranges = [place for place in every if place[1] == priority]
            crowd = self._crowd(ranges, free) if fresh else None
            for job_id in self._select(ranges, free) if crowd is None else crowd:
                free -= 1
                yield job_id

    def _aged(self, lanes: Sequence[str], free: int, *, fresh: bool) -> Iterator[bytes]:
        if free <= 0 or self.is_cut:
            return
        ranges = self._ranges(lanes)
        crowd = self._crowd(ranges, free) if fresh else None
        yield from self._select(ranges, free) if crowd is None else crowd

    def _ranges(self, lanes: Sequence[str]) -> list[tuple[str, int]]:
        """Return each lane and priority in which a job is due."""
        return [
            (lane, priority)
            for lane in lanes
            for priority, oldest in enumerate(self._standing[lane])
            if oldest is not None and oldest <= self._t.now
        ]

    def _in_turn(self, lanes: Sequence[str], free: int) -> Iterator[bytes]:
        if free <= 0 or self.is_cut:
            return
        t = self._t
        families = [read_family(t, *shared) for shared in families_by_turns(lanes).items()]
        alone = [lane for lane in lanes if not is_family(lane)]
        order = InTurn(alone, families, t.now, ageing_us=self._ageing_us, find=self._find)
        for line, candidate in order:
            if candidate.id not in self._chosen and self._take(candidate):
                if line.family is not None:
                    line.family.take_turn(line.tenant)
                free -= 1
                yield bytes.fromhex(candidate.id)
            if free <= 0 or self.is_cut:
                break
        write_families(t, families)

    def _crowd(self, ranges: Sequence[tuple[str, int]], free: int) -> list[bytes] | None:
        """Take every due job of these ranges, or answer None when they must be looked at singly."""
        if not 0 < len(ranges) <= MOST_MERGED:
            return None if ranges else []
        facts: list[object] = []
        for lane, priority in ranges:
            facts += (lane, priority, self._t.now, self._most_lapses, free)
        statement = CROWD
        if len(ranges) > 1:
            statement = _crowds(len(ranges))
            facts += (self._ageing_us, free)
        digits, lapses, particular, size = self._t.db.execute(statement, facts).fetchone()
        if digits is None:
            return []
        if lapses >= SUSPECT_LAPSES or particular or self._size + size >= LARGEST_CLAIM_BYTES:
            return None
        packed = bytes.fromhex(digits)
        crowd = [packed[at : at + 16] for at in range(0, len(packed), 16)]
        self._crowds += crowd
        self._size += size
        return crowd

    def _select(self, ranges: Sequence[tuple[str, int]], free: int) -> Iterator[bytes]:
        """Look at each due job of these ranges in turn."""
        more = True
        while free > 0 and more:
            # Chosen jobs stand in the index until they are leased, hence the longer look.
            look = free + len(self._chosen)
            found = self._candidates(ranges, look)
            passed = 0
            for candidate in found:
                if free <= 0:
                    return
                if candidate.id in self._chosen:
                    continue
                if self._take(candidate):
                    free -= 1
                    yield bytes.fromhex(candidate.id)
                else:
                    passed += 1
                    if self.is_cut:
                        return
            more = passed > 0 and len(found) >= look

    def _candidates(self, ranges: Sequence[tuple[str, int]], limit: int) -> list[Candidate]:
        found: list[Candidate] = []
        for lane, priority in ranges:
            found += self._find(lane, priority, limit)
        if len(ranges) > 1:
            ageing = self._ageing_us
            found.sort(key=lambda c: (c.not_before + c.priority * ageing, c.priority, c.id))
        return found[:limit]

    def _find(self, lane: str, priority: int, limit: int) -> list[Candidate]:
        facts = (lane, priority, self._t.now, self._most_lapses, limit)
        return _decode_candidates(self._t.db.execute(CANDIDATES, facts).fetchone()[0])

    def _take(self, candidate: Candidate) -> bool:
        is_suspect = candidate.lapses >= SUSPECT_LAPSES
        if is_suspect and self._most_lapses < candidate.lapses:
            return False
        if self._size >= LARGEST_CLAIM_BYTES:
            self.is_cut = True
            return False
        if candidate.slot is not None or candidate.rate is not None:
            lack = self._supply(candidate, bytes.fromhex(candidate.id))
            if lack is not None:
                self._t.db.execute(PARK, (lack, bytes.fromhex(candidate.id)))
                self._parked += 1
                self.is_cut = self._parked >= MOST_PARKED
                return False
        if is_suspect:
            self._most_lapses = NO_SUSPECTS
        self._chosen.add(candidate.id)
        self._size += candidate.size
        return True

    def _supply(self, candidate: Candidate, job_id: bytes) -> str | None:
        """Take slot and tokens for a run, or answer what the job must be parked on."""
        t, rate = self._t, candidate.rate
        key = control.paused_key(t, candidate.slot, rate)
        slot = wanted_slot(candidate.slot)
        if key is not None:
            return ON_KEY + key
        if slot is not None and self._places(slot) <= 0:
            return slot
        if rate is not None:
            order = (candidate.priority, candidate.not_before, job_id)
            if not self._buckets.can_pay(rate, candidate.cost, order):
                self._buckets.park(rate, candidate.cost, order)
                return ON_RATE + rate
            self._buckets.pay(rate, candidate.cost)
        if slot is not None:
            control.take_slot(t, slot, job_id)
            self._free[slot] -= 1
        return None

    def _places(self, limit: str) -> int:
        """Return how many more jobs may run under this limit; counted once in a claim."""
        if limit not in self._free:
            self._free[limit] = control.open_slots(self._t, limit)
        return self._free[limit]


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
