"""Followers: every event of a flow, once and in order per job, whichever way it was written."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import cast

import pytest

from ulak.clock import SECOND
from ulak.core.change import COMMITTED
from ulak.core.delivery import DEAD, DISCARDED, MOST_EVENTS, PENDING, REFUSED, make_delivery
from ulak.core.job import JobRow
from ulak.core.outcome import Cancel, Finished, Left
from ulak.store.protocol import (
    DeliveryFilter,
    EventSource,
    Followed,
    HandlerRow,
    ScheduleRow,
    Settled,
    Tick,
)
from ulak.store.transaction import StageStore, TransactionStore
from ulak.testing.conformance.desk import Desk, Reopen, Suite
from ulak.testing.conformance.flows import BUSY, LINE, NARROW, PROVEN, SINGLE

HOLD = 60 * SECOND
OLGA = {"actor": "olga", "note": "seen"}
NAME = "totals"


class TestFollowers(Suite):
    """An event of a followed flow has a delivery for each stored follower of that flow."""

    @pytest.mark.shows("E-71")
    def test_every_event_of_the_flow_comes_in_order_however_it_was_written(
        self, desk: Desk
    ) -> None:
        flows = (LINE, BUSY, NARROW, PROVEN, SINGLE)
        desk.declare(NARROW)
        follow(desk, *(f"{flow.name}/{flow.name}" for flow in flows))
        self._live(desk)
        for flow in flows:
            jobs = [row for row in desk.jobs() if row.flow == flow.name]
            assert all_of(desk, flow.name) == {
                row.id: [event.seq for event in desk.store.trail(row.id)] for row in jobs
            }
        assert desk.store.count_deliveries() == []

    def _live(self, desk: Desk) -> None:
        """Write events in every way that there is."""
        desk.submit()
        desk.submit_many(3, dedup_key=None)
        desk.submit(dedup_key="key")
        desk.store.add([desk.new(dedup_key="key"), desk.new(dedup_key="other")])
        desk.submit(PROVEN)
        desk.hire("w", "lost")
        for flow in (LINE, PROVEN):
            rows = [claim.row for claim in desk.claim("w", 9, flow)]
            desk.write(*(desk.end(row, flow=flow) for row in rows))
        spawned = (desk.new(), desk.new(dedup_key="spawned"))
        desk.write(desk.end(desk.lease(), Finished(Left(spawns=spawned))))
        desk.submit_many(2, BUSY)
        entered = desk.lease(BUSY)
        desk.write(desk.end(entered, flow=BUSY))
        desk.lease(BUSY, worker="lost")
        desk.submit_many(2, NARROW)
        kept = [desk.end(c.row, flow=NARROW, keep=True) for c in desk.claim("w", 2, NARROW)]
        assert any(change.takes_slot for change in kept)
        desk.write(*kept)
        desk.write(desk.act(desk.submit(SINGLE), Cancel("ada"), flow=SINGLE))
        if desk.store.features.stage_transactions:
            change = desk.end(desk.leased(1, SINGLE)[0], flow=SINGLE)
            assert cast(StageStore, desk.store).begin_stage().commit(change) == COMMITTED
        row = ScheduleRow("s", "line", 1, "", 1, None, b"1", "0 3 * * *", "UTC", "none", desk.now)
        desk.store.keep_schedules([row])
        due = desk.new(scheduled_for=desk.now)
        assert desk.store.tick([Tick(row, (due,), desk.now + SECOND)]) == [True]
        desk.turn(seconds=31)
        desk.hire("w")
        assert "lapsed" in desk.kinds(desk.lease(BUSY).id)

    @pytest.mark.shows("E-71")
    def test_a_flow_that_nobody_follows_leaves_nothing(self, desk: Desk) -> None:
        follow(desk)
        row = desk.submit(BUSY)
        desk.hire("w")
        desk.finish(desk.lease(BUSY), flow=BUSY)
        assert desk.store.scan_messages(row.id) == []
        assert not desk.store.has_due(NAME)
        assert desk.store.count_deliveries() == []

    @pytest.mark.shows("E-71")
    def test_a_new_follower_gets_events_from_then_on(self, desk: Desk) -> None:
        (row,) = desk.leased(1)
        follow(desk)
        desk.finish(row)
        other = desk.submit()
        assert all_of(desk) == {row.id: [2], other.id: [1]}
        follow(desk, f"{NAME}/busy")
        desk.submit()
        now = desk.submit(BUSY)
        assert all_of(desk) == {now.id: [1]}, "it follows another flow now"
        assert desk.store.handlers() == [HandlerRow(NAME, "", None, "busy")]

    @pytest.mark.shows("E-71")
    def test_a_process_that_knows_no_follower_writes_its_deliveries(
        self, desk: Desk, reopen: Reopen
    ) -> None:
        if not desk.store.features.shared:
            return
        elsewhere = reopen()
        elsewhere.open()
        try:
            other = Desk(elsewhere, os.urandom)
            (row,) = other.leased(1)
            follow(desk)
            new, *more = other.submit(), *other.submit_many(2)
            other.finish(row)
            assert all_of(desk) == {row.id: [2]} | {job.id: [1] for job in (new, *more)}
            desk.store.forget_handler(NAME, **OLGA)
            other.submit()
            assert desk.store.count_deliveries() == []
        finally:
            elsewhere.close()

    @pytest.mark.shows("E-71")
    def test_what_was_finished_never_comes_again_and_leaves_nothing(self, desk: Desk) -> None:
        follow(desk)
        (row,) = desk.leased(1)
        desk.finish(row)
        with open_source(desk) as source:
            (taken,) = source.take_events(NAME, 9, hold_us=HOLD)
            source.finish_events([taken])
        assert (taken.head.handler, taken.head.message) == (
            NAME,
            make_delivery("line", desk.store.trail(row.id)[0]),
        )
        assert (taken.job, list(taken.events)) == (desk.job(row.id), desk.store.trail(row.id))
        assert not desk.store.has_due(NAME)
        assert desk.store.scan_messages(row.id) == []

    @pytest.mark.shows("E-71")
    def test_what_was_not_finished_comes_again(self, desk: Desk) -> None:
        follow(desk)
        row = desk.submit()
        with dropped(desk) as source:
            assert ids(source.take_events(NAME, 9, hold_us=HOLD)) == [row.id]
        assert all_of(desk) == {row.id: [1]}

    @pytest.mark.shows("E-71")
    def test_what_one_has_taken_another_passes_over(self, desk: Desk, reopen: Reopen) -> None:
        if desk.store.features.one_writer:
            return  # nobody else can take meanwhile
        follow(desk)
        (first, second) = desk.leased(2)
        with open_source(desk) as source:
            (taken,) = source.take_events(NAME, 1, hold_us=HOLD)
            assert taken.job.id == first.id
            desk.finish(first)
            desk.finish(second)
            assert all_of(desk) == {second.id: [1, 2]}, "the rest of its job waits too"
            source.finish_events([taken])
        assert all_of(desk) == {first.id: [2]}

    @pytest.mark.shows("E-71")
    def test_a_job_that_failed_waits_for_its_time_and_comes_alone(self, desk: Desk) -> None:
        follow(desk)
        (bad, good, other) = desk.leased(3)
        fail(desk, bad, PENDING, after=10)
        for row in (bad, good):
            desk.finish(row)
        assert all_of(desk) == {good.id: [1, 2], other.id: [1]}, "the others go on"
        desk.turn(seconds=10)
        desk.finish(other)
        with dropped(desk) as source:
            (alone,) = source.take_events(NAME, 9, hold_us=SECOND)
        assert (alone.job.id, [event.seq for event in alone.events]) == (bad.id, [1, 2])
        assert (alone.head.tries, alone.head.error) == (1, "no")
        assert all_of(desk) == {bad.id: [1, 2], other.id: [2]}

    @pytest.mark.shows("E-71")
    @pytest.mark.parametrize("state", [DEAD, REFUSED])
    @pytest.mark.parametrize("act", ["redrive", "discard"])
    def test_a_job_that_gave_up_waits_until_somebody_acts(
        self, desk: Desk, state: str, act: str
    ) -> None:
        follow(desk, f"{NAME}/single")
        (bad, good) = desk.leased(2, SINGLE)
        fail(desk, bad, state)
        for row in (bad, good):
            desk.finish(row, flow=SINGLE)
        assert all_of(desk) == {good.id: [1, 2]}
        assert not desk.store.has_due(NAME)
        desk.turn(days=400)
        assert desk.store.prune(before=desk.now, limit=9) == 1
        assert desk.job(bad.id), "its trail is still needed"
        (lost,) = desk.store.deliveries(DeliveryFilter(NAME, (state,)))
        assert (lost.message.job_id, lost.message.seq, lost.error) == (bad.id, 1, "no")
        if act == "redrive":
            assert desk.store.redrive_message(lost, give_up_at=None, **OLGA)
            assert all_of(desk) == {bad.id: [1, 2]}
        else:
            assert desk.store.discard_message(lost, **OLGA)
            assert all_of(desk) == {bad.id: [2]}

    @pytest.mark.shows("E-71")
    def test_a_pending_event_can_be_discarded(self, desk: Desk) -> None:
        follow(desk)
        (row,) = desk.leased(1)
        desk.finish(row)
        for seq in (2, 1):
            (found,) = [r for r in desk.store.scan_messages(row.id) if r.message.seq == seq]
            assert desk.store.discard_message(found, **OLGA)
        assert all_of(desk) == {}

    @pytest.mark.shows("E-71")
    def test_no_more_jobs_come_than_are_wanted_and_the_longest_due_first(self, desk: Desk) -> None:
        follow(desk)
        rows = desk.submit_many(5)
        sizes = []
        while desk.store.has_due(NAME):
            sizes.append(len(got(desk, limit=2)))
        assert sizes == [2, 2, 1]
        assert all_of(desk) == {}
        assert len(rows) == 5

    @pytest.mark.shows("E-71")
    def test_a_batch_is_bounded_and_the_events_of_a_commit_stay_together(self, desk: Desk) -> None:
        follow(desk)
        size = MOST_EVENTS * 2 // 5
        (row,) = desk.leased(1)
        for _ in range(3):
            row = self._note(desk, row, size)
        assert [list(map(len, got(desk).values())) for _ in range(2)] == [[2 * size + 1], [size]]
        self._note(desk, row, MOST_EVENTS + 1)
        sizes = [list(map(len, got(desk).values())) for _ in range(2)]
        assert sizes == [[MOST_EVENTS], [1]], "what is too large is parted"

    def _note(self, desk: Desk, row: JobRow, events: int) -> JobRow:
        """Commit so many events at once; the job stays leased."""
        change = desk.end(row, keep=True)
        model, at = change.events[-1], row.seq
        lines = tuple(model._replace(seq=at + n + 1, emitted=0) for n in range(events))
        stays = row._replace(version=row.version + 1, seq=at + events)
        change = change._replace(
            row=stays, events=lines, token=row.token, moved_from=None, role_from=None,
            results=(), voids=(),
        )  # fmt: skip
        (row,) = desk.write(change)
        return row

    @pytest.mark.shows("E-71")
    def test_a_follower_that_is_forgotten_gets_nothing_more(self, desk: Desk) -> None:
        follow(desk, NAME, "other")
        (row,) = desk.leased(1)
        desk.finish(row)
        assert desk.store.forget_handler(NAME, **OLGA) == 2
        assert not desk.store.has_due(NAME)
        desk.submit()
        found = desk.store.deliveries(DeliveryFilter(NAME))
        assert [r.state for r in found] == [DISCARDED, DISCARDED]
        assert len(all_of(desk, "other")) == 2

    @pytest.mark.shows("E-71")
    def test_messages_are_not_for_followers_nor_events_for_handlers(self, desk: Desk) -> None:
        follow(desk)
        desk.store.keep_handlers([HandlerRow("every", "*")])
        (row,) = desk.leased(1)
        desk.write(desk.emit(row, "key"))
        heads = desk.store.take_messages("every", 9, hold_us=HOLD)
        assert [head.message.topic for head in heads] == ["topic"]
        assert all_of(desk) == {row.id: [1, 2]}

    @pytest.mark.shows("E-71")
    def test_an_event_for_a_follower_rings(self, desk: Desk) -> None:
        rings: list[int] = []
        desk.store.on_commit(lambda: rings.append(1))
        (row, other) = desk.leased(2, SINGLE)
        rings.clear()
        desk.finish(row, flow=SINGLE)  # it ends: nothing else is due
        assert not rings
        follow(desk, f"{NAME}/single")
        rings.clear()
        desk.finish(other, flow=SINGLE)
        assert rings


def follow(desk: Desk, *names: str) -> None:
    """Store followers, `name` of the usual flow or `name/flow`."""
    parts = [name.partition("/") for name in names or (NAME,)]
    rows = [HandlerRow(name, "", None, flow or LINE.name) for name, _, flow in parts]
    desk.store.keep_handlers(rows)


@contextmanager
def dropped(desk: Desk) -> Iterator[EventSource]:
    """Follow in a transaction that is taken back; without one, wait until it is over."""
    store = desk.store
    if not store.features.open_transactions:
        yield cast(EventSource, store)
        desk.turn(microseconds=HOLD)
        return
    transaction = cast(TransactionStore, store).begin()
    try:
        yield transaction
    finally:
        transaction.roll_back()


@contextmanager
def open_source(desk: Desk) -> Iterator[EventSource]:
    """Follow in a transaction, where the store has any."""
    store = desk.store
    if not store.features.open_transactions:
        yield cast(EventSource, store)
        return
    transaction = cast(TransactionStore, store).begin()
    try:
        yield transaction
        transaction.commit()
    finally:
        transaction.roll_back()


def got(desk: Desk, name: str = NAME, *, limit: int = 99) -> dict[bytes, list[int]]:
    """Get one batch; return the numbers of its events by job."""
    desk.store.has_due(name)
    with open_source(desk) as source:
        taken = source.take_events(name, limit, hold_us=HOLD)
        source.finish_events(taken)
    return {one.job.id: [event.seq for event in one.events] for one in taken}


def all_of(desk: Desk, name: str = NAME) -> dict[bytes, list[int]]:
    """Get everything that there is."""
    found: dict[bytes, list[int]] = {}
    while batch := got(desk, name):
        for job_id, numbers in batch.items():
            found.setdefault(job_id, []).extend(numbers)
    return found


def fail(desk: Desk, row: JobRow, state: str, *, after: int = 0) -> None:
    """Let the events of one job fail."""
    with open_source(desk) as source:
        taken = source.take_events(NAME, 99, hold_us=1)
        (bad,) = [one for one in taken if one.job.id == row.id]
        not_before = desk.now + after * SECOND
        end = Settled(bad.head.message, NAME, state, not_before, blocks=True, error="no")
        source.settle_events([end])
    desk.turn(microseconds=1)


def ids(taken: Sequence[Followed]) -> list[bytes]:
    """Return the jobs of what was taken."""
    return [one.job.id for one in taken]
