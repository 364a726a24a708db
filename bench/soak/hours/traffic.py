"""The load of the long soak: its flows, a worker, and a client that submits, decides and prunes.

`python -m bench.soak.hours.traffic worker|client FOLDER STORE URL AHEAD_US`
"""

from __future__ import annotations

import asyncio
import json
import os
import signal
import sys
import threading
import time
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass
from datetime import timedelta
from itertools import pairwise
from pathlib import Path
from random import Random
from typing import Any

import ulak
from ulak import wiring
from ulak.clock import Instant, SystemClock, Uptime, to_datetime
from ulak.engine.worker import settle_in

# How many of a hundred jobs are of each kind.
KINDS = {
    "plain": 48,  # one stage
    "order": 20,  # three stages, effects that run once, a message; some spawn another job
    "shaky": 10,  # fails at first, is retried
    "narrow": 10,  # at most two at once
    "decided": 4,  # a person decides
    "held": 2,  # stops for a person, who releases it
    "awaited": 3,  # waits for a signal
    "unwanted": 2,  # waits, and is cancelled
    "broken": 1,  # fails for good
}
SETTINGS = ulak.WorkerSettings(
    loop=20, threads=4, lease=timedelta(seconds=10), drain=timedelta(seconds=10)
)
PERSON_EVERY_S = 2.0
A_PAGE = 500
# A message of fifty fails at first: the relay tries it again.
REFUSED = 0.02
# What every part begins with: so many jobs and messages at once, each so long, that the workers
# have all their threads from then on. Made one by one in rare moments, they would look like a leak.
BURST = 200
BURST_S = 0.1


@dataclass(frozen=True, slots=True)
class Plan:
    """How hard, for how long, and what is kept: written to the folder, and read by every part."""

    hours: float = 3.0
    rate: float = 20.0
    stores: tuple[str, ...] = ("sqlite", "postgres")
    seed: int = 1
    sample_s: float = 30.0
    kill_s: float = 120.0
    keep_s: float = 300.0
    prune_s: float = 30.0
    zero_us: Instant = 0
    """What the stores' clocks show at the beginning: shortly before the end of a month."""

    def write(self, folder: Path) -> None:
        """Write it down for the processes and for the parts to come."""
        (folder / "plan.json").write_text(json.dumps(asdict(self)))

    @classmethod
    def read(cls, folder: Path) -> Plan:
        """Read what was written."""
        facts = json.loads((folder / "plan.json").read_text())
        return cls(**{**facts, "stores": tuple(facts["stores"])})


@dataclass(frozen=True, slots=True)
class Task:
    """What a job is to do, and when it was submitted by this machine's clock."""

    kind: str
    n: int
    at: float


class AheadClock:
    """The machine's clock, ahead by a constant."""

    def __init__(self, ahead_us: int) -> None:
        self._machine = SystemClock()
        self._ahead_us = ahead_us

    def now(self) -> Instant:
        return self._machine.now() + self._ahead_us

    def uptime(self) -> Uptime:
        return self._machine.uptime()


def make_engine(url: str, ahead_us: int, begun: Callable[[Task], None]) -> ulak.Engine:
    """Make an engine with the flows and schedules of the soak.

    The clock of SQLite is injected; that of PostgreSQL is the server's, which is set there.
    """
    clock = AheadClock(ahead_us) if url.startswith("sqlite:") else None
    engine = ulak.Engine(wiring.store_of(url, clock=clock), flows=make_flows(begun))
    dice = Random()

    @engine.outbox.publish
    def send(message: ulak.Message) -> None:
        if message.topic == "burst.done":
            time.sleep(BURST_S)
        elif dice.random() < REFUSED:
            raise ConnectionError("the broker is away")

    for name, every_s in (("minutely", 60), ("often", 2), ("seldom", 5)):
        task = Task("plain", 0, 0.0)
        engine.schedules.add(name, engine.inspect.flows[0], task, every=timedelta(seconds=every_s))
    return engine


def make_flows(begun: Callable[[Task], None]) -> list[ulak.Flow[Task]]:
    """Declare a flow for each kind."""

    def work(run: ulak.Run[Task]) -> None:
        begun(run.payload)

    plain = ulak.Flow.steps("plain", work, payload=Task)

    async def reserve(run: ulak.Run[Task]) -> str:
        begun(run.payload)

        async def effect(key: str) -> str:
            return key

        return await run.once("reserve", effect)

    def charge(run: ulak.Run[Task]) -> str:
        return run.once("charge", lambda key: key)

    def notify(run: ulak.Run[Task]) -> None:
        run.emit("order.done", {"n": run.payload.n})
        if run.payload.n % 10 == 0:
            run.spawn(plain, [Task("plain", run.payload.n, 0.0)])

    order = ulak.Flow.steps("order", reserve, charge, notify, payload=Task)
    quick = ulak.Backoff(2, first=timedelta(milliseconds=200))

    async def stumble(run: ulak.Run[Task]) -> None:
        if run.payload.kind == "broken" or run.attempt == 1:
            raise ConnectionError("not yet")

    shaky, broken = (
        ulak.Flow.steps(name, stumble, payload=Task, retry=quick) for name in ("shaky", "broken")
    )
    narrow: ulak.Flow[Task] = ulak.Flow("narrow", _path("go", "done"), payload=Task)

    @narrow.stage("go", limit=ulak.Limit(2))
    async def squeeze(run: ulak.Run[Task]) -> None:
        await asyncio.sleep(0.02)

    decided: ulak.Flow[Task] = ulak.Flow("decided", _path("review", "go", "done"), payload=Task)
    decided.gate("review", choices={"approve": "go"})
    decided.stage("go")(work_quietly)
    held: ulak.Flow[Task] = ulak.Flow("held", _path("go", "done"), payload=Task)

    @held.stage("go")
    async def hesitate(run: ulak.Run[Task]) -> ulak.Hold | None:
        return ulak.Hold("look", "a person must look at this") if run.token == 1 else None

    waits = []
    for name in ("awaited", "unwanted"):
        flow: ulak.Flow[Task] = ulak.Flow(name, _path("wait", "go", "done"), payload=Task)
        flow.wait("wait", signal="come", to="go")
        flow.stage("go")(work_quietly)
        waits.append(flow)

    def take_long(run: ulak.Run[Task]) -> None:
        time.sleep(BURST_S)
        run.emit("burst.done", {"n": run.payload.n})

    burst = ulak.Flow.steps("burst", take_long, payload=Task)
    return [plain, order, shaky, narrow, decided, held, *waits, broken, burst]


