"""The store itself: each verb of the protocol, sent to the writer or to a reader."""

from __future__ import annotations

import ctypes
import sqlite3
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from functools import partial
from pathlib import Path
from typing import Any, TypeVar, cast

from ulak.clock import Clock, Instant, SystemClock
from ulak.core.admission import Ask
from ulak.core.change import Change, Receipt
from ulak.core.job import NewJob
from ulak.core.policy import LimitTerms, RateTerms
from ulak.errors import BadInput, StoreError
from ulak.store import forks
from ulak.store.caller import Driver, Execute, Rows, Steps, take
from ulak.store.flow_control import FIRST_PAGE
from ulak.store.protocol import (
    NO_RATES,
    Added,
    Claimed,
    ClaimRequest,
    DedupRow,
    Features,
    OutboxRow,
    PauseRow,
    Store,
    WorkerRow,
)
from ulak.store.records import RecordClaim, RecordRow
from ulak.store.sqlite import (
    audit,
    caller,
    claims,
    commits,
    control,
    credentials,
    intake,
    migrations,
    outbox,
    reads,
    records,
    schedules,
    standing,
    stops,
    upkeep,
)
from ulak.store.sqlite.transactions import PATIENCE_MS, LentTurns, SqliteTransaction
from ulak.store.sqlite.wakeup import IS_KNOWN, Wakeup
from ulak.store.sqlite.writer import Files, Readers, Transaction, Writer
from ulak.store.stops import StopVerbs
from ulak.store.transaction import refuse_while_holding
from ulak.store.verbs import read, read_now, written
from ulak.store.watchers import Watchers

T = TypeVar("T")

# Large enough that a page written many times goes home once, small enough that a checkpoint does
# not hold up the writers for long.
CHECKPOINT_BYTES = 16 * 1024 * 1024

LOSSES: Mapping[str, str] = {
    "EXTRA": "nothing that was acknowledged is lost",
    "FULL": "nothing that was acknowledged is lost",
    "NORMAL": "a power cut may lose the last moments, never a part of a transaction",
    "OFF": "a power cut may destroy the file",
}


