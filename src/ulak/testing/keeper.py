"""Keep one server for a program that may be killed, and leave nothing of either behind.

    python keeper.py DIRECTORY USER CALLER

Run as a process of its own, between the program and the server. It does what it is told, a line
of JSON each way, and when the program is gone - even by SIGKILL - it kills the server and
removes its directory and its shared memory. Processes that lose their parent below it become its
children, so it knows when the last of them has gone, and can say so.

It imports nothing but the standard library, so that it is there in a few hundredths of a second.
"""

from __future__ import annotations

import ctypes
import json
import os
import pwd
import select
import shutil
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any, BinaryIO

PR_SET_PDEATHSIG = 1
PR_SET_CHILD_SUBREAPER = 36
IPC_RMID = 0


class Keeper:
    """Starts and ends the server, whose processes are all of this process's children."""

    def __init__(self, directory: Path, user: str | None) -> None:
        self.directory = directory
        self.user = user
        self.child: subprocess.Popen[bytes] | None = None
        self.libc = ctypes.CDLL(None)
        self.libc.prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)

    def start(self, argv: list[str], log: str) -> int:
        """Start a command, its output appended to the log, and answer its process id."""
        with Path(log).open("ab") as output:
            self.child = subprocess.Popen(  # noqa: S603 - the command of whoever started us
                argv,
                cwd=self.directory,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                user=self.user,
                # Group and supplementary groups go with the user; root's are not for a server.
                group=None if self.user is None else pwd.getpwnam(self.user).pw_gid,
                extra_groups=None if self.user is None else [],
                start_new_session=True,
                # Should the keeper itself be killed. Called after the change of user, which
                # would undo it.
                preexec_fn=lambda: self.libc.prctl(PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0),
            )
        return self.child.pid

    def poll(self) -> int | None:
        """Return how the command ended, None while it runs."""
        return None if self.child is None else self.child.poll()

    def end(self, number: int, within_s: float) -> int | None:
        """Signal the command, wait for its end, and kill what is left of it.

        0 sends nothing and only waits. Returns how the command ended.
        """
        if self.child is None:
            return None
        if number:
            self.child.send_signal(number)
        try:
            code: int | None = self.child.wait(within_s)
        except subprocess.TimeoutExpired:
            code = None
        self.kill()
        return code

    def kill(self) -> None:
        """SIGKILL every process of the server, and return when the last has gone."""
        if self.child is None:
            return
        # First the one that could start others; they are ours when it is reaped.
        self.child.kill()
        self.child.wait()
        while children := children_of(os.getpid()):
            for pid in children:
                os.kill(pid, signal.SIGKILL)
            os.waitpid(-1, 0)
        # System V shared memory outlives those who made it, and there is room for few.
        for segment in segments_of(self.child.pid):
            self.libc.shmctl(segment, IPC_RMID, None)
        self.child = None

    def obey(self, request: dict[str, Any]) -> object:
        """Do one thing that the program asks for."""
        match request.pop("do"):
            case "start":
                return self.start(**request)
            case "poll":
                return self.poll()
            case "end":
                return self.end(**request)
            case unknown:
                raise ValueError(f"a keeper cannot {unknown!r}")

    def serve(self, requests: BinaryIO, answers: BinaryIO, caller: int) -> None:
        """Obey until the program says no more or is gone."""
        try:
            gone = os.pidfd_open(caller)
        except ProcessLookupError:
            return
        waiting = select.poll()
        waiting.register(requests, select.POLLIN)
        waiting.register(gone, select.POLLIN)
        # A program that died before it could be watched has left its children to another.
        while os.getppid() == caller:
            if any(source == gone for source, _ in waiting.poll()):
                return
            line = requests.readline()
            if not line:
                return
            try:
                answer: dict[str, object] = {"answer": self.obey(json.loads(line))}
            except OSError as error:
                answer = {"error": str(error)}
            answers.write(json.dumps(answer).encode() + b"\n")
            answers.flush()


def children_of(parent: int) -> list[int]:
    """The processes that have this parent, the dead that nobody has reaped included."""
    found = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                stat = (entry / "stat").read_text()
            except (FileNotFoundError, ProcessLookupError):
                continue
            # The name stands in parentheses and may hold anything, parentheses too.
            if int(stat.rpartition(")")[2].split()[1]) == parent:
                found.append(int(entry.name))
    return found


def segments_of(pid: int) -> list[int]:
    """The System V shared memory that a process has made."""
    try:
        lines = Path("/proc/sysvipc/shm").read_text().splitlines()
    except FileNotFoundError:
        return []  # a kernel without it
    # key shmid perms size cpid lpid nattch ...
    rows = [line.split() for line in lines[1:]]
    return [int(row[1]) for row in rows if int(row[4]) == pid]


def main(directory: str, user: str, caller: str) -> None:
    """Keep until told to stop or left alone."""
    keeper = Keeper(Path(directory), user or None)
    # SIGTERM ends it as the end of the program does; the server inherits no handler.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit())
    try:
        keeper.serve(sys.stdin.buffer, sys.stdout.buffer, int(caller))
    finally:
        keeper.kill()
        shutil.rmtree(directory, ignore_errors=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
