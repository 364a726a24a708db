"""Idempotency records: one statement claims, a token guards every other write."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

from ulak.store.postgres.pipeline import LateRows
from ulak.store.postgres.session import SERVER_TIME, Session, Transaction
from ulak.store.postgres.values import Numbers, Texts, name_arrays
from ulak.store.records import (
    FORGOTTEN,
    RecordClaim,
    RecordId,
    RecordRow,
    record_details,
    record_subject,
)
from ulak.store.sql.session import Row, write_audit

COLUMNS = ", ".join(RecordRow._fields)
_KINDS: Mapping[str, str] = {
    "lease_until": "bigint", "attempt": "bigint", "response_status": "bigint",
    "response_bytes": "bytea", "created_at": "bigint", "updated_at": "bigint",
    "expires_at": "bigint",
}  # fmt: skip
_NOW = f"(CASE WHEN %(by_server)s::boolean THEN {SERVER_TIME} ELSE %(now)s::bigint END)"
# The server's time, once for the whole statement.
_MOMENT = f"(SELECT {_NOW} AS now) AS moment"


def _place(name: str) -> str:
    return f"%({name})s::{_KINDS.get(name, 'text')}"


_HERE = " AND ".join(f"{name} = {_place(name)}" for name in RecordId._fields)
_OWNED = f"{_HERE} AND owner_token = {_place('owner_token')} AND status = 'processing'"
_LEASED = "(r.status = 'processing' AND coalesce(r.lease_until, 0) > {now})"
_ABSENT = f"(r.expires_at <= {{now}} AND NOT {_LEASED})"

# What of a new record is not as it was given.
_MADE = {
    "status": "'processing'", "attempt": "1", "lease_until": "moment.now + %(lease_us)s::bigint",
    "created_at": "moment.now", "updated_at": "moment.now",
    "expires_at": "moment.now + %(ttl_us)s::bigint",
}  # fmt: skip
_GIVEN = ", ".join(_MADE.get(name) or _place(name) for name in RecordRow._fields)
# What is claimed though it has not expired is taken over: it keeps what was reached.
_TAKEN_OVER = "r.expires_at > excluded.updated_at"
CLAIM = f"""
    INSERT INTO ulak.idempotency_records AS r ({COLUMNS}) SELECT {_GIVEN} FROM {_MOMENT}
    ON CONFLICT (tenant_id, scope, key) DO UPDATE SET
        status = excluded.status, request_hash = excluded.request_hash,
        actor_id = excluded.actor_id, owner_token = excluded.owner_token,
        lease_until = excluded.lease_until,
        attempt = CASE WHEN {_TAKEN_OVER} THEN r.attempt + 1 ELSE 1 END,
        recovery_point = CASE WHEN {_TAKEN_OVER} THEN r.recovery_point END,
        recovery_data = CASE WHEN {_TAKEN_OVER} THEN r.recovery_data END,
        response_status = NULL, response_headers = NULL, response_json = NULL,
        response_bytes = NULL, response_digest = NULL,
        created_at = CASE WHEN {_TAKEN_OVER} THEN r.created_at ELSE excluded.created_at END,
        updated_at = excluded.updated_at, expires_at = excluded.expires_at
    WHERE NOT {_LEASED.format(now="excluded.updated_at")}
      AND (r.expires_at <= excluded.updated_at
           OR (r.status = 'processing' AND r.request_hash = excluded.request_hash))
    RETURNING {", ".join(f"r.{name}" for name in RecordRow._fields)}, r.updated_at
"""
# A record that the statement above met and left alone is locked by it until the transaction ends:
# no clean-up removes it in between.
FIND = f"SELECT {COLUMNS}, {_NOW} FROM ulak.idempotency_records WHERE {_HERE}"
FIND_LIVING = f"""
    SELECT wanted.n, {", ".join(f"r.{name}" for name in RecordRow._fields)}
    FROM {_MOMENT}, unnest(%(tenants)s::text[], %(scopes)s::text[], %(keys)s::text[])
        WITH ORDINALITY AS wanted (tenant_id, scope, key, n)
    JOIN ulak.idempotency_records AS r USING (tenant_id, scope, key)
    WHERE NOT {_ABSENT.format(now="moment.now")}
"""
RENEW = f"""
    UPDATE ulak.idempotency_records AS r
    SET lease_until = moment.now + wanted.lease_us, updated_at = moment.now
    FROM {_MOMENT}, unnest(
        %(tenants)s::text[], %(scopes)s::text[], %(keys)s::text[], %(tokens)s::text[],
        %(leases)s::bigint[]
    ) WITH ORDINALITY AS wanted (tenant_id, scope, key, owner_token, lease_us, n)
    WHERE r.tenant_id = wanted.tenant_id AND r.scope = wanted.scope AND r.key = wanted.key
      AND r.owner_token = wanted.owner_token AND r.status = 'processing'
    RETURNING wanted.n
"""
MARK = f"""
    UPDATE ulak.idempotency_records SET recovery_point = {_place("recovery_point")},
        recovery_data = {_place("recovery_data")}, lease_until = {_NOW} + %(lease_us)s::bigint,
        updated_at = {_NOW}
    WHERE {_OWNED}
