"""A connection of SQLite that understands the statements which both databases share."""

from __future__ import annotations

import re
import sqlite3
from collections.abc import Callable
from functools import cache
from typing import Any, Concatenate, ParamSpec, TypeVar

from ulak.clock import Instant
from ulak.store.sql.reads import IN_ITS_MONTH, WITHOUT_DATE
from ulak.store.sql.session import Row
from ulak.store.sqlite.writer import Transaction

P = ParamSpec("P")
T = TypeVar("T")

# SQLite has one writer and locks no rows. Its planner knows nothing of the tables, so that it is
# told which index to use: what stands in a comment of a shared statement is for SQLite alone.
_WORDS = (
    (re.compile(re.escape(IN_ITS_MONTH)), ""),
    (re.compile(re.escape(WITHOUT_DATE)), "substr(id, 7, 1) NOT BETWEEN x'70' AND x'7f'"),
    (re.compile(r"starts_with\((\w+), (%\(\w+\)s)::text\)"), r"substr(\1, 1, length(\2)) = \2"),
    (re.compile(r"%\((\w+)\)s"), r":\1"),
    (re.compile(r"%s"), "?"),
    (re.compile(r"%%"), "%"),
    (re.compile(r"::\w+"), ""),
    (re.compile(r"\bulak\."), ""),
    (re.compile(r"\bSELECT FROM\b"), "SELECT 1 FROM"),
    (re.compile(r"/\* (.+?) \*/"), r"\1"),
    (re.compile(r"\sFOR (NO KEY )?(UPDATE|SHARE)( OF \w+)?( SKIP LOCKED)?"), ""),
)


@cache
def translate(statement: str) -> str:
    """Write a statement of PostgreSQL as SQLite reads it."""
    for words, ours in _WORDS:
        statement = words.sub(ours, statement)
    return statement


class Session:
    """Runs shared statements on one connection (`ulak.store.sql.session.Session`)."""

    __slots__ = ("own",)

    def __init__(self, own: sqlite3.Connection) -> None:
        self.own = own

    def execute(self, statement: str, facts: Any = ()) -> None:
        self.rows(statement, facts)

    def rows(self, statement: str, facts: Any = ()) -> list[Row]:
        return self.own.execute(translate(statement), facts).fetchall()

    def row(self, statement: str, facts: Any = ()) -> Row | None:
        rows = self.rows(statement, facts)
        return rows[0] if rows else None

    def touch(self, statement: str, facts: Any = ()) -> int:
        return self.own.execute(translate(statement), facts).rowcount


class SharedTransaction:
    """A write that shared statements are part of (`ulak.store.sql.session.Transaction`)."""

    __slots__ = ("db", "own")

    def __init__(self, own: Transaction) -> None:
        self.own = own
        self.db = Session(own.db)

    @property
    def now(self) -> Instant:
        return self.own.now

    @property
    def made_due(self) -> bool:
        return self.own.made_due

    @made_due.setter
    def made_due(self, made_due: bool) -> None:
        self.own.made_due = made_due


def own(
    work: Callable[Concatenate[Transaction, P], T],
) -> Callable[Concatenate[SharedTransaction, P], T]:
    """Make what SQLite does in its own words part of a write."""

    def act(t: SharedTransaction, /, *args: P.args, **options: P.kwargs) -> T:
        return work(t.own, *args, **options)

    return act


def own_read(
    work: Callable[Concatenate[sqlite3.Connection, P], T],
) -> Callable[Concatenate[Session, P], T]:
    """Make what SQLite reads in its own words a read as any other."""

    def look(db: Session, /, *args: P.args, **options: P.kwargs) -> T:
        return work(db.own, *args, **options)

    return look


def shared(
    work: Callable[Concatenate[SharedTransaction, P], T],
) -> Callable[Concatenate[Transaction, P], T]:
    """Make what both databases do in the same words part of a write of SQLite's."""

    def act(t: Transaction, /, *args: P.args, **options: P.kwargs) -> T:
        return work(SharedTransaction(t), *args, **options)

    return act
