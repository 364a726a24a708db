"""A seeded simulation of workers, upkeep, relays and operators over one store.

Everything happens in one thread, in an order drawn from the seed. At every store call an actor
may crash before or after it, repeat it, or be late with it; worker clocks are wrong by up to five
minutes; what a crashed worker was about to write may still arrive. After each call the jobs that
it touched are checked, now and then the whole store (`watch.Watch`). At the end the faults stop
and every job must come to its end.

    python -m ulak.testing.simulator --seed 1 --calls 1000000
    python -m ulak.testing.simulator --seed 1 --store postgresql://user@host/an_empty_database

A seed makes the same history on every store that keeps the same promises: its digest is the same.
"""

from __future__ import annotations

import argparse
import random
import sys
import time
from collections import Counter, deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from datetime import timedelta
from functools import partial
from typing import Any
from zlib import crc32

from ulak.clock import Clock, ManualClock
from ulak.core.change import Change
from ulak.core.job import JobRow
from ulak.core.lifecycle import FAILED, FINAL
from ulak.core.table import kept_entries
from ulak.errors import BadInput, UlakError
from ulak.ids import time_ordered_id
from ulak.store.memory import MemoryStore
from ulak.store.protocol import Store
from ulak.testing.actors import Actor, Crash, Operator, Relay, Steersman, Upkeep, Worker, Zombies
from ulak.testing.broken import Gapped
from ulak.testing.simulated_flows import flows
from ulak.testing.watch import Watch
from ulak.wiring import store_of

WORKERS = 4
MOST_VIOLATIONS = 5
TRACE_TAIL = 60

# How often the whole store is read: rarely enough to cost less than the calls between.
EVERYTHING_EVERY = 4_000
# Calls without faults after which a job that has not ended counts as stuck.
FINISH_WITHIN = 60_000

CRASH_BEFORE, CRASH_AFTER, REPEAT, LATE = 0.004, 0.007, 0.02, 0.04
"""The shares of store calls with each fault, added up."""

REPEATABLE = frozenset(
    {"add", "commit", "renew", "request", "dismiss", "settle_messages", "unpark", "fold_counts"}
)
"""Calls that a caller unsure of the answer may repeat. A claim is not: its worker starts anew."""


@dataclass(frozen=True, slots=True)
class Report:
    """What a simulation did and found."""

    seed: int
    calls: int
    violations: tuple[str, ...]
    trace_tail: tuple[str, ...]
    """The last store calls, the latest last."""
    digest: str
    """The same for the same seed and calls: a failing run replays exactly."""
    seconds: float
    jobs: int
    ended: dict[str, int] = field(default_factory=dict)
    """How many jobs ended in each role."""
    faults: dict[str, int] = field(default_factory=dict)
    events: dict[str, int] = field(default_factory=dict)
    followed: dict[tuple[str, int], int] = field(default_factory=dict)
    """How many ends a job followed, by state and round."""

    def __str__(self) -> str:
        rate = self.calls / self.seconds * 60 if self.seconds else 0.0
        lines = [
            f"seed {self.seed}: {self.calls} store calls in {self.seconds:.1f} s",
            f"{rate:,.0f} calls a minute, {self.jobs} jobs, digest {self.digest}",
            "ended: " + ", ".join(f"{role} {n}" for role, n in sorted(self.ended.items())),
            "faults: " + ", ".join(f"{kind} {n}" for kind, n in sorted(self.faults.items())),
            "events: " + ", ".join(f"{kind} {n}" for kind, n in sorted(self.events.items())),
        ]
        if self.violations:
            lines += [f"{len(self.violations)} violations:", *self.violations]
            lines += ["last calls:", *self.trace_tail]
        else:
            lines.append("no violations")
        return "\n".join(lines)


def simulate(
    seed: int,
    calls: int,
    store_factory: Callable[[Clock], Store] = MemoryStore,
    *,
    finish: bool = True,
) -> Report:
    """Run one simulation of about so many store calls; it ends early when it finds violations.

    Args:
        seed: Decides everything that happens.
        calls: How many store calls, besides those that bring the last jobs to their end.
        store_factory: Makes an empty store that tells the time by the given clock.
        finish: Stop the faults at the end and expect every job to end.
    """
    began = time.perf_counter()
    world = World(seed, store_factory)
    world.run(calls)
    if finish and not world.watch.violations:
        world.finish()
    world.store.close()
    return Report(
        seed=seed,
        calls=world.calls,
        violations=tuple(world.watch.violations[:MOST_VIOLATIONS]),
        trace_tail=tuple(world.trace),
        digest=f"{world.digest:08x}",
        seconds=time.perf_counter() - began,
        jobs=world.submitted,
        ended=dict(world.ended),
        faults=dict(world.faults),
        events=dict(world.watch.kinds),
        followed=dict(world.watch.followed),
    )


