"""The write-ahead log from outside: how long it is, and when it is brought home."""

from __future__ import annotations

import os
import sqlite3
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
        self._fd: int | None = None

    def is_long(self) -> bool:
        """Tell whether the WAL holds more than it should: two small reads."""
        return self._is_used(self._next_limit - 1)

    def size(self) -> int:
        """Answer how many bytes of the WAL are in use."""
        low, high = 0, max(self._file_size() - _HEADER, 0) // self._frame
        while low < high:
            middle = (low + high) // 2
            if self._is_used(middle):
                low = middle + 1
            else:
                high = middle
        return low * self._frame

    def checkpoint(self, db: sqlite3.Connection, *, truncate: bool = False) -> None:
        """Copy the WAL into the database, as far as readers let it.

        Only the holder of the lock file may call this, outside a transaction. PASSIVE waits for
        nobody; the next write starts the WAL over once all of it is home and no reader is in it.
        """
        mode = "TRUNCATE" if truncate else "PASSIVE"
        busy, frames, home = db.execute(f"PRAGMA wal_checkpoint({mode})").fetchone()
        # A reader holds it up: asking again with every transaction would only cost time.
        done = not busy and frames == home
        self._next_limit = self._limit if done else max(frames, 0) + self._limit // 4 + 1

    def close(self) -> None:
        """Give the file back."""
        if self._fd is not None:
            os.close(self._fd)
            self._fd = None

    def _is_used(self, frame: int) -> bool:
        fd = self._open()
        if fd is None:
            return False
        salt = os.pread(fd, 8, _HEADER + frame * self._frame + 8)
        return len(salt) == 8 and salt == os.pread(fd, 8, 16)

    def _file_size(self) -> int:
        fd = self._open()
        return 0 if fd is None else os.fstat(fd).st_size

    def _open(self) -> int | None:
        if self._fd is None:
            try:
                self._fd = os.open(self._path, os.O_RDONLY | os.O_CLOEXEC)
            except FileNotFoundError:
                return None
        return self._fd
