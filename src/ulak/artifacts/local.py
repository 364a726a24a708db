"""Artifacts in a directory: each a file that opens as what it is, sealed by its last line.

The last line of a file holds the size, the type and the SHA-256 of what stands before it. It
begins with `%`, which is a comment to readers of PDF. Digest and bytes are one file because
they must never be told apart: a second file could be lost, or be that of another writer, and
extended attributes do not survive every copy.

No link leads out of the directory. A path is checked by the kernel where it is used: each part is
opened in the directory that was opened before, and a link is not followed, also one that is
swapped in after any check of ours.
"""

from __future__ import annotations

import os
import re
import secrets
import stat
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager, suppress
from datetime import datetime
from hashlib import sha256
from pathlib import Path
from typing import Final, NamedTuple

from ulak.artifacts import storage
from ulak.clock import Instant, to_datetime, to_instant
from ulak.errors import ArtifactMissing, ArtifactUnreadable, ArtifactWriteFailed

# Artifacts are private: whoever runs the browser, as another user, cannot read them.
FOLDER_MODE: Final = 0o700
FILE_MODE: Final = 0o600

_FOLDER = os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC
# A pipe would keep whoever opens it waiting for a writer, which an artifact never does.
_TO_READ = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
_TO_WRITE = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC


class Crooked(OSError):
    """On the way stands a link, or something else than a folder or a file."""


def _open(name: str, folder: int) -> int:
    try:
        return os.open(name, _FOLDER | os.O_NOFOLLOW, dir_fd=folder)
    except NotADirectoryError as error:
        raise _crooked(name) from error


@contextmanager
def open_folders(
    base: Path, names: Sequence[str], open_next: Callable[[str, int], int] = _open
) -> Iterator[tuple[int, ...]]:
    """Open a base and the folders below it, and return their descriptors from the base down.

    Raises:
        FileNotFoundError: one is not there.
        Crooked: one is a link or no folder.
    """
    with ExitStack() as stack:
        # The base itself may be a link: where artifacts are kept is the operator's to say.
        chain = [os.open(base, _FOLDER)]
        stack.callback(os.close, chain[0])
        for name in names:
            chain.append(open_next(name, chain[-1]))
            stack.callback(os.close, chain[-1])
        yield tuple(chain)


def make_folders(base: Path, names: Sequence[str]) -> AbstractContextManager[tuple[int, ...]]:
    """Open folders as `open_folders` does; those that are not there are made. One that is removed
    between its making and its opening raises `FileNotFoundError`."""
    _make_base(base)
    return open_folders(base, names, _make_and_open)


def open_file(name: str, folder: int | None = None) -> int:
    """Open a file of a folder, or of a path, for reading; raises as `must_be_file`."""
    try:
        file = os.open(name, _TO_READ, dir_fd=folder)
    except FileNotFoundError:
        raise
    except OSError:
        must_be_file(name, folder)
        raise
    if not stat.S_ISREG(os.fstat(file).st_mode):
        os.close(file)
        raise _crooked(name)
    return file


def create_file(name: str, folder: int, mode: int = FILE_MODE) -> int:
    """Make a file in a folder, for writing; `FileExistsError` when there is anything."""
    return os.open(name, _TO_WRITE, mode, dir_fd=folder)


def write_file(
    name: str,
    folder: int,
    chunks: Iterable[bytes],
    *,
    temporary: str,
    mode: int = FILE_MODE,
    replace: bool = True,
) -> None:
    """Write a file of a folder whole or not at all: under a temporary name, flushed to the disk,
    renamed. The caller flushes the folder. Without `replace`, `FileExistsError` when there is
    anything of that name."""
    file = create_file(temporary, folder, mode)
    try:
        with os.fdopen(file, "wb") as stream:
            stream.writelines(chunks)
            stream.flush()
            os.fsync(file)
        if not replace:
            os.link(temporary, name, src_dir_fd=folder, dst_dir_fd=folder)
            os.unlink(temporary, dir_fd=folder)
        else:
            os.rename(temporary, name, src_dir_fd=folder, dst_dir_fd=folder)
    except BaseException:
        with suppress(OSError):
            os.unlink(temporary, dir_fd=folder)
        raise


def must_be_file(name: str, folder: int | None) -> None:
    """Check that this name in a folder is a file.

    Raises:
        FileNotFoundError: there is none.
        Crooked: it is a link or no file.
    """
    if not stat.S_ISREG(os.stat(name, dir_fd=folder, follow_symlinks=False).st_mode):
        raise _crooked(name)


