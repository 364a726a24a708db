"""How fast one worker is on Redis with `appendfsync always`, beside its own Lua, Huey and RQ.

Everything runs on one server of our own, on the disk of the repository, in turns. The peers have a
virtual environment of their own in `.data`, which is made on first use and needs the network once.
"""

from __future__ import annotations

import json
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import redis

from bench.ceiling import redis_rate
from bench.measure import DATA, ROOT, Figure, alternate
from ulak.cli import speed
from ulak.testing.servers import Redis

JOBS = 10_000
PICKUPS = 200
ROUNDS = 3
OF_LUA = 0.10
PICKUP_MS = 1.5
PEERS = {"huey_redis": "Huey", "rq_redis": "RQ, no fork", "rq_fork_redis": "RQ"}
PACKAGES = ("huey==3.5.4", "rq==2.12.0", "redis==8.1.0", "hiredis==3.5.0")
COMMAND = "python -m bench.figures redis"


def redis_figures(jobs: int = JOBS, pickups: int = PICKUPS) -> list[Figure]:
    """Drain against the loop in Lua, and pickup beside what others offer."""
    with durable() as server:
        ours, lua = alternate(
            lambda: speed.drain(server.fresh(), jobs), lambda: redis_rate(server.env)
        )
        rounds = [pickup_round(server, pickups) for _ in range(ROUNDS)]
        drains = {name: server.ask(peer, "drain") for peer, name in PEERS.items()}
    pickup = {name: statistics.median(each[name] for each in rounds) for name in rounds[0]}
    own = pickup.pop("ulak")
    return [
        Figure(
            f"drain of {jobs:,} no-op jobs, one worker process, Redis with appendfsync always, "
            "of its loop in Lua, 200 a call",
            f">= {OF_LUA:.2f}",
            f"{ours / lua:.3f} ({ours:,.0f} jobs/s of {lua:,.0f}; {_listed(drains, 'per_s')})",
            ours / lua >= OF_LUA, COMMAND,
        ),
        Figure(
            "pickup from one process to another, Redis, p50, median of three",
            f"<= {PICKUP_MS:g} ms",
            f"{own:.2f} ms ({', '.join(f'{name} {p50:.2f}' for name, p50 in pickup.items())})",
            own <= PICKUP_MS, COMMAND,
        ),
    ]  # fmt: skip


def pickup_round(server: Bench, pickups: int) -> dict[str, float]:
    """Return the median of each in milliseconds, measured one after the other."""
    taken = {"ulak": speed.pickup(server.fresh(), pickups).p50}
    for peer, name in PEERS.items():
        taken[name] = server.ask(peer, "latency")["p50_ms"]
    return taken


def _listed(answers: Mapping[str, Mapping[str, Any]], what: str) -> str:
    return ", ".join(f"{name} {answer[what]:,.0f}" for name, answer in answers.items())


class Bench:
    """A running server, empty whenever one asks for it."""

    def __init__(self, server: Redis) -> None:
        self.server = server

    @property
    def env(self) -> dict[str, str]:
        """What the baselines and the peers are told."""
        return {"BENCH_REDIS_URL": self.server.url()}

    def fresh(self) -> str:
        """Forget everything, the file that it was written to as well; return where it is."""
        with redis.Redis.from_url(self.server.url()) as client:
            client.flushall()
            client.bgrewriteaof()
            while client.info("persistence")["aof_rewrite_in_progress"]:
                time.sleep(0.02)
        return self.server.url()

    def ask(self, peer: str, what: str) -> dict[str, Any]:
        """Have a peer measured as `bench/peers/run.py` does, in an interpreter of its own."""
        self.fresh()
        about = _child(peer, "versions", 0, self.env)
        if what == "drain":
            _child(peer, "bulk" if about["has_bulk"] else "enqueue", about["drain_n"], self.env)
        return _child(peer, what, about[f"{what}_n"], self.env)


@contextmanager
def durable() -> Iterator[Bench]:
    """Start a server of our own on the disk of the repository, and remove it afterwards."""
    DATA.mkdir(exist_ok=True)
    server = Redis(durable=True)
    server.place = DATA
    with server:
        yield Bench(server)


def _child(peer: str, command: str, n: int, env: Mapping[str, str]) -> dict[str, Any]:
    done = subprocess.run(
        [str(_interpreter()), "child.py", peer, command, str(n)],
        cwd=ROOT / "bench" / "peers", env={**os.environ, **env}, stdout=subprocess.PIPE, text=True,
        check=True,
    )  # fmt: skip
    answer: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    if "error" in answer:
        raise RuntimeError(f"{peer}: {answer['error']}")
    return answer


def _interpreter() -> Path:
    """Return the Python that has the peers."""
    place = DATA / "peers"
    python = place / "bin" / "python"
    wanted, has = "\n".join(PACKAGES), place / "packages"
    if not has.exists() or has.read_text() != wanted:
        subprocess.run([sys.executable, "-m", "venv", str(place)], check=True)
        subprocess.run([str(python), "-m", "pip", "install", "-q", *PACKAGES], check=True)
        has.write_text(wanted)
    return python
