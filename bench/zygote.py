"""Starts processes that have imported everything already.

A zygote imports what the parts of a system need, opens nothing, has no threads, and forks a child
for each order. The child runs a command of `ulak` as if it were typed. So a part that was killed is
back within some tens of milliseconds. Orders are lines of JSON on standard input; when that ends,
every child does.
"""

from __future__ import annotations

import importlib
import json
import logging
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from cProfile import Profile
from pathlib import Path
from typing import Any, Final, NoReturn

from bench.measure import ROOT

PRELOADED: Final = (
    "cryptography.fernet", "fastapi", "jwt", "psycopg", "uvicorn", "uvicorn.protocols.http.auto",
    "ulak.cli.program", "ulak.cli.worker", "ulak.kit.processes", "ulak.service",
    "ulak.store.postgres", "ulak.store.sqlite", "ulak.testing.faults", "ulak.web",
    "ulak.web.server", "ulak.wiring",
)  # fmt: skip

Prepare = Callable[[Mapping[str, Any]], object]


class Zygote:
    """A zygote in a process of its own. `module` is executed, and calls `serve`."""

    def __init__(self, module: str) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-m", module],
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


def serve(*modules: str, prepare: Prepare = lambda order: None) -> None:
    """Take orders: to start a command, and to say how a child has ended.

    Args:
        modules: What is imported before, besides what every part needs.
        prepare: Is called in each child with its order, before the command.
    """
    for name in (*PRELOADED, *modules):
        importlib.import_module(name)
    _say("ready")
    children: set[int] = set()
    for line in sys.stdin:
        order = json.loads(line)
        if "reap" in order:
            _, status = os.waitpid(order["reap"], 0)
            children.discard(order["reap"])
            _say(str(os.waitstatus_to_exitcode(status)))
            continue
        pid = os.fork()
        if not pid:
            _live(order, prepare)
        children.add(pid)
        _say(str(pid))
    for pid in children:
        os.kill(pid, signal.SIGKILL)


def _live(order: dict[str, Any], prepare: Prepare) -> NoReturn:
    """The child's whole life."""
    code = 1
    try:
        nothing = os.open(os.devnull, os.O_RDONLY)
        log = os.open(order["log"], os.O_WRONLY | os.O_CREAT | os.O_APPEND)
        for file, numbers in ((nothing, [0]), (log, [1, 2])):
            for number in numbers:
                os.dup2(file, number)
            os.close(file)
        os.environ.clear()
        os.environ.update(order["environ"])
        os.chdir(order["folder"])
        prepare(order)
        code = _run(order)
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)


def _run(order: dict[str, Any]) -> int:
    from ulak.cli import main as command
    from ulak.kit import FaultPoint
    from ulak.testing import faults

    with ExitStack() as stack:
        if name := order.get("kill_at"):
            point = name if name in faults.NAMES else FaultPoint(name)
            stack.enter_context(faults.kill_at(point, order.get("nth", 1)))
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
