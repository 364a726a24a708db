"""Processes that tests start, kill and look at."""

from pathlib import Path


def is_alive(pid: int) -> bool:
    """Tell whether a process runs; one that has ended and waits to be collected does not."""
    try:
        # The name, in parentheses, may hold anything.
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except (FileNotFoundError, ProcessLookupError):
        return False
    return state not in "ZX"
