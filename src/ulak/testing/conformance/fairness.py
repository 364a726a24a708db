"""Fairness and ageing: no tenant and no priority keeps the others waiting for ever."""

from __future__ import annotations

from collections import Counter
from datetime import timedelta

import pytest

from ulak.core.outcome import Raised
from ulak.store.protocol import Store, WeightRow
from ulak.testing.conformance.desk import Desk, Suite, in_lane_before
from ulak.testing.conformance.flows import LINE, SHARED


class TestFairness(Suite):
    """The tenants of a fair flow take turns, by weight; waiting makes up for priority."""

    @pytest.fixture
    def desk(self, store: Store) -> Desk:
        if not store.features.flow_control:
            pytest.skip("this store has no flow control")
        desk = Desk(store)
        desk.hire("w", lease=timedelta(hours=9))
        return desk

    @pytest.mark.shows("E-60")
    def test_a_crowd_of_one_tenant_keeps_no_other_waiting(self, desk: Desk) -> None:
        _crowd(desk, "big", 50)
        desk.turn(seconds=1)
        _crowd(desk, "small", 3)
        _crowd(desk, "tiny", 1)
        assert _tenants(desk, 8) == {"big": 4, "small": 3, "tiny": 1}
        assert _tenants(desk, 5) == {"big": 5}

    @pytest.mark.shows("E-60")
    def test_turns_go_on_from_claim_to_claim(self, desk: Desk) -> None:
        for tenant in "abc":
            _crowd(desk, tenant, 10)
        order = [next(iter(_tenants(desk, 1))) for _ in range(9)]
        assert order == list("abcabcabc")

    @pytest.mark.shows("E-60")
    def test_a_tenants_own_jobs_keep_their_order(self, desk: Desk) -> None:
        rows = []
        for n in range(6):
            rows.append(desk.submit(SHARED, tenant="a", priority=n % 2))
            desk.turn(seconds=1)
        claimed = [c.row.id for c in desk.claim("w", 6, SHARED)]
        assert claimed == [rows[n].id for n in (0, 2, 4, 1, 3, 5)]

    @pytest.mark.shows("E-60")
    def test_a_weight_is_so_many_turns(self, desk: Desk) -> None:
        assert desk.store.weigh("gold", 3, actor="ada", note="pays more") is None
        assert desk.store.weights() == [WeightRow("gold", 3, "ada", desk.now)]
        _crowd(desk, "gold", 40)
        _crowd(desk, "iron", 40)
        assert _tenants(desk, 40) == {"gold": 30, "iron": 10}
        assert desk.store.weigh("gold", None, actor="ada", note="") == 3
        assert desk.store.weights() == []
        assert desk.store.audit_trail(subject="gold")[1].details == '{"weight":3,"before":1}'

    @pytest.mark.shows("E-60")
    def test_who_comes_late_has_no_turns_saved_up(self, desk: Desk) -> None:
        _crowd(desk, "a", 60)
        _crowd(desk, "b", 60)
        assert _tenants(desk, 40) == {"a": 20, "b": 20}
        _crowd(desk, "new", 60)
        assert _tenants(desk, 30) == {"a": 10, "b": 10, "new": 10}

    @pytest.mark.shows("E-60")
    def test_who_comes_back_has_no_turns_saved_up(self, desk: Desk) -> None:
        _crowd(desk, "back", 1)
        assert _tenants(desk, 1) == {"back": 1}
        _crowd(desk, "a", 90)
        assert _tenants(desk, 30) == {"a": 30}
        desk.store.sweep(9)
        _crowd(desk, "back", 30)
        seen = _tenants(desk, 20)
        assert abs(seen["a"] - seen["back"]) <= 1

    @pytest.mark.shows("E-60")
    def test_urgency_comes_before_fairness(self, desk: Desk) -> None:
        _crowd(desk, "a", 5, priority=0)
        _crowd(desk, "b", 5, priority=2)
        assert _tenants(desk, 5) == {"a": 5}
        assert _tenants(desk, 5) == {"b": 5}

    @pytest.mark.shows("E-60", "E-50")
    def test_the_stages_of_a_fair_flow_share_their_turns(self, desk: Desk) -> None:
        _crowd(desk, "a", 6)
        begun = desk.claim("w", 3, SHARED)
        desk.turn(seconds=1)
        for claim in begun:
            desk.finish(claim.row, flow=SHARED)
        # The release before stored jobs in a lane for all stages; their turns are the same.
        old = [desk.new(SHARED, tenant="b") for _ in range(6)]
        desk.store.add([job._replace(row=in_lane_before(job.row)) for job in old])
        claims = desk.claim("w", 8, SHARED)
        assert Counter(claim.row.tenant for claim in claims) == {"a": 4, "b": 4}
        stages = [claim.row.state for claim in claims if claim.row.tenant == "a"]
        assert stages == ["first", "first", "first", "second"], "the longest due come first"

    def test_a_fair_flow_shares_a_claim_with_one_that_is_not(self, desk: Desk) -> None:
        _crowd(desk, "a", 2)
        desk.turn(seconds=1)
        old = desk.submit()
        desk.turn(seconds=1)
        _crowd(desk, "b", 2)
        flows = [c.row.flow for c in desk.look("w", 9, (LINE, SHARED)).claims]
        assert flows == ["shared", "shared", "shared", "line", "shared"]
        assert desk.job(old.id).leased_by == "w"

    def test_a_worker_is_told_when_the_next_of_a_fair_flow_is_due(self, desk: Desk) -> None:
        desk.submit(SHARED, tenant="a", after=timedelta(seconds=9))
        desk.submit(SHARED, tenant="b", after=timedelta(seconds=7), priority=3)
        desk.submit(SHARED, tenant="c")
        seen = desk.look("w", 9, (SHARED,))
        assert len(seen.claims) == 1
        assert seen.next_at == desk.now + 7_000_000

    @pytest.mark.parametrize("tenant", ["", "a/b", "*", "ü", "a%_", "#first", "a#b/c"])
    def test_a_tenant_may_have_any_name(self, desk: Desk, tenant: str) -> None:
        row = desk.submit(SHARED, tenant=tenant)
        assert row.lane == f"shared/thread/shared@1#first/{tenant}"
        leased = desk.lease(SHARED)
        assert leased.id == row.id
        moved = desk.finish(leased, flow=SHARED)
        assert moved.lane == f"shared/thread/shared@1#second/{tenant}"
        assert desk.lease(SHARED).id == row.id

    def test_a_retry_waits_for_a_turn_again(self, desk: Desk) -> None:
        _crowd(desk, "a", 2)
        _crowd(desk, "b", 2)
        first = desk.lease(SHARED)
        desk.write(desk.end(first, Raised("down", "it broke"), flow=SHARED))
        desk.turn(seconds=60)
        assert _tenants(desk, 2) == {"b": 1, "a": 1}

    # --- ageing -----------------------------------------------------------------

    @pytest.mark.shows("E-23", "E-60")
    @pytest.mark.parametrize("flow", [LINE, SHARED])
    def test_a_level_of_priority_is_worth_so_much_waiting(self, desk: Desk, flow: object) -> None:
        assert flow in (LINE, SHARED)
        chosen = LINE if flow is LINE else SHARED
        calm = desk.submit(chosen, priority=2)
        desk.turn(minutes=10)
        fresh = desk.submit(chosen, priority=1)
        desk.turn(minutes=10)
        urgent = desk.submit(chosen, priority=0)
        ageing = timedelta(minutes=11)
        order = [c.row.id for c in desk.claim("w", 3, chosen, ageing=ageing)]
        assert order == [urgent.id, fresh.id, calm.id]

    @pytest.mark.shows("E-60")
    @pytest.mark.parametrize("flow", [LINE, SHARED])
    def test_who_has_waited_long_enough_comes_first(self, desk: Desk, flow: object) -> None:
        chosen = LINE if flow is LINE else SHARED
        calm = desk.submit(chosen, priority=2)
        desk.turn(minutes=10)
        fresh = desk.submit(chosen, priority=1)
        desk.turn(minutes=10)
        urgent = desk.submit(chosen, priority=0)
        ageing = timedelta(minutes=9)
        order = [desk.claim("w", 1, chosen, ageing=ageing)[0].row.id for _ in range(3)]
        assert order == [calm.id, fresh.id, urgent.id]

    def test_without_ageing_priorities_are_strict(self, desk: Desk) -> None:
        calm = desk.submit(priority=3)
        desk.turn(hours=8)
        urgent = desk.submit(priority=2)
        assert [c.row.id for c in desk.claim("w", 2)] == [urgent.id, calm.id]


def _crowd(desk: Desk, tenant: str, jobs: int, **more: int) -> None:
    desk.submit_many(jobs, SHARED, tenant=tenant, **more)


def _tenants(desk: Desk, places: int) -> Counter[str]:
    return Counter(c.row.tenant for c in desk.claim("w", places, SHARED))
