"""Claims and leases: who may run what, and what becomes of jobs whose worker vanished.

Claimers never wait for each other: each locks the rows that it wants and skips what another has
locked. A claim first looks, without locking, how many jobs of which lane and priority are next,
and then takes so many of each.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple

from ulak.clock import Clock, Instant
from ulak.core import event as kinds
from ulak.core.job import Event, JobRow, Payload, Request, Result
from ulak.core.lifecycle import BUSY, READY
from ulak.store.lines import NO_SUSPECTS, SUSPECT_LAPSES, own_event
from ulak.store.postgres import slots, trail
from ulak.store.postgres.clock import ServerClock
from ulak.store.postgres.connections import Session, Transaction
from ulak.store.postgres.months import month_of
from ulak.store.postgres.values import (
    JOB_COLUMNS,
    RESULT_COLUMNS,
    Ids,
    Numbers,
    Texts,
    as_job,
    as_request,
    as_result,
)
from ulak.store.protocol import Claim, Claimed, ClaimRequest, Renewal, Want

ANY_LAPSES = 2**31

# A claim that finds a crowd before one slot parks no more of it than this in one transaction; the
# next claim goes on.
MOST_PARKED = 500

SERVER_TIME = "(extract(epoch FROM clock_timestamp()) * 1000000)::bigint"

# The worker's row is held so that nobody can declare it lapsed in the middle of its claim; a
# renewal, which moves no key, need not wait.
LOOK = f"""
    SELECT {SERVER_TIME},
        (SELECT 1 FROM ulak.workers WHERE id = %(worker)s::text FOR KEY SHARE),
        EXISTS (SELECT FROM ulak.workers WHERE expires_at <= %(now)s::bigint),
        EXISTS (SELECT FROM ulak.requests)
"""
_CLAIMABLE = """
    lane = {lane} AND priority = {priority} AND not_before {when} %(now)s::bigint
    AND leased_by IS NULL AND parked_on IS NULL AND lane <> ''
"""
_URGENCY = """
    CASE WHEN %(ageing)s::bigint = 0 THEN {c}.priority ELSE 0 END,
    {c}.not_before + {c}.priority * %(ageing)s::bigint, {c}.id
"""
_NEXT = f"""
    SELECT c.* FROM unnest(%(lanes)s::text[]) AS l (lane)
    CROSS JOIN generate_series(0, 3) AS p (priority)
    CROSS JOIN LATERAL (
        SELECT id, lane, priority, not_before, lapses, slot FROM ulak.jobs
        WHERE {_CLAIMABLE.format(lane="l.lane", priority="p.priority", when="<=")}
          AND lapses <= %(lapses)s::bigint
        ORDER BY not_before, id LIMIT %(places)s::bigint {{lock}}
    ) AS c
    ORDER BY {_URGENCY.format(c="c")} LIMIT %(places)s::bigint
"""
SHARES = f"""
    SELECT lane, priority, count(*), max(lapses), count(slot) FROM ({_NEXT.format(lock="")}) AS s
    GROUP BY lane, priority
"""
CANDIDATES = f"""
    SELECT id, lapses, slot FROM ({_NEXT.format(lock="FOR NO KEY UPDATE SKIP LOCKED")}) AS s
    ORDER BY {_URGENCY.format(c="s")}
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
              AND lapses <= {NO_SUSPECTS} AND slot IS NULL
            ORDER BY not_before, id LIMIT s.share FOR NO KEY UPDATE SKIP LOCKED
        ) AS c
    ), {_LEASED}
"""
LEASE_IDS = f"""
    WITH chosen AS MATERIALIZED (
        SELECT {_CHOSEN} FROM ulak.jobs WHERE id = ANY (%(ids)s::uuid[])
    ), {_LEASED}
