"""Processes that tests start, kill and look at."""

import time
from pathlib import Path


def is_alive(pid: int) -> bool:
    """Tell whether a process runs; one that has ended and waits to be collected does not."""
    try:
        # The name, in parentheses, may hold anything.
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except (FileNotFoundError, ProcessLookupError):
        return False
    return state not in "ZX"


def await_gone(*pids: int, within_s: float) -> None:
    """Wait until processes have ended."""
    until = time.monotonic() + within_s
    while any(map(is_alive, pids)):
        assert time.monotonic() < until, f"of {pids} some are alive after {within_s} s"
        time.sleep(0.01)


def await_text(path: Path) -> str:
    """Wait until a process has put a file there, whole, and return what is in it."""
    until = time.monotonic() + 60
    while not path.exists():
        assert time.monotonic() < until, f"{path} does not come"
        time.sleep(0.01)
    return path.read_text()
