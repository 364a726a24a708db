"""Connections and transactions: who waits for whom, and what a lost connection means."""

from __future__ import annotations

import logging
import os
import random
import struct
import threading
import time
from collections.abc import Callable, Iterable, Mapping
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar
from weakref import WeakSet

import psycopg
from psycopg import errors
from psycopg.conninfo import conninfo_to_dict, make_conninfo
from psycopg.pq import ExecStatus, TransactionStatus

from ulak.clock import Clock, Instant
from ulak.core.job import Event
from ulak.errors import Contended, Misconfigured, StoreError, WriteRefused
from ulak.store import faults
from ulak.store.postgres import followers, proofs, timeouts, values
from ulak.store.postgres.clock import ServerClock
from ulak.store.postgres.pipeline import LateRows, Pipeline, exchange
from ulak.store.postgres.timeouts import NoAnswer, TimedConnection
from ulak.store.postgres.values import Numbers, Row, Texts
from ulak.store.processes import StoreAway, Watchers, WouldWait, get_deadline
from ulak.store.protocol.outbox import NO_FLOWS

if TYPE_CHECKING:
    from ulak.store.postgres.listener import Listener

log = logging.getLogger("ulak.postgres")

T = TypeVar("T")

CountKey = tuple[str, int, str, str]

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

# A process that stands still in the middle of a transaction (a debugger, a paused machine) holds
# rows that others wait for, renewals too. Ours wait for nothing in between but each other.
MOST_IDLE_MS = 5000
IDLE = "idle_in_transaction_session_timeout"
LOCK = "lock_timeout"

PREPARE_AFTER = 5
"""How often psycopg runs a statement of the program before it prepares it: its own default."""

MOST_PREPARED = 500
"""More statements than the store has: none is prepared twice."""

MOST_TRIES = 8
"""How often a transaction is tried when others get in its way; each try is a draw."""

# Said each time: a database or a role may have another default, under which a statement would not
# see what was committed while it waited for a lock.
BEGIN = "BEGIN ISOLATION LEVEL READ COMMITTED READ WRITE"
# Batches are joined to their rows in the order of the batch, by index: so rows are locked in that
# order (E-21), and no plan reads a table that has become long. Such a plan may be kept for good:
# to plan a claim takes longer than to run it. Where there is no index the server would believe
# that it has a great deal to do, and compile what it then runs: 80 ms for a look at one row.
IN_ORDER = {
    "enable_hashjoin": "off",
    "enable_mergejoin": "off",
    "enable_seqscan": "off",
    "plan_cache_mode": "force_generic_plan",
    "jit": "off",
}


PLAIN: Mapping[str, object] = {}
"""The settings of a session that nobody has changed."""


def settings(values: Mapping[str, object], *, whole_session: bool = False) -> str:
    """Write the expressions that set these for the rest of a transaction, or of a session."""
    local = "false" if whole_session else "true"
    return ", ".join(f"set_config('{name}', '{value}', {local})" for name, value in values.items())


def change_settings(chosen: Mapping[str, object]) -> str:
    """Write the statement that gives a session these settings, whichever of ours it had before."""
    # Not given: what the server, the database or the role says.
    given_back = [f"set_config('{name}', NULL, false)" for name in IN_ORDER if name not in chosen]
    given = settings({LOCK: timeouts.LOCK_TIMEOUT_MS, **chosen}, whole_session=True)
    return f"SELECT {', '.join([given, *given_back])}"


APPEND_DELTAS = """
    INSERT INTO ulak.count_deltas (flow, flow_version, state, role, jobs)
    SELECT * FROM unnest(%s::text[], %s::bigint[], %s::text[], %s::text[], %s::bigint[])
"""


class AlreadyThere(WriteRefused):
    """A row of this key is stored: of a write whose answer was lost, or of somebody else."""


