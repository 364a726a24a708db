"""Slots: at most so many jobs of a limit run at once, whoever runs them.

Each slot is a row, and whoever wants one locks a free row and skips those that others have locked.
The limit itself is held meanwhile, by any number of claimers together, so that nobody changes it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from ulak.store.flow_control import is_keyed, stage_of
from ulak.store.postgres.connections import Session, Transaction
from ulak.store.postgres.values import Ids, Numbers, Texts

HOLD_LIMIT = "SELECT n, keyed FROM ulak.limits WHERE name = %s::text FOR SHARE"
PLACES = "SELECT n FROM ulak.limits WHERE name = %s::text"
# How many are open, how many are held, and how many of those are closed: one in a closed slot
# counts until it has drained, so that never more run than the limit says.
STANDING = """
    SELECT count(*) FILTER (WHERE closed = 0), count(job_id),
           count(job_id) FILTER (WHERE closed = 1)
    FROM ulak.slots WHERE limit_name = %s::text
"""
FIND_FREE = """
    SELECT n FROM ulak.slots WHERE limit_name = %s::text AND job_id IS NULL AND closed = 0
    AND n <> ALL (%s::bigint[]) ORDER BY n LIMIT %s::bigint FOR UPDATE SKIP LOCKED
"""
TAKE_ALL = "SELECT 1 FROM ulak.slots WHERE limit_name = %s::text ORDER BY n FOR UPDATE"
TAKE = """
    UPDATE ulak.slots AS s SET job_id = k.job_id
    FROM unnest(%s::text[], %s::bigint[], %s::uuid[]) AS k (limit_name, n, job_id)
    WHERE s.limit_name = k.limit_name AND s.n = k.n
"""
FREE = """
    UPDATE ulak.slots AS s SET job_id = NULL
    FROM unnest(%s::text[], %s::uuid[]) AS k (limit_name, job_id)
    WHERE s.limit_name = k.limit_name AND s.job_id = k.job_id
    RETURNING s.limit_name
"""
UNPARK = """
    UPDATE ulak.jobs SET parked_on = NULL WHERE id = ANY (ARRAY(
        SELECT id FROM ulak.jobs WHERE parked_on = %s::text
        ORDER BY priority, not_before, id LIMIT %s::bigint FOR UPDATE SKIP LOCKED
    ))
"""
OPEN = """
    INSERT INTO ulak.slots (limit_name, n, closed)
    SELECT %s::text, n, 0 FROM generate_series(1, %s::bigint) AS n
    ON CONFLICT (limit_name, n) DO NOTHING
"""
OPEN_AGAIN = """
    UPDATE ulak.slots SET closed = (n > %(n)s::bigint)::integer
    WHERE limit_name = %(name)s::text AND closed <> (n > %(n)s::bigint)::integer
"""


def find_free(db: Session, limit: str, most: int, held: Sequence[int] = ()) -> list[int]:
    """Answer up to so many slots that are free and now ours to take, beside those we hold."""
    held_limit = db.row(HOLD_LIMIT, (stage_of(limit),))
    if held_limit is None:
        return []
    n, keyed = held_limit
    free, draining = _standing(db, limit, n if keyed else 0)
    if draining:
        # Which of them count is decided by all of them, so they are taken all.
        db.execute(TAKE_ALL, (limit,))
        free, _ = _standing(db, limit, 0)
    most = min(most, free - len(held))
    if most <= 0:
        return []
    return [row[0] for row in db.rows(FIND_FREE, (limit, Numbers(held), most))]


def _standing(db: Session, limit: str, wanted: int) -> tuple[int, bool]:
    """Answer how many more may run, and whether some drain; open so many slots if there are fewer.

    The slots of a key are opened when the first job needs one.
    """
    found = db.row(STANDING, (limit,)) or (0, 0, 0)
    if found[0] < wanted:
        db.execute(OPEN, (limit, wanted))
        found = db.row(STANDING, (limit,)) or (0, 0, 0)
    is_open, held, draining = found
    return is_open - held, draining > 0


def free_places(db: Session, limit: str) -> int:
    """Answer how many more jobs may run under this limit."""
    free, held, _ = db.row(STANDING, (limit,)) or (0, 0, 0)
    if not free and is_keyed(limit):
        declared = db.row(PLACES, (stage_of(limit),))
        free = 0 if declared is None else declared[0]
    return int(free) - int(held)


def write(db: Session, taken: Sequence[tuple[str, int, bytes]]) -> None:
    """Write into slots that `find_free` answered whose they are."""
    if taken:
        limits, numbers, ids = zip(*sorted(taken), strict=True)
        db.execute(TAKE, (Texts(limits), Numbers(numbers), Ids(ids)))


def leave(db: Session, held: Sequence[tuple[str, bytes]]) -> Counter[str]:
    """Free the slots that these jobs hold; answer how many of each limit."""
    if not held:
        return Counter()
    limits, ids = zip(*sorted(held), strict=True)
    return Counter(row[0] for row in db.rows(FREE, (Texts(limits), Ids(ids))))


def let_in(t: Transaction, freed: Counter[str]) -> int:
    """Unpark as many as have left, if there is room for them; answer how many."""
    return sum(
        pass_on(t, limit, min(freed[limit], free_places(t.db, limit))) for limit in sorted(freed)
    )


def pass_on(t: Transaction, parked_on: str, places: int) -> int:
    """Unpark so many jobs, the most urgent and then the oldest; what they need they claim."""
    if places <= 0:
        return 0
    unparked = t.db.touch(UNPARK, (parked_on, places))
    t.made_due = t.made_due or unparked > 0
    return unparked


def open_slots(t: Transaction, name: str, places: int) -> None:
    """Open the first so many slots of a limit, or of one key of it, and close the rest."""
    t.db.execute(TAKE_ALL, (name,))
    t.db.execute(OPEN, (name, places))
    t.db.execute(OPEN_AGAIN, {"name": name, "n": places})
