"""From a commit to the answer of those who wait for the job, each in a process of its own."""

from __future__ import annotations

import argparse
import http.client
import random
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import ulak
import ulak.web
from bench import postgres
from bench.measure import ROOT, Figure, scratch
from bench.served import serve, served
from ulak.store import faults

JOBS = 200
BOUND_MS = 20.0
COMMAND = "python -m bench.figures waits"
PATIENCE_S = 30

FLOW: ulak.Flow[Any] = ulak.Flow("waited", ulak.Lifecycle("open", {"open": ["done"]}))
FLOW.gate("open", choices={"yes": "done"})

Move = Callable[[str], None]
Wait = Callable[[str], None]


# --- processes of their own -------------------------------------------------------


def move(url: str) -> None:
    """Read ids of jobs, let each stand for a moment, end it, and print when that was committed."""
    committed = [0]

    def note(point: str) -> None:
        if point == faults.POINTS["commit"].after:  # and no ring has gone out
            committed[0] = time.monotonic_ns()

    faults.handler = note
    dice = random.Random(1)
    with ulak.connect(url, flows=[FLOW]) as engine:
        print("ready", flush=True)
        for line in sys.stdin:
            time.sleep(dice.uniform(0.03, 0.09))
            engine.decide(line.strip(), "yes", actor="bench")
            print(committed[0], flush=True)


@contextmanager
def mover(url: str) -> Iterator[subprocess.Popen[str]]:
    """Run a process that ends jobs for as long as the block lasts."""
    process = subprocess.Popen(
        [sys.executable, "-m", "bench.waits", "move", url],
        cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
    )  # fmt: skip
    try:
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"
        yield process
    finally:
        process.communicate(timeout=PATIENCE_S)


# --- figures ----------------------------------------------------------------------


def delays(engine: ulak.Engine, process: subprocess.Popen[str], wait: Wait, jobs: int) -> float:
    """Return the 95th percentile, in milliseconds, from a commit to the answer."""
    assert process.stdin is not None
    assert process.stdout is not None
    taken = []
    for _ in range(jobs):
        job = engine.submit(FLOW, None)
        process.stdin.write(f"{job.id}\n")
        process.stdin.flush()
        wait(job.id)
        answered = time.monotonic_ns()
        taken.append((answered - int(process.stdout.readline())) / 1e6)
    return statistics.quantiles(taken, n=100)[94]


def waits_figures(jobs: int = JOBS) -> list[Figure]:
    """On SQLite and on PostgreSQL, by the engine and over HTTP."""
    with scratch() as folder:
        figures = _figures("SQLite FULL", f"sqlite:///{folder / 'waits.db'}", jobs)
    with postgres.durable() as server:
        figures += _figures("PostgreSQL", server.fresh(), jobs)
    return figures


def _figures(name: str, url: str, jobs: int) -> list[Figure]:
    with (
        ulak.connect(url, flows=[FLOW]) as engine,
        served("bench.waits", ["serve", url]) as place,
        mover(url) as process,
    ):
        line = http.client.HTTPConnection(place.host, place.port, timeout=PATIENCE_S)

        def ask(job_id: str) -> None:
            path = f"/jobs/{job_id}?wait={PATIENCE_S}"
            line.request("GET", path, headers={"Authorization": f"Bearer {place.key}"})
            answer = line.getresponse()
            assert b'"done"' in answer.read(), answer.status

        def wait(job_id: str) -> None:
            assert engine.wait(job_id, timeout=PATIENCE_S).state == "done"

        found = {
            "`engine.wait` in another process": delays(engine, process, wait, jobs),
            "`GET /jobs/{id}?wait=` of another process": delays(engine, process, ask, jobs),
        }
        line.close()
    return [
        Figure(
            f"commit to answer of {what}, {name}: p95", f"<= {BOUND_MS:g} ms", f"{p95:.2f} ms",
            p95 <= BOUND_MS, COMMAND,
        )
        for what, p95 in found.items()
    ]  # fmt: skip


def main() -> None:
    """Be one of the processes."""
    parser = argparse.ArgumentParser(prog="bench.waits", description=__doc__)
    parser.add_argument("role", choices=["move", "serve"])
    parser.add_argument("url")
    given = parser.parse_args()
    if given.role == "move":
        move(given.url)
    else:
        engine = ulak.connect(given.url, flows=[FLOW])
        serve(engine, lambda identity: ulak.web.app(engine, identity=identity))


if __name__ == "__main__":
    main()
