"""A job written in a caller's own transaction: his connection, his commit, plain statements.

How the caller has set up his connection must not matter. Rows are read by a cursor without his
row factory; texts are read as bytes, which no text factory touches; every value read is an
expression, which has no declared type that a converter could be registered for; and tables are
named with `main`, so that no temporary table of his stands before them.
"""

from __future__ import annotations

import os
import sqlite3
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from ulak.clock import Instant
from ulak.core.admission import Ask, stopped
from ulak.core.delivery import make_delivery
from ulak.core.job import Event, JobRow, NewJob
from ulak.errors import BadInput
from ulak.store import batches
from ulak.store.caller import Driver, Execute, Rows, Steps, Values, is_of
from ulak.store.protocol import Added
from ulak.store.sql.session import JOB_COLUMNS, as_job
from ulak.store.sqlite import intake
from ulak.store.sqlite.control import TAKE_KEY
from ulak.store.sqlite.session import ADD_PROOF, DELIVER, PROOF_HEAD, SET_PROOF_HEAD
from ulak.store.sqlite.writer import LockedConnection, connect

KINDS = (
    "a sqlite3.Connection, an aiosqlite.Connection, or a Connection, Session, AsyncConnection or "
    "AsyncSession of SQLAlchemy over one of them"
)

NOT_A_WRITE = (
    "on SQLite a transaction that the engine writes in must have begun as a write: begin it with "
    '"BEGIN IMMEDIATE", or write a row of yours first (a Session: flush() first)'
)

FILE = "SELECT CAST(file AS BLOB) FROM pragma_database_list WHERE name = 'main'"
HIDDEN = """
    SELECT CAST(name AS BLOB) FROM temp.sqlite_master
    WHERE name IN (SELECT name FROM main.sqlite_master) LIMIT 1
"""
PROBE = "SELECT id, seq, state FROM main.jobs LIMIT 1"
HOLDER = "SELECT +job_id, +expires_at FROM main.dedup WHERE tenant = ? AND flow = ? AND key = ?"
FIND_JOB = "SELECT {} FROM main.jobs WHERE id = ?".format(
    ", ".join(
        f"CASE typeof({name}) WHEN 'text' THEN CAST({name} AS BLOB) ELSE {name} END"
        for name in JobRow._fields
    )
)


def _insert(table: str, columns: str) -> str:
    places = ", ".join("?" for _ in columns.split(", "))
    return f"INSERT INTO main.{table} ({columns}) VALUES ({places})"


INSERT_PAYLOAD = _insert("payloads", "job_id, data, schema, trace")
INSERT_EVENT = _insert("events", ", ".join(Event._fields))
APPEND_DELTA = _insert("count_deltas", "flow, flow_version, state, role, jobs")
INSERT_JOB = _insert("jobs", JOB_COLUMNS)
OWN = f"{_insert('owners', 'job_id, owner, at')} ON CONFLICT DO NOTHING"


def add_steps(callers: Callers, job: NewJob, now: Instant, ask: Ask | None) -> Steps[Added]:
    """Store a job, or answer the one that holds its key.

    The row of the job is written last. A caller may go on and commit after an error half way
    through; what is stored then belongs to no job, and no worker finds a job that lacks its half.
    """
    found: Rows = yield FILE, ()
    callers.must_be_theirs(found[0][0])
    row = job.row
    if row.dedup_key is not None:
        held: Rows = yield HOLDER, (row.tenant, row.flow, row.dedup_key)
        if held and (held[0][1] is None or held[0][1] > now):
            first: Rows = yield FIND_JOB, (held[0][0],)
            if first:
                if job.owner:
                    yield from _write(OWN, (held[0][0], job.owner, now))
                return Added(_read_job(first[0]), False)
    stop = yield from intake.find_steps(row.flow, row.tenant)
    if stop is not None:
        raise stopped(stop)
    if ask is not None:
        ask.judge((yield from intake.waiting_steps(ask.waiting)))
    yield from _write(INSERT_PAYLOAD, (row.id, *job.payload))
    yield INSERT_EVENT, tuple(job.event)
    if job.owner:
        yield OWN, (row.id, job.owner, now)
    if row.dedup_key is not None:
        yield TAKE_KEY, (row.tenant, row.flow, row.dedup_key, row.id, job.key_expires_at)
    if job.proof is not None:
        yield from _prove(job, job.proof)
    yield APPEND_DELTA, (row.flow, row.flow_version, row.state, row.role, 1)
    yield DELIVER, tuple(make_delivery(row.flow, job.event))
    yield INSERT_JOB, tuple(row)
    return Added(row, True)


def _write(statement: str, values: Values) -> Steps[None]:
    """Write the first thing: it finds out whether the caller's transaction may."""
    try:
        yield statement, values
    except sqlite3.OperationalError as error:
        if error.sqlite_errorcode & 0xFF == sqlite3.SQLITE_BUSY:
            raise BadInput(NOT_A_WRITE) from error
        raise