class World:
    """The store, the actors, the clock and the dice."""

    def __init__(self, seed: int, store_factory: Callable[[Clock], Store]) -> None:
        self.random = random.Random(seed)
        self.clock = ManualClock()
        self.store = store_factory(self.clock)
        self.store.open()
        made = flows()
        self.flows = {flow.name: flow for flow in made}
        self.lanes = tuple(sorted(lane for flow in made for lane in flow.table.lanes))
        self.entries = {
            (flow.name, flow.version, state): busy
            for flow in made
            for state, busy in flow.table.entries.items()
        }
        self.keeps = kept_entries(made)
        self.store.declare(
            {name: terms for flow in made for name, terms in flow.table.limits.items()},
            {name: terms for flow in made for name, terms in flow.table.rates.items()},
        )
        self.watch = Watch(self.store, self.flows)
        self.calls = 0
        self.digest = 0
        self.submitted = 0
        self.trace: deque[str] = deque(maxlen=TRACE_TAIL)
        self.ended: Counter[str] = Counter()
        self.faults: Counter[str] = Counter()
        self.is_faulty = True
        self.is_closing = False
        self.open_jobs: dict[bytes, None] = {}
        """Jobs that have not ended, in the order they came."""
        self.ended_jobs: deque[bytes] = deque()
        self.zombies: list[list[Change]] = []
        self.out_of_order: set[str] = set()
        """Keys of which a message has died: what comes after it has overtaken it."""
        self.actors: list[Actor] = [Worker(self, n) for n in range(WORKERS)]
        self.actors += [Upkeep(self, 0), Upkeep(self, 1), Relay(self, 0), Relay(self, 1)]
        self.actors += [Operator(self, 0), Operator(self, 1), Zombies(self, 0)]
        self.actors += [Steersman(self, 0)]
        self._stepping: set[Actor] = set()
        self._ids = 0
        if isinstance(self.store, Gapped):
            self.store.between = self._between

    # --- time and chance --------------------------------------------------------

    def new_commit_id(self) -> bytes:
        self._ids += 1
        return self._ids.to_bytes(16, "big")

    def new_job_id(self) -> bytes:
        return time_ordered_id(self.clock.now(), self.random.randbytes)

    def _turn_the_clock(self) -> None:
        draw = self.random.random()
        if draw < 0.5:
            span = timedelta(microseconds=int(draw * 400_000))
        elif draw < 0.995:
            span = timedelta(seconds=draw)
        elif draw < 0.999:
            span = timedelta(minutes=self.random.random() * 30)
        else:
            span = timedelta(hours=self.random.random() * 8)
        self.clock.advance(span)

    # --- running ----------------------------------------------------------------

    def run(self, calls: int) -> None:
        """Let everybody act until so many calls were made, or something is wrong."""
        next_look = self.calls + EVERYTHING_EVERY
        until = self.calls + calls
        while self.calls < until and not self.watch.violations:
            self.step()
            if self.calls >= next_look:
                self.watch.everything()
                next_look = self.calls + EVERYTHING_EVERY
        self.watch.everything()

    def step(self) -> None:
        """Let one actor go on to its next call."""
        actor = self.actors[int(self.random.random() * len(self.actors))]
        if self.random.random() < 0.3:
            self._turn_the_clock()
        if actor.late > 0 and self.is_faulty:
            actor.late -= 1
            return
        self._advance(actor)

    def _advance(self, actor: Actor) -> None:
        if actor in self._stepping:
            return
        self._stepping.add(actor)
        try:
            next(actor.steps)
        except (Crash, StopIteration):
            actor.die()
        finally:
            self._stepping.discard(actor)

    def finish(self) -> None:
        """Stop every fault and submit nothing more; every job must come to its end."""
        self.is_faulty = False
        self.is_closing = True
        until = self.calls + FINISH_WITHIN
        while self._is_unfinished() and self.calls < until and not self.watch.violations:
            for _ in range(100):
                self.step()
        for job_id in list(self.open_jobs)[:MOST_VIOLATIONS]:
            self.watch.accuse(self.store.find_job(job_id), "it never came to its end")
        for seen in self.watch.seen.values():
            if seen.unsent:
                self.watch.accuse(seen.row, f"messages {sorted(seen.unsent)} were never published")
        self.watch.everything()

    def _is_unfinished(self) -> bool:
        return bool(self.open_jobs) or any(seen.unsent for seen in self.watch.seen.values())

    # --- calls ------------------------------------------------------------------

    def call(self, caller: Actor, verb: str, /, *args: Any, **options: Any) -> Any:
        """Make a store call, perhaps not as the actor meant it.

        Raises:
            Crash: the actor is gone, before or after the call.
        """
        draw = self.random.random() if self.is_faulty else 1.0
        if draw < LATE:
            if draw < CRASH_BEFORE:
                self.faults["crash before"] += 1
                raise Crash
            if draw < CRASH_AFTER:
                self.faults["crash after"] += 1
                self._perform(caller, verb, args, options)
                raise Crash
            if draw < REPEAT:
                if verb in REPEATABLE:
                    self.faults["repeat"] += 1
                    self._perform(caller, verb, args, options)
            else:
                self.faults["late"] += 1
                caller.late = int(self.random.random() ** 4 * 400)
        return self._perform(caller, verb, args, options)

    def commit(self, actor: Actor, changes: Sequence[Change]) -> Any:
        """Commit, and hold what came of it to the guards."""
        return self.call(actor, "commit", changes)

    def _perform(
        self, actor: Actor, verb: str, args: tuple[Any, ...], options: dict[str, Any]
    ) -> Any:
        self.calls += 1
        line = f"{self.calls} {self.clock.now()} {actor.name} {verb} {_about(verb, args)}"
        self.trace.append(line)
        self.digest = crc32(line.encode(), self.digest)
        try:
            if verb == "commit":
                return self._commit(args[0])
            answer = getattr(self.store, verb)(*args, **options)
        except (UlakError, LookupError) as error:
            self.watch.accuse(None, f"{verb} raised {type(error).__name__}: {error}")
            raise Crash from error
        if verb == "add":
            for added in answer:
                self.touch(added.row.id)
        elif verb == "claim":
            for claim in answer.claims:
                self.watch.supplied(claim.row, answer.now)
                self.touch(claim.row.id)
        return answer

    def _commit(self, changes: Sequence[Change]) -> Any:
        before = [self.store.find_job(change.row.id) for change in changes]
        known = self.store.find_commits(changes)
        receipts = self.store.commit(changes)
        self.watch.commit(changes, before, known, receipts)
        for change in changes:
            self.touch(change.row.id)
            for job in change.spawns:
                self.touch(job.row.id)
        return receipts

    def _between(self) -> None:
        """What may happen where a broken build has two transactions instead of one.

        Raises:
            Crash: the caller is gone.
        """
        draw = self.random.random() if self.is_faulty else 1.0
        if draw < 0.01:
            self.faults["crash between"] += 1
            raise Crash
        if draw < 0.2:
            for _ in range(int(self.random.random() * 8)):
                self.step()

    def touch(self, job_id: bytes) -> None:
        """Check a job that a call may have changed, and keep the lists of jobs."""
        is_new = job_id not in self.watch.seen
        self.watch.job(job_id)
        seen = self.watch.seen.get(job_id)
        if seen is None or seen.row is None:
            return
        if is_new:
            self.submitted += 1
        if seen.row.role not in FINAL:
            self.open_jobs[job_id] = None
        elif job_id in self.open_jobs or is_new:
            self.open_jobs.pop(job_id, None)
            self.ended_jobs.append(job_id)
            self.ended[seen.row.role] += 1

    def forget_pruned(self) -> None:
        """Drop what the store has pruned from every book; what has not ended must be there."""
        for job_id in self.open_jobs:
            self.watch.job(job_id)
        for _ in range(len(self.ended_jobs)):
            job_id = self.ended_jobs.popleft()
            if self.store.find_job(job_id) is None:
                self.watch.forget(job_id)
            elif job_id not in self.open_jobs:
                self.ended_jobs.append(job_id)

    def some_job(self) -> JobRow | None:
        """Draw a job, mostly one that has not ended."""
        pool = self.open_jobs if self.random.random() < 0.8 else self.ended_jobs
        if not pool:
            return None
        if isinstance(pool, deque):
            # Rather one that failed, since it may go on.
            some = [self.store.find_job(self.random.choice(pool)) for _ in range(8)]
            return next((row for row in some if row is not None and row.role == FAILED), some[0])
        index = int(self.random.random() * len(pool))
        for n, job_id in enumerate(pool):
            if n == index:
                return self.store.find_job(job_id)
        return None


