"""The children of one command: started, watched, started again, and never left behind.

life of a child     starts, reports over a line that it is registered, and each renewal, ends
                    ended by itself: started again, after a pause that doubles
SIGTERM to us       SIGTERM to each, which drains; SIGKILL when that takes too long
a second one        SIGINT to each, which hurries
SIGKILL to us       the kernel kills each
"""

from __future__ import annotations

import asyncio
import logging
import os
import signal
import socket
import subprocess
import threading
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

from ulak.clock import Duration, seconds
from ulak.engine.threads import call_on

log = logging.getLogger("ulak.supervisor")

FIRST_PAUSE_S = 0.5
LONGEST_PAUSE_S = 30.0
# Who has lived so long did not end because it was started: the next pause is the first again.
SETTLED_S = 60.0
# A guess: one end may be bad luck, and so may two; the third in a row is how things stand.
KEEPS_ENDING = 3
# Beyond its drain a child must close its store and its interpreter. A guess, as is the next.
MARGIN_S = 5.0
HURRY_S = 5.0


@dataclass(frozen=True, slots=True)
class Child:
    """A process that is to run for as long as its supervisor does."""

    name: str
    command: tuple[str, ...]
    lease: Duration = timedelta(seconds=30)
    """How old the last renewal may be that it has reported."""
    environment: Mapping[str, str] | None = None
    """By default that of its supervisor."""


class Supervisor:
    """Keeps children running, on a thread of its own: nobody else's loop waits for it. A child is
    the leader of a session of its own, so that Ctrl-C in a terminal reaches us alone, and what it
    has started goes with it. Its output is its own: it writes where we write. Once told to end, it
    may take as long as `drain`."""

    def __init__(self, children: Sequence[Child], *, drain: Duration) -> None:
        self._lives = [_Life(child) for child in children]
        self._patience_s = seconds(drain) + MARGIN_S
        self._loop: asyncio.AbstractEventLoop | None = None
        self._is_stopped = False
        self._is_hurried = False

    @property
    def running(self) -> int:
        return sum(life.process is not None for life in self._lives)

    def unready(self) -> str | None:
        """Say which child has not registered yet, has an old lease, or keeps ending; None when all
        is well."""
        if self._is_stopped:
            return "the workers drain"
        return next((said for life in self._lives if (said := life.complaint())), None)

    def unclean(self) -> str | None:
        """Say, when all have ended, which of them did not end well; None when all did."""
        return "; ".join(life.unclean for life in self._lives if life.unclean) or None

    async def run(self) -> None:
        """Keep the children running until `stop`; return when none is left."""
        ours = asyncio.get_running_loop()
        over: asyncio.Future[None] = ours.create_future()

        def supervise() -> None:
            failure: BaseException | None = None
            try:
                asyncio.run(self._supervise())
            except BaseException as error:  # noqa: BLE001 - raised where it is waited for
                failure = error
            call_on(ours, _settle, over, failure)

        # The kernel kills a child when the thread that has started it ends: this one ends last.
        threading.Thread(target=supervise, name="ulak-supervisor", daemon=True).start()
        await over

    def stop(self) -> None:
        """Have every child drain. May be called from any thread, before `run` too."""
        self._is_stopped = True
        if self._loop is not None:
            call_on(self._loop, self._see)

    def hurry(self) -> None:
        self._is_hurried = True
        self.stop()

    def _see(self) -> None:
        if self._is_stopped:
            self._stopping.set()
        if self._is_hurried:
            self._hurrying.set()

    async def _supervise(self) -> None:
        self._stopping, self._hurrying = asyncio.Event(), asyncio.Event()
        self._loop = asyncio.get_running_loop()
        # Asked before there was a loop to be told: nobody else would look.
        self._see()
        try:
            await asyncio.gather(*(self._keep(life) for life in self._lives))
        finally:
            # After a failure of ours: nobody would be there to watch whoever is left.
            for life in self._lives:
                if life.process is not None:
                    life.bury(is_told=False)

    async def _keep(self, life: _Life) -> None:
        while not self._stopping.is_set():
            try:
                line = life.start()
            except OSError as error:
                why = f"not started: {error}"
            else:
                with line:
                    why = await self._watch(life, line)
            if self._stopping.is_set():
                return
            pause_s = life.ended(why)
            log.warning(
                "a child has ended", extra={"child": life.name, "why": why, "again_in_s": pause_s}
            )
            with suppress(TimeoutError):
                async with asyncio.timeout(pause_s):
                    await self._stopping.wait()

    async def _watch(self, life: _Life, line: socket.socket) -> str:
        """Wait until a child has ended, by itself or because it is told to; answer how."""
        assert life.process is not None  # noqa: S101 - just started
        pid = life.process.pid
        log.info("a child is started", extra={"child": life.name, "pid": pid})
        hearing = asyncio.create_task(_hear(life, line))
        ended = _end_of(pid)
        await _first(ended, self._stopping)
        if not ended.done():
            await self._end(life, pid, ended)
        hearing.cancel()
        await asyncio.wait([hearing])
        return life.bury(is_told=self._stopping.is_set())

    async def _end(self, life: _Life, pid: int, ended: asyncio.Future[None]) -> None:
        os.kill(pid, signal.SIGTERM)
        await _first(ended, self._hurrying, timeout_s=self._patience_s)
        if self._hurrying.is_set() and not ended.done():
            os.kill(pid, signal.SIGINT)
            await asyncio.wait([ended], timeout=HURRY_S)
        if not ended.done():
            life.unclean = f"{life.name} did not stop in time and was killed"
            os.kill(pid, signal.SIGKILL)
            await ended


