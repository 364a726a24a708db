"""A renderer's first process: started with nothing of the worker's, ended with its whole tree."""

from __future__ import annotations

import asyncio
import fcntl
import os
import signal
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import Any, Final

_ABOVE: Final = 10
"""Higher than any number that a process is given a file by."""


class Process:
    """A process that `spawn` has started."""

    def __init__(self, pid: int) -> None:
        self.pid = pid
        self._loop = asyncio.get_running_loop()
        self._pidfd = os.pidfd_open(pid)
        self._ended: asyncio.Future[None] = self._loop.create_future()
        self._loop.add_reader(self._pidfd, self._reap)

    @property
    def has_ended(self) -> bool:
        """It has ended and is gone from the table of processes."""
        return self._ended.done()

    async def kill(self) -> None:
        """End it with everything it has started, and wait until it is gone; works twice."""
        if not self._ended.done():
            # Its processes are all of its own process group, those in other namespaces too.
            with suppress(ProcessLookupError, PermissionError):
                os.killpg(self.pid, signal.SIGKILL)
            await asyncio.shield(self._ended)

    def _reap(self) -> None:
        self._loop.remove_reader(self._pidfd)
        os.close(self._pidfd)
        with suppress(ChildProcessError):
            os.waitpid(self.pid, 0)
        if not self._ended.done():
            self._ended.set_result(None)


def spawn(
    argv: Sequence[str], environment: Mapping[str, str], *, files: Mapping[int, int]
) -> Process:
    """Start a program in a session of its own.

    It must be called by a thread that lives as long as the process may: the kernel ends it with
    that.

    Args:
        argv: The program and its arguments.
        environment: All of it: nothing of the worker's own reaches the program.
        files: By the number that a file has there, the one that it has here; it stays open.

    Raises:
        OSError: it cannot be executed.
    """
    actions: list[tuple[Any, ...]] = [
        (os.POSIX_SPAWN_OPEN, 0, os.devnull, os.O_RDONLY, 0),
        (os.POSIX_SPAWN_OPEN, 1, os.devnull, os.O_WRONLY, 0),
        (os.POSIX_SPAWN_OPEN, 2, os.devnull, os.O_WRONLY, 0),
    ]
    with ExitStack() as stack:
        for there, here in files.items():
            # Above the numbers that it is given, so that none is overwritten on the way.
            raised = fcntl.fcntl(here, fcntl.F_DUPFD_CLOEXEC, _ABOVE)
            stack.callback(os.close, raised)
            actions.append((os.POSIX_SPAWN_DUP2, raised, there))
        # Spawned, not forked: no Python runs in the child, whatever threads there are.
        pid = os.posix_spawnp(
            argv[0],
            list(argv),
            environment,
            file_actions=actions,
            setsid=True,
            # Shells and test runners may have blocked or ignored signals that it needs.
            setsigmask=(),
            setsigdef=(signal.SIGPIPE, signal.SIGCHLD, signal.SIGTERM, signal.SIGINT),
        )
    return Process(pid)


def find_processes(mark: str) -> Iterator[tuple[int, bytes]]:
    """Find the processes with a text in their command, and return each with that command."""
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            # Not split into words: Chromium writes its own over, with spaces in between.
            with suppress(OSError):
                if os.fsencode(mark) in (command := (entry / "cmdline").read_bytes()):
                    yield int(entry.name), command


def looked_at(future: asyncio.Future[Any]) -> None:
    """Have a failure that nobody waits for go without complaint."""
    if not future.cancelled():
        future.exception()
