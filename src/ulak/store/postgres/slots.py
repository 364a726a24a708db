"""Slots and tokens: at most so many jobs of a limit run at once, and so many of a rate in time.

Each slot is a row, and whoever wants one locks a free row and skips those that others have locked.
The limit itself is held meanwhile, by any number of claimers together, so that nobody changes it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence

from ulak.core.job import OF_STATE, wanted_slot
from ulak.core.policy import RateTerms
from ulak.store import flow_control
from ulak.store.flow_control import (
    ON_KEY,
    ON_RATE,
    Bucket,
    is_keyed,
    keys_in,
    open_bucket,
    stage_of,
)
from ulak.store.in_turn import Candidate
from ulak.store.postgres.session import SERVER_TIME, Session, Transaction
from ulak.store.postgres.values import Ids, Numbers, Texts, as_arrays
from ulak.store.sql.session import Id

HOLD_LIMITS = """
    SELECT name, n, keyed FROM ulak.limits WHERE name = ANY (%s::text[]) ORDER BY name FOR SHARE
"""
PLACES = "SELECT name, n FROM ulak.limits WHERE name = ANY (%s::text[])"
# How many are open, how many are held, and how many of those are closed: one in a closed slot
# counts until it has drained, so that never more run than the limit says. Last, how many a key may
# have that has a limit of its own; it is read after the limit of its stage is held, not with it.
STANDING = """
    SELECT k.name, count(*) FILTER (WHERE closed = 0), count(job_id),
           count(job_id) FILTER (WHERE closed = 1),
           (SELECT n FROM ulak.limits AS l WHERE l.name = k.name)
    FROM unnest(%s::text[]) AS k (name) LEFT JOIN ulak.slots AS s ON s.limit_name = k.name
    GROUP BY k.name
"""
FIND_FREE = """
    SELECT k.limit_name, s.n FROM unnest(%s::text[], %s::bigint[]) AS k (limit_name, most)
    CROSS JOIN LATERAL (
        SELECT n FROM ulak.slots
        WHERE limit_name = k.limit_name AND job_id IS NULL AND closed = 0
        ORDER BY n LIMIT k.most FOR UPDATE SKIP LOCKED
    ) AS s
"""
TAKE_ALL = """
    SELECT 1 FROM ulak.slots WHERE limit_name = ANY (%s::text[]) ORDER BY limit_name, n FOR UPDATE
"""
TAKE = """
    UPDATE ulak.slots AS s SET job_id = k.job_id, of_state = k.of_state
    FROM unnest(%s::text[], %s::bigint[], %s::uuid[], %s::bigint[])
        AS k (limit_name, n, job_id, of_state)
    WHERE s.limit_name = k.limit_name AND s.n = k.n
"""
FREE = """
    UPDATE ulak.slots AS s SET job_id = NULL, of_state = 0
    FROM unnest(%s::text[], %s::uuid[]) AS k (limit_name, job_id)
    WHERE s.limit_name = k.limit_name AND s.job_id = k.job_id
    RETURNING s.limit_name
"""
KEEP = f"""
    WITH kept AS (UPDATE ulak.slots SET of_state = 1 WHERE job_id = ANY (%(ids)s::uuid[]))
    UPDATE ulak.jobs SET slot = '{OF_STATE}' || slot WHERE id = ANY (%(ids)s::uuid[])
"""
FREE_OTHERS = """
    UPDATE ulak.slots SET job_id = NULL, of_state = 0
    WHERE job_id = %s::uuid AND limit_name <> %s::text
"""
NUMBERS = """
    SELECT min(n) FILTER (WHERE job_id = %(id)s::uuid),
        min(n) FILTER (WHERE job_id IS NULL AND closed = 0), coalesce(max(n), 0)
    FROM ulak.slots WHERE limit_name = %(limit)s::text
"""
OCCUPY = """
    INSERT INTO ulak.slots (limit_name, n, job_id, closed, of_state)
    VALUES (%s::text, %s::bigint, %s::uuid, 1, 1)
    ON CONFLICT (limit_name, n) DO UPDATE SET job_id = excluded.job_id, of_state = 1
"""
UNPARK = """
    UPDATE ulak.jobs SET parked_on = NULL WHERE id = ANY (ARRAY(
        SELECT j.id FROM unnest(%s::text[], %s::bigint[]) AS k (parked_on, places)
        CROSS JOIN LATERAL (
            SELECT id FROM ulak.jobs WHERE parked_on = k.parked_on
            ORDER BY priority, not_before, id LIMIT k.places FOR UPDATE SKIP LOCKED
        ) AS j
        LIMIT %s::bigint
    ))