"""
PARK = "UPDATE ulak.jobs SET parked_on = slot WHERE id = ANY (%s::uuid[])"
RESULTS = f"""
    SELECT {RESULT_COLUMNS} FROM ulak.results
    WHERE job_id = ANY (%s::uuid[]) AND month = ANY (%s::bigint[])
    ORDER BY job_id, round, stage, name
"""

LAPSED_WORKERS = """
    SELECT id FROM ulak.workers WHERE expires_at <= %s::bigint ORDER BY id FOR UPDATE SKIP LOCKED
"""
LEASED_BY = f"SELECT {JOB_COLUMNS} FROM ulak.jobs WHERE leased_by = %s::text ORDER BY id"
LOST = f"""
    SELECT {JOB_COLUMNS} FROM ulak.jobs WHERE leased_by = ANY (%s::text[])
    ORDER BY id FOR NO KEY UPDATE SKIP LOCKED
"""
LAPSE = """
    UPDATE ulak.jobs SET leased_by = NULL, token = token + 1, lapses = lapses + 1, lapsed = 1,
                         not_before = %s::bigint, version = version + 1, seq = seq + 1
    WHERE id = ANY (%s::uuid[])
"""
FORGET_WORKERS = """
    DELETE FROM ulak.workers AS w WHERE id = ANY (%s::text[])
    AND NOT EXISTS (SELECT FROM ulak.jobs WHERE leased_by = w.id)
"""
IS_HOLDING = "SELECT 1 FROM ulak.jobs WHERE leased_by = %s::text LIMIT 1"
LOCK_WORKER = "SELECT 1 FROM ulak.workers WHERE id = %s::text FOR UPDATE"
REGISTER = f"""
    INSERT INTO ulak.workers (id, started_at, renewed_at, expires_at, lanes, about)
    VALUES (%(worker)s::text, %(now)s::bigint, %(now)s::bigint, %(until)s::bigint,
            %(lanes)s::text, %(about)s::text)
    ON CONFLICT (id) DO UPDATE SET started_at = excluded.started_at,
        renewed_at = excluded.renewed_at, expires_at = excluded.expires_at,
        lanes = excluded.lanes, about = excluded.about
    RETURNING {SERVER_TIME}
"""
RENEW = f"""
    UPDATE ulak.workers SET renewed_at = %s::bigint, expires_at = %s::bigint WHERE id = %s::text
    RETURNING {SERVER_TIME}, EXISTS (SELECT FROM ulak.requests)
"""
END_LEASE = "UPDATE ulak.workers SET expires_at = %s::bigint WHERE id = %s::text"
REQUESTS_OF_WORKER = f"""
    SELECT {", ".join(f"r.{name}" for name in Request._fields)}
    FROM ulak.requests AS r JOIN ulak.jobs AS j ON j.id = r.job_id
    WHERE j.leased_by = %s::text ORDER BY r.job_id, r.at, r.kind, r.name
