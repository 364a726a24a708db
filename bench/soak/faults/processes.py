"""Faults of processes: set clocks, forks, slow publishers, and two releases at once."""

from __future__ import annotations

import os
import signal
import subprocess
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from datetime import timedelta
from functools import partial
from pathlib import Path
from typing import Any

import ulak
from bench.soak.checks import Evidence
from bench.soak.children import LEDGER
from bench.soak.clock import SteppedClock
from bench.soak.faults import programs
from bench.soak.faults.frame import Fault, Ground
from bench.soak.faults.pace import SHARE
from bench.soak.ledger import read_all
from bench.soak.run import findings_of_verify
from ulak.core import event as kinds
from ulak.engine.why import STATE_NOT_SERVED, VERSION_NOT_SERVED
from ulak.ids import from_text

BOTH = ("sqlite", "postgres")
HOUR = timedelta(hours=1)
# What was written while the clock was ahead is due when the clock comes there: on SQLite it is not
# set back at last, or those orders would take an hour. On PostgreSQL the server's clock decides.
STEPS = {"sqlite": (-HOUR, 0 * HOUR, HOUR), "postgres": (HOUR, 0 * HOUR, -HOUR, 0 * HOUR)}
FORKS = 3
PARCELS = 4
# What befalls no parcel.
SPOILT = {kinds.HELD, kinds.FAILED, kinds.LAPSED}
# So short that the jobs of a killed worker are soon free, so long that no living one loses its own.
SHORT_LEASE_S = 6.0


# --- clocks ---------------------------------------------------------------------


def step_clocks(ground: Ground) -> None:
    """The machine's clock is set an hour back and forward, under all processes at once.

    No lease is taken, so that no run is repeated and no limit is broken. A schedule of every
    minute that catches up on all its dates ticks once at most for each step.
    """
    roll(ground, "scheduled")
    clock, steps = SteppedClock(ground.folder), STEPS[ground.store]
    began = time.monotonic()
    for span in steps:
        clock.set_by(span)
        ground.last(5.0)
    minutes = int((time.monotonic() - began) / 60) + 1

    def check(seen: Evidence) -> Iterator[str]:
        for job, trail in seen.trails.items():
            if any(event.kind == kinds.LAPSED for event in trail):
                yield f"job {job}: its lease was taken though its worker lives"
        ticks = sum(1 for _ in seen.jobs("report"))
        if ticks > len(steps) + minutes:
            yield f"{ticks} ticks in {minutes} minutes and {len(steps)} steps"

    ground.checks.append(check)


# --- forks ----------------------------------------------------------------------


def kill_a_worker_that_forked(ground: Ground) -> None:
    """A stage forks children that live on while their worker is killed.

    What the worker had is run again when its lease is over, though they have inherited every
    descriptor of it.
    """
    worker = start(ground, "forking")
    with an_engine(ground, "forking") as engine:
        jobs = engine.submit_many(find_flow(engine, "fork"), [{}] * FORKS)
        ground.wait_until(lambda: len(find_forked(ground)) == FORKS, "a stage forks")
        ground.last(2.0)
        try:
            ground.children.workers.remove(worker)
            kill(ground, worker.pid)
            worker.wait()
            next_worker = start(ground, "forking")
            ground.wait_until(lambda: have_ended(engine, jobs), "what was forked from is run again")
        finally:
            for pid in find_forked(ground):
                os.kill(pid, signal.SIGKILL)
    ground.children.retire(next_worker)


def work_in_forks_of_an_open_engine(ground: Ground) -> None:
    """All workers are forks of a program that had opened its engine, as with gunicorn --preload.

    One of them is killed, and forked anew.
    """
    before = tuple(ground.children.workers)
    program = start(ground, "preloaded")
    known = {program.pid, *(worker.pid for worker in before)}

    def find_forks() -> set[int]:
        return ground.pace.ready - known

    ground.wait_until(lambda: len(find_forks()) == programs.PRELOADED, "the forks work")
    for worker in before:
        ground.children.retire(worker)
    ground.last(5.0)
    kill(ground, min(find_forks()))
    ground.wait_until(lambda: len(find_forks()) > programs.PRELOADED, "it is forked anew")
    ground.last(5.0)
    ground.wait_until_ready(*(ground.children.add_worker() for _ in before))
    ground.children.retire(program)


def find_forked(ground: Ground) -> list[int]:
    """Return the process ids of the children of stages."""
    lines = read_all(ground.folder / LEDGER)
    return [int(line.words[0]) for line in lines if line.kind == "forked"]


def kill(ground: Ground, pid: int) -> None:
    """Kill a process: from its last line on it has left every limited stage."""
    os.kill(pid, signal.SIGSTOP)
    ground.wait_until(lambda: has_stopped(pid), "a process stops")
    ground.ledger.append("dead", pid=pid)
    os.kill(pid, signal.SIGKILL)


def has_stopped(pid: int) -> bool:
    """Tell whether a process stands still."""
    return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "T"


# --- publishers -----------------------------------------------------------------


