"""The files of a database, and whose turn it is to write: one per process, one per file."""

from __future__ import annotations

import fcntl
import os
import sqlite3
import threading
import time
from collections import deque
from contextlib import suppress
from pathlib import Path

from ulak.errors import StoreError


class Turns:
    """A lock that is handed over in the order of arrival, except that the urgent go first.

    A lease is renewed by a thread that must never wait behind a queue of commits: at worst it
    waits for the one that is being written.
    """

    def __init__(self) -> None:
        self._mutex = threading.Lock()
        self._held = False
        self._urgent: deque[threading.Lock] = deque()
        self._waiting: deque[threading.Lock] = deque()

    def acquire(self, *, urgent: bool = False, timeout_s: float = -1) -> bool:
        """Wait for the turn, with a timeout no longer than that; tell whether it has come."""
        queue = self._urgent if urgent else self._waiting
        with self._mutex:
            if not self._held:
                self._held = True
                return True
            turn = threading.Lock()
            turn.acquire()
            queue.append(turn)
        if turn.acquire(timeout=timeout_s):
            return True
        with self._mutex:
            if turn in queue:
                queue.remove(turn)
                return False
        return True  # it came in the last moment

    def try_acquire(self) -> bool:
        with self._mutex:
            if self._held:
                return False
            self._held = True
            return True

    def release(self) -> None:
        with self._mutex:
            queue = self._urgent or self._waiting
            if queue:
                queue.popleft().release()
            else:
                self._held = False


