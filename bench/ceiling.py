"""The ceiling that a drain is measured against: `sqlite_rate` of bench/peers/limits.py, unchanged.

`python -m bench.ceiling`: transitions per second, synchronous=FULL, 200 per commit.
"""

from __future__ import annotations

import importlib
import os
import sys
from pathlib import Path

from bench.measure import in_child, scratch

BATCH = 200
TRANSITIONS = 100_000


def ceiling() -> float:
    """Measure it in a process of its own, on the same disk as every other figure."""
    with scratch() as folder:
        return in_child("bench.ceiling", env={"BENCH_SQLITE_DIR": str(folder)})


def main() -> None:
    """Import the baseline as it is and run it."""
    os.environ.setdefault("BENCH_SQLITE_DIR", ".")
    sys.path.insert(0, str(Path(__file__).parent / "peers"))
    limits = importlib.import_module("limits")
    print(limits.sqlite_rate("FULL", BATCH, TRANSITIONS))


if __name__ == "__main__":
    main()
