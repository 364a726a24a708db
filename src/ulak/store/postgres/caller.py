"""A job written in a caller's own transaction: his connection, his commit, plain statements.

How the caller has set up his connection must not matter: statements run on a cursor made here, with
its own row factory and its own ways to write and read values.
"""

from __future__ import annotations

from typing import Any

import psycopg
from psycopg.pq import TransactionStatus
from psycopg.rows import tuple_row

from ulak.clock import Instant
from ulak.core.admission import Ask, stopped
from ulak.core.job import JobRow, NewJob
from ulak.errors import BadInput, Contended, NotSupported
from ulak.store.batches import Key, key_of
from ulak.store.caller import Driver, Execute, Rows, Steps
from ulak.store.postgres import control, intake
from ulak.store.postgres.values import Ids, Numbers, Texts, as_arrays, own_cursor
from ulak.store.protocol import Added
from ulak.store.sql.session import Id, Row, as_job

KINDS = (
    "a psycopg.Connection, a psycopg.AsyncConnection, or a Connection, Session, AsyncConnection or "
    "AsyncSession of SQLAlchemy over psycopg"
)

# The server's own number, which a restart and a failover keep, and that of the database in it.
WHERE_WE_ARE = """
    SELECT (SELECT system_identifier::text FROM pg_control_system()), oid::bigint
    FROM pg_database WHERE datname = current_database()
"""
ELSEWHERE = (
    "this connection is to another database than the jobs are in: a transaction is of one "
    "database; connect to that one and keep your tables in it"
)
TAKE_OVER = f"{intake.TAKE_OVER} RETURNING tenant"


def add_steps(here: Row | None, job: NewJob, now: Instant, ask: Ask | None) -> Steps[Added]:
    """Store a job, or answer the one that holds its key.

    In a READ COMMITTED transaction a duplicate is no error of the database's, whoever is writing
    the same key at this moment; the row of a key that is held is never locked.
    """
    row = job.row
    if job.proof is not None:
        raise NotSupported(
            f"{row.flow} has proofs, and submit(connection=...) cannot chain one on PostgreSQL: "
            "every other job of the tenant would wait until your transaction ends; leave "
            "connection= out, commit your own rows first and then submit with a dedup_key"
        )
    found: Rows = yield WHERE_WE_ARE, ()
    if found != [here]:
        raise BadInput(ELSEWHERE)
    added = yield from _add_steps(job, now, ask)
    if job.owner:
        yield intake.OWN, intake.bind_owners(now, [(added.row.id, job.owner)])
    return added


def _add_steps(job: NewJob, now: Instant, ask: Ask | None) -> Steps[Added]:
    row = job.row
    stop = yield from control.find_steps(row.flow, row.tenant)
    if stop is not None or ask is not None:
        # Nothing may be written before it is refused, so that the key is only looked at.
        held = yield from _find_holder(row, now)
        if held is not None:
            return Added(held, False)
        if stop is not None:
            raise stopped(stop)
        if ask is not None:
            ask.judge((yield from control.waiting_steps(ask.waiting)))
    key = key_of(row)
    if key is not None:
        first = yield from _take_key(job, key, now)
        if first is not None:
            return Added(first, False)
    yield intake.INSERT, intake.bind([job])
    return Added(row, True)


def _find_holder(row: JobRow, now: Instant) -> Steps[JobRow | None]:
    key = key_of(row)
    if key is None:
        return None
    held: Rows = yield intake.HOLDERS, as_arrays([key], Texts, Texts, Texts)
    return _read_holder(held[0], now) if held else None


def _read_holder(held: Row, now: Instant) -> JobRow | None:
    """Return the job that holds a key, unless the key has expired or the job is gone."""
    expires_at, first = held[4], held[5:]
    is_held = first[0] is not None and (expires_at is None or expires_at > now)
    return as_job(first) if is_held else None


def _take_key(job: NewJob, key: Key, now: Instant) -> Steps[Any]:
    """Take a key that is free or has expired, or answer the job that holds it."""
    wish = (*key, job.row.id, job.key_expires_at)
    for _ in range(intake.MOST_ROUNDS):
        taken: Rows = yield intake.TAKE_FREE, as_arrays([wish], Texts, Texts, Texts, Ids, Numbers)
        if taken:
            return None
        held: Rows = yield intake.HOLDERS, as_arrays([key], Texts, Texts, Texts)
        if not held:
            continue  # freed in between
        first = _read_holder(held[0], now)
        if first is not None:
            return first
        over: Rows = yield TAKE_OVER, (Id(job.row.id), job.key_expires_at, *key, Id(held[0][3]))
        if over:
            return None
    raise Contended(f"the dedup key {key[2]!r} changes hands too fast; try again")


def find_driver(connection: object) -> Driver | None:
    if isinstance(connection, psycopg.Connection):
        return Driver(False, _execute, _check)
    if isinstance(connection, psycopg.AsyncConnection):
        return Driver(True, _execute_async, _check)
    return None


def _check(connection: Any) -> None:
    status = connection.info.transaction_status
    if status == TransactionStatus.INERROR:
        raise BadInput("the transaction of this connection has failed; roll it back first")
    if status == TransactionStatus.IDLE and connection.autocommit:
        raise BadInput(
            "this connection commits each statement by itself, so that the job would not be part "
            "of a transaction of yours; begin one (with connection.transaction(): ...), or "
            "connect without autocommit"
        )
    if connection.info.encoding != "utf-8":
        raise BadInput(
            f"this connection speaks {connection.info.encoding}, in which not every job can be "
            "written; connect with client_encoding=utf8"
        )


def _execute(connection: psycopg.Connection[Any], statement: str, facts: Any) -> Rows:
    with own_cursor(psycopg.Cursor(connection, row_factory=tuple_row)) as cursor:
        cursor.execute(statement, facts)
        rows = Rows(cursor.fetchall() if cursor.description else ())
        rows.touched = cursor.rowcount
        return rows


async def _execute_async(
    connection: psycopg.AsyncConnection[Any], statement: str, facts: Any
) -> Rows:
    async with own_cursor(psycopg.AsyncCursor(connection, row_factory=tuple_row)) as cursor:
        await cursor.execute(statement, facts)
        rows = Rows(await cursor.fetchall() if cursor.description else ())
        rows.touched = cursor.rowcount
        return rows


class Borrowed:
    """As much of a session as the verbs of the store use, over a caller's connection."""

    def __init__(self, here: Row | None, execute: Execute) -> None:
        if execute(WHERE_WE_ARE, ()) != [here]:
            raise BadInput(ELSEWHERE)
        self._execute = execute

    def rows(self, statement: str, facts: Any = ()) -> Rows:
        return self._execute(statement, facts)

    def execute(self, statement: str, facts: Any = ()) -> None:
        self.rows(statement, facts)

    def row(self, statement: str, facts: Any = ()) -> Row | None:
        rows = self.rows(statement, facts)
        return rows[0] if rows else None

    def touch(self, statement: str, facts: Any = ()) -> int:
        return self.rows(statement, facts).touched
