"""Connections that are lent to a program for a transaction, and used again.

None of them is one that the store writes with: it is the program's for a while, with psycopg's
own ways to read and write values. There are as many as were lent at once.
"""

from __future__ import annotations

import asyncio
import threading
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TypeVar

import psycopg
from psycopg.pq import TransactionStatus
from psycopg.rows import tuple_row

from ulak.errors import StoreError
from ulak.store.postgres.caller import own_cursor
from ulak.store.postgres.connections import (
    FOREIGN,
    Connections,
    Session,
    is_rolled_back,
    translated,
)
from ulak.store.postgres.values import Row

T = TypeVar("T")

# One moment for every statement: whoever reads a list and its head wants them to fit.
BEGIN_READING = "BEGIN ISOLATION LEVEL REPEATABLE READ READ ONLY"


class LentConnections:
    """Lends connections; what was set on one is forgotten before the next has it."""

    def __init__(self, connections: Connections, *, prepare: bool) -> None:
        self._connections = connections
        self._prepare = prepare
        self._lock = threading.Lock()
        self._idle: list[Session] = []
        self._closed = False

    def lend(self, begin: Callable[[Session], T]) -> T:
        """Begin a transaction on a connection; whoever gets it calls `give_back` in the end.

        Raises:
            StoreError: the server does not answer, or it refuses to begin.
        """
        with self._lock:
            if self._closed:
                raise StoreError("this store is closed")
            session = self._idle.pop() if self._idle else None
        try:
            if session is not None:
                try:
                    return self._begin(begin, session)
                except (psycopg.OperationalError, psycopg.InterfaceError):
                    if not session.connection.closed:
                        raise
                    # It was lost while it lay here: so were the others, most likely.
                    self._close_idle()
            return self._begin(begin, self._new_session())
        except FOREIGN as error:
            raise translated(error) from error

    async def take(self, *, new: bool = False) -> Session:
        """Lend a connection to code on an event loop, for it to begin a transaction; `give_back`
        or `drop` it. With `new`, none that lay here: the last one was lost. Whoever is cancelled
        meanwhile has none to give back.

        Raises:
            StoreError: the server does not answer.
        """
        with self._lock:
            if self._closed:
                raise StoreError("this store is closed")
            session = self._idle.pop() if self._idle and not new else None
        return await self._connect_aside() if session is None else session

    def drop(self, session: Session) -> bool:
        """Give up a connection; tell whether it was lost, and the idle ones most likely too."""
        was_lost = session.connection.closed
        session.connection.close()
        if was_lost:
            self._close_idle()
        return was_lost

    @contextmanager
    def reading(self) -> Iterator[psycopg.Connection[Row]]:
        """Lend a connection in a transaction that only reads, for as long as the block lasts."""

        def begin(session: Session) -> Session:
            session.pipeline.stop_preparing()
            session.plainly(BEGIN_READING)
            return session

        session = self.lend(begin)
        try:
            yield session.connection
        finally:
            if not is_rolled_back(session):
                session.connection.close()
            self.give_back(session)

    def _begin(self, begin: Callable[[Session], T], session: Session) -> T:
        try:
            return begin(session)
        except BaseException:
            if is_rolled_back(session):
                self.give_back(session)
            else:
                session.connection.close()
            raise

    async def _connect_aside(self) -> Session:
        """Open a connection in a thread, which cannot be stopped: what it brings to nobody is
        kept for the next."""
        brought: deque[Session] = deque()
        has_left = threading.Event()

        def connect() -> None:
            brought.append(self._new_session())
            if has_left.is_set():
                self._keep(brought)

        try:
            await asyncio.to_thread(connect)
        except asyncio.CancelledError:
            # The thread brings and then looks who has left, here it is the other way round: one
            # of the two sees the other, and where both do only one takes it.
            has_left.set()
            self._keep(brought)
            raise
        return brought.pop()

    def _keep(self, brought: deque[Session]) -> None:
        try:
            session = brought.pop()
        except IndexError:
            return
        self.give_back(session)

    def _new_session(self) -> Session:
        connection = self._connections.connect_plainly()
        # As every transaction of the store: a change must see what was committed before it.
        connection.isolation_level = psycopg.IsolationLevel.READ_COMMITTED
        connection.read_only = False
        cursor = own_cursor(psycopg.Cursor(connection, row_factory=tuple_row))
        return Session(connection, prepare=self._prepare, cursor=cursor)

    def give_back(self, session: Session) -> None:
        """Keep a connection for the next, if its transaction has ended."""
        connection = session.connection
        idle = connection.info.transaction_status == TransactionStatus.IDLE
        with self._lock:
            if idle and not self._closed:
                # What a program has set here would surprise the next.
                connection.row_factory = tuple_row
                connection.cursor_factory = psycopg.Cursor
                self._idle.append(session)
                return
        connection.close()

    def _close_idle(self) -> None:
        with self._lock:
            idle, self._idle = self._idle, []
        for session in idle:
            session.connection.close()

    def close(self) -> None:
        """Close what is idle now and what is in use when it comes back."""
        with self._lock:
            self._closed = True
        self._close_idle()