class Session:
    """One connection with its cursor and its pipeline; used by one thread at a time.

    While the pipeline is open everything goes that way, otherwise psycopg's.
    """

    __slots__ = ("_cursor", "_plain", "_prepare", "chosen", "connection", "pipeline", "used_at")

    def __init__(
        self,
        connection: TimedConnection,
        *,
        prepare: bool,
        cursor: psycopg.Cursor[Row] | None = None,
    ) -> None:
        self.connection = connection
        self.chosen: Mapping[str, object] | None = PLAIN
        """The settings that it has; None when nobody can tell."""
        self.used_at = 0.0
        """When it was given back, by the monotonic clock."""
        self.pipeline = Pipeline(connection, prepare=prepare, values=cursor or connection)
        self._cursor = cursor or connection.cursor(binary=True)
        self._plain = connection.cursor()
        self._prepare = prepare

    def execute(self, statement: str, facts: Any = ()) -> None:
        """Run a statement that answers nothing."""
        if self.pipeline.is_open:
            self.pipeline.send(statement, facts)
        else:
            self._execute(statement, facts)

    def rows(self, statement: str, facts: Any = ()) -> list[Row]:
        """Run a query and answer its rows."""
        if self.pipeline.is_open:
            return self.pipeline.ask(statement, facts)
        return self._execute(statement, facts).fetchall()

    def later(self, statement: str, facts: Any = ()) -> LateRows:
        """Run a query in a pipeline whose rows nobody needs before the transaction has ended."""
        return self.pipeline.later(statement, facts)

    def row(self, statement: str, facts: Any = ()) -> Row | None:
        """Run a query and answer its first row."""
        rows = self.rows(statement, facts)
        return rows[0] if rows else None

    def touch(self, statement: str, facts: Any = ()) -> int:
        """Run a write and answer how many rows it touched."""
        if self.pipeline.is_open:
            return self.pipeline.touch(statement, facts)
        return self._execute(statement, facts).rowcount

    def plainly(self, statement: str) -> None:
        """Run statements without parameters, in one message; not while the pipeline is open."""
        self._plain.execute(statement, prepare=False)

    def _execute(self, statement: str, facts: Any) -> psycopg.Cursor[Row]:
        return self._cursor.execute(statement, facts, prepare=self._prepare)


class Transaction:
    """What one write sees and leaves: the session, the time, what it counted and proves."""

    __slots__ = (
        "_clock", "counts", "db", "followed", "followed_events", "has_rung", "is_guest", "links",
        "made_due", "now",
    )  # fmt: skip

    def __init__(self, db: Session, clock: Clock, *, is_guest: bool = False) -> None:
        self.db = db
        self.now = clock.now()
        self._clock = clock
        self.is_guest = is_guest
        """Whether it is a caller's own, which may stay open for long."""
        self.counts: dict[CountKey, int] = {}
        self.links: list[proofs.Link] = []
        self.followed = NO_FLOWS
        """The flows that are followed, as its statements have found."""
        self.followed_events: list[tuple[str, Event]] = []
        self.made_due = False
        self.has_rung = False
        """Whether other processes were told along with the commit."""

    @property
    def by_server(self) -> bool:
        """Whether it is the server's time that decides."""
        return isinstance(self._clock, ServerClock)

    def hear(self, now: Instant) -> None:
        """Go on with the time that the server has just said, if its time is what decides."""
        if isinstance(self._clock, ServerClock):
            self._clock.hear(now)
            self.now = now

    def count(self, key: CountKey, jobs: int) -> None:
        """Add to the number of jobs that stand in a state."""
        self.counts[key] = self.counts.get(key, 0) + jobs

    def prove(self, tenant: str, events: Iterable[Event], bodies: Iterable[bytes]) -> None:
        """Chain these events when everything else is written: heads of chains are taken last."""
        for event, body in zip(events, bodies, strict=False):
            self.links.append((tenant, event.job_id, event.seq, body))

    def follow(self, flow: str, events: Iterable[Event]) -> None:
        """Let the followers of a flow have these events, which are written."""
        if flow in self.followed:
            self.followed_events += [(flow, event) for event in events]
            self.made_due = True

    def finish(self) -> None:
        """Write what is written last."""
        if self.followed_events:
            followers.post(self.db, self.followed_events, ranked=not self.is_guest)
        counted = [(key, jobs) for key, jobs in self.counts.items() if jobs]
        if counted:
            flows, versions, states, roles = zip(*(key for key, _ in counted), strict=True)
            jobs = [n for _, n in counted]
            self.db.execute(
                APPEND_DELTAS,
                (Texts(flows), Numbers(versions), Texts(states), Texts(roles), Numbers(jobs)),
            )
        if self.links:
            proofs.chain(self.db, self.links)


class _Address(NamedTuple):
    """Which of the servers that a URL may lead to; the names are libpq's."""

    host: str
    hostaddr: str | None
    """None for a unix socket."""
    port: str


