"""Programs that a job needs: run once, for a bounded time, and ended with all they have started."""

from __future__ import annotations

import asyncio
import os
import signal
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from datetime import timedelta
from subprocess import DEVNULL
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from ulak.core.run import Run

__all__ = ["Program", "plain_environment"]

_PATIENCE_S: Final = 2.0
"""How long killed processes may take to go; one that waits for a dead share may never."""
_GUARD: Final = ("/bin/sh", "-c", "read _; kill -KILL 0")
"""The first process of a program's group. It reads a pipe whose other end this process has, and
ends the group when nobody has it any more."""
_PLAIN: Final = frozenset(
    {"PATH", "HOME", "USER", "LOGNAME", "LANG", "LANGUAGE", "TZ", "TMPDIR", "DISPLAY", "XAUTHORITY"}
)


def plain_environment(*prefixes: str) -> dict[str, str]:
    """Return the variables of this process that tell where it runs and in which language, and
    those with one of the prefixes: none of its secrets."""
    return {
        name: value
        for name, value in os.environ.items()
        if name in _PLAIN or name.startswith(("LC_", *prefixes))
    }


class Program:
    """A program in a process group of its own, without a shell and without input.

    The group is ended, by SIGKILL, when the program ends, when its time is over, when `run` is
    cancelled, and when this process dies. A process that leaves the group is not.

    Args:
        command: What is executed, and its arguments.
        limit: How long it may take.
        environment: All of its variables.
        tail: How many bytes of what it writes are kept, the last ones; stdout and stderr are one.
    """

    def __init__(
        self,
        command: Sequence[str],
        *,
        limit: timedelta,
        environment: Mapping[str, str],
        tail: int = 4096,
    ) -> None:
        self._command = command
        self._limit = limit
        self._environment = environment
        self._size = tail
        self._tail = bytearray()
        self.code: int | None = None
        """Its exit code, or less than 0 for a signal; None until it has ended by itself."""

    @property
    def output(self) -> str:
        """The end of what it has written, as text that every store keeps."""
        return self._tail.decode(errors="replace").replace("\0", "\ufffd")

    async def run(self) -> str:
        """Run it, once, and return how it has ended, in words; nothing is raised for that. It is
        gone when this returns or raises, or it has 2 s for it where it cannot be killed at once."""
        loop = asyncio.get_running_loop()
        guarded, hold = os.pipe()
        output, written = os.pipe()
        os.set_blocking(output, False)
        processes = []
        try:
            guard = await asyncio.create_subprocess_exec(
                *_GUARD, stdin=guarded, stdout=DEVNULL, stderr=DEVNULL, process_group=0
            )
            processes.append(guard)
            program = await asyncio.create_subprocess_exec(
                *self._command, stdin=DEVNULL, stdout=written, stderr=written,
                env=self._environment, process_group=guard.pid,
            )  # fmt: skip
            processes.append(program)
            loop.add_reader(output, self._read, output)
            async with asyncio.timeout(self._limit.total_seconds()):
                self.code = await program.wait()
        except TimeoutError:
            return f"took more than {self._limit.total_seconds():g} s"
        except OSError as error:
            return f"cannot be started: {error}"
        finally:
            try:
                await _end(processes)
            finally:
                loop.remove_reader(output)
                self._read(output)
                for file in (output, written, guarded, hold):
                    os.close(file)
        return f"ended with {self.code}"

    async def run_noted(self, run: Run[Any], kind: str, name: str, **details: object) -> str:
        """Run it as `run` does, and return how `name` has ended, in words. They are a note of the
        job's run too, also when that is cancelled, with the details and with `exit_code`, `seconds`
        and `output`."""
        began, ending = time.monotonic(), "was ended with its run"
        try:
            ending = await self.run()
        finally:
            run.note(
                kind, f"{name} {ending}", **details, exit_code=self.code,
                seconds=round(time.monotonic() - began, 3), output=self.output,
            )  # fmt: skip
        return f"{name} {ending}"

    def _read(self, output: int) -> None:
        # A pipe holds no more than that. It never ends: this process has its other end as well.
        with suppress(BlockingIOError):
            self._tail += os.read(output, 1 << 16)
            del self._tail[: -self._size]


async def _end(processes: Sequence[asyncio.subprocess.Process]) -> None:
    """Kill the group that the first process leads, and wait until the processes are gone."""
    if processes:
        with suppress(ProcessLookupError, PermissionError):
            os.killpg(processes[0].pid, signal.SIGKILL)
        with suppress(TimeoutError):
            async with asyncio.timeout(_PATIENCE_S):
                for process in processes:
                    await process.wait()
