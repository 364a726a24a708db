"""How figures are taken: rounds alternate, medians count, children have the machine's disk alone.

A ratio is made of two measurements of the same run, taken in turns, so that a neighbour who
slows the machine slows both.
"""

from __future__ import annotations

import json
import os
import platform
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path

ROOT = Path(__file__).parents[1]
DATA = ROOT / ".data"
ROUNDS = 5


@dataclass(frozen=True, slots=True)
class Figure:
    """One measured figure against its bound."""

    name: str
    bound: str
    value: str
    ok: bool
    command: str
    commit: str = ""
    """Where it was measured, when that is not where the page is written."""

    def as_dict(self) -> dict[str, object]:
        """For JSON."""
        return asdict(self)


def alternate(*takes: Callable[[], float], rounds: int = ROUNDS) -> list[float]:
    """Take A-B-A-B and answer the median of each."""
    taken = [[take() for take in takes] for _ in range(rounds)]
    return [statistics.median(each) for each in zip(*taken, strict=True)]


@contextmanager
def scratch() -> Iterator[Path]:
    """An empty folder on the disk that the repository is on."""
    DATA.mkdir(exist_ok=True)
    folder = Path(tempfile.mkdtemp(prefix="bench-", dir=DATA))
    try:
        yield folder
    finally:
        shutil.rmtree(folder)


def in_child(
    module: str,
    *arguments: object,
    env: Mapping[str, str] | None = None,
    folder: Path = ROOT,
) -> float:
    """Run a module in a process of its own; the last word it prints is the answer."""
    done = subprocess.run(
        [sys.executable, "-m", module, *map(str, arguments)],
        cwd=folder, env={**os.environ, **(env or {})}, stdout=subprocess.PIPE, text=True,
        check=True,
    )  # fmt: skip
    return float(done.stdout.split()[-1])


def machine() -> str:
    """Cores and architecture, nothing that names the machine."""
    return f"{os.cpu_count()} cores, {platform.machine()}, Python {platform.python_version()}"


def busy(seconds: float = 0.5) -> float:
    """The share of the machine that others use while we do nothing; 0 where it cannot be told."""
    stat = Path("/proc/stat")
    if not stat.exists():
        return 0.0

    def ticks() -> tuple[int, int]:
        spent = [int(word) for word in stat.read_text().splitlines()[0].split()[1:9]]
        return sum(spent), spent[3] + spent[4]  # all of it, and idle or waiting for the disk

    before, idle_before = ticks()
    time.sleep(seconds)
    after, idle_after = ticks()
    return 1 - (idle_after - idle_before) / max(1, after - before)


def wait_for_quiet(most: float, patience_s: float) -> float:
    """Wait until others use little of the machine, but not for ever; answer how much they use."""
    deadline = time.monotonic() + patience_s
    while True:
        others = busy()
        if others <= most or time.monotonic() >= deadline:
            return others
        time.sleep(1.0)


def commit() -> str:
    """The commit that is measured; a plus says that files have changed since."""
    git = shutil.which("git") or "git"

    def ask(*words: str) -> str:
        done = subprocess.run([git, *words], cwd=ROOT, capture_output=True, text=True, check=False)
        return done.stdout.strip()

    changed = ask("status", "--porcelain", "--", "src", "bench")
    return (ask("rev-parse", "--short", "HEAD") or "unknown") + ("+" if changed else "")


def keep(path: Path, value: object) -> None:
    """Write a result as JSON."""
    path.parent.mkdir(exist_ok=True)
    path.write_text(json.dumps(value, indent=1) + "\n")
