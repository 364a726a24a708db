"""Claims and leases: who may run what, and what becomes of jobs whose worker vanished."""

from __future__ import annotations

import sqlite3
from collections.abc import Collection, Iterator, Mapping, Sequence
from functools import cache
from typing import Any, NamedTuple

import msgspec

from ulak.clock import Instant
from ulak.core import event as kinds
from ulak.core.job import OF_STATE, Event, JobRow, Payload, Request, Result, wanted_slot
from ulak.core.lifecycle import BUSY, READY
from ulak.store.batches import NO_SUSPECTS, SUSPECT_LAPSES, is_full, own_event
from ulak.store.flow_control import ON_KEY, ON_RATE, open_lanes
from ulak.store.in_turn import (
    PRIORITIES,
    Candidate,
    InTurn,
    bounds,
    families_by_turns,
    is_family,
)
from ulak.store.protocol import LARGEST_CLAIM_BYTES, Claim, Claimed, ClaimRequest, Renewal, Want
from ulak.store.sql.session import JOB_COLUMNS, RESULT_COLUMNS, as_job, as_request, as_result
from ulak.store.sqlite import control, fairness, keys, trail
from ulak.store.sqlite.commits import ANY_REQUESTS
from ulak.store.sqlite.order import Rest
from ulak.store.sqlite.rows import PACKED_IDS, pack
from ulak.store.sqlite.tokens import Buckets
from ulak.store.sqlite.writer import Transaction

ANY_LAPSES = 2**31

# A claim that finds a crowd before one slot parks no more of it than this in one transaction, a
# few milliseconds; the next claim goes on.
MOST_PARKED = 500

NOTHING_PAUSED: frozenset[tuple[str, str]] = frozenset()

# These conditions are those of the index, word for word: SQLite takes a partial index only when
# it can see that the query implies it.
_CLAIMABLE = """
    FROM jobs INDEXED BY jobs_claimable
    WHERE lane = ? AND priority = ? AND not_before {when} ?
      AND leased_by IS NULL AND parked_on IS NULL AND lane <> ''
"""
CANDIDATES = f"""
    SELECT json_group_array(json_array(
        not_before, hex(id), priority, lapses, slot, rate, cost,
        (SELECT length(data) FROM payloads WHERE job_id = found.id)
    ))
    FROM (
        SELECT not_before, id, priority, lapses, slot, rate, cost {_CLAIMABLE.format(when="<=")}
          AND lapses <= ?
        ORDER BY not_before, id LIMIT ?
    ) AS found
"""
# The same without looking at each: enough when there is nothing to choose among them.
CROWD = f"""
    SELECT group_concat(hex(id), ''), coalesce(max(lapses), 0), count(slot) + count(rate),
        sum((SELECT length(data) FROM payloads WHERE job_id = found.id))
    FROM (
        SELECT id, lapses, slot, rate {_CLAIMABLE.format(when="<=")} AND lapses <= ?
        ORDER BY not_before, id LIMIT ?
    ) AS found
"""
NEXT_DUE = f"SELECT min(not_before) {_CLAIMABLE.format(when='>')}"
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
    """Write the look at so many lanes."""
    return f"""
        WITH wanted (name) AS (VALUES {", ".join(["(?)"] * lanes)})
        SELECT wanted.name, {_HEADS} FROM wanted
        WHERE EXISTS (SELECT 1 {_STANDING.format(lane="lane = wanted.name")})
    """


@cache
def families_standing_in(families: int) -> str:
    """Write the look at so many families, each with its first lane and the end of its range."""
    inside = _STANDING.format(lane="lane >= wanted.first AND lane < wanted.behind")
    return f"""
        WITH wanted (name, first, behind) AS (VALUES {", ".join(["(?, ?, ?)"] * families)})
        SELECT wanted.name FROM wanted WHERE EXISTS (SELECT 1 {inside})
    """


# More ranges than this are looked at singly. A guess: flows have fewer stages in which jobs wait.
MOST_MERGED = 16


@cache
def _crowds(ranges: int) -> str:
    """Write `CROWD` for several lanes and priorities, merged by how urgent their jobs are."""
    one = f"""
        SELECT * FROM (
            SELECT not_before, priority, id, lapses, slot, rate {_CLAIMABLE.format(when="<=")}
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


LEASE = f"""
    UPDATE OR FAIL jobs SET leased_by = ?2, leased_at = ?3, token = token + 1, stood = 1
    WHERE id IN {PACKED_IDS}
