"""Connections: those that the store writes and reads with, and those that it lends."""

from __future__ import annotations

import asyncio
import os
import random
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from functools import partial
from typing import TYPE_CHECKING, TypeVar
from weakref import WeakSet

import psycopg
from psycopg import errors
from psycopg.conninfo import conninfo_to_dict, make_conninfo
from psycopg.rows import tuple_row

from ulak.clock import Clock
from ulak.errors import StoreError
from ulak.store import faults
from ulak.store.postgres import timeouts, values
from ulak.store.postgres.session import (
    BEGIN,
    FOREIGN,
    IDLE,
    IN_ORDER,
    LOCK,
    MOST_IDLE_MS,
    PLAIN,
    TRANSLATING,
    Session,
    Transaction,
    change_settings,
    first_line,
    is_refusal,
    is_rolled_back,
    settings,
    translated,
)
from ulak.store.postgres.timeouts import Address, Probes, TimedConnection
from ulak.store.processes import StoreAway, Watchers, WouldWait, get_deadline
from ulak.store.sql.session import Row

if TYPE_CHECKING:
    from ulak.store.postgres.listener import Listener

T = TypeVar("T")


# A guess at how many threads of one process talk to the database at once: the worker's five, and
# requests of a web application. Whoever finds none free waits for one.
MOST_CONNECTIONS = 20
# One that a rare crowd has needed is given back to the server: each takes it some ten megabytes.
LONGEST_UNUSED_S = 300.0

# How long a submit waits for a key, and a commit for a row, that a transaction of somebody else
# holds, before the others go on without that job. Ours hold one for a few milliseconds.
SUBMIT_PATIENCE_MS = 100
COMMIT_PATIENCE_MS = 2000
# Whoever has waited in vain tries the parts of its batch next, and later the blocked job again:
# for a while nobody waits that long. A batch of 500 has nine halves that the blocked job is in.
WARY_PATIENCE_MS = 20
WARY_FOR_S = 3.0

# After a failed attempt to connect, nobody tries again before a part of this has passed, drawn at
# random: a hundred workers must not knock at once when a server comes back.
LONGEST_PAUSE_S = 0.2

# How often psycopg runs a statement of the program before it prepares it: its own default.
PREPARE_AFTER = 5
# More statements than the store has: none is prepared twice.
MOST_PREPARED = 500
# How often a transaction is tried when others get in its way; each try is a draw.
MOST_TRIES = 8

# The last is a statement that was prepared and is no more: it is sent in full the next time.
_IN_THE_WAY = (errors.SerializationFailure, errors.DeadlockDetected, errors.InvalidSqlStatementName)

# One moment for every statement: whoever reads a list and its head wants them to fit.
BEGIN_READING = "BEGIN ISOLATION LEVEL REPEATABLE READ READ ONLY"


class _Taken:
    """A session in use, given back at the end; a generator would cost a microsecond more."""

    __slots__ = ("_pool", "_session", "_urgent")

    def __init__(self, pool: Connections, session: Session, urgent: bool) -> None:
        self._pool = pool
        self._session = session
        self._urgent = urgent

    def __enter__(self) -> Session:
        return self._session

    def __exit__(self, _: object, error: BaseException | None, __: object) -> None:
        try:
            # What is open is taken back: by the server when the connection is lost or given up.
            if error is not None and not is_rolled_back(self._session):
                self._session.connection.close()
        finally:
            self._pool.give_back(self._session, self._urgent)


