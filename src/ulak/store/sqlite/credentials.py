"""Credentials: who is known, and by what; every change with its line of audit."""

from __future__ import annotations

import sqlite3

from ulak.clock import Instant
from ulak.store.credentials import changed, details_of, subject_of
from ulak.store.protocol import CredentialRow
from ulak.store.sqlite import audit
from ulak.store.sqlite.writer import Transaction

COLUMNS = ", ".join(CredentialRow._fields)
_BOUND = ", ".join("?" * len(CredentialRow._fields))

CREDENTIALS = f"SELECT {COLUMNS} FROM credentials WHERE kind = ? ORDER BY id"
FIND = f"SELECT {COLUMNS} FROM credentials WHERE kind = ? AND id = ?"
ADD = f"INSERT INTO credentials ({COLUMNS}) VALUES ({_BOUND}) ON CONFLICT (kind, id) DO NOTHING"
CHANGE = f"UPDATE credentials SET ({COLUMNS}) = ({_BOUND}) WHERE kind = ? AND id = ?"
NOTE_USE = """
    UPDATE credentials SET used_at = ?3
    WHERE kind = ?1 AND id = ?2 AND (used_at IS NULL OR used_at < ?3)
"""
FORGET = "DELETE FROM credentials WHERE kind = ? AND expires_at < ?"


def add(t: Transaction, row: CredentialRow, *, act: str, actor: str, note: str) -> bool:
    is_new = t.db.execute(ADD, row).rowcount == 1
    if is_new:
        audit.note(t, actor, act, subject_of(row), note, details_of(row, None))
    return is_new


def change(t: Transaction, row: CredentialRow, *, act: str, actor: str, note: str) -> bool:
    stored = find(t.db, row.kind, row.id)
    new = changed(row, stored)
    if new is None:
        return False
    t.db.execute(CHANGE, (*new, row.kind, row.id))
    audit.note(t, actor, act, subject_of(row), note, details_of(new, stored))
    return True


def note_use(t: Transaction, kind: str, id: str, at: Instant) -> None:
    t.db.execute(NOTE_USE, (kind, id, at))


def forget(t: Transaction, kind: str, before: Instant) -> int:
    return t.db.execute(FORGET, (kind, before)).rowcount


def find(db: sqlite3.Connection, kind: str, id: str) -> CredentialRow | None:
    row = db.execute(FIND, (kind, id)).fetchone()
    return None if row is None else CredentialRow(*row)


def of_kind(db: sqlite3.Connection, kind: str) -> list[CredentialRow]:
    return [CredentialRow(*row) for row in db.execute(CREDENTIALS, (kind,)).fetchall()]
