"""What a browser's processes hold of memory, and the end of one that holds too much.

Read from /proc: the sizes of every process are there for anybody to read, so it works whoever the
browser runs as.
"""

from __future__ import annotations

import os
import re
import signal
from contextlib import suppress
from dataclasses import dataclass
from typing import Final

_PAGE: Final = os.sysconf("SC_PAGE_SIZE")
_KIND: Final = re.compile(rb"--type=([a-z-]+)")
_OF_PAGES: Final = frozenset({"renderer", "utility"})
"""Kinds of processes that work for pages: the second puts printed pages together."""


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

    def sample(self) -> list[Usage]:
        """Tell what each process holds now; one that ends meanwhile is left out."""
        pids = {int(name) for name in os.listdir("/proc") if name.isdigit()}
        for pid in self._parents.keys() - pids:
            self._parents.pop(pid)
            self._kinds.pop(pid, None)
        for pid in pids - self._parents.keys():
            self._parents[pid] = _parent_of(pid)
        usages = []
        for pid in self._parents:
            if self._belongs(pid):
                with suppress(OSError, IndexError, ValueError):
                    usages.append(Usage(pid, self._kind_of(pid), _resident(pid)))
        return usages

    def kill_beyond(self, limit: int) -> int:
        """Kill the processes that work for pages and hold more than that; tell how many."""
        killed = 0
        for usage in self.sample():
            # What is shared with others counts in part: the browser's own code is 150 MB.
            if (
                usage.kind in _OF_PAGES
                and usage.resident > limit
                and _proportional(usage) > limit
                and _parent_of(usage.pid) == self._parents[usage.pid]
            ):
                with suppress(ProcessLookupError):
                    os.kill(usage.pid, signal.SIGKILL)
                    killed += 1
        return killed

    def lasting(self) -> int:
        """Tell what the processes hold that outlive their pages: those that can only grow."""
        return sum(usage.resident for usage in self.sample() if usage.kind != "renderer")

    def _belongs(self, pid: int) -> bool:
        seen = 0
        while pid > 1 and seen < 64:
            if pid == self._root:
                return True
            pid = self._parents.get(pid, 0)
            seen += 1
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


def _parent_of(pid: int) -> int:
    try:
        fields = _read(f"/proc/{pid}/stat").rpartition(b")")[2].split()
        return int(fields[1])
    except (OSError, IndexError, ValueError):
        return 0


def _resident(pid: int) -> int:
    return int(_read(f"/proc/{pid}/statm").split()[1]) * _PAGE


def _proportional(usage: Usage) -> int:
    try:
        for line in _read(f"/proc/{usage.pid}/smaps_rollup").splitlines():
            if line.startswith(b"Pss:"):
                return int(line.split()[1]) * 1024
    except OSError:
        # Only root may look into a process behind a sandbox; others count the shared part too.
        return usage.resident
    return usage.resident
