"""The store itself: each verb of the protocol, sent to a transaction or to a reader."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from functools import partial
from typing import Any, TypeVar, cast

import psycopg
from psycopg.conninfo import conninfo_to_dict

from ulak.clock import Clock, Instant
from ulak.core.admission import Ask
from ulak.core.change import Change, Receipt
from ulak.core.job import Message, NewJob, Request
from ulak.errors import NotSupported, StoreError, WriteRefused
from ulak.store.batches import is_full
from ulak.store.caller import Execute, Steps
from ulak.store.flow_control import FIRST_PAGE
from ulak.store.postgres import (
    caller,
    claims,
    commits,
    control,
    intake,
    leases,
    migrations,
    months,
    outbox,
    reads,
    records,
    straight,
    upkeep,
)
from ulak.store.postgres.connections import (
    COMMIT_PATIENCE_MS,
    SUBMIT_PATIENCE_MS,
    Connections,
)
from ulak.store.postgres.control import CONTROL
from ulak.store.postgres.listener import Listener
from ulak.store.postgres.outbox import OUTBOX
from ulak.store.postgres.session import SERVER_TIME, AlreadyThere, Session, Transaction
from ulak.store.postgres.transactions import PostgresStage, PostgresTransaction
from ulak.store.processes import Watchers, tell_of_forks
from ulak.store.protocol import Added, Claimed, ClaimRequest, Features, OutboxRow, Store, Tick
from ulak.store.records import RecordClaim, RecordId, RecordRow
from ulak.store.server_clock import ServerClock
from ulak.store.sql.session import Row
from ulak.store.sql.store import SqlStore, read, read_now, written
from ulak.store.transaction import StageTransaction

T = TypeVar("T")

# Whether a whole month may go is a question to every job of that month: seldom asked.
RETIRE_EVERY_S = 60.0

# Months that could not be made are not asked for at every breath.
MONTHS_EVERY_S = 60.0

SERVER = """
    SELECT current_setting('server_version'), current_setting('synchronous_commit'),
           current_setting('fsync')
