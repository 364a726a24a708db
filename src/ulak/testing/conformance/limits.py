"""Limits: those of each key, and those that an operator sets."""

from __future__ import annotations

import json
import threading
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from typing import Any

import pytest

from ulak.core.change import SlotTaken
from ulak.core.flow import Flow
from ulak.core.job import limit_name
from ulak.core.policy import LimitTerms
from ulak.store.protocol import Claim, LimitRow, Store
from ulak.testing.conformance.desk import Desk, Suite, patiently
from ulak.testing.conformance.flows import KEPT, KEYED, KEYED_LIMIT, OVEN, TIGHT, TIGHT_LIMIT

A, B = f"{KEYED_LIMIT}/a", f"{KEYED_LIMIT}/b"


class TestLimits(Suite):
    """A key has slots of its own, opened when they are needed; an operator's limit stays."""

    @pytest.fixture
    def desk(self, store: Store) -> Desk:
        if not store.features.flow_control:
            pytest.skip("this store has no flow control")
        desk = Desk(store)
        desk.declare(KEYED, KEPT, TIGHT)
        desk.hire("w", lease=timedelta(hours=1))
        return desk

    @pytest.mark.shows("E-9", "E-60")
    def test_every_key_has_slots_of_its_own(self, desk: Desk) -> None:
        rows = [desk.submit_keyed(key, KEYED) for key in "aaabb"]
        claimed = {c.row.id for c in desk.claim("w", 9, KEYED)}
        assert claimed == {rows[n].id for n in (0, 1, 3, 4)}
        assert desk.job(rows[2].id).parked_on == A
        assert [slot.job_id for slot in desk.store.slots(A)] == [rows[0].id, rows[1].id]
        assert [slot.job_id for slot in desk.store.slots(B)] == [rows[3].id, rows[4].id]

    @pytest.mark.shows("E-29", "E-60")
    def test_a_freed_slot_of_a_key_goes_to_the_next_of_that_key(self, desk: Desk) -> None:
        rows = [desk.submit_keyed(key, KEYED) for key in "aaabbb"]
        running = {c.row.id: c.row for c in desk.claim("w", 9, KEYED)}
        assert len(running) == 4
        desk.finish(running[rows[0].id], flow=KEYED)
        assert desk.job(rows[2].id).parked_on is None
        assert desk.job(rows[5].id).parked_on == B
        assert [c.row.id for c in desk.claim("w", 9, KEYED)] == [rows[2].id]

    def test_a_limit_with_keys_opens_no_slot_before_one_is_needed(self, desk: Desk) -> None:
        assert [s for s in desk.store.slots() if s.limit.startswith("keyed/")] == []
        desk.submit_keyed("a", KEYED)
        desk.claim("w", 9, KEYED)
        assert {s.limit for s in desk.store.slots() if s.limit.startswith("keyed/")} == {A}

    @pytest.mark.shows("E-60")
    def test_upkeep_sweeps_the_slots_of_keys_that_nobody_needs(self, desk: Desk) -> None:
        for key in "aab":
            desk.submit_keyed(key, KEYED)
        one, two, other = (c.row for c in desk.claim("w", 9, KEYED))
        waiting = desk.submit_keyed("a", KEYED)
        assert desk.claim("w", 9, KEYED) == []
        desk.finish(other, flow=KEYED)
        desk.store.sweep(100)
        assert {s.limit for s in desk.store.slots() if s.limit.startswith("keyed/")} == {A}
        for row in (one, two):
            desk.finish(row, flow=KEYED)
        (last,) = desk.claim("w", 9, KEYED)
        assert last.row.id == waiting.id
        desk.finish(last.row, flow=KEYED)
        desk.store.sweep(100)
        assert [s for s in desk.store.slots() if s.limit.startswith("keyed/")] == []
        assert [s.limit for s in desk.store.slots(TIGHT_LIMIT)] == [TIGHT_LIMIT] * 2

    @pytest.mark.shows("E-28", "E-29")
    def test_a_kept_lease_takes_the_slot_of_its_key(self, desk: Desk) -> None:
        rows = [desk.submit_keyed("a", KEPT) for _ in range(3)]
        running = [c.row for c in desk.claim("w", 9, KEPT)]
        assert [row.id for row in running] == [row.id for row in rows]
        changes = [desk.end(row, flow=KEPT, keep=True) for row in running]
        assert {change.takes_slot for change in changes} == {"kept/only/a"}
        receipts = desk.store.commit(changes)
        assert [isinstance(receipt, SlotTaken) for receipt in receipts] == [False, False, True]
        assert receipts[2] == SlotTaken("kept/only/a")

    @pytest.mark.shows("E-60")
    def test_an_operators_limit_stays_when_flows_declare_theirs_again(self, desk: Desk) -> None:
        changed = desk.store.change_limit(TIGHT_LIMIT, 1, actor="ada", note="slow disk")
        assert changed == LimitRow(TIGHT_LIMIT, 1, 2, 0, "ada", desk.now)
        desk.store.declare({TIGHT_LIMIT: LimitTerms(5)})
        (limit,) = (row for row in desk.store.limits() if row.name == TIGHT_LIMIT)
        assert (limit.n, limit.declared, limit.actor) == (1, 5, "ada")
        desk.submit_many(6, TIGHT)
        assert len(desk.claim("w", 9, TIGHT)) == 1
        back = desk.store.change_limit(TIGHT_LIMIT, None, actor="bob", note="")
        assert back is not None
        assert (back.n, back.actor) == (5, None)
        desk.store.unpark(9)
        assert len(desk.claim("w", 9, TIGHT)) == 4
        desk.store.declare({TIGHT_LIMIT: LimitTerms(3)})
        assert next(row.n for row in desk.store.limits() if row.name == TIGHT_LIMIT) == 3

    def test_a_limit_that_nobody_declares_cannot_be_changed(self, desk: Desk) -> None:
        assert desk.store.change_limit("tight/other", 3, actor="ada", note="") is None
        assert desk.store.audit_trail() == []

    @pytest.mark.shows("E-29", "E-60")
    def test_a_lowered_limit_drains_every_key(self, desk: Desk) -> None:
        for key in "aaabbb":
            desk.submit_keyed(key, KEYED)
        running = [c.row for c in desk.claim("w", 9, KEYED)]
        desk.store.change_limit(KEYED_LIMIT, 1, actor="ada", note="")
        first = [row for row in running if row.slot == A]
        desk.finish(first[0], flow=KEYED)
        desk.store.unpark(9)
        assert desk.claim("w", 9, KEYED) == []
        desk.finish(first[1], flow=KEYED)
        desk.store.unpark(9)
        assert [c.row.slot for c in desk.claim("w", 9, KEYED)] == [A]
        desk.store.change_limit(KEYED_LIMIT, 3, actor="ada", note="")
        desk.store.unpark(9)
        assert [c.row.slot for c in desk.claim("w", 9, KEYED)] == [B]
        assert len(desk.store.slots(B)) == 3

    @pytest.mark.shows("E-65", "E-60")
    @pytest.mark.parametrize("flow", [KEYED, OVEN], ids=["of runs", "of a state"])
    def test_one_key_has_a_limit_of_its_own_until_it_is_taken_back(
        self, desk: Desk, flow: Flow[Any]
    ) -> None:
        (name,) = flow.table.limits
        desk.declare(flow)
        changed = desk.store.change_limit(name, 1, actor="ada", note="slow", key="a")
        assert changed == LimitRow(f"{name}/a", 1, 2, 1, "ada", desk.now)
        assert changed in desk.store.limits()
        (line,) = desk.store.audit_trail()
        assert (line.subject, line.details) == (
            f"{name}/a", '{"n":1,"before":2,"declared":2}',
        )  # fmt: skip
        for key in "aaaabbb":
            desk.submit_keyed(key, flow)
        desk.declare(flow)
        assert _keys(desk.claim("w", 9, flow)) == ["a", "b", "b"]
        desk.store.change_limit(name, 1, actor="ada", note="")
        desk.store.change_limit(name, 3, actor="ada", note="", key="a")
        desk.store.unpark(9)
        assert _keys(desk.claim("w", 9, flow)) == ["a", "a"]
        back = desk.store.change_limit(name, None, actor="ada", note="", key="a")
        assert back is not None
        assert (back.n, back.actor) == (1, None)
        assert [row.name for row in desk.store.limits() if row.name.startswith(name)] == [name]
        assert sum(not slot.closed for slot in desk.store.slots(f"{name}/a")) == 1

    @pytest.mark.shows("E-65", "E-60")
    def test_a_key_that_lets_nobody_in_stays_so_when_nobody_has_used_it(self, desk: Desk) -> None:
        desk.store.change_limit(KEYED_LIMIT, 0, actor="ada", note="", key="a")
        desk.store.sweep(9)
        for key in "ab":
            desk.submit_keyed(key, KEYED)
        assert _keys(desk.claim("w", 9, KEYED)) == ["b"]
        assert desk.store.unpark(9) == 0
        assert desk.store.change_limit(TIGHT_LIMIT, 1, actor="ada", note="", key="a") is None

    @pytest.mark.shows("E-85", "E-29")
    def test_unparking_comes_to_every_key_in_bounded_steps(self, desk: Desk) -> None:
        desk.store.change_limit(KEYED_LIMIT, 1, actor="ada", note="")
        for _ in range(2):
            payloads = [json.dumps({"key": f"k{n}", "cost": 1}).encode() for n in range(600)]
            for start in range(0, 600, 300):
                part = payloads[start : start + 300]
                desk.store.add([desk.new(KEYED, payload=payload) for payload in part])
        while desk.claim("w", 200, KEYED) or any(
            row.parked_on is None and row.leased_by is None for row in desk.jobs()
        ):
            pass
        desk.store.change_limit(KEYED_LIMIT, 2, actor="ada", note="")
        unparked = [desk.store.unpark(200) for _ in range(8)]
        assert max(unparked) <= 200
        assert sum(unparked) == 600
        assert unparked[-1] == 0

    @pytest.mark.shows("E-60")
    def test_every_change_is_audited_with_what_it_was_before(self, desk: Desk) -> None:
        desk.store.change_limit(TIGHT_LIMIT, 7, actor="ada", note="more room")
        desk.turn(seconds=5)
        desk.store.change_limit(TIGHT_LIMIT, None, actor="bob", note="")
        latest, first = desk.store.audit_trail(subject=TIGHT_LIMIT)
        assert (first.actor, first.act, first.subject) == ("ada", "limit", TIGHT_LIMIT)
        assert (first.note, first.details) == ("more room", '{"n":7,"before":2,"declared":2}')
        assert (latest.actor, latest.note, latest.at) == ("bob", None, desk.now)
        assert desk.store.audit_trail(before=latest.position, limit=1) == [first]
        assert desk.store.audit_trail(subject="other") == []

    @pytest.mark.shows("E-29", "E-60")
    def test_no_key_is_ever_run_by_more_than_its_limit(self, desk: Desk) -> None:
        keys = "abc"
        jobs = [desk.submit_keyed(keys[n % 3], KEYED) for n in range(60)]
        running: Counter[str] = Counter()
        most: Counter[str] = Counter()
        lock, done = threading.Lock(), set[bytes]()

        def work(worker: str) -> None:
            desk.hire(worker, lease=timedelta(hours=1))
            while len(done) < len(jobs):
                claims = desk.claim(worker, 3, KEYED)
                if not claims:
                    # Who parks while another frees the slot is let in by upkeep (E-29).
                    desk.store.unpark(100)
                for claim in claims:
                    slot = claim.row.slot or ""
                    with lock:
                        running[slot] += 1
                        most[slot] = max(most[slot], running[slot])
                    change = desk.end(claim.row, flow=KEYED)
                    with lock:
                        running[slot] -= 1
                        done.add(claim.row.id)
                    patiently(desk.write, change)

        with ThreadPoolExecutor(8) as pool:
            list(pool.map(work, [f"w{n}" for n in range(8)]))
        assert set(most) == {f"{KEYED_LIMIT}/{key}" for key in keys}
        assert max(most.values()) <= 2
        assert {row.state for row in desk.jobs()} == {"done"}


def _keys(claims: list[Claim]) -> list[str]:
    return sorted(limit_name(claim.row.slot or "").rpartition("/")[2] for claim in claims)
