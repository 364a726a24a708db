"""A stage's own transaction: rows of the program and the stage's move are one commit.

Its connection is not one of those that the store writes with: it is the program's for as long as
the stage runs, with psycopg's own ways to read and write values. There are as many as stages ran at
once; they are kept for the next.
"""

from __future__ import annotations

import threading
from collections.abc import Callable

import psycopg
from psycopg.pq import TransactionStatus
from psycopg.rows import tuple_row

from ulak.clock import Clock
from ulak.core.change import Change, Committed, Receipt
from ulak.errors import BadInput, StoreError
from ulak.store import faults
from ulak.store.postgres import commits
from ulak.store.postgres.caller import own_cursor
from ulak.store.postgres.connections import (
    IN_ORDER,
    Connections,
    Session,
    Transaction,
    settings,
    translated,
)
from ulak.store.postgres.values import Row

Connection = psycopg.Connection[Row]

ENDED_BY_HAND = (
    "the stage has ended its transaction itself; leave COMMIT, ROLLBACK and close() to the worker"
)
SWALLOWED = (
    "a statement of the stage failed, and its transaction with it: what was written is gone; let "
    "the error out, or run what may fail inside `with run.connection.transaction():`"
)


class StageConnections:
    """Begins transactions for stages, on connections that are used again."""

    def __init__(self, connections: Connections, *, clock: Clock, prepare: bool) -> None:
        self._connections = connections
        self._clock = clock
        self._prepare = prepare
        self._lock = threading.Lock()
        self._idle: list[Connection] = []
        self._closed = False

    def begin(self) -> PostgresStage:
        """Begin a transaction.

        Raises:
            StoreError: the server does not answer.
        """
        with self._lock:
            if self._closed:
                raise StoreError("this store is closed")
            connection = self._idle.pop() if self._idle else None
        if connection is not None:
            try:
                return self._begin_on(connection)
            except psycopg.Error:
                # It was lost while it lay here: so were the others, most likely.
                connection.close()
                self._close_idle()
        connection = self._connections.connect_plainly()
        # As every transaction of the store: a change must see what was committed before it.
        connection.isolation_level = psycopg.IsolationLevel.READ_COMMITTED
        connection.read_only = False
        try:
            return self._begin_on(connection)
        except psycopg.Error as error:
            connection.close()
            raise translated(error) from error

    def _begin_on(self, connection: Connection) -> PostgresStage:
        session = Session(
            connection,
            prepare=self._prepare,
            cursor=own_cursor(psycopg.Cursor(connection, row_factory=tuple_row)),
        )
        # Inside such a block psycopg refuses commit() and rollback() by hand.
        block = psycopg.Transaction(connection)
        block.__enter__()
        return PostgresStage(session, block, self._clock, self._connections.tell, self._give_back)

    def _give_back(self, connection: Connection) -> None:
        idle = connection.info.transaction_status == TransactionStatus.IDLE
        with self._lock:
            if idle and not self._closed:
                # What a stage has set here would surprise the next.
                connection.row_factory = tuple_row
                connection.cursor_factory = psycopg.Cursor
                self._idle.append(connection)
                return
        connection.close()

    def _close_idle(self) -> None:
        with self._lock:
            idle, self._idle = self._idle, []
        for connection in idle:
            connection.close()

    def close(self) -> None:
        """Close what is idle now and what is in use when it comes back."""
        with self._lock:
            self._closed = True
        self._close_idle()


class PostgresStage:
    """One transaction of a stage (`ulak.store.stage.StageTransaction`)."""

    def __init__(
        self,
        session: Session,
        block: psycopg.Transaction,
        clock: Clock,
        tell: Callable[[Transaction], None],
        give_back: Callable[[Connection], None],
    ) -> None:
        self.connection = session.connection
        self._session = session
        self._block = block
        self._clock = clock
        self._tell = tell
        self._give_back = give_back
        self._is_over = False

    def commit(self, change: Change) -> Receipt:
        points = faults.POINTS["commit"]
        faults.point(points.before)
        try:
            self._must_be_open()
            transaction, receipt = self._write(change)
            if not isinstance(receipt, Committed):
                return receipt
            faults.point(points.inside)
            self._finish()
        finally:
            self.roll_back()
        faults.point(points.after)
        self._tell(transaction)
        return receipt

    def roll_back(self) -> None:
        if self._is_over:
            return
        self._is_over = True
        undo = psycopg.Rollback(self._block)
        try:
            self._block.__exit__(type(undo), undo, None)
        except psycopg.Error:
            # The stage has left a block of its own open; the server takes everything back.
            self.connection.close()
        self._give_back(self.connection)

    def _must_be_open(self) -> None:
        status = self.connection.info.transaction_status
        if self.connection.broken:
            raise StoreError("the connection of a stage was lost")
        if status == TransactionStatus.INERROR:
            raise BadInput(SWALLOWED)
        if status != TransactionStatus.INTRANS:
            raise BadInput(ENDED_BY_HAND)

    def _write(self, change: Change) -> tuple[Transaction, Receipt]:
        try:
            self._session.execute(f"SELECT {settings(IN_ORDER)}")
            transaction = Transaction(self._session, self._clock)
            (receipt,) = commits.commit(transaction, [change])
            if isinstance(receipt, Committed):
                transaction.finish()
        except (psycopg.Error, OverflowError, UnicodeEncodeError) as error:
            raise translated(error) from error
        return transaction, receipt

    def _finish(self) -> None:
        """Commit. What is refused only now is something that the stage wrote."""
        self._is_over = True
        try:
            self._block.__exit__(None, None, None)
        except psycopg.OperationalError as error:
            raise translated(error) from error
        finally:
            self._give_back(self.connection)
