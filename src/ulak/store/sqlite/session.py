"""What a write sees and leaves, and the statements that both databases share."""

from __future__ import annotations

import re
import sqlite3
from collections.abc import Callable, Iterable, Sequence
from functools import cache
from typing import Any, Concatenate, ParamSpec, TypeVar

from ulak.clock import Clock, Instant, Uptime
from ulak.core.draft import proof_body
from ulak.core.job import Event, JobRow
from ulak.store.batches import Link
from ulak.store.sql.reads import IN_ITS_MONTH, WITHOUT_DATE
from ulak.store.sql.session import Row
from ulak.store.sqlite import trail
from ulak.store.sqlite.rows import pack

CountKey = tuple[str, int, str, str]
APPEND_DELTA = (
    "INSERT INTO count_deltas (flow, flow_version, state, role, jobs) VALUES (?, ?, ?, ?, ?)"
)


class Transaction:
    """What one write sees and leaves: the connection, the time, what it counted and proves."""

    __slots__ = (
        "_clock", "counts", "db", "followed", "followed_events", "links", "made_due", "now",
    )  # fmt: skip

    def __init__(self, db: sqlite3.Connection, clock: Clock) -> None:
        self.db = db
        self.now: Instant = clock.now()
        self._clock = clock
        self.counts: dict[CountKey, int] = {}
        self.links: list[Link] = []
        self.followed: frozenset[str] | None = None
        """The flows that are followed, once it has looked."""
        self.followed_events: list[tuple[str, Event]] = []
        self.made_due = False

    def uptime(self) -> Uptime:
        return self._clock.uptime()

    def count(self, key: CountKey, jobs: int) -> None:
        self.counts[key] = self.counts.get(key, 0) + jobs

    def prove(self, tenant: str, events: Iterable[Event], bodies: Iterable[bytes]) -> None:
        """Chain these events when everything else is written: heads of chains are taken last."""
        for event, body in zip(events, bodies, strict=False):
            self.links.append((tenant, event.job_id, event.seq, body))

    def follow(self, written: Iterable[tuple[str, Iterable[Event]]]) -> None:
        """Let the followers of these flows have the events of each, which are written."""
        if self.followed is None:
            self.followed = trail.read_flows(self.db)
        if self.followed:
            for flow, events in written:
                if flow in self.followed:
                    self.followed_events += [(flow, event) for event in events]
                    self.made_due = True

    def append_own(self, written: Sequence[tuple[JobRow, Event]]) -> None:
        """Write events that no change brought, each with its job, and prove those of proven jobs.

        A store knows no flows. A job whose first event has a proof is of a flow with proofs.
        """
        if not written:
            return
        events = [event for _, event in written]
        trail.append(self.db, events)
        self.follow((job.flow, [event]) for job, event in written)
        if not self.db.execute(trail.ANY_PROOFS).fetchone()[0]:
            return
        ids = pack(event.job_id for event in events)
        found = self.db.execute(trail.JOBS_WITH_PROOFS, (ids,)).fetchall()
        proven = {job_id for (job_id,) in found}
        for job, event in written:
            if event.job_id in proven:
                self.prove(job.tenant, [event], [proof_body(event)])

    def finish(self) -> None:
        if self.followed_events:
            trail.deliver(self.db, self.followed_events)
        for key, jobs in self.counts.items():
            if jobs:
                self.db.execute(APPEND_DELTA, (*key, jobs))
        if self.links:
            trail.chain(self.db, self.links)

    def start_over(self) -> None:
        """Take back everything and begin again: the whole batch did not go through as one."""
        if self.db.in_transaction:
            self.db.execute("ROLLBACK")
        self.db.execute("BEGIN IMMEDIATE")
        self.counts.clear()
        self.links.clear()
        self.followed = None
        self.followed_events.clear()
        self.made_due = False


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
