"""Sessions and transactions: what runs statements, what a write leaves, what errors mean."""

from __future__ import annotations

import re
import struct
from collections.abc import Iterable, Mapping
from typing import Any

import psycopg
from psycopg import errors
from psycopg.pq import ExecStatus, TransactionStatus

from ulak.clock import Clock, Instant
from ulak.core.job import Event
from ulak.errors import Contended, Misconfigured, StoreError, WriteRefused
from ulak.store.batches import Link
from ulak.store.postgres import outbox, timeouts, trail
from ulak.store.postgres.pipeline import Pipeline, exchange
from ulak.store.postgres.timeouts import TimedConnection
from ulak.store.postgres.values import Numbers, Texts
from ulak.store.processes import StoreAway
from ulak.store.protocol.outbox import NO_FLOWS
from ulak.store.server_clock import ServerClock
from ulak.store.sql.session import Row

CountKey = tuple[str, int, str, str]

SERVER_TIME = "(extract(epoch FROM clock_timestamp()) * 1000000)::bigint"


# A process that stands still in the middle of a transaction (a debugger, a paused machine) holds
# rows that others wait for, renewals too. Ours wait for nothing in between but each other.
MOST_IDLE_MS = 5000
IDLE = "idle_in_transaction_session_timeout"
LOCK = "lock_timeout"

# Said each time: a database or a role may have another default, under which a statement would not
# see what was committed while it waited for a lock.
BEGIN = "BEGIN ISOLATION LEVEL READ COMMITTED READ WRITE"
# Batches are joined to their rows in the order of the batch, by index: so rows are locked in that
# order (E-21), and no plan reads a table that has become long. Such a plan may be kept for good:
# to plan a claim takes longer than to run it. Where there is no index the server would believe
# that it has a great deal to do, and compile what it then runs: 80 ms for a look at one row.
IN_ORDER = {
    **dict.fromkeys(("enable_hashjoin", "enable_mergejoin", "enable_seqscan", "jit"), "off"),
    "plan_cache_mode": "force_generic_plan",
}
PLAIN: Mapping[str, object] = {}


def settings(values: Mapping[str, object], *, local: str = "true") -> str:
    """Write the expressions that set these for the rest of a transaction, or of a session."""
    return ", ".join(f"set_config('{name}', '{value}', {local})" for name, value in values.items())


def change_settings(chosen: Mapping[str, object]) -> str:
    """Write the statement that gives a session these settings, whichever of ours it had before."""
    # Not given: what the server, the database or the role says.
    given_back = [f"set_config('{name}', NULL, false)" for name in IN_ORDER if name not in chosen]
    given = settings({LOCK: timeouts.LOCK_TIMEOUT_MS, **chosen}, local="false")
    return f"SELECT {', '.join([given, *given_back])}"


APPEND_DELTAS = """
    INSERT INTO ulak.count_deltas (flow, flow_version, state, role, jobs)
    SELECT * FROM unnest(%s::text[], %s::bigint[], %s::text[], %s::text[], %s::bigint[])
"""


class AlreadyThere(WriteRefused):
    """A row of this key is stored: of a write whose answer was lost, or of somebody else."""


class Session:
    """A connection for one thread at a time; statements go by its pipeline while that is open."""

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
        self.used_at = 0.0
        self.pipeline = Pipeline(connection, prepare=prepare, values=cursor or connection)
        self._cursor = cursor or connection.cursor(binary=True)
        self._plain = connection.cursor()
        self._prepare = prepare

    def execute(self, statement: str, facts: Any = ()) -> None:
        if self.pipeline.is_open:
            self.pipeline.send(statement, facts)
        else:
            self._execute(statement, facts)

    def rows(self, statement: str, facts: Any = ()) -> list[Row]:
        if self.pipeline.is_open:
            return self.pipeline.ask(statement, facts)
        return self._execute(statement, facts).fetchall()

    def row(self, statement: str, facts: Any = ()) -> Row | None:
        rows = self.rows(statement, facts)
        return rows[0] if rows else None

    def touch(self, statement: str, facts: Any = ()) -> int:
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
        """It is a caller's own, which may stay open for long."""
        self.counts: dict[CountKey, int] = {}
        self.links: list[Link] = []
        self.followed = NO_FLOWS
        self.followed_events: list[tuple[str, Event]] = []
        self.made_due = False
        self.has_rung = False

    @property
    def by_server(self) -> bool:
        return isinstance(self._clock, ServerClock)

    def hear(self, now: Instant) -> None:
        """Go on with the time that the server has just said, if its time is what decides."""
        if isinstance(self._clock, ServerClock):
            self._clock.hear(now)
            self.now = now

    def count(self, key: CountKey, jobs: int) -> None:
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
        if self.followed_events:
            outbox.post_events(self.db, self.followed_events, ranked=not self.is_guest)
        counted = [(key, jobs) for key, jobs in self.counts.items() if jobs]
        if counted:
            flows, versions, states, roles = zip(*(key for key, _ in counted), strict=True)
            jobs = [n for _, n in counted]
            columns = Texts(flows), Numbers(versions), Texts(states), Texts(roles), Numbers(jobs)
            self.db.execute(APPEND_DELTAS, columns)
        if self.links:
            trail.chain(self.db, self.links)