class _Life:
    """How it stands with one child; written by the supervisor's thread, read by any."""

    def __init__(self, child: Child) -> None:
        self.name = child.name
        self.process: subprocess.Popen[bytes] | None = None
        self.renewed_at: float | None = None
        self.unclean = ""
        self._command = child.command
        self._environment = child.environment
        self._lease_s = seconds(child.lease)
        self._started_at = 0.0
        self._ends = 0
        self._why = ""

    def start(self) -> socket.socket:
        """Start it; answer our end of the line over which it reports. Raises `OSError`: the system
        cannot start it now."""
        ours, theirs = socket.socketpair()
        ours.setblocking(False)
        self._started_at = time.monotonic()
        with theirs:
            try:
                self.process = subprocess.Popen(  # noqa: S603 - our own command line
                    self._command, stdin=theirs.fileno(), start_new_session=True,
                    env=self._environment,
                )  # fmt: skip
            except OSError:
                ours.close()
                raise
        return ours

    def bury(self, *, is_told: bool) -> str:
        """End it, if it has not, and whatever it has started, and reap it; answer how it ended."""
        assert self.process is not None  # noqa: S101 - it was started
        os.killpg(self.process.pid, signal.SIGKILL)
        code = self.process.wait()
        self.process = None
        if is_told and not self.unclean and code not in (0, -signal.SIGTERM):
            self.unclean = f"{self.name} did not end well: {_way(code)}"
        return _way(code)

    def ended(self, why: str) -> float:
        """Note that it has ended by itself; answer after how many seconds it is started again."""
        self._ends = 1 if self._is_settled() else self._ends + 1
        self._why = why
        return pause_after(self._ends)

    def complaint(self) -> str | None:
        if self._ends >= KEEPS_ENDING and not (self.process and self._is_settled()):
            return f"{self.name} keeps ending: {self._ends} times, the last time by {self._why}"
        if self.renewed_at is None:
            last = f"; the last one ended by {self._why}" if self._ends else ""
            return f"{self.name} has not registered yet{last}"
        age_s = time.monotonic() - self.renewed_at
        if age_s > self._lease_s:
            return (
                f"{self.name} has renewed its lease of {self._lease_s:g} s {age_s:.0f} s ago; "
                "others may take its jobs"
            )
        return None

    def _is_settled(self) -> bool:
        return time.monotonic() - self._started_at >= SETTLED_S


def pause_after(ends: int) -> float:
    """Return how many seconds to wait after so many ends in a row."""
    return min(FIRST_PAUSE_S * 2.0 ** min(ends - 1, 10), LONGEST_PAUSE_S)


def _end_of(pid: int) -> asyncio.Future[None]:
    """Return what is done when a child has ended; until it is reaped, its number is its own."""
    loop = asyncio.get_running_loop()
    ended: asyncio.Future[None] = loop.create_future()

    def wait() -> None:
        with suppress(ChildProcessError):  # reaped in a hurry
            os.waitid(os.P_PID, pid, os.WEXITED | os.WNOWAIT)
        call_on(loop, _settle, ended, None)

    threading.Thread(target=wait, name=f"ulak-child-{pid}", daemon=True).start()
    return ended


async def _first(
    ended: asyncio.Future[None], event: asyncio.Event, *, timeout_s: float | None = None
) -> None:
    happening = asyncio.ensure_future(event.wait())
    waited: list[asyncio.Future[Any]] = [ended, happening]
    await asyncio.wait(waited, timeout=timeout_s, return_when=asyncio.FIRST_COMPLETED)
    happening.cancel()


async def _hear(life: _Life, line: socket.socket) -> None:
    with suppress(OSError):
        while await asyncio.get_running_loop().sock_recv(line, 64):
            life.renewed_at = time.monotonic()


def _way(code: int) -> str:
    if code >= 0:
        return f"exit code {code}"
    known = {number.value: number.name for number in signal.Signals}
    return f"signal {known.get(-code, -code)}"


def _settle(over: asyncio.Future[None], failure: BaseException | None) -> None:
    if over.done():
        return
    if failure is None:
        over.set_result(None)
    else:
        over.set_exception(failure)
