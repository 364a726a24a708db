"""Claims, step by step: which of the jobs that are due a worker may run, and what each needs.

Claimers never wait for each other: each locks the rows that it wants and skips what another has
locked. Most claims need none of this and go the straight way (`straight`).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

from ulak.clock import Instant
from ulak.store.batches import NO_SUSPECTS, SUSPECT_LAPSES, is_full
from ulak.store.flow_control import KEY, open_lanes
from ulak.store.in_turn import (
    FIRST_LOOK,
    PRIORITIES,
    Candidate,
    Family,
    InTurn,
    Standing,
    bounds,
    families_by_turns,
    is_family,
)
from ulak.store.postgres import control, leases, slots, straight
from ulak.store.postgres.leases import claims_of, facts_of, has_results, with_results, write_entries
from ulak.store.postgres.session import Session, Transaction
from ulak.store.postgres.slots import MOST_PARKED, Buckets, Supplies
from ulak.store.postgres.straight import ANY_LAPSES, earliest
from ulak.store.postgres.values import Ids, Numbers, Texts, as_arrays, name_arrays
from ulak.store.protocol import LARGEST_CLAIM_BYTES, Claim, Claimed, ClaimRequest, Want

LEAST_LOOK = 16
"""Where some may lack what they need, at least so many are looked at at once."""

PAUSED = """
    SELECT kind, name FROM ulak.pauses WHERE until_at IS NULL OR until_at > %s::bigint
"""
_CANDIDATE = (
    ", ".join(f"{{job}}.{name}" for name in Candidate._fields[:-1])
    + """,
    (SELECT octet_length(data) FROM ulak.payloads
        WHERE job_id = {job}.id AND month = {job}.month) AS size
"""
)
CANDIDATES = f"""
    SELECT {_CANDIDATE.format(job="s")} FROM (
        SELECT c.* FROM unnest(%(lanes)s::text[]) AS l (lane)
        CROSS JOIN LATERAL {leases.PRIORITIES} AS p (priority)
        CROSS JOIN LATERAL (
            SELECT id, month, lane, priority, not_before, lapses, slot, rate, cost FROM ulak.jobs
            WHERE {leases.claimable("l", "p")}
              AND lapses <= %(lapses)s::bigint
            ORDER BY not_before, id LIMIT %(places)s::bigint FOR NO KEY UPDATE SKIP LOCKED
        ) AS c
        ORDER BY {leases.urgency("c")} LIMIT %(places)s::bigint
    ) AS s
    ORDER BY {leases.urgency("s")}
"""
# The first of each line, for those who take turns.
LINES = f"""
    SELECT r.lane, r.priority, {_CANDIDATE.format(job="c")}
    FROM unnest(%(lanes)s::text[], %(priorities)s::bigint[]) AS r (lane, priority)
    CROSS JOIN LATERAL (
        SELECT month, {", ".join(Candidate._fields[:-1])} FROM ulak.jobs
        WHERE {leases.claimable("r", "r")}
          AND lapses <= %(lapses)s::bigint
        ORDER BY not_before, id LIMIT %(places)s::bigint FOR NO KEY UPDATE SKIP LOCKED
    ) AS c
    ORDER BY c.not_before, c.id
"""
PARK = """
    UPDATE ulak.jobs SET parked_on = p.parked_on
    FROM unnest(%s::uuid[], %s::text[]) AS p (id, parked_on) WHERE jobs.id = p.id
