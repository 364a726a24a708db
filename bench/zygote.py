"""Starts processes of services that have imported everything already: `python -m bench.zygote
SOCKET`.

A zygote imports what parts need, opens nothing, has no threads, and forks a child for each order.
The child runs a command of `ulak` as if it were typed. So a part that was killed is back within
some tens of milliseconds. Orders are lines of JSON on standard input; when that ends, every child
does.

Programs that were started by others order at a socket, with a line to each and their three standard
files. They are told the child's process id and then its exit code. If the line ends before that,
the child is killed.
"""

from __future__ import annotations

import gc
import importlib
import json
import logging
import os
import selectors
import signal
import socket
import subprocess
import sys
import threading
import time
import traceback
from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager, ExitStack, contextmanager, suppress
from cProfile import Profile
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from pkgutil import iter_modules
from tempfile import TemporaryDirectory
from typing import Any, NoReturn

from bench.measure import ROOT

PRELOADED = (
    "argon2", "cryptography.fernet", "defusedxml.ElementTree", "fastapi", "httpx", "jwt",
    "openpyxl", "psycopg", "uvicorn", "uvicorn.protocols.http.auto", "ulak.cli.program",
    "ulak.cli.worker", "ulak.kit.processes", "ulak.service",
    "ulak.store.postgres", "ulak.store.sqlite", "ulak.testing.faults", "ulak.web",
    "ulak.web.server", "ulak.wiring",
)  # fmt: skip
SERVICES = ("ulak.services.cutting", "ulak.services.publishing")
LONGEST_ORDER = 256 * 1024
# Of what the zygote has open a child keeps nothing.
MOST_FILES = 1024


class Zygote:
    """A zygote in a process of its own. Other programs order from it at `socket`."""

    def __init__(self) -> None:
        self._folder = TemporaryDirectory(prefix="ulak-zygote-")
        self.socket = str(Path(self._folder.name, "orders"))
        self._process = subprocess.Popen(
            [sys.executable, "-m", "bench.zygote", self.socket],
            cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
        )  # fmt: skip
        self._lock = threading.Lock()
        assert self._hear() == "ready"

    def fork(self, order: Mapping[str, Any]) -> int:
        """Start a child; return its process id."""
        return int(self._ask(order))

    def reap(self, pid: int) -> int:
        """Return the exit code of a child that has ended, negative when a signal ended it."""
        return int(self._ask({"reap": pid}))

    def close(self) -> None:
        """Kill every child that is left."""
        self._process.communicate()
        self._folder.cleanup()

    def _ask(self, order: Mapping[str, Any]) -> str:
        with self._lock:
            assert self._process.stdin is not None
            self._process.stdin.write(json.dumps(order) + "\n")
            self._process.stdin.flush()
            return self._hear()

    def _hear(self) -> str:
        assert self._process.stdout is not None
        return self._process.stdout.readline().strip()


# --- inside of it --------------------------------------------------------------------


def main() -> None:
    """Take orders: to start a command, and to say how a child has ended."""
    packages = [importlib.import_module(name) for name in SERVICES]
    parts = [part for each in packages for part in iter_modules(each.__path__, f"{each.__name__}.")]
    for name in (*PRELOADED, *(part.name for part in parts)):
        importlib.import_module(name)
    gc.collect()
    gc.freeze()
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as listener:
        listener.bind(sys.argv[1])
        listener.listen(64)
        _say("ready")
        Orders(listener).take()


class Orders:
    """Everything that orders, and the children of each."""

    def __init__(self, listener: socket.socket) -> None:
        self._listener = listener
        self._heard = selectors.DefaultSelector()
        self._children: set[int] = set()
        self._typed = b""
        self._is_over = False

    def take(self) -> None:
        """Take orders until standard input ends; then kill every child."""
        self._heard.register(sys.stdin.fileno(), selectors.EVENT_READ, self._read)
        self._heard.register(self._listener, selectors.EVENT_READ, self._meet)
        while not self._is_over:
            for key, _ in self._heard.select():
                key.data()
        for pid in self._children:
            os.kill(pid, signal.SIGKILL)

    def _read(self) -> None:
        """Take what came on standard input."""
        came = os.read(sys.stdin.fileno(), LONGEST_ORDER)
        self._is_over = not came
        *lines, self._typed = (self._typed + came).split(b"\n")
        for line in lines:
            order = json.loads(line)
            _say(str(self._reap(order["reap"]) if "reap" in order else self._fork(order)))

    def _meet(self) -> None:
        """Take the order of a program: one message, with its standard files."""
        line, _ = self._listener.accept()
        came, files, _, _ = socket.recv_fds(line, LONGEST_ORDER, 3)
        if not came:
            line.close()
            return
        pid = self._fork({**json.loads(came), "files": files})
        for file in files:
            os.close(file)
        line.send(str(pid).encode())
        ended = os.pidfd_open(pid)

        def tell() -> None:
            if pid not in self._children:
                return  # it ended and its line too, and either was heard
            code = self._reap(pid)
            with suppress(OSError):
                line.send(str(code).encode())
            for heard in (ended, line):
                self._heard.unregister(heard)
            os.close(ended)
            line.close()

        def end() -> None:
            if pid in self._children:
                os.kill(pid, signal.SIGKILL)
                tell()

        self._heard.register(ended, selectors.EVENT_READ, tell)
        self._heard.register(line, selectors.EVENT_READ, end)

    def _fork(self, order: dict[str, Any]) -> int:
        pid = os.fork()
        if not pid:
            _live(order)
        self._children.add(pid)
        return pid

    def _reap(self, pid: int) -> int:
        _, status = os.waitpid(pid, 0)
        self._children.discard(pid)
        return os.waitstatus_to_exitcode(status)