def _make_and_open(name: str, folder: int) -> int:
    try:
        return _open(name, folder)
    except FileNotFoundError:
        with suppress(FileExistsError):  # somebody was quicker, which is as good
            os.mkdir(name, FOLDER_MODE, dir_fd=folder)
        return _open(name, folder)


def _make_base(base: Path) -> None:
    absent = [path for path in (base, *base.parents) if not path.exists()]
    for path in reversed(absent):
        path.mkdir(FOLDER_MODE, exist_ok=True)
        folder = os.open(path.parent, _FOLDER)
        try:
            os.fsync(folder)
        finally:
            os.close(folder)


def _crooked(name: str) -> Crooked:
    return Crooked(f"{name!r} is a link, or neither folder nor file; links are never followed")


TEMPORARY: Final = ".writing-"
"""How files begin that are not written to their end; no key begins so."""

# Each time somebody must have removed the folder in the moment between its making and its first
# file. A guess; in sixteen rows something else is wrong.
_TRIES = 16
_SEAL = re.compile(
    rb"\n%%ulak 1 sha256=([0-9a-f]{64}) size=(\d{1,19}) type=([\x20-\x7e]{1,%d})\n\Z"
    % storage.LONGEST_TYPE
)
_LONGEST_SEAL = 512


class LocalStorage(storage.WholeReads):
    """Keeps artifacts in files below a directory. See `StorageBackend` for what it promises.

    A write is a temporary file beside its place, flushed to the disk and renamed, and then each
    folder above it is flushed. The directory is made at the first write, for this user alone. A
    key that is the folder of another cannot be stored.
    """

    def __init__(self, base: Path) -> None:
        self._base = base.absolute()

    def __repr__(self) -> str:
        return f"LocalStorage({str(self._base)!r})"

    def put_bytes(self, key: str, data: bytes, content_type: str, *, filename: str = "") -> str:
        *above, name = storage.parts_of(key)
        storage.must_be_storable(content_type, filename)
        digest = sha256(data).hexdigest()
        seal = f"\n%ulak 1 sha256={digest} size={len(data)} type={content_type}\n".encode("ascii")
        for _ in range(_TRIES):
            try:
                with make_folders(self._base, above) as chain:
                    _write(chain[-1], name, data, seal)
                    # Also the folders that were there: whoever made them may not have come to it.
                    for folder in reversed(chain):
                        os.fsync(folder)
                return key
            except FileNotFoundError:
                continue  # a deletion has taken the empty folder away
            except OSError as error:
                raise ArtifactWriteFailed(f"{key} was not stored: {error}", key=key) from error
        raise ArtifactWriteFailed(f"{key} was not stored: its folder is always removed", key=key)

    def delete(self, ref: str) -> bool:
        *above, name = storage.parts_of(ref)
        try:
            with open_folders(self._base, above) as chain:
                must_be_file(name, chain[-1])
                os.unlink(name, dir_fd=chain[-1])
                os.fsync(_without_empty(chain, above))
                return True
        except FileNotFoundError:
            return False
        except OSError as error:
            raise ArtifactWriteFailed(f"{ref} was not deleted: {error}", key=ref) from error

    def get_bytes(self, ref: str) -> bytes:
        with self._opened(ref) as file, os.fdopen(file, "rb", closefd=False) as stream:
            found = _found(file, ref)
            data = stream.read(found.size)
        return storage.must_be_whole(data, found.sha256, ref)

    def stat(self, ref: str) -> storage.Stat:
        with self._opened(ref) as file:
            return _found(file, ref)

    def exists(self, ref: str) -> bool:
        try:
            with self._opened(ref):
                return True
        except ArtifactMissing:
            return False

    def list(self, prefix: str = "", *, older_than: datetime | None = None) -> Iterator[str]:
        before = None if older_than is None else to_instant(older_than)
        return self._list(tuple(storage.parts_of_prefix(prefix)), before)

    def tidy(self, *, older_than: datetime) -> int:
        try:
            return self._tidy((), to_instant(older_than))
        except OSError as error:
            raise ArtifactWriteFailed(f"{self._base} cannot be tidied: {error}") from error

    def check(self) -> None:
        try:
            with make_folders(self._base, ()) as chain:
                name = _temporary()
                os.close(create_file(name, chain[-1]))
                os.unlink(name, dir_fd=chain[-1])
        except OSError as error:
            raise ArtifactWriteFailed(f"nothing can be stored in {self._base}: {error}") from error

    def _list(self, names: tuple[str, ...], before: Instant | None) -> Iterator[str]:
        try:
            entries = self._entries(names)
        except (FileNotFoundError, Crooked):
            return  # it is gone, or a link by now: nothing of ours is there
        except OSError as error:
            raise ArtifactUnreadable(f"{self._base} cannot be listed: {error}") from error
        for entry in filter(lambda entry: storage.is_part(entry.name), entries):
            if entry.is_folder:
                yield from self._list((*names, entry.name), before)
            elif before is None or entry.changed_at < before:
                yield "/".join((*names, entry.name))

    def _tidy(self, names: tuple[str, ...], before: Instant) -> int:
        removed = 0
        try:
            entries = self._entries(names)
        except (FileNotFoundError, Crooked):
            return 0
        for entry in entries:
            if entry.is_folder and storage.is_part(entry.name):
                removed += self._tidy((*names, entry.name), before)
        gone = (FileNotFoundError, Crooked)
        with suppress(*gone), open_folders(self._base, names) as chain:
            for entry in entries:
                if entry.changed_at >= before:
                    continue
                if not entry.is_folder and entry.name.startswith(TEMPORARY):
                    with suppress(FileNotFoundError):
                        os.unlink(entry.name, dir_fd=chain[-1])
                        removed += 1
                elif entry.is_folder:
                    with suppress(OSError):  # it is not empty, or no longer there
                        os.rmdir(entry.name, dir_fd=chain[-1])
        return removed

    def _entries(self, names: tuple[str, ...]) -> tuple[_Entry, ...]:
        """Return the files and folders of a folder; links and the like are left out."""
        with open_folders(self._base, names) as chain, os.scandir(chain[-1]) as found:
            return tuple(filter(None, map(_entry, found)))

    @contextmanager
    def _opened(self, ref: str) -> Iterator[int]:
        *above, name = storage.parts_of(ref)
        try:
            with open_folders(self._base, above) as chain:
                file = open_file(name, chain[-1])
        except FileNotFoundError:
            raise ArtifactMissing(ref) from None
        except OSError as error:
            raise ArtifactUnreadable(f"{ref} cannot be read: {error}", key=ref) from error
        try:
            yield file
        except OSError as error:
            raise ArtifactUnreadable(f"{ref} cannot be read: {error}", key=ref) from error
        finally:
            os.close(file)


