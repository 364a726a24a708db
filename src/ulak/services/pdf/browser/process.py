"""Processes of a renderer: started with nothing of the worker's, ended as a tree, and weighed.

What they hold of memory is read from /proc: the sizes of every process are there for anybody to
read, so it works whoever the browser runs as.
"""

from __future__ import annotations

import asyncio
import fcntl
import os
import re
import signal
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final, TypeVar

T = TypeVar("T")

_ABOVE: Final = 10
_PAGE: Final = os.sysconf("SC_PAGE_SIZE")
_KIND: Final = re.compile(rb"--type=([a-z-]+)")
STOPPED: Final = "T"
"""The state of a process that a signal has stopped, as /proc has it."""
OF_PAGES: Final = frozenset({"renderer", "utility"})
"""Kinds of processes that work for pages: the second puts printed pages together."""
_OF_ALL: Final = frozenset({"browser", "gpu-process"})
"""Kinds that work for all pages together: what one of them holds cannot be told of any page."""


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

    Its environment is the one that is given, and nothing of the worker's own. It must be called by
    a thread that lives as long as the process may: the kernel ends it with that.

    Args:
        files: By the number that a file has there, the one that it has here; it stays open.

    Raises:
        OSError: it cannot be executed.
    """
    actions: list[tuple[Any, ...]] = [
        (os.POSIX_SPAWN_OPEN, file, os.devnull, flags, 0)
        for file, flags in enumerate((os.O_RDONLY, os.O_WRONLY, os.O_WRONLY))
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


def undo(making: asyncio.Future[T], take_away: Callable[[T], object]) -> None:
    """Have what was made taken away, now or when it is there: nobody waits for it any more."""

    def done(made: asyncio.Future[T]) -> None:
        if not made.cancelled() and made.exception() is None:
            take_away(made.result())

    making.add_done_callback(done)


def state_and_parent(pid: int) -> tuple[str, int]:
    """Return a process's state and its parent; '' and 0 when there is none."""
    try:
        # The name in front may hold anything, parentheses too.
        fields = _read(f"/proc/{pid}/stat").rpartition(b")")[2].split()
        return fields[0].decode("ascii"), int(fields[1])
    except (OSError, IndexError, ValueError):
        return "", 0


def is_stopped(pid: int) -> bool:
    """Tell whether a signal has stopped a process: it does nothing until it is let go on."""
    return state_and_parent(pid)[0] == STOPPED


@dataclass(frozen=True, slots=True)
class Usage:
    """One process and its resident memory."""

    pid: int
    kind: str
    """As Chromium calls it: renderer, utility, gpu-process, zygote; browser is the first one."""
    resident: int


class Tree:
    """The processes of one browser, looked at again and again.

    Who a process's parent is is read once. A number may come to another process between two
    looks, so it is read again before one is killed.
    """

    def __init__(self, root: int) -> None:
        self._root = root
        self._parents: dict[int, int] = {}
        self._kinds: dict[int, str] = {}
        self._first: dict[int, Usage] = {}
        """What each process that works for all pages held when it was seen first."""
        self.has_outgrown = False
        """One of those has grown by more than `kill_beyond` was told."""

    def sample(self) -> list[Usage]:
        """Tell what each process holds now; one that ends meanwhile is left out."""
        pids = {int(name) for name in os.listdir("/proc") if name.isdigit()}
        for pid in self._parents.keys() - pids:
            self._parents.pop(pid)
            self._kinds.pop(pid, None)
            self._first.pop(pid, None)
        for pid in pids - self._parents.keys():
            self._parents[pid] = state_and_parent(pid)[1]
        usages = []
        for pid in self._parents:
            if self._belongs(pid):
                with suppress(OSError, IndexError, ValueError):
                    pages = int(_read(f"/proc/{pid}/statm").split()[1])
                    usages.append(Usage(pid, self._kind_of(pid), pages * _PAGE))
        return usages

    def kill_beyond(self, limit: int) -> int:
        """Kill the processes that work for pages and hold more than that; tell how many.

        Those that work for all pages are not killed here, for nobody knows for which page they
        have grown by so much: see `has_outgrown`.
        """
        killed = 0
        for usage in self.sample():
            if usage.kind in _OF_ALL and self._growth(usage, limit) > limit:
                self.has_outgrown = True
            # What is shared with others counts in part: the browser's own code is 150 MB.
            if (
                usage.kind in OF_PAGES
                and usage.resident > limit
                and _proportional(usage) > limit
                and state_and_parent(usage.pid)[1] == self._parents[usage.pid]
            ):
                with suppress(ProcessLookupError):
                    os.kill(usage.pid, signal.SIGKILL)
                    killed += 1
        return killed

    def find_stopped(self) -> dict[int, str]:
        """Find the processes that a signal has stopped, and return each with its kind."""
        found = {}
        for pid in self._parents:
            if self._belongs(pid) and is_stopped(pid):
                with suppress(OSError):  # it has ended meanwhile
                    found[pid] = self._kind_of(pid)
        return found

    def _growth(self, usage: Usage, limit: int) -> int:
        first = self._first.get(usage.pid)
        if first is None:
            self._first[usage.pid] = first = replace(usage, resident=_proportional(usage))
        # Most looks end here: the exact size is dear.
        if usage.resident - first.resident <= limit:
            return 0
        return _proportional(usage) - first.resident

    def lasting(self) -> int:
        """Tell what the processes hold that outlive their pages: those that can only grow."""
        return sum(usage.resident for usage in self.sample() if usage.kind != "renderer")

    def _belongs(self, pid: int) -> bool:
        for _ in range(64):
            if pid <= 1 or pid == self._root:
                return pid > 1
            pid = self._parents.get(pid, 0)
        return False

    def _kind_of(self, pid: int) -> str:
        if pid == self._root:
            return "browser"
        kind = self._kinds.get(pid, "zygote")
        # A renderer begins as a copy of the zygote, under its name.
        if kind == "zygote":
            found = _KIND.search(_read(f"/proc/{pid}/cmdline"))
            kind = self._kinds[pid] = found[1].decode("ascii") if found else "zygote"
        return kind


def _read(path: str) -> bytes:
    # Ten times a second, and many: a path object for each would cost more than the reading.
    file = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        return os.read(file, 1 << 16)
    finally:
        os.close(file)


def _proportional(usage: Usage) -> int:
    # Only root may look into a process behind a sandbox; others count the shared part too.
    with suppress(OSError):
        for line in _read(f"/proc/{usage.pid}/smaps_rollup").splitlines():
            if line.startswith(b"Pss:"):
                return int(line.split()[1]) * 1024
    return usage.resident