class _Taken:
    """A session that is in use, and given back when the block ends.

    A class, since every transaction enters one: a generator would cost it a microsecond more.
    """

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
        """For each kind of write that has waited in vain, until when it is wary."""
        self._draw = random.Random()  # noqa: S311 - spreads reconnects, decides nothing else
        self._rings: list[Callable[[], None]] = []
        self._listener: Listener | None = None
        self._watchers = Watchers()
        self._probing = threading.Lock()
        self._probed: dict[_Address, tuple[float, bool]] = {}
        """Until when the last probe speaks for all of a server, and whether that has answered."""
        self._every: WeakSet[psycopg.Connection[Row]] = WeakSet()

    def on_commit(self, ring: Callable[[], None]) -> None:
        """Call `ring` after each commit that may have made a job due."""
        self._rings.append(ring)

    def tell_by(self, listener: Listener, watchers: Watchers) -> None:
        """Let this listener tell other processes, and tell those who wait for moves here."""
        self._listener = listener
        self._watchers = watchers

    # --- transactions -----------------------------------------------------------

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
        several times. It waits no longer than its patience for what others hold, by
        default as long as a commit. With `in_order` batches are joined to their rows as they come,
        by index.

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
                with self._session(chosen, urgent=urgent) as db:
                    db.connection.give_up_at = _earliest_of_both()
                    transaction, answer = self._transact(db, work, chosen, points.inside)
                break
            except _IN_THE_WAY as error:
                if tries == MOST_TRIES:
                    raise StoreError(f"PostgreSQL: {_said(error)}") from error
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

    def _transact(
        self,
        db: Session,
        work: Callable[[Transaction], T],
        chosen: Mapping[str, object],
        inside: str,
    ) -> tuple[Transaction, T]:
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
            faults.point(inside)
            db.execute("COMMIT")
            if transaction.made_due and self._listener is not None:
                ring = self._listener.ring_along()
                if ring is not None:
                    transaction.has_rung = True
                    db.pipeline.part()
                    db.execute(ring)
        db.chosen = chosen
        return transaction, answer

    def use(self, work: Callable[[Session], T]) -> T:
        """Run `work` on a connection of its own, each statement by itself: reads, and schemas.

        Raises:
            StoreError: the database could not answer.
        """
        try:
            with self._session(PLAIN) as db:
                db.connection.give_up_at = get_deadline()
                if self._prepare and db.chosen != PLAIN:
                    db.execute(change_settings(PLAIN))
                db.chosen = PLAIN
                return work(db)
        except FOREIGN as error:
            raise translated(error) from error

    # --- connections ------------------------------------------------------------

    def _session(self, chosen: Mapping[str, object], *, urgent: bool = False) -> _Taken:
        return _Taken(self, self.take(chosen, urgent), urgent)

    def take(self, chosen: Mapping[str, object], urgent: bool) -> Session:
        """Take an idle session, best one that has these settings, or open another."""
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
        """Open a connection that leaves transactions to us and knows our values.

        Raises:
            StoreError: the server does not answer, or it is too early to ask again.
        """
        own = {IDLE: MOST_IDLE_MS, LOCK: timeouts.LOCK_TIMEOUT_MS}
        connection = self._connect(timeouts.SERVER | own)
        if self._prepare:
            connection.prepare_threshold = 0
            connection.prepared_max = MOST_PREPARED
        values.teach(connection.adapters)
        return connection

    def connect_plainly(self) -> TimedConnection:
        """Open a connection that leaves transactions to us and is otherwise psycopg's own.

        Raises:
            StoreError: the server does not answer, or it is too early to ask again.
        """
        return self._connect(timeouts.SERVER)

    def _connect(self, session: Mapping[str, object]) -> TimedConnection:
        if time.monotonic() < self._not_before:
            raise StoreAway("PostgreSQL does not answer; the next attempt follows shortly")
        try:
            connection = self._open()
        except psycopg.Error as error:
            self._not_before = time.monotonic() + LONGEST_PAUSE_S * self._draw.random()
            said = f"PostgreSQL cannot be reached: {_said(error)}"
            raise (StoreError(said) if _is_refusal(error) else StoreAway(said)) from error
        # A URL may name several servers, and a name may come to lead to another one.
        info = connection.info
        address = _Address(info.host, info.hostaddr or None, str(info.port))
        connection.probe = partial(self._is_there, address)
        if self._prepare:
            # Behind a pooler nothing is: the session is another's next.
            connection.execute(f"SELECT {settings(session, whole_session=True)}", prepare=False)
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

    def _is_there(self, address: _Address) -> bool:
        """Ask on a connection of its own whether a server answers; for all who wait, once."""
        with self._probing:
            holds_until, is_there = self._probed.get(address, (0.0, True))
            if time.monotonic() >= holds_until:
                is_there = self._has_answered(address)
                self._probed[address] = (time.monotonic() + timeouts.PROBE_HOLDS_S, is_there)
            return is_there

    def _has_answered(self, address: _Address) -> bool:
        try:
            # Whatever it has become: it may be a standby by now.
            with self._open(**address._asdict(), target_session_attrs="any") as connection:
                connection.give_up_at = time.monotonic() + timeouts.CONNECT_TIMEOUT_S
                connection.execute("SELECT 1", prepare=False)
        except (NoAnswer, errors.ConnectionTimeout):
            return False
        except psycopg.Error:
            return True  # a refusal is an answer; a host that is gone is found out by the kernel
        return True

    def forget(self) -> None:
        """Close every connection in a forked child, without a word to the server.

        A goodbye would end the session of the parent; a socket that stayed open would keep that
        session alive when the parent has died.
        """
        nowhere = os.open(os.devnull, os.O_RDWR)
        for connection in tuple(self._every):
            if not connection.closed:
                os.dup2(nowhere, connection.fileno(), inheritable=False)
                connection.close()
        os.close(nowhere)

    def close(self) -> None:
        """Close what is idle now and what is in use when it comes back."""
        with self._changed:
            self._closed = True
            idle, self._idle = self._idle, []
            self._changed.notify_all()
        for session in idle:
            session.connection.close()


