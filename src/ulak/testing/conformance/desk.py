"""The desk of the suite: makes jobs, runs and acts through the core, as an engine does."""

from __future__ import annotations

import itertools
import json
import os
import threading
import time
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, TypeVar

import pytest

from ulak.clock import Instant, ManualClock, micros
from ulak.core.acts import answer
from ulak.core.change import Change, Committed, Receipt
from ulak.core.decide import RunFacts, decide
from ulak.core.flow import Flow
from ulak.core.intake import Submission, begin, keys_of
from ulak.core.job import Event, JobRow, Message, NewJob, Payload, Request, lane_before
from ulak.core.outcome import Asked, Cancel, Elapsed, Finished, Left, Outcome
from ulak.core.table import kept_entries
from ulak.errors import Contended
from ulak.ids import RandomBytes
from ulak.store.protocol import Claim, Claimed, ClaimRequest, Store, Want
from ulak.testing.conformance.flows import LINE

T = TypeVar("T")

LEASE = timedelta(seconds=30)
PATIENCE_S = 120.0


@dataclass(frozen=True, slots=True)
class Reopen:
    """How the store under test is opened once more, here or in a child.

    `factory(argument)` answers a store that is not open yet and tells the same time as the
    fixture `store` does until its clock is turned. Both travel to a child by pickle.
    """

    factory: Callable[[str], Store]
    argument: str

    def __call__(self) -> Store:
        return self.factory(self.argument)


class Suite:
    """What every class of the suite has: a desk over a fresh store."""

    @pytest.fixture
    def desk(self, store: Store) -> Desk:
        return Desk(store)


class Desk:
    """Short words for what the tests do all the time."""

    def __init__(self, store: Store, random_bytes: RandomBytes = os.urandom) -> None:
        self.store = store
        self._random_bytes = random_bytes
        self._numbers = itertools.count(1)

    @property
    def now(self) -> Instant:
        return self.store.clock.now()

    def turn(self, **span: float) -> Instant:
        """Turn the store's clock forward, by the arguments of `timedelta`."""
        clock = self.store.clock
        assert isinstance(clock, ManualClock), "the suite needs a store on a ManualClock"
        return clock.advance(timedelta(**span))

    # --- jobs -------------------------------------------------------------------

    def new(self, flow: Flow[Any] = LINE, *, payload: bytes = b"null", **submission: Any) -> NewJob:
        """Make a job without storing it."""
        if flow.table.keyed:
            submission["keys"] = keys_of(flow, json.loads(payload))
        return begin(
            flow, Payload(payload, 1), Submission(**submission), self.now,
            job_id=self._id(), commit_id=os.urandom(16),
        )  # fmt: skip

    def _id(self) -> bytes:
        """Ids rise in the order of submission, so that a test can say which job is older."""
        return next(self._numbers).to_bytes(8, "big") + self._random_bytes(8)

    def submit(self, flow: Flow[Any] = LINE, **submission: Any) -> JobRow:
        """Store one job."""
        return self.submit_many(1, flow, **submission)[0]

    def submit_many(self, n: int, flow: Flow[Any] = LINE, **submission: Any) -> list[JobRow]:
        """Store so many jobs."""
        added = self.store.add([self.new(flow, **submission) for _ in range(n)])
        assert all(a.created for a in added)
        return [a.row for a in added]

    def job(self, job_id: bytes) -> JobRow:
        """Read a job that must be there."""
        row = self.store.find_job(job_id)
        assert row is not None
        return row

    def kinds(self, job_id: bytes) -> list[str]:
        """Read the kinds of the events of a job, in order."""
        return [event.kind for event in self.store.trail(job_id)]

    def jobs(self) -> list[JobRow]:
        """Read every job."""
        rows: list[JobRow] = []
        while page := self.store.scan_jobs(after=rows[-1].id if rows else b""):
            rows += page
        return rows

    def submit_keyed(self, key: str, flow: Flow[Any], *, cost: int = 1, **more: Any) -> JobRow:
        """Store one job whose payload says its key and its cost."""
        payload = json.dumps({"key": key, "cost": cost}).encode()
        return self.submit(flow, payload=payload, **more)

    def declare(self, *flows: Flow[Any]) -> None:
        """Take over the limits and rates of flows, as an engine does when it opens."""
        for flow in flows:
            self.store.declare(flow.table.limits, flow.table.rates)

    # --- workers ----------------------------------------------------------------

    def hire(self, *workers: str, lease: timedelta = LEASE) -> None:
        """Register workers."""
        for worker in workers:
            self.store.register(worker, lease_us=micros(lease), lanes=["any"], about="a test")

    def look(
        self, worker: str = "w", places: int = 1, flows: Iterable[Flow[Any]] = (LINE,), **more: Any
    ) -> Claimed:
        """Claim and answer everything that the claim saw."""
        return self.store.claim(claim_request(worker, places, flows, **more))

    def claim(
        self, worker: str = "w", places: int = 1, flow: Flow[Any] = LINE, **more: Any
    ) -> list[Claim]:
        """Claim jobs of one flow."""
        return self.look(worker, places, (flow,), **more).claims

    def lease(self, flow: Flow[Any] = LINE, *, worker: str = "w") -> JobRow:
        """Claim the one job that is to be had."""
        (claim,) = self.claim(worker, 1, flow)
        return claim.row

    def leased(self, n: int, flow: Flow[Any] = LINE, *, worker: str = "w") -> list[JobRow]:
        """Submit so many jobs and lease them to a worker that is hired for it."""
        self.submit_many(n, flow)
        self.hire(worker)
        rows = [claim.row for claim in self.claim(worker, n, flow)]
        assert len(rows) == n
        return rows

    # --- changes ----------------------------------------------------------------

    def end(
        self,
        row: JobRow,
        outcome: Outcome | None = None,
        *,
        flow: Flow[Any] = LINE,
        keep: bool = False,
        asked: Cancel | Elapsed | None = None,
    ) -> Change:
        """Decide the end of a run of a leased job."""
        assert row.leased_by is not None
        facts = RunFacts(
            row.leased_by, row.leased_at or self.now, may_keep=lambda place: keep, asked=asked
        )
        return decide(
            flow, row, outcome or Finished(), self.now, facts=facts, commit_id=os.urandom(16)
        )

    def act(self, row: JobRow, asked: Asked, *, flow: Flow[Any] = LINE) -> Change:
        """Decide what an operator or the clock does."""
        change = answer(flow, row, asked, self.now, commit_id=os.urandom(16))
        assert change is not None
        return change

    def commit(self, change: Change) -> Receipt:
        """Commit one change."""
        (receipt,) = self.store.commit([change])
        return receipt

    def write(self, *changes: Change) -> list[JobRow]:
        """Commit changes that nobody may refuse, and answer the rows as they are stored."""
        receipts = self.store.commit(changes)
        assert all(isinstance(receipt, Committed) for receipt in receipts), receipts
        return [self.job(change.row.id) for change in changes]

    def finish(self, row: JobRow, *, flow: Flow[Any] = LINE) -> JobRow:
        """Write the end of a run that went well."""
        return self.write(self.end(row, flow=flow))[0]

    def emit(self, row: JobRow, *keys: str, data: bytes = b"{}") -> Change:
        """Decide the end of a run that leaves a message for each of these keys."""
        messages = tuple(
            Message(row.id, row.seq + 1, n, key, "topic", data, self.now)
            for n, key in enumerate(keys)
        )
        return self.end(row, Finished(Left(messages=messages)))

    def ask(self, row: JobRow, kind: str = "cancel", name: str = "", **more: Any) -> bool:
        """Ask something of a job."""
        facts: dict[str, Any] = {"actor": "ada", "note": None, "data": None, "at": self.now}
        return self.store.request(Request(row.id, kind, name, **{**facts, **more}))