class Connections:
    """Every connection of this process but the listener's."""

    def __init__(
        self, conninfo: str, *, clock: Clock, prepare: bool, most: int = MOST_CONNECTIONS
    ) -> None:
        self._conninfo = conninfo
        self._clock = clock
        self._prepare = prepare
        self._idle: list[Session] = []
        self._changed = threading.Condition()
        self._free = most
        self._closed = False
        self._not_before = 0.0
        self._wary_until: dict[str, float] = {}
        self._draw = random.Random()  # noqa: S311 - spreads reconnects, decides nothing else
        self._rings: Sequence[Callable[[], None]] = ()
        self._listener: Listener | None = None
        self._watchers = Watchers()
        self._probes = Probes(self._open)
        self.lent = LentConnections(self, prepare=prepare)
        self._every: WeakSet[psycopg.Connection[Row]] = WeakSet()

    def tell_by(
        self, listener: Listener, watchers: Watchers, rings: Sequence[Callable[[], None]]
    ) -> None:
        self._listener, self._watchers, self._rings = listener, watchers, rings

    def run(
        self,
        kind: str,
        work: Callable[[Transaction], T],
        *,
        in_order: bool = False,
        patience_ms: int | None = None,
        urgent: bool = False,
    ) -> T:
        """Run `work` in a transaction and commit it; whatever goes wrong, nothing is written.

        A transaction that others got in the way of is tried again, so `work` may be called
        several times. It waits no longer than its patience for what others hold. With `in_order`
        batches are joined to their rows as they come, by index.

        Raises:
            AlreadyThere: a row of this key is stored.
            WriteRefused: the data cannot be stored.
            Contended: somebody else holds what it needs, for longer than it may wait.
            StoreError: the database could not write, or it is not known whether it has.
        """
        points = faults.POINTS[kind]
        faults.point(points.before)
        chosen: dict[str, object] = dict(IN_ORDER) if in_order else {}
        if not self._prepare:
            chosen |= {IDLE: MOST_IDLE_MS, LOCK: timeouts.LOCK_TIMEOUT_MS}
        if patience_ms is not None:
            if time.monotonic() < self._wary_until.get(kind, 0.0):
                patience_ms = WARY_PATIENCE_MS
            chosen[LOCK] = patience_ms
        for tries in range(1, MOST_TRIES + 1):
            try:
                with _Taken(self, self.take(chosen, urgent), urgent) as db:
                    longest = time.monotonic() + timeouts.LONGEST_TRANSACTION_S
                    db.connection.give_up_at = min(longest, get_deadline() or longest)
                    is_set = db.chosen == chosen
                    db.chosen = None  # a rollback takes back what was set
                    with db.pipeline:
                        db.execute(BEGIN)
                        if not self._prepare:
                            db.execute(f"SELECT {settings(chosen)}")
                        elif not is_set:
                            db.execute(change_settings(chosen))
                        transaction = Transaction(db, self._clock)
                        answer = work(transaction)
                        transaction.finish()
                        faults.point(points.inside)
                        db.execute("COMMIT")
                        if transaction.made_due:
                            self._ring_along(transaction)
                    db.chosen = chosen
                break
            except _IN_THE_WAY as error:
                if tries == MOST_TRIES:
                    raise StoreError(f"PostgreSQL: {first_line(error)}") from error
                time.sleep(self._draw.random() * 0.002 * tries)
            except FOREIGN as error:
                if isinstance(error, errors.LockNotAvailable):
                    self._wary_until[kind] = time.monotonic() + WARY_FOR_S
                raise translated(error) from error
        faults.point(points.after)
        self.tell(transaction)
        return answer

    def tell(self, transaction: Transaction) -> None:
        """Ring, if what was committed may have made a job due, or moved one."""
        if transaction.made_due:
            for ring in self._rings:
                ring()
            if self._listener is not None and not transaction.has_rung:
                self._listener.ring()
        elif transaction.counts:
            if self._listener is not None:
                self._listener.tell_of_move()
        else:
            return
        self._watchers.ring()

    def _ring_along(self, transaction: Transaction) -> None:
        ring = None if self._listener is None else self._listener.ring_along()
        if ring is not None:
            transaction.has_rung = True
            transaction.db.pipeline.part()
            transaction.db.execute(ring)

    def use(self, work: Callable[[Session], T]) -> T:
        with TRANSLATING, _Taken(self, self.take(PLAIN, False), False) as db:
            db.connection.give_up_at = get_deadline()
            if self._prepare and db.chosen != PLAIN:
                db.execute(change_settings(PLAIN))
            db.chosen = PLAIN
            return work(db)

    def take(self, chosen: Mapping[str, object], urgent: bool) -> Session:
        with self._changed:
            is_timed = get_deadline() is not None
            while not urgent and self._free <= 0 and not self._closed:
                if is_timed:
                    raise WouldWait("every connection of this process is in use")
                self._changed.wait()
            if self._closed:
                raise StoreError("this store is closed")
            if is_timed and not self._idle:
                raise WouldWait("a connection must be opened first")
            if not urgent:
                self._free -= 1
            session = self._idle.pop(self._best_of_idle(chosen)) if self._idle else None
        if session is not None:
            return session
        try:
            return Session(self.connect(), prepare=self._prepare)
        except BaseException:
            with self._changed:
                self._free += not urgent
                self._changed.notify()
            raise

    def _best_of_idle(self, chosen: Mapping[str, object]) -> int:
        for n in range(len(self._idle) - 1, -1, -1):
            if self._idle[n].chosen == chosen:
                return n
        return -1

    def give_back(self, session: Session, urgent: bool) -> None:
        """Let others use a session; close one that has not been needed for long."""
        lost: list[Session] = []
        session.used_at = time.monotonic()
        with self._changed:
            self._free += not urgent
            if session.connection.closed:
                # The others of the same server are likely lost too: nobody should meet them.
                lost, self._idle = self._idle, []
            elif self._closed:
                lost = [session]
            else:
                self._idle.append(session)
                if self._idle[0].used_at < session.used_at - LONGEST_UNUSED_S:
                    lost = [self._idle.pop(0)]
            self._changed.notify()
        for other in lost:
            other.connection.close()

    def connect(self) -> TimedConnection:
        """Open a connection that leaves transactions to us and knows our values."""
        own = {IDLE: MOST_IDLE_MS, LOCK: timeouts.LOCK_TIMEOUT_MS}
        connection = self._connect(timeouts.SERVER | own)
        if self._prepare:
            connection.prepare_threshold = 0
            connection.prepared_max = MOST_PREPARED
        values.teach(connection.adapters)
        return connection

    def connect_plainly(self) -> TimedConnection:
        """Open a connection that leaves transactions to us and is otherwise psycopg's own."""
        return self._connect(timeouts.SERVER)

    def _connect(self, session: Mapping[str, object]) -> TimedConnection:
        if time.monotonic() < self._not_before:
            raise StoreAway("PostgreSQL does not answer; the next attempt follows shortly")
        try:
            connection = self._open()
        except psycopg.Error as error:
            self._not_before = time.monotonic() + LONGEST_PAUSE_S * self._draw.random()
            said = f"PostgreSQL cannot be reached: {first_line(error)}"
            raise (StoreError(said) if is_refusal(error) else StoreAway(said)) from error
        # A URL may name several servers, and a name may come to lead to another one.
        info = connection.info
        address = Address(info.host, info.hostaddr or None, str(info.port))
        connection.probe = partial(self._probes.has_answer, address)
        if self._prepare:
            # Behind a pooler nothing is: the session is another's next.
            connection.execute(f"SELECT {settings(session, local='false')}", prepare=False)
        return connection

    def _open(self, **chosen: str | None) -> TimedConnection:
        connection = TimedConnection.connect(
            make_conninfo("", **timeouts.CLIENT | conninfo_to_dict(self._conninfo) | chosen),
            autocommit=True,
            prepare_threshold=PREPARE_AFTER if self._prepare else None,
            application_name="ulak",
        )
        self._every.add(connection)
        return connection

    def forget(self) -> None:
        """Close every connection in a forked child, without a word to the server: a goodbye would
        end the parent's session, and an open socket keep it alive when the parent has died."""
        nowhere = os.open(os.devnull, os.O_RDWR)
        for connection in tuple(self._every):
            if not connection.closed:
                os.dup2(nowhere, connection.fileno(), inheritable=False)
                connection.close()
        os.close(nowhere)

    def close(self) -> None:
        self.lent.close()
        with self._changed:
            self._closed = True
            idle, self._idle = self._idle, []
            self._changed.notify_all()
        for session in idle:
            session.connection.close()


