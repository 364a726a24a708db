"""Directories below a base, opened one by one, so that no link leads out of it.

A path is checked by the kernel where it is used: each part is opened in the directory that was
opened before, and a link is not followed. A link that is swapped in after any check of ours is
refused all the same.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Final

# Artifacts are private: whoever runs the browser, as another user, cannot read them.
FOLDER_MODE: Final = 0o700
FILE_MODE: Final = 0o600

_FOLDER = os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC
# A pipe would keep whoever opens it waiting for a writer, which an artifact never does.
_TO_READ = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
_TO_WRITE = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC


class Crooked(OSError):
    """On the way stands a link, or something else than a folder or a file."""


@contextmanager
def existing(base: Path, names: Sequence[str]) -> Iterator[tuple[int, ...]]:
    """Open a base and the folders below it, and answer their descriptors from the base down.

    Raises:
        FileNotFoundError: one is not there.
        Crooked: one is a link or no folder.
    """
    with _chain(base, names, _open) as chain:
        yield chain


@contextmanager
def made(base: Path, names: Sequence[str]) -> Iterator[tuple[int, ...]]:
    """Open folders as `existing` does; those that are not there are made.

    Raises:
        FileNotFoundError: somebody has removed one between its making and its opening.
        Crooked: one is a link or no folder.
    """
    _make_base(base)
    with _chain(base, names, _make_and_open) as chain:
        yield chain


def open_file(name: str, folder: int) -> int:
    """Open a file of a folder for reading.

    Raises:
        FileNotFoundError: there is none.
        Crooked: it is a link or no file.
    """
    try:
        file = os.open(name, _TO_READ, dir_fd=folder)
    except FileNotFoundError:
        raise
    except OSError as error:
        if error.errno is not None and _is_crooked(name, folder):
            raise _crooked(name) from error
        raise
    if not stat.S_ISREG(os.fstat(file).st_mode):
        os.close(file)
        raise _crooked(name)
    return file


def create_file(name: str, folder: int) -> int:
    """Make a file in a folder, for writing; `FileExistsError` when there is anything."""
    return os.open(name, _TO_WRITE, FILE_MODE, dir_fd=folder)


def must_be_file(name: str, folder: int) -> None:
    """Check that what has this name in a folder is a file.

    Raises:
        FileNotFoundError: nothing has it.
        Crooked: something else has it.
    """
    if not stat.S_ISREG(os.stat(name, dir_fd=folder, follow_symlinks=False).st_mode):
        raise _crooked(name)


@contextmanager
def _chain(
    base: Path, names: Sequence[str], open_next: Callable[[str, int], int]
) -> Iterator[tuple[int, ...]]:
    with ExitStack() as stack:
        # The base itself may be a link: where artifacts are kept is the operator's to say.
        chain = [os.open(base, _FOLDER)]
        stack.callback(os.close, chain[0])
        for name in names:
            chain.append(open_next(name, chain[-1]))
            stack.callback(os.close, chain[-1])
        yield tuple(chain)


def _open(name: str, folder: int) -> int:
    try:
        return os.open(name, _FOLDER | os.O_NOFOLLOW, dir_fd=folder)
    except NotADirectoryError as error:
        raise _crooked(name) from error


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


def _is_crooked(name: str, folder: int) -> bool:
    try:
        must_be_file(name, folder)
    except Crooked:
        return True
    return False


def _crooked(name: str) -> Crooked:
    return Crooked(f"{name!r} is a link, or neither folder nor file; links are never followed")
