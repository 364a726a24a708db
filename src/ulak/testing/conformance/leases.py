"""Leases: how long a job stays taken, and what becomes of it when its worker vanishes."""

from __future__ import annotations

import time

import pytest

from ulak.clock import micros
from ulak.core.change import Committed, LeaseLost
from ulak.core.outcome import GivenBack, Raised
from ulak.store.protocol import WorkerRow
from ulak.testing.conformance.desk import LEASE, Desk, Suite
from ulak.testing.conformance.flows import BUSY, LINE

FIVE_MINUTES = 300


class TestLeases(Suite):
    """A worker that vanished is noticed by whoever claims next, and cannot write any more."""

    @pytest.mark.shows("E-25")
    def test_any_claimer_takes_over_a_lapsed_lease(self, desk: Desk) -> None:
        (row,) = desk.leased(1, worker="gone")
        desk.turn(seconds=30)
        desk.hire("w")
        taken = desk.lease(worker="w")
        assert (taken.id, taken.leased_by) == (row.id, "w")
        assert [worker.id for worker in desk.store.workers()] == ["w"]

    @pytest.mark.shows("E-24", "E-27")
    def test_a_lapse_moves_the_token_and_is_counted_apart_from_attempts(self, desk: Desk) -> None:
        (row,) = desk.leased(1, worker="gone")
        desk.turn(minutes=5)
        desk.hire("w")
        desk.look("w", 0)
        lapsed = desk.job(row.id)
        assert lapsed == row._replace(
            leased_by=None, token=row.token + 1, lapses=1, lapsed=1, not_before=desk.now,
            version=row.version + 1, seq=row.seq + 1,
        )  # fmt: skip
        event = desk.store.trail(row.id)[-1]
        assert (event.kind, event.seq, event.at) == ("lapsed", lapsed.seq, desk.now)
        assert (event.actor, event.worker) == ("ulak", "gone")
        assert (event.from_state, event.to_state) == ("first", "first")

    @pytest.mark.shows("E-3")
    def test_a_lapse_leaves_a_job_in_its_busy_state(self, desk: Desk) -> None:
        (row,) = desk.leased(1, BUSY, worker="gone")
        desk.turn(minutes=5)
        desk.hire("w")
        taken = desk.lease(BUSY, worker="w")
        assert (taken.id, taken.state, taken.role) == (row.id, "running", "busy")
        assert desk.kinds(row.id) == ["submitted", "entered", "lapsed"]

    @pytest.mark.shows("E-24")
    def test_the_old_holder_of_a_lease_that_was_taken_over_cannot_write(self, desk: Desk) -> None:
        (row,) = desk.leased(1, worker="gone")
        desk.turn(seconds=30)
        desk.hire("w")
        taken = desk.lease(worker="w")
        trail = desk.store.trail(row.id)
        assert desk.commit(desk.end(row)) == LeaseLost()
        assert desk.job(row.id) == taken
        assert desk.store.trail(row.id) == trail
        assert desk.finish(taken).state == "second"

    @pytest.mark.shows("E-24")
    def test_a_rescued_job_that_nobody_has_leased_again_refuses_its_old_holder(
        self, desk: Desk
    ) -> None:
        (row,) = desk.leased(1, worker="gone")
        desk.turn(seconds=30)
        desk.hire("w")
        desk.look("w", 0)
        assert desk.commit(desk.end(row)) == LeaseLost()

    @pytest.mark.shows("E-26")
    def test_a_commit_after_its_lease_ran_out_is_accepted_while_nobody_took_over(
        self, desk: Desk
    ) -> None:
        rows = desk.leased(20)
        desk.turn(seconds=90)
        receipts = desk.store.commit([desk.end(row) for row in rows])
        assert all(isinstance(receipt, Committed) for receipt in receipts)
        assert {desk.job(row.id).state for row in rows} == {"second"}

    def test_a_vanished_worker_costs_its_own_jobs_only(self, desk: Desk) -> None:
        lost = desk.leased(3, worker="gone")
        desk.turn(seconds=20)
        kept = desk.leased(3, worker="alive")
        desk.turn(seconds=15)
        desk.hire("w")
        assert {c.row.id for c in desk.claim("w", 9)} == {row.id for row in lost}
        assert [desk.job(row.id) for row in kept] == kept

    def test_a_renewed_lease_is_not_taken_away(self, desk: Desk) -> None:
        (row,) = desk.leased(1, worker="alive")
        desk.hire("w")
        for _ in range(5):
            desk.turn(seconds=20)
            for worker in ("alive", "w"):
                assert desk.store.renew(worker, lease_us=micros(LEASE)).alive
            assert desk.claim("w") == []
        assert desk.job(row.id) == row

    def test_a_late_renewal_keeps_a_lease_that_nobody_took_away(self, desk: Desk) -> None:
        (row,) = desk.leased(1, worker="late")
        desk.turn(seconds=60)
        assert desk.store.renew("late", lease_us=micros(LEASE)).alive
        desk.hire("w")
        assert desk.claim("w") == []
        assert desk.job(row.id) == row

    def test_a_renewal_learns_that_the_lease_was_taken_away(self, desk: Desk) -> None:
        desk.leased(1, worker="gone")
        desk.turn(seconds=60)
        desk.hire("w")
        desk.lease(worker="w")
        assert not desk.store.renew("gone", lease_us=micros(LEASE)).alive
        assert desk.claim("gone") == []
        assert not desk.store.renew("stranger", lease_us=micros(LEASE)).alive

    def test_what_an_unregistered_worker_holds_can_be_rescued_at_once(self, desk: Desk) -> None:
        (row,) = desk.leased(1, worker="gone")
        desk.store.unregister("gone")
        desk.hire("w")
        taken = desk.lease(worker="w")
        assert (taken.id, taken.lapses) == (row.id, 1)
        assert desk.commit(desk.end(row)) == LeaseLost()

    def test_unregistering_twice_or_without_a_lease_is_nothing(self, desk: Desk) -> None:
        desk.hire("w")
        desk.store.unregister("w")
        desk.store.unregister("w")
        desk.store.unregister("stranger")
        assert desk.claim("w") == []

    @pytest.mark.shows("E-24")
    def test_giving_back_moves_the_token_and_spends_no_attempt(self, desk: Desk) -> None:
        (row,) = desk.leased(1)
        (back,) = desk.write(desk.end(row, GivenBack()))
        assert (back.leased_by, back.attempt) == (None, 0)
        assert back.token > row.token
        assert desk.commit(desk.end(row)) == LeaseLost()
        assert desk.lease().id == row.id

    @pytest.mark.shows("E-24")
    def test_a_worker_that_never_heard_of_its_claim_learns_what_it_has_leased(
        self, desk: Desk
    ) -> None:
        store = desk.store
        desk.leased(2, worker="other")
        desk.submit_many(3)
        desk.hire("w")
        assert store.leased("w") == store.leased("stranger") == []
        first, second, third = rows = [claim.row for claim in desk.claim("w", 3)]
        assert store.leased("w") == sorted(rows)
        # One is kept from stage to stage, one ends its stage, one is given back unrun.
        kept, _, back = desk.write(
            desk.end(first, keep=True), desk.end(second), desk.end(third, GivenBack())
        )
        assert store.leased("w") == [kept]
        assert (back.leased_by, back.attempt) == (None, 0)

    @pytest.mark.shows("E-25")
    def test_nobody_has_leased_what_was_taken_away_from_him(self, desk: Desk) -> None:
        rows = desk.leased(2, worker="gone")
        desk.turn(minutes=5)
        assert desk.store.leased("gone") == sorted(rows)
        desk.hire("w")
        taken = [claim.row for claim in desk.claim("w", 2)]
        assert desk.store.leased("gone") == []
        assert desk.store.leased("w") == sorted(taken)

    @pytest.mark.shows("E-28")
    def test_a_kept_lease_goes_on_to_the_next_stage_under_the_same_token(self, desk: Desk) -> None:
        (row,) = desk.leased(1)
        (kept,) = desk.write(desk.end(row, keep=True))
        assert (kept.state, kept.leased_by, kept.token) == ("second", "w", row.token)
        desk.hire("other")
        assert desk.claim("other") == []
        assert desk.finish(kept).role == "done"

    def test_the_reason_of_a_failed_attempt_survives_a_lapse(self, desk: Desk) -> None:
        (row,) = desk.leased(1, worker="w")
        desk.write(desk.end(row, Raised("boom", "it broke")))
        desk.turn(seconds=10)
        desk.lease()
        desk.turn(seconds=30)
        desk.hire("other")
        taken = desk.lease(worker="other")
        assert (taken.attempt, taken.lapses) == (1, 1)
        assert [e.code for e in desk.store.trail(row.id)] == [None, "boom", None]

    def test_every_worker_is_listed_with_its_lease_lapsed_ones_too(self, desk: Desk) -> None:
        store, then = desk.store, desk.now
        store.register("a", lease_us=1_000_000, lanes=["x/loop/f@1", "y/loop/f@1"], about="host 1")
        desk.turn(seconds=10)
        desk.hire("b")
        a, b = sorted(store.workers())
        assert a == WorkerRow("a", then, then, then + 1_000_000, "x/loop/f@1 y/loop/f@1", "host 1")
        assert (b.id, b.renewed_at, b.expires_at) == ("b", desk.now, desk.now + micros(LEASE))

    @pytest.mark.shows("E-49")
    @pytest.mark.parametrize("skew", [FIVE_MINUTES, -FIVE_MINUTES])
    def test_five_minutes_of_skew_between_machine_and_store_change_nothing(
        self, desk: Desk, monkeypatch: pytest.MonkeyPatch, skew: int
    ) -> None:
        base = desk.now * 1000
        monkeypatch.setattr(time, "time_ns", lambda: base + skew * 1_000_000_000)
        monkeypatch.setattr(time, "time", lambda: base / 1e9 + skew)
        (row,) = desk.leased(1, BUSY, worker="alive")
        assert row.leased_at == desk.now
        desk.hire("w")
        seen = desk.look("w", 1, (LINE, BUSY))
        assert (seen.claims, seen.now) == ([], desk.now)
        assert desk.store.renew("alive", lease_us=micros(LEASE)).now == desk.now
        assert desk.store.register("x", lease_us=1, lanes=[], about="") == desk.now
        assert {e.at for e in desk.store.trail(row.id)} == {desk.now}
        desk.turn(seconds=30)
        desk.hire("w")
        assert desk.lease(BUSY, worker="w").id == row.id
        assert desk.store.trail(row.id)[-1].at == desk.now
