"""Idempotency records: one statement claims, a token guards every other write."""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Sequence

from ulak.clock import Instant
from ulak.store.records import (
    FORGOTTEN,
    PROCESSING,
    RecordClaim,
    RecordId,
    RecordRow,
    record_details,
    record_subject,
)
from ulak.store.sql.session import write_audit
from ulak.store.sqlite.session import SharedTransaction, Transaction

COLUMNS = ", ".join(RecordRow._fields)
_BOUND = ", ".join(f":{name}" for name in RecordRow._fields)
_HERE = "tenant_id = :tenant_id AND scope = :scope AND key = :key"
_OWNED = f"{_HERE} AND owner_token = :owner_token AND status = 'processing'"
_LEASED = "(status = 'processing' AND coalesce(lease_until, 0) > {now})"
_ABSENT = f"(expires_at <= {{now}} AND NOT {_LEASED})"

# What is claimed though it has not expired is taken over: it keeps what was reached.
_TAKEN_OVER = "expires_at > excluded.updated_at"
CLAIM = f"""
    INSERT INTO idempotency_records ({COLUMNS}) VALUES ({_BOUND})
    ON CONFLICT (tenant_id, scope, key) DO UPDATE SET
        status = excluded.status, request_hash = excluded.request_hash,
        actor_id = excluded.actor_id, owner_token = excluded.owner_token,
        lease_until = excluded.lease_until,
        attempt = CASE WHEN {_TAKEN_OVER} THEN attempt + 1 ELSE 1 END,
        recovery_point = CASE WHEN {_TAKEN_OVER} THEN recovery_point END,
        recovery_data = CASE WHEN {_TAKEN_OVER} THEN recovery_data END,
        response_status = NULL, response_headers = NULL, response_json = NULL,
        response_bytes = NULL, response_digest = NULL,
        created_at = CASE WHEN {_TAKEN_OVER} THEN created_at ELSE excluded.created_at END,
        updated_at = excluded.updated_at, expires_at = excluded.expires_at
    WHERE NOT {_LEASED.format(now="excluded.updated_at")}
      AND (expires_at <= excluded.updated_at
           OR (status = 'processing' AND request_hash = excluded.request_hash))
"""
FIND = f"SELECT {COLUMNS} FROM idempotency_records WHERE {_HERE}"
FIND_LIVING = f"{FIND} AND NOT {_ABSENT.format(now=':now')}"
RENEW = f"""
    UPDATE idempotency_records SET lease_until = :until, updated_at = :now WHERE {_OWNED}
"""
MARK = f"""
    UPDATE idempotency_records SET recovery_point = :recovery_point,
        recovery_data = :recovery_data, lease_until = :until, updated_at = :now
    WHERE {_OWNED}
"""
FINISH = f"""
    UPDATE idempotency_records SET status = :status, response_status = :response_status,
        response_headers = :response_headers, response_json = :response_json,
        response_bytes = :response_bytes, response_digest = :response_digest,
        lease_until = NULL, updated_at = :now, expires_at = :until
    WHERE {_OWNED}
"""
REMOVE = f"DELETE FROM idempotency_records WHERE {_OWNED} AND recovery_point IS NULL"
FORGET = f"DELETE FROM idempotency_records WHERE {_HERE}"
CLEAN = f"""
    DELETE FROM idempotency_records WHERE id IN (
        SELECT id FROM idempotency_records WHERE {_ABSENT.format(now=":now")}
        ORDER BY expires_at LIMIT :limit
    )
"""


def claim(
    db: sqlite3.Connection, now: Instant, row: RecordRow, ttl_us: int, lease_us: int | None
) -> RecordClaim:
    new = row._replace(
        status=PROCESSING, lease_until=None if lease_us is None else now + lease_us, attempt=1,
        created_at=now, updated_at=now, expires_at=now + ttl_us,
    )  # fmt: skip
    is_mine = db.execute(CLAIM, new._asdict()).rowcount == 1
    stored = RecordRow._make(_one(db, FIND, row.id._asdict()))
    return RecordClaim(stored, is_mine, now)


def renew(t: Transaction, rows: Sequence[RecordRow], lease_us: Sequence[int]) -> list[bool]:
    return [
        _touched(t.db, RENEW, row, t.now, t.now + span)
        for row, span in zip(rows, lease_us, strict=True)
    ]


def mark(db: sqlite3.Connection, now: Instant, row: RecordRow, lease_us: int) -> bool:
    return _touched(db, MARK, row, now, now + lease_us)


def finish(db: sqlite3.Connection, now: Instant, row: RecordRow, ttl_us: int) -> bool:
    return _touched(db, FINISH, row, now, now + ttl_us)


def release(t: Transaction, row: RecordRow) -> bool:
    if t.db.execute(REMOVE, row._asdict()).rowcount == 1:
        return True
    return _touched(t.db, RENEW, row, t.now, t.now)


def forget(t: Transaction, id: RecordId, actor: str, note: str) -> bool:
    found = _one(t.db, FIND_LIVING, {**id._asdict(), "now": t.now})
    if not found:
        return False
    t.db.execute(FORGET, id._asdict())
    details = json.dumps(record_details(RecordRow._make(found)))
    write_audit(SharedTransaction(t), actor, FORGOTTEN, record_subject(id), note, details)
    return True


def clean(t: Transaction, limit: int) -> int:
    return t.db.execute(CLEAN, {"now": t.now, "limit": limit}).rowcount


def find(db: sqlite3.Connection, now: Instant, ids: Sequence[RecordId]) -> list[RecordRow | None]:
    found = (_one(db, FIND_LIVING, {**id._asdict(), "now": now}) for id in ids)
    return [RecordRow._make(row) if row else None for row in found]


def _touched(
    db: sqlite3.Connection, statement: str, row: RecordRow, now: Instant, until: Instant
) -> bool:
    facts = {**row._asdict(), "now": now, "until": until}
    return db.execute(statement, facts).rowcount == 1


def _one(db: sqlite3.Connection, statement: str, facts: dict[str, object]) -> tuple[object, ...]:
    found: tuple[object, ...] | None = db.execute(statement, facts).fetchone()
    return found or ()