"""


class PostgresStore(SqlStore):
    """A `Store` in the schema `ulak` of a PostgreSQL database, 14 or newer.

    Args:
        conninfo: Where the server is, as libpq understands it: a URL or words.
        clock: Tells the time that decides, by default the server's.
        pooled: The server is behind a pooler that hands a connection to another client after each
            transaction: nothing is prepared, nothing is listened to, workers poll.
    """

    def __init__(self, conninfo: str, *, clock: Clock | None = None, pooled: bool = False) -> None:
        self._conninfo = conninfo
        self._pooled = pooled
        self.clock: Clock = clock or ServerClock()
        self.features = Features(
            name="postgres",
            durable=True,
            shared=True,
            flow_control=True,
            caller_transactions=True,
            stage_transactions=True,
            open_transactions=True,
            on_loop=True,
            dialect="postgresql",
            durability="nothing that was acknowledged is lost, unless the server's "
            "synchronous_commit or fsync is off",
        )
        self._open: Connections | None = None
        self._listener: Listener | None = None
        self._rings: list[Callable[[], None]] = []
        self._watchers = Watchers()
        self._months: set[int] = set()
        self._months_at: dict[int, float] = {}
        self._retire_at = 0.0
        self._parked = FIRST_PAGE
        self._here: Row | None = None
        self._is_ordinary = True
        """The last claim found nothing that bars the straight way."""
        self._stopped: set[str] = set()
        """Flows that were stopped when last seen, so that no write fails in vain meanwhile."""
        self._particular: set[str] = set()
        """Flows whose jobs could not be stored like most."""
        self._opening = threading.Lock()
        self._is_inherited = False
        """It was open when this process was forked: its first use opens it here."""
        tell_of_forks(self)

    def open(self) -> None:
        with self._opening:
            if self._open is None:
                self._open_connections()

    def _open_connections(self) -> None:
        connections = self._new_connections()
        try:
            connections.use(migrations.create_or_check)
            if isinstance(self.clock, ServerClock):
                heard = connections.use(lambda db: db.row(f"SELECT {SERVER_TIME}"))
                self.clock.hear(0 if heard is None else heard[0])
            connections.use(self._make_months)
            self._here = connections.use(lambda db: db.row(caller.WHERE_WE_ARE))
        except BaseException:
            connections.close()
            raise
        listener = Listener(connections, self._watchers, self._rings, listens=not self._pooled)
        connections.tell_by(listener, self._watchers, self._rings)
        listener.wait_until_it_hears()
        self._open, self._listener = connections, listener

    def close(self) -> None:
        self._is_inherited = False
        connections, self._open = self._open, None
        listener, self._listener = self._listener, None
        if connections is not None:
            connections.close()
        if listener is not None:
            listener.close()

    def before_fork(self) -> None:
        """Nothing to do: a child uses none of its parent's connections."""

    def after_fork_in_parent(self) -> None:
        """Nothing to do."""

    def after_fork_in_child(self) -> None:
        self._opening = threading.Lock()
        self._is_inherited = self._is_inherited or self._open is not None
        connections, self._open = self._open, None
        listener, self._listener = self._listener, None
        if connections is not None:
            connections.forget()
        if listener is not None:
            listener.forget()
        self._watchers.clear()

    def migrate(self) -> tuple[int, int]:
        connections = self._open or self._new_connections()
        try:
            versions = connections.use(migrations.upgrade)
            # Whoever migrates may make tables; those who work need not.
            connections.use(months.move_strays)
            connections.use(self._make_months)
            return versions
        finally:
            if connections is not self._open:
                connections.close()

    @property
    def newest_schema(self) -> int:
        return migrations.NEWEST

    def _new_connections(self) -> Connections:
        return Connections(self._conninfo, clock=self.clock, prepare=not self._pooled)

    @property
    def _db(self) -> Connections:
        if self._open is None and self._is_inherited:
            self.open()
        if self._open is None:
            raise StoreError("this store is not open; call open() first")
        return self._open

    def _write(self, kind: str, work: Callable[[Transaction], T], *, urgent: bool = False) -> T:
        return self._db.run(kind, work, urgent=urgent)

    def _read(self, read: Callable[[Session], T]) -> T:
        return self._db.use(read)

    def about(self) -> dict[str, object]:
        version, synchronous, fsync = self._read(lambda db: db.row(SERVER)) or ("", "", "")
        listener = self._listener
        return {
            "postgres": version,
            "database": self._read(_place),
            "synchronous_commit": synchronous,
            "fsync": fsync,
            "pooled": self._pooled,
            "ring": None if listener is None else listener.wait_for_test(),
            "rings_heard": 0 if listener is None else listener.heard,
            "months": sorted(self._read(months.existing)),
            "idempotency_view": self._read(migrations.shows_idempotency_keys),
            "schema": self._read(migrations.version_of),
            "newest_schema": self.newest_schema,
            "oldest_schema": self._read(migrations.oldest_of),
        }

    @property
    def place(self) -> str:
        """Where it is, as far as its URL says."""
        said = conninfo_to_dict(self._conninfo)
        return " ".join(str(said.get(word) or "") for word in ("host", "port", "dbname", "service"))

    def secrets(self) -> list[str]:
        """Return what must not be read in a log: the password that it connects with."""
        password = conninfo_to_dict(self._conninfo).get("password")
        return [] if password is None else [str(password)]

    def ring_heard(self) -> tuple[bool | None, int]:
        """Return whether the last test of the ring was heard, if any, and how many rings were."""
        listener = self._listener
        return (None, 0) if listener is None else (listener.is_well, listener.heard)

    def _make_months(self, db: Session) -> None:
        wanted = [m for m in months.foreseen(self.clock.now()) if m not in self._months]
        if wanted and time.monotonic() >= self._months_at.get(wanted[0], 0.0):
            self._months_at[wanted[0]] = time.monotonic() + MONTHS_EVERY_S
            there = months.existing(db)
            self._months |= there
            self._months.update(m for m in wanted if m not in there and months.make(db, m))

    def add(self, jobs: Sequence[NewJob]) -> list[Added]:
        if self._stopped and any(job.row.flow in self._stopped for job in jobs):
            return self._add_carefully(jobs)
        try:
            if intake.are_plain(jobs):
                return self._db.run("add", lambda t: intake.add_plain(t, jobs, self._particular))
            return self._add(jobs, intake.add)
        except WriteRefused as error:
            is_stop = intake.is_stop(error.__cause__)
            if not is_stop and not isinstance(error, AlreadyThere):
                raise
        if is_stop:
            self._particular |= self._db.run("add", lambda t: intake.find_particular(t.db, jobs))
        return self._add_carefully(jobs)

    def _add_carefully(self, jobs: Sequence[NewJob]) -> list[Added]:
        added = self._add(jobs, intake.add_carefully)
        others = self._stopped - {job.row.flow for job in jobs}
        self._stopped = others | {one.stop.flow for one in added if one.stop is not None}
        return added

    def _add(
        self, jobs: Sequence[NewJob], add: Callable[[Transaction, Sequence[NewJob]], list[Added]]
    ) -> list[Added]:
        return self._db.run("add", lambda t: add(t, jobs), patience_ms=SUBMIT_PATIENCE_MS)

    def commit(self, changes: Sequence[Change]) -> list[Receipt]:
        return self._run_in_order("commit", lambda t: commits.commit(t, changes))

    def claim(self, request: ClaimRequest) -> Claimed:
        if self._is_ordinary and straight.is_open_to(request):
            claimed = self._claim_straight(request)
            if claimed is not None:
                return claimed
        claimed, self._is_ordinary = self._run_in_order("claim", lambda t: claims.claim(t, request))
        return claimed

    def _claim_straight(self, request: ClaimRequest) -> Claimed | None:
        t, journey = self._run_in_order("claim", lambda t: (t, straight.go(t, request)))
        look, is_clear, leased = journey.read(t)
        if not is_clear or leased.is_odd:
            return None
        taken = leases.claims_of(request, leased.rows)
        if leases.has_results(taken):
            taken = self._read(lambda db: leases.with_results(db, taken))
        requests: list[Request] = []
        if look.any_requests:
            requests = self._read(lambda db: leases.requests_of(db, request.worker))
        next_at: Instant | None = t.now
        if not is_full(request.wants, taken):
            next_at = straight.earliest(leased.next_due, look.next_at())
        return Claimed(taken, t.now, requests, next_at, 0)

    def _run_in_order(self, kind: str, work: Callable[[Transaction], T]) -> T:
        """Run what a worker does all the time, with settings that its session keeps."""
        return self._db.run(kind, work, in_order=True, patience_ms=COMMIT_PATIENCE_MS)

    register = written("register", leases.register)
    renew = written("renew", leases.renew, urgent=True)
    unregister = written("unregister", leases.unregister)
    leased = read(leases.leased)
    dismiss = written("dismiss", upkeep.dismiss)

    _control = CONTROL
    change_limit = written("limit", CONTROL.change_limit)
    resume = written("resume", CONTROL.resume)
    sweep = written("sweep", control.sweep)
    count_waiting = read(control.count_waiting)

    caller_kinds = caller.KINDS
    find_driver = staticmethod(caller.find_driver)

    def add_steps(self, job: NewJob, ask: Ask | None = None) -> Steps[Added]:
        return caller.add_steps(self._here, job, self.clock.now(), ask)

    @contextmanager
    def inside(self, connection: Any, execute: Execute) -> Iterator[Store]:
        yield _InsideStore(self, caller.Borrowed(self._here, execute))

    def begin_stage(self) -> StageTransaction:
        return PostgresStage(self._db.lent, self.clock, self._db.tell)

    def begin(
        self, *, patience_ms: int | None = None, purpose: bytes = b"", quiet: bool = False
    ) -> PostgresTransaction:
        # Only who wants the same key waits for it, so there is nobody to tell the purpose to.
        tell = _tell_nobody if quiet else self._db.tell
        return PostgresTransaction(self._db.lent, self.clock, tell, patience_ms)

    def reading(self) -> AbstractContextManager[psycopg.Connection[Row]]:
        return self._db.lent.reading()

    def claim_record(self, row: RecordRow, *, ttl_us: int, lease_us: int | None) -> RecordClaim:
        work = partial(records.claim, row=row, ttl_us=ttl_us, lease_us=lease_us)
        return self._db.run("record", work, patience_ms=COMMIT_PATIENCE_MS)

    renew_records = written("record", records.renew, urgent=True)
    mark_record = written("record", records.mark)
    finish_record = written("record", records.finish)
    release_record = written("record", records.release)

    def find_records(self, ids: Sequence[RecordId]) -> list[RecordRow | None]:
        clock = {"now": self.clock.now(), "by_server": isinstance(self.clock, ServerClock)}
        return self._read(lambda db: records.find(db, clock, ids))

    forget_record = written("record", records.forget)
    clean_records = written("record", records.clean)

    asked = read(upkeep.asked)

    def unpark(self, limit: int) -> int:
        page = self._parked
        unparked, self._parked = self._write("unpark", lambda t: upkeep.unpark(t, limit, page))
        return unparked

    def fold_counts(self) -> None:
        self._db.run("fold", upkeep.fold_counts)
        self._read(self._make_months)

    def prune(
        self,
        *,
        before: Instant,
        limit: int,
        actor: str = "",
        note: str = "",
        of: tuple[str, str] | None = None,
    ) -> int:
        # A month goes as a whole, so it is looked at only when every flow is.
        if of is None and time.monotonic() >= self._retire_at:
            self._retire_at = time.monotonic() + RETIRE_EVERY_S
            over = [m for m in self._read(months.existing) if m < months.month_of(before)]
            if over:
                self._db.run("prune", lambda t: upkeep.retire(t, over, before))
        pruned = self._db.run("prune", lambda t: upkeep.prune(t, before, limit, actor, note, of))
        if pruned < limit:
            for month in self._read(upkeep.empty_months):
                self._read(partial(months.drop, month=month))
                self._months.discard(month)
        return pruned

    def tick(self, ticks: Sequence[Tick]) -> list[bool]:
        work = partial(intake.tick, ticks=ticks)
        return self._db.run("tick", work, patience_ms=SUBMIT_PATIENCE_MS)

    post_messages = written("post", outbox.post)

    def has_due(self, handler: str) -> bool:
        is_due, is_unranked = self._read(lambda db: outbox.look(db, handler, self.clock.now()))
        if is_unranked:
            self._db.run("take", lambda t: outbox.rank(t, handler))
        return is_due or is_unranked

    def take_messages(self, handler: str, limit: int, *, hold_us: int) -> list[OutboxRow]:
        # Most looks are in vain: those do not write.
        if not any(self._read(lambda db: outbox.look(db, handler, self.clock.now()))):
            return []
        return self._db.run("take", lambda t: outbox.take(t, handler, limit, hold_us))

    hold_messages = written("take", outbox.hold)
    settle_messages = written("settle", outbox.settle)
    redrive_message = written("redrive", OUTBOX.redrive)
    discard_message = written("redrive", OUTBOX.discard)
    expire_messages = written("sweep", outbox.expire)

    find_job = read(intake.find_job)

    def add_owner(self, job_id: bytes, owner: str, *, since: Instant | None = None) -> None:
        self._db.run("add", lambda t: intake.own(t, [(job_id, owner)], since))

    find_commits = read(reads.commits)
    list_jobs = read(reads.list_jobs)
    count_standing = read_now(reads.count_standing)
    workers = read(reads.workers)
    scan_orphans = read(reads.orphans)

    def changed_elsewhere(self) -> bool:
        return self._listener is not None and self._listener.has_changed()

    def on_commit(self, ring: Callable[[], None]) -> None:
        self._rings.append(ring)

    def on_move(self, ring: Callable[[], None]) -> Callable[[], None]:
        stop = self._watchers.add(ring)
        if self._listener is not None:
            self._listener.watch()
        return stop


