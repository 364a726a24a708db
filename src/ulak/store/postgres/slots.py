"""Slots: at most so many jobs of a limit run at once, whoever runs them.

Each slot is a row, and whoever wants one locks a free row and skips those that others have locked.
The limit itself is held meanwhile, by any number of claimers together, so that nobody changes it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence

from ulak.core.job import OF_STATE
from ulak.store.flow_control import is_keyed, stage_of
from ulak.store.postgres.connections import Session, Transaction
from ulak.store.postgres.values import Id, Ids, Numbers, Texts

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
    """Take hold of limits and answer how many more may run under each.

    The slots of a key are opened when the first job needs one.
    """
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
        opened, places = zip(*missing, strict=True)
        db.execute(OPEN, (Texts(opened), Numbers(places)))
        standing |= _standing(db, opened)
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
    """Return how many slots a key has: its own number, or that of its limit."""
    own = standing[3]
    return declared if own is None else own


def find_free(db: Session, wanted: Mapping[str, int]) -> dict[str, list[int]]:
    """Return up to so many slots of each limit that are free and now ours to take.

    Who wants more of a limit than `free_of` has answered gets more than there is.
    """
    found: dict[str, list[int]] = {limit: [] for limit in wanted}
    limits = [limit for limit in sorted(wanted) if wanted[limit] > 0]
    if limits:
        most = Numbers([wanted[limit] for limit in limits])
        for limit, n in db.rows(FIND_FREE, (Texts(limits), most)):
            found[limit].append(n)
    return found


def find_one(db: Session, limit: str) -> list[int]:
    """Return a free slot of a limit, now ours to take, if there is one."""
    return find_free(db, {limit: min(1, free_of(db, [limit])[limit])})[limit]


def free_places(db: Session, limits: Sequence[str]) -> dict[str, int]:
    """Return how many more jobs may run under each of these limits."""
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
    """Write into slots that `find_free` answered whose they are."""
    if taken:
        limits, numbers, ids = zip(*sorted(taken), strict=True)
        kinds = Numbers([int(of_state)] * len(taken))
        db.execute(TAKE, (Texts(limits), Numbers(numbers), Ids(ids), kinds))


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
    """Free the slots that these jobs hold; answer how many of each limit."""
    if not held:
        return Counter()
    limits, ids = zip(*sorted(held), strict=True)
    return Counter(row[0] for row in db.rows(FREE, (Texts(limits), Ids(ids))))


def let_in(t: Transaction, freed: Counter[str]) -> int:
    """Unpark as many as have left, if there is room for them; answer how many."""
    if not freed:
        return 0
    free = free_places(t.db, sorted(freed))
    return pass_on_all(t, {limit: min(freed[limit], free[limit]) for limit in free})


def pass_on(t: Transaction, parked_on: str, places: int) -> int:
    """Unpark so many jobs, the most urgent and then the oldest; what they need they claim."""
    return pass_on_all(t, {parked_on: places})


def pass_on_all(t: Transaction, places: Mapping[str, int], most: int | None = None) -> int:
    """Unpark so many jobs of each name, and at most so many of all, in one statement."""
    names = [name for name in sorted(places) if places[name] > 0]
    if not names:
        return 0
    numbers = [places[name] for name in names]
    facts = (Texts(names), Numbers(numbers), sum(numbers) if most is None else most)
    unparked = t.db.touch(UNPARK, facts)
    t.made_due = t.made_due or unparked > 0
    return unparked


def open_slots(t: Transaction, name: str, places: int) -> None:
    """Open the first so many slots of a limit, or of one key of it, and close the rest."""
    t.db.execute(TAKE_ALL, (Texts([name]),))
    t.db.execute(OPEN, (Texts([name]), Numbers([places])))
    t.db.execute(OPEN_AGAIN, {"name": name, "n": places})