class LentConnections:
    """Lends connections; what was set on one is forgotten before the next has it."""

    def __init__(self, connections: Connections, *, prepare: bool) -> None:
        self._connections = connections
        self._prepare = prepare
        self._lock = threading.Lock()
        self._idle: list[Session] = []
        self._closed = False

    def lend(self, begin: Callable[[Session], T], *, to_program: bool = False) -> T:
        """Begin a transaction on a connection; whoever gets it calls `give_back` in the end. A
        program gets one that a program has had, if there is one."""
        session = self._find_idle(to_program=to_program)
        with TRANSLATING:
            if session is not None:
                try:
                    return self._begin(begin, session)
                except (psycopg.OperationalError, psycopg.InterfaceError):
                    if not session.connection.closed:
                        raise
                    # It was lost while it lay here: so were the others, most likely.
                    self._close_idle()
            return self._begin(begin, self._new_session())

    async def take(self, *, new: bool = False) -> Session:
        """Lend a connection to code on an event loop, for it to begin a transaction; `give_back`
        or `drop` it. With `new`, none that lay here: the last one was lost. Whoever is cancelled
        meanwhile has none to give back."""
        session = self._find_idle(new=new)
        return await self._connect_aside() if session is None else session

    def _find_idle(self, *, new: bool = False, to_program: bool = False) -> Session | None:
        with self._lock:
            if self._closed:
                raise StoreError("this store is closed")
            if not self._idle or new:
                return None
            for n in reversed(range(len(self._idle))):
                # What a program has had prepares nothing any more: each statement is planned anew.
                if self._idle[n].pipeline.is_preparing != to_program:
                    return self._idle.pop(n)
            return self._idle.pop()

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

        session = self.lend(begin, to_program=True)
        try:
            yield session.connection
        finally:
            self.give_back(session)

    def _begin(self, begin: Callable[[Session], T], session: Session) -> T:
        try:
            return begin(session)
        except BaseException:
            self.give_back(session)
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
        with suppress(IndexError):
            self.give_back(brought.pop())

    def _new_session(self) -> Session:
        connection = self._connections.connect_plainly()
        # As every transaction of the store: a change must see what was committed before it.
        connection.isolation_level = psycopg.IsolationLevel.READ_COMMITTED
        connection.read_only = False
        cursor = values.own_cursor(psycopg.Cursor(connection, row_factory=tuple_row))
        return Session(connection, prepare=self._prepare, cursor=cursor)

    def give_back(self, session: Session) -> None:
        """Take back what is open on a connection, and keep it for the next."""
        connection = session.connection
        is_idle = is_rolled_back(session)
        with self._lock:
            if is_idle and not self._closed:
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
        with self._lock:
            self._closed = True
        self._close_idle()
