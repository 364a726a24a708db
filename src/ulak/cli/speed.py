"""How fast ulak is on a store: the measurements behind `ulak bench`.

Jobs that do nothing, of flows of their own. Workers run in processes of their own, started as
`python -m ulak.cli.speed`, with what they shall do on standard input: a URL may hold a password,
and other users can read a command line.
"""

from __future__ import annotations

import asyncio
import json
import random
import statistics
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from datetime import timedelta
from typing import Any, NamedTuple

from ulak.clock import micros
from ulak.core.change import Change, Receipt
from ulak.core.flow import Flow
from ulak.core.run import Run
from ulak.engine.engine import Engine
from ulak.engine.telemetry import Listeners
from ulak.engine.worker import settle_in
from ulak.store.protocol import ClaimRequest, Want
from ulak.wiring import connect

NAME = "ulak-bench"
PAYLOAD = {"user": 42, "template": "welcome"}
PATIENCE_S = 10.0


class Delay(NamedTuple):
    """How long something takes, in milliseconds."""

    p50: float
    p99: float


def drain(url: str, jobs: int, *, stages: int = 1, kind: str = "async") -> float:
    """Return the stages a second of one worker process that finds so many jobs waiting. From the
    start of the worker until the last move is durable."""
    return float(_ask({"measure": "drain", "url": url, "jobs": jobs, "stages": stages, "of": kind}))


def submit(url: str, submits: int) -> float:
    """Return the jobs a second of one thread that submits one after the other."""
    return _submit(url, submits, 1)


def submit_from_threads(url: str, submits: int, threads: int) -> float:
    """Return the jobs a second of several threads of one process that do the same."""
    return _submit(url, submits, threads)


def pickup(url: str, jobs: int) -> Delay:
    """Return how long it takes from before `submit` to the start of the stage, elsewhere. One job
    at a time, at random moments; the worker is a process of its own."""
    flow = flow_of("pickup")
    dice = random.Random(1)  # noqa: S311 - decides moments
    waits = []
    with connect(url, flows=[flow]) as engine, _worker(url) as started:
        for n in range(jobs + WARM_UP):
            time.sleep(dice.uniform(0.005, 0.040))
            before = time.monotonic_ns()
            engine.submit(flow, PAYLOAD)
            began = int(next(started))
            if n >= WARM_UP:
                waits.append((began - before) / 1e6)
    return _delay(waits)


WARM_UP = 5


def claim(url: str, claims: int) -> Delay:
    """Return how long a claim of one job takes, which is committed with its answer."""
    flow = flow_of("claim")
    worker = f"{NAME}-claim"
    wants = (Want(tuple(flow.table.lanes), 1),)
    took = []
    with connect(url, flows=[flow]) as engine:
        fill(engine, flow, claims + WARM_UP)
        store = engine.store
        lease_us = micros(timedelta(minutes=5))
        store.register(worker, lease_us=lease_us, lanes=wants[0].lanes, about=NAME)
        for n in range(claims + WARM_UP):
            before = time.perf_counter()
            taken = store.claim(ClaimRequest(worker, wants))
            if n >= WARM_UP:
                took.append((time.perf_counter() - before) * 1e3)
            assert len(taken.claims) == 1  # noqa: S101 - a claim that found nothing was not measured
        store.unregister(worker)
    return _delay(took)


def finish(url: str) -> None:
    """Run what the measurements have left over, so that no job of theirs waits for ever."""
    with connect(url, flows=[flow_of(what) for what in ("submit", "pickup", "claim")]) as engine:
        asyncio.run(run_dry(engine))


async def nothing(run: Run[Any]) -> None:
    """On the loop."""


def nothing_in_a_thread(run: Run[Any]) -> None:
    """In a thread."""


def flow_of(what: str, *, stages: int = 1, kind: str = "async") -> Flow[Any]:
    function = nothing if kind == "async" else nothing_in_a_thread
    return Flow.steps(f"{NAME}-{what}", *[(f"s{n}", function) for n in range(stages)])


def fill(engine: Engine, flow: Flow[Any], jobs: int) -> None:
    for start in range(0, jobs, 500):
        engine.submit_many(flow, [None] * min(500, jobs - start))


