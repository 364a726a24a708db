"""Commits: each change whole or not at all, and a receipt for each."""

from __future__ import annotations

import os
from concurrent.futures import ThreadPoolExecutor
from functools import partial

import pytest

from ulak.clock import micros
from ulak.core.change import RETRIED_ACT, Change, Committed, LeaseLost, Receipt, Stale
from ulak.core.job import Message, Result
from ulak.core.migration import Migration, migrated
from ulak.core.outcome import Cancel, Decide, Finished, Held, Left, Noted, Raised, Retry
from ulak.errors import WriteRefused
from ulak.store.protocol import LARGEST_BATCH, Progress
from ulak.testing.conformance.desk import LEASE, Desk, Reopen, Suite, patiently, snapshot
from ulak.testing.conformance.flows import LINE, NEWER, REVIEW, SAGA

PERMANENT = Raised("boom", "it broke", permanent=True)


class TestCommits(Suite):
    """A commit is the only way a job changes, and it happens once."""

    @pytest.mark.shows("E-17")
    def test_of_200_changes_with_one_stale_199_commit_with_199_events(self, desk: Desk) -> None:
        rows = desk.leased(200)
        changes = [desk.end(row) for row in rows]
        stale = changes[77]._replace(token=rows[77].token - 1)
        changes[77] = stale
        receipts = desk.store.commit(changes)
        assert [n for n, receipt in enumerate(receipts) if receipt == LeaseLost()] == [77]
        assert sum(isinstance(receipt, Committed) for receipt in receipts) == 199
        moved = [e for row in rows for e in desk.store.trail(row.id) if e.kind == "moved"]
        assert len(moved) == 199
        assert desk.job(stale.row.id) == rows[77]
        assert sum(count.jobs for count in desk.store.counts() if count.state == "second") == 199

    @pytest.mark.shows("E-17")
    def test_receipts_come_in_the_order_of_their_changes(self, desk: Desk) -> None:
        a, b, c, d = desk.leased(4)
        asked = desk.submit(REVIEW)
        behind = desk.act(asked, Decide("ada", choice="approve"), flow=REVIEW)
        changes = [
            desk.end(d),
            behind._replace(version=asked.version + 5),
            desk.end(c)._replace(token=99),
            desk.end(a),
            desk.act(b._replace(leased_by=None), Cancel("ada")),
        ]
        kinds = [type(receipt) for receipt in desk.store.commit(changes)]
        assert kinds == [Committed, Stale, LeaseLost, Committed, Stale]

    def test_a_commit_writes_everything_that_its_change_carries(self, desk: Desk) -> None:
        (row,) = desk.leased(1)
        child = desk.new(payload=b"[1]")
        message = Message(row.id, row.seq + 1, 0, "key", "topic", b"{}", desk.now)
        left = Left(result=b"42", messages=(message,), spawns=(child,))
        change = desk.end(row, Finished(left))
        assert desk.commit(change) == Committed()
        assert desk.job(row.id) == change.row
        assert desk.store.trail(row.id)[1:] == list(change.events)
        assert desk.store.find_results(row.id) == [Result(row.id, 1, "first", "", b"42")]
        assert [out.message for out in desk.store.scan_messages(row.id)] == [message]
        assert desk.store.find_job(child.row.id) == child.row
        assert desk.store.find_payload(child.row.id) == child.payload
        assert desk.store.trail(child.row.id) == [child.event]
        assert desk.store.scan_orphans() == []

    def test_a_change_that_its_guard_refuses_writes_nothing(self, desk: Desk) -> None:
        (row,) = desk.leased(1)
        message = Message(row.id, row.seq + 1, 0, "key", "topic", b"{}", desk.now)
        left = Left(result=b"42", messages=(message,), spawns=(desk.new(dedup_key="k"),))
        before = snapshot(desk, [row.id])
        stale = desk.end(row, Finished(left))._replace(token=row.token + 1)
        assert desk.commit(stale) == LeaseLost()
        assert snapshot(desk, [row.id]) == before

    def test_a_failing_outbox_insert_leaves_no_event_and_harms_no_neighbour(
        self, desk: Desk
    ) -> None:
        good, bad = desk.leased(2)
        message = Message(bad.id, bad.seq + 1, 0, "key", "topic", b"{}", desk.now)
        twice = desk.end(bad, Finished(Left(result=b"1", messages=(message, message))))
        before = snapshot(desk, [good.id, bad.id])
        with pytest.raises(WriteRefused):
            desk.store.commit([desk.end(good), twice])
        assert snapshot(desk, [good.id, bad.id]) == before
        assert desk.finish(good).state == "second"
        assert desk.finish(bad).state == "second"

    @pytest.mark.shows("E-17")
    def test_two_changes_of_one_job_in_a_batch_are_refused(self, desk: Desk) -> None:
        row, other = desk.leased(2)
        before = snapshot(desk, [row.id, other.id])
        with pytest.raises(WriteRefused):
            desk.store.commit([desk.end(row), desk.end(other), desk.end(row, PERMANENT)])
        assert snapshot(desk, [row.id, other.id]) == before

    @pytest.mark.shows("E-22")
    def test_a_batch_of_more_than_five_hundred_changes_is_refused(self, desk: Desk) -> None:
        rows = desk.leased(LARGEST_BATCH + 1)
        changes = [desk.end(row) for row in rows]
        with pytest.raises(WriteRefused):
            desk.store.commit(changes)
        assert {row.state for row in desk.jobs()} == {"first"}
        assert len(desk.store.commit(changes[:LARGEST_BATCH])) == LARGEST_BATCH

    def test_an_empty_batch_is_nothing(self, desk: Desk) -> None:
        assert desk.store.commit([]) == []
        assert desk.store.add([]) == []

    # --- operators --------------------------------------------------------------

    @pytest.mark.shows("E-17")
    def test_of_200_acts_with_one_stale_199_commit_with_199_events(self, desk: Desk) -> None:
        rows = [desk.submit(dedup_key=f"k{n}") for n in range(200)]
        changes = [desk.act(row, Cancel("ada")) for row in rows]
        changes[77] = changes[77]._replace(version=rows[77].version + 1)
        receipts = desk.store.commit(changes)
        assert [n for n, receipt in enumerate(receipts) if receipt == Stale(rows[77])] == [77]
        assert sum(isinstance(receipt, Committed) for receipt in receipts) == 199
        cancelled = [e for row in rows for e in desk.store.trail(row.id) if e.kind == "cancelled"]
        assert len(cancelled) == 199
        assert [key.job_id for key in desk.store.scan_keys()] == [rows[77].id]
        assert desk.job(rows[77].id) == rows[77]
        counted = {(c.state, c.jobs) for c in desk.store.counts() if c.jobs}
        assert counted == {("cancelled", 199), ("first", 1)}
        again = desk.store.commit(changes)
        assert sum(isinstance(receipt, Committed) for receipt in again) == 199
        assert [len(desk.store.trail(row.id)) for row in rows].count(2) == 199

    @pytest.mark.shows("E-50")
    def test_an_act_moves_jobs_to_another_version_of_their_flow(self, desk: Desk) -> None:
        rows = [desk.submit(dedup_key=f"k{n}") for n in range(4)]
        cancel = desk.act(rows[3], Cancel("ada"))
        migration = Migration(NEWER, from_version=1, states={"first": "first"})
        changes = [
            migrated(
                migration, row, desk.now, actor="ada", note="", commit_id=os.urandom(16),
                keys='{"first":{"slot":"k"}}',
            )
            for row in rows
        ]  # fmt: skip
        desk.write(cancel)
        kinds = [type(receipt) for receipt in desk.store.commit(changes)]
        assert kinds == [Committed, Committed, Committed, Stale]
        assert [desk.job(row.id) for row in rows[:3]] == [change.row for change in changes[:3]]
        assert {(row.flow_version, row.keys) for row in desk.jobs()} == {
            (2, '{"first":{"slot":"k"}}'), (1, None),
        }  # fmt: skip
        counted = {(c.flow_version, c.state, c.jobs) for c in desk.store.counts() if c.jobs}
        assert counted == {(2, "first", 3), (1, "cancelled", 1)}
        assert [e.kind for e in desk.store.trail(rows[0].id)] == ["submitted", "migrated"]
        assert desk.commit(changes[0]) == Committed()
        assert len(desk.store.trail(rows[0].id)) == 2
        desk.hire("w")
        assert desk.claim(places=4) == []
        assert len(desk.claim(places=4, flow=NEWER)) == 3
        assert {key.job_id for key in desk.store.scan_keys()} == {row.id for row in rows[:3]}

    # --- guards -----------------------------------------------------------------

    @pytest.mark.shows("E-18")
    def test_an_operators_change_is_stale_when_the_version_has_moved(self, desk: Desk) -> None:
        row = desk.submit(REVIEW)
        late = desk.act(row, Decide("ben", choice="refuse"), flow=REVIEW)
        (decided,) = desk.write(desk.act(row, Decide("ada", choice="approve"), flow=REVIEW))
        before = snapshot(desk, [row.id])
        assert desk.commit(late) == Stale(decided)
        assert snapshot(desk, [row.id]) == before

    @pytest.mark.shows("E-18")
    def test_an_operators_change_of_a_leased_job_is_stale(self, desk: Desk) -> None:
        row = desk.submit()
        cancel = desk.act(row, Cancel("ada"))
        desk.hire("w")
        leased = desk.lease()
        assert leased.version == row.version
        assert desk.commit(cancel) == Stale(leased)
        assert desk.job(row.id) == leased
        assert desk.finish(leased).state == "second"

    @pytest.mark.shows("E-11")
    def test_of_eight_people_who_decide_at_once_one_wins(self, desk: Desk) -> None:
        row = desk.submit(REVIEW)
        changes = [desk.act(row, Decide(f"p{n}", choice="approve"), flow=REVIEW) for n in range(8)]
        with ThreadPoolExecutor(8) as pool:
            receipts: list[Receipt] = list(pool.map(partial(patiently, desk.commit), changes))
        winners = [c for c, r in zip(changes, receipts, strict=True) if isinstance(r, Committed)]
        assert len(winners) == 1
        stored = desk.job(row.id)
        assert [r for r in receipts if isinstance(r, Stale)] == [Stale(stored)] * 7
        assert desk.store.trail(row.id)[1:] == list(winners[0].events)

    @pytest.mark.shows("E-21")
    def test_batches_over_the_same_jobs_in_opposite_orders_do_not_block_each_other(
        self, desk: Desk
    ) -> None:
        rows = [desk.submit(REVIEW) for _ in range(40)]

        def decide(n: int) -> list[Receipt]:
            acts = [desk.act(r, Decide(f"p{n}", choice="approve"), flow=REVIEW) for r in rows]
            return patiently(desk.store.commit, acts if n % 2 else acts[::-1])

        with ThreadPoolExecutor(8) as pool:
            receipts = [r for batch in pool.map(decide, range(8)) for r in batch]
        assert sum(isinstance(r, Committed) for r in receipts) == len(rows)
        assert sum(isinstance(r, Stale) for r in receipts) == 7 * len(rows)
        assert {desk.job(row.id).state for row in rows} == {"yes"}

    @pytest.mark.shows("E-18")
    def test_renewal_progress_and_requests_move_neither_guard(self, desk: Desk) -> None:
        row, asked = desk.leased(1)[0], desk.submit(REVIEW)
        desk.store.report([Progress(row.id, 0.5, "half", desk.now)])
        desk.store.renew("w", lease_us=LEASE.seconds * 1_000_000)
        desk.ask(row, "cancel")
        desk.ask(asked, "signal", "x")
        assert desk.job(row.id) == row._replace(requests=1)
        assert desk.job(asked.id) == asked._replace(requests=1)
        assert isinstance(desk.commit(desk.end(row)), Committed)
        decision = desk.act(asked, Decide("ada", choice="approve"), flow=REVIEW)
        assert isinstance(desk.commit(decision), Committed)

    def test_a_change_of_a_job_that_is_not_there_is_refused(self, desk: Desk) -> None:
        (row,) = desk.leased(1)
        absent = b"\xff" * 16
        worker = desk.end(row)
        operator = desk.act(desk.submit(), Cancel("ada"))
        assert desk.store.commit([_of(worker, absent)]) == [LeaseLost()]
        assert desk.store.commit([_of(operator, absent)]) == [Stale(None)]
        assert desk.store.find_job(absent) is None
        assert desk.store.trail(absent) == []

    # --- repeating --------------------------------------------------------------

    @pytest.mark.shows("E-20")
    def test_a_commit_that_is_repeated_is_answered_and_written_once(self, desk: Desk) -> None:
        (row,) = desk.leased(1)
        change = desk.emit(row, "key")
        operator = desk.act(desk.submit(REVIEW), Decide("a", choice="approve"), flow=REVIEW)
        assert desk.store.commit([change, operator]) == [Committed(), Committed()]
        before = snapshot(desk, [row.id, operator.row.id])
        assert desk.store.commit([operator, change]) == [Committed(), Committed()]
        assert snapshot(desk, [row.id, operator.row.id]) == before

    @pytest.mark.shows("E-20")
    def test_a_commit_is_recognised_after_the_job_has_moved_on(self, desk: Desk) -> None:
        (row,) = desk.leased(1)
        change = desk.end(row)
        desk.write(change)
        ended = desk.finish(desk.lease())
        assert desk.commit(change) == Committed()
        assert desk.job(row.id) == ended

    @pytest.mark.shows("E-20")
    def test_what_was_committed_is_found_by_its_commit_id(self, desk: Desk) -> None:
        a, b, c = desk.leased(3)
        written, lost, other = desk.end(a), desk.end(b), desk.end(c)
        desk.write(written, desk.end(c))
        assert desk.store.find_commits([lost, written, other]) == [False, True, False]
        assert desk.store.find_commits([]) == []

    # --- what a change may carry ------------------------------------------------

    def test_columns_that_never_change_and_side_columns_are_not_written(self, desk: Desk) -> None:
        (row,) = desk.leased(1)
        change = desk.end(row)
        forged = change.row._replace(tenant="x", priority=3, created_at=1, requests=7)
        (stored,) = desk.write(change._replace(row=forged))
        assert stored == change.row

    def test_a_result_that_is_noted_again_replaces_the_former_one(self, desk: Desk) -> None:
        (row,) = desk.leased(1)
        (row,) = desk.write(desk.end(row, Noted("paid", b"1")))
        (row,) = desk.write(desk.end(row, Noted("sent", b"2")))
        (row,) = desk.write(desk.end(row, Noted("paid", b"3")))
        assert sorted(desk.store.find_results(row.id)) == [
            Result(row.id, 1, "first", "paid", b"3"),
            Result(row.id, 1, "first", "sent", b"2"),
        ]

    @pytest.mark.shows("E-37")
    def test_a_finished_undo_voids_the_results_of_its_stage_only(self, desk: Desk) -> None:
        (row,) = desk.leased(1, SAGA)
        (row,) = desk.write(desk.end(row, Noted("paid", b"1"), flow=SAGA))
        other = Result(row.id, 1, "elsewhere", "", b"2")
        giving_up = desk.end(row, PERMANENT, flow=SAGA)
        (undoing,) = desk.write(giving_up._replace(results=(other,)))
        assert undoing.role == "undoing"
        assert len(desk.store.find_results(row.id)) == 2
        ended = desk.finish(desk.lease(SAGA), flow=SAGA)
        assert ended.role == "failed"
        assert desk.store.find_results(row.id) == [other]

    def test_a_retry_from_the_start_voids_every_result(self, desk: Desk) -> None:
        (row,) = desk.leased(1)
        (row,) = desk.write(desk.end(row, Finished(Left(result=b"1"))))
        (failed,) = desk.write(desk.end(desk.lease(), PERMANENT))
        retry = desk.act(failed._replace(permanent=0), Retry("ada"))
        desk.write(retry._replace(voids=("*",)))
        assert [r.stage for r in desk.store.find_results(row.id)] == [RETRIED_ACT]

    @pytest.mark.shows("E-37")
    def test_results_are_answered_with_the_latest_round_last(self, desk: Desk) -> None:
        (row,) = desk.leased(1)
        (row,) = desk.write(desk.end(row, Noted("a", b"1")))
        (failed,) = desk.write(desk.end(row, Raised("boom", "", permanent=True)))
        desk.write(desk.act(failed._replace(permanent=0), Retry("ada")))
        desk.write(desk.end(desk.lease(), Noted("a", b"2")))
        results = [r for r in desk.store.find_results(row.id) if r.stage != RETRIED_ACT]
        assert [(r.round, r.data) for r in results] == [(1, b"1"), (2, b"2")]

    def test_spawned_jobs_are_taken_like_any_other_and_a_repeat_is_no_error(
        self, desk: Desk
    ) -> None:
        holder = desk.submit(dedup_key="k")
        desk.hire("w")
        row = desk.lease()
        fresh, repeat = desk.new(), desk.new(dedup_key="k")
        desk.write(desk.end(row, Finished(Left(spawns=(repeat, fresh)))))
        assert desk.store.find_job(fresh.row.id) == fresh.row
        assert desk.store.find_job(repeat.row.id) is None
        assert desk.store.find_key("", "line", "k") == holder.id
        assert {c.row.id for c in desk.claim("w", 9)} == {row.id, fresh.row.id}

    @pytest.mark.shows("E-72")
    def test_a_change_of_an_operator_or_of_the_clock_spawns_jobs_too(self, desk: Desk) -> None:
        rows = [desk.submit(), desk.submit()]
        children = [desk.new(SAGA, dedup_key="k"), desk.new(SAGA)]
        changes = [
            desk.act(row, Cancel("ada"))._replace(spawns=(child,))
            for row, child in zip(rows, children, strict=True)
        ]
        stale = desk.act(rows[0], Cancel("bob"))._replace(spawns=(desk.new(SAGA),))
        desk.write(*changes)
        assert isinstance(desk.commit(stale), Stale)
        assert [desk.job(child.row.id) for child in children] == [c.row for c in children]
        assert len(desk.jobs()) == 4
        assert desk.store.find_key("", SAGA.name, "k") == children[0].row.id

    def test_what_was_committed_survives_a_new_start(self, desk: Desk, reopen: Reopen) -> None:
        if not desk.store.features.durable:
            pytest.skip("this store forgets")
        (row,) = desk.leased(1)
        desk.write(desk.emit(row, "key"))
        before = snapshot(desk, [row.id])
        desk.store.close()
        store = reopen()
        store.open()
        try:
            assert snapshot(Desk(store), [row.id]) == before
        finally:
            store.close()

    def test_a_ring_follows_each_commit_that_may_have_made_a_job_due(self, desk: Desk) -> None:
        rung: list[str] = []
        desk.store.on_commit(lambda: rung.append("ring"))
        desk.hire("w")
        assert not rung
        desk.submit()
        assert rung
        row = desk.lease()
        rung.clear()
        desk.finish(row)
        assert rung
        desk.write(desk.end(desk.lease(), Held("odd", "look")))
        (held,) = (job for job in desk.jobs() if job.role == "held")
        assert held.flow == LINE.name

    @pytest.mark.shows("E-79")
    def test_a_ring_follows_each_commit_that_moves_a_job_until_nobody_watches(
        self, desk: Desk
    ) -> None:
        rung: list[str] = []
        first, second, third = desk.leased(3)
        stop = desk.store.on_move(lambda: rung.append("ring"))
        other = desk.store.on_move(lambda: rung.append("other"))
        desk.store.renew("w", lease_us=micros(LEASE))
        desk.store.find_job(first.id)
        assert not rung
        for row, outcome in ((first, Held("odd", "look")), (second, PERMANENT)):
            rung.clear()
            desk.write(desk.end(row, outcome))
            assert {"ring", "other"} <= set(rung)
        stop()
        stop()
        rung.clear()
        desk.write(desk.end(third, Held("odd", "look")))
        assert set(rung) == {"other"}
        other()


def _of(change: Change, job_id: bytes) -> Change:
    """Turn a change into one of another job."""
    events = tuple(event._replace(job_id=job_id) for event in change.events)
    return change._replace(row=change.row._replace(id=job_id), events=events)
