"""Temporary directories of browsers: one each, gone with its browser, swept when its owner died.

An owner keeps a lock on a file in the directory for as long as it lives, however it ends; so a
directory whose lock can be taken is nobody's any more. Numbers of processes would not do:
containers that share a directory do not share them.
"""

from __future__ import annotations

import fcntl
import os
import shutil
import signal
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass
from io import FileIO
from pathlib import Path
from typing import Final

PREFIX: Final = "ulak-browser-"
_LOCK: Final = "owner"
_UNLOCKED_FOR_S: Final = 600.0
"""How old a directory without a lock must be: it is made before its lock is. A guess."""


@dataclass(frozen=True, slots=True)
class Workplace:
    """A directory of this process's, with the browser's profile in it."""

    directory: Path
    lock: FileIO

    @property
    def profile(self) -> Path:
        """What the browser may write to, and nothing else is."""
        return self.directory / "profile"

    def remove(self) -> None:
        """Take it away with all that is in it; may be called twice."""
        _remove(self.directory)
        self.lock.close()


def make_workplace(parent: Path, *, uid: int | None) -> Workplace:
    """Make a directory in `parent` whose profile belongs to a user (None: this one).

    Raises:
        OSError: it cannot be made.
    """
    directory = Path(tempfile.mkdtemp(prefix=PREFIX, dir=parent))
    # Others may pass through, for the profile is somebody else's, and list nothing.
    directory.chmod(0o711)
    # Locked before it gets its name: a sweep that sees the name sees the lock.
    lock = FileIO(str(directory / f"{_LOCK}.new"), "w")
    fcntl.flock(lock, fcntl.LOCK_EX)
    (directory / f"{_LOCK}.new").rename(directory / _LOCK)
    place = Workplace(directory, lock)
    place.profile.mkdir(mode=0o700)
    if uid is not None:
        os.chown(place.profile, uid, uid)
    return place


def sweep(parent: Path) -> int:
    """Remove the directories in `parent` whose owners have died, with browsers left in them.

    Answers how many there were.
    """
    return sum(_sweep(directory) for directory in parent.glob(f"{PREFIX}*"))


def _sweep(directory: Path) -> bool:
    try:
        if directory.stat().st_uid != os.geteuid():
            return False
        with (directory / _LOCK).open("rb") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except FileNotFoundError:
        if not _is_forgotten(directory):
            return False
    except OSError:
        return False
    # A browser dies with its worker by the kernel's hand; should one still be dying, or have been
    # missed, it must not write into what is being removed.
    for pid in _processes_in(directory):
        _kill(pid)
    _remove(directory)
    return True


def _is_forgotten(directory: Path) -> bool:
    try:
        return time.time() - directory.stat().st_mtime > _UNLOCKED_FOR_S
    except OSError:
        return False


def _processes_in(directory: Path) -> Iterator[int]:
    mark = f"--user-data-dir={directory}/".encode()
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                words = (entry / "cmdline").read_bytes().split(b"\0")
            except OSError:
                continue
            if any(word.startswith(mark) for word in words):
                yield int(entry.name)


def _kill(pid: int) -> None:
    try:
        os.kill(pid, signal.SIGKILL)
    except OSError:
        return


def _remove(directory: Path) -> None:
    # What still dies may write once more between the listing and the removal.
    for _ in range(20):
        shutil.rmtree(directory, ignore_errors=True)
        if not directory.exists():
            return
        time.sleep(0.01)
