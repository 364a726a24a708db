"""Claims: who gets which job, in which order, and what comes with it."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta

import pytest

from ulak.core.job import Result
from ulak.core.outcome import Cancel, Finished, Held, Left, Noted, Raised
from ulak.store.protocol import LARGEST_CLAIM_BYTES, ClaimRequest, Store, Want
from ulak.testing.conformance.desk import Desk, Suite, claim_request, in_lane_before
from ulak.testing.conformance.flows import (
    BUSY,
    LINE,
    NARROW,
    NEWER,
    REVIEW,
    SAGA,
    SHARED,
    SHORTER,
    WAITS,
)

FAILED = Raised("boom", "it broke")
LARGE = b'"' + b"x" * (LARGEST_CLAIM_BYTES // 4 - 2) + b'"'


class TestClaims(Suite):
    """A job is leased to one worker at a time, the most urgent first."""

    def test_sixteen_threads_claim_a_thousand_jobs_once_each(self, desk: Desk) -> None:
        for _ in range(4):
            desk.submit_many(250)
        start = threading.Barrier(16)

        def drain(worker: str) -> list[bytes]:
            desk.hire(worker)
            start.wait()
            return claim_everything(desk.store, worker)

        with ThreadPoolExecutor(16) as pool:
            claimed = [i for ids in pool.map(drain, [f"w{n}" for n in range(16)]) for i in ids]
        assert len(claimed) == 1000
        assert len(set(claimed)) == 1000
        assert {row.token for row in desk.jobs()} == {1}

    @pytest.mark.shows("E-23")
    def test_a_claim_takes_the_most_urgent_then_the_longest_due_then_the_lowest_id(
        self, desk: Desk
    ) -> None:
        later = timedelta(seconds=5)
        calm = desk.submit(priority=3)
        late = desk.submit(priority=1, after=later)
        first, second = desk.submit_many(2, priority=1)
        urgent = desk.submit(priority=0, after=later)
        desk.turn(seconds=10)
        desk.hire("w")
        order = [desk.lease().id for _ in range(5)]
        assert order == [urgent.id, first.id, second.id, late.id, calm.id]

    @pytest.mark.shows("E-50")
    def test_a_job_in_a_stage_that_a_worker_does_not_ask_for_is_left_alone(
        self, desk: Desk
    ) -> None:
        desk.hire("w")
        row = desk.submit()
        desk.finish(desk.lease())
        assert desk.job(row.id).state == "second"
        seen = desk.look("w", 9, (SHORTER,))
        assert (seen.claims, seen.next_at) == ([], None)
        assert desk.job(row.id).token == 2
        assert desk.lease().id == row.id

    @pytest.mark.shows("E-50")
    def test_jobs_in_the_lanes_of_the_release_before_are_claimed_in_their_turn(
        self, desk: Desk
    ) -> None:
        desk.hire("w")
        order = []
        for n in range(6):
            new = desk.new()
            order.append(new.row.id)
            row = in_lane_before(new.row) if n % 2 else new.row
            desk.store.add([new._replace(row=row)])
            desk.turn(seconds=1)
        later = desk.new(after=timedelta(seconds=9))
        desk.store.add([later._replace(row=in_lane_before(later.row))])
        assert [claim.row.id for claim in desk.claim("w", 5)] == order[:5]
        seen = desk.look("w", 5)
        assert [claim.row.id for claim in seen.claims] == order[5:]
        assert seen.next_at == later.row.not_before

    @pytest.mark.shows("E-23")
    def test_a_claim_takes_no_more_jobs_than_a_pool_has_places(self, desk: Desk) -> None:
        desk.submit_many(3, LINE)
        desk.submit_many(3, BUSY)
        desk.hire("w")
        lines, busies = tuple(LINE.table.lanes), tuple(BUSY.table.lanes)
        wants = (Want(lines, 2), Want(busies, 1), Want((*lines, *busies), 0))
        flows = [c.row.flow for c in desk.store.claim(ClaimRequest("w", wants)).claims]
        assert sorted(flows) == ["busy", "line", "line"]

    @pytest.mark.shows("E-23")
    def test_a_pool_with_many_places_leaves_the_others_theirs(self, desk: Desk) -> None:
        desk.submit(LINE)
        row = desk.submit(BUSY)
        desk.hire("w")
        wants = (Want(tuple(LINE.table.lanes), 500), Want(tuple(BUSY.table.lanes), 1))
        claims = desk.store.claim(ClaimRequest("w", wants)).claims
        assert row.id in {claim.row.id for claim in claims}
        assert len(claims) == 2

    @pytest.mark.shows("E-84")
    @pytest.mark.parametrize("way", ["plain", "aged", "beside a slot", "in turn"])
    def test_a_claim_is_bounded_in_bytes(self, desk: Desk, way: str) -> None:
        flow, others = LINE, (NARROW,) if way == "beside a slot" else ()
        if way == "in turn":
            if not desk.store.features.flow_control:
                return
            flow = SHARED
        desk.declare(NARROW)
        small = [desk.submit(other).id for other in others]
        large = [
            desk.submit(flow, payload=LARGE, priority=n % 2, tenant=f"t{n % 3}").id
            for n in range(7)
        ]
        desk.hire("w")
        ageing = timedelta(hours=1 if way == "aged" else 0)
        looks = [desk.look("w", 20, (flow, *others), ageing=ageing) for _ in range(3)]
        assert [sum(c.row.id in large for c in look.claims) for look in looks] == [4, 3, 0]
        assert {c.row.id for look in looks for c in look.claims} == {*small, *large}
        assert looks[0].next_at == looks[0].now, "there is more to take at once"
        assert looks[1].next_at is None

    @pytest.mark.shows("E-84")
    def test_a_claim_takes_a_job_however_large_its_payload_is(self, desk: Desk) -> None:
        for _ in range(2):
            job = desk.new(payload=b"null")
            data = b'"' + b"x" * (LARGEST_CLAIM_BYTES + 1) + b'"'
            desk.store.add([job._replace(payload=job.payload._replace(data=data))])
        desk.hire("w")
        assert [len(desk.claim("w", 5)) for _ in range(3)] == [1, 1, 0]

    @pytest.mark.shows("E-50")
    def test_a_worker_is_given_only_the_versions_that_it_serves(self, desk: Desk) -> None:
        old, new = desk.submit(LINE), desk.submit(NEWER)
        desk.hire("w")
        assert [c.row.id for c in desk.claim("w", 5, LINE)] == [old.id]
        assert desk.job(new.id) == new

    def test_a_delayed_job_is_not_claimed_before_it_is_due(self, desk: Desk) -> None:
        row = desk.submit(after=timedelta(minutes=1))
        desk.hire("w", lease=timedelta(hours=1))
        seen = desk.look()
        assert seen.claims == []
        assert seen.next_at == row.not_before
        desk.turn(seconds=59)
        assert desk.claim() == []
        desk.turn(seconds=1)
        assert desk.lease().id == row.id

    def test_a_claim_tells_when_the_next_job_of_its_own_lanes_is_due(self, desk: Desk) -> None:
        desk.submit(BUSY, after=timedelta(seconds=1))
        desk.submit(after=timedelta(minutes=2))
        soon = desk.submit(after=timedelta(minutes=1))
        desk.hire("w")
        assert desk.look().next_at == soon.not_before
        assert desk.look("w", 1, ()).next_at is None

    def test_a_claim_that_has_filled_its_places_tells_to_look_again(self, desk: Desk) -> None:
        desk.submit_many(3)
        later = desk.submit(after=timedelta(minutes=1))
        desk.hire("w")
        looks = [desk.look("w", 2) for _ in range(2)]
        assert [len(look.claims) for look in looks] == [2, 1]
        assert [look.next_at for look in looks] == [desk.now, later.not_before]

    @pytest.mark.shows("E-2")
    def test_jobs_that_are_held_waiting_or_ended_are_not_claimed(self, desk: Desk) -> None:
        held, done = desk.leased(2)
        desk.write(desk.end(held, Held("odd", "look at this")))
        desk.finish(done)
        desk.finish(desk.lease())
        desk.submit(REVIEW)
        desk.submit(WAITS)
        assert desk.look("w", 9, (LINE, REVIEW, WAITS)).claims == []

    @pytest.mark.shows("E-24", "E-44")
    def test_a_claim_moves_the_token_and_writes_no_event(self, desk: Desk) -> None:
        submitted = desk.submit()
        desk.hire("w")
        row = desk.lease()
        assert row == submitted._replace(leased_by="w", leased_at=desk.now, token=1, stood=1)
        assert desk.job(row.id) == row
        assert desk.kinds(row.id) == ["submitted"]
        desk.write(desk.end(row, FAILED))
        desk.turn(seconds=11)
        again = desk.lease()
        assert again.token > row.token

    @pytest.mark.shows("E-3", "E-44")
    def test_a_claim_enters_the_busy_state_with_an_event_of_its_own(self, desk: Desk) -> None:
        submitted = desk.submit(BUSY)
        desk.turn(seconds=1)
        desk.hire("w")
        row = desk.lease(BUSY)
        assert (row.state, row.role) == ("running", "busy")
        assert (row.version, row.seq) == (submitted.version + 1, submitted.seq + 1)
        assert row.changed_at == desk.now
        assert desk.job(row.id) == row
        event = desk.store.trail(row.id)[-1]
        assert (event.kind, event.from_state, event.to_state) == ("entered", "queued", "running")
        assert (event.seq, event.actor, event.worker) == (row.seq, "w", "w")
        assert (event.token, event.at) == (row.token, desk.now)

    @pytest.mark.shows("E-3")
    def test_a_retried_job_is_claimed_in_its_busy_state_and_enters_nothing(
        self, desk: Desk
    ) -> None:
        (row,) = desk.leased(1, BUSY)
        (waiting,) = desk.write(desk.end(row, FAILED, flow=BUSY))
        assert waiting.state == "running"
        desk.turn(seconds=10)
        again = desk.lease(BUSY)
        assert (again.state, again.version) == ("running", waiting.version)
        assert desk.kinds(row.id) == ["submitted", "entered", "retry"]

    @pytest.mark.shows("E-42")
    def test_a_job_whose_undo_runs_in_the_same_state_enters_nothing(self, desk: Desk) -> None:
        (row,) = desk.leased(1, SAGA)
        (queued,) = desk.write(desk.end(row, FAILED, flow=SAGA))
        assert queued.state == "queued"
        (undoing,) = desk.write(desk.act(queued, Cancel("ada"), flow=SAGA))
        assert (undoing.state, undoing.role) == ("queued", "undoing")
        desk.turn(minutes=20)
        desk.hire("w")
        claimed = desk.lease(SAGA)
        assert (claimed.state, claimed.role) == ("queued", "undoing")
        assert claimed.version == undoing.version

    def test_a_claim_brings_the_payload_and_the_results_that_were_left(self, desk: Desk) -> None:
        (added,) = desk.store.add([desk.new(payload=b'{"n": 1}')])
        row = added.row
        desk.hire("w")
        (claim,) = desk.claim()
        assert (claim.payload.data, claim.payload.schema) == (b'{"n": 1}', 1)
        assert claim.results == ()
        desk.write(desk.end(claim.row, Finished(Left(result=b"7"))))
        (claim,) = desk.claim()
        assert claim.results == (Result(row.id, 1, "first", "", b"7"),)
        (noted,) = desk.write(desk.end(claim.row, Noted("paid", b"8")))
        assert noted.leased_by == "w"
        assert sorted(desk.store.find_results(row.id)) == [
            Result(row.id, 1, "first", "", b"7"),
            Result(row.id, 1, "second", "paid", b"8"),
        ]

    @pytest.mark.shows("E-27")
    def test_at_most_one_suspect_comes_with_a_claim(self, desk: Desk) -> None:
        suspects = {row.id for row in desk.leased(3, worker="gone")}
        desk.turn(seconds=31)
        desk.hire("gone too")
        assert len(desk.claim("gone too", 3)) == 3
        desk.turn(seconds=31)
        desk.hire("w")
        healthy = {row.id for row in desk.submit_many(3)}
        assert {c.row.id for c in desk.claim("w", 9, suspects=False)} == healthy
        assert {desk.job(i).lapses for i in suspects} == {2}
        (taken,) = desk.claim("w", 9)
        assert taken.row.id in suspects

    def test_a_worker_that_never_registered_gets_nothing(self, desk: Desk) -> None:
        desk.submit()
        seen = desk.look("stranger")
        assert seen.claims == []
        assert seen.now == desk.now

    def test_a_worker_whose_lease_has_lapsed_gets_nothing(self, desk: Desk) -> None:
        desk.submit()
        desk.hire("w")
        desk.turn(seconds=30)
        assert desk.claim() == []
        desk.hire("w")
        assert len(desk.claim()) == 1


def claim_everything(store: Store, worker: str) -> list[bytes]:
    """Claim until nothing is to be had; answer what was."""
    claimed: list[bytes] = []
    while claims := store.claim(claim_request(worker, 7, (LINE,))).claims:
        claimed += [claim.row.id for claim in claims]
    return claimed
