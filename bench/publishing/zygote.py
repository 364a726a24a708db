"""Starts processes of publishing that have imported everything already: `python -m
bench.publishing.zygote`.

It imports what a part needs, opens nothing, has no threads, and forks a child for each order. The
child runs a command of `ulak` as if it were typed. So a part that was killed is back within some
tens of milliseconds. Orders are lines of JSON on standard input; when that ends, every child does.
"""

from __future__ import annotations

import importlib
import json
import logging
import os
import signal
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from cProfile import Profile
from pathlib import Path
from typing import Any, NoReturn

PRELOADED = (
    "argon2", "cryptography.fernet", "fastapi", "httpx", "jwt", "psycopg", "uvicorn",
    "uvicorn.protocols.http.auto", "ulak.cli.program", "ulak.kit.processes", "ulak.service",
    "ulak.services.publishing", "ulak.store.postgres", "ulak.store.sqlite",
    "ulak.testing.faults", "ulak.web", "ulak.web.server", "ulak.wiring",
)  # fmt: skip


def main() -> None:
    """Take orders: to start a command, and to say how a child has ended."""
    for name in PRELOADED:
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
            _live(order)
        children.add(pid)
        _say(str(pid))
    for pid in children:
        os.kill(pid, signal.SIGKILL)


def _live(order: dict[str, Any]) -> NoReturn:
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
        code = _run(order)
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)


def _run(order: dict[str, Any]) -> int:
    from ulak.cli import main as command
    from ulak.kit import FaultPoint
    from ulak.services.publishing import commands, handling
    from ulak.testing import faults

    # A key that is refused is tried again after five seconds or more; a test need not wait.
    handling.SHORTEST_WAIT_S, handling.LONGEST_WAIT_S = order.get("patience", (5.0, 30.0))
    if order.get("serves_only"):
        # The backend relays as well; without that, a process that relays alone has all of it.
        run = commands.run
        commands.run = lambda *about, **options: run(*about, **options | {"work": []})
    with ExitStack() as stack:
        if name := order.get("kill_at"):
            point = FaultPoint(name) if name.startswith("publishing.") else name
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


if __name__ == "__main__":
    main()