"""


def claim(t: Transaction, request: ClaimRequest) -> tuple[Claimed, bool]:
    """Give back lapsed leases, then lease what is due; tell whether the next may go straight."""
    look = straight.look(t, request)
    t.hear(look.server_time)
    search = _Search(t, request)
    unparked = 0
    is_ordinary = not (look.any_lapsed or look.any_pauses)
    if look.any_lapsed:
        unparked += leases.give_back_lapsed(t, request.worker)
        look = straight.look(t, request)
    # Families first, then buckets, then limits: two claims never wait for each other in a circle.
    hold_turns(t.db, families_by_turns(lane for want in request.wants for lane in want.lanes))
    if look.pause_ends_at is not None and look.pause_ends_at <= t.now:
        unparked += control.end_pauses(t)
    if look.bucket_ready_at is not None and look.bucket_ready_at <= t.now:
        unparked += search.buckets.unpark_paid()
    if not look.is_worker:
        search.buckets.write()
        return Claimed([], t.now, [], None, unparked), is_ordinary
    paused: frozenset[tuple[str, str]] = frozenset()
    if look.any_pauses:
        paused = frozenset((row[0], row[1]) for row in t.db.rows(PAUSED, (t.now,)))
    search.paused_keys = {name for kind, name in paused if kind == KEY}
    wants = [Want(open_lanes(want.lanes, paused), want.places) for want in request.wants]
    lanes = list(dict.fromkeys(lane for want in wants for lane in want.lanes))
    claims = [claim for want in wants for claim in search.take(want)]
    if has_results(claims):
        claims = with_results(t.db, claims)
    requests = leases.requests_of(t.db, request.worker) if look.any_requests else []
    if search.buckets.write() or look.next_at() is not None:
        look = straight.look(t, request)
    next_at: Instant | None = t.now
    if not (search.is_cut or is_full(request.wants, claims)):
        next_at = earliest(_next_due(t, lanes), look.next_at())
    stopped = frozenset(pause for pause in paused if pause[0] != KEY)
    claimed = Claimed(claims, t.now, requests, next_at, unparked, stopped)
    return claimed, is_ordinary and search.is_ordinary


class _Search:
    """One claim's walk along the lanes: most urgent first, then longest due."""

    def __init__(self, t: Transaction, request: ClaimRequest) -> None:
        self._t = t
        self._request = request
        self.buckets = Buckets(t)
        self.paused_keys: set[str] = set()
        self._most_lapses = ANY_LAPSES if request.suspects else NO_SUSPECTS
        self._parked = 0
        self._size = 0
        self.is_cut = False
        self.is_ordinary = True
        """No job needed a slot or tokens, was suspect or had to wait for its turn."""
        self._facts = facts_of(request) | {"now": t.now}

    def take(self, want: Want) -> list[Claim]:
        """Lease up to `places` jobs, each with what it needs; park those that lack something."""
        if want.places <= 0 or not want.lanes or self.is_cut:
            return []
        if any(map(is_family, want.lanes)):
            self.is_ordinary = False
            return self._take_in_turn(want)
        leased = straight.go_anyway(self._t, self._request, want, lapses=self._most_lapses)
        if leased is not None:
            self._size += leases.count_bytes(leased)
            self.is_cut = self._size >= LARGEST_CLAIM_BYTES
            return claims_of(self._request, leased)
        self.is_ordinary = False
        return self._take_singly(want)

    def _take_singly(self, want: Want) -> list[Claim]:
        taken: list[Claim] = []
        places = want.places
        facts = {**self._facts, "lanes": Texts(want.lanes)}
        while places > 0 and not self.is_cut:
            # Some of them will be parked: the next look should not be needed for each of those.
            look = max(places, LEAST_LOOK)
            facts |= {"places": look, "lapses": self._most_lapses}
            found = [Candidate(*row) for row in self._t.db.rows(CANDIDATES, facts)]
            shelf = Supplies(self._t, self.buckets, self.paused_keys)
            shelf.bring(found, places)
            chosen: list[bytes] = []
            for candidate in found:
                if len(chosen) == places:
                    break
                if self._may_run(candidate, shelf):
                    chosen.append(candidate.id)
            self._park(shelf)
            if chosen:
                taken += self._lease(chosen)
                places -= len(chosen)
            if len(found) < look:
                break
        return taken

    def _take_in_turn(self, want: Want) -> list[Claim]:
        shared = families_by_turns(want.lanes)
        families = [read_family(self._t.db, name, lanes) for name, lanes in shared.items()]
        lanes = [lane for lane in want.lanes if not is_family(lane)]
        lines = _Lines(self._t, {**self._facts, "lapses": self._most_lapses})
        lines.look_ahead(lanes, families, want.places)
        order = InTurn(
            lanes, families, self._t.now, ageing_us=self._request.ageing_us, find=lines.find
        )
        shelf = Supplies(self._t, self.buckets, self.paused_keys)
        shelf.bring(lines.found(), want.places)
        chosen: list[bytes] = []
        for line, candidate in order:
            shelf.bring([candidate], 1)
            if self._may_run(candidate, shelf):
                chosen.append(candidate.id)
                if line.family is not None:
                    line.family.take_turn(line.tenant)
            if len(chosen) == want.places or shelf.parked_many() or self.is_cut:
                break
        self._park(shelf)
        write_turns(self._t.db, families)
        if not chosen:
            return []
        claims = self._lease(chosen)
        by_id = {claim.row.id: claim for claim in claims}
        return [by_id[job_id] for job_id in chosen]

    def _may_run(self, candidate: Candidate, shelf: Supplies) -> bool:
        if self._size >= LARGEST_CLAIM_BYTES:
            self.is_cut = True
            return False
        is_suspect = candidate.lapses >= SUSPECT_LAPSES
        if (is_suspect and self._most_lapses < candidate.lapses) or not shelf.supply(candidate):
            return False
        if is_suspect:
            self._most_lapses = NO_SUSPECTS
        self._size += candidate.size
        return True

    def _park(self, shelf: Supplies) -> None:
        slots.write(self._t.db, shelf.taken)
        if shelf.parked:
            self._t.db.execute(PARK, as_arrays(sorted(shelf.parked), Ids, Texts))
            self._parked += len(shelf.parked)
            self.is_cut = self.is_cut or self._parked >= MOST_PARKED

    def _lease(self, ids: Sequence[bytes]) -> list[Claim]:
        # Whoever has waited for buckets meanwhile is dated after the wait.
        facts = {**self._facts, "now": self._t.now, "ids": Ids(ids)}
        leased = self._t.db.rows(leases.LEASE, facts)
        write_entries(self._t, self._request.worker, leased)
        claims = claims_of(self._request, leased)
        return (
            leases.keep_slots(self._t, claims, leased, self._request)
            if self._request.keeps
            else claims
        )