class LastCommit(Listeners):
    """Knows when something was last committed."""

    at = 0.0

    def committed(
        self, changes: Sequence[Change], receipts: Sequence[Receipt], seconds: float | None
    ) -> None:
        self.at = time.perf_counter()


async def run_dry(engine: Engine) -> float:
    """Run a worker until nothing is left; answer the seconds until the last move was durable."""
    worker, last = engine.worker(), LastCommit()
    stop = engine.kernel.telemetry.add(last)
    started = time.perf_counter()
    await worker.run(until_idle=True)
    stop()
    return last.at - started


def _submit(url: str, submits: int, threads: int) -> float:
    flow = flow_of("submit")
    gate = threading.Barrier(threads + 1)

    def work(engine: Engine) -> None:
        gate.wait()
        for _ in range(submits // threads):
            engine.submit(flow, PAYLOAD)
        gate.wait()

    with connect(url, flows=[flow]) as engine:
        engine.submit(flow, PAYLOAD)  # the first one prepares its statements
        if threads == 1:
            started = time.perf_counter()
            for _ in range(submits):
                engine.submit(flow, PAYLOAD)
            return submits / (time.perf_counter() - started)
        crowd = [threading.Thread(target=work, args=(engine,)) for _ in range(threads)]
        for thread in crowd:
            thread.start()
        gate.wait()
        started = time.perf_counter()
        gate.wait()
        took = time.perf_counter() - started
        for thread in crowd:
            thread.join()
        return submits // threads * threads / took


def _delay(waits: list[float]) -> Delay:
    return Delay(statistics.median(waits), statistics.quantiles(waits, n=100)[98])


# --- processes of their own -----------------------------------------------------

_CHILD = [sys.executable, "-m", "ulak.cli.speed"]


def _ask(orders: dict[str, Any]) -> str:
    """Let a process measure; what it prints last is the answer."""
    done = subprocess.run(  # noqa: S603 - this interpreter, and this very file
        _CHILD, input=json.dumps(orders) + "\n", stdout=subprocess.PIPE, text=True, check=True
    )
    return done.stdout.split()[-1]


@contextmanager
def _worker(url: str) -> Iterator[Iterator[str]]:
    """Run a worker; answer when its stages begin, a line each."""
    child = subprocess.Popen(  # noqa: S603 - this interpreter, and this very file
        _CHILD, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    assert child.stdin is not None and child.stdout is not None  # noqa: S101, PT018 - just asked for
    try:
        child.stdin.write(json.dumps({"measure": "pickup", "url": url}) + "\n")
        child.stdin.flush()
        yield child.stdout
        child.stdin.close()
        child.wait(PATIENCE_S)
    finally:
        child.kill()
        child.wait()
        child.stdout.close()


def _drain(orders: dict[str, Any]) -> None:
    jobs, stages = orders["jobs"], orders["stages"]
    flow = flow_of(f"{orders['of']}-{stages}", stages=stages, kind=orders["of"])
    with connect(orders["url"], flows=[flow]) as engine:
        fill(engine, flow, jobs)
        settle_in()  # as `ulak worker` does
        took = asyncio.run(run_dry(engine))
        left = sum(
            c.jobs for c in engine.inspect.counts() if c.flow == flow.name and c.role != "done"
        )
        if left:
            raise SystemExit(f"{left} jobs are not done")
    print(jobs * stages / took)


def _serve(orders: dict[str, Any]) -> None:
    async def handle(run: Run[Any]) -> None:
        print(time.monotonic_ns(), flush=True)

    flow: Flow[Any] = Flow.steps(f"{NAME}-pickup", ("s0", handle))
    with connect(orders["url"], flows=[flow]) as engine:
        settle_in()
        worker = engine.worker()

        def stop_when_told() -> None:
            sys.stdin.read()
            worker.stop()

        threading.Thread(target=stop_when_told, daemon=True).start()
        asyncio.run(worker.run())


def main() -> None:
    """Do what the first line of standard input says."""
    orders = json.loads(sys.stdin.readline())
    {"drain": _drain, "pickup": _serve}[orders["measure"]](orders)


if __name__ == "__main__":
    main()
