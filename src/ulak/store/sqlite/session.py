"""What a write of SQLite leaves, and the statements that both databases share."""

from __future__ import annotations

import re
import sqlite3
from collections.abc import Callable, Iterable, Sequence
from functools import cache
from itertools import groupby
from operator import itemgetter
from typing import Any, Concatenate, ParamSpec, TypeVar

from ulak.clock import Clock, Instant, Uptime
from ulak.core.change import proof_body
from ulak.core.delivery import make_delivery
from ulak.core.job import Event, JobRow, Result
from ulak.store.batches import FIRST_HASH, Link, linked
from ulak.store.protocol import outbox
from ulak.store.sql.reads import IN_ITS_MONTH, WITHOUT_DATE
from ulak.store.sql.session import Row
from ulak.store.sqlite.rows import (
    NULLABLE_NUMBER,
    PACKED_IDS,
    Batch,
    Spread,
    inserting,
    or_absent,
    pack,
)

_SHARED = (
    "kind", "from_state", "to_state", "actor", "code", "message", "details", "round", "attempt",
    "worker", "emitted",
)  # fmt: skip
_shared = itemgetter(*(Event._fields.index(name) for name in _SHARED))

INSERT_EVENTS = Spread(
    _SHARED,
    inserting(
        "events",
        {
            "job_id": "?",
            "seq": "?",
            "token": "?",
            "started_at": NULLABLE_NUMBER,
            "at": "?",
            "commit_id": "?",
        },
    ),
)
WRITE_RESULTS = Batch(
    "INSERT INTO results (job_id, round, stage, name, data) VALUES",
    "(?, ?, ?, ?, ?)",
    "ON CONFLICT (job_id, round, stage, name) DO UPDATE SET data = excluded.data",
)

ANY_PROOFS = "SELECT EXISTS (SELECT 1 FROM proof_heads)"
JOBS_WITH_PROOFS = f"SELECT job_id FROM proofs WHERE seq = 1 AND job_id IN {PACKED_IDS}"


def append_events(db: sqlite3.Connection, events: Iterable[Event]) -> None:
    """Write events; a number that the trail has already is refused by its key."""
    groups: dict[Row, list[Row]] = {}
    for event in events:
        line = (
            bytearray(event.job_id), event.seq, event.token, or_absent(event.started_at),
            event.at, bytearray(event.commit_id),
        )  # fmt: skip
        groups.setdefault(_shared(event), []).append(line)
    INSERT_EVENTS.write(db, groups)


def keep_results(db: sqlite3.Connection, results: Sequence[Result]) -> None:
    """Write results; a later one of the same name takes the place of the earlier."""
    rows = [(bytearray(r.job_id), r.round, r.stage, r.name, bytearray(r.data)) for r in results]
    WRITE_RESULTS.write(db, rows)


PROOF_HEAD = "SELECT +proof_id, +hash FROM main.proof_heads WHERE tenant = ?"
ADD_PROOF = """
    INSERT INTO main.proofs (tenant, proof_id, job_id, seq, body, hash) VALUES (?, ?, ?, ?, ?, ?)
"""
SET_PROOF_HEAD = """
    INSERT INTO main.proof_heads (tenant, proof_id, hash) VALUES (?, ?, ?)
    ON CONFLICT (tenant) DO UPDATE SET proof_id = excluded.proof_id, hash = excluded.hash
"""


def chain_proofs(db: sqlite3.Connection, links: Iterable[Link]) -> None:
    for tenant, own in groupby(sorted(links), key=itemgetter(0)):
        number, link = db.execute(PROOF_HEAD, (tenant,)).fetchone() or (0, FIRST_HASH)
        rows = [(tenant, *facts) for facts in linked(number, link, own)]
        db.executemany(ADD_PROOF, rows)
        db.execute(SET_PROOF_HEAD, (tenant, rows[-1][1], rows[-1][-1]))


FLOWS = "(SELECT group_concat(flow, ' ') FROM main.handlers WHERE flow IS NOT NULL)"
"""The flows that are followed, as one value: part of a statement that is run anyway."""


READ_FLOWS = f"SELECT {FLOWS}"
DELIVER = """
    INSERT INTO main.deliveries (
        job_id, seq, n, key, topic, data, at, handler, not_before, head
    )
    SELECT ?1, ?2, ?3, ?4, ?5, ?6, ?7, h.name, ?7,
        NOT EXISTS (
            SELECT 1 FROM main.deliveries AS d
            WHERE d.handler = h.name AND d.key = ?4 AND d.open = 1
        )
    FROM main.handlers AS h WHERE h.flow = ?5
"""


def read_flows(db: sqlite3.Connection) -> frozenset[str]:
    return outbox.read_flows(db.execute(READ_FLOWS).fetchone()[0])


def deliver(db: sqlite3.Connection, events: Iterable[tuple[str, Event]]) -> None:
    db.executemany(DELIVER, [make_delivery(flow, event) for flow, event in events])


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
            self.followed = read_flows(self.db)
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
        append_events(self.db, events)
        self.follow((job.flow, [event]) for job, event in written)
        if not self.db.execute(ANY_PROOFS).fetchone()[0]:
            return
        ids = pack(event.job_id for event in events)
        found = self.db.execute(JOBS_WITH_PROOFS, (ids,)).fetchall()
        proven = {job_id for (job_id,) in found}
        for job, event in written:
            if event.job_id in proven:
                self.prove(job.tenant, [event], [proof_body(event)])

    def finish(self) -> None:
        if self.followed_events:
            deliver(self.db, self.followed_events)
        for key, jobs in self.counts.items():
            if jobs:
                self.db.execute(APPEND_DELTA, (*key, jobs))
        if self.links:
            chain_proofs(self.db, self.links)

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