def _live(order: dict[str, Any]) -> NoReturn:
    """The child's whole life."""
    code = 1
    try:
        for number, file in enumerate(order.get("files") or _open_files(order["log"])):
            os.dup2(file, number)
        os.closerange(3, MOST_FILES)
        os.environ.clear()
        os.environ.update(order["environ"])
        os.chdir(order["folder"])
        sys.argv = [str(Path(sys.executable).with_name("ulak")), *order["command"]]
        code = _run(order)
    except BaseException:  # noqa: BLE001 - an interpreter would print it too
        traceback.print_exc()
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)


def _open_files(log: str) -> tuple[int, int, int]:
    """Return what a child reads, which is nothing, and where it writes."""
    opened = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    return os.open(os.devnull, os.O_RDONLY), opened, opened


def _run(order: dict[str, Any]) -> int:
    from ulak.cli import main as command
    from ulak.kit.processes import running
    from ulak.services.publishing import commands, handling

    # A key that is refused is tried again after five seconds or more; a test need not wait.
    handling.SHORTEST_WAIT_S, handling.LONGEST_WAIT_S = order.get("patience", (5.0, 30.0))
    if lease_s := order.get("lease_s"):
        # Shorter than the settings allow: what a killed process has taken is soon free again.
        span = timedelta(seconds=lease_s)
        work = commands.Work
        commands.Work = lambda *about, **options: work(*about, **options | {"lease": span})
        running.USUAL = replace(running.USUAL, poll=span / 4)
    if order.get("serves_only"):
        # The backend relays as well; without that, a process that relays alone has all of it.
        run = commands.run
        commands.run = lambda *about, **options: run(*about, **options | {"work": []})
    with ExitStack() as stack:
        if name := order.get("kill_at"):
            stack.enter_context(_killed_at(name, order.get("nth", 1)))
        if arms := order.get("arms"):
            signal.signal(signal.SIGUSR1, lambda *_: _arm(stack, Path(arms)))
        if path := order.get("trace"):
            stack.enter_context(_traced(Path(path)))
        if path := order.get("profile"):
            stack.enter_context(_profiled(Path(path)))
        if path := order.get("records"):
            _keep_records(Path(path))
        try:
            command(order["command"])
        except SystemExit as ended:
            return ended.code if isinstance(ended.code, int) else 1


def _arm(stack: ExitStack, path: Path) -> None:
    """Have this process be killed as a file says: at which point, and at which passing of it."""
    name, nth = path.read_text().split()
    stack.enter_context(_killed_at(name, int(nth)))
    path.unlink()


def _killed_at(name: str, nth: int) -> AbstractContextManager[None]:
    """Have this process be killed at a point of a store or of a service."""
    from ulak.kit import FaultPoint
    from ulak.testing import faults

    return faults.kill_at(name if name in faults.NAMES else FaultPoint(name), nth)


@contextmanager
def _traced(path: Path) -> Iterator[None]:
    """Write down which points are passed; nothing of it when the process is killed."""
    from ulak.testing import faults

    with faults.traced() as seen:
        try:
            yield
        finally:
            path.write_text("\n".join(dict.fromkeys(seen)))


@contextmanager
def _profiled(path: Path) -> Iterator[None]:
    """Profile each thread by the processor time that it alone uses."""
    import pstats

    main_thread, unprofiled = Profile(time.thread_time), threading.Thread.run
    profiles = [main_thread]

    def run(self: threading.Thread) -> None:
        profile = Profile(time.thread_time)
        profiles.append(profile)
        profile.runcall(unprofiled, self)

    threading.Thread.run = run  # type: ignore[method-assign]
    main_thread.enable()
    try:
        yield
    finally:
        main_thread.disable()
        found = None
        for profile in profiles:
            profile.snapshot_stats()
            if profile.stats:  # type: ignore[attr-defined] # typeshed does not know it
                found = pstats.Stats(profile) if found is None else found.add(profile)
        if found is not None:
            found.dump_stats(path)


def _keep_records(path: Path) -> None:
    """Log at DEBUG, and write every record of every logger down before anything is hidden in it."""
    from tests.secrets_watch import text_of

    log = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    configure, handed_on = logging.basicConfig, logging.Logger.callHandlers

    def configure_all(**options: Any) -> None:
        configure(**options | {"level": logging.DEBUG})

    def call_handlers(logger: logging.Logger, record: logging.LogRecord) -> None:
        os.write(log, f"{logger.name}: {text_of(record)}\n".encode("utf-8", "backslashreplace"))
        handed_on(logger, record)

    logging.basicConfig = configure_all
    logging.Logger.callHandlers = call_handlers  # type: ignore[method-assign]


def _say(text: str) -> None:
    sys.stdout.write(f"{text}\n")
    sys.stdout.flush()


if __name__ == "__main__":
    main()
