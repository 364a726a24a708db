"""Schedules: a date makes one job, whoever comes first, and a pause is a pause."""

from __future__ import annotations

import json
from datetime import timedelta
from threading import Barrier, Thread
from typing import Any

import pytest

from ulak.clock import SECOND, Instant
from ulak.core.flow import Flow
from ulak.core.job import NewJob
from ulak.errors import WriteRefused
from ulak.store.protocol import LARGEST_BATCH, ScheduleRow, Tick, TickRow
from ulak.testing.conformance.desk import Desk, Reopen, Suite, patiently
from ulak.testing.conformance.flows import LINE, NEWER
from ulak.testing.conformance.processes import in_children

MINUTE = 60 * SECOND
THREADS = 8
DATES = 30
AT_DAWN: Any = {"rule": "0 5 * * *", "zone": "Europe/Istanbul"}


class TestSchedules(Suite):
    """What the clock submits is submitted once."""

    # --- declaring --------------------------------------------------------------

    def test_a_new_schedule_is_stored_as_given(self, desk: Desk) -> None:
        odd = schedule(
            desk, "odd", tenant="acme", priority=3, expires_us=5 * SECOND, payload=b'{"n": 1}',
            catch_up="all", **AT_DAWN,
        )  # fmt: skip
        plain = schedule(desk, "plain")
        desk.store.keep_schedules([plain, odd])
        assert desk.store.schedules() == [odd, plain]

    def test_declaring_the_same_again_changes_nothing(self, desk: Desk) -> None:
        row = kept(desk, "s")
        desk.store.keep_schedules([row._replace(next_at=row.next_at + MINUTE)])
        desk.store.keep_schedules([])
        assert desk.store.schedules() == [row]

    @pytest.mark.shows("E-59")
    def test_a_changed_rule_or_zone_moves_the_next_date(self, desk: Desk) -> None:
        row = kept(desk, "s")
        for rule, zone in (("0 6 * * *", "UTC"), ("0 6 * * *", "Asia/Tokyo")):
            row = row._replace(rule=rule, zone=zone, next_at=row.next_at + MINUTE)
            desk.store.keep_schedules([row])
            assert desk.store.schedules() == [row]

    def test_what_else_is_changed_is_taken_over_and_leaves_the_date(self, desk: Desk) -> None:
        row = kept(desk, "s")
        new = row._replace(
            flow="newer", flow_version=2, tenant="acme", priority=0, expires_us=SECOND,
            payload=b"[1]", catch_up="none",
        )  # fmt: skip
        desk.store.keep_schedules([new._replace(next_at=row.next_at + MINUTE)])
        assert desk.store.schedules() == [new]
        desk.store.keep_schedules([row])
        assert desk.store.schedules() == [row]

    def test_a_schedule_that_is_declared_no_more_stays(self, desk: Desk) -> None:
        row = kept(desk, "old")
        other = kept(desk, "other")
        assert desk.store.schedules() == [row, other]

    # --- what is due ------------------------------------------------------------

    def test_due_schedules_are_found_the_earliest_first(self, desk: Desk) -> None:
        late = kept(desk, "b", next_at=desk.now + 2 * MINUTE)
        twin = kept(desk, "c", next_at=desk.now + 2 * MINUTE)
        early = kept(desk, "z", next_at=desk.now + MINUTE)
        kept(desk, "a", next_at=desk.now + 3 * MINUTE)
        by = desk.now + 2 * MINUTE
        assert desk.store.due_schedules(by - 1, 9) == [early]
        assert desk.store.due_schedules(by, 9) == [early, late, twin]
        assert desk.store.due_schedules(by, 2) == [early, late]
        assert desk.store.due_schedules(by, 9, after=(late.next_at, late.name)) == [twin]
        assert desk.store.due_schedules(by, 9, after=(twin.next_at, twin.name)) == []

    # --- ticks ------------------------------------------------------------------

    @pytest.mark.shows("E-59")
    def test_a_tick_stores_its_jobs_and_moves_the_next_date(self, desk: Desk) -> None:
        row = kept(desk, "s")
        desk.turn(minutes=5)
        first, second = row.next_at, row.next_at + 2 * MINUTE
        new = [due(desk, first), due(desk, second)]
        assert desk.store.tick([Tick(row, tuple(new), second + MINUTE)]) == [True]
        for job in new:
            assert desk.job(job.row.id) == job.row
            assert desk.store.trail(job.row.id) == [job.event]
            assert desk.store.find_payload(job.row.id) == job.payload
        assert desk.store.ticks("s") == [
            TickRow("s", second, new[1].row.id),
            TickRow("s", first, new[0].row.id),
        ]
        assert desk.store.schedules() == [row._replace(next_at=second + MINUTE)]
        assert sum(count.jobs for count in desk.store.counts()) == 2
        assert desk.store.scan_orphans() == []

    def test_a_tick_may_skip_every_date(self, desk: Desk) -> None:
        row = kept(desk, "s")
        desk.turn(minutes=5)
        assert desk.store.tick([Tick(row, (), desk.now + MINUTE)]) == [True]
        assert desk.jobs() == []
        assert desk.store.ticks("s") == []
        assert desk.store.schedules() == [row._replace(next_at=desk.now + MINUTE)]

    @pytest.mark.shows("E-59")
    def test_of_two_who_saw_the_same_date_one_wins(self, desk: Desk) -> None:
        row = kept(desk, "s")
        desk.turn(minutes=1)
        first, second = tick_of(desk, row), tick_of(desk, row)
        assert desk.store.tick([first]) == [True]
        assert desk.store.tick([second]) == [False]
        assert [job.id for job in desk.jobs()] == [first.jobs[0].row.id]
        assert len(desk.store.ticks("s")) == 1

    def test_repeating_a_tick_whose_answer_was_lost_is_safe(self, desk: Desk) -> None:
        row = kept(desk, "s")
        desk.turn(minutes=1)
        tick = tick_of(desk, row)
        desk.store.tick([tick])
        after = desk.store.schedules(), desk.jobs(), desk.store.ticks("s")
        assert desk.store.tick([tick]) == [False]
        assert (desk.store.schedules(), desk.jobs(), desk.store.ticks("s")) == after

    @pytest.mark.shows("E-59")
    def test_a_date_that_has_its_tick_gets_no_second_job(self, desk: Desk) -> None:
        row = kept(desk, "s")
        desk.turn(minutes=1)
        tick = tick_of(desk, row)
        desk.store.tick([tick])
        # As after a clock that was set back, with a rule that was changed meanwhile.
        back = row._replace(rule="1 1 1 1 *")
        desk.store.keep_schedules([back])
        assert desk.store.tick([tick_of(desk, back)]) == [True]
        assert len(desk.jobs()) == 1
        assert desk.store.ticks("s") == [TickRow("s", row.next_at, tick.jobs[0].row.id)]
        assert desk.store.schedules() == [back._replace(next_at=back.next_at + MINUTE)]

    def test_a_date_that_has_not_come_is_refused(self, desk: Desk) -> None:
        row = kept(desk, "s")
        desk.turn(seconds=59.999999)
        assert desk.store.tick([tick_of(desk, row)]) == [False]
        assert desk.jobs() == []
        desk.turn(microseconds=1)
        assert desk.store.tick([tick_of(desk, row)]) == [True]

    @pytest.mark.parametrize(
        "change",
        [
            {"payload": b"[2]"},
            {"flow_version": 2},
            {"tenant": "acme"},
            {"priority": 0},
            {"expires_us": 1},
            {"catch_up": "none"},
        ],
    )
    def test_a_tick_of_what_was_declared_before_is_refused(
        self, desk: Desk, change: dict[str, Any]
    ) -> None:
        row = kept(desk, "s")
        desk.turn(minutes=1)
        stale = tick_of(desk, row)
        desk.store.keep_schedules([row._replace(**change)])
        assert desk.store.tick([stale]) == [False]
        assert desk.jobs() == []
        assert desk.store.schedules() == [row._replace(**change)]

    def test_a_tick_of_a_schedule_that_nobody_has_kept_is_refused(self, desk: Desk) -> None:
        assert desk.store.tick([tick_of(desk, schedule(desk, "s", next_at=desk.now))]) == [False]
        assert desk.jobs() == []

    def test_a_stale_tick_harms_no_neighbour(self, desk: Desk) -> None:
        rows = [kept(desk, name) for name in ("c", "b", "a")]
        desk.turn(minutes=1)
        ticks = [tick_of(desk, row) for row in rows]
        desk.store.tick([tick_of(desk, rows[1])])
        assert desk.store.tick(ticks) == [True, False, True]
        assert [len(desk.store.ticks(row.name)) for row in rows] == [1, 1, 1]
        assert len(desk.jobs()) == 3

    def test_a_job_whose_key_is_held_is_not_stored_and_its_tick_names_the_holder(
        self, desk: Desk
    ) -> None:
        row = kept(desk, "s")
        holder = desk.submit(dedup_key="k")
        desk.turn(minutes=2)
        jobs = (due(desk, row.next_at, key="k"), due(desk, row.next_at + 1, key="k"))
        assert desk.store.tick([Tick(row, jobs, row.next_at + 2)]) == [True]
        assert desk.jobs() == [holder]
        assert {tick.job_id for tick in desk.store.ticks("s")} == {holder.id}

    def test_two_dates_of_one_tick_with_one_key_make_one_job(self, desk: Desk) -> None:
        row = kept(desk, "s")
        desk.turn(minutes=2)
        jobs = tuple(due(desk, row.next_at + n, key="k") for n in range(3))
        desk.store.tick([Tick(row, jobs, row.next_at + 3)])
        assert desk.jobs() == [jobs[0].row]
        assert [tick.job_id for tick in desk.store.ticks("s")] == [jobs[0].row.id] * 3

    def test_a_job_of_a_tick_can_be_claimed_and_rings(self, desk: Desk) -> None:
        rings: list[None] = []
        desk.store.on_commit(lambda: rings.append(None))
        row = kept(desk, "s")
        desk.hire("w", lease=timedelta(hours=1))
        desk.turn(minutes=1)
        rings.clear()
        desk.store.tick([tick_of(desk, row)])
        assert rings
        assert desk.lease().scheduled_for == row.next_at

    def test_what_is_no_batch_is_refused_whole(self, desk: Desk) -> None:
        row, other = kept(desk, "s"), kept(desk, "other")
        desk.turn(minutes=1)
        dateless = Tick(row, (desk.new(),), row.next_at + 1)
        crowd = tuple(due(desk, row.next_at + n) for n in range(LARGEST_BATCH))
        for batch in (
            [tick_of(desk, row), tick_of(desk, row)],
            [tick_of(desk, other), dateless],
            [tick_of(desk, other), Tick(row, crowd, row.next_at + LARGEST_BATCH)],
        ):
            with pytest.raises(WriteRefused):
                desk.store.tick(batch)
        assert desk.jobs() == []
        assert desk.store.schedules() == [other, row]
        assert desk.store.tick([Tick(row, crowd, row.next_at + LARGEST_BATCH)]) == [True]
        assert len(desk.store.ticks("s", limit=9999)) == LARGEST_BATCH

    # --- history ----------------------------------------------------------------

    def test_ticks_are_read_the_latest_first_page_by_page(self, desk: Desk) -> None:
        row = kept(desk, "s")
        other = kept(desk, "other")
        desk.turn(minutes=10)
        dates = [row.next_at + n for n in range(5)]
        jobs = tuple(due(desk, at) for at in dates)
        desk.store.tick([Tick(row, jobs, dates[-1] + 1), tick_of(desk, other)])
        assert [tick.due_at for tick in desk.store.ticks("s")] == dates[::-1]
        assert [tick.due_at for tick in desk.store.ticks("s", limit=2)] == dates[:2:-1]
        older = desk.store.ticks("s", before=dates[3], limit=2)
        assert [tick.due_at for tick in older] == [dates[2], dates[1]]
        assert desk.store.ticks("nobody") == []

    @pytest.mark.shows("E-52", "E-59")
    def test_a_tick_is_forgotten_with_its_job(self, desk: Desk) -> None:
        row = kept(desk, "s")
        desk.turn(minutes=1)
        desk.store.tick([tick_of(desk, row, flow=NEWER)])
        desk.hire("w")
        ended = desk.finish(desk.lease(NEWER), flow=NEWER)
        desk.turn(minutes=1)
        (row,) = desk.store.schedules()
        desk.store.tick([tick_of(desk, row, flow=NEWER)])
        assert desk.store.prune(before=ended.changed_at + 1, limit=9) == 1
        assert [tick.due_at for tick in desk.store.ticks("s")] == [row.next_at]
        assert desk.store.scan_orphans() == []

    # --- pauses -----------------------------------------------------------------

    @pytest.mark.shows("E-59")
    def test_a_paused_schedule_is_not_due_and_cannot_be_ticked(self, desk: Desk) -> None:
        row = kept(desk, "s")
        desk.turn(minutes=1)
        stale = tick_of(desk, row)
        assert desk.store.pause_schedule("s", actor="ada", note="stocktaking")
        paused = row._replace(paused_at=desk.now, paused_by="ada", pause_note="stocktaking")
        assert desk.store.schedules() == [paused]
        assert desk.store.due_schedules(desk.now + MINUTE, 9) == []
        assert desk.store.tick([stale]) == [False]
        assert desk.store.tick([tick_of(desk, paused)]) == [False]
        assert desk.jobs() == []

    def test_a_pause_survives_what_is_declared(self, desk: Desk) -> None:
        row = kept(desk, "s")
        desk.store.pause_schedule("s", actor="ada", note="")
        (paused,) = desk.store.schedules()
        desk.store.keep_schedules([row])
        assert desk.store.schedules() == [paused]
        changed = row._replace(rule="1 2 3 4 *", payload=b"[]")
        desk.store.keep_schedules([changed])
        assert desk.store.schedules() == [paused._replace(rule="1 2 3 4 *", payload=b"[]")]

    def test_a_resumed_schedule_goes_on_with_the_date_it_is_given(self, desk: Desk) -> None:
        row = kept(desk, "s")
        desk.store.pause_schedule("s", actor="ada", note="")
        desk.turn(hours=1)
        next_at = desk.now + MINUTE
        assert desk.store.resume_schedule("s", next_at=next_at, actor="bob", note="")
        resumed = row._replace(next_at=next_at)
        assert desk.store.schedules() == [resumed]
        assert desk.store.due_schedules(desk.now, 9) == []
        desk.turn(minutes=1)
        assert desk.store.tick([tick_of(desk, resumed)]) == [True]

    def test_pausing_and_resuming_twice_is_once(self, desk: Desk) -> None:
        row = kept(desk, "s")
        at = row.next_at + MINUTE
        assert not desk.store.resume_schedule("s", next_at=at, actor="ada", note="")
        assert desk.store.schedules() == [row]
        assert desk.store.pause_schedule("s", actor="ada", note="first")
        desk.turn(seconds=1)
        assert not desk.store.pause_schedule("s", actor="bob", note="second")
        assert desk.store.schedules()[0].paused_by == "ada"
        assert desk.store.resume_schedule("s", next_at=at, actor="ada", note="")
        assert not desk.store.resume_schedule("s", next_at=at + 1, actor="ada", note="")
        assert desk.store.schedules() == [row._replace(next_at=at)]
        assert not desk.store.pause_schedule("nobody", actor="ada", note="")
        assert not desk.store.resume_schedule("nobody", next_at=at, actor="ada", note="")

    @pytest.mark.shows("E-59")
    def test_who_paused_and_resumed_is_written_down_once(self, desk: Desk) -> None:
        row = kept(desk, "s")
        at = row.next_at + MINUTE
        for _ in range(2):
            desk.store.pause_schedule("s", actor="ada", note="stocktaking")
        paused_at = desk.now
        desk.turn(seconds=1)
        for _ in range(2):
            desk.store.resume_schedule("s", next_at=at, actor="bob", note="")
        resumed, paused = desk.store.audit_trail(subject="schedule/s")
        assert paused[1:6] == (paused_at, "ada", "pause", "schedule/s", "stocktaking")
        assert resumed[1:6] == (desk.now, "bob", "resume", "schedule/s", None)
        assert json.loads(paused.details or "") == {"next_at": row.next_at}
        assert json.loads(resumed.details or "") == {"next_at": at}

    # --- several at once --------------------------------------------------------

    @pytest.mark.shows("E-59")
    def test_threads_that_tick_at_once_make_one_job_for_each_date(self, desk: Desk) -> None:
        kept(desk, "s")
        kept(desk, "t", next_at=desk.now)
        desk.turn(minutes=DATES)
        start = Barrier(THREADS)
        wins: list[int] = []

        def work() -> None:
            start.wait(60)
            wins.append(tick_everything(desk))

        threads = [Thread(target=work) for _ in range(THREADS)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        each_date_has_one_job(desk, wins)

    @pytest.mark.shows("E-59")
    def test_four_processes_that_tick_at_once_make_one_job_for_each_date(
        self, desk: Desk, reopen: Reopen
    ) -> None:
        if not desk.store.features.shared:
            pytest.skip("this store serves one process")
        # The clocks of the children stand where this one stood: every date must have come.
        kept(desk, "s", next_at=desk.now - (DATES - 1) * MINUTE)
        kept(desk, "t", next_at=desk.now - DATES * MINUTE)
        each_date_has_one_job(desk, in_children(_tick, reopen))


def schedule(desk: Desk, name: str, **more: Any) -> ScheduleRow:
    """A schedule that is due every minute, first in a minute."""
    facts: dict[str, Any] = {
        "flow": "line", "flow_version": 1, "tenant": "", "priority": 1, "expires_us": None,
        "payload": b"null", "rule": "* * * * *", "zone": "UTC", "catch_up": "last",
        "next_at": desk.now + MINUTE,
    }  # fmt: skip
    return ScheduleRow(name, **{**facts, **more})


def kept(desk: Desk, name: str, **more: Any) -> ScheduleRow:
    """Declare a schedule."""
    row = schedule(desk, name, **more)
    desk.store.keep_schedules([row])
    return row


def due(desk: Desk, at: Instant, flow: Flow[Any] = LINE, key: str | None = None) -> NewJob:
    """Make the job of one date."""
    return desk.new(flow, submitter="schedule:s", scheduled_for=at, dedup_key=key)


def tick_of(desk: Desk, row: ScheduleRow, flow: Flow[Any] = LINE) -> Tick:
    """Make the tick of the next date of a schedule that is due every minute."""
    return Tick(row, (due(desk, row.next_at, flow),), row.next_at + MINUTE)


def tick_everything(desk: Desk) -> int:
    """Tick whatever is due, one date at a time, until nothing is; return how often it won."""
    wins = 0
    while rows := desk.store.due_schedules(desk.now, 9):
        wins += sum(patiently(desk.store.tick, [tick_of(desk, row) for row in rows]))
    return wins


def each_date_has_one_job(desk: Desk, wins: list[int]) -> None:
    """Two schedules, one of which began a minute earlier, are seen to until now."""
    assert sum(wins) == DATES + DATES + 1
    jobs = {job.id: job for job in desk.jobs()}
    assert len(jobs) == sum(wins)
    for row in desk.store.schedules():
        ticks = desk.store.ticks(row.name, limit=1000)
        dates = [tick.due_at for tick in reversed(ticks)]
        assert dates == list(range(dates[0], desk.now + 1, MINUTE))
        assert row.next_at == desk.now + MINUTE
        assert [jobs.pop(tick.job_id).scheduled_for for tick in reversed(ticks)] == dates
    assert jobs == {}


def _tick(desk: Desk, worker: str) -> int:
    return tick_everything(desk)
