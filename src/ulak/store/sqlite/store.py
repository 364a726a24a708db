"""The store itself: each verb of the protocol, sent to the writer or to a reader."""

from __future__ import annotations

import ctypes
import sqlite3
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import Any, TypeVar, cast

from ulak.clock import Clock, Instant, SystemClock
from ulak.core.admission import Ask
from ulak.core.change import Change, Receipt
from ulak.core.job import NewJob
from ulak.errors import BadInput, StoreError
from ulak.store import processes
from ulak.store.caller import Driver, Execute, Steps
from ulak.store.flow_control import FIRST_PAGE
from ulak.store.processes import Watchers
from ulak.store.protocol import Added, Claimed, ClaimRequest, Features, OutboxRow, Store, WorkerRow
from ulak.store.records import RecordClaim, RecordRow
from ulak.store.sql.store import SqlStore, read, read_now, written
from ulak.store.sqlite import (
    caller,
    claims,
    commits,
    control,
    intake,
    leases,
    migrations,
    outbox,
    records,
    upkeep,
)
from ulak.store.sqlite.control import CONTROL
from ulak.store.sqlite.files import Files
from ulak.store.sqlite.outbox import OUTBOX
from ulak.store.sqlite.session import Session, SharedTransaction, Transaction, own, own_read, shared
from ulak.store.sqlite.transactions import PATIENCE_MS, LentTurns, SqliteTransaction
from ulak.store.sqlite.wakeup import IS_KNOWN, Wakeup
from ulak.store.sqlite.writer import Readers, Writer
from ulak.store.transaction import refuse_while_holding

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


