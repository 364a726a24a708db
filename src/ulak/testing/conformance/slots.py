"""Slots: a limited stage is never run by more than its limit at once."""

from __future__ import annotations

import threading
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta

import pytest

from ulak.core.change import Committed, SlotTaken
from ulak.core.outcome import Cancel, Raised
from ulak.core.policy import LimitTerms
from ulak.store.protocol import SlotRow, Store
from ulak.testing.conformance.desk import Desk, Suite, patiently, snapshot
from ulak.testing.conformance.flows import LINE, NARROW, NARROW_LIMIT, TIGHT, TIGHT_LIMIT


class TestSlots(Suite):
    """A slot has one job, and whoever finds none is parked until one is free."""

    @pytest.fixture
    def desk(self, store: Store) -> Desk:
        desk = Desk(store)
        desk.store.declare({TIGHT_LIMIT: LimitTerms(1), NARROW_LIMIT: LimitTerms(1)})
        desk.hire("w", "other", lease=timedelta(hours=1))
        return desk

    @pytest.mark.shows("E-29")
    def test_a_claim_takes_a_slot_and_parks_whoever_finds_none(self, desk: Desk) -> None:
        first, second = desk.submit_many(2, TIGHT)
        assert [c.row.id for c in desk.claim("w", 5, TIGHT)] == [first.id]
        assert _held(desk, TIGHT_LIMIT) == [first.id]
        parked = desk.job(second.id)
        assert parked == second._replace(parked_on=TIGHT_LIMIT)
        assert desk.claim("other", 5, TIGHT) == []
        assert desk.kinds(second.id) == ["submitted"]

    @pytest.mark.shows("E-29")
    def test_parked_jobs_cost_a_claim_no_places(self, desk: Desk) -> None:
        desk.submit_many(5, TIGHT, priority=0)
        desk.submit_many(5, LINE)
        flows = [c.row.flow for c in desk.look("w", 4, (TIGHT, LINE)).claims]
        assert flows == ["tight", "line", "line", "line"]

    @pytest.mark.shows("E-29")
    def test_the_commit_that_frees_a_slot_unparks_by_priority_and_age(self, desk: Desk) -> None:
        calm = desk.submit(TIGHT, priority=2)
        old = desk.submit(TIGHT, priority=1)
        desk.turn(seconds=1)
        young = desk.submit(TIGHT, priority=1)
        urgent = desk.submit(TIGHT, priority=0)
        order: list[bytes] = []
        (claim,) = desk.claim("w", 9, TIGHT)
        leased = claim.row
        assert leased.id == urgent.id
        for _ in range(3):
            desk.finish(leased, flow=TIGHT)
            unparked = [row.id for row in desk.jobs() if row.lane and row.parked_on is None]
            (claim,) = desk.claim("w", 9, TIGHT)
            assert unparked == [claim.row.id]
            leased = claim.row
            order.append(leased.id)
        assert order == [old.id, young.id, calm.id]

    @pytest.mark.shows("E-29")
    def test_a_slot_is_freed_by_a_retry_too(self, desk: Desk) -> None:
        first, second = desk.submit_many(2, TIGHT)
        leased = desk.claim("w", 5, TIGHT)[0].row
        assert leased.id == first.id
        desk.write(desk.end(leased, Raised("boom", "it broke"), flow=TIGHT))
        assert _held(desk, TIGHT_LIMIT) == []
        assert desk.lease(TIGHT).id == second.id

    @pytest.mark.shows("E-29")
    def test_a_lapse_frees_the_slot_and_passes_it_on(self, desk: Desk) -> None:
        desk.hire("gone")
        first = desk.submit(TIGHT)
        assert desk.lease(TIGHT, worker="gone").id == first.id
        urgent = desk.submit(TIGHT, priority=0)
        assert desk.claim("w", 5, TIGHT) == []
        desk.turn(seconds=30)
        seen = desk.look("w", 5, (TIGHT,))
        assert seen.unparked == 1
        assert [c.row.id for c in seen.claims] == [urgent.id]
        assert _held(desk, TIGHT_LIMIT) == [urgent.id]
        assert desk.job(first.id).parked_on == TIGHT_LIMIT

    @pytest.mark.shows("E-28", "E-29")
    def test_a_kept_lease_takes_the_slot_of_its_next_stage_in_the_same_commit(
        self, desk: Desk
    ) -> None:
        (row,) = desk.leased(1, NARROW)
        change = desk.end(row, flow=NARROW, keep=True)
        assert change.takes_slot == NARROW_LIMIT
        (kept,) = desk.write(change)
        assert _held(desk, NARROW_LIMIT) == [row.id]
        desk.finish(kept, flow=NARROW)
        assert _held(desk, NARROW_LIMIT) == []

    @pytest.mark.shows("E-17", "E-28")
    def test_a_kept_lease_that_finds_no_slot_writes_nothing(self, desk: Desk) -> None:
        one, two = desk.leased(2, NARROW)
        desk.write(desk.end(one, flow=NARROW, keep=True))
        before = snapshot(desk, [one.id, two.id])
        assert desk.commit(desk.end(two, flow=NARROW, keep=True)) == SlotTaken(NARROW_LIMIT)
        assert snapshot(desk, [one.id, two.id]) == before
        (moved,) = desk.write(desk.end(two, flow=NARROW))
        assert moved.state == "tight"
        assert desk.claim("w", 5, NARROW) == []

    @pytest.mark.shows("E-29")
    def test_of_two_changes_in_one_batch_that_want_the_last_slot_one_gets_it(
        self, desk: Desk
    ) -> None:
        rows = desk.leased(2, NARROW)
        changes = [desk.end(row, flow=NARROW, keep=True) for row in rows]
        receipts = desk.store.commit(changes)
        assert sorted(type(r).__name__ for r in receipts) == ["Committed", "SlotTaken"]
        assert len(_held(desk, NARROW_LIMIT)) == 1
        winner = next(n for n, r in enumerate(receipts) if isinstance(r, Committed))
        assert _held(desk, NARROW_LIMIT) == [rows[winner].id]
        assert desk.job(rows[1 - winner].id) == rows[1 - winner]

    @pytest.mark.shows("E-29")
    def test_a_slot_is_never_taken_twice_at_once(self, desk: Desk) -> None:
        desk.store.declare({TIGHT_LIMIT: LimitTerms(3)})
        jobs = desk.submit_many(60, TIGHT)
        running: Counter[str] = Counter()
        most, lock, done = [0], threading.Lock(), set[bytes]()

        def work(worker: str) -> None:
            desk.hire(worker, lease=timedelta(hours=1))
            while len(done) < len(jobs):
                for claim in desk.claim(worker, 2, TIGHT):
                    with lock:
                        running[TIGHT_LIMIT] += 1
                        most[0] = max(most[0], running[TIGHT_LIMIT])
                    assert claim.row.id in _held(desk, TIGHT_LIMIT)
                    change = desk.end(claim.row, flow=TIGHT)
                    with lock:
                        running[TIGHT_LIMIT] -= 1
                        done.add(claim.row.id)
                    patiently(desk.write, change)

        with ThreadPoolExecutor(8) as pool:
            list(pool.map(work, [f"w{n}" for n in range(8)]))
        assert 1 <= most[0] <= 3
        assert {row.state for row in desk.jobs()} == {"done"}
        assert _held(desk, TIGHT_LIMIT) == []

    @pytest.mark.shows("E-29")
    def test_a_lowered_limit_closes_slots_and_drains(self, desk: Desk) -> None:
        desk.store.declare({TIGHT_LIMIT: LimitTerms(3)})
        desk.submit_many(5, TIGHT)
        running = [c.row for c in desk.claim("w", 5, TIGHT)]
        assert len(running) == 3
        desk.store.declare({TIGHT_LIMIT: LimitTerms(1)})
        assert _open(desk, TIGHT_LIMIT) == 1
        assert sorted(_held(desk, TIGHT_LIMIT)) == sorted(row.id for row in running)
        for row in running[:2]:
            desk.finish(row, flow=TIGHT)
            desk.store.unpark(9)
            assert desk.claim("w", 5, TIGHT) == []
        desk.finish(running[2], flow=TIGHT)
        desk.store.unpark(9)
        assert len(desk.claim("w", 5, TIGHT)) == 1

    @pytest.mark.shows("E-29")
    def test_a_raised_limit_opens_slots_and_upkeep_fills_them(self, desk: Desk) -> None:
        desk.submit_many(5, TIGHT)
        assert len(desk.claim("w", 5, TIGHT)) == 1
        desk.store.declare({TIGHT_LIMIT: LimitTerms(3)})
        assert _open(desk, TIGHT_LIMIT) == 3
        desk.store.unpark(9)
        assert len(desk.claim("w", 5, TIGHT)) == 2
        desk.store.declare({TIGHT_LIMIT: LimitTerms(1)})
        desk.store.declare({TIGHT_LIMIT: LimitTerms(2)})
        assert _open(desk, TIGHT_LIMIT) == 2

    def test_setting_one_limit_leaves_the_others_as_they_are(self, desk: Desk) -> None:
        desk.store.declare({TIGHT_LIMIT: LimitTerms(2)})
        desk.store.declare({})
        assert [(s.limit, s.closed) for s in desk.store.slots() if not s.closed] == [
            (NARROW_LIMIT, 0),
            (TIGHT_LIMIT, 0),
            (TIGHT_LIMIT, 0),
        ]
        assert {type(slot) for slot in desk.store.slots()} == {SlotRow}

    @pytest.mark.shows("E-29")
    def test_upkeep_unparks_no_more_jobs_than_there_are_slots(self, desk: Desk) -> None:
        desk.store.declare({TIGHT_LIMIT: LimitTerms(0)})
        jobs = desk.submit_many(4, TIGHT)
        assert desk.claim("w", 9, TIGHT) == []
        assert desk.store.unpark(9) == 0
        desk.store.declare({TIGHT_LIMIT: LimitTerms(2)})
        desk.store.unpark(9)
        free = [row.id for row in desk.jobs() if row.parked_on is None]
        assert free == [jobs[0].id, jobs[1].id]

    @pytest.mark.shows("E-39")
    def test_a_parked_job_may_be_cancelled(self, desk: Desk) -> None:
        desk.submit_many(2, TIGHT)
        desk.claim("w", 5, TIGHT)
        (parked,) = (row for row in desk.jobs() if row.parked_on)
        (ended,) = desk.write(desk.act(parked, Cancel("ada"), flow=TIGHT))
        assert (ended.role, ended.parked_on) == ("cancelled", None)


def _held(desk: Desk, limit: str) -> list[bytes]:
    held = [s.job_id for s in desk.store.slots() if s.limit == limit and s.job_id is not None]
    assert len(set(held)) == len(held)
    return held


def _open(desk: Desk, limit: str) -> int:
    return sum(slot.limit == limit and not slot.closed for slot in desk.store.slots())
