"""Any history: a seeded walk over every verb, and what must hold at each stop."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable, Sequence
from datetime import timedelta
from typing import Any

from ulak.core.acts import answer
from ulak.core.change import Change
from ulak.core.flow import Flow
from ulak.core.job import JobRow, held_slot
from ulak.core.lifecycle import CLAIMABLE, FINAL, UNDOING, WAITING
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
    Outcome,
    Passed,
    Raised,
    Release,
    Retry,
    Signal,
)
from ulak.core.policy import LimitTerms, RateTerms
from ulak.errors import TransitionNotAllowed
from ulak.testing.conformance.desk import Desk
from ulak.testing.conformance.flows import (
    EVERY,
    KEYED_LIMIT,
    NARROW_LIMIT,
    RATED_RATE,
    TIGHT_LIMIT,
    UNSTEERED,
)

OUTCOMES: tuple[Outcome, ...] = (
    Finished(),
    Finished(Left(result=b"1")),
    Raised("boom", "it broke"),
    Raised("broken", "for good", permanent=True),
    Held("odd", "look at this"),
    Deferred(timedelta(seconds=3), True, "later"),
    GivenBack(),
)
ACTS: tuple[Asked, ...] = (
    Cancel("ada"),
    Release("ada"),
    Retry("ada"),
    Decide("ada", choice="approve"),
    Signal("ada", name="paid"),
)


PAUSABLE = (("queue", "line"), ("flow", "shared"), ("key", "1"), ("key", "2"))


class History:
    """Draws verbs and outcomes from a seed. Rows may be stale: guards have to notice."""

    def __init__(
        self,
        desk: Desk,
        seed: int,
        *,
        steers: bool | None = None,
        flows: Sequence[Flow[Any]] | None = None,
    ) -> None:
        steers = desk.store.features.flow_control if steers is None else steers
        self.desk = desk
        self.draw = random.Random(seed)
        self.steers = steers
        self.every = flows or (EVERY if steers else UNSTEERED)
        self.flows: dict[str, Flow[Any]] = {flow.name: flow for flow in self.every}
        self.leased: list[JobRow] = []
        desk.declare(*self.every)
        desk.store.declare({TIGHT_LIMIT: LimitTerms(2), NARROW_LIMIT: LimitTerms(1)})

    def go_on(self, steps: int) -> None:
        """Take so many steps."""
        verbs: list[Callable[[], None]] = [
            self._submit, self._submit, self._claim, self._claim, self._end, self._end, self._end,
            self._act, self._act, self._wake, self._turn, self._ask, self._keep_house,
        ]  # fmt: skip
        if self.steers:
            verbs.append(self._steer)
        for _ in range(steps):
            self.draw.choice(verbs)()

    def check(self) -> None:
        """Hold every table to every other."""
        desk, store = self.desk, self.desk.store
        rows = desk.jobs()
        for row in rows:
            trail = store.trail(row.id)
            assert [event.seq for event in trail] == list(range(1, row.seq + 1))
            assert trail[-1].to_state == row.state
            assert row.requests == len(store.pending_requests(row.id))
            assert row.parked_on is None or (row.leased_by is None and (row.slot or row.rate))
            # Every job has a way on: a worker, a date, a signal or a person.
            assert row.role not in CLAIMABLE or row.lane
            assert row.role != WAITING or row.awaits or row.wake_at
            if row.role in FINAL:
                assert (row.lane, row.leased_by, row.parked_on) == ("", None, None)
        held = [slot.job_id for slot in store.slots() if slot.job_id is not None]
        assert len(set(held)) == len(held)
        holding = {r.id for r in rows if held_slot(r.slot, leased=r.leased_by is not None)}
        assert set(held) == holding
        assert {slot.job_id for slot in store.slots() if slot.of_state} == {
            row.id for row in rows if held_slot(row.slot, leased=False)
        }
        workers = {worker.id for worker in store.workers()}
        assert {row.leased_by for row in rows if row.leased_by} <= workers
        keys = [(key.tenant, key.flow, key.key) for key in store.scan_keys()]
        assert len(set(keys)) == len(keys)
        assert store.scan_orphans() == []

    def _submit(self) -> None:
        flow = self.draw.choice(self.every)
        key = self.draw.choice([None, None, "k1", "k2"])
        payload = b'{"key": "%d", "cost": %d}' % (self.draw.randrange(3), self.draw.randrange(1, 7))
        tenant = self.draw.choice(["", "acme", "zoo"])
        self.desk.store.add(
            [
                self.desk.new(flow, payload=payload, dedup_key=key, priority=n % 4, tenant=tenant)
                for n in range(3)
            ]
        )

    def _claim(self) -> None:
        worker = f"w{self.draw.randrange(3)}"
        if worker not in {w.id for w in self.desk.store.workers()}:
            self.desk.hire(worker)
        ageing = timedelta(seconds=self.draw.choice([0, 0, 30]) if self.steers else 0)
        seen = self.desk.look(worker, self.draw.randrange(1, 6), self.every, ageing=ageing)
        self.leased += [claim.row for claim in seen.claims]

    def _end(self) -> None:
        self.draw.shuffle(self.leased)
        ending = {row.id: row for row in self.leased[:4]}
        self.leased = [row for row in self.leased if row not in ending.values()]
        changes = [self._end_of(row) for row in ending.values()]
        self.desk.store.commit(changes)
        if self.draw.random() < 0.2:
            self.desk.store.commit(changes)
        for change in changes:
            row = self.desk.store.find_job(change.row.id)
            if row is not None and row.leased_by is not None and row.token == change.token:
                self.leased.append(row)

    def _end_of(self, row: JobRow) -> Change:
        keep = self.draw.random() < 0.5
        outcome, flow = self.draw.choice(OUTCOMES), self.flows[row.flow]
        is_before = flow.table.places[row.state].enters is not None and row.role != UNDOING
        if is_before and isinstance(outcome, Finished):
            outcome = Passed()
        return self.desk.end(row, outcome, flow=flow, keep=keep)

    def _act(self) -> None:
        rows = self.desk.jobs()
        if not rows:
            return
        row = self.draw.choice(rows)
        if self.draw.random() < 0.2:
            row = row._replace(version=row.version - 1)
        try:
            change = answer(
                self.flows[row.flow], row, self.draw.choice(ACTS), self.desk.now,
                commit_id=self.draw.randbytes(16),
            )  # fmt: skip
        except TransitionNotAllowed:
            return
        if change is not None:
            self.desk.store.commit([change])

    def _wake(self) -> None:
        changes = [
            answer(
                self.flows[row.flow], row, Elapsed(), self.desk.now,
                commit_id=self.draw.randbytes(16),
            )
            for row in self.desk.store.due(5)
        ]  # fmt: skip
        self.desk.store.commit([change for change in changes if change is not None])

    def _turn(self) -> None:
        self.desk.turn(seconds=self.draw.choice([1, 5, 20, 40, 3000]))

    def _ask(self) -> None:
        rows = self.desk.jobs()
        if rows:
            row = self.draw.choice(rows)
            self.desk.ask(row, self.draw.choice(["cancel", "expire"]))
            if self.draw.random() < 0.5:
                self.desk.store.dismiss(row.id, [("cancel", "")])

    def _keep_house(self) -> None:
        store = self.desk.store
        store.unpark(self.draw.randrange(3))
        store.prune(before=self.desk.now - 3_600_000_000, limit=1000)
        store.declare({TIGHT_LIMIT: LimitTerms(self.draw.randrange(1, 4))})
        if self.draw.random() < 0.3:
            store.unregister(f"w{self.draw.randrange(3)}")

    def _steer(self) -> None:
        """Do what operators do to limits, rates, pauses and weights."""
        store, draw, now = self.desk.store, self.draw, self.desk.now
        kind, name = draw.choice(PAUSABLE)
        until = None if draw.random() < 0.3 else now + draw.randrange(1, 30) * 1_000_000
        terms = RateTerms(draw.randrange(1, 9), 1_000_000, draw.randrange(1, 9))
        acts: list[Callable[[], object]] = [
            lambda: store.pause(kind, name, until=until, actor="ada", note=""),
            lambda: store.resume(kind, name, actor="ada", note="go"),
            lambda: store.change_limit(KEYED_LIMIT, draw.randrange(4), actor="ada", note=""),
            lambda: store.change_limit(KEYED_LIMIT, None, actor="ada", note=""),
            lambda: store.change_rate(RATED_RATE, terms, actor="ada", note="more"),
            lambda: store.change_rate(RATED_RATE, None, actor="ada", note=""),
            lambda: store.weigh("acme", draw.choice([None, 2, 3]), actor="ada", note=""),
            lambda: store.sweep(draw.randrange(1, 9)),
            lambda: self.desk.declare(*self.every),
        ]
        draw.choice(acts)()


def recount(desk: Desk, flow: str) -> dict[tuple[str, str], int]:
    """Count the jobs of a flow one by one."""
    return dict(Counter((row.state, str(row.role)) for row in desk.jobs() if row.flow == flow))