class _Entry(NamedTuple):
    name: str
    is_folder: bool
    changed_at: Instant


def _entry(found: os.DirEntry[str]) -> _Entry | None:
    try:
        is_folder = found.is_dir(follow_symlinks=False)
        if not is_folder and not found.is_file(follow_symlinks=False):
            return None
        changed_at = found.stat(follow_symlinks=False).st_mtime_ns // 1000
    except FileNotFoundError:
        return None
    return _Entry(found.name, is_folder, changed_at)


def _temporary() -> str:
    return f"{TEMPORARY}{secrets.token_hex(8)}"


def _write(folder: int, name: str, data: bytes, seal: bytes) -> None:
    # A rename would replace a link and not follow it; but whoever put it there is to hear.
    with suppress(FileNotFoundError):
        must_be_file(name, folder)
    write_file(name, folder, (data, seal), temporary=_temporary())


def _without_empty(chain: tuple[int, ...], names: list[str]) -> int:
    """Remove the folders that are empty, from the last up, and return the last that stays."""
    for depth in range(len(names), 0, -1):
        try:
            os.rmdir(names[depth - 1], dir_fd=chain[depth - 1])
        except OSError:  # it has other files, or somebody else has removed it
            return chain[depth]
    return chain[0]


def _found(file: int, ref: str) -> storage.Stat:
    facts = os.fstat(file)
    begin = max(0, facts.st_size - _LONGEST_SEAL)
    seal = _SEAL.search(os.pread(file, _LONGEST_SEAL, begin))
    if seal is None or begin + seal.start() != int(seal[2]):
        raise ArtifactUnreadable(
            f"{ref} is damaged: it does not end as it was stored, or was never stored", key=ref
        )
    digest, size, content_type = seal[1].decode(), int(seal[2]), seal[3].decode()
    return storage.Stat(size, digest, content_type, to_datetime(facts.st_mtime_ns // 1000))