"""

_WIDTH = len(JobRow._fields)


class Candidate(NamedTuple):
    """What a claim must know of a job before it takes it."""

    id: bytes
    lapses: int
    slot: str | None


def claim(t: Transaction, request: ClaimRequest, clock: Clock) -> Claimed:
    """Give back lapsed leases, then lease what is due."""
    heard, is_worker, any_lapsed, any_requests = _look(t, request)
    if isinstance(clock, ServerClock):
        clock.hear(heard)
    unparked = 0
    if any_lapsed:
        unparked = give_back_lapsed(t)
        is_worker = _look(t, request)[1]
    if not is_worker:
        return Claimed([], t.now, [], None, unparked)
    search = _Search(t, request)
    claims = [claim for want in request.wants for claim in search.take(want)]
    requests = requests_of(t.db, request.worker) if any_requests else []
    next_at = t.now if search.is_cut else _next_due(t, request)
    return Claimed(claims, t.now, requests, next_at, unparked)


def _look(t: Transaction, request: ClaimRequest) -> tuple[Instant, bool, bool, bool]:
    found = t.db.row(LOOK, {"worker": request.worker, "now": t.now})
    assert found is not None  # noqa: S101 - a query without a table answers one row
    return found[0], found[1] is not None, found[2], found[3]


class _Search:
    """One claim's walk along the lanes: most urgent first, then longest due."""

    def __init__(self, t: Transaction, request: ClaimRequest) -> None:
        self._t = t
        self._request = request
        self._most_lapses = ANY_LAPSES if request.suspects else NO_SUSPECTS
        self._parked = 0
        self.is_cut = False
        """It stopped before it had seen everything."""
        entries = list(request.entries.items())
        self._facts = {
            "now": t.now,
            "worker": request.worker,
            "ageing": 0,
            "flows": Texts([key[0] for key, _ in entries]),
            "versions": Numbers([key[1] for key, _ in entries]),
            "states": Texts([key[2] for key, _ in entries]),
            "busy": Texts([busy for _, busy in entries]),
        }

    def take(self, want: Want) -> list[Claim]:
        """Lease up to `places` jobs, each with its slot; park those that find none."""
        if want.places <= 0 or not want.lanes:
            return []
        facts = {
            **self._facts, "lanes": Texts(want.lanes), "places": want.places,
            "lapses": self._most_lapses,
        }  # fmt: skip
        shares = self._t.db.rows(SHARES, facts)
        if not shares:
            return []
        lanes, priorities, numbers, lapses, limited = zip(*shares, strict=True)
        if max(lapses) < SUSPECT_LAPSES and not any(limited):
            facts |= {
                "share_lanes": Texts(lanes),
                "priorities": Numbers(priorities),
                "shares": Numbers(numbers),
            }
            claims = self._lease(LEASE_SHARES, facts)
        else:
            claims = self._choose(facts, want.places)
        return claims

    def _choose(self, facts: dict[str, object], places: int) -> list[Claim]:
        """Look at each due job in turn."""
        taken: list[Claim] = []
        while places > 0 and not self.is_cut:
            facts |= {"places": places, "lapses": self._most_lapses}
            found = [Candidate(*row) for row in self._t.db.rows(CANDIDATES, facts)]
            chosen = self._sift(found)
            if chosen:
                taken += self._lease(LEASE_IDS, {**facts, "ids": Ids(chosen)})
                places -= len(chosen)
            if len(chosen) == len(found):
                break
        return taken

    def _sift(self, found: Sequence[Candidate]) -> list[bytes]:
        """Answer those that may run, with their slots taken; park those that find none."""
        chosen: list[bytes] = []
        parked: list[bytes] = []
        taken: list[tuple[str, int, bytes]] = []
        free: dict[str, Iterator[int]] = {}
        for candidate in found:
            is_suspect = candidate.lapses >= SUSPECT_LAPSES
            if is_suspect and self._most_lapses < candidate.lapses:
                continue
            limit = candidate.slot
            if limit is not None:
                if limit not in free:
                    wanted = sum(other.slot == limit for other in found)
                    free[limit] = iter(slots.find_free(self._t.db, limit, wanted))
                n = next(free[limit], None)
                if n is None:
                    parked.append(candidate.id)
                    continue
                taken.append((limit, n, candidate.id))
            if is_suspect:
                self._most_lapses = NO_SUSPECTS
            chosen.append(candidate.id)
        slots.write(self._t.db, taken)
        if parked:
            self._t.db.execute(PARK, (Ids(sorted(parked)),))
            self._parked += len(parked)
            self.is_cut = self._parked >= MOST_PARKED
        return chosen

    def _lease(self, statement: str, facts: dict[str, object]) -> list[Claim]:
        t = self._t
        claims: list[Claim] = []
        entered: list[tuple[str, int, Event]] = []
        with_results: list[JobRow] = []
        for found in t.db.rows(statement, facts):
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
        claims.sort(key=_urgency)
        return claims


