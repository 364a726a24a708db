"""The browser's first process: started with a pipe to its debugger, ended with its whole tree."""

from __future__ import annotations

import asyncio
import fcntl
import os
import signal
from contextlib import suppress
from typing import Final

from ulak.services.pdf.browser.launch import Launch

_COMMANDS: Final = 3
_ANSWERS: Final = 4
"""Where Chromium reads commands and writes answers when it is debugged over a pipe."""
_CAPACITY: Final = 1 << 20
"""Of each pipe: what an unprivileged process may ask for. A PDF comes in few reads so."""
_ABOVE: Final = 10


class Process:
    """A browser's process, and the two ends of its pipes that are ours (not blocking)."""

    def __init__(self, pid: int, *, commands: int, answers: int) -> None:
        self.pid = pid
        self.commands = commands
        self.answers = answers
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

    def close(self) -> None:
        """Close our ends; an end that is closed already is left alone."""
        for end in (self.commands, self.answers):
            if end >= 0:
                os.close(end)
        self.commands = self.answers = -1

    def _reap(self) -> None:
        self._loop.remove_reader(self._pidfd)
        os.close(self._pidfd)
        with suppress(ChildProcessError):
            os.waitpid(self.pid, 0)
        if not self._ended.done():
            self._ended.set_result(None)


def spawn(launch: Launch) -> Process:
    """Start the browser that was prepared, debugged over a pipe.

    It must be called by a thread that lives as long as the browser may: the kernel ends the
    browser with it.

    Raises:
        OSError: it cannot be executed.
    """
    its_commands, our_commands = _pipe()
    our_answers, its_answers = _pipe()
    argv = launch.argv("--remote-debugging-pipe", "--no-startup-window")
    try:
        # Spawned, not forked: no Python runs in the child, whatever threads there are.
        pid = os.posix_spawnp(
            argv[0],
            argv,
            dict(launch.environment),
            file_actions=[
                (os.POSIX_SPAWN_OPEN, 0, os.devnull, os.O_RDONLY, 0),
                (os.POSIX_SPAWN_OPEN, 1, os.devnull, os.O_WRONLY, 0),
                (os.POSIX_SPAWN_OPEN, 2, os.devnull, os.O_WRONLY, 0),
                (os.POSIX_SPAWN_DUP2, its_commands, _COMMANDS),
                (os.POSIX_SPAWN_DUP2, its_answers, _ANSWERS),
            ],
            setsid=True,
            # Shells and test runners may have blocked or ignored signals that it needs.
            setsigmask=(),
            setsigdef=(signal.SIGPIPE, signal.SIGCHLD, signal.SIGTERM, signal.SIGINT),
        )
    except BaseException:
        os.close(our_commands)
        os.close(our_answers)
        raise
    finally:
        os.close(its_commands)
        os.close(its_answers)
    os.set_blocking(our_commands, False)
    os.set_blocking(our_answers, False)
    return Process(pid, commands=our_commands, answers=our_answers)


def _pipe() -> tuple[int, int]:
    # Above the numbers that the child is given, so that neither end is overwritten on the way.
    ends = os.pipe()
    moved = tuple(fcntl.fcntl(end, fcntl.F_DUPFD_CLOEXEC, _ABOVE) for end in ends)
    for end in ends:
        os.close(end)
    # A user may have used up what all pipes together may hold; a smaller one works as well.
    with suppress(OSError):
        fcntl.fcntl(moved[0], fcntl.F_SETPIPE_SZ, _CAPACITY)
    return moved[0], moved[1]
