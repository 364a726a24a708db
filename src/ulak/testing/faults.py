"""Kill a real process at a named point: before, inside or after a kind of write.

An exception would run `finally` and a rollback; a SIGKILL runs nothing, as a power cut does.

    crashed = faults.run(work, path, kill_at="commit.inside")
    assert crashed.killed

`work` is a function of a module file; it is run in a child of its own, with texts as arguments.
What it prints before its death is in `crashed.lines`. The child is forked from a process that
has imported ulak once and has opened nothing (`ulak.testing.children`), so a crash costs
milliseconds, not the start of an interpreter.
"""

from __future__ import annotations

import importlib.util
import inspect
import os
import signal
import sys
import tempfile
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from ulak.kit import FaultPoint
from ulak.store import faults as points
from ulak.testing.children import forked

NAMES = tuple(name for kind in points.KINDS for name in points.POINTS[kind])
"""Every point of the stores; services declare points of their own (`ulak.kit.FaultPoint`)."""


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
    kill_at: str | FaultPoint | None = None,
    nth: int = 1,
    timeout_s: float = 60.0,
) -> Ended:
    """Run a function in a new process that dies when it passes a point for the nth time: a point
    of a store by its name, one of a service by its `FaultPoint`.

    The function must be found in its module by name; the module is loaded anew from its file.

    Raises:
        ValueError: there is no such point.
        TimeoutError: the child did not end in time; it was killed.
    """
    point = None if kill_at is None else _find_name(kill_at)
    source = inspect.getsourcefile(function)
    with tempfile.TemporaryDirectory(prefix="ulak-faults-") as folder:
        printed, errors = Path(folder, "printed"), Path(folder, "errors")
        printed.touch()
        errors.touch()
        work = _Work(
            source=str(source),
            function=function.__qualname__,
            arguments=tuple(map(str, arguments)),
            kill_at=point,
            nth=nth,
            printed=str(printed),
            errors=str(errors),
            cwd=str(Path.cwd()),
            environment=dict(os.environ),
        )
        child = forked().Process(target=_live, args=(work,))
        child.start()
        child.join(timeout_s)
        code = child.exitcode
        if code is None:
            child.kill()
            child.join()
        child.close()
        lines, told = tuple(printed.read_text().splitlines()), errors.read_text()
    if code is None:
        raise TimeoutError(f"{function.__qualname__} ran for more than {timeout_s:g} s: {told}")
    return Ended(code, lines, told)


@contextmanager
def kill_at(point: str | FaultPoint, nth: int = 1) -> Iterator[None]:
    """SIGKILL this very process when it passes the point for the nth time.

    Raises:
        ValueError: there is no such point.
    """
    with _killed_at(_find_name(point), nth):
        yield


@contextmanager
def _killed_at(name: str, nth: int) -> Iterator[None]:
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


def _find_name(point: str | FaultPoint) -> str:
    if isinstance(point, FaultPoint):
        return point.name
    if point not in NAMES:
        raise ValueError(
            f"{point!r} is no point; there are {', '.join(NAMES)}, and each FaultPoint of a service"
        )
    return point


@dataclass(frozen=True, slots=True)
class _Work:
    """What a child does, where, and when it dies."""

    source: str
    function: str
    arguments: tuple[str, ...]
    kill_at: str | None
    nth: int
    printed: str
    errors: str
    cwd: str
    environment: Mapping[str, str]


def _live(work: _Work) -> None:
    """The child's whole life. Its parent started long ago, so nothing of today is inherited."""
    for stream, path in ((sys.stdout, work.printed), (sys.stderr, work.errors)):
        stream.flush()
        file = os.open(path, os.O_WRONLY | os.O_APPEND)
        os.dup2(file, stream.fileno())
        os.close(file)
    os.environ.clear()
    os.environ.update(work.environment)
    os.chdir(work.cwd)
    run_it = _load(work.source, work.function)
    if work.kill_at is None:
        run_it(*work.arguments)
    else:
        with _killed_at(work.kill_at, work.nth):
            run_it(*work.arguments)


def _load(source: str, function: str) -> Callable[..., object]:
    """Return a function of a file, whose module is loaded anew."""
    spec = importlib.util.spec_from_file_location("ulak_faults_child", source)
    if spec is None or spec.loader is None:
        raise SystemExit(f"{source} cannot be loaded")
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    found: Callable[..., object] = getattr(module, function)
    return found