class _Lines:
    """The lines of those who take turns: the first of each are read at once."""

    def __init__(self, t: Transaction, facts: dict[str, object]) -> None:
        self._t = t
        self._facts = facts
        self._ahead: dict[tuple[str, int], list[Candidate]] = {}
        self._depth = 0

    def look_ahead(self, lanes: Sequence[str], families: Sequence[Family], places: int) -> None:
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
        return [candidate for line in self._ahead.values() for candidate in line]

    def find(self, lane: str, priority: int, limit: int) -> list[Candidate]:
        ahead = self._ahead.get((lane, priority), [])
        if limit <= self._depth or len(ahead) < self._depth:
            return ahead[:limit]
        return [candidate for _, candidate in self._read([(lane, priority)], limit)]

    def _read(
        self, lines: Sequence[tuple[str, int]], limit: int
    ) -> Iterator[tuple[tuple[str, int], Candidate]]:
        arrays = name_arrays(lines, {"lanes": Texts, "priorities": Numbers})
        facts = {**self._facts, **arrays, "places": limit}
        for row in self._t.db.rows(LINES, facts):
            yield (row[0], row[1]), Candidate(*row[2:])


def _next_due(t: Transaction, lanes: Sequence[str]) -> Instant | None:
    dates = [find_next_of_family(t.db, lane, t.now) for lane in lanes if is_family(lane)]
    plain = [lane for lane in lanes if not is_family(lane)]
    if plain:
        found = t.db.row(leases.NEXT_DUE, {"lanes": Texts(plain), "now": t.now})
        dates.append(None if found is None else found[0])
    return earliest(*dates)


# Whoever takes turns from a family holds it until he has committed: what each tenant has had must
# not be counted by two at once.
HOLD_TURNS = "SELECT pg_advisory_xact_lock(hashtextextended('ulak turns ' || %s::text, 0))"

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
NEXT_OF_FAMILY = (
    f"{_PRESENT} SELECT min(least({_LATER})) FROM present WHERE present.lane IS NOT NULL"
)


def hold_turns(db: Session, names: Iterable[str]) -> None:
    for name in sorted(names):
        db.execute(HOLD_TURNS, (name,))


def read_family(db: Session, name: str, lanes: Iterable[str]) -> Family:
    standing: list[Standing] = []
    for lane in lanes:
        low, high = bounds(lane)
        rows = db.rows(PRESENT, {"low": low, "high": high, "name": name})
        standing += [Standing(row[0], row[1:5], row[5], row[6]) for row in rows]
    begins = db.row(BEGINS, (name,))
    return Family(name, standing, 0 if begins is None else begins[0])


def write_turns(db: Session, families: Sequence[Family]) -> None:
    turns = [turn for family in families for turn in family.turns()]
    if turns:
        db.execute(PUT_TURNS, as_arrays(turns, Texts, Texts, Numbers, Numbers))


def find_next_of_family(db: Session, family: str, now: Instant) -> Instant | None:
    low, high = bounds(family)
    found = db.row(NEXT_OF_FAMILY, {"low": low, "high": high, "now": now})
    return None if found is None else found[0]
