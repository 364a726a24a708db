"""Upkeep and retention: what the clock finds, and what may be forgotten."""

from __future__ import annotations

from datetime import timedelta

import pytest

from ulak.core.delivery import NOBODY, SENT
from ulak.core.job import JobRow
from ulak.core.outcome import Cancel, Decide, Elapsed, Held, Raised
from ulak.core.policy import LimitTerms
from ulak.store.protocol import Added, Progress, Settled
from ulak.testing.conformance.desk import Desk, Suite
from ulak.testing.conformance.flows import BRIEF, DATED, LINE, REVIEW, TIGHT, WAITS

PERMANENT = Raised("boom", "it broke", permanent=True)


class TestUpkeep(Suite):
    """Unfinished jobs are woken in time and never forgotten."""

    @pytest.mark.shows("E-12")
    def test_jobs_whose_date_has_come_are_found_the_oldest_first(self, desk: Desk) -> None:
        late = desk.submit(WAITS)
        desk.turn(minutes=10)
        later = desk.submit(REVIEW)
        desk.submit(LINE)
        desk.turn(minutes=49)
        assert desk.store.due(10) == []
        desk.turn(minutes=1)
        assert desk.store.due(10) == [late]
        desk.turn(minutes=10)
        assert desk.store.due(10) == [late, later]
        assert desk.store.due(1) == [late]
        assert desk.store.due(10, after=(late.wake_at or 0, late.id)) == [later]
        assert desk.store.due(10, after=(later.wake_at or 0, later.id)) == []
        desk.write(desk.act(late, Elapsed(), flow=WAITS))
        assert desk.store.due(10) == [later]

    @pytest.mark.shows("E-2")
    def test_claimable_jobs_of_a_lane_are_found_and_not_taken(self, desk: Desk) -> None:
        delayed = desk.submit(LINE, after=10)
        late, urgent = desk.submit(LINE), desk.submit(LINE, priority=0)
        desk.submit(REVIEW)
        desk.hire("w", lease=timedelta(days=1))
        taken = desk.submit(LINE, priority=0)
        found = desk.store.find_claimable(taken.lane, 10)
        assert [row.id for row in found] == [urgent.id, taken.id, late.id]
        assert desk.store.find_claimable(taken.lane, 10) == found, "nothing was taken"
        assert desk.store.find_claimable(taken.lane, 1) == found[:1]
        assert desk.store.find_claimable("nobody's/loop/line@1#x", 10) == []
        leased = [claim.row.id for claim in desk.claim("w", 2)]
        assert set(leased) == {urgent.id, taken.id}
        desk.turn(seconds=10)
        found = desk.store.find_claimable(taken.lane, 10)
        assert [row.id for row in found] == [late.id, delayed.id]

    def test_a_leased_job_is_not_due(self, desk: Desk) -> None:
        desk.submit(BRIEF)
        desk.hire("w", lease=timedelta(days=1))
        row = desk.lease(BRIEF)
        desk.turn(hours=2)
        assert desk.store.due(10) == []
        assert desk.store.overdue_leased(10) == [row]

    @pytest.mark.shows("E-52")
    def test_pruning_leaves_every_unfinished_job(self, desk: Desk) -> None:
        desk.store.declare({"tight/only": LimitTerms(1)})
        held, undone = desk.leased(2)
        desk.write(desk.end(held, Held("odd", "look")))
        desk.submit_many(2, TIGHT)
        desk.claim("w", 5, TIGHT)
        desk.submit(LINE, after=timedelta(days=400))
        desk.submit(WAITS)
        desk.submit(REVIEW)
        desk.write(desk.end(undone, PERMANENT))
        before = {row.id for row in desk.jobs()} - {undone.id}
        desk.turn(days=100)
        assert desk.store.prune(before=desk.now, limit=100) == 1
        assert {row.id for row in desk.jobs()} == before

    @pytest.mark.shows("E-52")
    def test_a_pruned_job_is_gone_with_everything_of_its_own(self, desk: Desk) -> None:
        row = _ended(desk, dedup_key="k")
        other = _ended(desk)
        desk.ask(row, "cancel")
        desk.store.report([Progress(row.id, 1.0, None, desk.now)])
        desk.turn(days=1)
        young = _ended(desk)
        before = young.changed_at
        assert desk.store.prune(before=before, limit=1, actor="olga", note="spring") == 1
        (line,) = desk.store.audit_trail(subject="jobs")
        assert (line.actor, line.act, line.note) == ("olga", "prune", "spring")
        assert '"jobs":1' in line.details
        gone = row if desk.store.find_job(row.id) is None else other
        assert desk.store.prune(before=young.changed_at, limit=9) == 1
        assert desk.store.prune(before=young.changed_at, limit=9) == 0
        for job in (gone, row, other):
            assert desk.store.find_job(job.id) is None
            assert desk.store.find_payload(job.id) is None
            assert desk.store.find_progress(job.id) is None
            assert desk.store.find_results(job.id) == []
            assert desk.store.pending_requests(job.id) == []
            assert desk.store.scan_messages(job.id) == []
            assert desk.store.trail(job.id) == []
        assert [r.id for r in desk.jobs()] == [young.id]
        assert sum(count.jobs for count in desk.store.counts()) == 1
        assert desk.store.scan_orphans() == []

    def test_a_job_that_ended_at_that_very_moment_or_later_stays(self, desk: Desk) -> None:
        row = _ended(desk)
        assert desk.store.prune(before=row.changed_at, limit=9) == 0
        assert desk.store.prune(before=row.changed_at + 1, limit=9) == 1

    @pytest.mark.shows("E-30")
    def test_a_job_stays_while_a_duplicate_would_be_answered_with_it(self, desk: Desk) -> None:
        desk.submit(DATED, dedup_key="k")
        desk.hire("w")
        row = desk.finish(desk.lease(DATED), flow=DATED)
        desk.turn(minutes=59)
        assert desk.store.prune(before=desk.now, limit=9) == 0
        assert desk.store.add([desk.new(DATED, dedup_key="k")]) == [Added(row, False)]
        desk.turn(minutes=1)
        assert desk.store.prune(before=desk.now, limit=9) == 1
        assert list(desk.store.scan_keys()) == []
        assert desk.store.add([desk.new(DATED, dedup_key="k")])[0].created

    @pytest.mark.shows("E-45")
    def test_a_job_stays_while_a_message_of_it_is_unsent(self, desk: Desk) -> None:
        (row,) = desk.leased(1)
        (row,) = desk.write(desk.emit(row, "key"))
        desk.write(desk.act(row, Cancel("ada")))
        desk.turn(days=30)
        assert desk.store.prune(before=desk.now, limit=9) == 0
        (out,) = desk.store.take_messages(NOBODY, 9, hold_us=1)
        desk.store.settle_messages([Settled(out.message, NOBODY, SENT)])
        assert desk.store.prune(before=desk.now, limit=9) == 1

    def test_folding_counts_twice_or_with_nothing_to_fold_is_nothing(self, desk: Desk) -> None:
        desk.store.fold_counts()
        desk.submit_many(3)
        desk.hire("w")
        row = desk.lease()
        before = desk.store.counts()
        desk.store.fold_counts()
        desk.store.fold_counts()
        assert desk.store.counts() == before
        desk.finish(row)
        assert {c.state: c.jobs for c in desk.store.counts()} == {"first": 2, "second": 1}

    def test_a_gate_that_nobody_answered_can_be_answered_no_more(self, desk: Desk) -> None:
        row = desk.submit(REVIEW)
        desk.turn(hours=2)
        (late,) = desk.write(desk.act(row, Elapsed(), flow=REVIEW))
        assert late.state == "no"
        answer = desk.act(row, Decide("ada", choice="approve"), flow=REVIEW)
        desk.commit(answer)
        assert desk.job(row.id) == late

    def test_opening_and_migrating_again_changes_nothing(self, desk: Desk) -> None:
        row = desk.submit()
        before, after = desk.store.migrate()
        assert before == after
        assert desk.job(row.id) == row


def _ended(desk: Desk, dedup_key: str | None = None) -> JobRow:
    """A job that has failed, with a result and a message that was sent."""
    desk.submit(dedup_key=dedup_key)
    desk.hire("w")
    (row,) = desk.write(desk.emit(desk.lease(), "key"))
    (out,) = desk.store.take_messages(NOBODY, 9, hold_us=1)
    desk.store.settle_messages([Settled(out.message, NOBODY, SENT)])
    (row,) = desk.write(desk.end(desk.lease(), PERMANENT))
    return row
