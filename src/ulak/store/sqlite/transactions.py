"""Open transactions: the one writer's turn, lent to somebody who writes rows of the program.

While it is lent nobody else writes, in no process. Those who want a turn of this kind wait for
each other here, before they queue for the writer: the others of that queue hold it for moments
only, so a bounded wait here is a bounded wait at all.
"""

from __future__ import annotations

import sqlite3
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, TypeVar

from ulak.clock import Clock
from ulak.errors import BadInput, Contended, StoreError
from ulak.store import faults
from ulak.store.protocol import Followed, Settled
from ulak.store.records import RecordClaim, RecordRow
from ulak.store.sqlite import outbox, records
from ulak.store.sqlite.files import LockFile
from ulak.store.sqlite.session import Transaction
from ulak.store.sqlite.writer import LockedConnection, Writer, connect, translated

T = TypeVar("T")

# How long a transaction waits for another when nobody says so; as long as a commit on PostgreSQL.
PATIENCE_MS = 2000
# How often a waiting process looks again: the kernel cannot wait for a file for a limited time.
LOOK_EVERY_S = 0.002

SOMEBODY = b"a writer of the store"

# Everything that is written with the connection is inside of it, the record is not.
SAVEPOINT = "SAVEPOINT ulak_rows"
UNDO = "ROLLBACK TO ulak_rows"
PART = "SAVEPOINT ulak_part"
KEEP_PART = "RELEASE ulak_part"
DROP_PART = "ROLLBACK TO ulak_part"

# No text that anybody else writes: a statement that was compiled once is not asked about again.
BEGIN = "BEGIN IMMEDIATE -- ulak"
COMMIT = "COMMIT -- ulak"
ROLLBACK = "ROLLBACK -- ulak"

ENDED_BY_HAND = (
    "the transaction was ended by whoever wrote in it; leave COMMIT, ROLLBACK and close() to ulak"
)


class LentTurns(LockedConnection):
    """Begins open transactions, one at a time."""

    def __init__(self, path: Path, *, clock: Clock, synchronous: str) -> None:
        super().__init__()
        self._path = path
        self.clock = clock
        self._synchronous = synchronous
        self._file: LockFile | None = None
        self.may_end = False
        self._closed = False

    def begin(
        self, writer: Writer, tell: Callable[[], None], patience_ms: int, purpose: bytes
    ) -> SqliteTransaction:
        """Wait for the turn and begin; with no patience, begin only if nobody is in the way."""
        until = time.monotonic() + patience_ms / 1000
        if not self._lock.acquire(timeout=patience_ms / 1000):
            raise self._contended()
        try:
            self._wait_for_the_file(until)
            try:
                self.say(purpose)
                if patience_ms > 0:
                    writer.hold()
                elif not writer.try_hold():
                    raise Contended("others are writing", holder=SOMEBODY)
                try:
                    writer.check_files()
                    db = self._connection()
                    # Who writes without the lock file, with a connection of the program's own, is
                    # waited for no longer than the others.
                    left_ms = max(0, int((until - time.monotonic()) * 1000))
                    db.execute(f"PRAGMA busy_timeout = {left_ms}")
                    self.may_end = True
                    db.execute(BEGIN)
                    self.may_end = False
                except BaseException:
                    writer.let_go()
                    raise
            except BaseException:
                self._free_the_file()
                raise
        except BaseException as error:
            self._lock.release()
            if getattr(error, "sqlite_errorcode", None) == sqlite3.SQLITE_BUSY:
                raise Contended("others are writing", holder=SOMEBODY) from error
            if isinstance(error, sqlite3.Error):
                raise translated(error) from error
            raise
        return SqliteTransaction(self, writer, db, tell)

    def close(self) -> None:
        with self._lock:
            self._closed = True
        super().close()

    def forget_turn(self) -> None:
        """Let go of the file in a child that was forked during a transaction."""
        if self._file is not None:
            self._file.forget()

    def end(self, writer: Writer, is_good: bool) -> None:
        if not is_good:
            self._db = None
        writer.let_go()
        self._free_the_file()
        self._lock.release()

    def _connection(self) -> sqlite3.Connection:
        if self._db is None:
            db = connect(self._path)
            db.execute(f"PRAGMA synchronous = {self._synchronous}")
            db.execute("PRAGMA wal_autocheckpoint = 0").fetchone()
            db.set_authorizer(self._authorize)
            self._db = db
        # What somebody has set here before would surprise the next.
        self._db.row_factory = None
        self._db.text_factory = str
        return self._db

    def _authorize(self, action: int, *_: Any) -> int:
        """Let nobody else end the transaction: what was written would stay without its record."""
        if action == sqlite3.SQLITE_TRANSACTION and not self.may_end:
            return sqlite3.SQLITE_DENY
        return sqlite3.SQLITE_OK

    def _wait_for_the_file(self, until: float) -> None:
        if self._closed:
            raise StoreError("this store is closed")
        if self._file is None:
            self._file = LockFile(self._path.with_name(self._path.name + ".transactions"))
        while not self._file.try_acquire():
            if time.monotonic() >= until:
                raise self._contended()
            time.sleep(LOOK_EVERY_S)

    def _free_the_file(self) -> None:
        if self._file is not None:
            self._file.release()

    def say(self, purpose: bytes) -> None:
        if self._file is not None:
            # By its length: a digest may well end in zeros, and the file may hold a longer one.
            self._file.write(bytes([len(purpose)]) + purpose)

    def _contended(self) -> Contended:
        said = b"" if self._file is None else self._file.path.read_bytes()
        return Contended(
            "another open transaction has been writing for too long",
            holder=said[1 : 1 + said[0]] if said else None,
        )