async def work_quietly(run: ulak.Run[Task]) -> None:
    """Do nothing but the move."""


def _path(*states: str) -> ulak.Lifecycle:
    return ulak.Lifecycle(states[0], {a: [b] for a, b in pairwise(states)})


class Client:
    """Submits at a steady pace; a person and a nightly prune act beside it, in threads."""

    def __init__(self, engine: ulak.Engine, plan: Plan) -> None:
        self._engine = engine
        self._plan = plan
        self._dice = Random(plan.seed)
        self.over = threading.Event()

    def run(self) -> None:
        """Act until it is over; the first thread that fails ends the process."""
        for every_s, act in ((PERSON_EVERY_S, self._attend), (self._plan.prune_s, self._prune)):
            threading.Thread(target=self._repeat, args=(every_s, act), daemon=True).start()
        flows = {flow.name: flow for flow in self._engine.inspect.flows}
        with self._patiently():
            self._engine.submit_many(flows["burst"], [Task("burst", n, 0.0) for n in range(BURST)])
        due, n = time.monotonic(), 0
        while not self.over.wait(max(0.0, due - time.monotonic())):
            kind = self._dice.choices(list(KINDS), weights=list(KINDS.values()))[0]
            with self._patiently():
                self._engine.submit(flows[kind], Task(kind, n, time.time()), actor="client")
            # What a machine that stood still has missed is not made up for: the load is steady.
            due, n = max(due, time.monotonic() - 1.0) + 1 / self._plan.rate, n + 1

    def _repeat(self, every_s: float, act: Callable[[], None]) -> None:
        while not self.over.wait(every_s):
            try:
                with self._patiently():
                    act()
            except BaseException:
                traceback.print_exc()
                os.kill(os.getpid(), signal.SIGKILL)  # the run counts it as a fault
                raise

    @contextmanager
    def _patiently(self) -> Iterator[None]:
        """Go on after a store that did not answer in time, and say so in the log."""
        try:
            yield
        except (ulak.StoreError, ulak.UnknownOutcome, ulak.Overloaded) as error:
            print(f"no answer: {error!r}", file=sys.stderr, flush=True)

    def _attend(self) -> None:
        """Decide, release, signal and cancel what waits for a person."""
        acts: dict[str, tuple[str, Callable[[str], Any]]] = {
            "decided": ("held", lambda job: self._engine.decide(job, "approve", actor="ada")),
            "held": ("held", lambda job: self._engine.release(job, actor="ada")),
            "awaited": ("waiting", lambda job: self._engine.signal(job, "come", actor="ada")),
            "unwanted": ("waiting", lambda job: self._engine.cancel(job, actor="ada")),
        }
        for flow, (role, act) in acts.items():
            for job in self._engine.jobs(ulak.JobFilter(flow=flow, role=role), limit=A_PAGE):
                # A job that moved meanwhile is looked at again in two seconds.
                with suppress(ulak.StaleJob, ulak.TransitionNotAllowed):
                    act(job.id)

    def _prune(self) -> None:
        now = to_datetime(self._engine.store.clock.now())
        before = now - timedelta(seconds=self._plan.keep_s)
        while (
            self._engine.retention.prune(ended_before=before, limit=A_PAGE, actor="cron") == A_PAGE
        ):
            time.sleep(0.1)


def main() -> None:
    """Be a worker or the client until SIGTERM, or until the process that started it is gone."""
    part, folder, store, url, ahead_us = sys.argv[1:]
    plan = Plan.read(Path(folder))
    note = os.open(
        Path(folder) / f"pickups-{store}", os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC
    )

    def begun(task: Task) -> None:
        if task.at:
            os.write(note, b"%.6f\n" % max(0.0, time.time() - task.at))

    def end_with_the_parent() -> None:
        os.read(0, 1)  # nothing is ever written there; a read by Python would keep a lock
        os.kill(os.getpid(), signal.SIGTERM)

    engine = make_engine(url, int(ahead_us), begun)
    settle_in()
    with engine:
        client, worker = Client(engine, plan), engine.worker(SETTINGS)
        stop = client.over.set if part == "client" else worker.stop
        signal.signal(signal.SIGTERM, lambda *_: stop())
        threading.Thread(target=end_with_the_parent, daemon=True).start()
        if part == "client":
            client.run()
        else:
            asyncio.run(worker.run())


if __name__ == "__main__":
    main()