def _urgency(claim: Claim) -> tuple[int, Instant, bytes]:
    return (claim.row.priority, claim.row.not_before, claim.row.id)


def _results_of(db: Session, rows: Sequence[JobRow]) -> dict[bytes, list[Result]]:
    found: dict[bytes, list[Result]] = {}
    months = sorted({month_of(row.created_at) for row in rows})
    for row in db.rows(RESULTS, (Ids([row.id for row in rows]), Numbers(months))):
        found.setdefault(row[0], []).append(as_result(row))
    return found


def _next_due(t: Transaction, request: ClaimRequest) -> Instant | None:
    lanes = list(dict.fromkeys(lane for want in request.wants for lane in want.lanes))
    found = t.db.row(NEXT_DUE, {"lanes": Texts(lanes), "now": t.now}) if lanes else None
    return None if found is None else found[0]


def give_back_lapsed(t: Transaction) -> int:
    """Take every lapsed lease away, whoever held it; answer how many jobs were unparked.

    What another transaction is writing to is left; its worker then stays for the next claimer.
    """
    workers = [row[0] for row in t.db.rows(LAPSED_WORKERS, (t.now,))]
    if not workers:
        return 0
    lost = [as_job(row) for row in t.db.rows(LOST, (Texts(workers),))]
    if lost:
        # The token moves, so that the vanished worker cannot write over its successor.
        t.db.execute(LAPSE, (t.now, Ids([row.id for row in lost])))
        t.made_due = True
    written: list[tuple[str, int, Event]] = []
    for row in lost:
        line = row._replace(seq=row.seq + 1)
        event = own_event(line, kinds.LAPSED, row.state, kinds.ENGINE, row.leased_by, t.now)
        written.append((row.tenant, month_of(row.created_at), event))
    trail.append_own(t, written)
    t.db.execute(FORGET_WORKERS, (Texts(workers),))
    freed = slots.leave(t.db, [(row.slot, row.id) for row in lost if row.slot is not None])
    return slots.let_in(t, freed)


def register(
    t: Transaction, worker: str, clock: Clock, *, lease_us: int, lanes: Sequence[str], about: str
) -> Instant:
    """Begin a worker's lease."""
    facts = {
        "worker": worker, "now": t.now, "until": t.now + lease_us, "lanes": " ".join(lanes),
        "about": about,
    }  # fmt: skip
    _hear(clock, t.db.rows(REGISTER, facts))
    return t.now


def renew(t: Transaction, worker: str, clock: Clock, *, lease_us: int) -> Renewal:
    """Extend a worker's lease if it is still there."""
    found = t.db.rows(RENEW, (t.now, t.now + lease_us, worker))
    if not found:
        return Renewal(False, t.now, [])
    _hear(clock, found)
    return Renewal(True, t.now, requests_of(t.db, worker) if found[0][1] else [])


def _hear(clock: Clock, answer: Sequence[tuple[Instant, ...]]) -> None:
    if isinstance(clock, ServerClock):
        clock.hear(answer[0][0])


def unregister(t: Transaction, worker: str) -> None:
    """End a worker's lease; what it still holds is left, lapsed, to the next claimer."""
    t.db.execute(LOCK_WORKER, (worker,))
    if t.db.row(IS_HOLDING, (worker,)) is None:
        t.db.execute(FORGET_WORKERS, (Texts([worker]),))
    else:
        t.db.execute(END_LEASE, (t.now, worker))
        t.made_due = True


def leased(db: Session, worker: str) -> list[JobRow]:
    """Answer the jobs that a worker has leased."""
    return [as_job(row) for row in db.rows(LEASED_BY, (worker,))]


def requests_of(db: Session, worker: str) -> list[Request]:
    """Answer what is asked of the jobs that a worker holds."""
    return [as_request(row) for row in db.rows(REQUESTS_OF_WORKER, (worker,))]
