"""Months: the partitions of events, payloads and results, by the month of the submit."""

from __future__ import annotations

from functools import lru_cache

import psycopg

from ulak.clock import SECOND, Instant, to_datetime
from ulak.store.postgres.connections import Session

DAY = 24 * 3600 * SECOND
TABLES = ("events", "payloads", "results")

# Made ahead, so that a store nobody keeps up with for weeks still finds its month.
AHEAD = 2

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
    """Answer the month of an instant as a number, YYYYMM."""
    return _month_of_day(instant // DAY)


def next_month(month: int) -> int:
    """Answer the month after this one."""
    return month + 1 if month % 100 < 12 else month + 89


def foreseen(now: Instant) -> list[int]:
    """Answer this month and those for which partitions are made ahead."""
    months = [month_of(now)]
    for _ in range(AHEAD):
        months.append(next_month(months[-1]))
    return months


def existing(db: Session) -> set[int]:
    """Answer the months that have partitions."""
    return {row[0] for row in db.rows(EXISTING)}


def make(db: Session, month: int) -> bool:
    """Make the partitions of a month; answer False when they cannot be made now.

    A table is made and then attached, which does not stop those who write to the others. When
    rows of this month are in the last partition already, they stay there. A role that may not
    make tables leaves it to one that may.
    """
    try:
        db.plainly(
            "BEGIN; SET LOCAL lock_timeout = '2s'; "
            + "; ".join(
                f"CREATE TABLE ulak.{table}_{month} (LIKE ulak.{table} INCLUDING ALL); "
                f"ALTER TABLE ulak.{table} ATTACH PARTITION ulak.{table}_{month} "
                f"FOR VALUES IN ({month})"
                for table in TABLES
            )
            + "; COMMIT"
        )
    except (
        psycopg.errors.LockNotAvailable,
        # Another process is making it: how that is told depends on how far it has come.
        psycopg.errors.DuplicateTable,
        psycopg.errors.DuplicateObject,
        psycopg.errors.UniqueViolation,
        psycopg.errors.CheckViolation,
        psycopg.errors.DeadlockDetected,
        psycopg.errors.InsufficientPrivilege,
    ):
        db.plainly("ROLLBACK")
        return False
    return True


def drop(db: Session, month: int) -> bool:
    """Drop the partitions of a month; answer False when somebody is in the way, or it may not."""
    try:
        db.plainly(
            "BEGIN; SET LOCAL lock_timeout = '2s'; "
            + "; ".join(
                f"ALTER TABLE ulak.{table} DETACH PARTITION ulak.{table}_{month}; "
                f"DROP TABLE ulak.{table}_{month}"
                for table in TABLES
            )
            + f"; DELETE FROM ulak.retired_months WHERE month = {month}; COMMIT"
        )
    except (
        psycopg.errors.LockNotAvailable,
        psycopg.errors.DeadlockDetected,
        psycopg.errors.InsufficientPrivilege,
    ):
        db.plainly("ROLLBACK")
        return False
    return True
