"""Months: the partitions of events, payloads and results, by the month of the submit."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from functools import lru_cache
from time import sleep

import psycopg

from ulak.clock import SECOND, Instant, to_datetime
from ulak.store.postgres.session import Session

log = logging.getLogger("ulak.postgres")

DAY = 24 * 3600 * SECOND
TABLES = ("events", "payloads", "results")

# Made ahead, so that a store nobody keeps up with for weeks still finds its month.
AHEAD = 2

# A session that waits for a table for itself holds up all that come after it. So it waits for a
# moment, gives way, and tries again.
PATIENCE_MS = 50
PAUSE_S = 0.2
MOST_TRIES = 3

# Moved within about a second, which is half of what a commit waits. A guess.
MOST_MOVED = 50_000

LATE = """
    SELECT count(*) FROM (
        SELECT FROM ulak.{table}_other WHERE month = %s::bigint LIMIT %s::bigint
    ) AS found
"""
STRAY = "SELECT DISTINCT month FROM ulak.{table}_other"
EXISTING = """
    SELECT right(relname, 6)::integer FROM pg_inherits
    JOIN pg_class ON pg_class.oid = inhrelid
    WHERE inhparent = 'ulak.events'::regclass AND relname ~ '_[0-9]{6}$'
"""


@lru_cache(maxsize=256)
def _month_of_day(day: int) -> int:
    moment = to_datetime(day * DAY)
    return moment.year * 100 + moment.month


def month_of(instant: Instant) -> int:
    return _month_of_day(instant // DAY)


def next_month(month: int) -> int:
    return month + 1 if month % 100 < 12 else month + 89


def foreseen(now: Instant) -> list[int]:
    months = [month_of(now)]
    for _ in range(AHEAD):
        months.append(next_month(months[-1]))
    return months


def existing(db: Session) -> set[int]:
    return {row[0] for row in db.rows(EXISTING)}


def move_strays(db: Session) -> None:
    """Give the rows of the last partitions partitions of their own, however many there are."""
    strays = {row[0] for table in TABLES for row in db.rows(STRAY.format(table=table))}
    for month in sorted(strays - existing(db)):
        make(db, month, most=None)


def make(db: Session, month: int, *, most: int | None = MOST_MOVED) -> bool:
    """Make the partitions of a month; return False when they cannot be made now.

    A table is made and then attached, which does not stop those who write to the others. Rows of
    this month that are in the last partitions already are moved, at most so many: writers of
    the month wait meanwhile. A role that may not make tables leaves it to one that may.
    """
    found = {table: db.rows(LATE.format(table=table), (month, most)) for table in TABLES}
    rows = {table: n for table, ((n,),) in found.items() if n}
    if most is not None and any(n >= most for n in rows.values()):
        log.warning(
            "a month has too many rows in the last partition to be moved beside workers; "
            "run `ulak migrate` when few are at work",
            extra={"month": month, **rows},
        )
        return False
    statements = [f"LOCK TABLE ulak.{table}_other IN SHARE ROW EXCLUSIVE MODE" for table in rows]
    for table in TABLES:
        statements.append(f"CREATE TABLE ulak.{table}_{month} (LIKE ulak.{table} INCLUDING ALL)")
        if table in rows:
            statements.append(
                f"WITH moved AS (DELETE FROM ulak.{table}_other WHERE month = {month} RETURNING *) "
                f"INSERT INTO ulak.{table}_{month} SELECT * FROM moved"
            )
        statements.append(
            f"ALTER TABLE ulak.{table} ATTACH PARTITION ulak.{table}_{month} "
            f"FOR VALUES IN ({month})"
        )
    return _is_done(db, statements)


def drop(db: Session, month: int) -> bool:
    """Drop the partitions of a month; answer False when somebody is in the way, or it may not."""
    statements = [f"LOCK TABLE {', '.join(f'ulak.{table}' for table in TABLES)}"]
    for table in TABLES:
        statements.append(f"ALTER TABLE ulak.{table} DETACH PARTITION ulak.{table}_{month}")
        statements.append(f"DROP TABLE ulak.{table}_{month}")
    statements.append(f"DELETE FROM ulak.retired_months WHERE month = {month}")
    if _is_done(db, statements):
        return True
    log.info("a month is kept for now: somebody uses its tables", extra={"month": month})
    return False


def _is_done(db: Session, statements: Sequence[str]) -> bool:
    """Run statements as one transaction, unless others are in the way for longer than a moment."""
    for tries in range(MOST_TRIES):
        if tries:
            sleep(PAUSE_S)
        try:
            said = "; ".join(statements)
            db.plainly(f"BEGIN; SET LOCAL lock_timeout = {PATIENCE_MS}; {said}; COMMIT")
        except (psycopg.errors.LockNotAvailable, psycopg.errors.DeadlockDetected):
            db.plainly("ROLLBACK")
        except (
            # Another process is making it: the error depends on how far it has come.
            psycopg.errors.DuplicateTable,
            psycopg.errors.DuplicateObject,
            psycopg.errors.UniqueViolation,
            psycopg.errors.CheckViolation,
            psycopg.errors.UndefinedTable,
            psycopg.errors.InsufficientPrivilege,
        ):
            db.plainly("ROLLBACK")
            return False
        else:
            return True
    return False
