"""Claims and leases: who may run what, and what becomes of jobs whose worker vanished."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, NamedTuple

import msgspec

from ulak.clock import Instant
from ulak.core import event as kinds
from ulak.core.job import Event, JobRow, Payload, Request, Result
from ulak.core.lifecycle import BUSY, READY
from ulak.store.lines import NO_SUSPECTS, SUSPECT_LAPSES, own_event
from ulak.store.protocol import Claim, Claimed, ClaimRequest, Renewal, Want
from ulak.store.sqlite import keys, trail
from ulak.store.sqlite.commits import ANY_REQUESTS
from ulak.store.sqlite.order import Rest
from ulak.store.sqlite.rows import (
    JOB_COLUMNS,
    PACKED_IDS,
    as_job,
    as_request,
    as_result,
    pack,
)
from ulak.store.sqlite.writer import Transaction

ANY_LAPSES = 2**31
PRIORITIES = range(4)

# A claim that finds a crowd before one slot parks no more of it than this in one transaction, a
# few milliseconds; the next claim goes on.
MOST_PARKED = 500

# These conditions are those of the index, word for word: SQLite takes a partial index only when
# it can see that the query implies it.
_CLAIMABLE = """
    FROM jobs INDEXED BY jobs_claimable
    WHERE lane = ? AND priority = ? AND not_before {when} ?
      AND leased_by IS NULL AND parked_on IS NULL AND lane <> ''
"""
CANDIDATES = f"""
    SELECT json_group_array(json_array(not_before, hex(id), lapses, slot)) FROM (
        SELECT not_before, id, lapses, slot {_CLAIMABLE.format(when="<=")} AND lapses <= ?
        ORDER BY not_before, id LIMIT ?
    )
"""
# The same without looking at each: enough when there is nothing to choose among them.
CROWD = f"""
    SELECT group_concat(hex(id), ''), coalesce(max(lapses), 0), count(slot) FROM (
        SELECT id, lapses, slot {_CLAIMABLE.format(when="<=")} AND lapses <= ?
        ORDER BY not_before, id LIMIT ?
    )
"""
NEXT_DUE = f"SELECT min(not_before) {_CLAIMABLE.format(when='>')}"

LEASE = f"""
    UPDATE OR FAIL jobs SET leased_by = ?2, leased_at = ?3, token = token + 1, stood = 1
    WHERE id IN {PACKED_IDS}
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
        hex(id), {", ".join(JobRow._fields[1:])}, schema,
        CASE WHEN length(data) <= {LONGEST_PACKED} THEN hex(data) END
    ))
    FROM jobs JOIN payloads ON payloads.job_id = jobs.id WHERE jobs.id IN {PACKED_IDS}
"""
PAYLOAD = "SELECT data FROM payloads WHERE job_id = ?"
PARK = "UPDATE jobs SET parked_on = slot WHERE id = ?"
RESULTS = f"""
    SELECT * FROM results WHERE job_id IN {PACKED_IDS} ORDER BY job_id, round, stage, name
"""

IS_WORKER = "SELECT 1 FROM workers WHERE id = ?"
LAPSED_WORKERS = "SELECT id FROM workers WHERE expires_at <= ? ORDER BY id"
LEASED_BY = f"SELECT {JOB_COLUMNS} FROM jobs WHERE leased_by = ? ORDER BY id"
IS_HOLDING = "SELECT 1 FROM jobs WHERE leased_by = ? LIMIT 1"
LAPSE = """
    UPDATE jobs SET leased_by = NULL, token = ?, lapses = ?, lapsed = 1, not_before = ?,
                    version = ?, seq = ?
    WHERE id = ?
"""
FORGET_WORKER = "DELETE FROM workers WHERE id = ?"
REGISTER = """
    INSERT INTO workers (id, started_at, renewed_at, expires_at, lanes, about)
    VALUES (?, ?, ?, ?, ?, ?)
    ON CONFLICT (id) DO UPDATE SET started_at = excluded.started_at,
        renewed_at = excluded.renewed_at, expires_at = excluded.expires_at,
        lanes = excluded.lanes, about = excluded.about
"""
RENEW = "UPDATE workers SET renewed_at = ?, expires_at = ? WHERE id = ?"
END_LEASE = "UPDATE workers SET expires_at = ? WHERE id = ?"
REQUESTS_OF_WORKER = """
    SELECT requests.* FROM requests CROSS JOIN jobs ON jobs.id = requests.job_id
    WHERE jobs.leased_by = ? ORDER BY requests.job_id, requests.at, kind, name