"""
# One job, each value bound: a lone job is most of what an idle worker claims.
LEASE_ONE = f"""
    UPDATE jobs SET leased_by = ?, leased_at = ?, token = token + 1, stood = 1
    WHERE id = ? RETURNING {JOB_COLUMNS}
"""
ENTER = f"""
    UPDATE OR FAIL jobs SET state = ?2, role = '{BUSY}', version = version + 1, seq = seq + 1,
                    changed_at = ?3
    WHERE id IN {PACKED_IDS}
"""
# A payload that is longer than this is read on its own: as digits of JSON it would be in memory
# three times over.
LONGEST_PACKED = 4096
LEASED = f"""
    SELECT json_group_array(json_array(
        hex(id), {", ".join(JobRow._fields[1:])}, schema, trace,
        CASE WHEN length(data) <= {LONGEST_PACKED} THEN hex(data) END
    ))
    FROM jobs JOIN payloads ON payloads.job_id = jobs.id WHERE jobs.id IN {PACKED_IDS}
"""
PAYLOAD = "SELECT data, schema, trace FROM payloads WHERE job_id = ?"
PARK = "UPDATE jobs SET parked_on = ? WHERE id = ?"
RESULTS = f"""
    SELECT {RESULT_COLUMNS} FROM results WHERE job_id IN {PACKED_IDS}
    ORDER BY job_id, round, stage, name
"""

# By the time of day only where one of the two does not know how long the machine has been running.
_LAPSED = """
    FROM workers
    WHERE CASE WHEN boot IS NULL OR ?2 = '' THEN expires_at <= ?1
               ELSE boot <> ?2 OR ends_us <= ?3 END
"""
LAPSED_WORKERS = f"SELECT id {_LAPSED} ORDER BY id"
# Whether a lease has lapsed and whether there are requests; whether it is a worker, when
# the first pause ends and the first bucket has filled for somebody, and whether a queue or a flow
# is paused: one step for those who use none of it.
LOOK = f"""
    SELECT EXISTS (SELECT 1 {_LAPSED}),
        EXISTS (SELECT 1 FROM requests),
        EXISTS (SELECT 1 FROM workers WHERE id = ?4),
        (SELECT min(until_at) FROM pauses INDEXED BY pauses_ending WHERE until_at IS NOT NULL),
        (SELECT min(ready_at) FROM buckets INDEXED BY buckets_ready WHERE ready_at IS NOT NULL),
        EXISTS (SELECT 1 FROM pauses WHERE kind = 'queue' OR kind = 'flow')
"""
PAUSED = "SELECT kind, name FROM pauses WHERE kind <> 'key' AND (until_at IS NULL OR until_at > ?)"
LEASED_BY = f"SELECT {JOB_COLUMNS} FROM jobs WHERE leased_by = ? ORDER BY id"
IS_HOLDING = "SELECT 1 FROM jobs WHERE leased_by = ? LIMIT 1"
LAPSE = """
    UPDATE jobs SET leased_by = NULL, token = ?, lapses = ?, lapsed = 1, not_before = ?,
                    version = ?, seq = ?
    WHERE id = ?
"""
FORGET_WORKER = "DELETE FROM workers WHERE id = ?"
REGISTER = """
    INSERT INTO workers (id, started_at, renewed_at, expires_at, lanes, about, boot, ends_us)
    VALUES (?, ?, ?, ?, ?, ?, ?, ?)
    ON CONFLICT (id) DO UPDATE SET started_at = excluded.started_at,
        renewed_at = excluded.renewed_at, expires_at = excluded.expires_at,
        lanes = excluded.lanes, about = excluded.about, boot = excluded.boot,
        ends_us = excluded.ends_us
"""
RENEW = """
    UPDATE workers SET renewed_at = ?, expires_at = ?, boot = ?, ends_us = ? WHERE id = ?
"""
END_LEASE = "UPDATE workers SET expires_at = ?, ends_us = ? WHERE id = ?"
REQUESTS_OF_WORKER = f"""
    SELECT {", ".join(f"requests.{name}" for name in Request._fields)}
    FROM requests CROSS JOIN jobs ON jobs.id = requests.job_id
    WHERE jobs.leased_by = ? ORDER BY requests.job_id, requests.at, kind, name
