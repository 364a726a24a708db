"""How jobs stand, counted along the indexes."""

from __future__ import annotations

from typing import Any

from ulak.clock import Instant
from ulak.core.backlog import Standing
from ulak.store import standing
from ulak.store.postgres.connections import Session
from ulak.store.postgres.lent import BEGIN_READING
from ulak.store.postgres.values import Texts
from ulak.store.sql import reads

STATEMENTS = standing.write_statements(
    "ulak.jobs", "unnest({lanes}) WITH ORDINALITY AS lanes (lane, place)", "%({name})s::{type}"
)


def count(db: Session, now: Instant) -> Standing:
    """Count how jobs stand, all at one moment."""

    def ask(name: str, **facts: Any) -> list[Any]:
        if "lanes" in facts:
            facts["lanes"] = Texts(facts["lanes"])
        return db.rows(STATEMENTS[name], facts)

    db.plainly(BEGIN_READING)
    found = standing.count(ask, now, reads.counts(db))
    db.plainly("COMMIT")
    return found
