"""The one writing connection of a process: turns, transactions, checkpoints."""

from __future__ import annotations

import sqlite3
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TypeVar

from ulak.clock import Clock
from ulak.errors import Misconfigured, StoreError, WriteRefused
from ulak.store import faults
from ulak.store.processes import StoreAway, WouldWait, get_deadline
from ulak.store.sqlite.files import Files, LockFile, Turns, Wal
from ulak.store.sqlite.session import Transaction

T = TypeVar("T")
# How long a writer waits for somebody who writes without the lock file: a caller's own
# transaction, or a shell. A guess; ulak's own writers queue on the lock file instead.
BUSY_TIMEOUT_S = 10.0

# How long a verb waits for its turn: behind other threads of the process, and for the lock file.
# A guess: turns take milliseconds. Only a program that is stopped, or that keeps a transaction
# open, holds one for seconds.
TURN_TIMEOUT_S = 10.0

# Batched statements come in five sizes each; none of them should be compiled twice.
CACHED_STATEMENTS = 512

# A guess: the largest batch (4 MiB) several times over, with the indexes it touches.
CACHE_KIB = 32 * 1024
# A look costs two system calls. Eight of the largest batches (4 MiB and their indexes) may pass
# before the WAL is brought home; it is then some tens of MiB longer than it need be.
LOOK_AT_WAL_EVERY = 8


