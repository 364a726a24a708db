"""The ceilings that a drain is measured against: functions of bench/peers/limits.py, unchanged.

`python -m bench.ceiling sqlite_rate FULL 200 100000`: transitions per second.
"""

from __future__ import annotations

import importlib
import os
import sys
from collections.abc import Mapping
from pathlib import Path

from bench.measure import in_child, scratch

BATCH = 200
TRANSITIONS = 100_000
PG_TRANSITIONS = 60_000
REDIS_TRANSITIONS = 100_000
LONE_TRANSITIONS = 1_500


def ceiling() -> float:
    """SQLite, in a process of its own, on the same disk as every other figure."""
    with scratch() as folder:
        env = {"BENCH_SQLITE_DIR": str(folder)}
        return in_child("bench.ceiling", "sqlite_rate", "FULL", BATCH, TRANSITIONS, env=env)


def psycopg_rate(env: Mapping[str, str], transitions: int = PG_TRANSITIONS) -> float:
    """PostgreSQL: claim 200, finish 200, both audited, over one connection."""
    return in_child("bench.ceiling", "psycopg_rate", transitions, env=env)


def asyncpg_one(env: Mapping[str, str], transitions: int = LONE_TRANSITIONS) -> float:
    """PostgreSQL: the same one job at a time, two commits each."""
    return in_child("bench.ceiling", "asyncpg_one", transitions, 1, env=env)


def redis_rate(env: Mapping[str, str], transitions: int = REDIS_TRANSITIONS) -> float:
    """Redis: a function in Lua that moves 200 jobs a call, each with a line in a stream."""
    return in_child("bench.ceiling", "redis_rate", BATCH, 1, transitions, env=env)


def main() -> None:
    """Import the baseline as it is and run it."""
    os.environ.setdefault("BENCH_SQLITE_DIR", ".")
    sys.path.insert(0, str(Path(__file__).parent / "peers"))
    limits = importlib.import_module("limits")
    name, *words = sys.argv[1:]
    print(getattr(limits, name)(*[int(word) if word.isdigit() else word for word in words]))


if __name__ == "__main__":
    main()