def _about(verb: str, args: tuple[Any, ...]) -> str:
    if verb == "commit":
        return " ".join(
            f"{change.row.id.hex()[-6:]}:{change.row.flow}/{change.row.state}"
            f"#{change.row.seq}t{change.token}v{change.version}"
            for change in args[0]
        )
    if verb == "add":
        return " ".join(f"{job.row.id.hex()[-6:]}:{job.row.flow}" for job in args[0])
    if verb == "request":
        return f"{args[0].job_id.hex()[-6:]} {args[0].kind}"
    return ""


def _empty_store(url: str, clock: Clock) -> Store:
    """Make the store that a URL names.

    Raises:
        BadInput: there are jobs in it, which the simulation knows nothing of.
    """
    store = store_of(url, clock=clock)
    store.open()
    if store.scan_jobs(limit=1):
        store.close()
        raise BadInput("the simulator needs a store without jobs; make a new database for it")
    return store


def main(arguments: Sequence[str] | None = None) -> int:
    """Run simulations from the command line; answer 1 when something was violated."""
    parser = argparse.ArgumentParser(prog="python -m ulak.testing.simulator")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--calls", type=int, default=100_000)
    parser.add_argument("--store", default="memory://", help="the URL of an empty store")
    chosen = parser.parse_args(arguments)
    report = simulate(chosen.seed, chosen.calls, partial(_empty_store, chosen.store))
    sys.stdout.write(f"{report}\n")
    return 1 if report.violations else 0


if __name__ == "__main__":
    raise SystemExit(main())
