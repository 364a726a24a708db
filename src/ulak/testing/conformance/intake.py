"""Intake: the same submission makes the same job, and a dedup key has one holder."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta

import pytest

from ulak.clock import micros
from ulak.core.change import Committed, KeyTaken
from ulak.core.job import JobRow, Payload
from ulak.core.outcome import Raised, Retry
from ulak.errors import BadInput
from ulak.store.protocol import Added, DedupRow
from ulak.testing.conformance.desk import LEASE, Desk, Suite, patiently, snapshot
from ulak.testing.conformance.flows import DATED, LINE

TRACE = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01"
PERMANENT = Raised("boom", "it broke", permanent=True)


class TestIntake(Suite):
    """A job is accepted once."""

    def test_a_new_job_is_stored_with_its_payload_its_event_and_its_key(self, desk: Desk) -> None:
        job = desk.new(
            payload=b'{"n":1}', tenant="acme", submitter="ada", priority=2, dedup_key="k",
            after=timedelta(seconds=5), expires=timedelta(days=1), scheduled_for=12345,
        )  # fmt: skip
        assert desk.store.add([job]) == [Added(job.row, True)]
        assert desk.store.find_job(job.row.id) == job.row
        assert desk.store.find_payload(job.row.id) == Payload(b'{"n":1}', 1)
        assert desk.store.trail(job.row.id) == [job.event]
        assert desk.store.find_key("acme", "line", "k") == job.row.id
        assert list(desk.store.scan_keys()) == [DedupRow("acme", "line", "k", job.row.id, None)]
        assert desk.store.scan_orphans() == []

    @pytest.mark.parametrize("given", [[TRACE], [None], [TRACE, None, TRACE[:-1] + "0"]])
    def test_a_trace_is_stored_and_claimed_with_the_payload(
        self, desk: Desk, given: list[str | None]
    ) -> None:
        jobs = [desk.new()._replace(payload=Payload(b"1", 1, trace)) for trace in given]
        desk.store.add(jobs)
        assert [desk.store.find_payload(job.row.id) for job in jobs] == [j.payload for j in jobs]
        desk.hire("w")
        assert [c.payload.trace for c in desk.claim("w", len(given))] == given

    @pytest.mark.shows("E-30")
    def test_a_duplicate_gets_the_first_job_back_and_stores_nothing(self, desk: Desk) -> None:
        first = desk.submit(dedup_key="k")
        before = snapshot(desk, [first.id])
        repeat = desk.new(dedup_key="k", payload=b"[2]")
        assert desk.store.add([repeat]) == [Added(first, False)]
        assert snapshot(desk, [first.id]) == before
        assert desk.store.find_payload(repeat.row.id) is None
        assert desk.store.trail(repeat.row.id) == []

    @pytest.mark.shows("E-30")
    def test_a_duplicate_gets_the_job_as_it_stands_now(self, desk: Desk) -> None:
        desk.submit(dedup_key="k")
        desk.hire("w")
        moved = desk.finish(desk.lease())
        assert desk.store.add([desk.new(dedup_key="k")]) == [Added(moved, False)]

    @pytest.mark.shows("E-30")
    def test_of_duplicates_inside_one_batch_the_first_is_stored(self, desk: Desk) -> None:
        batch = [desk.new(dedup_key=key) for key in ("a", "b", "a", "a", "b")]
        added = desk.store.add(batch)
        a, b = batch[0].row, batch[1].row
        assert added == [Added(a, True), Added(b, True), Added(a, False), Added(a, False),
                         Added(b, False)]  # fmt: skip
        assert {row.id for row in desk.jobs()} == {a.id, b.id}

    @pytest.mark.shows("E-30")
    def test_duplicates_and_new_jobs_in_one_batch_are_answered_each(self, desk: Desk) -> None:
        held = {key: desk.submit(dedup_key=key) for key in ("a", "b")}
        batch = [desk.new(dedup_key=key) for key in ("c", "b", "d", "a")]
        added = desk.store.add([*batch, desk.new()])
        assert [a.created for a in added] == [True, False, True, False, True]
        assert (added[1].row, added[3].row) == (held["b"], held["a"])
        assert len(desk.jobs()) == 5

    @pytest.mark.shows("E-30")
    def test_the_same_key_of_another_tenant_or_flow_is_another_key(self, desk: Desk) -> None:
        jobs = [
            desk.new(dedup_key="k"),
            desk.new(dedup_key="k", tenant="acme"),
            desk.new(DATED, dedup_key="k"),
            desk.new(),
            desk.new(),
        ]
        assert all(added.created for added in desk.store.add(jobs))
        assert desk.store.find_key("acme", "line", "k") == jobs[1].row.id
        assert desk.store.find_key("other", "line", "k") is None

    @pytest.mark.shows("E-30")
    def test_an_expired_key_is_taken_over(self, desk: Desk) -> None:
        old = desk.submit(DATED, dedup_key="k")
        desk.turn(minutes=59)
        assert desk.store.add([desk.new(DATED, dedup_key="k")]) == [Added(old, False)]
        desk.turn(minutes=1)
        assert desk.store.find_key("", "dated", "k") is None
        first, second = desk.new(DATED, dedup_key="k"), desk.new(DATED, dedup_key="k")
        assert desk.store.add([first, second]) == [Added(first.row, True), Added(first.row, False)]
        assert desk.store.find_key("", "dated", "k") == first.row.id

    @pytest.mark.shows("E-30")
    def test_a_job_that_ends_frees_its_own_key_and_no_successors(self, desk: Desk) -> None:
        key_expires_at = desk.now + 1
        old = desk.new(dedup_key="k")._replace(key_expires_at=key_expires_at)
        desk.store.add([old])
        desk.turn(seconds=1)
        desk.hire("w")
        leased = desk.lease()
        successor = desk.submit(dedup_key="k")
        desk.write(desk.end(leased, PERMANENT))
        assert desk.store.find_key("", "line", "k") == successor.id

    @pytest.mark.shows("E-30")
    def test_the_change_that_ends_a_job_frees_its_key(self, desk: Desk) -> None:
        desk.submit(dedup_key="k")
        desk.hire("w")
        desk.finish(desk.lease())
        assert desk.store.find_key("", "line", "k") is not None
        desk.finish(desk.lease())
        assert desk.store.find_key("", "line", "k") is None
        assert list(desk.store.scan_keys()) == []
        assert desk.store.add([desk.new(dedup_key="k")])[0].created

    @pytest.mark.shows("E-30")
    def test_a_retry_that_finds_its_key_held_is_told_who_holds_it(self, desk: Desk) -> None:
        failed = _failed(desk)
        holder = desk.submit(dedup_key="k")
        before = snapshot(desk, [failed.id, holder.id])
        retry = desk.act(failed, Retry("ada"))
        assert retry.takes_key
        assert desk.commit(retry) == KeyTaken(holder.id)
        assert snapshot(desk, [failed.id, holder.id]) == before

    @pytest.mark.shows("E-30")
    def test_a_retry_takes_its_key_again(self, desk: Desk) -> None:
        failed = _failed(desk)
        assert desk.commit(desk.act(failed, Retry("ada"))) == Committed()
        assert desk.store.find_key("", "line", "k") == failed.id
        (again,) = desk.store.add([desk.new(dedup_key="k")])
        assert (again.row.id, again.created) == (failed.id, False)

    @pytest.mark.shows("E-30")
    def test_a_retry_takes_over_a_key_that_has_expired(self, desk: Desk) -> None:
        failed = _failed(desk)
        holder = desk.new(dedup_key="k")._replace(key_expires_at=desk.now + 1)
        desk.store.add([holder])
        assert desk.commit(desk.act(failed, Retry("ada"))) == KeyTaken(holder.row.id)
        desk.turn(seconds=1)
        assert desk.commit(desk.act(failed, Retry("ada"))) == Committed()
        assert desk.store.find_key("", "line", "k") == failed.id

    @pytest.mark.shows("E-20")
    def test_adding_the_same_ids_again_is_success_and_writes_nothing(self, desk: Desk) -> None:
        batch = [desk.new(dedup_key="k"), desk.new()]
        ids = [job.row.id for job in batch]
        first = desk.store.add(batch)
        before = snapshot(desk, ids)
        assert desk.store.add(batch) == first
        assert snapshot(desk, ids) == before

    @pytest.mark.shows("E-20", "E-30")
    def test_adding_the_same_keyed_jobs_again_tells_their_maker_that_they_are_his(
        self, desk: Desk
    ) -> None:
        held = desk.submit(dedup_key="held")
        batch = [desk.new(dedup_key=key) for key in ("a", "b", "a", "held")]
        first = desk.store.add(batch)
        assert [added.created for added in first] == [True, True, False, False]
        assert first[-1].row == held
        before = snapshot(desk, [job.row.id for job in batch])
        assert desk.store.add(batch) == first
        assert [desk.store.add([job]) for job in batch] == [[added] for added in first]
        assert snapshot(desk, [job.row.id for job in batch]) == before

    @pytest.mark.shows("E-20")
    def test_an_add_repeated_after_the_job_moved_answers_it_as_it_stands(self, desk: Desk) -> None:
        job = desk.new()
        desk.store.add([job])
        desk.hire("w")
        moved = desk.finish(desk.lease())
        assert desk.store.add([job, desk.new()])[0] == Added(moved, True)

    @pytest.mark.shows("E-30", "E-21")
    def test_eight_threads_that_submit_the_same_keys_make_each_job_once(self, desk: Desk) -> None:
        start = threading.Barrier(8)

        def submit(n: int) -> list[Added]:
            keys = [f"k{m}" for m in range(50)]
            batch = [desk.new(dedup_key=key) for key in (keys if n % 2 else reversed(keys))]
            start.wait()
            added = [patiently(desk.store.add, batch[m : m + 10]) for m in range(0, 50, 10)]
            return [a for page in added for a in page]

        with ThreadPoolExecutor(8) as pool:
            answers = [a for page in pool.map(submit, range(8)) for a in page]
        assert sum(a.created for a in answers) == 50
        by_key = {(a.row.dedup_key, a.row.id) for a in answers}
        assert len(by_key) == 50
        assert {row.id for row in desk.jobs()} == {job_id for _, job_id in by_key}

    def test_a_submission_that_no_store_can_keep_is_refused_before_it_gets_there(
        self, desk: Desk
    ) -> None:
        for key in ("a\x00b", "\ud800", "k" * 501):
            with pytest.raises(BadInput):
                desk.new(LINE, dedup_key=key)


def _failed(desk: Desk) -> JobRow:
    """A job that has failed, given its key back, and may be retried."""
    desk.submit(dedup_key="k")
    desk.hire("w")
    retries = LINE.retry.limit()
    for _ in range(retries + 1):
        (row,) = desk.write(desk.end(desk.lease(), Raised("boom", "it broke")))
        desk.turn(seconds=20)
        desk.store.renew("w", lease_us=micros(LEASE))
    assert row.role == "failed"
    assert desk.store.find_key("", "line", "k") is None
    return row