class SqliteStore(SqlStore):
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
        processes.tell_of_forks(self)

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
        deadline = time.monotonic() + processes.QUIET_WITHIN_S
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

    def _write(
        self, kind: str, work: Callable[[SharedTransaction], T], *, urgent: bool = False
    ) -> T:
        return self._run(kind, shared(work), urgent=urgent)

    def _run(self, kind: str, work: Callable[[Transaction], T], *, urgent: bool = False) -> T:
        """Write in SQLite's own words alone, as most writes do."""
        refuse_while_holding(self)
        return (self._open_writer or self._opened).run(kind, work, urgent=urgent)

    def _read(self, read: Callable[[Session], T]) -> T:
        return self._readers.run(lambda db: read(Session(db)))

    @property
    def place(self) -> str:
        """Where it is."""
        return str(self.path.resolve())

    def about(self) -> dict[str, object]:
        """Return what `doctor` shows of this store."""
        return {
            "path": str(self.path),
            "sqlite": sqlite3.sqlite_version,
            "wal_reset_bug": has_wal_reset_bug(sqlite3.sqlite_version_info),
            "synchronous": self._synchronous,
            "wal_bytes": self.wal_size(),
            "schema": self._readers.run(migrations.version_of),
            "newest_schema": self.newest_schema,
            "oldest_schema": self._readers.run(migrations.oldest_of),
        }

    def wal_size(self) -> int:
        return self._opened.wal.size()

    def add(self, jobs: Sequence[NewJob]) -> list[Added]:
        return self._run("add", lambda t: intake.add(t, jobs))

    def commit(self, changes: Sequence[Change]) -> list[Receipt]:
        return self._run("commit", lambda t: commits.commit(t, changes))

    def claim(self, request: ClaimRequest) -> Claimed:
        return self._run("claim", lambda t: claims.claim(t, request))

    register = written("register", own(leases.register))
    renew = written("renew", own(leases.renew), urgent=True)
    unregister = written("unregister", own(leases.unregister))
    leased = read(own_read(leases.leased))
    dismiss = written("dismiss", own(upkeep.dismiss))

    _control = CONTROL
    change_limit = written("limit", CONTROL.change_limit)
    resume = written("resume", CONTROL.resume)
    sweep = written("sweep", control.sweep)
    count_waiting = read(own_read(intake.count_waiting))

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

    asked = read(upkeep.asked)

    def unpark(self, limit: int) -> int:
        unparked, self._parked = self._write(
            "unpark", lambda t: upkeep.unpark(t.own, limit, self._parked)
        )
        return unparked

    fold_counts = written("fold", own(upkeep.fold_counts))
    prune = written("prune", own(upkeep.prune))

    tick = written("tick", own(intake.tick))

    def claim_record(self, row: RecordRow, *, ttl_us: int, lease_us: int | None) -> RecordClaim:
        return self._run("record", lambda t: records.claim(t.db, t.now, row, ttl_us, lease_us))

    renew_records = written("record", own(records.renew), urgent=True)

    def mark_record(self, row: RecordRow, *, lease_us: int) -> bool:
        return self._run("record", lambda t: records.mark(t.db, t.now, row, lease_us))

    def finish_record(self, row: RecordRow, *, ttl_us: int) -> bool:
        return self._run("record", lambda t: records.finish(t.db, t.now, row, ttl_us))

    release_record = written("record", own(records.release))
    find_records = read_now(own_read(records.find))
    forget_record = written("record", own(records.forget))
    clean_records = written("record", own(records.clean))

    def begin(
        self, *, patience_ms: int | None = None, purpose: bytes = b"", quiet: bool = False
    ) -> SqliteTransaction:
        writer = self._writer
        patience = PATIENCE_MS if patience_ms is None else patience_ms
        tell = _tell_nobody if quiet else self._ring
        return self._lent.begin(writer, tell, patience, purpose)

    def reading(self) -> AbstractContextManager[sqlite3.Connection]:
        return self._readers.lend()

    def _ring(self) -> None:
        for ring in self._rings:
            ring()
        if self._wakeup is not None:
            self._wakeup.ring()
        self._watchers.ring()

    post_messages = written("post", own(outbox.post))

    def has_due(self, handler: str) -> bool:
        return self._read(lambda db: outbox.is_any_due(db.own, handler, self.clock.now()))

    def take_messages(self, handler: str, limit: int, *, hold_us: int) -> list[OutboxRow]:
        # Most looks are in vain: those do not write.
        if not self.has_due(handler):
            return []
        return self._run("take", lambda t: outbox.take(t, handler, limit, hold_us))

    hold_messages = written("take", own(outbox.hold))
    settle_messages = written("settle", own(outbox.settle))
    redrive_message = written("redrive", OUTBOX.redrive)
    discard_message = written("redrive", OUTBOX.discard)
    expire_messages = written("sweep", own(outbox.expire))

    find_job = read(own_read(intake.find_job))

    def add_owner(self, job_id: bytes, owner: str, *, since: Instant | None = None) -> None:
        self._run("add", lambda t: intake.own(t, [(job_id, owner)], since))

    find_commits = read(own_read(upkeep.commits))
    list_jobs = read(upkeep.list_jobs)
    count_standing = read_now(own_read(upkeep.count_standing))

    def workers(self) -> list[WorkerRow]:
        return self._read(lambda db: upkeep.workers(db.own, self.clock))

    scan_orphans = read(own_read(upkeep.orphans))

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

    def _read(self, read: Callable[[Session], T]) -> T:
        return read(Session(self._borrowed))

    def _run(self, kind: str, work: Callable[[Transaction], T], *, urgent: bool = False) -> T:
        t = Transaction(self._borrowed, self.clock)
        answer = work(t)
        t.finish()
        return answer

    def commit(self, changes: Sequence[Change]) -> list[Receipt]:
        return self._run("commit", lambda t: commits.commit_each(t, changes))


def _tell_nobody() -> None:
    """Ring for nobody."""


def has_wal_reset_bug(version: tuple[int, ...]) -> bool:
    """Tell whether a checkpoint that overlaps a resetting write can lose pages in this SQLite."""
    return (3, 7, 0) <= version <= (3, 51, 2) and version not in ((3, 50, 7), (3, 44, 6))