def in_lane_before(row: JobRow) -> JobRow:
    """Return a job as the release before stored it, in a lane that names no stage."""
    return row._replace(lane=lane_before(row.lane))


def claim_request(
    worker: str,
    places: int,
    flows: Iterable[Flow[Any]],
    *,
    suspects: bool = True,
    ageing: timedelta = timedelta(0),
) -> ClaimRequest:
    """Ask for jobs of these flows, all from one pool, by the lanes that a worker asks for."""
    flows = tuple(flows)
    named = {lane for flow in flows for lane in flow.table.lanes}
    lanes = tuple(sorted(named | set(map(lane_before, named))))
    entries = {
        (flow.name, flow.version, state): busy
        for flow in flows
        for state, busy in flow.table.entries.items()
    }
    return ClaimRequest(
        worker, (Want(lanes, places),), entries, suspects, micros(ageing), kept_entries(flows)
    )


def at_once(*acts: Callable[[], T]) -> list[T]:
    """Do each in a thread of its own, all of which wait for each other first."""
    barrier = threading.Barrier(len(acts))

    def go(act: Callable[[], T]) -> T:
        barrier.wait()
        return act()

    with ThreadPoolExecutor(len(acts)) as pool:
        return list(pool.map(go, acts))


def patiently(call: Callable[..., T], *arguments: Any) -> T:
    """Call until nobody is in the way: a store may say so instead of waiting."""
    give_up = time.monotonic() + PATIENCE_S
    while True:
        try:
            return call(*arguments)
        except Contended:
            if time.monotonic() > give_up:
                raise


def is_noticed(store: Store) -> bool:
    """Tell whether a store hears soon that another has committed: the ring may be on its way."""
    if not store.features.shared:
        return store.changed_elsewhere()
    deadline = time.monotonic() + PATIENCE_S
    while not store.changed_elsewhere():
        if time.monotonic() > deadline:
            return False
        time.sleep(0.005)
    return True


def snapshot(desk: Desk, job_ids: Sequence[bytes]) -> list[object]:
    """Everything that a refused change must have left as it was."""
    store = desk.store
    parts: list[object] = [store.counts(), store.slots(), sorted(store.scan_keys())]
    parts += [store.proof_heads(), len(desk.jobs())]
    for job_id in job_ids:
        events: list[Event] = store.trail(job_id)
        parts += [store.find_job(job_id), events, store.find_results(job_id)]
        parts += [store.scan_messages(job_id), store.pending_requests(job_id)]
    return parts