class SqliteStore(StopVerbs):
    """A `Store` in one file, shared by any number of threads and processes of one machine.

    Args:
        path: The database file; beside it stand its WAL and a lock file.
        clock: Tells the time that decides.
        synchronous: What SQLite flushes at a commit; `FULL` survives a power cut.
        checkpoint_bytes: The WAL is brought home when it is longer than this.
    """

    def __init__(
        self,
        path: str | Path,
        *,
        clock: Clock | None = None,
        synchronous: str = "FULL",
        checkpoint_bytes: int = CHECKPOINT_BYTES,
    ) -> None:
        if synchronous not in LOSSES:
            raise ValueError(f"synchronous={synchronous!r} is not one of {', '.join(LOSSES)}")
        if str(path) in ("", ":memory:"):
            raise ValueError("a store needs a file that several connections see; use MemoryStore")
        self.path = Path(path)
        self.clock: Clock = clock or SystemClock()
        self.features = Features(
            name="sqlite",
            durable=True,
            shared=True,
            caller_transactions=True,
            open_transactions=True,
            one_writer=True,
            dialect="sqlite",
            flow_control=True,
            durability=LOSSES[synchronous],
        )
        self._synchronous = synchronous
        self._checkpoint_bytes = checkpoint_bytes
        self._open_writer: Writer | None = None
        self._open_readers: Readers | None = None
        self._parked = FIRST_PAGE
        """Where the next look at what jobs are parked on begins."""
        self._rings: list[Callable[[], None]] = []
        self._watchers = Watchers()
        self._wakeup: Wakeup | None = None
        self._callers = caller.Callers(self.path)
        self._lent = self._new_lent()
        self._paused: list[Callable[[], None]] | None = None
        """How each part goes on after a fork; None when one was in use for too long."""
        self._is_cut = False
        self._opening = threading.Lock()
        self._is_inherited = False
        """It was open when this process was forked: its first use opens it here."""
        forks.tell_of_forks(self)

    # --- life -------------------------------------------------------------------

    def open(self) -> None:
        with self._opening:
            if self._open_writer is None:
                self._open()

    def _open(self) -> None:
        if self._is_cut:
            raise StoreError(
                f"this process was forked in the middle of a transaction on {self.path}, and "
                "cannot use SQLite there any more: fork before or after it, or spawn the process"
            )
        writer = self._new_writer()
        try:
            writer.with_file_locked(lambda db: migrations.create_or_check(db, str(self.path)))
            writer.files = Files(self.path)
        except BaseException:
            writer.close()
            raise
        for ring in self._rings:
            writer.on_commit(ring)
        writer.on_move(self._tell_moved)
        self._open_readers = Readers(self.path, writer.files)
        self._open_writer = writer
        if IS_KNOWN:
            self._wakeup = Wakeup(self.path, self._heard, self._watchers)
            writer.on_commit(self._wakeup.ring)
            if self._rings or self._watchers:
                self._wakeup.listen()

    def close(self) -> None:
        refuse_while_holding(self)
        self._is_inherited = False
        wakeup, self._wakeup = self._wakeup, None
        if wakeup is not None:
            wakeup.close()
        readers, self._open_readers = self._open_readers, None
        writer, self._open_writer = self._open_writer, None
        self._callers.close()
        lent, self._lent = self._lent, self._new_lent()
        lent.close()
        if readers is not None:
            readers.close()
        if writer is not None:
            writer.close()

    # SQLite keeps one record of a file's locks for all connections of a process. A child inherits
    # it with locks that only its parent has, and new connections would believe in them: so the
    # inherited ones must be closed there, which is harmless if nobody is in the middle of a write.

    def before_fork(self) -> None:
        self._paused = []
        deadline = time.monotonic() + forks.QUIET_WITHIN_S
        for part in (self._lent, self._open_writer, self._open_readers, self._callers):
            if part is None:
                continue
            if not part.pause(max(0.0, deadline - time.monotonic())):
                self.after_fork_in_parent()
                self._paused = None
                return
            self._paused.append(part.go_on)

    def after_fork_in_parent(self) -> None:
        paused, self._paused = self._paused, []
        for go_on in reversed(paused or []):
            go_on()

    def after_fork_in_child(self) -> None:
        self._opening = threading.Lock()
        self._is_inherited = self._is_inherited or self._open_writer is not None
        writer, self._open_writer = self._open_writer, None
        readers, self._open_readers = self._open_readers, None
        callers, self._callers = self._callers, caller.Callers(self.path)
        lent, self._lent = self._lent, self._new_lent()
        wakeup, self._wakeup = self._wakeup, None
        if wakeup is not None:
            wakeup.forget()
        self._watchers.clear()
        if self._paused is not None:
            for part in (readers, callers, lent, writer):
                if part is not None:
                    part.forget()
            return
        # To close a connection in the middle of a write would take back its parent's write.
        self._is_cut = True
        for turn in (lent, writer):
            if turn is not None:
                turn.forget_turn()
        ctypes.pythonapi.Py_IncRef(ctypes.py_object((writer, readers, callers, lent)))

    def migrate(self) -> tuple[int, int]:
        if self._open_writer is not None:
            return self._open_writer.with_file_locked(self._upgrade)
        writer = self._new_writer()
        try:
            return writer.with_file_locked(self._upgrade)
        finally:
            writer.close()

    def _upgrade(self, db: sqlite3.Connection) -> tuple[int, int]:
        return migrations.upgrade(db, str(self.path))

    @property
    def newest_schema(self) -> int:
        """The number of the schema that this release knows."""
        return migrations.NEWEST

    def _new_writer(self) -> Writer:
        return Writer(
            self.path,
            clock=self.clock,
            synchronous=self._synchronous,
            checkpoint_bytes=self._checkpoint_bytes,
        )

    def _new_lent(self) -> LentTurns:
        return LentTurns(self.path, clock=self.clock, synchronous=self._synchronous)

    @property
    def _opened(self) -> Writer:
        if self._open_writer is None and self._is_inherited:
            self.open()
        if self._open_writer is None:
            raise StoreError(f"{self.path} is not open; call open() first")
        return self._open_writer

    @property
    def _readers(self) -> Readers:
        if self._open_readers is None and self._is_inherited:
            self.open()
        if self._open_readers is None:
            raise StoreError(f"{self.path} is not open; call open() first")
        return self._open_readers

    @property
    def _writer(self) -> Writer:
        refuse_while_holding(self)
        return self._opened

    def _write(self, kind: str, work: Callable[[Transaction], T], *, urgent: bool = False) -> T:
        return self._writer.run(kind, work, urgent=urgent)

    def _read(self, read: Callable[[sqlite3.Connection], T]) -> T:
        return self._readers.run(read)

    def about(self) -> dict[str, object]:
        """Return what `doctor` shows of this store."""
        return {
            "path": str(self.path),
            "sqlite": sqlite3.sqlite_version,
            "wal_reset_bug": has_wal_reset_bug(sqlite3.sqlite_version_info),
            "synchronous": self._synchronous,
            "wal_bytes": self.wal_size(),
            "schema": self._read(migrations.version_of),
            "newest_schema": self.newest_schema,
            "oldest_schema": self._read(migrations.oldest_of),
        }

    def wal_size(self) -> int:
        """Return how many bytes of the WAL are in use."""
        return self._opened.wal.size()

    # --- writing ----------------------------------------------------------------

    def add(self, jobs: Sequence[NewJob]) -> list[Added]:
        return self._write("add", lambda t: intake.add(t, jobs))

    def commit(self, changes: Sequence[Change]) -> list[Receipt]:
        return self._write("commit", lambda t: commits.commit(t, changes))

    def claim(self, request: ClaimRequest) -> Claimed:
        return self._write("claim", lambda t: claims.claim(t, request))

    register = written("register", claims.register)
    renew = written("renew", claims.renew, urgent=True)
    unregister = written("unregister", claims.unregister)
    leased = read(claims.leased)
    request = written("request", upkeep.request)
    dismiss = written("dismiss", upkeep.dismiss)
    report = written("report", upkeep.report)

    # --- flow control -----------------------------------------------------------

    def declare(
        self, limits: Mapping[str, LimitTerms], rates: Mapping[str, RateTerms] = NO_RATES
    ) -> None:
        self._write("declare", lambda t: control.declare(t, limits, rates))
        for name, terms in sorted(limits.items()):
            if terms.busy is not None:
                self._adopt(name, terms)

    def _adopt(self, name: str, terms: LimitTerms) -> None:
        while found := self._read(lambda db: control.find_misplaced(db, name, terms)):
            adopt = partial(control.adopt, name=name, terms=terms, job_ids=found)
            self._write("declare", adopt)

    change_limit = written("limit", control.change_limit)
    change_rate = written("rate", control.change_rate)

    def pause(
        self, kind: str, name: str, *, until: Instant | None, actor: str, note: str
    ) -> PauseRow | None:
        return self._write(
            "pause",
            lambda t: control.pause(t, PauseRow(kind, name, until, actor, note or None, t.now)),
        )

    resume = written("resume", control.resume)
    weigh = written("weigh", control.weigh)

    stop_sql = stops.SQL

    def _write_steps(self, make: Callable[[], Steps[T]]) -> T:
        return self._write("stop", lambda t: _take(t.db, make()))

    def _read_steps(self, make: Callable[[], Steps[T]]) -> T:
        return self._read(lambda db: _take(db, make()))

    sweep = written("sweep", control.sweep)
    limits = read(control.limits)
    rates = read(control.rates)
    buckets = read(control.buckets)

    def pauses(self, *, over: bool = False) -> list[PauseRow]:
        now = 0 if over else self.clock.now()
        return self._read(lambda db: control.pauses(db, now))

    weights = read(control.weights)
    audit_trail = read(audit.trail)

    # --- callers' transactions (`ulak.store.caller.Guest`) ---------------------------

    caller_kinds = caller.KINDS

    def find_driver(self, connection: object) -> Driver | None:
        if self._open_writer is None:
            # Opening writes, and would wait for the very transaction that waits for it.
            raise BadInput(
                "open the engine before a transaction of yours begins: call engine.open() when "
                "the program starts"
            )
        self._open_writer.check_files()
        return self._callers.find_driver(connection)

    def add_steps(self, job: NewJob, ask: Ask | None = None) -> Steps[Added]:
        return caller.add_steps(self._callers, job, self.clock.now(), ask)

    @contextmanager
    def inside(self, connection: Any, execute: Execute) -> Iterator[Store]:
        with caller.borrow(self._callers, connection, execute) as db:
            yield _InsideStore(self, db)

    # --- upkeep -----------------------------------------------------------------

    due = read_now(upkeep.due)
    overdue_leased = read_now(upkeep.overdue_leased)
    asked = read(upkeep.asked)

    def unpark(self, limit: int) -> int:
        unparked, self._parked = self._write(
            "unpark", lambda t: upkeep.unpark(t, limit, self._parked)
        )
        return unparked

    fold_counts = written("fold", upkeep.fold_counts)
    ended = read(upkeep.ended)
    prune = written("prune", upkeep.prune)

    # --- schedules --------------------------------------------------------------

    keep_schedules = written("schedules", schedules.keep)
    due_schedules = read(schedules.due)
    tick = written("tick", schedules.tick)
    pause_schedule = written("schedule-pause", schedules.pause)
    resume_schedule = written("schedule-pause", schedules.resume)
    ticks = read(schedules.ticks)
    schedules = read(schedules.every)

    # --- credentials ------------------------------------------------------------

    add_credential = written("credential", credentials.add)
    change_credential = written("credential", credentials.change)
    note_use = written("credential", credentials.note_use)
    find_credential = read(credentials.find)
    forget_credentials = written("credential", credentials.forget)
    credentials = read(credentials.of_kind)

    # --- idempotency records ----------------------------------------------------

    def claim_record(self, row: RecordRow, *, ttl_us: int, lease_us: int | None) -> RecordClaim:
        return self._write("record", lambda t: records.claim(t.db, t.now, row, ttl_us, lease_us))

    renew_records = written("record", records.renew, urgent=True)

    def mark_record(self, row: RecordRow, *, lease_us: int) -> bool:
        return self._write("record", lambda t: records.mark(t.db, t.now, row, lease_us))

    def finish_record(self, row: RecordRow, *, ttl_us: int) -> bool:
        return self._write("record", lambda t: records.finish(t.db, t.now, row, ttl_us))

    release_record = written("record", records.release)
    find_records = read_now(records.find)
    forget_record = written("record", records.forget)
    clean_records = written("record", records.clean)

    # --- open transactions (`ulak.store.transaction.TransactionStore`) ---------------

    def begin(self, *, patience_ms: int | None = None, purpose: bytes = b"") -> SqliteTransaction:
        writer = self._writer
        patience = PATIENCE_MS if patience_ms is None else patience_ms
        return self._lent.begin(writer, self._ring, patience, purpose)

    def reading(self) -> AbstractContextManager[sqlite3.Connection]:
        return self._readers.lend()

    def _ring(self) -> None:
        for ring in self._rings:
            ring()
        if self._wakeup is not None:
            self._wakeup.ring()
        self._watchers.ring()

    # --- outbox -----------------------------------------------------------------

    keep_handlers = written("handlers", outbox.keep_handlers)
    handlers = read(outbox.handlers)
    forget_handler = written("handlers", outbox.forget_handler)
    post_messages = written("post", outbox.post)

    def has_due(self, handler: str) -> bool:
        return self._read(lambda db: outbox.is_any_due(db, handler, self.clock.now()))

    def take_messages(self, handler: str, limit: int, *, hold_us: int) -> list[OutboxRow]:
        # Most looks are in vain: those do not write.
        if not self.has_due(handler):
            return []
        return self._write("take", lambda t: outbox.take(t, handler, limit, hold_us))

    hold_messages = written("take", outbox.hold)
    settle_messages = written("settle", outbox.settle)
    deliveries = read(outbox.listed)
    count_deliveries = read(outbox.counted)
    redrive_message = written("redrive", outbox.redrive)
    discard_message = written("redrive", outbox.discard)
    expire_messages = written("sweep", outbox.expire)

    # --- reading ----------------------------------------------------------------

    find_job = read(intake.find_job)
    find_payload = read(reads.payload)
    find_results = read(reads.results)

    def find_key(self, tenant: str, flow: str, key: str) -> bytes | None:
        return self._read(lambda db: reads.key(db, (tenant, flow, key), self.clock.now()))

    def add_owner(self, job_id: bytes, owner: str) -> None:
        self._write("add", lambda t: intake.own(t, [(job_id, owner)]))

    find_owned = read(reads.owned)
    find_owners = read(reads.owners)
    find_commits = read(reads.commits)
    find_progress = read(reads.progress)
    trail = read(reads.trail)
    list_jobs = read(reads.list_jobs)
    count_jobs = read(reads.count_jobs)
    counts = read(reads.counts)
    count_standing = read_now(standing.count)

    def workers(self) -> list[WorkerRow]:
        return self._read(lambda db: reads.workers(db, self.clock))

    pending_requests = read(reads.requests)
    slots = read(reads.slots)

    # --- whole-store reads ------------------------------------------------------

    scan_jobs = read(reads.jobs_upward)
    scan_messages = read(reads.messages_of)

    def scan_keys(self) -> Iterator[DedupRow]:
        page = self._read(lambda db: reads.keys(db, None))
        while page:
            yield from page
            last = page[-1]
            page = self._read(partial(reads.keys, last=last))

    scan_proofs = read(reads.proofs)
    proof_heads = read(reads.proof_heads)
    scan_orphans = read(reads.orphans)

    # --- waking -----------------------------------------------------------------

    def changed_elsewhere(self) -> bool:
        return self._writer.changed_elsewhere()

    def on_commit(self, ring: Callable[[], None]) -> None:
        self._rings.append(ring)
        if self._open_writer is not None:
            self._open_writer.on_commit(ring)
        if self._wakeup is not None:
            self._wakeup.listen()

    def on_move(self, ring: Callable[[], None]) -> Callable[[], None]:
        stop = self._watchers.add(ring)
        if self._wakeup is not None:
            self._wakeup.listen()
        return stop

    def _tell_moved(self, made_due: bool) -> None:
        self._watchers.ring()
        if self._wakeup is not None and not made_due:
            self._wakeup.ring_watchers()

    def _heard(self) -> bool:
        try:
            has_changed = self._opened.changed_elsewhere(PATIENCE_MS / 1000)
        except StoreError:
            return False  # closed, or its file is lost: the next call raises
        if has_changed:
            for ring in self._rings:
                ring()
            self._watchers.ring()
        return has_changed