class SqliteTransaction:
    """One open transaction (`ulak.store.transaction.OpenTransaction`)."""

    def __init__(
        self, turns: LentTurns, writer: Writer, db: sqlite3.Connection, tell: Callable[[], None]
    ) -> None:
        self._turns = turns
        self._writer = writer
        self._db = db
        self._clock = turns.clock
        self._tell = tell
        self._is_lent = False
        self._was_lent = False
        self._is_over = False
        faults.point(faults.POINTS["transaction"].before)

    @property
    def connection(self) -> sqlite3.Connection:
        if self._is_over:
            raise BadInput("this transaction is over")
        if not self._is_lent:
            self._db.execute(SAVEPOINT)
            self._is_lent = self._was_lent = True
        return self._db

    def claim_record(self, row: RecordRow, *, ttl_us: int, lease_us: int | None) -> RecordClaim:
        return self._own(lambda: records.claim(self._db, self._clock.now(), row, ttl_us, lease_us))

    def mark_record(self, row: RecordRow, *, lease_us: int) -> bool:
        return self._own(lambda: records.mark(self._db, self._clock.now(), row, lease_us))

    def finish_record(self, row: RecordRow, *, ttl_us: int) -> bool:
        return self._own(lambda: records.finish(self._db, self._clock.now(), row, ttl_us))

    def take_events(self, handler: str, limit: int, *, hold_us: int) -> list[Followed]:
        return self._own(lambda: outbox.take_events(self._db, self._clock.now(), handler, limit))

    def finish_events(self, taken: Sequence[Followed]) -> None:
        self._own(lambda: outbox.finish_events(self._db, taken))

    def settle_events(self, settled: Sequence[Settled]) -> None:
        self._own(lambda: outbox.settle(Transaction(self._db, self._clock), settled))

    def undo(self) -> None:
        if self._is_lent:
            self._own(lambda: self._db.execute(UNDO))

    def commit(self) -> None:
        points = faults.POINTS["transaction"]
        try:
            self._must_be_open()
            faults.point(points.inside)
            self._turns.may_end = True
            self._db.execute(COMMIT)
            self._writer.check_files()
        except sqlite3.IntegrityError:
            raise  # a row of theirs, by a constraint that is checked only now
        except sqlite3.Error as error:
            raise translated(error) from error
        finally:
            self.roll_back()
        faults.point(points.after)
        if self._was_lent:
            self._tell()

    def begin_part(self, purpose: bytes) -> None:
        self._turns.say(purpose)
        self._own(lambda: self._db.execute(PART))

    def keep_part(self) -> None:
        self._own(lambda: self._db.execute(KEEP_PART))
        self._is_lent = False  # its savepoint went with that of the part

    def drop_part(self) -> None:
        self._own(lambda: self._db.execute(DROP_PART))
        self.keep_part()

    def commit_parts(self) -> None:
        points = faults.POINTS["transaction"]
        self._must_be_open()
        try:
            faults.point(points.inside)
            self._turns.may_end = True
            self._db.execute(COMMIT)
            self._writer.check_files()
            faults.point(points.after)
            self._db.execute(BEGIN)
            self._turns.may_end = False
        except BaseException as error:
            self.roll_back()
            if isinstance(error, sqlite3.Error):
                raise translated(error) from error
            raise

    def roll_back(self) -> None:
        if self._is_over:
            return
        self._is_over = True
        is_good = True
        try:
            self._turns.may_end = True
            if self._db.in_transaction:
                self._db.execute(ROLLBACK)
        except sqlite3.Error:
            is_good = False  # somebody has closed it: what was open is taken back
        finally:
            self._turns.may_end = False
            self._turns.end(self._writer, is_good)

    def _own(self, work: Callable[[], T]) -> T:
        """Do something of ours, whatever whoever has the connection has set there."""
        self._must_be_open()
        made, texts = self._db.row_factory, self._db.text_factory
        self._db.row_factory, self._db.text_factory = None, str
        try:
            return work()
        except (sqlite3.Error, OverflowError, UnicodeEncodeError) as error:
            raise translated(error) from error
        finally:
            self._db.row_factory, self._db.text_factory = made, texts

    def _must_be_open(self) -> None:
        if self._is_over:
            raise BadInput("this transaction is over")
        try:
            is_open = self._db.in_transaction
        except sqlite3.Error:
            is_open = False
        if not is_open:
            raise BadInput(ENDED_BY_HAND)
