"""Dedup keys and slots: what only one job may have at a time."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from ulak.clock import Instant
from ulak.core.job import JobRow
from ulak.errors import Contended
from ulak.store.postgres.connections import Session, Transaction
from ulak.store.postgres.values import Id, Ids, Numbers, Row, Texts, as_job

Key = tuple[str, str, str]
"""Tenant, flow and dedup key."""

Wish = tuple[bytes, Instant | None]
"""The job that wants a key, and when it may be taken over again."""

_KEYS = "unnest(%s::text[], %s::text[], %s::text[]) AS k (tenant, flow, key)"
_SAME_KEY = "d.tenant = k.tenant AND d.flow = k.flow AND d.key = k.key"

# A live key is not even locked: its job must be able to end meanwhile.
TAKE_FREE = """
    INSERT INTO ulak.dedup (tenant, flow, key, job_id, expires_at)
    SELECT * FROM unnest(%s::text[], %s::text[], %s::text[], %s::uuid[], %s::bigint[])
    ON CONFLICT (tenant, flow, key) DO NOTHING
    RETURNING tenant, flow, key
"""
HOLDERS = f"""
    SELECT d.tenant, d.flow, d.key, d.job_id, d.expires_at,
           {", ".join(f"j.{name}" for name in JobRow._fields)}
    FROM {_KEYS} JOIN ulak.dedup AS d ON {_SAME_KEY} LEFT JOIN ulak.jobs AS j ON j.id = d.job_id
"""
TAKE_OVER = """
    UPDATE ulak.dedup SET job_id = %s::uuid, expires_at = %s::bigint
    WHERE tenant = %s::text AND flow = %s::text AND key = %s::text AND job_id = %s::uuid
"""
FREE = """
    DELETE FROM ulak.dedup AS d
    USING unnest(%s::text[], %s::text[], %s::text[], %s::uuid[]) AS k (tenant, flow, key, job_id)
    WHERE d.tenant = k.tenant AND d.flow = k.flow AND d.key = k.key AND d.job_id = k.job_id
"""
MOST_ROUNDS = 3


def key_of(row: JobRow) -> Key | None:
    """Return the dedup key of a job, if it has one."""
    return None if row.dedup_key is None else (row.tenant, row.flow, row.dedup_key)


def take(t: Transaction, wishes: Mapping[Key, Wish]) -> dict[Key, JobRow]:
    """Take what is free or has expired; answer the jobs that hold the rest, by key.

    The loser's insert does nothing and a second statement reads: one statement cannot do both.

    Raises:
        Contended: a key changed hands each time it was looked at.
    """
    left = dict(wishes)
    for _ in range(MOST_ROUNDS):
        for tenant, flow, key in _take_free(t.db, left):
            del left[tenant, flow, key]
        held = _take_over(t, left)
        if held.keys() == left.keys():
            return held
        # Some were freed in between: those are tried again.
    raise Contended(f"{len(left)} dedup keys change hands too fast; try again")


def find_holders(t: Transaction, keys: Sequence[Key]) -> dict[Key, JobRow]:
    """Return the jobs that hold these keys, without taking those that are free."""
    return {
        (tenant, flow, name): row
        for tenant, flow, name, _, expires_at, row in _holders(t.db, sorted(keys))
        if row is not None and (expires_at is None or expires_at > t.now)
    }


def _take_free(db: Session, wishes: Mapping[Key, Wish]) -> list[Row]:
    if not wishes:
        return []
    ordered = sorted(wishes)
    tenants, flows, keys = zip(*ordered, strict=True)
    ids, dates = zip(*(wishes[key] for key in ordered), strict=True)
    return db.rows(TAKE_FREE, (Texts(tenants), Texts(flows), Texts(keys), Ids(ids), Numbers(dates)))


def _take_over(t: Transaction, left: dict[Key, Wish]) -> dict[Key, JobRow]:
    """Take over what has expired, or what nobody stored holds; answer who holds the others."""
    held: dict[Key, JobRow] = {}
    for tenant, flow, name, job_id, expires_at, row in _holders(t.db, sorted(left)):
        key = (tenant, flow, name)
        own_id, own_date = left[key]
        if row is None or (expires_at is not None and expires_at <= t.now):
            if t.db.touch(TAKE_OVER, (Id(own_id), own_date, *key, Id(job_id))):
                del left[key]
        else:
            held[key] = row
    return held


def _holders(db: Session, keys: Sequence[Key]) -> list[Row]:
    if not keys:
        return []
    tenants, flows, names = zip(*keys, strict=True)
    return [
        (*row[:5], None if row[5] is None else as_job(row[5:]))
        for row in db.rows(HOLDERS, (Texts(tenants), Texts(flows), Texts(names)))
    ]


def free(db: Session, held: Sequence[tuple[Key, bytes]]) -> None:
    """Give keys back, unless other jobs have taken them over since."""
    if not held:
        return
    ordered = sorted(held)
    tenants, flows, keys = zip(*(key for key, _ in ordered), strict=True)
    db.execute(FREE, (Texts(tenants), Texts(flows), Texts(keys), Ids([i for _, i in ordered])))