class Writer:
    """Runs every write of this process, one at a time, each a transaction of its own."""

    def __init__(self, path: Path, *, clock: Clock, synchronous: str, checkpoint_bytes: int):
        self._clock = clock
        self._turns = Turns()
        self._rings: list[Callable[[], None]] = []
        self._tell_moved: Callable[[bool], None] = lambda made_due: None
        self._closed = False
        self._writes = 0
        self._path = path
        self._lock_file = LockFile(path.with_name(path.name + ".lock"))
        self._lock(TURN_TIMEOUT_S)
        try:
            self.db = _connect_writer(path, synchronous)
        finally:
            self._lock_file.release()
        self.files: Files | None = None
        """Those that were opened; known as soon as something was read from them."""
        page_size = self.db.execute("PRAGMA page_size").fetchone()[0]
        self.wal = Wal(path.with_name(path.name + "-wal"), page_size, checkpoint_bytes)
        self._data_version = self._read_data_version()

    def on_commit(self, ring: Callable[[], None]) -> None:
        self._rings.append(ring)

    def on_move(self, tell: Callable[[bool], None]) -> None:
        """Call `tell` after each commit that may have moved jobs, with whether one may be due."""
        self._tell_moved = tell

    def run(self, kind: str, work: Callable[[Transaction], T], *, urgent: bool = False) -> T:
        """Run `work` in a transaction and commit it; whatever is raised, nothing is written."""
        points = faults.POINTS[kind]
        deadline = get_deadline()
        if deadline is None:
            self.hold(urgent=urgent)
        elif not self.try_hold():
            raise WouldWait("another thread or process is writing")
        try:
            faults.point(points.before)
            left_s = BUSY_TIMEOUT_S if deadline is None else deadline - time.monotonic()
            if left_s < BUSY_TIMEOUT_S:
                transaction, answer = self._transact_within(left_s, work, points.inside)
            else:
                transaction, answer = self._transact(work, points.inside)
            if self.files is not None:
                self.files.check()
            faults.point(points.after)
            self._look_at_wal()
        except (sqlite3.Error, OverflowError, UnicodeEncodeError) as error:
            raise translated(error) from error
        finally:
            self._end_turn()
        if transaction.made_due:
            for ring in self._rings:
                ring()
        if transaction.made_due or transaction.counts:
            self._tell_moved(transaction.made_due)
        return answer

    def check_files(self) -> None:
        """Raise `StoreError` if a file was deleted or replaced: what was written is lost."""
        if self.files is not None:
            self.files.check()

    def hold(self, *, urgent: bool = False) -> None:
        """Take the turn until `let_go`. Raises `StoreAway`, or `StoreError` where it is closed."""
        left_s = TURN_TIMEOUT_S
        if not self._turns.try_acquire():
            began = time.monotonic()
            if not self._turns.acquire(urgent=urgent, timeout_s=TURN_TIMEOUT_S):
                raise self._taken("another thread of this process")
            left_s -= time.monotonic() - began
        self._refuse_if_closed()
        try:
            self._lock(left_s)
        except BaseException:
            self._turns.release()
            raise

    def _lock(self, timeout_s: float) -> None:
        if not self._lock_file.acquire(max(0.0, timeout_s)):
            raise self._taken("another process")

    def _taken(self, holder: str) -> StoreAway:
        return StoreAway(
            f"{holder} has been writing to {self._path} for {TURN_TIMEOUT_S:g} s: nothing was "
            "written; it may be stopped, or keep a transaction open"
        )

    def try_hold(self) -> bool:
        """Take the turn as `hold` does, if nobody has it; never waits."""
        if not self._turns.try_acquire():
            return False
        self._refuse_if_closed()
        is_held = False
        try:
            is_held = self._lock_file.try_acquire()
        finally:
            if not is_held:
                self._turns.release()
        return is_held

    def _refuse_if_closed(self) -> None:
        if self._closed:
            self._turns.release()
            raise StoreError("this store is closed")

    def let_go(self) -> None:
        """Give the turn back, from whichever thread."""
        try:
            self._look_at_wal()
        finally:
            self._end_turn()

    def _end_turn(self) -> None:
        try:
            self._lock_file.release()
        finally:
            self._turns.release()

    def _look_at_wal(self) -> None:
        self._writes += 1
        if self._writes % LOOK_AT_WAL_EVERY == 0 and self.wal.is_long():
            self.wal.checkpoint(self.db)

    def _transact(self, work: Callable[[Transaction], T], inside: str) -> tuple[Transaction, T]:
        db = self.db
        db.execute("BEGIN IMMEDIATE")
        try:
            transaction = Transaction(db, self._clock)
            answer = work(transaction)
            transaction.finish()
            faults.point(inside)
            db.execute("COMMIT")
        except BaseException:
            if db.in_transaction:
                db.execute("ROLLBACK")
            raise
        return transaction, answer

    def _transact_within(
        self, left_s: float, work: Callable[[Transaction], T], inside: str
    ) -> tuple[Transaction, T]:
        """Wait no longer than that for a writer without the lock file."""
        self.db.execute(f"PRAGMA busy_timeout = {max(0, int(left_s * 1000))}")
        try:
            return self._transact(work, inside)
        finally:
            self.db.execute(f"PRAGMA busy_timeout = {int(BUSY_TIMEOUT_S * 1000)}")

    def with_file_locked(self, work: Callable[[sqlite3.Connection], T]) -> T:
        """Run `work` on the writing connection while nobody else writes, outside a transaction."""
        self.hold()
        try:
            try:
                return work(self.db)
            except BaseException:
                if self.db.in_transaction:
                    self.db.execute("ROLLBACK")
                raise
        except sqlite3.Error as error:
            raise translated(error) from error
        finally:
            self._end_turn()

    def changed_elsewhere(self, patience_s: float = 0.0) -> bool:
        """Tell whether another connection has committed since the last call.

        The writing connection is asked, because its own commits do not count there. While it is
        writing for longer than the patience the answer is no, and the next call will still know.
        """
        self.check_files()
        if not self._turns.acquire(timeout_s=patience_s):
            return False
        try:
            if self._closed:
                return False
            seen = self._read_data_version()
        except sqlite3.Error as error:
            raise translated(error) from error
        finally:
            self._turns.release()
        changed = seen != self._data_version
        self._data_version = seen
        return changed

    def _read_data_version(self) -> int:
        version: int = self.db.execute("PRAGMA data_version").fetchone()[0]
        return version

    def pause(self, timeout_s: float) -> bool:
        """Let no write begin until `go_on`; return whether the one under way ended in time."""
        return self._turns.acquire(urgent=True, timeout_s=timeout_s)

    def go_on(self) -> None:
        self._turns.release()

    def forget(self) -> None:
        """Let go of everything in a forked child, where nobody else uses this."""
        self._lock_file.forget()
        self.wal.close()
        self.db.close()

    def forget_turn(self) -> None:
        """Let go of the lock file in a child that was forked during a turn."""
        self._lock_file.forget()

    def close(self) -> None:
        """Bring the WAL home and give everything back; closing twice is nothing."""
        self._turns.acquire()
        try:
            if self._closed:
                return
            self._closed = True
            # Without the lock the WAL stays: another process writes, and will bring it home.
            with suppress(StoreError):
                self._lock(TURN_TIMEOUT_S)
                self.wal.bring_home(self.db)
            self.wal.close()
            # The last connection to close checkpoints on its own: still under the lock.
            self.db.close()
        finally:
            self._end_turn()


