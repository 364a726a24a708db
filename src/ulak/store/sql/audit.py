"""The lines of audit: what operators did, each written with the act itself."""

from __future__ import annotations

from ulak.store.protocol import AuditRow
from ulak.store.sql.session import Session, Transaction, columns

NOTE = """
    INSERT INTO ulak.audit (at, actor, act, subject, note, details)
    VALUES (%s::bigint, %s::text, %s::text, %s::text, %s::text, %s::text)
"""
_LINES = f"SELECT {columns(AuditRow)} FROM ulak.audit WHERE"
_BELOW = "position < %s::bigint ORDER BY position DESC LIMIT %s::bigint"
AUDIT = f"{_LINES} {_BELOW}"
AUDIT_OF = f"{_LINES} subject = %s::text AND {_BELOW}"
LAST_POSITION = 2**62


def note(
    t: Transaction, actor: str, act: str, subject: str, note: str | None, details: str
) -> None:
    t.db.execute(NOTE, (t.now, actor, act, subject, note or None, details))


def trail(
    db: Session, subject: str | None = None, before: int | None = None, limit: int = 100
) -> list[AuditRow]:
    below = LAST_POSITION if before is None else before
    if subject is None:
        found = db.rows(AUDIT, (below, limit))
    else:
        found = db.rows(AUDIT_OF, (subject, below, limit))
    return [AuditRow(*row) for row in found]
