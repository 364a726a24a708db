"""Files that services exchange with other programs: written whole, compared, taken when stable."""

from __future__ import annotations

import errno
import os
import stat
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from datetime import timedelta
from hashlib import sha256
from pathlib import Path
from secrets import token_hex
from typing import BinaryIO, Final

from ulak.artifacts import local

__all__ = [
    "TEMPORARY",
    "StableFiles",
    "is_there",
    "list_files",
    "open_file",
    "read_clock",
    "rename_once",
    "restoring",
    "sha256_of",
    "sweep",
    "write_atomically",
]

TEMPORARY: Final = ".tmp"
"""How the names of files end that are not written to their end."""

_ANYONE = 0o666  # less the umask: the other program is seldom the same user
_CHUNK = 1 << 20
# A share may have no way to flush a folder; it renames on the server then.
_CANNOT_FLUSH = {errno.EINVAL, errno.ENOTSUP, errno.EBADF}


def write_atomically(path: Path, content: bytes | Iterable[bytes], *, replace: bool = True) -> str:
    """Write a file whole or not at all, and return the SHA-256 of its content in hex.

    A reader finds under the name what was there before, or all of the new content, also after a
    power cut. Until then it lies in the same folder under a name that ends with `TEMPORARY`.
    Raises `OSError`: nothing was written (there is no folder, no right, no space; without
    `replace`, there is a file).
    """
    digest = sha256()
    chunks = (content,) if isinstance(content, bytes) else content

    def hashed(chunk: bytes) -> bytes:
        digest.update(chunk)
        return chunk

    with local.open_folders(path.parent, ()) as (folder,):
        temporary = f".{token_hex(8)}{TEMPORARY}"
        local.write_file(
            path.name,
            folder,
            map(hashed, chunks),
            temporary=temporary,
            mode=_ANYONE,
            replace=replace,
        )
        _flush(folder)
    return digest.hexdigest()


@contextmanager
def restoring(path: Path, *errors: type[Exception]) -> Iterator[None]:
    """Put a file back as it was, or remove it again, when one of these errors ends the block: so
    that a change of it and one of a database are made together or not at all. Raises `OSError`: it
    cannot be put back."""
    before = path.read_bytes() if path.exists() else None
    try:
        yield
    except errors:
        if before is None:
            path.unlink(missing_ok=True)
        else:
            write_atomically(path, before)
        raise


def rename_once(source: Path, target: Path) -> bool:
    """Rename a file that others may rename too, and flush the folder of its new name; tell whether
    it was this call that did it. Raises `OSError`: the folder cannot be reached."""
    try:
        source.rename(target)
    except FileNotFoundError:
        return False
    with local.open_folders(target.parent, ()) as (folder,):
        _flush(folder)
    return True


def is_there(path: Path) -> bool:
    """Tell whether there is anything at a path. Raises `OSError`, as `Path.exists` does not
    everywhere: nobody can tell, since a share does not answer."""
    try:
        os.lstat(path)
    except FileNotFoundError:
        return False
    return True


def open_file(path: Path) -> BinaryIO:
    """Open a file for reading. Raises `OSError`: it is not there, or is a link, pipe or folder."""
    return os.fdopen(local.open_file(str(path)), "rb")


def sha256_of(path: Path) -> str:
    """Return the SHA-256 of a file's content in hex; raises as `open_file`."""
    digest = sha256()
    with open_file(path) as file:
        while chunk := file.read(_CHUNK):
            digest.update(chunk)
    return digest.hexdigest()


def list_files(folder: Path, is_wanted: Callable[[str], object]) -> list[tuple[str, int]]:
    """Return the files of a folder whose names are wanted, each with its time of change in
    nanoseconds since 1970; neither links nor folders. Raises `OSError`: the folder cannot be read.
    """
    with os.scandir(folder) as entries:
        names = [entry.name for entry in entries if is_wanted(entry.name)]
    found = []
    for name in names:
        with suppress(FileNotFoundError):  # it was renamed or removed in this moment
            facts = os.lstat(folder / name)
            if stat.S_ISREG(facts.st_mode):
                found.append((name, facts.st_mtime_ns))
    return found


def sweep(folder: Path, *suffixes: str, older_than: timedelta) -> int:
    """Remove the files of a folder whose names end with one of these and that are older than this,
    and return how many they were.

    The age is by the folder's own clock. A folder that is not there has no files. Raises
    `OSError`: the folder cannot be read or written.
    """
    try:
        found = list_files(folder, lambda name: name.endswith(suffixes))
    except FileNotFoundError:
        return 0
    oldest = read_clock(folder) - int(older_than.total_seconds() * 1e9) if found else 0
    removed = 0
    for name in (name for name, changed_ns in found if changed_ns < oldest):
        # It may have gone: its writer has come to its end, or another sweep was quicker.
        with suppress(FileNotFoundError):
            os.unlink(folder / name)
            removed += 1
    return removed


def read_clock(folder: Path) -> int:
    """Return the time by which a folder dates its files, in nanoseconds since 1970: a share may
    differ from this machine by hours. Raises `OSError`: nothing can be written there."""
    with local.open_folders(folder, ()) as (handle,):
        name = f".{token_hex(8)}{TEMPORARY}"
        file = local.create_file(name, handle)
        try:
            return os.fstat(file).st_mtime_ns
        finally:
            os.close(file)
            os.unlink(name, dir_fd=handle)


class StableFiles:
    """Tells which files have not changed for some seconds, by the looks of this object.

    Changed means another size, another time of change or another file under the name. How long
    ago is told by the monotonic clock, so that no set clock makes a file look finished.
    """

    def __init__(self, seconds: float) -> None:
        self._seconds = seconds
        self._found: dict[Path, tuple[tuple[int, int, int], float]] = {}

    def is_stable(self, path: Path) -> bool:
        """Look at a file, and tell whether it is as it was in all looks of the last seconds.

        False as well when it cannot be opened: who writes it may have locked it.
        """
        try:
            # Opened, since a network file system may tell of a path what was true seconds ago.
            with open_file(path) as file:
                facts = os.fstat(file.fileno())
        except OSError:
            self._found.pop(path, None)
            return False
        now = time.monotonic()
        mark = (facts.st_ino, facts.st_size, facts.st_mtime_ns)
        before, since = self._found.get(path, (None, now))
        if before != mark:
            since = now
        self._found[path] = (mark, since)
        return now - since >= self._seconds


def _flush(folder: int) -> None:
    try:
        os.fsync(folder)
    except OSError as error:
        if error.errno not in _CANNOT_FLUSH:
            raise
