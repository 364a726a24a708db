"""The worker's side of WeasyPrint's processes: one that is loaded, and one for each document.

A document's process is ended by a handle that the kernel keeps true, whoever its parent is and
whatever its number has become.
"""

from __future__ import annotations

import asyncio
import json
import os
import shutil
import signal
import socket
import sys
from contextlib import suppress
from dataclasses import KW_ONLY, dataclass, field
from pathlib import Path
from typing import Any, Final, Self

from ulak.services.pdf.browser.launch import Workplace, prepare_workplace
from ulak.services.pdf.browser.process import Process, spawn, undo
from ulak.services.pdf.browser.renderers import Renderer
from ulak.services.pdf.weasy.ground import ENGINE, Ground, lost, missing, survey
from ulak.services.pdf.weasy.zygote import CONTROL, LONGEST_ORDER

_MODULE: Final = "ulak.services.pdf.weasy.zygote"
_PATIENCE_S: Final = 20.0
"""How long beginning a process may take. It takes milliseconds; a guess."""


class Gone(Exception):
    """The process that is loaded has ended; another one can be started."""


@dataclass(slots=True)
class Child:
    """The process of one document."""

    pid: int
    _: KW_ONLY
    reader: asyncio.StreamReader
    writer: asyncio.StreamWriter
    temporary: Path
    _handle: int

    async def end(self) -> None:
        """End it, once, whatever it does; wait until it is gone with its temporary files."""
        try:
            with suppress(ProcessLookupError):
                signal.pidfd_send_signal(self._handle, signal.SIGKILL)
            await _readable(self._handle)
        finally:
            os.close(self._handle)
            self.writer.close()
        await asyncio.to_thread(shutil.rmtree, self.temporary, ignore_errors=True)


@dataclass(slots=True)
class Zygote(Renderer):
    """A process that has WeasyPrint loaded and begins documents; `start` makes one.

    It never grows old: it has read no document.
    """

    process: Process
    workplace: Workplace
    _control: socket.socket
    _engine: str = ""
    _turn: asyncio.Lock = field(default_factory=asyncio.Lock)
    _begun: int = 0
    _endings: set[asyncio.Task[None]] = field(default_factory=set)

    @classmethod
    async def start(cls, *, directory: str | os.PathLike[str] | None = None) -> Self:
        """Start one, in a directory of its own below `directory` (None: that of temporary files).

        It must be started by a thread that lives as long as it may: the kernel ends it with that.

        Raises:
            PermanentPdfError: WeasyPrint cannot run here; the message says how to mend it.
            TransientPdfError: it did not start.
            OSError: its directory cannot be made.
        """
        preparing = asyncio.ensure_future(asyncio.to_thread(_prepare, directory))
        try:
            ground, workplace = await asyncio.shield(preparing)
        except asyncio.CancelledError:
            undo(preparing, lambda made: made[1].remove())
            raise
        try:
            process, control = _spawn(ground, workplace)
        except BaseException:
            workplace.remove()
            raise
        made = cls(process, workplace, control)
        try:
            said, _ = await made._receive()
            if "engine" not in said:
                if said["missing"] == "privileges":
                    raise lost("its process could not give its privileges away")
                raise missing(said["missing"], said["name"])
        except BaseException as error:
            await made.kill()
            if isinstance(error, Gone):
                raise lost("its process ended") from error
            raise
        made._engine = said["engine"]
        return made

    @property
    def pid(self) -> int:
        return self.process.pid

    @property
    def engine(self) -> str:
        return self._engine

    async def begin(self, *, memory_bytes: int, cpu_s: int) -> Child:
        """Begin the process of a document, with so much memory and time of the processor."""
        beginning = asyncio.ensure_future(self._begin(memory_bytes, cpu_s))
        try:
            return await asyncio.shield(beginning)
        except asyncio.CancelledError:
            # The answer comes all the same; nobody else may take it for theirs.
            undo(beginning, self.end)
            raise

    async def kill(self) -> None:
        """End it with all of its documents, and remove its directory."""
        await self.process.kill()
        # Whoever waits for its answer is told by its end that there is none.
        async with self._turn:
            self._control.close()
        while self._endings:
            await asyncio.wait(set(self._endings))
        await asyncio.to_thread(self.workplace.remove)

    def end(self, child: Child) -> asyncio.Task[None]:
        """End a document's process; it is done even if nobody waits for it."""
        ending = asyncio.ensure_future(child.end())
        self._endings.add(ending)
        ending.add_done_callback(self._endings.discard)
        return ending

    async def _begin(self, memory_bytes: int, cpu_s: int) -> Child:
        async with self._turn:
            self._begun += 1
            number = self._begun
            ours, its = socket.socketpair()
            try:
                order = {"number": number, "memory_bytes": memory_bytes, "cpu_s": cpu_s}
                socket.send_fds(self._control, [json.dumps(order).encode()], [its.fileno()])
                async with asyncio.timeout(_PATIENCE_S):
                    said, handle = await self._receive()
            except BaseException as error:
                ours.close()
                # Whatever it still says is nobody's answer.
                self._control.close()
                if isinstance(error, OSError):
                    raise Gone from error
                raise
            finally:
                its.close()
        reader, writer = await asyncio.open_connection(sock=ours)
        return Child(
            int(said["pid"]), reader=reader, writer=writer,
            temporary=self.workplace.profile / str(number), _handle=handle,
        )  # fmt: skip

    async def _receive(self) -> tuple[dict[str, Any], int]:
        """Wait for what it says next, and the file that comes with it; -1 when none does."""
        if self._control.fileno() < 0:
            raise Gone
        await _readable(self._control.fileno())
        try:
            said, files, _, _ = socket.recv_fds(
                self._control, LONGEST_ORDER, 1, socket.MSG_CMSG_CLOEXEC
            )
        except OSError as error:
            raise Gone from error
        if not said:
            raise Gone
        # Its word can be taken: it has read no document.
        return json.loads(said), files[0] if files else -1


def _prepare(directory: str | os.PathLike[str] | None) -> tuple[Ground, Workplace]:
    ground = survey()
    return ground, prepare_workplace(directory, uid=ground.uid, owner="WeasyPrint", detail=ENGINE)


def _spawn(ground: Ground, workplace: Workplace) -> tuple[Process, socket.socket]:
    argv = [
        *ground.prefix, sys.executable, "-P", "-s", "-m", _MODULE,
        # The word by which a sweep of workplaces knows what belongs to one.
        f"--user-data-dir={workplace.profile}",
    ]  # fmt: skip
    if ground.uid is not None:
        argv.append(f"--uid={ground.uid}")
    environment = {
        **workplace.environment,
        "PYTHONPATH": os.pathsep.join(os.path.abspath(path) for path in sys.path if path),
        # The order of sets is the same in every process, and so are the bytes.
        "PYTHONHASHSEED": "0",
        "PYTHONDONTWRITEBYTECODE": "1",
        # Each thread would set aside address space of its own, which is limited.
        "MALLOC_ARENA_MAX": "1",
    }
    ours, its = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    with its:
        try:
            process = spawn(argv, environment, files={CONTROL: its.fileno()})
        except BaseException:
            ours.close()
            raise
    ours.setblocking(False)
    return process, ours


async def _readable(file: int) -> None:
    """Wait until a file can be read; that of a process can when it has ended."""
    loop = asyncio.get_running_loop()
    told = asyncio.Event()
    loop.add_reader(file, told.set)
    try:
        await told.wait()
    finally:
        loop.remove_reader(file)