def connect(path: Path) -> sqlite3.Connection:
    """Open a connection that leaves transactions to us and may be used by any one thread a time."""
    return sqlite3.connect(
        path,
        timeout=BUSY_TIMEOUT_S,
        isolation_level=None,
        check_same_thread=False,
        cached_statements=CACHED_STATEMENTS,
    )


class LockedConnection:
    """One connection behind a lock, which a fork must find at rest."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._db: sqlite3.Connection | None = None

    def close(self) -> None:
        """Give the connection back, once nobody has it; the next use opens another."""
        with self._lock:
            db, self._db = self._db, None
        if db is not None:
            db.close()

    def pause(self, timeout_s: float) -> bool:
        """Let the use end that is under way, and let none begin until `go_on`."""
        return self._lock.acquire(timeout=timeout_s)

    def go_on(self) -> None:
        self._lock.release()

    def forget(self) -> None:
        """Let go of the connection in a forked child, where nobody else uses this."""
        if self._db is not None:
            self._db.close()


def _connect_writer(path: Path, synchronous: str) -> sqlite3.Connection:
    db = None
    try:
        db = connect(path)
        # WAL, because readers must not wait for writers; changing to it needs the file alone.
        mode = db.execute("PRAGMA journal_mode = WAL").fetchone()[0]
        if mode != "wal":
            raise StoreError(f"{path} cannot have a WAL here ({mode}); use a local disk")
        db.execute(f"PRAGMA synchronous = {synchronous}")
        # A checkpoint that overlaps a write which resets the WAL can lose pages in most versions
        # of SQLite; ours run under the lock file, and no other is started.
        db.execute("PRAGMA wal_autocheckpoint = 0").fetchone()
        # The default of 2 MB would write pages of a large batch to the WAL before its end.
        db.execute(f"PRAGMA cache_size = -{CACHE_KIB}")
        # Statements over many rows join in temporary tables, which would be files otherwise.
        db.execute("PRAGMA temp_store = MEMORY").fetchone()
    except BaseException as error:
        if db is not None:
            db.close()
        if isinstance(error, sqlite3.Error):
            raise translated(error) from error
        raise
    return db


# Each is two descriptors, and a process may have no more than 1,024. A guess: more readers than
# this wait for the same cores anyway.
MOST_READERS = 32


class Readers:
    """Connections for reading, as many as there are threads reading at once, up to a bound."""

    def __init__(self, path: Path, files: Files) -> None:
        self._path = path
        self._files = files
        self._lock = threading.Lock()
        self._changed = threading.Condition(self._lock)
        self._idle: list[sqlite3.Connection] = []
        self._lent = 0
        self._paused = False
        self._closed = False
        # What is lent takes none: its thread may read here meanwhile, and would wait for itself.
        self._turns = threading.Semaphore(MOST_READERS)

    def run(self, read: Callable[[sqlite3.Connection], T]) -> T:
        """Run `read` on a connection of its own; it must have fetched everything it answers."""
        try:
            # A new connection may be one to another file.
            self._files.check()
            with self._turns:
                db = self._take()
                try:
                    return read(db)
                finally:
                    self._give_back(db)
        except (sqlite3.Error, OverflowError, UnicodeEncodeError) as error:
            raise translated(error) from error

    @contextmanager
    def lend(self) -> Iterator[sqlite3.Connection]:
        """Lend a connection for as long as the block lasts; all that is read is of one moment."""
        try:
            self._files.check()
            db = self._take()
            try:
                db.execute("BEGIN")
            except BaseException:
                self._drop(db)
                raise
        except sqlite3.Error as error:
            raise translated(error) from error
        try:
            yield db
        finally:
            # What was set here would surprise the next: this one is not used again.
            self._drop(db)

    def pause(self, timeout_s: float) -> bool:
        """Let no read begin until `go_on`; return whether those under way ended in time."""
        with self._changed:
            self._paused = True
            self._paused = self._changed.wait_for(lambda: self._lent == 0, timeout_s)
            self._changed.notify_all()
            return self._paused

    def go_on(self) -> None:
        with self._changed:
            self._paused = False
            self._changed.notify_all()

    def forget(self) -> None:
        """Let go of everything in a forked child, where nobody else uses this."""
        for db in self._idle:
            db.close()

    def _take(self) -> sqlite3.Connection:
        with self._changed:
            while self._paused:
                self._changed.wait()
            if self._closed:
                raise StoreError("this store is closed")
            self._lent += 1
            db = self._idle.pop() if self._idle else None
        if db is None:
            try:
                db = connect(self._path)
                db.execute("PRAGMA query_only = 1")
            except BaseException:
                self._drop(db)
                raise
        return db

    def _give_back(self, db: sqlite3.Connection) -> None:
        with self._changed:
            if not self._closed:
                self._idle.append(db)
                self._returned()
                return
        self._drop(db)

    def _drop(self, db: sqlite3.Connection | None) -> None:
        try:
            if db is not None:
                db.close()
        finally:
            with self._changed:
                self._returned()

    def _returned(self) -> None:
        self._lent -= 1
        if self._paused:
            self._changed.notify_all()

    def close(self) -> None:
        with self._lock:
            self._closed = True
            idle, self._idle = self._idle, []
        for db in idle:
            db.close()


# SQLite says the same with an OperationalError for a full disk and for a blob that is too big;
# only the first may be mended by trying again. SQLITE_ERROR is a statement that cannot be run: of a
# foreign trigger that names what is not there, for one, so it may be one row's alone.
_OF_THE_DATA = (
    sqlite3.SQLITE_TOOBIG,
    sqlite3.SQLITE_MISMATCH,
    sqlite3.SQLITE_RANGE,
    sqlite3.SQLITE_ERROR,
)
# Such statements have no code of their own.
_MISSING = ("no such table", "no such column", "has no column named", "no such function")


def translated(error: Exception) -> StoreError:
    """Say whose fault it was: the data's, for ever, or the database's, for now."""
    if isinstance(error, sqlite3.Error) and not isinstance(
        error, (sqlite3.IntegrityError, sqlite3.DataError, sqlite3.InterfaceError)
    ):
        code = getattr(error, "sqlite_errorcode", None)
        binding = code is None and isinstance(error, sqlite3.ProgrammingError)
        if code not in _OF_THE_DATA and not binding:
            return StoreError(f"SQLite could not do it: {error}")
        if code == sqlite3.SQLITE_ERROR and any(text in str(error) for text in _MISSING):
            return Misconfigured(
                f"SQLite lacks what this program needs: {error}; compare the releases by "
                "`ulak doctor`, then run `ulak migrate` or the newer program"
            )
    return WriteRefused(f"SQLite will not store this: {error}")
