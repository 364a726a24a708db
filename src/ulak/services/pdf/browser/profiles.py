"""Temporary directories of browsers: one each, gone with its browser, swept when its owner died.

Whoever holds the lock on the file `owner` in a directory owns it, for as long as it lives, however
it ends; so a directory whose lock can be taken is nobody's any more. Numbers of processes would not
do: containers that share a directory do not share them.

There is a moment when a directory is made and not yet locked. A sweep that comes then takes it, and
its maker, who finds that out with the lock in hand, makes another; so there is no moment at which
a maker could die and leave something that no sweep would take.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import secrets
import shutil
import signal
import tempfile
import time
from dataclasses import dataclass
from io import FileIO
from pathlib import Path
from typing import Final

from ulak.services.pdf.browser.process import find_processes
from ulak.services.pdf.ground import is_reachable
from ulak.services.pdf.model import PdfErrorCode, PermanentPdfError

PREFIX: Final = "ulak-browser-"
_LOCK: Final = "owner"


@dataclass(frozen=True, slots=True)
class Workplace:
    """A directory of this process's, with the browser's profile in it."""

    directory: Path
    lock: FileIO

    @property
    def profile(self) -> Path:
        """What the browser may write to, and nothing else is."""
        return self.directory / "profile"

    @property
    def environment(self) -> dict[str, str]:
        """What every program in it has as its environment, and nothing of the worker's own."""
        return {
            "PATH": "/usr/local/bin:/usr/bin:/bin",
            "HOME": str(self.profile),
            "TMPDIR": str(self.profile),
            "LANG": "C.UTF-8",
            "TZ": "UTC",
        }

    def remove(self) -> None:
        """Take it away with all that is in it; may be called twice."""
        _remove(self.directory)
        self.lock.close()


def prepare_workplace(
    directory: str | os.PathLike[str] | None, *, uid: int | None, owner: str, detail: str = ""
) -> Workplace:
    """Sweep what dead workers left, and make a directory for a program of a user's.

    Args:
        directory: Where it is made; the directory for temporary files when None.
        uid: The program's user; None when it is this one.
        owner: The program, as an error names it.
        detail: A stable word for that error.

    Raises:
        PermanentPdfError: the user cannot enter the directory.
        OSError: it cannot be made.
    """
    parent = _parent(directory)
    if not is_reachable(parent, uid=uid):
        raise PermanentPdfError(
            f"{owner}'s user {uid} cannot enter {parent}; choose another directory",
            code=PdfErrorCode.UNSUPPORTED_PLATFORM,
            detail=detail,
        )
    sweep(parent)
    return make_workplace(parent, uid=uid)


def make_workplace(parent: Path, *, uid: int | None) -> Workplace:
    """Make a directory in `parent` whose profile belongs to a user (None: this one).

    Raises:
        OSError: it cannot be made.
    """
    place = None
    while place is None:  # A sweep takes it only if it comes in the very moment.
        place = _own(Path(tempfile.mkdtemp(prefix=PREFIX, dir=parent)), fcntl.LOCK_EX)
    # Others may pass through, for the profile is somebody else's, and list nothing.
    place.directory.chmod(0o711)
    place.profile.mkdir(mode=0o700)
    if uid is not None:
        os.chown(place.profile, uid, uid)
    return place


def sweep(directory: str | os.PathLike[str] | None = None) -> int:
    """Remove the directories whose owners have died, with browsers left in them.

    Blocks for some milliseconds: call it in a thread.

    Args:
        directory: Where they lie; the directory for temporary files when None.

    Returns:
        How many there were.
    """
    return sum(_sweep(left) for left in _parent(directory).glob(f"{PREFIX}*"))


def _parent(directory: str | os.PathLike[str] | None) -> Path:
    # Python's own way to find it writes a file there, which a kill in that moment would leave.
    return Path(directory or os.environ.get("TMPDIR") or "/tmp").absolute()  # noqa: S108


def _own(directory: Path, how: int) -> Workplace | None:
    """Take a directory's lock; None if somebody has it, or has taken the directory away."""
    try:
        lock = FileIO(str(directory / _LOCK), "a")
    except FileNotFoundError:
        return None
    with contextlib.ExitStack() as undo:
        undo.callback(lock.close)
        with contextlib.suppress(BlockingIOError, FileNotFoundError):
            fcntl.flock(lock, how)
            if os.path.samestat(os.fstat(lock.fileno()), (directory / _LOCK).stat()):
                undo.pop_all()
                return Workplace(directory, lock)
    return None


def _sweep(directory: Path) -> bool:
    try:
        if directory.stat().st_uid != os.geteuid():
            return False
        place = _own(directory, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        return False
    if place is None:
        return False
    with place.lock:
        # A browser dies with its worker by the kernel's hand; should one still be dying, or have
        # been missed, it must not write into what is being removed.
        for pid, _ in find_processes(f"--user-data-dir={directory}/"):
            with contextlib.suppress(OSError):
                os.kill(pid, signal.SIGKILL)
        # All at once out of its maker's sight, who would make a lock where there is none.
        try:
            aside = directory.rename(directory.with_name(f"{PREFIX}{secrets.token_hex(8)}"))
        except OSError:
            return False
        _remove(aside)
    return True


def _remove(directory: Path) -> None:
    # What still dies may write once more between the listing and the removal.
    for _ in range(20):
        shutil.rmtree(directory, ignore_errors=True)
        if not directory.exists():
            return
        time.sleep(0.01)
