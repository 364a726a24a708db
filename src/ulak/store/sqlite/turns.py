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

    def acquire(self, *, urgent: bool = False) -> None:
        """Wait for the turn."""
        with self._mutex:
            if not self._held:
                self._held = True
                return
            turn = threading.Lock()
            turn.acquire()
            (self._urgent if urgent else self._waiting).append(turn)
        turn.acquire()

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
    """The queue of every process that writes one database, beside the database.

    SQLite's own busy handler sleeps and tries again, so that an unlucky writer waits a hundred
    times as long as the others; the kernel wakes whoever waits for a file lock at once.
    """

    def __init__(self, path: Path) -> None:
        self._fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)

    def acquire(self) -> None:
        """Wait until no other process, and no other store of this one, writes."""
        self._flock(fcntl.LOCK_EX)

    def try_acquire(self) -> bool:
        """Take it if nobody writes; never waits."""
        try:
            self._flock(fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return False
        return True

    def release(self) -> None:
        """Let the next one write."""
        self._flock(fcntl.LOCK_UN)

    def _flock(self, operation: int) -> None:
        try:
            fcntl.flock(self._fd, operation)
        except BlockingIOError:
            raise
        except OSError as error:
            raise StoreError(f"the lock file cannot be locked: {error}") from error

    def close(self) -> None:
        """Give the file back; the file itself stays, since another process may hold it."""
        os.close(self._fd)
