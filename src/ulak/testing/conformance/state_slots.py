"""Slots of a state: never more jobs in a busy state than its limit says, leased or not."""

from __future__ import annotations

import json
import os
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta

import pytest

from ulak.core.acts import taken
from ulak.core.change import Committed, SlotTaken
from ulak.core.intake import keys_of
from ulak.core.job import JobRow
from ulak.core.lifecycle import UNDOING
from ulak.core.migration import Migration, migrated
from ulak.core.outcome import (
    Cancel,
    Deferred,
    Elapsed,
    Expire,
    Finished,
    GivenBack,
    Held,
    Left,
    Outcome,
    Parked,
    Passed,
    Raised,
    Release,
    Retry,
)
from ulak.store.protocol import Store
from ulak.testing.conformance.desk import LEASE, Desk, Suite, patiently
from ulak.testing.conformance.flows import (
    OVEN,
    OVEN_LIMIT,
    UNLIMITED_OVEN,
    WEIGHED,
    WEIGHED_LIMIT,
)

SLOT = f"{OVEN_LIMIT}/a"


class TestStateSlots(Suite):
    """The slot of a state is taken by the commit that enters it and freed by the one that leaves
    it."""

    @pytest.fixture
    def desk(self, store: Store) -> Desk:
        if not store.features.flow_control:
            pytest.skip("the store says that it has no flow control")
        desk = Desk(store)
        desk.declare(OVEN)
        desk.hire("w", "other", lease=timedelta(hours=1))
        return desk

    @pytest.mark.shows("E-65", "E-3")
    def test_the_claim_that_enters_the_state_takes_the_slot_or_parks_the_job(
        self, desk: Desk
    ) -> None:
        first, second, third = (desk.submit_keyed("a", OVEN) for _ in range(3))
        other = desk.submit_keyed("b", OVEN)
        claims = desk.claim("w", 9, OVEN)
        assert {c.row.id for c in claims} == {first.id, second.id, other.id}
        assert all(desk.job(c.row.id) == c.row for c in claims)
        assert {c.row.state for c in claims} == {"baking"}
        assert _holders(desk) == {first.id, second.id}
        assert all(slot.of_state for slot in desk.store.slots(SLOT))
        parked = desk.job(third.id)
        assert (parked.state, parked.parked_on) == ("raw", SLOT)

    @pytest.mark.shows("E-65", "E-3")
    @pytest.mark.parametrize(
        "outcome",
        [
            Raised("down", "it broke"),
            Deferred(timedelta(seconds=5), False, "not yet", None),
            GivenBack(),
        ],
        ids=["a retry", "RetryLater", "a drain"],
    )
    def test_a_run_that_ends_without_a_move_keeps_the_slot(
        self, desk: Desk, outcome: Outcome
    ) -> None:
        first, _, third = _fill(desk)
        (row,) = desk.write(desk.end(first, outcome, flow=OVEN))
        assert (row.state, row.leased_by) == ("baking", None)
        assert first.id in _holders(desk)
        assert desk.job(third.id).parked_on == SLOT
        desk.turn(minutes=1)
        (again,) = desk.claim("other", 9, OVEN)
        assert again.row.id == first.id
        assert _holders(desk, OVEN_LIMIT) == set()
        assert first.id in _holders(desk)

    @pytest.mark.shows("E-65", "E-29")
    def test_a_lapse_keeps_the_slot_and_the_next_claim_runs_from_there(self, desk: Desk) -> None:
        desk.hire("gone", lease=LEASE)
        first, second, third = (desk.submit_keyed("a", OVEN) for _ in range(3))
        desk.claim("gone", 9, OVEN)
        desk.turn(seconds=31)
        again = desk.claim("other", 9, OVEN)
        assert {claim.row.id for claim in again} == {first.id, second.id}
        assert _holders(desk) == {first.id, second.id}
        assert desk.job(third.id).parked_on == SLOT

    @pytest.mark.shows("E-65")
    @pytest.mark.parametrize(
        "outcome",
        [None, Held("look", "a person must"), Raised("broken", "for good", permanent=True)],
        ids=["a move", "a hold", "a failure"],
    )
    def test_the_commit_that_leaves_the_state_frees_the_slot_and_lets_one_in(
        self, desk: Desk, outcome: Outcome | None
    ) -> None:
        first, second, third = _fill(desk)
        (row,) = desk.write(desk.end(first, outcome, flow=OVEN))
        if row.role == UNDOING:  # a failure is undone first, in the state where it stands
            assert (row.state, _holders(desk)) == ("baking", {first.id, second.id})
            (undo,) = desk.claim("w", 9, OVEN)
            assert undo.row.id == first.id
            (row,) = desk.write(desk.end(undo.row, flow=OVEN))
        assert row.state != "baking"
        assert _holders(desk) == {second.id}
        assert desk.job(third.id).parked_on is None
        entered = [claim.row.id for claim in desk.claim("other", 9, OVEN) if claim.row.id != row.id]
        assert entered == [third.id]

    @pytest.mark.shows("E-65")
    @pytest.mark.parametrize("asked", [Cancel("ada"), Expire("ada")], ids=["cancel", "expire"])
    def test_an_act_on_a_job_that_nobody_has_leased_frees_it_after_the_undo(
        self, desk: Desk, asked: Cancel | Expire
    ) -> None:
        first, second, third = _fill(desk)
        (idle,) = desk.write(desk.end(first, GivenBack(), flow=OVEN))
        (undoing,) = desk.write(desk.act(idle, asked, flow=OVEN))
        assert (undoing.state, undoing.role) == ("baking", UNDOING)
        assert _holders(desk) == {first.id, second.id}
        assert desk.store.slots(SLOT)[0].of_state
        (undo,) = desk.claim("w", 9, OVEN)
        desk.write(desk.end(undo.row, flow=OVEN))
        assert _holders(desk) == {second.id}
        assert desk.job(third.id).parked_on is None

    @pytest.mark.shows("E-65")
    def test_a_paused_key_stops_a_run_in_the_state_and_no_undo(self, desk: Desk) -> None:
        first, second, _ = _fill(desk)
        rows = desk.write(*(desk.end(row, GivenBack(), flow=OVEN) for row in (first, second)))
        desk.write(desk.act(rows[0], Cancel("ada"), flow=OVEN))
        desk.store.pause("key", "a", until=None, actor="ada", note="")
        claims = desk.claim("other", 9, OVEN)
        assert [(c.row.id, c.row.role) for c in claims] == [(first.id, UNDOING)]
        assert desk.job(second.id).parked_on == "/key/a"
        assert _holders(desk) == {first.id, second.id}
        desk.store.resume("key", "a", actor="ada", note="")
        assert second.id in {claim.row.id for claim in desk.claim("other", 9, OVEN)}

    @pytest.mark.shows("E-65")
    def test_a_released_job_waits_for_a_slot_in_the_state_before(self, desk: Desk) -> None:
        first, _, third = _fill(desk)
        (held,) = desk.write(desk.end(first, Held("look", "a person must"), flow=OVEN))
        assert [c.row.id for c in desk.claim("other", 9, OVEN)] == [third.id]
        (row,) = desk.write(desk.act(held, Release("ada"), flow=OVEN))
        assert (row.state, row.slot) == ("raw", SLOT)
        assert desk.claim("other", 9, OVEN) == []
        assert desk.job(first.id).parked_on == SLOT
        assert _standing(desk) == {"a": 2}

    @pytest.mark.shows("E-65", "E-43")
    def test_the_undos_of_a_held_job_do_not_enter_the_state_again(self, desk: Desk) -> None:
        first, _, third = _fill(desk)
        (held,) = desk.write(desk.end(first, Held("look", "a person must"), flow=OVEN))
        assert [c.row.id for c in desk.claim("other", 9, OVEN)] == [third.id]
        (undoing,) = desk.write(desk.act(held, Cancel("ada"), flow=OVEN))
        assert (undoing.state, undoing.role, undoing.slot) == ("raw", UNDOING, None)
        assert _standing(desk) == {"a": 2}

    @pytest.mark.shows("E-65")
    def test_a_job_that_is_taken_by_its_id_takes_the_slot_too(self, desk: Desk) -> None:
        rows = [desk.submit_keyed("a", OVEN) for _ in range(3)]
        receipts = [
            desk.commit(taken(OVEN, row, desk.now, worker="w", commit_id=os.urandom(16)))
            for row in rows
        ]
        assert [type(receipt) for receipt in receipts] == [Committed, Committed, SlotTaken]
        assert _holders(desk) == {rows[0].id, rows[1].id}
        assert [slot.of_state for slot in desk.store.slots(SLOT)] == [1, 1]

    @pytest.mark.shows("E-65")
    def test_a_migration_out_of_the_state_frees_the_slot(self, desk: Desk) -> None:
        first, second, third = _fill(desk)
        (idle,) = desk.write(desk.end(first, GivenBack(), flow=OVEN))
        migration = Migration(OVEN, from_version=1, states={"baking": "raw"})
        change = migrated(
            migration, idle, desk.now, actor="ada", note="", commit_id=os.urandom(16),
            keys=idle.keys,
        )  # fmt: skip
        (row,) = desk.write(change)
        assert (row.state, row.slot) == ("raw", SLOT)
        assert _holders(desk) == {second.id}
        assert desk.job(third.id).parked_on is None

    @pytest.mark.shows("E-65")
    def test_jobs_that_stand_there_when_it_is_turned_on_get_slots_and_nobody_enters(
        self, store: Store
    ) -> None:
        desk = Desk(store)
        desk.hire("w", "other", lease=timedelta(hours=1))
        keys = keys_of(OVEN, {"key": "a"})
        rows = [desk.submit(UNLIMITED_OVEN, keys=keys) for _ in range(5)]
        claims = desk.claim("w", 3, UNLIMITED_OVEN)
        idle = desk.write(desk.end(claims[0].row, GivenBack(), flow=UNLIMITED_OVEN))[0]
        desk.declare(OVEN)
        assert _holders(desk) == {claim.row.id for claim in claims}
        assert all(s.of_state for s in store.slots(SLOT) if s.job_id is not None)
        assert desk.job(idle.id).slot == f"={SLOT}"
        waiting = [desk.job(row.id) for row in rows if desk.job(row.id).state == "raw"]
        assert [row.slot for row in waiting] == [SLOT, SLOT]
        seen = [claim.row.id for claim in desk.claim("other", 9, OVEN)]
        assert seen == [idle.id]
        for row in (desk.job(claim.row.id) for claim in claims[1:]):
            desk.write(desk.end(row, flow=OVEN))
        entered = [c.row.id for c in desk.claim("other", 9, OVEN) if c.row.state == "baking"]
        assert entered == [waiting[0].id]
        assert _standing(desk) == {"a": 2}

    @pytest.mark.shows("E-65")
    def test_jobs_of_which_no_key_is_known_share_one(self, store: Store) -> None:
        desk = Desk(store)
        desk.hire("w", lease=timedelta(hours=1))
        desk.submit_many(3, UNLIMITED_OVEN)
        (claim,) = desk.claim("w", 1, UNLIMITED_OVEN)
        desk.declare(OVEN)
        desk.declare(OVEN)
        assert _holders(desk, f"{OVEN_LIMIT}/") == {claim.row.id}
        assert len(desk.claim("w", 9, OVEN)) == 1

    @pytest.mark.shows("E-65")
    def test_a_slot_whose_job_has_left_unnoticed_is_freed_by_upkeep(self, desk: Desk) -> None:
        """A worker of the release before, which knows no slots of a state, may leave one."""
        first, second, third = _fill(desk)
        change = desk.end(first, flow=OVEN)._replace(frees_slot=None)
        desk.write(change)
        assert _holders(desk) == {first.id, second.id}
        assert desk.store.sweep(10) == 1
        assert _holders(desk) == {second.id}
        desk.store.unpark(10)
        assert desk.job(third.id).parked_on is None

    @pytest.mark.shows("E-66", "E-65")
    def test_a_job_enters_after_what_is_called_before_or_is_parked_where_it_stands(
        self, desk: Desk
    ) -> None:
        desk.declare(WEIGHED)
        jobs = [desk.finish(row, flow=WEIGHED) for row in _leased(desk, 2)]
        first, second = (claim.row for claim in desk.claim("w", 9, WEIGHED))
        assert [first.state, second.state] == ["raw", "raw"]
        assert _holders(desk, WEIGHED_LIMIT) == set()
        changes = [desk.end(row, Passed(), flow=WEIGHED, keep=True) for row in (first, second)]
        receipts = desk.store.commit(changes)
        assert receipts == [Committed(), SlotTaken(WEIGHED_LIMIT)]
        assert desk.job(first.id) == changes[0].row
        assert (changes[0].row.state, changes[0].row.leased_by) == ("baking", "w")
        assert [slot.of_state for slot in desk.store.slots(WEIGHED_LIMIT)] == [1]
        parked = desk.write(desk.end(second, Parked(WEIGHED_LIMIT), flow=WEIGHED))[0]
        assert (parked.state, parked.leased_by, parked.parked_on) == ("raw", None, WEIGHED_LIMIT)
        assert parked.seq == jobs[1].seq
        assert desk.claim("other", 9, WEIGHED) == []
        desk.write(desk.end(changes[0].row, flow=WEIGHED))
        (again,) = desk.claim("other", 9, WEIGHED)
        assert (again.row.id, again.row.state) == (second.id, "raw")

    @pytest.mark.shows("E-66")
    def test_what_operators_did_outlasts_a_retry_that_voids_every_result(self, desk: Desk) -> None:
        desk.declare(WEIGHED)
        (row,) = _leased(desk, 1)
        (held,) = desk.write(desk.end(row, Held("look", "a person must"), flow=WEIGHED))
        desk.write(desk.act(held, Release("ada"), flow=WEIGHED))
        (claim,) = desk.claim("w", 9, WEIGHED)
        assert [(r.stage, r.name) for r in claim.results] == [("/released", "look")]
        moved = desk.write(desk.end(claim.row, Finished(Left(b"1")), flow=WEIGHED))[0]
        (claim,) = desk.claim("w", 9, WEIGHED)
        assert len(claim.results) == 2
        (failed,) = desk.write(desk.end(claim.row, Raised("down", "no"), flow=WEIGHED))
        assert (moved.state, failed.state, failed.resume) == ("raw", "failed", "raw")
        desk.write(desk.act(failed, Retry("bora"), flow=WEIGHED))
        kept = {(r.stage, r.name) for r in desk.store.find_results(row.id)}
        assert kept == {("/released", "look"), ("/retried", "down")}

    @pytest.mark.shows("E-65", "E-29")
    def test_threads_that_claim_end_and_act_never_put_more_into_the_state(self, desk: Desk) -> None:
        for n in range(40):
            desk.submit_keyed("ab"[n % 2], OVEN)
        desk.hire(*(f"w{n}" for n in range(4)), lease=timedelta(hours=1))

        def work(worker: str) -> None:
            for _ in range(10):
                for claim in patiently(desk.claim, worker, 3, OVEN):
                    outcome = Raised("down", "it broke") if claim.row.lapses else None
                    patiently(desk.commit, desk.end(claim.row, outcome, flow=OVEN))
                counted = _standing(desk)
                assert all(jobs <= 2 for jobs in counted.values()), counted

        with ThreadPoolExecutor(4) as pool:
            list(pool.map(work, [f"w{n}" for n in range(4)]))
        held = {slot.job_id for slot in desk.store.slots() if slot.job_id is not None}
        assert held == {row.id for row in desk.jobs() if row.state == "baking"}
        assert not held, "every job was carried through"

    @pytest.mark.shows("E-65")
    @pytest.mark.parametrize("act", ["elapsed", "cancelled"])
    def test_a_request_that_ends_a_run_in_the_state_frees_it_after_the_undo(
        self, desk: Desk, act: str
    ) -> None:
        first, second, _ = _fill(desk)
        asked: Cancel | Elapsed = Cancel("ada") if act == "cancelled" else Elapsed()
        (row,) = desk.write(desk.end(first, GivenBack(), flow=OVEN, asked=asked))
        assert (row.state, row.role) == ("baking", UNDOING)
        (undo,) = desk.claim("w", 9, OVEN)
        (row,) = desk.write(desk.end(undo.row, flow=OVEN))
        assert row.state != "baking"
        assert _holders(desk) == {second.id}


def _fill(desk: Desk) -> tuple[JobRow, JobRow, JobRow]:
    """Return two leased jobs that fill the state, and one that is parked before it."""
    rows = [desk.submit_keyed("a", OVEN) for _ in range(3)]
    leased = {claim.row.id: claim.row for claim in desk.claim("w", 9, OVEN)}
    assert desk.job(rows[2].id).parked_on == SLOT
    return leased[rows[0].id], leased[rows[1].id], desk.job(rows[2].id)


def _leased(desk: Desk, n: int) -> list[JobRow]:
    desk.submit_many(n, WEIGHED)
    return [claim.row for claim in desk.claim("w", 9, WEIGHED)]


def _holders(desk: Desk, limit: str = SLOT) -> set[bytes]:
    return {slot.job_id for slot in desk.store.slots(limit) if slot.job_id is not None}


def _standing(desk: Desk) -> dict[str, int]:
    """Count the jobs in the state by their key, as the table has them."""
    standing = [row for row in desk.jobs() if row.state == "baking"]
    return dict(Counter(json.loads(row.keys or "")["raw"]["slot"] for row in standing))
