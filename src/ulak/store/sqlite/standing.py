"""How jobs stand, counted along the indexes."""

from __future__ import annotations

import json
import sqlite3
from typing import Any

from ulak.clock import Instant
from ulak.core.backlog import Standing
from ulak.store import standing
from ulak.store.sql import reads
from ulak.store.sqlite.session import Session

STATEMENTS = standing.write_statements(
    "jobs INDEXED BY {index}",
    "(SELECT value AS lane, key AS place FROM json_each({lanes})) AS lanes",
    ":{name}",
)


def count(db: sqlite3.Connection, now: Instant) -> Standing:
    """Count how jobs stand, all at one moment."""

    def ask(name: str, **facts: Any) -> list[Any]:
        if "lanes" in facts:
            facts["lanes"] = json.dumps(facts["lanes"])
        return db.execute(STATEMENTS[name], facts).fetchall()

    db.execute("BEGIN")
    try:
        return standing.count(ask, now, reads.counts(Session(db)))
    finally:
        db.execute("ROLLBACK")
