"""`ulak` without the second that its imports take: commands are forked from one process of the run.

What is typed, set and written is that of a real process, and it is killed as one; only the imports
were made before. `tests/docs` and others start the program itself.
"""

from __future__ import annotations

import json
import os
import select
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import IO, TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from bench.zygote import Zygote

# The program that stands in a PATH in the place of `ulak`. It imports next to nothing.
SHIM = """#!{python} -IS
import json, os, signal, socket, sys

line = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
line.connect({socket!r})
order = dict(command=sys.argv[1:], environ=dict(os.environ), folder=os.getcwd())
socket.send_fds(line, [json.dumps(order).encode()], [0, 1, 2])
pid = int(line.recv(64))
for number in (signal.SIGTERM, signal.SIGINT):
    signal.signal(number, lambda number, _: os.kill(pid, number))
code = int(line.recv(64) or -9)
sys.exit(code if code >= 0 else 128 - code)
"""


@pytest.fixture(scope="session")
def zygote() -> Iterator[Zygote]:
    """What forks `ulak`, once for all tests of this process."""
    from bench.zygote import Zygote

    forks = Zygote()
    yield forks
    forks.close()


def write_program(folder: Path, zygote: Zygote) -> None:
    """Write an `ulak` into a folder, for whoever has it in the PATH."""
    program = folder / "ulak"
    program.write_text(SHIM.format(python=sys.executable, socket=zygote.socket))
    program.chmod(0o755)


class Forked:
    """A command of `ulak` that runs, with the members of `subprocess.Popen` that are used."""

    def __init__(
        self, zygote: Zygote, command: Sequence[str], *, folder: Path, environ: Mapping[str, str],
        out: IO[bytes],
    ) -> None:  # fmt: skip
        order = {"command": command, "environ": dict(environ), "folder": str(folder)}
        self._line = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self._line.connect(zygote.socket)
        with open(os.devnull, "rb") as nothing:
            files = [nothing.fileno(), out.fileno(), out.fileno()]
            socket.send_fds(self._line, [json.dumps(order).encode()], files)
        self.pid = int(self._line.recv(64))
        self.returncode: int | None = None

    def poll(self) -> int | None:
        """Return its exit code, None while it runs."""
        return self._look(0)

    def wait(self, timeout: float | None = None) -> int:
        """Wait until it has ended. Raises `TimeoutExpired`."""
        code = self._look(timeout)
        if code is None:
            raise subprocess.TimeoutExpired("ulak", timeout or 0)
        return code

    def send_signal(self, number: int) -> None:
        if self.poll() is None:
            os.kill(self.pid, number)

    def terminate(self) -> None:
        self.send_signal(signal.SIGTERM)

    def kill(self) -> None:
        self.send_signal(signal.SIGKILL)

    def _look(self, timeout: float | None) -> int | None:
        if self.returncode is None and select.select([self._line], [], [], timeout)[0]:
            self.returncode = int(self._line.recv(64))
            self._line.close()
        return self.returncode
