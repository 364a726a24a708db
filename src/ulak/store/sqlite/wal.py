"""The write-ahead log from outside: how long it is, and when it is brought home."""

from __future__ import annotations

import os
import sqlite3
from contextlib import suppress
from pathlib import Path

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
        """Return how many bytes of the WAL are in use."""
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
        """Give the file back."""
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
