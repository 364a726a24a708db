"""The lines of audit: what operators did, each written with the act itself."""

from __future__ import annotations

import sqlite3

from ulak.store.protocol import AuditRow
from ulak.store.sqlite.writer import Transaction

_COLUMNS = ", ".join(AuditRow._fields)

NOTE = "INSERT INTO main.audit (at, actor, act, subject, note, details) VALUES (?, ?, ?, ?, ?, ?)"
AUDIT = f"SELECT {_COLUMNS} FROM audit WHERE position < ? ORDER BY position DESC LIMIT ?"
AUDIT_OF = f"""
    SELECT {_COLUMNS} FROM audit WHERE subject = ? AND position < ?
    ORDER BY position DESC LIMIT ?
"""
LAST_POSITION = 2**62


def note(
    t: Transaction, actor: str, act: str, subject: str, note: str | None, details: str
) -> None:
    t.db.execute(NOTE, (t.now, actor, act, subject, note or None, details))


def trail(
    db: sqlite3.Connection, subject: str | None = None, before: int | None = None, limit: int = 100
) -> list[AuditRow]:
    below = LAST_POSITION if before is None else before
    if subject is None:
        found = db.execute(AUDIT, (below, limit))
    else:
        found = db.execute(AUDIT_OF, (subject, below, limit))
    return [AuditRow(*row) for row in found.fetchall()]