"""


_SLOT = JobRow._fields.index("slot")


class Candidate(NamedTuple):
    """What the claim index tells of a job, without its row; the id in hexadecimal digits."""

    not_before: Instant
    id: str
    lapses: int
    slot: str | None


_decode_candidates = msgspec.json.Decoder(list[Candidate]).decode
_decode_rows = msgspec.json.Decoder(list[list[Any]]).decode


def claim(t: Transaction, request: ClaimRequest) -> Claimed:
    """Give back lapsed leases, then lease what is due."""
    unparked = give_back_lapsed(t)
    if t.db.execute(IS_WORKER, (request.worker,)).fetchone() is None:
        return Claimed([], t.now, [], None, unparked)
    search = _Search(t, suspects=request.suspects)
    chosen = [job_id for want in request.wants for job_id in search.choose(want)]
    claims = _lease(t, chosen, request) if chosen else []
    lanes = dict.fromkeys(lane for want in request.wants for lane in want.lanes)
    next_at = t.now if search.is_cut else _next_due(t, lanes)
    return Claimed(claims, t.now, requests_of(t, request.worker), next_at, unparked)


class _Search:
    """One claim's walk along the lanes: most urgent first, then longest due."""

    def __init__(self, t: Transaction, *, suspects: bool) -> None:
        self._t = t
        self._most_lapses = ANY_LAPSES if suspects else NO_SUSPECTS
        self._chosen: set[str] = set()
        self._crowds: list[bytes] = []
        self._lanes: set[str] = set()
        self._parked = 0
        self.is_cut = False
        """It stopped before it had seen everything."""

    def choose(self, want: Want) -> Iterator[bytes]:
        """Answer up to `places` jobs, each with its slot; park those that find none."""
        free = want.places
        fresh = self._lanes.isdisjoint(want.lanes)
        self._lanes.update(want.lanes)
        if not fresh:
            # What an earlier want took from these lanes must be known one by one.
            self._chosen.update(job_id.hex().upper() for job_id in self._crowds)
        for priority in PRIORITIES:
            if free <= 0 or self.is_cut:
                return
            crowd = self._crowd(want.lanes, priority, free) if fresh else None
            for job_id in self._select(want.lanes, priority, free) if crowd is None else crowd:
                free -= 1
                yield job_id

    def _crowd(self, lanes: Sequence[str], priority: int, free: int) -> list[bytes] | None:
        """Take every due job of these lanes, or answer None when they must be looked at singly."""
        packed = b""
        for lane in lanes:
            facts = (lane, priority, self._t.now, self._most_lapses, free)
            digits, lapses, slots = self._t.db.execute(CROWD, facts).fetchone()
            if digits is None:
                continue
            if packed or lapses >= SUSPECT_LAPSES or slots:
                return None
            packed = bytes.fromhex(digits)
        crowd = [packed[at : at + 16] for at in range(0, len(packed), 16)]
        self._crowds += crowd
        return crowd

    def _select(self, lanes: Sequence[str], priority: int, free: int) -> Iterator[bytes]:
        """Look at each due job of these lanes in turn."""
        more = True
        while free > 0 and more:
            # Chosen jobs stand in the index until they are leased, hence the longer look.
            look = free + len(self._chosen)
            found = self._candidates(lanes, priority, look)
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

    def _candidates(self, lanes: Sequence[str], priority: int, limit: int) -> list[Candidate]:
        found: list[Candidate] = []
        for lane in lanes:
            facts = (lane, priority, self._t.now, self._most_lapses, limit)
            found += _decode_candidates(self._t.db.execute(CANDIDATES, facts).fetchone()[0])
        if len(lanes) > 1:
            found.sort()
        return found[:limit]

    def _take(self, candidate: Candidate) -> bool:
        is_suspect = candidate.lapses >= SUSPECT_LAPSES
        if is_suspect and self._most_lapses < candidate.lapses:
            return False
        job_id = bytes.fromhex(candidate.id)
        if candidate.slot is not None and not keys.take_slot(self._t, candidate.slot, job_id):
            self._t.db.execute(PARK, (job_id,))
            self._parked += 1
            self.is_cut = self._parked >= MOST_PARKED
            return False
        if is_suspect:
            self._most_lapses = NO_SUSPECTS
        self._chosen.add(candidate.id)
        return True


