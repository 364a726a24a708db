"""Who acts in a simulation: workers, upkeep, relays, operators, and the late writes of the dead.

Each actor is a generator. It yields where others may come between, which is before every store
call, and it decides with what it read before: that is how real ones come to be stale.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator
from datetime import timedelta
from typing import TYPE_CHECKING, Any

from ulak.clock import SECOND, Instant
from ulak.core.acts import answer
from ulak.core.change import Change, Committed, LeaseLost, SlotTaken
from ulak.core.decide import RunFacts, decide, lapse_answer
from ulak.core.delivery import DEAD, GAVE_UP, NOBODY, PENDING, SENT
from ulak.core.intake import Submission, begin, keys_of
from ulak.core.job import JobRow, Message, NewJob, Payload, Request
from ulak.core.lifecycle import CLAIMABLE, FAILED, FINAL, HELD, UNDOING, WAITING
from ulak.core.outcome import (
    Asked,
    Cancel,
    Decide,
    Deferred,
    Elapsed,
    Finished,
    GivenBack,
    Held,
    Left,
    Noted,
    Outcome,
    Overran,
    Parked,
    Passed,
    Raised,
    Release,
    Retry,
    Signal,
)
from ulak.core.table import Place
from ulak.errors import TransitionNotAllowed
from ulak.store.protocol import ClaimRequest, DeliveryFilter, Settled, Want

if TYPE_CHECKING:
    from ulak.testing.simulator import World

LEASE_US = 30 * SECOND
AGEING_US = 60 * SECOND
PLACES = 4
WORST_SKEW_S = 300
MOST_OPEN_JOBS = 120
KEYS = 12
CUSTOMERS = 3
PAUSABLE = (("queue", "plain"), ("flow", "mail"), ("flow", "press"), ("key", "c0"), ("key", "c1"))
TENANTS = ("", "acme")
PRUNE_AFTER_US = 2 * 3600 * SECOND

Steps = Iterator[None]


class Crash(BaseException):
    """The actor is gone, with everything it knew; not an Exception, so that nobody handles it."""


class Actor(ABC):
    """Somebody who calls the store."""

    def __init__(self, world: World, number: int) -> None:
        self.world = world
        self.random = world.random
        self.name = f"{type(self).__name__.lower()}{number}"
        self.late = 0
        """How many of its turns it will miss."""
        self.steps = self.live()

    @abstractmethod
    def live(self) -> Steps:
        """Act for ever, yielding before every store call."""

    def die(self) -> None:
        """Lose everything and start again."""
        self.steps = self.live()

    def call(self, verb: str, *args: Any, **options: Any) -> Any:
        return self.world.call(self, verb, *args, **options)

    def chance(self, share: float) -> bool:
        return self.random.random() < share


class Running:
    """One run of a virtual worker."""

    __slots__ = ("asked", "may_keep", "outcome", "overran", "row", "started_at")

    def __init__(self, row: JobRow, started_at: Instant) -> None:
        self.row = row
        self.started_at = started_at
        self.asked: Cancel | Elapsed | None = None
        self.outcome: Outcome | None = None
        self.may_keep = True
        self.overran = False

    def hear(self, requests: Any) -> None:
        """Take in what is asked of this job."""
        for request in requests:
            if request.job_id == self.row.id and request.kind == "cancel":
                self.asked = Cancel(request.actor, request.note or "")
            elif request.job_id == self.row.id and request.kind == "expire":
                self.asked = Elapsed()


class Worker(Actor):
    """Claims, runs, decides, commits and renews, like the real one."""

    def __init__(self, world: World, number: int) -> None:
        self._lives = 0
        self.pending: list[Change] = []
        super().__init__(world, number)

    def die(self) -> None:
        if self.pending and self.chance(0.6):
            # What was on its way may still arrive, long after somebody else took over.
            self.world.zombies.append(self.pending)
        super().die()

    def live(self) -> Steps:
        self._lives += 1
        self.pending = []
        worker_id = f"{self.name}.{self._lives}"
        skew_us = 0
        if self.chance(0.5):
            skew_us = int((self.random.random() * 2 - 1) * WORST_SKEW_S * SECOND)
        runs: dict[bytes, Running] = {}
        yield
        renewed_at = self.call(
            "register", worker_id, lease_us=LEASE_US, lanes=self.world.lanes, about="simulated"
        )
        while True:
            yield
            now = self.world.clock.now()
            if now - renewed_at > LEASE_US // 3:
                renewal = self.call("renew", worker_id, lease_us=LEASE_US)
                renewed_at = renewal.now
                if not renewal.alive:
                    if not self.chance(0.3):
                        break
                    # It does not notice in time and goes on as if it still held its jobs.
                    yield from self._end_some(worker_id, runs, skew_us)
                    break
                for run in runs.values():
                    run.hear(renewal.requests)
            elif len(runs) < PLACES and self.chance(0.5):
                if not self._claim(worker_id, runs):
                    yield
            else:
                yield from self._end_some(worker_id, runs, skew_us)

    def _claim(self, worker_id: str, runs: dict[bytes, Running]) -> int:
        request = ClaimRequest(
            worker_id, (Want(self.world.lanes, PLACES - len(runs)),), self.world.entries,
            suspects=not any(run.row.lapses >= 2 for run in runs.values()),
            ageing_us=AGEING_US, keeps=self.world.keeps,
        )  # fmt: skip
        claimed = self.call("claim", request)
        for claim in claimed.claims:
            row = claim.row
            run = runs[row.id] = Running(row, claimed.now)
            run.outcome = lapse_answer(self.world.flows[row.flow], row)
            if run.outcome is None:
                self.world.watch.started(row)
        for run in runs.values():
            run.hear(claimed.requests)
        return len(claimed.claims)

    def _end_some(self, worker_id: str, runs: dict[bytes, Running], skew_us: int) -> Steps:
        """End some runs and commit them as one batch."""
        ending = [run for run in runs.values() if run.overran or self.chance(0.6)]
        if not ending:
            return
        now = self.world.clock.now() + skew_us
        self.pending = [self._decide(worker_id, run, now) for run in ending]
        yield
        changes = self.pending
        receipts = self.world.commit(self, changes)
        self.pending = []
        for run, change, receipt in zip(ending, changes, receipts, strict=True):
            if isinstance(receipt, SlotTaken):
                run.may_keep = False
                if isinstance(run.outcome, Passed):
                    run.outcome = Parked(receipt.limit)
            elif isinstance(receipt, Committed) and change.row.leased_by is not None:
                self._go_on(run, change, receipt)
            else:
                if not isinstance(receipt, Committed | LeaseLost):
                    self.world.watch.accuse(run.row, f"a worker was answered {receipt}")
                runs.pop(run.row.id, None)

    def _decide(self, worker_id: str, run: Running, now: Instant) -> Change:
        world = self.world
        if run.outcome is None:
            run.outcome = self._outcome(run)
        keeps = run.may_keep and not world.is_closing
        keeps = keeps or isinstance(run.outcome, Passed)  # only a drain stops what has passed
        facts = RunFacts(
            worker_id, run.started_at, self._may_keep if keeps else None, run.asked
        )  # fmt: skip
        return decide(
            world.flows[run.row.flow], run.row, run.outcome, now, facts=facts,
            commit_id=world.new_commit_id(),
        )  # fmt: skip

    def _may_keep(self, place: Place) -> bool:
        return self.chance(0.6)

    def _go_on(self, run: Running, change: Change, receipt: Committed) -> None:
        """Keep the lease: for the same stage, or for the next."""
        before, run.row = run.row, change.row
        run.overran = isinstance(run.outcome, Overran)
        run.outcome = None
        run.may_keep = True
        run.hear(receipt.requests)
        if before.state != run.row.state:
            run.started_at = change.row.changed_at
        self.world.watch.started(run.row)

    def _outcome(self, run: Running) -> Outcome:
        draw = self.random.random()
        place = self.world.flows[run.row.flow].table.places[run.row.state]
        is_before = place.enters is not None and run.row.role != UNDOING
        if is_before and (self.world.is_closing or draw < 0.72):
            return Passed()
        if self.world.is_closing or draw < 0.72:
            return self._finished(run)
        if draw < 0.82:
            return Raised("down", "it broke")
        if draw < 0.84:
            return Raised("broken", "it broke for good", permanent=True)
        if draw < 0.88:
            return Held("look", "a person must look")
        if draw < 0.92:
            after = timedelta(seconds=self.random.random() * 90)
            return Deferred(after, draw < 0.9, "not yet", "c2" if draw < 0.885 else None)
        if draw < 0.94:
            return GivenBack()
        if draw < 0.95 and not run.overran:
            return Overran()
        return Noted("effect", b"1")

    def _finished(self, run: Running) -> Outcome:
        row, world = run.row, self.world
        messages: tuple[Message, ...] = ()
        spawns: tuple[NewJob, ...] = ()
        if self.chance(0.2):
            # Messages of one key are sent in order, whichever job they come from.
            messages = tuple(
                Message(row.id, 0, n, row.id.hex(), "moved", b"{}", world.clock.now())
                for n in range(1 + int(self.random.random() * 3))
            )
        if row.flow == "plain" and self.chance(0.03) and not world.is_closing:
            spawns = (new_job(world, "plain", self.random.randrange(KEYS)),)
        to, after = None, None
        if row.role != UNDOING:
            place = world.flows[row.flow].table.places[row.state]
            if len(place.ways) > 1 and self.chance(0.15) and not world.is_closing:
                to = place.ways[int(self.random.random() * len(place.ways))]
            if self.chance(0.1):
                after = timedelta(seconds=self.random.random() * 60)
        result = b"1" if self.chance(0.2) else None
        return Finished(Left(result, messages, spawns), to, after)


class Zombies(Actor):
    """Delivers what crashed workers were about to write."""

    def live(self) -> Steps:
        zombies = self.world.zombies
        while True:
            yield
            if zombies:
                changes = zombies.pop(int(self.random.random() * len(zombies)))
                self.world.faults["zombie"] += 1
                self.world.commit(self, changes)


class Upkeep(Actor):
    """Deadlines, expiries, requests, parked jobs, counters, pruning."""

    def live(self) -> Steps:
        while True:
            yield
            for row in self.call("due", 5):
                yield from self._act(row, Elapsed())
            yield
            for row in self.call("overdue_leased", 5):
                yield
                self.call(
                    "request",
                    Request(row.id, "expire", "", "ulak", None, None, self.world.clock.now()),
                )
            yield
            for row, requests in self.call("asked", 5):
                yield from self._attend(row, requests)
            yield
            self.call("unpark", 10)
            if self.chance(0.2):
                yield
                self.call("fold_counts")
                yield
                self.call("sweep", 50)
            if self.chance(0.1):
                yield
                self.call("prune", before=self.world.clock.now() - PRUNE_AFTER_US, limit=500)
                self.world.forget_pruned()

    def _attend(self, row: JobRow, requests: list[Request]) -> Steps:
        for request in requests:
            if row.role not in FINAL:
                act = _as_act(row, request)
                if act is not None:
                    yield from self._act(row, act)
                    return
                if request.kind == "signal" and row.role != UNDOING:
                    continue
            yield
            self.call("dismiss", row.id, [(request.kind, request.name)])

    def _act(self, row: JobRow, asked: Asked) -> Steps:
        change = act(self.world, row, asked)
        if change is not None:
            yield
            self.world.commit(self, [change])


class Relay(Actor):
    """Publishes messages, at least once and in order per key."""

    def live(self) -> Steps:
        while True:
            yield
            rows = self.call("take_messages", NOBODY, 8, hold_us=20 * SECOND)
            yield
            settled = []
            for row in rows:
                if not self.world.is_closing and self.chance(0.1):
                    is_dead = row.tries >= 2
                    if is_dead:
                        self.world.out_of_order.add(row.message.key)
                    state, again = DEAD if is_dead else PENDING, self.world.clock.now() + SECOND
                    settled.append(Settled(row.message, NOBODY, state, again))
                else:
                    in_order = row.message.key not in self.world.out_of_order
                    self.world.watch.published(row.message, in_order=in_order)
                    settled.append(Settled(row.message, NOBODY, SENT))
            if rows:
                self.call("settle_messages", settled)
            if self.chance(0.2):
                yield
                for dead in self.call("deliveries", DeliveryFilter(states=GAVE_UP), limit=5):
                    yield
                    self.call("redrive_message", dead, give_up_at=None, actor="olga", note="")


class Steersman(Actor):
    """Pauses and resumes, and weighs tenants; in the end nothing stays paused."""

    def live(self) -> Steps:
        while True:
            yield
            kind, name = PAUSABLE[int(self.random.random() * len(PAUSABLE))]
            if self.world.is_closing or self.chance(0.6):
                self.call("resume", kind, name, actor="op", note="")
            elif self.chance(0.9):
                ends = self.world.clock.now() + int(self.random.random() * 600 * SECOND)
                until = ends if self.chance(0.8) else None
                self.call("pause", kind, name, until=until, actor="op", note="")
            else:
                weight = int(self.random.random() * 3) or None
                self.call("weigh", "acme", weight, actor="op", note="")


class Operator(Actor):
    """Submits, decides, releases, retries, cancels and signals at random."""

    def live(self) -> Steps:
        world = self.world
        names = sorted(world.flows)
        while True:
            yield
            is_open = not world.is_closing and len(world.open_jobs) < MOST_OPEN_JOBS
            if is_open and self.chance(0.6):
                flow = names[int(self.random.random() * len(names))]
                key = self.random.randrange(KEYS) if self.chance(0.7) else None
                jobs = [new_job(world, flow, key)]
                if self.chance(0.2):
                    jobs.append(new_job(world, flow, self.random.randrange(KEYS)))
                self.call("add", jobs)
                continue
            row = world.some_job()
            if row is None:
                continue
            asked = self._wish(row)
            if asked is None:
                continue
            yield
            if row.leased_by is not None:
                if isinstance(asked, Cancel | Signal):
                    kind = "cancel" if isinstance(asked, Cancel) else "signal"
                    name = asked.name if isinstance(asked, Signal) else ""
                    request = Request(row.id, kind, name, "op", None, None, world.clock.now())
                    self.call("request", request)
                continue
            change = act(world, row, asked)
            if change is not None:
                world.commit(self, [change])

    def _wish(self, row: JobRow) -> Asked | None:
        """Draw what to ask of a job: mostly something that it waits for."""
        world = self.world
        place = world.flows[row.flow].table.places[row.state]
        if place.gate is not None and row.role == HELD:
            choices = list(place.gate.choices)
            choice = "approve" if world.is_closing else choices[int(self.random.random() * 4)]
            return Decide("op", choice=choice, data=b"1")
        if row.role == HELD:
            return Release("op") if world.is_closing or self.chance(0.8) else Cancel("op")
        if row.role == WAITING and row.awaits is not None and self.chance(0.6):
            return Signal("op", name=row.awaits, data=b"1")
        if world.is_closing:
            return None
        if row.role == FAILED and self.chance(0.5):
            return Retry("op")
        if row.role in CLAIMABLE and self.chance(0.1):
            return Signal("op", name="paid")
        # A job that nobody has leased yet is the one that may be leased before the act arrives.
        is_next = row.role in CLAIMABLE and row.leased_by is None
        return Cancel("op") if self.chance(0.5 if is_next else 0.1) else None


def new_job(world: World, flow_name: str, key: int | None) -> NewJob:
    """Make a submission; its key is one of a few, so that they meet."""
    flow = world.flows[flow_name]
    draw = world.random.random()
    facts = {"key": f"c{int(draw * 1000) % CUSTOMERS}", "cost": int(draw * 100) % 5 + 1}
    return begin(
        flow,
        Payload(b"{}", 1),
        Submission(
            tenant=TENANTS[draw < 0.3],
            submitter="op" if draw < 0.1 else "ann",
            priority=int(draw * 4),
            after=timedelta(seconds=draw * 30) if draw < 0.2 else None,
            # Short enough that some run out while they are leased.
            expires=timedelta(seconds=1 + (draw - 0.93) * 1500) if draw > 0.93 else None,
            dedup_key=None if key is None or flow.dedup is None else f"k{key}",
            keys=keys_of(flow, facts) if flow.table.keyed else None,
        ),
        world.clock.now(),
        job_id=world.new_job_id(),
        commit_id=world.new_commit_id(),
    )


def act(world: World, row: JobRow, asked: Asked) -> Change | None:
    """Return the change that an act makes on a job as it was read, if the rules allow it."""
    try:
        return answer(
            world.flows[row.flow], row, asked, world.clock.now(), commit_id=world.new_commit_id()
        )
    except TransitionNotAllowed:
        return None


def _as_act(row: JobRow, request: Request) -> Asked | None:
    if request.kind == "cancel" and row.undo_to is None:
        return Cancel(request.actor)
    if request.kind == "expire" and row.undo_to is None:
        return Elapsed()
    if request.kind == "signal" and row.role == WAITING and row.awaits == request.name:
        return Signal(request.actor, name=request.name, data=request.data)
    return None
