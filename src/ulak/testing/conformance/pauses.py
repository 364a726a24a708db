"""Pauses: of a queue, a flow or a key, until a date or until somebody resumes."""

from __future__ import annotations

from datetime import timedelta

import pytest

from ulak.clock import SECOND
from ulak.core.change import SlotTaken
from ulak.core.outcome import Deferred
from ulak.store.protocol import PauseRow, Store
from ulak.testing.conformance.desk import Desk, Suite
from ulak.testing.conformance.flows import KEPT, LINE, METERED, SHARED


class TestPauses(Suite):
    """What is paused is not claimed, and nothing is lost by it."""

    @pytest.fixture
    def desk(self, store: Store) -> Desk:
        if not store.features.flow_control:
            pytest.skip("this store has no flow control")
        desk = Desk(store)
        desk.declare(KEPT, METERED)
        desk.hire("w", "other", lease=timedelta(hours=9))
        return desk

    @pytest.mark.shows("E-60")
    @pytest.mark.parametrize("kind", ["queue", "flow"])
    def test_no_job_of_a_paused_queue_or_flow_is_claimed(self, desk: Desk, kind: str) -> None:
        row, other = desk.submit(), desk.submit(SHARED)
        assert _pause(desk, kind, "line") is None
        seen = desk.look("w", 9, (LINE, SHARED))
        assert [c.row.id for c in seen.claims] == [other.id]
        assert seen.paused == {(kind, "line")}
        assert desk.job(row.id) == row, "it stays where it is"
        ended = desk.store.resume(kind, "line", actor="bob", note="")
        assert ended is not None
        assert (ended.actor, ended.until_at) == ("ada", None)
        assert desk.lease().id == row.id

    @pytest.mark.shows("E-60")
    def test_a_fair_flow_is_paused_with_all_its_tenants(self, desk: Desk) -> None:
        for tenant in ("a", "b"):
            desk.submit(SHARED, tenant=tenant)
        _pause(desk, "flow", "shared")
        assert desk.claim("w", 9, SHARED) == []
        desk.store.resume("flow", "shared", actor="bob", note="")
        assert len(desk.claim("w", 9, SHARED)) == 2

    @pytest.mark.shows("E-60")
    def test_a_pause_with_an_end_ends_by_itself(self, desk: Desk) -> None:
        row = desk.submit()
        _pause(desk, "flow", "line", seconds=10)
        assert desk.look("w", 9).next_at == desk.now + 10 * SECOND
        desk.turn(seconds=9)
        assert desk.claim("w", 9) == []
        assert desk.store.pauses() == [
            PauseRow("flow", "line", desk.now + SECOND, "ada", "because", desk.now - 9 * SECOND)
        ]
        desk.turn(seconds=1)
        assert desk.store.pauses() == []
        assert desk.lease().id == row.id
        assert desk.look("w").paused == frozenset()

    @pytest.mark.shows("E-60")
    def test_the_jobs_of_a_paused_key_are_parked_until_its_end(self, desk: Desk) -> None:
        a, b = desk.submit_keyed("a", METERED), desk.submit_keyed("b", METERED)
        _pause(desk, "key", "a", seconds=10)
        seen = desk.look("w", 9, (METERED,))
        assert [c.row.id for c in seen.claims] == [b.id]
        assert seen.next_at == desk.now + 10 * SECOND
        assert seen.paused == frozenset()
        assert desk.job(a.id).parked_on == "/key/a"
        assert desk.store.unpark(9) == 0
        desk.turn(seconds=10)
        seen = desk.look("w", 9, (METERED,))
        assert ([c.row.id for c in seen.claims], seen.unparked) == ([a.id], 1)

    @pytest.mark.shows("E-60")
    def test_resuming_a_key_unparks_its_jobs(self, desk: Desk) -> None:
        rows = [desk.submit_keyed("a", METERED) for _ in range(3)]
        _pause(desk, "key", "a")
        assert desk.claim("w", 9, METERED) == []
        assert {desk.job(row.id).parked_on for row in rows} == {"/key/a"}
        desk.store.resume("key", "a", actor="bob", note="")
        assert {desk.job(row.id).parked_on for row in rows} == {None}
        assert [c.row.id for c in desk.claim("w", 9, METERED)] == [rows[0].id]

    @pytest.mark.shows("E-60")
    def test_a_large_crowd_is_unparked_by_the_claims_that_follow(self, desk: Desk) -> None:
        for _ in range(6):
            desk.store.add([desk.new(METERED, payload=b'{"key":"a"}') for _ in range(200)])
        _pause(desk, "key", "a")
        while len([row for row in desk.jobs() if row.parked_on]) < 1200:
            desk.look("w", 9, (METERED,))
        desk.store.resume("key", "a", actor="bob", note="")
        for _ in range(5):
            desk.look("w", 0, (METERED,))
        assert [row for row in desk.jobs() if row.parked_on == "/key/a"] == []

    @pytest.mark.shows("E-28", "E-60")
    def test_a_lease_is_not_kept_into_a_stage_whose_key_is_paused(self, desk: Desk) -> None:
        desk.submit_keyed("a", KEPT)
        row = desk.lease(KEPT)
        _pause(desk, "key", "a")
        change = desk.end(row, flow=KEPT, keep=True)
        assert desk.commit(change) == SlotTaken("kept/only/a")
        desk.write(desk.end(row, flow=KEPT))
        assert desk.claim("w", 9, KEPT) == []
        assert desk.job(row.id).parked_on == "/key/a"

    @pytest.mark.shows("E-9", "E-60")
    def test_a_run_pauses_a_key_with_the_change_that_defers_it(self, desk: Desk) -> None:
        first, second = desk.submit_keyed("a", METERED), desk.submit_keyed("a", METERED)
        leased = desk.lease(METERED)
        busy = Deferred(timedelta(seconds=20), False, "429", "a")
        desk.write(desk.end(leased, busy, flow=METERED))
        (pause,) = desk.store.pauses()
        assert pause == PauseRow("key", "a", desk.now + 20 * SECOND, "w", None, desk.now)
        assert desk.claim("w", 9, METERED) == []
        assert desk.job(second.id).parked_on == "/key/a"
        desk.turn(seconds=20)
        assert {c.row.id for c in desk.claim("w", 1, METERED)} == {second.id}
        assert desk.job(first.id).not_before == desk.now
        (line,) = desk.store.audit_trail()
        assert (line.actor, line.act, line.subject) == ("w", "pause", "key/a")

    @pytest.mark.shows("E-60")
    def test_a_run_lengthens_a_pause_and_never_shortens_one(self, desk: Desk) -> None:
        desk.store.change_limit("metered/only", 9, actor="ada", note="")
        for _ in range(2):
            desk.submit_keyed("a", METERED)
        one, two = (c.row for c in desk.claim("w", 9, METERED))
        for row, seconds in ((one, 30), (two, 20)):
            later = Deferred(timedelta(seconds=seconds), False, "429", "a")
            desk.write(desk.end(row, later, flow=METERED))
        assert [p.until_at for p in desk.store.pauses()] == [desk.now + 30 * SECOND]
        assert [line.act for line in desk.store.audit_trail(subject="key/a")] == ["pause"]

    @pytest.mark.shows("E-60")
    def test_an_operators_pause_without_an_end_outlasts_that_of_a_run(self, desk: Desk) -> None:
        desk.submit_keyed("a", METERED)
        row = desk.lease(METERED)
        _pause(desk, "key", "a")
        later = Deferred(timedelta(seconds=20), False, "429", "a")
        desk.write(desk.end(row, later, flow=METERED))
        assert [p.until_at for p in desk.store.pauses()] == [None]

    @pytest.mark.shows("E-60")
    def test_pausing_again_sets_another_end_and_says_what_it_was(self, desk: Desk) -> None:
        _pause(desk, "queue", "line")
        before = _pause(desk, "queue", "line", seconds=5)
        assert before is not None
        assert before.until_at is None
        assert [p.until_at for p in desk.store.pauses()] == [desk.now + 5 * SECOND]
        desk.turn(seconds=5)
        assert _pause(desk, "queue", "line") is None, "the one before was over"

    def test_resuming_what_is_not_paused_changes_nothing(self, desk: Desk) -> None:
        assert desk.store.resume("queue", "line", actor="ada", note="") is None
        assert desk.store.audit_trail() == []

    @pytest.mark.shows("E-60")
    def test_pauses_and_their_ends_are_audited(self, desk: Desk) -> None:
        _pause(desk, "queue", "line")
        desk.store.resume("queue", "line", actor="bob", note="done")
        resumed, paused = desk.store.audit_trail(subject="queue/line")
        assert (paused.actor, paused.act, paused.note) == ("ada", "pause", "because")
        assert paused.details == '{"until_at":null,"before":null}'
        assert (resumed.actor, resumed.act, resumed.note) == ("bob", "resume", "done")


def _pause(desk: Desk, kind: str, name: str, *, seconds: int | None = None) -> PauseRow | None:
    until = None if seconds is None else desk.now + seconds * SECOND
    return desk.store.pause(kind, name, until=until, actor="ada", note="because")