def is_rolled_back(session: Session) -> bool:
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


FOREIGN = (psycopg.Error, OverflowError, UnicodeEncodeError, struct.error)

# The connection was lost, or the server is about to stop or start.
_LOSSES = ("08", "57P0")
# What the server says of itself and not of what it was sent, by the class of its code: it loses
# connections, takes no writes now, lacks room or memory, stops or starts, or must plan anew.
_FOR_NOW = ("08", "0A", "25", "26", "40", "53", "55", "57", "58")
# An undefined schema, table, column, function or parameter type: of another release, or by hand.
_MISSING = ("3F000", "42P01", "42703", "42883", "42704")


def translated(error: Exception) -> StoreError:
    """Tell a fault of the database, which is for now, from a fault of what it was sent.

    Whatever is not for now may be the fault of one row alone, as with a foreign trigger
    that raises: so it is `WriteRefused`, and batches are parted until that row stands alone.
    """
    if not isinstance(error, psycopg.Error):
        return WriteRefused(f"PostgreSQL will not store this: {error}")
    reason, code = first_line(error), error.sqlstate
    if isinstance(error, errors.LockNotAvailable):
        return Contended(f"a transaction of somebody else holds what is needed: {reason}")
    if isinstance(error, errors.QueryCanceled):
        return Contended(f"PostgreSQL has ended a statement that took too long: {reason}")
    if isinstance(error, errors.UniqueViolation):
        return AlreadyThere(f"PostgreSQL: {reason}")
    if code is None:
        is_loss = isinstance(error, psycopg.OperationalError)
        is_for_now = not isinstance(error, psycopg.DataError)
    else:
        is_loss, is_for_now = code.startswith(_LOSSES), code.startswith(_FOR_NOW)
    if is_loss:
        return StoreAway(f"PostgreSQL could not do it: {reason}")
    if is_for_now:
        return StoreError(f"PostgreSQL could not do it: {reason}")
    if isinstance(error, errors.InsufficientPrivilege):
        return Misconfigured(
            f"PostgreSQL does not let this role do it: {reason}; grant it the right, or "
            "connect as the role that the schema ulak belongs to"
        )
    if code in _MISSING:
        return Misconfigured(
            f"PostgreSQL lacks what this program needs: {reason}; compare the releases by "
            "`ulak doctor`, then run `ulak migrate` or the newer program"
        )
    return WriteRefused(f"PostgreSQL will not store this: {reason}")


class _Translating:
    """Raises what psycopg raises inside as an error of the store."""

    def __enter__(self) -> None: ...

    def __exit__(self, _: object, error: BaseException | None, __: object) -> None:
        if isinstance(error, FOREIGN):
            raise translated(error) from error


TRANSLATING = _Translating()

# libpq gives no code for what a server says before it lets anybody in.
_REFUSALS = re.compile(
    "authentication failed|certificate|does not exist|does not support SSL|invalid"
    "|no pg_hba[.]conf entry|is not permitted to log in|no password supplied|permission denied"
)


def is_refusal(error: psycopg.Error) -> bool:
    """Tell whether the server was reached and will not have us, so that waiting helps nobody."""
    return isinstance(error, psycopg.ProgrammingError) or bool(_REFUSALS.search(str(error)))


def first_line(error: BaseException) -> str:
    """Return the first line of what the server said, or of what each of several servers said."""
    lines = (str(error).strip() or type(error).__name__).splitlines()
    return " ".join(lines[:2]) if lines[0].endswith(":") else lines[0]
