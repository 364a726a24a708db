"""Rates: every run is paid from a bucket that fills at a declared pace."""

from __future__ import annotations

from datetime import timedelta

import pytest

from ulak.clock import SECOND
from ulak.core.outcome import GivenBack, Raised
from ulak.core.policy import RateTerms
from ulak.store.protocol import BucketRow, RateRow, Store
from ulak.testing.conformance.desk import Desk, Suite
from ulak.testing.conformance.flows import METERED, METERED_RATE, RATED, RATED_RATE

ON_RATED = f"/rate/{RATED_RATE}"


class TestRates(Suite):
    """Four tokens a second, six at most (`rated`); two in ten seconds for each key (`metered`)."""

    @pytest.fixture
    def desk(self, store: Store) -> Desk:
        if not store.features.flow_control:
            pytest.skip("this store has no flow control")
        desk = Desk(store)
        desk.declare(RATED, METERED)
        desk.hire("w", "other", lease=timedelta(hours=9))
        return desk

    @pytest.mark.shows("E-60")
    def test_a_claim_takes_what_the_bucket_pays_and_parks_the_rest(self, desk: Desk) -> None:
        rows = [desk.submit_keyed("k", RATED) for _ in range(8)]
        seen = desk.look("w", 20, (RATED,))
        assert [c.row.id for c in seen.claims] == [row.id for row in rows[:6]]
        assert [desk.job(row.id).parked_on for row in rows[6:]] == [ON_RATED] * 2
        assert desk.store.buckets() == [BucketRow(RATED_RATE, 0, desk.now, desk.now + SECOND // 4)]

    @pytest.mark.shows("E-60")
    def test_a_worker_is_told_when_the_next_one_can_be_paid(self, desk: Desk) -> None:
        for _ in range(8):
            desk.submit_keyed("k", RATED)
        assert desk.look("w", 20, (RATED,)).next_at == desk.now + SECOND // 4
        desk.turn(microseconds=SECOND // 4 - 1)
        assert desk.claim("w", 20, RATED) == []
        desk.turn(microseconds=1)
        seen = desk.look("w", 20, (RATED,))
        assert (len(seen.claims), seen.unparked) == (1, 1)
        assert seen.next_at == desk.now + SECOND // 4

    @pytest.mark.shows("E-60")
    def test_the_bucket_holds_no_more_than_its_burst(self, desk: Desk) -> None:
        for _ in range(20):
            desk.submit_keyed("k", RATED)
        assert len(desk.claim("w", 20, RATED)) == 6
        desk.turn(hours=1)
        assert len(desk.claim("w", 20, RATED)) == 6

    @pytest.mark.shows("E-60")
    def test_never_more_tokens_are_taken_than_have_come(self, desk: Desk) -> None:
        for n in range(40):
            desk.submit_keyed("k", RATED, cost=n % 3 + 1)
        began, taken = desk.now, 0
        for _ in range(60):
            taken += sum(c.row.cost for c in desk.claim("w", 3, RATED))
            assert taken <= 6 + (desk.now - began) * 4 // SECOND
            desk.turn(microseconds=137_000)
        assert taken >= (desk.now - began) * 4 // SECOND - 3

    @pytest.mark.shows("E-60")
    def test_who_costs_much_is_not_starved_by_who_costs_little(self, desk: Desk) -> None:
        for _ in range(6):
            desk.submit_keyed("k", RATED)
        desk.claim("w", 9, RATED)
        dear = desk.submit_keyed("k", RATED, cost=6)
        assert desk.claim("w", 9, RATED) == []
        for _ in range(5):
            desk.turn(microseconds=SECOND // 4)
            cheap = desk.submit_keyed("k", RATED)
            assert desk.claim("w", 9, RATED) == []
            assert desk.job(cheap.id).parked_on == ON_RATED
        desk.turn(microseconds=SECOND // 4)
        assert [c.row.id for c in desk.claim("w", 9, RATED)] == [dear.id]

    def test_who_is_more_urgent_is_paid_first(self, desk: Desk) -> None:
        for _ in range(6):
            desk.submit_keyed("k", RATED)
        desk.claim("w", 9, RATED)
        calm = desk.submit_keyed("k", RATED, priority=3)
        urgent = desk.submit_keyed("k", RATED, priority=0)
        assert desk.claim("w", 9, RATED) == []
        desk.turn(seconds=1)
        assert [c.row.id for c in desk.claim("w", 9, RATED)] == [urgent.id, calm.id]

    @pytest.mark.shows("E-60")
    def test_every_run_is_paid_again(self, desk: Desk) -> None:
        for _ in range(2):
            desk.submit_keyed("a", METERED)
        first = desk.lease(METERED)
        assert (first.rate, first.cost) == (f"{METERED_RATE}/a", 1)
        desk.write(desk.end(first, GivenBack(), flow=METERED))
        again = desk.lease(METERED)
        assert again.id == first.id
        desk.write(desk.end(again, Raised("down", "it broke"), flow=METERED))
        desk.turn(seconds=3)
        assert desk.claim("w", 9, METERED) == []
        desk.turn(seconds=2)
        assert len(desk.claim("w", 9, METERED)) == 1

    @pytest.mark.shows("E-27", "E-60")
    def test_a_rescue_is_paid_too(self, desk: Desk) -> None:
        desk.hire("gone")
        desk.submit_keyed("a", METERED)
        desk.submit_keyed("a", METERED)
        assert len(desk.claim("gone", 1, METERED)) == 1
        desk.turn(seconds=30)
        assert len(desk.claim("w", 9, METERED)) == 1
        (bucket,) = desk.store.buckets(f"{METERED_RATE}/a")
        assert bucket.level == 10 * SECOND

    @pytest.mark.shows("E-60")
    def test_every_key_has_a_bucket_of_its_own(self, desk: Desk) -> None:
        desk.store.change_limit("metered/only", 9, actor="ada", note="")
        rows = [desk.submit_keyed(key, METERED) for key in "aaabb"]
        assert {c.row.id for c in desk.claim("w", 9, METERED)} == {rows[n].id for n in (0, 1, 3, 4)}
        assert desk.job(rows[2].id).parked_on == f"/rate/{METERED_RATE}/a"
        assert [b.name for b in desk.store.buckets()] == [
            f"{METERED_RATE}/a", f"{METERED_RATE}/b",
        ]  # fmt: skip

    @pytest.mark.shows("E-29", "E-60")
    def test_slot_and_tokens_are_taken_together_or_neither(self, desk: Desk) -> None:
        rows = [desk.submit_keyed("a", METERED) for _ in range(3)]
        running = desk.lease(METERED)
        assert desk.claim("w", 9, METERED) == []
        assert desk.job(rows[1].id).parked_on == "metered/only/a"
        (bucket,) = desk.store.buckets()
        assert bucket.level == 10 * SECOND, "who found no slot has paid nothing"
        desk.finish(running, flow=METERED)
        desk.finish(desk.lease(METERED), flow=METERED)
        assert desk.claim("w", 9, METERED) == []
        assert desk.job(rows[2].id).parked_on == f"/rate/{METERED_RATE}/a"
        assert all(slot.job_id is None for slot in desk.store.slots())

    @pytest.mark.shows("E-60")
    def test_an_operators_rate_is_in_force_at_once_and_stays(self, desk: Desk) -> None:
        for _ in range(20):
            desk.submit_keyed("k", RATED)
        assert len(desk.claim("w", 20, RATED)) == 6
        terms = RateTerms(1, SECOND, 2)
        changed = desk.store.change_rate(RATED_RATE, terms, actor="ada", note="slower")
        assert changed == RateRow(RATED_RATE, 1, SECOND, 2, 4, SECOND, 6, "ada", desk.now)
        desk.declare(RATED)
        assert desk.store.rates()[1] == changed
        assert desk.look("w", 20, (RATED,)).next_at == desk.now + SECOND
        desk.turn(seconds=60)
        assert len(desk.claim("w", 20, RATED)) == 2
        desk.store.change_rate(RATED_RATE, None, actor="bob", note="")
        desk.turn(seconds=1)
        assert len(desk.claim("w", 20, RATED)) == 4
        assert [line.actor for line in desk.store.audit_trail(subject=RATED_RATE)] == ["bob", "ada"]
        assert desk.store.change_rate("rated/other", terms, actor="ada", note="") is None

    def test_a_bucket_keeps_its_tokens_when_its_rate_changes(self, desk: Desk) -> None:
        desk.submit_keyed("k", RATED, cost=3)
        desk.lease(RATED)
        desk.store.change_rate(RATED_RATE, RateTerms(60, 60 * SECOND, 10), actor="ada", note="")
        (bucket,) = desk.store.buckets()
        assert (bucket.level, bucket.filled_at) == (3 * 60 * SECOND, desk.now)
        desk.store.change_rate(RATED_RATE, RateTerms(1, SECOND, 2), actor="ada", note="")
        (bucket,) = desk.store.buckets()
        assert bucket.level == 2 * SECOND

    def test_who_costs_more_than_the_bucket_can_hold_takes_all_of_it(self, desk: Desk) -> None:
        desk.store.change_rate(RATED_RATE, RateTerms(1, SECOND, 2), actor="ada", note="")
        dear = desk.submit_keyed("k", RATED, cost=6)
        assert desk.lease(RATED).id == dear.id
        assert desk.store.buckets()[0].level == 0

    def test_full_buckets_are_swept(self, desk: Desk) -> None:
        desk.submit_keyed("a", METERED)
        desk.finish(desk.lease(METERED), flow=METERED)
        desk.store.sweep(9)
        assert [b.name for b in desk.store.buckets()] == [f"{METERED_RATE}/a"]
        desk.turn(seconds=5)
        desk.store.sweep(9)
        assert desk.store.buckets() == []

    def test_a_parked_job_that_is_cancelled_keeps_nobody_waiting(self, desk: Desk) -> None:
        from ulak.core.outcome import Cancel

        for _ in range(8):
            desk.submit_keyed("k", RATED)
        desk.claim("w", 9, RATED)
        first, second = (row for row in desk.jobs() if row.parked_on)
        desk.write(desk.act(first, Cancel("ada"), flow=RATED))
        desk.turn(microseconds=SECOND // 4)
        assert [c.row.id for c in desk.claim("w", 9, RATED)] == [second.id]

    @pytest.mark.shows("E-28", "E-60")
    def test_no_lease_is_kept_into_a_stage_with_a_rate(self, desk: Desk) -> None:
        row = desk.submit_keyed("k", RATED)
        leased = desk.lease(RATED)
        assert leased.id == row.id
        (back,) = desk.write(desk.end(leased, Raised("down", "it broke"), flow=RATED, keep=True))
        assert back.leased_by is None