"""


_SLOT = JobRow._fields.index("slot")


_decode_candidates = msgspec.json.Decoder(list[Candidate]).decode
_decode_rows = msgspec.json.Decoder(list[list[Any]]).decode


Standing = Mapping[str, Sequence[Instant | None]]
"""For each lane in which jobs stand, when the oldest of each priority is due; a family has none."""


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
    standing = _standing(t, {lane for want in wants for lane in want.lanes})
    search = _Search(t, buckets, request, standing)
    chosen = [job_id for want in wants for job_id in search.choose(want)]
    claims = _lease(t, chosen, request) if chosen else []
    next_at: Instant | None = t.now
    if buckets.write() or look.next_at() is not None:
        look = _look(t, request.worker)
    if not (search.is_cut or is_full(request.wants, claims)):
        next_at = _earlier(_next_due(t, standing), look.next_at())
    requests = requests_of(t, request.worker) if look.any_requests else []
    return Claimed(claims, t.now, requests, next_at, unparked, paused)


def _look(t: Transaction, worker: str) -> _Look:
    return _Look(*t.db.execute(LOOK, (t.now, *t.uptime(), worker)).fetchone())


class _Search:
    """One claim's walk along the lanes: most urgent first, then longest due."""

    def __init__(
        self, t: Transaction, buckets: Buckets, request: ClaimRequest, standing: Standing
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
        """It stopped before it had seen everything."""

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
        """Take whatever is more urgent before anything that is less."""
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
        """Merge the priorities: a level of them is worth so much waiting."""
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
        """Let the tenants of fair flows take turns."""
        if free <= 0 or self.is_cut:
            return
        t = self._t
        families = [fairness.read(t, *shared) for shared in families_by_turns(lanes).items()]
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
        fairness.write(t, families)

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
            keys.take_slot(t, slot, job_id)
            self._free[slot] -= 1
        return None

    def _places(self, limit: str) -> int:
        """Return how many more jobs may run under this limit; counted once in a claim."""
        if limit not in self._free:
            self._free[limit] = keys.open_slots(self._t, limit)
        return self._free[limit]


def _lease(t: Transaction, chosen: Sequence[bytes], request: ClaimRequest) -> list[Claim]:
    found = (
        _lease_one(t, chosen[0], request) if len(chosen) == 1 else _lease_many(t, chosen, request)
    )
    _load_results(t, found)
    if request.entries:
        _enter(t, found, request)
    return [found[job_id] for job_id in chosen]


def _lease_one(t: Transaction, job_id: bytes, request: ClaimRequest) -> dict[bytes, Claim]:
    [row] = t.db.execute(LEASE_ONE, (request.worker, t.now, bytearray(job_id))).fetchall()
    return {job_id: Claim(as_job(row), _read_payload(t, job_id), ())}


def _lease_many(
    t: Transaction, chosen: Sequence[bytes], request: ClaimRequest
) -> dict[bytes, Claim]:
    ids = pack(chosen)
    t.db.execute(LEASE, (ids, request.worker, t.now))
    found: dict[bytes, Claim] = {}
    for facts in _decode_rows(t.db.execute(LEASED, (ids,)).fetchone()[0]):
        digits, trace, schema = facts.pop(), facts.pop(), facts.pop()
        job_id = facts[0] = bytes.fromhex(facts[0])
        if digits is None:
            payload = _read_payload(t, job_id)
        else:
            payload = Payload(bytes.fromhex(digits), schema, trace)
        found[job_id] = Claim(as_job(facts), payload, ())
    return found


def _read_payload(t: Transaction, job_id: bytes) -> Payload:
    return Payload(*t.db.execute(PAYLOAD, (bytearray(job_id),)).fetchone())


def _load_results(t: Transaction, claims: dict[bytes, Claim]) -> None:
    """Give each claim the results that earlier stages left."""
    job_ids = [job_id for job_id, claim in claims.items() if claim.row.has_results]
    if not job_ids:
        return
    found: dict[bytes, list[Result]] = {}
    for row in t.db.execute(RESULTS, (pack(job_ids),)).fetchall():
        found.setdefault(row[0], []).append(as_result(row))
    for job_id, results in found.items():
        claims[job_id] = claims[job_id]._replace(results=tuple(results))


def _enter(t: Transaction, claims: dict[bytes, Claim], request: ClaimRequest) -> None:
    """Move jobs into the busy states of their stages."""
    entered: dict[str, list[bytes]] = {}
    kept: list[bytes] = []
    written: list[tuple[JobRow, Event]] = []
    for job_id, claim in claims.items():
        row = claim.row
        entry = (row.flow, row.flow_version, row.state)
        busy = request.entries.get(entry)
        # A job that undoes may stand in a state of the same name; its undo enters nothing.
        if busy is None or row.role != READY:
            continue
        entered.setdefault(busy, []).append(job_id)
        t.count((row.flow, row.flow_version, row.state, row.role), -1)
        t.count((row.flow, row.flow_version, busy, BUSY), 1)
        moved = row._replace(
            state=busy, role=BUSY, version=row.version + 1, seq=row.seq + 1, changed_at=t.now
        )
        event = own_event(moved, kinds.ENTERED, row.state, request.worker, request.worker, t.now)
        written.append((row, event))
        slot = wanted_slot(row.slot)
        if slot is not None and entry in request.keeps:
            kept.append(job_id)
            moved = moved._replace(slot=OF_STATE + slot)
        claims[job_id] = claim._replace(row=moved)
    if kept:
        keys.keep_slots(t, kept)
    for busy, ids in entered.items():
        t.db.execute(ENTER, (pack(ids), busy, t.now))
    trail.append_own(t, written)


def _standing(t: Transaction, lanes: Collection[str]) -> Standing:
    """Find the lanes and the families in which jobs stand."""
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


def _next_due(t: Transaction, standing: Standing) -> Instant | None:
    next_at = None
    for lane, heads in standing.items():
        if is_family(lane):
            next_at = _earlier(next_at, fairness.next_due(t, lane))
            continue
        for priority, head in enumerate(heads):
            if head is not None and head <= t.now:
                head = t.db.execute(NEXT_DUE, (lane, priority, t.now)).fetchone()[0]
            next_at = _earlier(next_at, head)
    return next_at


def _earlier(a: Instant | None, b: Instant | None) -> Instant | None:
    if a is None or b is None:
        return a if b is None else b
    return min(a, b)


def give_back_lapsed(t: Transaction) -> int:
    """Take every lapsed lease away, whoever held it; answer how many jobs were unparked."""
    workers = t.db.execute(LAPSED_WORKERS, (t.now, *t.uptime())).fetchall()
    if not workers:
        return 0
    lost = [row for worker in workers for row in t.db.execute(LEASED_BY, worker).fetchall()]
    written: list[tuple[JobRow, Event]] = []
    for row in map(as_job, sorted(lost)):
        # The token moves, so that the vanished worker cannot write over its successor.
        seq = row.seq + 1
        t.db.execute(LAPSE, (row.token + 1, row.lapses + 1, t.now, row.version + 1, seq, row.id))
        line = row._replace(seq=seq)
        event = own_event(line, kinds.LAPSED, row.state, kinds.ENGINE, row.leased_by, t.now)
        written.append((row, event))
        t.made_due = True
    trail.append_own(t, written)
    t.db.executemany(FORGET_WORKER, workers)
    rest = Rest(t)
    for row in lost:
        slot = wanted_slot(row[_SLOT])
        if slot is not None:
            rest.free_slot(slot, row[0])
    return rest.write()


def register(
    t: Transaction, worker: str, *, lease_us: int, lanes: Sequence[str], about: str
) -> Instant:
    """Begin a worker's lease."""
    facts = (worker, t.now, t.now, t.now + lease_us, " ".join(lanes), about)
    t.db.execute(REGISTER, (*facts, *_lease_end(t, lease_us)))
    return t.now


def renew(t: Transaction, worker: str, *, lease_us: int) -> Renewal:
    """Extend a worker's lease if it is still there."""
    facts = (t.now, t.now + lease_us, *_lease_end(t, lease_us), worker)
    if t.db.execute(RENEW, facts).rowcount == 0:
        return Renewal(False, t.now, [])
    return Renewal(True, t.now, requests_of(t, worker))


def _lease_end(t: Transaction, lease_us: int) -> tuple[str | None, int | None]:
    """Return when a lease of this length ends, by the uptime of the machine if it tells that."""
    boot, us = t.uptime()
    return (boot, us + lease_us) if boot else (None, None)


def unregister(t: Transaction, worker: str) -> None:
    """End a worker's lease; what it still holds is left, lapsed, to the next claimer."""
    if t.db.execute(IS_HOLDING, (worker,)).fetchone() is None:
        t.db.execute(FORGET_WORKER, (worker,))
    else:
        t.db.execute(END_LEASE, (t.now, t.uptime().us, worker))
        t.made_due = True


def leased(db: sqlite3.Connection, worker: str) -> list[JobRow]:
    """Return the jobs that a worker has leased."""
    return list(map(as_job, db.execute(LEASED_BY, (worker,)).fetchall()))


def requests_of(t: Transaction, worker: str) -> list[Request]:
    """Return the requests for the jobs that a worker holds."""
    if not t.db.execute(ANY_REQUESTS).fetchone()[0]:
        return []
    return list(map(as_request, t.db.execute(REQUESTS_OF_WORKER, (worker,)).fetchall()))