def _prove(job: NewJob, body: bytes) -> Steps[None]:
    tenant = job.row.tenant
    heads: Rows = yield PROOF_HEAD, (tenant,)
    number, last = heads[0] if heads else (0, batches.FIRST_HASH)
    link = (tenant, job.row.id, job.event.seq, body)
    for proof in batches.linked(number, last, [link]):
        yield ADD_PROOF, (tenant, *proof)
        yield SET_PROOF_HEAD, (tenant, proof[0], proof[-1])


def _read_job(values: tuple[Any, ...]) -> JobRow:
    job_id, *rest = values
    return as_job((job_id, *(v.decode() if isinstance(v, bytes) else v for v in rest)))


class Callers(LockedConnection):
    """Knows the callers' connections to one file, and whether somebody is writing to it."""

    def __init__(self, path: Path) -> None:
        super().__init__()
        self._path = path

    def find_driver(self, connection: object) -> Driver | None:
        """Return how a connection is written with, or None when it is not one of SQLite's."""
        if isinstance(connection, sqlite3.Connection):
            return Driver(False, _execute, _check)
        if is_of(connection, "aiosqlite", "Connection"):
            return Driver(True, _execute_async, _check)
        return None

    def must_be_theirs(self, name: bytes | None) -> None:
        """Refuse a transaction on another file, and one that has not begun as a write."""
        there = os.fsdecode(name or b"")
        if not _is_same_file(there, self._path):
            raise BadInput(
                f"this connection is to {there or 'a database in memory'} and the jobs are in "
                f"{self._path}: a transaction is of one file; connect to that one"
            )
        if not self._is_being_written():
            raise BadInput(NOT_A_WRITE)

    def _is_being_written(self) -> bool:
        """Tell whether somebody has begun a write.

        Python's driver does not tell whether a transaction is one. If nobody writes, the caller
        does not. If somebody does, and it is not he, his first statement will find that out.
        """
        with self._lock:
            if self._db is None:
                self._db = connect(self._path)
                self._db.execute("PRAGMA busy_timeout = 0").fetchone()
            try:
                self._db.execute("BEGIN IMMEDIATE")
            except sqlite3.OperationalError as error:
                if error.sqlite_errorcode & 0xFF == sqlite3.SQLITE_BUSY:
                    return True
                raise
            self._db.execute("ROLLBACK")
            return False


def _check(connection: Any) -> None:
    if not connection.in_transaction:
        raise BadInput(NOT_A_WRITE)


def _is_same_file(name: str, path: Path) -> bool:
    try:
        return os.path.samefile(name, path)
    except OSError:
        return False


def _execute(connection: sqlite3.Connection, statement: str, values: Values) -> Rows:
    # Made by hand: the connection's own would have its row factory, or be a class of the caller's.
    cursor = sqlite3.Cursor(connection)
    try:
        rows = Rows(cursor.execute(statement, values).fetchall())
        rows.touched = cursor.rowcount
        return rows
    finally:
        cursor.close()


async def _execute_async(connection: Any, statement: str, values: Values) -> Rows:
    async with connection.cursor() as cursor:
        cursor.row_factory = None
        await cursor.execute(statement, values)
        rows = Rows(await cursor.fetchall())
        rows.touched = cursor.rowcount
        return rows


class Borrowed:
    """As much of a connection as the verbs of the store use, over the caller's."""

    def __init__(self, execute: Execute) -> None:
        self._execute = execute

    def execute(self, statement: str, values: Values = ()) -> Fetched:
        return Fetched(self._execute(statement, values))

    def executemany(self, statement: str, many: Iterable[Values]) -> None:
        for values in many:
            self._execute(statement, values)


class Fetched:
    """The rows of one statement, read as those of a cursor."""

    def __init__(self, rows: Rows) -> None:
        self._rows = rows
        self.rowcount = rows.touched

    def fetchall(self) -> Rows:
        return self._rows

    def fetchone(self) -> tuple[Any, ...] | None:
        return self._rows[0] if self._rows else None

    def __iter__(self) -> Iterator[tuple[Any, ...]]:
        return iter(self._rows)


@contextmanager
def borrow(callers: Callers, connection: Any, execute: Execute) -> Iterator[Borrowed]:
    """Lend a caller's connection to the verbs of the store; raise `BadInput` if that cannot be."""
    callers.must_be_theirs(execute(FILE, ())[0][0])
    if hidden := execute(HIDDEN, ()):
        raise BadInput(
            f"a temporary table of yours, {hidden[0][0].decode()}, stands before one of the jobs; "
            "give it another name"
        )
    texts, connection.text_factory = connection.text_factory, str
    try:
        # What Python has registered to read a type of column by cannot be told to wait.
        for row in execute(PROBE, ()):
            if [type(value) for value in row] != [bytes, int, str]:
                raise BadInput(
                    "this connection reads INTEGER, TEXT or BLOB by a converter of yours, so that "
                    "a job cannot be read with it; connect without detect_types"
                )
        yield Borrowed(execute)
    except sqlite3.OperationalError as error:
        if error.sqlite_errorcode & 0xFF == sqlite3.SQLITE_BUSY:
            raise BadInput(NOT_A_WRITE) from error
        raise
    finally:
        connection.text_factory = texts