"""
OPEN = """
    INSERT INTO ulak.slots (limit_name, n, closed)
    SELECT k.limit_name, n, 0 FROM unnest(%s::text[], %s::bigint[]) AS k (limit_name, places)
    CROSS JOIN generate_series(1, k.places) AS n
    ON CONFLICT (limit_name, n) DO NOTHING
"""
OPEN_AGAIN = """
    UPDATE ulak.slots SET closed = (n > %(n)s::bigint)::integer
    WHERE limit_name = %(name)s::text AND closed <> (n > %(n)s::bigint)::integer
"""


def free_of(db: Session, limits: Iterable[str]) -> dict[str, int]:
    """Lock limits and return how many more jobs may run under each; open the slots of new keys."""
    names = sorted(set(limits))
    stages = Texts(sorted({stage_of(name) for name in names}))
    held = {row[0]: (row[1], row[2]) for row in db.rows(HOLD_LIMITS, (stages,))}
    standing = _standing(db, names)
    missing = [
        (name, most)
        for name in names
        if held.get(stage_of(name), (0, 0))[1]
        and standing[name][0] < (most := _places(standing[name], held[stage_of(name)][0]))
    ]
    if missing:
        db.execute(OPEN, as_arrays(missing, Texts, Numbers))
        standing |= _standing(db, [name for name, _ in missing])
    draining = [name for name in names if standing[name][2]]
    if draining:
        # Which of them count is decided by all of them, so they are taken all.
        db.execute(TAKE_ALL, (Texts(draining),))
        standing |= _standing(db, draining)
    return {
        name: standing[name][0] - standing[name][1] if stage_of(name) in held else 0
        for name in names
    }


Standing = tuple[int, int, int, int | None]


def _standing(db: Session, limits: Sequence[str]) -> dict[str, Standing]:
    return {row[0]: row[1:] for row in db.rows(STANDING, (Texts(limits),))}


def _places(standing: Standing, declared: int) -> int:
    own = standing[3]
    return declared if own is None else own


def find_free(db: Session, wanted: Mapping[str, int]) -> dict[str, list[int]]:
    """Lock and return up to so many free slots of each limit; more than `free_of` is too many."""
    found: dict[str, list[int]] = {limit: [] for limit in wanted}
    limits = sorted((limit, most) for limit, most in wanted.items() if most > 0)
    if limits:
        for limit, n in db.rows(FIND_FREE, as_arrays(limits, Texts, Numbers)):
            found[limit].append(n)
    return found


def free_places(db: Session, limits: Sequence[str]) -> dict[str, int]:
    standing = _standing(db, limits)
    # A key of which no slot was opened yet has as many as its limit says.
    closed = {stage_of(name) for name in limits if not standing[name][0] and is_keyed(name)}
    declared: dict[str, int] = {}
    if closed:
        declared = {row[0]: row[1] for row in db.rows(PLACES, (Texts(sorted(closed)),))}
    return {
        name: (
            found[0] or (_places(found, declared.get(stage_of(name), 0)) if is_keyed(name) else 0)
        )
        - found[1]
        for name, found in standing.items()
    }


def write(db: Session, taken: Sequence[tuple[str, int, bytes]], *, of_state: bool = False) -> None:
    if taken:
        slots = as_arrays(sorted(taken), Texts, Numbers, Ids)
        db.execute(TAKE, (*slots, Numbers([int(of_state)] * len(taken))))


def keep(db: Session, job_ids: Sequence[bytes]) -> None:
    """Make the slots that these jobs hold those of the busy state that they have entered."""
    db.execute(KEEP, {"ids": Ids(job_ids)})


def occupy(t: Transaction, limit: str, job_id: bytes, places: int) -> None:
    """Give a job that stands in a busy state a slot of it: its own, a free one, or a closed one
    beyond the limit, which is held so that nobody takes one meanwhile."""
    open_slots(t, limit, places)
    t.db.execute(FREE_OTHERS, (Id(job_id), limit))
    [(own, free, last)] = t.db.rows(NUMBERS, {"id": Id(job_id), "limit": limit})
    t.db.execute(OCCUPY, (limit, own or free or last + 1, Id(job_id)))


def leave(db: Session, held: Sequence[tuple[str, bytes]]) -> Counter[str]:
    if not held:
        return Counter()
    return Counter(row[0] for row in db.rows(FREE, as_arrays(sorted(held), Texts, Ids)))


def let_in(t: Transaction, freed: Counter[str]) -> int:
    """Unpark as many as have left, if there is room for them; answer how many."""
    if not freed:
        return 0
    free = free_places(t.db, sorted(freed))
    return pass_on_all(t, {limit: min(freed[limit], places) for limit, places in free.items()})


def pass_on(t: Transaction, parked_on: str, places: int) -> int:
    return pass_on_all(t, {parked_on: places})


def pass_on_all(t: Transaction, places: Mapping[str, int], most: int | None = None) -> int:
    """Unpark so many jobs of each name, and at most so many of all, in one statement."""
    wanted = sorted((name, n) for name, n in places.items() if n > 0)
    if not wanted:
        return 0
    if most is None:
        most = sum(n for _, n in wanted)
    unparked = t.db.touch(UNPARK, (*as_arrays(wanted, Texts, Numbers), most))
    t.made_due = t.made_due or unparked > 0
    return unparked


def open_slots(t: Transaction, name: str, places: int) -> None:
    t.db.execute(TAKE_ALL, (Texts([name]),))
    t.db.execute(OPEN, (Texts([name]), Numbers([places])))
    t.db.execute(OPEN_AGAIN, {"name": name, "n": places})


# The time is told after the wait: tokens that came in meanwhile count, and no claim is dated before
# the one whose tokens it was left.
ONE_AT_A_TIME = f"""
    SELECT pg_advisory_xact_lock(hashtextextended('ulak buckets', 0)), {SERVER_TIME}
