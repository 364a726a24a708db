"""How a browser that Playwright started ends, with its whole tree and Playwright's own process."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Final

from playwright.async_api import Playwright

from ulak.services.pdf.browser.driver import BrowserGone
from ulak.services.pdf.browser.launch import Launch
from ulak.services.pdf.browser.process import find_processes, looked_at

_STOPS_WITHIN_S: Final = 5.0
"""How long Playwright may take to end when its browser has. It takes milliseconds; a guess."""


class Ending:
    """How a browser and its Playwright end, whatever they are doing."""

    def __init__(self, launch: Launch, playwright: Playwright) -> None:
        self._launch = launch
        self._playwright = playwright
        self.pid = 0
        """The browser's first process, once it was looked for."""
        self._playwright_pid = 0
        self._ended: asyncio.Future[None] | None = None

    @property
    def is_over(self) -> bool:
        """The browser's first process has ended."""
        return _state_of(self.pid)[0] in ("", "Z")

    def look(self) -> None:
        """Find the browser's first process, and with it Playwright's.

        Raises:
            BrowserGone: it has ended.
        """
        for pid in _roots(self._launch.profile):
            self.pid, self._playwright_pid = pid, int(_state_of(pid)[1] or 0)
            return
        raise BrowserGone

    async def kill(self) -> None:
        """End both and remove the profile; who is cancelled here leaves it being done."""
        if self._ended is None:
            self._ended = asyncio.ensure_future(self._end())
        await asyncio.shield(self._ended)

    async def _end(self) -> None:
        self._kill_browser()
        stopping = asyncio.ensure_future(self._playwright.stop())
        stopping.add_done_callback(looked_at)
        await asyncio.wait({stopping}, timeout=_STOPS_WITHIN_S)
        if not stopping.done() and self._playwright_pid:
            _kill(os.kill, self._playwright_pid)
            await asyncio.wait({stopping})
        self._kill_browser()  # one that was being started meanwhile
        await asyncio.to_thread(self._launch.remove)

    def _kill_browser(self) -> None:
        # The browser is the first of a group of its own, and all of its tree are in it.
        for pid in _roots(self._launch.profile):
            _kill(os.killpg, pid)


def _roots(profile: Path) -> Iterator[int]:
    """Find the processes that have this profile and are nobody's helpers: one, or none."""
    for pid, command in find_processes(f"--user-data-dir={profile}"):
        if b"--type=" not in command:
            yield pid


def _state_of(pid: int) -> tuple[str, str]:
    """Tell a process's state and its parent; empty when there is none."""
    try:
        # The name in front may hold anything, parentheses too.
        words = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return "", ""
    return words[0], words[1]


def _kill(send: Callable[[int, int], None], pid: int) -> None:
    with suppress(ProcessLookupError, PermissionError):
        send(pid, signal.SIGKILL)