class LockFile:
    """A queue of every process that uses one database: a file beside it, locked for one turn.

    SQLite's own busy handler sleeps and tries again, so that an unlucky writer waits a hundred
    times as long as the others; the kernel wakes whoever waits for a file lock at once.

    The file is open for the turn alone. A lock belongs to the open file, which a forked child
    shares: one that was kept open would stay locked by the child of a worker that was killed.

    Used by one thread at a time.

    Raises:
        StoreError: the file cannot be opened or locked.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self._database = path.with_suffix("")
        self._name = os.fsencode(path)
        self._fd: int | None = None
        self._changed = threading.Condition()
        self._is_wanted = self._is_queued = False
        self._queued_fd: int | None = None
        self._error: StoreError | None = None
        os.close(self._open())

    def acquire(self, timeout_s: float) -> bool:
        """Wait until no other process, and no other store of this one, has the turn.

        Return whether it came in time. The kernel waits for a lock without a limit, so a thread
        waits instead of the caller. It keeps its place in the queue when the caller gives up, and
        serves the next one.
        """
        if self.try_acquire():
            return True
        with self._changed:
            self._is_wanted = True
            try:
                if not self._is_queued:
                    self._begin_to_queue()
                self._changed.wait_for(lambda: not self._is_queued, timeout_s)
                if self._error is not None:
                    raise self._error
            except BaseException:
                self.release()
                raise
            finally:
                self._is_wanted, self._error = False, None
        return self._fd is not None

    def try_acquire(self) -> bool:
        try:
            fd = self._open()
            self._lock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return False
        self._fd = fd
        return True

    def release(self) -> None:
        """Let the next one have the turn; the file stays, since another process may wait for it."""
        fd, self._fd = self._fd, None
        if fd is not None:
            self._unlock(fd)

    def forget(self) -> None:
        """Close the file in a forked child; the turn stays with the parent."""
        for fd in (self._fd, self._queued_fd):
            if fd is not None:
                os.close(fd)
        self._fd = self._queued_fd = None

    def write(self, text: bytes) -> None:
        if self._fd is not None:
            os.pwrite(self._fd, text, 0)

    def _begin_to_queue(self) -> None:
        thread = threading.Thread(target=self._queue, name="ulak-lock-file", daemon=True)
        try:
            thread.start()
        except RuntimeError as error:
            raise StoreError(f"no thread can wait for {self._database}: {error}") from error
        self._is_queued = True

    def _queue(self) -> None:
        """Wait for the turn; have it at once, or give it back if nobody wants it any more."""
        fd, failure = None, None
        try:
            fd = self._queued_fd = self._open()
            self._lock(fd, fcntl.LOCK_EX)
        except StoreError as error:
            fd, failure = None, error
        with self._changed:
            self._is_queued, self._queued_fd = False, None
            if self._is_wanted:
                self._fd, self._error = fd, failure
                self._changed.notify()
                return
        if fd is not None:
            self._unlock(fd)

    def _lock(self, fd: int, how: int) -> None:
        try:
            fcntl.flock(fd, how)
        except BaseException as error:
            os.close(fd)
            if isinstance(error, OSError) and not isinstance(error, BlockingIOError):
                raise StoreError(f"{self._database} cannot be locked: {error.strerror}") from error
            raise

    def _unlock(self, fd: int) -> None:
        try:
            # Not by closing alone: a child that was forked during the turn has it open too.
            fcntl.flock(fd, fcntl.LOCK_UN)
        finally:
            os.close(fd)

    def _open(self) -> int:
        try:
            # To be allowed to create it one waits for the folder, which takes longer.
            try:
                return os.open(self._name, os.O_RDWR | os.O_CLOEXEC)
            except FileNotFoundError:
                return os.open(self._name, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
        except OSError as error:
            raise StoreError(f"{self._database} cannot be opened: {error.strerror}") from error


_HEADER = 32
_FRAME_HEADER = 24


class Wal:
    """Watches the WAL of one database and checkpoints it on the writing connection.

    The file is never shrunk while in use, because writing over blocks that exist flushes in
    half the time of appending, so its size says nothing. Its frames do: those in use carry the
    salt of its header. The file is not locked by SQLite, so that opening it here is harmless.
    """

    def __init__(self, path: Path, page_size: int, limit_bytes: int) -> None:
        self._path = path
        self._frame = page_size + _FRAME_HEADER
        self._limit = max(limit_bytes // self._frame, 1)
        self._next_limit = self._limit
        self._salt = b""
        self._fd: int | None = None

    def is_long(self) -> bool:
        """Tell whether the WAL should be brought home: two small reads."""
        fd = self._open()
        if fd is None:
            return False
        salt = os.pread(fd, 8, 16)
        if salt != self._salt:
            # It was started over since we last looked, by whichever process.
            self._salt, self._next_limit = salt, self._limit
        return self._salt_of(fd, self._next_limit - 1) == salt

    def size(self) -> int:
        fd = self._open()
        if fd is None:
            return 0
        salt = os.pread(fd, 8, 16)
        low, high = 0, max(os.fstat(fd).st_size - _HEADER, 0) // self._frame
        while low < high:
            middle = (low + high) // 2
            if self._salt_of(fd, middle) == salt:
                low = middle + 1
            else:
                high = middle
        return low * self._frame

    def checkpoint(self, db: sqlite3.Connection) -> None:
        """Copy the WAL into the database, as far as readers let it.

        Only the holder of the lock file may call this, outside a transaction. PASSIVE waits for
        nobody; the next write starts the WAL over once all of it is home and no reader is in it.
        """
        _, frames, _ = db.execute("PRAGMA wal_checkpoint(PASSIVE)").fetchone()
        # Until it is started over, asking again with every transaction would only cost time.
        self._next_limit = max(frames, 0) + self._limit // 4 + 1

    def bring_home(self, db: sqlite3.Connection) -> None:
        """Copy and empty the WAL before the end, unless somebody else is using it."""
        db.execute("PRAGMA busy_timeout = 0").fetchone()
        with suppress(sqlite3.OperationalError):
            db.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchone()

    def close(self) -> None:
        if self._fd is not None:
            os.close(self._fd)
            self._fd = None

    def _salt_of(self, fd: int, frame: int) -> bytes:
        return os.pread(fd, 8, _HEADER + frame * self._frame + 8)

    def _open(self) -> int | None:
        if self._fd is None:
            try:
                self._fd = os.open(self._path, os.O_RDONLY | os.O_CLOEXEC)
            except FileNotFoundError:
                return None
        return self._fd


# Three system calls, too many for each write; seldom enough to cost nothing.
LOOK_AT_FILES_EVERY_S = 0.25


class Files:
    """The files of a database, as they were when it was opened.

    SQLite goes on writing to a file that was deleted or replaced, and says nothing: what it
    acknowledges then is lost.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        names = (str(path), f"{path}-wal", f"{path}-shm")
        self._known = {name: self._identify(name) for name in names}
        self._look_at = 0.0

    def check(self) -> None:
        """See now and then that they are still there, or raise `StoreError`; then at every call."""
        now = time.monotonic()
        if now < self._look_at:
            return
        self._look_at = 0.0
        for name, known in self._known.items():
            if self._identify(name) != known:
                raise self._gone(name)
        self._look_at = now + LOOK_AT_FILES_EVERY_S

    def _identify(self, name: str) -> tuple[int, int]:
        try:
            found = os.stat(name)
        except OSError as error:
            raise self._gone(name) from error
        return found.st_dev, found.st_ino

    def _gone(self, name: str) -> StoreError:
        return StoreError(
            f"{name} was deleted or replaced while {self._path} was open: nothing is acknowledged "
            "any more; stop every process that uses it, restore the file, and start them again"
        )