class _InsideStore(PostgresStore):
    """The verbs of a store inside a transaction of a caller's, who commits it."""

    def __init__(self, store: PostgresStore, db: caller.Borrowed) -> None:
        self.clock, self.features = store.clock, store.features
        self._session = cast(Session, db)

    @property
    def _db(self) -> Connections:
        return cast(Connections, self)

    def use(self, read: Callable[[Session], T]) -> T:
        return read(self._session)

    def run(self, kind: str, work: Callable[[Transaction], T], **_: object) -> T:
        t = Transaction(self._session, self.clock, is_guest=True)
        answer = work(t)
        t.finish()
        return answer

    def commit(self, changes: Sequence[Change]) -> list[Receipt]:
        if any(change.proofs for change in changes):
            raise NotSupported(
                f"{changes[0].row.flow} has proofs, and a transaction of yours cannot chain one on "
                "PostgreSQL: every other job of the tenant would wait until it ends; leave "
                "connection= out and act when you have committed"
            )
        return super().commit(changes)

    def post_messages(self, messages: Sequence[Message]) -> None:
        self.run("post", lambda t: outbox.post_unranked(t, messages))


def _tell_nobody(_: Transaction) -> None:
    """Ring for nobody."""


def _place(db: Session) -> str:
    """Name the server and the database; never who we are, nor by which password."""
    info = db.connection.info
    return f"{info.host}:{info.port}/{info.dbname}"
