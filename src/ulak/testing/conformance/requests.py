"""Requests: what is asked of a leased job reaches its worker, and waits until it is settled."""

from __future__ import annotations

from datetime import timedelta

import pytest

from ulak.clock import micros
from ulak.core.change import Committed
from ulak.core.job import Request
from ulak.core.outcome import Cancel, Deferred, Elapsed, Signal
from ulak.store.protocol import Progress
from ulak.testing.conformance.desk import LEASE, Desk, Suite
from ulak.testing.conformance.flows import BRIEF, LINE, WAITS


class TestRequests(Suite):
    """No operator moves a leased job: a request is kept beside it, once, until it is answered."""

    @pytest.mark.shows("E-18")
    def test_a_request_is_answered_by_whether_a_worker_will_see_it(self, desk: Desk) -> None:
        free = desk.submit()
        assert not desk.ask(free)
        desk.hire("w")
        assert desk.ask(desk.lease())

    def test_a_request_of_a_job_that_is_not_there_leaves_nothing(self, desk: Desk) -> None:
        absent = desk.new().row
        assert not desk.ask(absent)
        assert desk.store.pending_requests(absent.id) == []
        assert desk.store.scan_orphans() == []

    def test_the_same_request_made_twice_is_one(self, desk: Desk) -> None:
        (row,) = desk.leased(1)
        desk.ask(row, "cancel", actor="ada", note="first", data=b"1")
        desk.ask(row, "cancel", actor="ben", note="second")
        desk.ask(row, "signal", "paid")
        desk.ask(row, "signal", "sent")
        pending = desk.store.pending_requests(row.id)
        assert sorted((r.kind, r.name) for r in pending) == [
            ("cancel", ""), ("signal", "paid"), ("signal", "sent"),
        ]  # fmt: skip
        assert Request(row.id, "cancel", "", "ada", "first", b"1", desk.now) in pending
        assert desk.job(row.id).requests == 3

    @pytest.mark.shows("E-18")
    def test_a_workers_commit_returns_what_was_asked_meanwhile(self, desk: Desk) -> None:
        row, other = desk.leased(2)
        desk.ask(row, "cancel")
        asked = desk.store.pending_requests(row.id)
        changes = [desk.end(other, keep=True), desk.end(row, keep=True)]
        assert desk.store.commit(changes) == [Committed(), Committed(tuple(asked))]
        assert desk.store.commit(changes) == [Committed(), Committed(tuple(asked))]

    @pytest.mark.shows("E-39")
    def test_a_claim_and_a_renewal_bring_the_requests_of_that_workers_jobs(
        self, desk: Desk
    ) -> None:
        (mine,) = desk.leased(1)
        (other,) = desk.leased(1, worker="other")
        desk.ask(mine, "cancel")
        desk.ask(other, "cancel")
        desk.ask(desk.submit(), "cancel")
        asked = desk.store.pending_requests(mine.id)
        assert desk.look("w", 0).requests == asked
        assert desk.store.renew("w", lease_us=micros(LEASE)).requests == asked

    def test_a_job_that_is_claimed_brings_what_was_asked_before(self, desk: Desk) -> None:
        row = desk.submit()
        desk.ask(row, "cancel")
        desk.hire("w")
        seen = desk.look()
        assert seen.requests == desk.store.pending_requests(row.id)
        assert seen.claims[0].row.requests == 1

    @pytest.mark.shows("E-39")
    def test_a_change_settles_the_requests_that_it_answers_and_no_others(self, desk: Desk) -> None:
        (row,) = desk.leased(1)
        desk.ask(row, "cancel")
        desk.ask(row, "signal", "paid")
        change = desk.end(row, asked=Cancel("ada", "enough"))
        assert change.answers == (("cancel", ""),)
        (left,) = (r for r in desk.store.pending_requests(row.id) if r.kind == "signal")
        assert desk.commit(change) == Committed((left,))
        ended = desk.job(row.id)
        assert (ended.role, ended.requests) == ("cancelled", 1)
        assert desk.store.pending_requests(row.id) == [left]

    def test_a_refused_change_settles_nothing(self, desk: Desk) -> None:
        (row,) = desk.leased(1)
        desk.ask(row, "cancel")
        stale = desk.end(row, asked=Cancel("ada"))._replace(token=row.token + 1)
        desk.commit(stale)
        assert len(desk.store.pending_requests(row.id)) == 1
        assert desk.job(row.id).requests == 1

    def test_dismissed_requests_are_gone(self, desk: Desk) -> None:
        (row,) = desk.leased(1)
        desk.ask(row, "cancel")
        desk.ask(row, "signal", "paid")
        desk.store.dismiss(row.id, [("cancel", ""), ("expire", "")])
        assert [r.kind for r in desk.store.pending_requests(row.id)] == ["signal"]
        assert desk.job(row.id).requests == 1
        desk.store.dismiss(row.id, [("cancel", "")])
        assert desk.job(row.id) == row._replace(requests=1)

    def test_unleased_jobs_that_are_asked_for_something_are_found(self, desk: Desk) -> None:
        (leased,) = desk.leased(1)
        free = desk.submit(WAITS)
        desk.ask(leased, "cancel")
        desk.ask(free, "signal", "paid", data=b"1")
        ((row, asked),) = desk.store.asked(10)
        assert row == free._replace(requests=1)
        assert asked == desk.store.pending_requests(free.id)
        assert desk.store.asked(10, after=free.id) == []
        signal = Signal("ada", name="paid", data=asked[0].data)
        (paid,) = desk.write(desk.act(row, signal, flow=WAITS))
        assert (paid.state, paid.requests) == ("paid", 0)
        assert desk.store.asked(10) == []
        desk.finish(leased)
        assert [row.id for row, _ in desk.store.asked(10)] == [leased.id]

    @pytest.mark.shows("E-39")
    def test_overdue_leased_jobs_are_found_until_their_expiry_is_asked_for(
        self, desk: Desk
    ) -> None:
        desk.submit(BRIEF)
        desk.submit(LINE)
        desk.hire("w", lease=timedelta(days=1))
        row = desk.lease(BRIEF)
        desk.turn(minutes=59)
        assert desk.store.overdue_leased(10) == []
        desk.turn(minutes=1)
        assert desk.store.overdue_leased(10) == [row]
        assert desk.store.due(10) == []
        desk.ask(row, "cancel")
        assert len(desk.store.overdue_leased(10)) == 1
        desk.ask(row, "expire")
        assert desk.store.overdue_leased(10) == []
        late = desk.end(
            row, Deferred(timedelta(minutes=1), False, "later"), flow=BRIEF, asked=Elapsed()
        )
        (expired,) = desk.write(late)
        assert (expired.role, expired.requests) == ("expired", 1)

    def test_progress_is_kept_beside_the_job_and_not_in_its_trail(self, desk: Desk) -> None:
        (row,) = desk.leased(1)
        assert desk.store.find_progress(row.id) is None
        latest = Progress(row.id, 0.75, None, desk.now)
        desk.store.report([Progress(row.id, 0.25, "a quarter", desk.now)])
        desk.store.report([latest, Progress(b"\xff" * 16, 0.5, None, desk.now)])
        assert desk.store.find_progress(row.id) == latest
        assert desk.store.find_progress(b"\xff" * 16) is None
        assert desk.job(row.id) == row
        assert desk.kinds(row.id) == ["submitted"]
