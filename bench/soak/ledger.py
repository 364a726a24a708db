"""The outside world of the soak: one append-only file that no engine knows of.

Every line is one `write` to a descriptor opened with O_APPEND: lines of many processes never
mix, their order is the order in which they were written, and a SIGKILL loses none of them.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple


class Line(NamedTuple):
    """One thing that happened. What `words` mean depends on the kind.

    ready                       a worker will drain when it is asked to
    begin     key token         a stage or an undo starts; the key is job/round/name
    effect    key token         the effect of a `once` happened
    in, out   limit job token   a limited stage was entered, or left
    sent      job/seq/n         a message of the outbox was published
    accepted  number job new    a submit was answered
    dead                        the process was stopped for good; its id is `pid`
    forked    pid               a stage has forked this child
    """

    kind: str
    pid: int
    words: tuple[str, ...]


class Ledger:
    """Appends lines; shared by the threads of a process, and by its forks."""

    def __init__(self, path: Path) -> None:
        self._fd = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o644)

    def append(self, kind: str, *words: object, pid: int | None = None) -> None:
        """Write one line; when this returns, no kill of this process can take it back."""
        line = " ".join((kind, str(pid or os.getpid()), *map(str, words))) + "\n"
        os.write(self._fd, line.encode())

    def close(self) -> None:
        """Give the file back."""
        os.close(self._fd)


class Reader:
    """Reads on from where it stopped."""

    def __init__(self, path: Path) -> None:
        path.touch()
        self._file = path.open("rb")

    def read(self) -> Iterator[Line]:
        """Return the lines that were written since the last call."""
        while True:
            at = self._file.tell()
            line = self._file.readline()
            if not line.endswith(b"\n"):
                self._file.seek(at)
                return
            kind, pid, *words = line.decode().split()
            yield Line(kind, int(pid), tuple(words))

    def close(self) -> None:
        """Give the file back."""
        self._file.close()


def read_all(path: Path) -> list[Line]:
    """Return every line, in the order of writing."""
    reader = Reader(path)
    try:
        return list(reader.read())
    finally:
        reader.close()