class _InsideStore(SqliteStore):
    """The verbs of a store inside a transaction of a caller's, who commits it."""

    def __init__(self, store: SqliteStore, db: caller.Borrowed) -> None:
        self.path, self.clock, self.features = store.path, store.clock, store.features
        self._borrowed = cast(sqlite3.Connection, db)

    def _read(self, read: Callable[[sqlite3.Connection], T]) -> T:
        return read(self._borrowed)

    def _write(self, kind: str, work: Callable[[Transaction], T], *, urgent: bool = False) -> T:
        t = Transaction(self._borrowed, self.clock)
        answer = work(t)
        t.finish()
        return answer

    def commit(self, changes: Sequence[Change]) -> list[Receipt]:
        return self._write("commit", lambda t: commits.commit_each(t, changes))


def has_wal_reset_bug(version: tuple[int, ...]) -> bool:
    """Tell whether a checkpoint that overlaps a resetting write can lose pages in this SQLite."""
    return (3, 7, 0) <= version <= (3, 51, 2) and version not in ((3, 50, 7), (3, 44, 6))


def _take(db: sqlite3.Connection, steps: Steps[T]) -> T:
    """Take steps on a connection of ours."""
    return take(steps, lambda sql, values: Rows(db.execute(sql, values).fetchall()))