def _lease(t: Transaction, chosen: Sequence[bytes], request: ClaimRequest) -> list[Claim]:
    ids = pack(chosen)
    t.db.execute(LEASE, (ids, request.worker, t.now))
    found: dict[bytes, Claim] = {}
    for facts in _decode_rows(t.db.execute(LEASED, (ids,)).fetchone()[0]):
        digits, schema = facts.pop(), facts.pop()
        job_id = facts[0] = bytes.fromhex(facts[0])
        row = as_job(facts)
        data = _long_payload(t, job_id) if digits is None else bytes.fromhex(digits)
        found[job_id] = Claim(row, Payload(data, schema), ())
    _load_results(t, found)
    if request.entries:
        _enter(t, found, request)
    return [found[job_id] for job_id in chosen]


def _long_payload(t: Transaction, job_id: bytes) -> bytes:
    data: bytes = t.db.execute(PAYLOAD, (job_id,)).fetchone()[0]
    return data


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
    written: list[tuple[str, Event]] = []
    for job_id, claim in claims.items():
        row = claim.row
        busy = request.entries.get((row.flow, row.flow_version, row.state))
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
        written.append((row.tenant, event))
        claims[job_id] = claim._replace(row=moved)
    for busy, ids in entered.items():
        t.db.execute(ENTER, (pack(ids), busy, t.now))
    trail.append_own(t, written)


def _next_due(t: Transaction, lanes: Iterable[str]) -> Instant | None:
    dates = (
        t.db.execute(NEXT_DUE, (lane, priority, t.now)).fetchone()[0]
        for lane in lanes
        for priority in PRIORITIES
    )
    return min((date for date in dates if date is not None), default=None)


def give_back_lapsed(t: Transaction) -> int:
    """Take every lapsed lease away, whoever held it; answer how many jobs were unparked."""
    workers = t.db.execute(LAPSED_WORKERS, (t.now,)).fetchall()
    if not workers:
        return 0
    lost = [row for worker in workers for row in t.db.execute(LEASED_BY, worker).fetchall()]
    written: list[tuple[str, Event]] = []
    for row in map(as_job, sorted(lost)):
        # The token moves, so that the vanished worker cannot write over its successor.
        seq = row.seq + 1
        t.db.execute(LAPSE, (row.token + 1, row.lapses + 1, t.now, row.version + 1, seq, row.id))
        line = row._replace(seq=seq)
        event = own_event(line, kinds.LAPSED, row.state, kinds.ENGINE, row.leased_by, t.now)
        written.append((row.tenant, event))
        t.made_due = True
    trail.append_own(t, written)
    t.db.executemany(FORGET_WORKER, workers)
    rest = Rest(t)
    for row in lost:
        if row[_SLOT] is not None:
            rest.free_slot(row[_SLOT], row[0])
    return rest.write()


def register(
    t: Transaction, worker: str, *, lease_us: int, lanes: Sequence[str], about: str
) -> Instant:
    """Begin a worker's lease."""
    facts = (worker, t.now, t.now, t.now + lease_us, " ".join(lanes), about)
    t.db.execute(REGISTER, facts)
    return t.now


def renew(t: Transaction, worker: str, *, lease_us: int) -> Renewal:
    """Extend a worker's lease if it is still there."""
    if t.db.execute(RENEW, (t.now, t.now + lease_us, worker)).rowcount == 0:
        return Renewal(False, t.now, [])
    return Renewal(True, t.now, requests_of(t, worker))


def unregister(t: Transaction, worker: str) -> None:
    """End a worker's lease; what it still holds is left, lapsed, to the next claimer."""
    if t.db.execute(IS_HOLDING, (worker,)).fetchone() is None:
        t.db.execute(FORGET_WORKER, (worker,))
    else:
        t.db.execute(END_LEASE, (t.now, worker))
        t.made_due = True


def leased(db: sqlite3.Connection, worker: str) -> list[JobRow]:
    """Answer the jobs that a worker has leased."""
    return list(map(as_job, db.execute(LEASED_BY, (worker,)).fetchall()))


def requests_of(t: Transaction, worker: str) -> list[Request]:
    """Answer what is asked of the jobs that a worker holds."""
    if not t.db.execute(ANY_REQUESTS).fetchone()[0]:
        return []
    return list(map(as_request, t.db.execute(REQUESTS_OF_WORKER, (worker,)).fetchall()))
