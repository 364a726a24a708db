"""Whose turn it is to write: one writer per process, and one per file."""

from __future__ import annotations

import fcntl
import os
import threading
from collections import deque
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
        """Take the turn if nobody has it; never waits."""
        with self._mutex:
            if self._held:
                return False
            self._held = True
            return True

    def release(self) -> None:
        """Hand the turn to the next."""
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

    Raises:
        StoreError: the file cannot be opened or locked.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self._database = path.with_suffix("")
        self._name = os.fsencode(path)
        self._fd: int | None = None
        os.close(self._open())

    def acquire(self) -> None:
        """Wait until no other process, and no other store of this one, has the turn."""
        self._lock(fcntl.LOCK_EX)

    def try_acquire(self) -> bool:
        """Take the turn if nobody has it; never waits."""
        try:
            self._lock(fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return False
        return True

    def release(self) -> None:
        """Let the next one have the turn; the file stays, since another process may wait for it."""
        fd, self._fd = self._fd, None
        if fd is not None:
            try:
                # Not by closing alone: a child that was forked during the turn has it open too.
                fcntl.flock(fd, fcntl.LOCK_UN)
            finally:
                os.close(fd)

    def forget(self) -> None:
        """Close the file in a forked child; the turn stays with the parent."""
        fd, self._fd = self._fd, None
        if fd is not None:
            os.close(fd)

    def write(self, text: bytes) -> None:
        """Write into the file, during a turn."""
        if self._fd is not None:
            os.pwrite(self._fd, text, 0)

    def _lock(self, how: int) -> None:
        fd = self._open()
        try:
            fcntl.flock(fd, how)
        except BaseException as error:
            os.close(fd)
            if isinstance(error, OSError) and not isinstance(error, BlockingIOError):
                raise StoreError(f"{self._database} cannot be locked: {error.strerror}") from error
            raise
        self._fd = fd

    def _open(self) -> int:
        try:
            return os.open(self._name, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
        except OSError as error:
            raise StoreError(f"{self._database} cannot be opened: {error.strerror}") from error
