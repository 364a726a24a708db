"""Reading: lists, trails and counters tell what is stored."""

from __future__ import annotations

import pytest

from ulak.core.outcome import Cancel, Held
from ulak.store.protocol import JobFilter
from ulak.testing.conformance.desk import Desk, Suite
from ulak.testing.conformance.flows import BUSY, EVERY, LINE, REVIEW, SAGA
from ulak.testing.conformance.history import History, recount

ABSENT = b"\xff" * 16


class TestReading(Suite):
    """A reader sees what the last commit left."""

    def test_what_is_not_there_is_answered_as_absent(self, desk: Desk) -> None:
        store = desk.store
        assert store.find_job(ABSENT) is None
        assert store.find_payload(ABSENT) is None
        assert store.find_progress(ABSENT) is None
        assert store.find_key("", "line", "k") is None
        assert store.find_results(ABSENT) == []
        assert store.find_owners(ABSENT) == []
        assert store.find_owned("ada") == []
        assert store.trail(ABSENT) == []
        assert store.pending_requests(ABSENT) == []
        assert store.scan_messages(ABSENT) == []
        assert store.counts() == []
        assert store.workers() == []
        assert store.slots() == []
        assert store.proof_heads() == {}
        assert store.scan_orphans() == []

    @pytest.mark.shows("E-44")
    def test_a_trail_is_read_in_the_order_of_its_numbers_and_in_pages(self, desk: Desk) -> None:
        (row,) = desk.leased(1)
        desk.finish(row)
        desk.finish(desk.lease())
        trail = desk.store.trail(row.id)
        assert [event.seq for event in trail] == [1, 2, 3]
        assert desk.store.trail(row.id, after=1) == trail[1:]
        assert desk.store.trail(row.id, after=1, limit=1) == trail[1:2]
        assert desk.store.trail(row.id, after=3) == []

    def test_jobs_are_listed_newest_first_in_pages(self, desk: Desk) -> None:
        ids = [row.id for row in desk.submit_many(5)][::-1]
        page = [row.id for row in desk.store.list_jobs(JobFilter(), limit=2)]
        assert page == ids[:2]
        page = [row.id for row in desk.store.list_jobs(JobFilter(), after=ids[1], limit=2)]
        assert page == ids[2:4]
        assert [row.id for row in desk.store.list_jobs(JobFilter(), after=ids[3])] == ids[4:]
        assert desk.store.list_jobs(JobFilter(), after=ids[4]) == []
        assert desk.store.count_jobs(JobFilter()) == 5
        assert desk.store.count_jobs(JobFilter(), after=ids[1]) == 3
        assert desk.store.count_jobs(JobFilter(), after=ids[4]) == 0

    def test_a_filter_shows_the_jobs_for_which_every_condition_holds(self, desk: Desk) -> None:
        held, moved = desk.leased(2)
        desk.write(desk.end(held, Held("odd", "look")), desk.end(moved))
        foreign = desk.submit(BUSY, tenant="acme")
        wanted = {
            JobFilter(): {held.id, moved.id, foreign.id},
            JobFilter(tenant=""): {held.id, moved.id},
            JobFilter(tenant="acme"): {foreign.id},
            JobFilter(flow="line"): {held.id, moved.id},
            JobFilter(state="second"): {moved.id},
            JobFilter(role="held"): {held.id},
            JobFilter(code="odd"): {held.id},
            JobFilter(queue="busy"): {foreign.id},
            JobFilter(flow="line", role="ready", tenant=""): {moved.id},
            JobFilter(flow="busy", role="held"): set(),
        }
        for where, ids in wanted.items():
            assert {row.id for row in desk.store.list_jobs(where)} == ids, where
            assert desk.store.count_jobs(where) == len(ids), where

    def test_every_job_is_scanned_upward_by_id(self, desk: Desk) -> None:
        ids = [row.id for row in desk.submit_many(5)]
        assert [row.id for row in desk.store.scan_jobs(limit=2)] == ids[:2]
        assert [row.id for row in desk.store.scan_jobs(after=ids[1])] == ids[2:]

    @pytest.mark.shows("E-48")
    def test_counts_follow_submits_claims_and_moves(self, desk: Desk) -> None:
        desk.submit_many(2, BUSY)
        desk.submit_many(3, LINE)
        desk.hire("w")
        desk.lease(BUSY)
        desk.finish(desk.lease(LINE))
        assert {(c.flow, c.state, c.role): c.jobs for c in desk.store.counts()} == {
            ("busy", "queued", "ready"): 1,
            ("busy", "running", "busy"): 1,
            ("line", "first", "ready"): 2,
            ("line", "second", "ready"): 1,
        }

    @pytest.mark.shows("E-48")
    def test_counts_tell_a_job_that_undoes_from_one_that_works_in_the_same_state(
        self, desk: Desk
    ) -> None:
        one, _ = desk.leased(2, SAGA)
        desk.write(desk.end(one, asked=Cancel("ada"), outcome=Held("x", "y"), flow=SAGA))
        assert {(c.state, c.role): c.jobs for c in desk.store.counts()} == recount(desk, "saga")

    @pytest.mark.shows("E-48")
    @pytest.mark.parametrize("seed", range(6))
    def test_counts_equal_a_recount_after_any_history(self, desk: Desk, seed: int) -> None:
        history = History(desk, seed)
        for _ in range(8):
            history.go_on(40)
            self._must_be_exact(desk)
            desk.store.fold_counts()
            self._must_be_exact(desk)

    @staticmethod
    def _must_be_exact(desk: Desk) -> None:
        counts = desk.store.counts()
        for flow in EVERY:
            counted = {(c.state, c.role): c.jobs for c in counts if c.flow == flow.name and c.jobs}
            assert counted == recount(desk, flow.name)

    @pytest.mark.shows("E-2")
    @pytest.mark.parametrize("seed", range(6, 12))
    def test_after_any_history_rows_trails_slots_and_keys_agree(
        self, desk: Desk, seed: int
    ) -> None:
        history = History(desk, seed)
        for _ in range(8):
            history.go_on(40)
            history.check()

    def test_nothing_is_heard_from_elsewhere_when_nobody_else_writes(self, desk: Desk) -> None:
        desk.store.changed_elsewhere()
        desk.submit(REVIEW)
        # One that hears its own commits as well hears them once.
        assert not all(desk.store.changed_elsewhere() for _ in range(3))
