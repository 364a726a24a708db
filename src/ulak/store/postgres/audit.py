"""The lines of audit: what operators did, each written with the act itself."""

from __future__ import annotations

from ulak.store.postgres.connections import Session, Transaction
from ulak.store.protocol import AuditRow

_COLUMNS = ", ".join(AuditRow._fields)

NOTE = """
    INSERT INTO ulak.audit (at, actor, act, subject, note, details)
    VALUES (%s::bigint, %s::text, %s::text, %s::text, %s::text, %s::text)
"""
AUDIT = f"""
    SELECT {_COLUMNS} FROM ulak.audit WHERE position < %s::bigint
    ORDER BY position DESC LIMIT %s::bigint
"""
AUDIT_OF = f"""
    SELECT {_COLUMNS} FROM ulak.audit WHERE subject = %s::text AND position < %s::bigint
    ORDER BY position DESC LIMIT %s::bigint
"""
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