def is_rolled_back(session: Session) -> bool:
    """Take back what is open on a connection; tell whether it can be used again."""
    connection = session.connection
    if connection.closed:
        return False
    if connection.info.transaction_status == TransactionStatus.IDLE:
        return True
    try:
        # Not by psycopg, which would deallocate what is prepared, also what the pipeline has.
        return exchange(connection, b"ROLLBACK").status == ExecStatus.COMMAND_OK
    except psycopg.Error:
        return False


def _earliest_of_both() -> float:
    """Return when a transaction of the store must have its answer: its own end, or its caller's."""
    longest = time.monotonic() + timeouts.LONGEST_TRANSACTION_S
    deadline = get_deadline()
    return longest if deadline is None else min(longest, deadline)


# The last is a statement that was prepared and is no more: it is sent in full the next time.
_IN_THE_WAY = (
    errors.SerializationFailure,
    errors.DeadlockDetected,
    errors.InvalidSqlStatementName,
)
FOREIGN = (psycopg.Error, OverflowError, UnicodeEncodeError, struct.error)


# What the server says of itself and not of what it was sent, by the class of its code: it loses
# connections, takes no writes now, lacks room or memory, is being stopped, or must plan anew.
_FOR_NOW = ("08", "0A", "25", "26", "40", "53", "55", "57", "58")
# An undefined schema, table, column, function or parameter type: of another release, or by hand.
_MISSING = ("3F000", "42P01", "42703", "42883", "42704")


def translated(error: Exception) -> StoreError:
    """Tell a fault of the database, which is for now, from a fault of what it was sent.

    Whatever is not for now may be the fault of one row alone, as with a foreign trigger
    that raises: so it is `WriteRefused`, and batches are parted until that row stands alone.
    """
    if isinstance(error, errors.LockNotAvailable):
        return Contended(f"a transaction of somebody else holds what is needed: {_said(error)}")
    if isinstance(error, errors.QueryCanceled):
        return Contended(f"PostgreSQL has ended a statement that took too long: {_said(error)}")
    if not isinstance(error, psycopg.Error):
        return WriteRefused(f"PostgreSQL will not store this: {error}")
    if isinstance(error, errors.UniqueViolation):
        return AlreadyThere(f"PostgreSQL: {_said(error)}")
    if _is_loss(error):
        return StoreAway(f"PostgreSQL could not do it: {_said(error)}")
    if error.sqlstate is None and not isinstance(error, psycopg.DataError):
        return StoreError(f"PostgreSQL could not do it: {_said(error)}")
    if error.sqlstate is not None and error.sqlstate.startswith(_FOR_NOW):
        return StoreError(f"PostgreSQL could not do it: {_said(error)}")
    if isinstance(error, errors.InsufficientPrivilege):
        return Misconfigured(
            f"PostgreSQL does not let this role do it: {_said(error)}; grant it the right, or "
            "connect as the role that the schema ulak belongs to"
        )
    if error.sqlstate is not None and error.sqlstate in _MISSING:
        return Misconfigured(
            f"PostgreSQL lacks what this program needs: {_said(error)}; compare the releases by "
            "`ulak doctor`, then run `ulak migrate` or the newer program"
        )
    return WriteRefused(f"PostgreSQL will not store this: {_said(error)}")


def _is_loss(error: psycopg.Error) -> bool:
    """Tell whether the connection was lost, or the server is about to stop or start."""
    if error.sqlstate is None:
        return isinstance(error, psycopg.OperationalError)
    return error.sqlstate.startswith(("08", "57P0"))


# libpq gives no code for what a server says before it lets anybody in.
_REFUSALS = (
    "authentication failed",
    "certificate",
    "does not exist",
    "does not support SSL",
    "invalid",
    "is not permitted to log in",
    "no password supplied",
    "no pg_hba.conf entry",
    "permission denied",
)


def _is_refusal(error: psycopg.Error) -> bool:
    """Tell whether the server was reached and will not have us, so that waiting helps nobody."""
    return isinstance(error, psycopg.ProgrammingError) or any(
        text in str(error) for text in _REFUSALS
    )


def _said(error: BaseException) -> str:
    """Return the first line of what the server said, or of what each of several servers said."""
    lines = (str(error).strip() or type(error).__name__).splitlines()
    return " ".join(lines[:2]) if lines[0].endswith(":") else lines[0]
