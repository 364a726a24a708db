"""Credentials: who is known, and by what; every change with its line of audit."""

from __future__ import annotations

from ulak.clock import Instant
from ulak.store.credentials import changed, details_of, subject_of
from ulak.store.protocol import CredentialRow
from ulak.store.sql import audit
from ulak.store.sql.session import Session, Transaction, columns, insert, places

CREDENTIALS = f"""
    SELECT {columns(CredentialRow)} FROM ulak.credentials WHERE kind = %s::text ORDER BY id
"""
FIND = f"""
    SELECT {columns(CredentialRow)} FROM ulak.credentials WHERE kind = %s::text AND id = %s::text
"""
ADD = f"{insert('credentials', CredentialRow)} ON CONFLICT (kind, id) DO NOTHING"
CHANGE = f"""
    UPDATE ulak.credentials SET ({columns(CredentialRow)}) = ({places(CredentialRow)})
    WHERE kind = %s::text AND id = %s::text
"""
NOTE_USE = """
    UPDATE ulak.credentials SET used_at = %(at)s::bigint
    WHERE kind = %(kind)s::text AND id = %(id)s::text
      AND (used_at IS NULL OR used_at < %(at)s::bigint)
"""
FORGET = "DELETE FROM ulak.credentials WHERE kind = %s::text AND expires_at < %s::bigint"


def add(t: Transaction, row: CredentialRow, *, act: str, actor: str, note: str) -> bool:
    is_new = t.db.touch(ADD, tuple(row)) == 1
    if is_new:
        audit.note(t, actor, act, subject_of(row), note, details_of(row, None))
    return is_new


def change(t: Transaction, row: CredentialRow, *, act: str, actor: str, note: str) -> bool:
    stored = _credential(t.db.row(f"{FIND} FOR UPDATE", (row.kind, row.id)))
    new = changed(row, stored)
    if new is None:
        return False
    t.db.execute(CHANGE, (*new, row.kind, row.id))
    audit.note(t, actor, act, subject_of(row), note, details_of(new, stored))
    return True


def note_use(t: Transaction, kind: str, id: str, at: Instant) -> None:
    t.db.execute(NOTE_USE, {"kind": kind, "id": id, "at": at})


def forget(t: Transaction, kind: str, before: Instant) -> int:
    return t.db.touch(FORGET, (kind, before))


def find(db: Session, kind: str, id: str) -> CredentialRow | None:
    return _credential(db.row(FIND, (kind, id)))


def of_kind(db: Session, kind: str) -> list[CredentialRow]:
    return [CredentialRow(*row) for row in db.rows(CREDENTIALS, (kind,))]


def _credential(row: tuple[object, ...] | None) -> CredentialRow | None:
    return None if row is None else CredentialRow._make(row)