def publish_slowly(ground: Ground, *, part: str) -> None:
    """Each message takes half a second, and there are many keys.

    Every message is sent once, none becomes a dead letter, and runs go on at the former rate.
    """
    before = ground.pace.usual_rate(time.monotonic() - ground.plan.before_s, time.monotonic())
    roll(ground, part)
    began = time.monotonic()
    with an_engine(ground, part) as engine:
        jobs = engine.submit_many(find_flow(engine, "crowd"), [{}] * 3)
        ground.wait_until(lambda: have_ended(engine, jobs), "the messages are emitted")
        ground.last(12.0)
        meanwhile = ground.pace.usual_rate(began, time.monotonic())
        ground.wait_until(lambda: are_sent(engine, jobs), "the messages are sent")

        def check(seen: Evidence) -> Iterator[str]:
            sent = Counter(line.words[0] for line in seen.of("sent"))
            yield from (f"message {m} was sent {n} times" for m, n in sent.items() if n > 1)
            dead = ground.engine.outbox.dead()
            yield from (f"message {message.id} is a dead letter" for message in dead)
            if ground.plan.is_timed and meanwhile < SHARE * before:
                yield f"{meanwhile:.0f} runs/s beside a slow publisher, {before:.0f} before"

        ground.checks.append(check)
    roll(ground)


# --- releases -------------------------------------------------------------------


def deploy_two_releases(ground: Ground) -> None:
    """The next release is rolled out, rolled back and rolled out again, worker by worker.

    It has a state and a version that the release before lacks. What only it can run waits for it,
    and `why` says so; nothing else waits, and nothing fails. Its workers stay.
    """
    jobs: list[ulak.Job] = []
    with an_engine(ground, "release-a") as a, an_engine(ground, "release-b") as b:

        def submit() -> None:
            for engine in (a, b):
                for flow in engine.inspect.flows:
                    if flow.name == "parcel":
                        jobs.extend(engine.submit_many(flow, [{}] * PARCELS))

        def wait_for_why(state: str, code: str, text: str) -> None:
            left = find_standing(b, jobs, state)
            assert left, f"no parcel stands in {state}"
            ground.wait_until(lambda: is_named(a, left, code, text), f"why names {text}")

        roll(ground, "release-a", before_each=submit)
        roll(ground, "release-b", before_each=submit)
        submit()
        ground.wait_until(lambda: find_standing(b, jobs, "weigh"), "parcels are to be weighed")
        roll(ground, "release-a", before_each=submit)
        submit()
        ground.last(3.0)
        wait_for_why("weigh", STATE_NOT_SERVED, 'stage "weigh"')
        wait_for_why("wrap", VERSION_NOT_SERVED, "version 2 of parcel")
        (ground.folder / programs.PERMIT).touch()
        roll(ground, "release-b", before_each=submit)
        ground.wait_until(lambda: have_ended(b, jobs), "the parcels end")
        found = [*findings_of_verify(b)]

    def check(seen: Evidence) -> Iterator[str]:
        yield from found
        for job, row in seen.jobs("parcel"):
            spoilt = {event.kind for event in seen.trails[job]} & SPOILT
            if row.state != "done" or spoilt:
                yield f'parcel {job} ended in "{row.state}", with {sorted(spoilt)}'

    ground.checks.append(check)


def find_standing(engine: ulak.Engine, jobs: Sequence[ulak.Job], state: str) -> list[ulak.Job]:
    """Return the jobs that stand in a state."""
    return [job for job in jobs if engine.get(job.id).state == state]


def is_named(engine: ulak.Engine, jobs: Sequence[ulak.Job], code: str, text: str) -> bool:
    """Tell whether `why` gives each of the jobs this reason, in a sentence with this text."""
    reasons = [engine.inspect.why(job.id) for job in jobs]
    return all(reason.code == code and text in reason.sentence for reason in reasons)


# --- what they share ------------------------------------------------------------


def start(ground: Ground, part: str) -> subprocess.Popen[bytes]:
    """Start a program beside the workers, and wait until it works."""
    python, _, _, _, *options = ground.children.command("worker")
    command = [python, "-m", programs.__name__, part, *options]
    worker = ground.children.add_worker(command=command)
    ground.wait_until_ready(worker)
    return worker


def roll(
    ground: Ground, part: str | None = None, *, before_each: Callable[[], None] | None = None
) -> None:
    """Replace the workers one after the other by a program, or by the soak's own."""
    for worker in tuple(ground.children.workers):
        if before_each is not None:
            before_each()
        if part is None:
            ground.wait_until_ready(ground.children.add_worker())
        else:
            start(ground, part)
        ground.children.retire(worker)


@contextmanager
def an_engine(ground: Ground, part: str) -> Iterator[ulak.Engine]:
    """Open the engine of a program here, to submit and to ask."""
    engine, ledger = programs.make_engine(part, ground.folder, ground.url)
    try:
        with engine:
            yield engine
    finally:
        ledger.close()


def find_flow(engine: ulak.Engine, name: str) -> ulak.Flow[Any]:
    """Return the flow of a name."""
    return next(flow for flow in engine.inspect.flows if flow.name == name)


def have_ended(engine: ulak.Engine, jobs: Sequence[ulak.Job]) -> bool:
    """Tell whether every one of the jobs has ended."""
    return all(engine.get(job.id).is_final for job in jobs)


def are_sent(engine: ulak.Engine, jobs: Sequence[ulak.Job]) -> bool:
    """Tell whether every message of the jobs was sent."""
    rows = (row for job in jobs for row in engine.store.scan_messages(from_text(job.id)))
    return all(row.sent_at is not None for row in rows)


FAULTS = (
    Fault("clock-steps", BOTH, step_clocks),
    Fault("forked-children", BOTH, kill_a_worker_that_forked, lease_s=SHORT_LEASE_S),
    Fault("preloaded", BOTH, work_in_forks_of_an_open_engine, lease_s=SHORT_LEASE_S),
    Fault("slow-publisher", BOTH, partial(publish_slowly, part="plainly-slow"), harms_all=False),
    Fault(
        "slow-async-publisher", BOTH, partial(publish_slowly, part="asynchronously-slow"),
        harms_all=False,
    ),
    Fault("rolling-deploy", BOTH, deploy_two_releases),
)  # fmt: skip