"""
TERMS = "SELECT n, per_us, burst FROM ulak.rates WHERE name = %s::text FOR SHARE"
# One that nobody has taken from has no row; it is made before it is held.
MAKE = """
    INSERT INTO ulak.buckets (name, level, filled_at) VALUES (%s::text, %s::bigint, %s::bigint)
    ON CONFLICT (name) DO NOTHING
"""
HOLD = "SELECT level, filled_at, ready_at FROM ulak.buckets WHERE name = %s::text FOR UPDATE"
READY = """
    SELECT name FROM ulak.buckets WHERE ready_at <= %s::bigint
    ORDER BY ready_at, name LIMIT %s::bigint
"""
FORGOTTEN = """
    SELECT p.name FROM unnest(%s::text[]) AS p (name) LEFT JOIN ulak.buckets AS b ON b.name = p.name
    WHERE b.ready_at IS NULL LIMIT %s::bigint
"""
PARKED = """
    SELECT priority, not_before, id, cost FROM ulak.jobs WHERE parked_on = %s::text
    ORDER BY priority, not_before, id LIMIT %s::bigint
"""
WRITE = """
    UPDATE ulak.buckets AS b
    SET level = w.level, filled_at = w.filled_at, ready_at = w.ready_at
    FROM unnest(%s::text[], %s::bigint[], %s::bigint[], %s::bigint[])
        AS w (name, level, filled_at, ready_at)
    WHERE b.name = w.name