"""
_ANSWERED = ", ".join(
    f"{name} = {_place(name)}"
    for name in RecordRow._fields
    if name == "status" or name.startswith("response_")
)
FINISH = f"""
    UPDATE ulak.idempotency_records SET {_ANSWERED}, lease_until = NULL, updated_at = {_NOW},
        expires_at = {_NOW} + %(ttl_us)s::bigint
    WHERE {_OWNED}
    RETURNING 1
"""
REMOVE = f"DELETE FROM ulak.idempotency_records WHERE {_OWNED} AND recovery_point IS NULL"
FORGET = f"""
    DELETE FROM ulak.idempotency_records AS r
    WHERE {_HERE} AND NOT {_ABSENT.format(now=_NOW)} RETURNING {COLUMNS}
"""
CLEAN = f"""
    DELETE FROM ulak.idempotency_records WHERE id = ANY (ARRAY(
        SELECT r.id FROM ulak.idempotency_records AS r, {_MOMENT}
        WHERE {_ABSENT.format(now="moment.now")}
        ORDER BY r.expires_at LIMIT %(limit)s::bigint FOR UPDATE OF r SKIP LOCKED
    ))
"""


def claim(t: Transaction, row: RecordRow, ttl_us: int, lease_us: int | None) -> RecordClaim:
    facts = _facts(t, row, ttl_us=ttl_us, lease_us=lease_us)
    taken = t.db.rows(CLAIM, facts)
    return _claimed(t, taken or t.db.rows(FIND, facts), is_mine=bool(taken))


class LateClaim:
    """A claim that was sent. Of what another has, who executes it is asked in a second step."""

    def __init__(self, t: Transaction, row: RecordRow, ttl_us: int, lease_us: int | None) -> None:
        self._t = t
        self._facts = _facts(t, row, ttl_us=ttl_us, lease_us=lease_us)
        self._taken = t.db.pipeline.later(CLAIM, self._facts)
        self._found: LateRows | None = None

    @property
    def is_mine(self) -> bool:
        return bool(self._taken.rows)

    def ask(self) -> None:
        self._found = self._t.db.pipeline.later(FIND, self._facts)

    def answer(self) -> RecordClaim:
        rows = self._taken.rows if self._found is None else self._found.rows
        return _claimed(self._t, rows, is_mine=self.is_mine)


def _claimed(t: Transaction, found: Sequence[Row], *, is_mine: bool) -> RecordClaim:
    ((*columns, now),) = found
    t.hear(now)
    return RecordClaim(RecordRow._make(columns), is_mine, now)


def renew(t: Transaction, rows: Sequence[RecordRow], lease_us: Sequence[int]) -> list[bool]:
    facts = {"now": t.now, "by_server": t.by_server, **_arrays([row.id for row in rows])}
    facts["tokens"] = Texts([row.owner_token or "" for row in rows])
    facts["leases"] = Numbers(lease_us)
    renewed = {n for (n,) in t.db.rows(RENEW, facts)}
    return [n in renewed for n in range(1, len(rows) + 1)]


def mark(t: Transaction, row: RecordRow, lease_us: int) -> bool:
    return t.db.touch(MARK, _facts(t, row, lease_us=lease_us)) == 1


def finish(t: Transaction, row: RecordRow, ttl_us: int) -> bool:
    return t.db.touch(FINISH, _facts(t, row, ttl_us=ttl_us)) == 1


def finish_later(t: Transaction, row: RecordRow, ttl_us: int) -> LateRows:
    return t.db.pipeline.later(FINISH, _facts(t, row, ttl_us=ttl_us))


def release(t: Transaction, row: RecordRow) -> bool:
    if t.db.touch(REMOVE, _facts(t, row)) == 1:
        return True
    return renew(t, [row], [0]) == [True]


def forget(t: Transaction, id: RecordId, actor: str, note: str) -> bool:
    found = t.db.row(FORGET, {**id._asdict(), "now": t.now, "by_server": t.by_server})
    if found is None:
        return False
    details = json.dumps(record_details(RecordRow._make(found)))
    write_audit(t, actor, FORGOTTEN, record_subject(id), note, details)
    return True


def clean(t: Transaction, limit: int) -> int:
    return t.db.touch(CLEAN, {"now": t.now, "by_server": t.by_server, "limit": limit})


def find(db: Session, clock: Mapping[str, Any], ids: Sequence[RecordId]) -> list[RecordRow | None]:
    rows = db.rows(FIND_LIVING, {**clock, **_arrays(ids)})
    found = {n: RecordRow._make(columns) for n, *columns in rows}
    return [found.get(n) for n in range(1, len(ids) + 1)]


def _facts(t: Transaction, row: RecordRow, **spans: int | None) -> dict[str, Any]:
    return {**row._asdict(), "now": t.now, "by_server": t.by_server, **spans}


def _arrays(ids: Sequence[RecordId]) -> dict[str, Any]:
    return name_arrays(ids, {"tenants": Texts, "scopes": Texts, "keys": Texts})
