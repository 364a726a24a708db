"""Leases: a worker's row, by which every job that it holds lives, and what becomes of lost ones."""

from __future__ import annotations

from collections.abc import Sequence

from ulak.clock import Instant
from ulak.core import event as kinds
from ulak.core.job import Event, JobRow, Request, wanted_slot
from ulak.store.batches import own_event
from ulak.store.postgres import slots, trail
from ulak.store.postgres.clock import SERVER_TIME
from ulak.store.postgres.connections import Session, Transaction
from ulak.store.postgres.months import month_of
from ulak.store.postgres.values import JOB_COLUMNS, Ids, Texts, as_job, as_request
from ulak.store.protocol import Renewal

# A server that was down has let nobody renew: from its start on every lease has its whole length,
# so that a worker which begins just then does not take the jobs of those that live.
_STARTED = "(extract(epoch FROM pg_postmaster_start_time()) * 1000000)::bigint"
# A standby that was promoted had been started long before, and nothing says when it took over. It
# has replayed transactions since its start, and no other server has. There a worker leaves every
# lease its whole length from its own beginning on.
_BEGAN = "(SELECT started_at FROM ulak.workers WHERE id = %(worker)s::text)"
HAS_LAPSED = f"""
    expires_at <= %(now)s::bigint AND (
        NOT %(by_server)s::boolean OR {_STARTED} + expires_at - renewed_at <= %(now)s::bigint AND (
            pg_last_xact_replay_timestamp() IS NULL
            OR {_BEGAN} + expires_at - renewed_at <= %(now)s::bigint
        )
    )
"""
LAPSED_WORKERS = f"""
    SELECT id FROM ulak.workers WHERE {HAS_LAPSED} ORDER BY id FOR UPDATE SKIP LOCKED
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
# After a silence that may have been the store's, and everybody's, a worker begins anew.
RENEW = f"""
    UPDATE ulak.workers SET renewed_at = %(now)s::bigint, expires_at = %(until)s::bigint,
        started_at = CASE WHEN 2 * (%(now)s::bigint - renewed_at) > expires_at - renewed_at
                     THEN %(now)s::bigint ELSE started_at END
    WHERE id = %(worker)s::text
    RETURNING {SERVER_TIME}, EXISTS (SELECT FROM ulak.requests)
"""
END_LEASE = "UPDATE ulak.workers SET expires_at = %s::bigint WHERE id = %s::text"
REQUESTS_OF_WORKER = f"""
    SELECT {", ".join(f"r.{name}" for name in Request._fields)}
    FROM ulak.requests AS r JOIN ulak.jobs AS j ON j.id = r.job_id
    WHERE j.leased_by = %s::text ORDER BY r.job_id, r.at, r.kind, r.name
"""


def give_back_lapsed(t: Transaction, worker: str) -> int:
    """Take the lapsed leases of all workers away for one; return how many jobs were unparked.

    What another transaction is writing to is left; its worker then stays for the next claimer.
    """
    facts = {"now": t.now, "by_server": t.by_server, "worker": worker}
    workers = [row[0] for row in t.db.rows(LAPSED_WORKERS, facts)]
    if not workers:
        return 0
    lost = [as_job(row) for row in t.db.rows(LOST, (Texts(workers),))]
    if lost:
        # The token moves, so that the vanished worker cannot write over its successor.
        t.db.execute(LAPSE, (t.now, Ids([row.id for row in lost])))
        t.made_due = True
    written: list[tuple[JobRow, int, Event]] = []
    for row in lost:
        line = row._replace(seq=row.seq + 1)
        event = own_event(line, kinds.LAPSED, row.state, kinds.ENGINE, row.leased_by, t.now)
        written.append((row, month_of(row.created_at), event))
    trail.append_own(t, written)
    t.db.execute(FORGET_WORKERS, (Texts(workers),))
    held = [(slot, row.id) for row in lost if (slot := wanted_slot(row.slot)) is not None]
    freed = slots.leave(t.db, held)
    return slots.let_in(t, freed)


def register(
    t: Transaction, worker: str, *, lease_us: int, lanes: Sequence[str], about: str
) -> Instant:
    """Begin a worker's lease."""
    facts = {
        "worker": worker, "now": t.now, "until": t.now + lease_us, "lanes": " ".join(lanes),
        "about": about,
    }  # fmt: skip
    t.hear(t.db.rows(REGISTER, facts)[0][0])
    return t.now


def renew(t: Transaction, worker: str, *, lease_us: int) -> Renewal:
    """Extend a worker's lease if it is still there."""
    found = t.db.rows(RENEW, {"now": t.now, "until": t.now + lease_us, "worker": worker})
    if not found:
        return Renewal(False, t.now, [])
    t.hear(found[0][0])
    return Renewal(True, t.now, requests_of(t.db, worker) if found[0][1] else [])


def unregister(t: Transaction, worker: str) -> None:
    """End a worker's lease; what it still holds is left, lapsed, to the next claimer."""
    t.db.execute(LOCK_WORKER, (worker,))
    if t.db.row(IS_HOLDING, (worker,)) is None:
        t.db.execute(FORGET_WORKERS, (Texts([worker]),))
    else:
        t.db.execute(END_LEASE, (t.now, worker))
        t.made_due = True


def leased(db: Session, worker: str) -> list[JobRow]:
    """Return the jobs that a worker has leased."""
    return [as_job(row) for row in db.rows(LEASED_BY, (worker,))]


def requests_of(db: Session, worker: str) -> list[Request]:
    """Return the requests for the jobs that a worker holds."""
    return [as_request(row) for row in db.rows(REQUESTS_OF_WORKER, (worker,))]