"""

# As many as one claim looks at: a few milliseconds. The next claim goes on with the rest.
MOST_BUCKETS = 100


class Buckets(flow_control.Buckets):
    """The buckets of rates while a claim is made: locked once, counted here, written at its end.

    Whoever takes from a bucket holds its row. A claim learns one after the other which it needs, so
    there is no order in which all could be held: claims with buckets follow one another.
    """

    def __init__(self, t: Transaction) -> None:
        super().__init__()
        self._t = t
        self._is_alone = False

    def hold(self, names: Iterable[str]) -> None:
        for name in sorted(set(names) - self._open.keys()):
            self._be_alone()
            self._open[name] = self._read(name)

    def _be_alone(self) -> None:
        if not self._is_alone:
            self._t.hear(self._t.db.rows(ONE_AT_A_TIME)[0][1])
            self._is_alone = True

    def look_after_all(self, names: Sequence[str]) -> None:
        """Say when the first of those who are parked can be paid, where nobody has said so."""
        forgotten = [row[0] for row in self._t.db.rows(FORGOTTEN, (Texts(names), MOST_BUCKETS))]
        self.hold(forgotten)
        for name in forgotten:
            self.look_after(name)

    def unpark_paid(self) -> int:
        self._be_alone()
        ready = [row[0] for row in self._t.db.rows(READY, (self._t.now, MOST_BUCKETS))]
        self.hold(ready)
        return sum(self._unpark_from(name) for name in ready)

    def write(self) -> int:
        changed = self._changed()
        if changed:
            self._t.db.execute(WRITE, as_arrays(changed, Texts, Numbers, Numbers, Numbers))
        return len(changed)

    def _unpark_from(self, name: str) -> int:
        found = self._open[name]
        if found is None:
            return 0
        most = flow_control.MOST_UNPARKED + 1
        unparked = found.let_go(self._t.db.rows(PARKED, (ON_RATE + name, most)))
        return pass_on(self._t, ON_RATE + name, unparked)

    def _read(self, name: str) -> Bucket | None:
        db, now = self._t.db, self._t.now
        row = db.row(TERMS, (flow_control.stage_of(name),))
        if row is None:
            return None
        terms = RateTerms(*row)
        stored = db.row(HOLD, (name,))
        if stored is None:
            db.execute(MAKE, (name, *flow_control.full(terms, now)))
            stored = db.row(HOLD, (name,))
        return open_bucket(terms, stored, db.row(PARKED, (ON_RATE + name, 1)), now)


# A claim that finds a crowd before one slot parks no more of it than this in one transaction; the
# next claim goes on.
MOST_PARKED = 500


class Supplies:
    """What the runs of a claim need: slots and tokens, held for those who will run.

    Limits and buckets are taken hold of in their order, before anything is taken from them. Of the
    slots no more are locked than are wanted, since whoever else looks for one skips them.
    """

    def __init__(self, t: Transaction, buckets: Buckets, paused_keys: set[str]) -> None:
        self._t = t
        self._buckets = buckets
        self._paused_keys = paused_keys
        # By limit: how many more may run, as far as it was looked at; how many slots are locked
        # here, given or not; those that are not given yet.
        self._free: dict[str, int] = {}
        self._held: dict[str, int] = {}
        self._slots: dict[str, list[int]] = {}
        self.taken: list[tuple[str, int, bytes]] = []
        self.parked: list[tuple[bytes, str]] = []

    def bring(self, found: Sequence[Candidate], places: int) -> None:
        """Fetch what the first of these need that fill the places."""
        self._buckets.hold(c.rate for c in found if c.rate is not None)
        wants = {slot for c in found if (slot := wanted_slot(c.slot)) is not None}
        limits = wants - self._free.keys()
        if limits:
            self._free |= free_of(self._t.db, limits)
            wanted = dict.fromkeys(sorted(limits), 0)
            for candidate in found:
                if places <= 0:
                    break
                limit = wanted_slot(candidate.slot)
                if limit in wanted and not self._paused_key(candidate):
                    if wanted[limit] == self._free[limit]:
                        continue
                    wanted[limit] += 1
                places -= 1
            self._slots |= find_free(self._t.db, wanted)
            self._held |= {limit: len(self._slots[limit]) for limit in limits}

    def supply(self, candidate: Candidate) -> bool:
        """Give a run its slot and its tokens, or neither, and remember what it lacks."""
        slot, rate = wanted_slot(candidate.slot), candidate.rate
        lack = self._lack(candidate)
        if lack is not None:
            self.parked.append((candidate.id, lack))
            return False
        if rate is not None:
            self._buckets.pay(rate, candidate.cost)
        if slot is not None:
            self.taken.append((slot, self._slots[slot].pop(0), candidate.id))
        return True

    def _lack(self, candidate: Candidate) -> str | None:
        slot, rate = wanted_slot(candidate.slot), candidate.rate
        key = self._paused_key(candidate)
        if key is not None:
            return ON_KEY + key
        if slot is not None and not self._has_slot(slot):
            return slot
        if rate is not None:
            order = (candidate.priority, candidate.not_before, candidate.id)
            if not self._buckets.can_pay(rate, candidate.cost, order):
                self._buckets.park(rate, candidate.cost, order)
                return ON_RATE + rate
        return None

    def _has_slot(self, limit: str) -> bool:
        """Tell whether there is a slot to give; one that was not thought to be wanted is locked."""
        if not self._slots[limit] and self._held[limit] < self._free[limit]:
            given = {n for name, n, _ in self.taken if name == limit}
            more = find_free(self._t.db, {limit: self._held[limit] + 1})[limit]
            self._slots[limit] = [n for n in more if n not in given]
            # Those who were faster have taken the rest: it is looked for once.
            self._held[limit] = len(more) if self._slots[limit] else self._free[limit]
        return bool(self._slots[limit])

    def _paused_key(self, candidate: Candidate) -> str | None:
        if not self._paused_keys:
            return None
        keys = keys_in(candidate.slot, candidate.rate)
        return next((key for key in keys if key in self._paused_keys), None)

    def parked_many(self) -> bool:
        return len(self.parked) >= MOST_PARKED
