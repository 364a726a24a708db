"""Kill a real process at a named point: before, inside or after a kind of write.

An exception would run `finally` and a rollback; a SIGKILL runs nothing, as a power cut does.

    crashed = faults.run(work, path, kill_at="commit.inside")
    assert crashed.killed

`work` is a function of a module file; it is run in a child of its own, with texts as arguments.
What it prints before its death is in `crashed.lines`.
"""

from __future__ import annotations

import importlib.util
import inspect
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from ulak.store import faults as points

NAMES = tuple(name for kind in points.KINDS for name in points.POINTS[kind])
"""Every point there is."""


@dataclass(frozen=True, slots=True)
class Ended:
    """What became of a child."""

    code: int
    """Its exit code, negative when a signal ended it."""
    lines: tuple[str, ...]
    """What it printed."""
    errors: str

    @property
    def killed(self) -> bool:
        """Whether it died by SIGKILL, as it does at its point."""
        return self.code == -signal.SIGKILL


def run(
    function: Callable[..., object],
    *arguments: object,
    kill_at: str | None = None,
    nth: int = 1,
    timeout_s: float = 60.0,
) -> Ended:
    """Run a function in a new process that dies when it passes a point for the nth time.

    The function must be found in its module by name; the module is loaded anew from its file.

    Raises:
        ValueError: there is no such point.
    """
    if kill_at is not None:
        _must_be_a_point(kill_at)
    source = inspect.getsourcefile(function)
    where = f"{source}:{function.__qualname__}"
    command = [sys.executable, "-m", __name__, kill_at or "-", str(nth), where]
    ended = subprocess.run(  # noqa: S603 - this interpreter, and a function of the caller's own
        [*command, *map(str, arguments)],
        capture_output=True,
        text=True,
        timeout=timeout_s,
        check=False,
    )
    return Ended(ended.returncode, tuple(ended.stdout.splitlines()), ended.stderr)


@contextmanager
def kill_at(name: str, nth: int = 1) -> Iterator[None]:
    """SIGKILL this very process when it passes the point for the nth time.

    Raises:
        ValueError: there is no such point.
    """
    _must_be_a_point(name)
    passed = 0
    lock = threading.Lock()

    def handle(point: str) -> None:
        nonlocal passed
        if point == name:
            with lock:
                passed += 1
                if passed == nth:
                    os.kill(os.getpid(), signal.SIGKILL)

    with _handled_by(handle):
        yield


@contextmanager
def traced() -> Iterator[list[str]]:
    """Collect the names of the points that this process passes, in order."""
    seen: list[str] = []
    with _handled_by(seen.append):
        yield seen


@contextmanager
def _handled_by(handle: Callable[[str], None]) -> Iterator[None]:
    before = points.handler
    points.handler = handle
    try:
        yield
    finally:
        points.handler = before


def _must_be_a_point(name: str) -> None:
    if name not in NAMES:
        raise ValueError(f"{name!r} is no point; there are {', '.join(NAMES)}")


def _main(name: str, nth: str, where: str, *arguments: str) -> None:
    """The child's whole life."""
    source, _, function = where.rpartition(":")
    spec = importlib.util.spec_from_file_location("ulak_faults_child", source)
    if spec is None or spec.loader is None:
        raise SystemExit(f"{source} cannot be loaded")
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    work = getattr(module, function)
    if name == "-":
        work(*arguments)
    else:
        with kill_at(name, int(nth)):
            work(*arguments)


if __name__ == "__main__":
    _main(*sys.argv[1:])
