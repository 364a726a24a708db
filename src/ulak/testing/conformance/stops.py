"""Stops: a flow takes no new jobs, of a tenant or of all, and says so; what waits is counted."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, cast

import pytest

from ulak.clock import SECOND
from ulak.core.admission import Ask, StopRow, Waiting, find_waiting, refusal
from ulak.core.flow import Flow
from ulak.core.job import NewJob
from ulak.core.outcome import Finished, Left
from ulak.errors import Overloaded
from ulak.store import caller
from ulak.store.caller import Guest
from ulak.store.protocol import Added, Store, Tick, TickRow
from ulak.store.transaction import OpenTransaction
from ulak.testing.conformance.desk import Desk, Reopen, Suite
from ulak.testing.conformance.flows import KEYED, LINE, METERED, PROVEN, RATED, SHARED
from ulak.testing.conformance.open_transactions import opened
from ulak.testing.conformance.schedules import due, kept

MANY = 1000


class TestStops(Suite):
    """A stop keeps new jobs out, and nothing else."""

    @pytest.fixture
    def desk(self, store: Store) -> Desk:
        if not store.features.flow_control:
            pytest.skip("this store has no flow control")
        return Desk(store)

    # --- stops ------------------------------------------------------------------

    @pytest.mark.shows("E-73")
    def test_a_new_job_of_a_stopped_flow_is_not_stored_and_the_stop_is_answered(
        self, desk: Desk
    ) -> None:
        stop, job = _stop(desk), desk.new()
        assert desk.store.add([job]) == [Added(job.row, False, stop)]
        assert desk.jobs() == []
        assert desk.store.counts() == []
        assert desk.store.trail(job.row.id) == []

    @pytest.mark.shows("E-73")
    def test_a_stop_of_one_tenant_lets_others_in(self, desk: Desk) -> None:
        stop = _stop(desk, tenant="acme")
        out, other, none = desk.new(tenant="acme"), desk.new(tenant="beta"), desk.new()
        assert desk.store.add([out, other, none]) == [
            Added(out.row, False, stop), Added(other.row, True), Added(none.row, True),
        ]  # fmt: skip

    @pytest.mark.shows("E-73")
    def test_a_tenants_own_stop_is_said_before_that_of_all(self, desk: Desk) -> None:
        own, every = _stop(desk, tenant="acme", seconds=5), _stop(desk)
        added = desk.store.add([desk.new(tenant="acme"), desk.new(tenant="beta")])
        assert [one.stop for one in added] == [own, every]

    @pytest.mark.shows("E-73")
    @pytest.mark.parametrize("flow", [SHARED, PROVEN])
    def test_other_flows_of_the_same_batch_are_stored(self, desk: Desk, flow: Flow[Any]) -> None:
        stop = _stop(desk)
        new = [desk.new(), desk.new(flow), desk.new(dedup_key="k"), desk.new(flow, dedup_key="k")]
        for _ in range(2):  # the second time the store knows that there are stops
            added = desk.store.add(new)
            assert [one.stop for one in added] == [stop, None, stop, None]
            assert [one.created for one in added] == [False, True, False, True]
            assert {row.flow for row in desk.jobs()} == {flow.name}
        assert desk.store.find_key("", "line", "k") is None

    @pytest.mark.shows("E-73")
    def test_a_known_key_still_gets_its_job(self, desk: Desk) -> None:
        first = desk.submit(dedup_key="k")
        stop = _stop(desk)
        known, new = desk.new(dedup_key="k"), desk.new(dedup_key="new")
        again = desk.new(dedup_key="new")
        assert desk.store.add([known]) == [Added(first, False)]
        assert desk.store.add([known, new, again]) == [
            Added(first, False), Added(new.row, False, stop), Added(again.row, False, stop),
        ]  # fmt: skip

    @pytest.mark.shows("E-73")
    def test_a_job_that_is_stored_is_answered_when_its_add_is_repeated(self, desk: Desk) -> None:
        job = desk.new()
        assert desk.store.add([job]) == [Added(job.row, True)]
        _stop(desk)
        assert desk.store.add([job]) == [Added(job.row, True)]

    @pytest.mark.shows("E-73")
    @pytest.mark.parametrize("number", [1, 3])
    def test_jobs_that_were_admitted_are_stored(self, desk: Desk, number: int) -> None:
        _stop(desk)
        jobs = [desk.new()._replace(is_admitted=True) for _ in range(number)]
        assert desk.store.add(jobs) == [Added(job.row, True) for job in jobs]
        keyed = desk.new(dedup_key="k")._replace(is_admitted=True)
        assert desk.store.add([keyed]) == [Added(keyed.row, True)]

    @pytest.mark.shows("E-73")
    def test_a_job_that_was_admitted_takes_no_other_of_its_batch_along(self, desk: Desk) -> None:
        stop = _stop(desk)
        first, second, third = (desk.new()._replace(is_admitted=n == 1) for n in range(3))
        assert desk.store.add([first, second, third]) == [
            Added(first.row, False, stop), Added(second.row, True), Added(third.row, False, stop),
        ]  # fmt: skip
        assert [row.id for row in desk.jobs()] == [second.row.id]

    @pytest.mark.shows("E-73")
    def test_spawned_and_scheduled_jobs_are_not_refused(self, desk: Desk) -> None:
        (parent,) = desk.leased(1, SHARED)
        row = kept(desk, "s")
        _stop(desk)
        plain, keyed, ticked = desk.new(), desk.new(dedup_key="k"), due(desk, row.next_at)
        left = Left(spawns=(plain, keyed))
        desk.write(desk.end(parent, Finished(left), flow=SHARED))
        desk.turn(minutes=1)
        assert desk.store.tick([Tick(row, (ticked,), row.next_at + SECOND)]) == [True]
        for job in (plain, keyed, ticked):
            assert desk.job(job.row.id) == job.row
        assert desk.store.ticks("s", limit=9) == [TickRow("s", row.next_at, ticked.row.id)]

    @pytest.mark.shows("E-73")
    def test_accepting_again_ends_the_stop(self, desk: Desk) -> None:
        stop = _stop(desk)
        desk.store.add([desk.new()])
        assert desk.store.accept("line", "*", actor="bob", note="done") == stop
        assert desk.store.stops() == []
        assert desk.store.add([desk.new()])[0].created
        assert desk.store.add([desk.new(), desk.new(dedup_key="k")])[1].created
        assert desk.store.accept("line", "*", actor="bob", note="") is None

    @pytest.mark.shows("E-73")
    def test_stopping_again_says_what_it_replaces(self, desk: Desk) -> None:
        first = _stop(desk)
        desk.turn(seconds=1)
        second = first._replace(retry_after_us=7, actor="bob", note=None, at=desk.now)
        assert desk.store.stop_accepting(second) == first
        other = _stop(desk, tenant="acme")
        assert desk.store.stops() == [second, other]

    @pytest.mark.shows("E-73")
    def test_stops_and_their_ends_are_audited(self, desk: Desk) -> None:
        _stop(desk, tenant="acme")
        desk.store.accept("line", "acme", actor="bob", note="done")
        ended, begun = desk.store.audit_trail(subject="intake/line/acme")
        assert (begun.actor, begun.act, begun.note, begun.at) == ("ada", "stop", "why", desk.now)
        assert begun.details == '{"retry_after_us":30000000,"before":null}'
        assert (ended.actor, ended.act, ended.note) == ("bob", "accept", "done")
        assert ended.details == '{"retry_after_us":null,"before":30000000}'

    @pytest.mark.shows("E-73")
    def test_a_stop_is_in_force_in_every_process_and_after_a_restart(
        self, desk: Desk, reopen: Reopen
    ) -> None:
        if not desk.store.features.shared:
            pytest.skip("this store serves one process")
        desk.submit()
        stop = _stop(desk)
        other = reopen()
        other.open()
        try:
            assert other.stops() == [stop]
            assert other.add([desk.new()])[0].stop == stop
            other.accept("line", "*", actor="bob", note="")
        finally:
            other.close()
        assert desk.store.add([desk.new()])[0].created

    # --- callers' transactions --------------------------------------------------

    @pytest.mark.shows("E-73", "E-33")
    @pytest.mark.parametrize("key", [None, "k"])
    def test_nothing_is_written_in_a_callers_transaction_before_the_refusal(
        self, desk: Desk, key: str | None
    ) -> None:
        _stop(desk)
        with calling(desk) as (guest, transaction):
            with pytest.raises(Overloaded, match="line takes no new jobs now"):
                add_inside(guest, transaction, desk.new(dedup_key=key))
            stored = add_inside(guest, transaction, desk.new(SHARED, dedup_key=key))
            transaction.commit()
        assert [row.id for row in desk.jobs()] == [stored.row.id]
        assert [row.flow for row in desk.store.scan_keys()] == ["shared"] * (key is not None)
        assert desk.store.scan_orphans() == []

    @pytest.mark.shows("E-73")
    def test_a_known_key_gets_its_job_in_a_callers_transaction(self, desk: Desk) -> None:
        first = desk.submit(dedup_key="k")
        _stop(desk)
        with calling(desk) as (guest, transaction):
            assert add_inside(guest, transaction, desk.new(dedup_key="k")) == Added(first, False)

    @pytest.mark.shows("E-73")
    def test_a_stop_may_be_set_and_ended_in_a_callers_transaction(self, desk: Desk) -> None:
        stop = StopRow("line", "*", SECOND, "ada", "why", desk.now)
        with calling(desk) as (guest, transaction):
            assert _use(guest, transaction, lambda store: store.stop_accepting(stop)) is None
            with pytest.raises(Overloaded):
                add_inside(guest, transaction, desk.new())
            transaction.roll_back()
        assert desk.store.stops() == []
        assert desk.store.audit_trail() == []
        with calling(desk) as (guest, transaction):
            _use(guest, transaction, lambda store: store.stop_accepting(stop))
            transaction.commit()
        assert desk.store.stops() == [stop]
        with calling(desk) as (guest, transaction):
            ended = _use(
                guest,
                transaction,
                lambda store: store.accept("line", "*", actor="bob", note="done"),
            )
            assert ended == stop
            transaction.commit()
        assert desk.store.stops() == []
        assert [line.act for line in desk.store.audit_trail()] == ["accept", "stop"]

    @pytest.mark.shows("E-73")
    def test_a_new_job_in_a_callers_transaction_is_judged_before_it_is_written(
        self, desk: Desk
    ) -> None:
        first = desk.submit(dedup_key="k")
        seen: list[int] = []

        def judge(waiting: int) -> None:
            seen.append(waiting)
            if waiting > 1:
                raise refusal("full", 1)

        ask = Ask(_waiting(LINE), judge)
        with calling(desk) as (guest, transaction):
            assert add_inside(guest, transaction, desk.new(dedup_key="k"), ask) == Added(
                first, False
            )
            assert add_inside(guest, transaction, desk.new(dedup_key="l"), ask).created
            with pytest.raises(Overloaded, match="full"):
                add_inside(guest, transaction, desk.new(dedup_key="m"), ask)
            transaction.commit()
        assert seen == [1, 2]
        assert sorted(row.key for row in desk.store.scan_keys()) == ["k", "l"]
        assert desk.store.scan_orphans() == []

    # --- what waits -------------------------------------------------------------

    @pytest.mark.shows("E-73")
    @pytest.mark.parametrize("flow", [LINE, SHARED])
    def test_jobs_that_nobody_has_begun_are_counted_by_tenant(
        self, desk: Desk, flow: Flow[Any]
    ) -> None:
        desk.submit_many(3, flow, tenant="acme")
        desk.submit(flow, tenant="acme", after=10)
        desk.submit_many(2, flow, tenant="beta")
        assert _count(desk, flow, "acme") == 4
        assert _count(desk, flow, "beta") == 2
        assert _count(desk, flow, "") == 0
        desk.hire("w")
        desk.claim("w", 9, flow)
        assert _count(desk, flow, "acme") == 1, "the one that is delayed"

    @pytest.mark.shows("E-73")
    def test_a_job_at_a_later_stage_is_not_counted(self, desk: Desk) -> None:
        (row,) = desk.leased(1)
        desk.finish(row)
        assert _count(desk, LINE) == 0

    @pytest.mark.shows("E-73")
    @pytest.mark.parametrize("flow", [KEYED, RATED, METERED])
    def test_parked_jobs_are_counted(self, desk: Desk, flow: Flow[Any]) -> None:
        desk.declare(flow)
        desk.store.pause("key", "paused", until=None, actor="ada", note="")
        for key in ("a", "a", "paused"):
            for _ in range(12):
                desk.submit_keyed(key, flow)
        desk.hire("w")
        begun = len(desk.claim("w", 100, flow))
        parked = [row for row in desk.jobs() if row.parked_on is not None]
        assert begun
        assert parked
        assert _count(desk, flow) == 36 - begun

    @pytest.mark.shows("E-73")
    def test_no_more_are_counted_than_the_limit(self, desk: Desk) -> None:
        desk.submit_many(5)
        assert desk.store.count_waiting(_waiting(LINE)._replace(limit=3)) == 3


def _stop(desk: Desk, *, tenant: str = "*", seconds: int = 30) -> StopRow:
    stop = StopRow("line", tenant, seconds * SECOND, "ada", "why", desk.now)
    assert desk.store.stop_accepting(stop) is None
    return stop


def _waiting(flow: Flow[Any], tenant: str = "") -> Waiting:
    return find_waiting(flow, tenant)._replace(limit=MANY)


def _count(desk: Desk, flow: Flow[Any], tenant: str = "") -> int:
    return desk.store.count_waiting(_waiting(flow, tenant))


@contextmanager
def calling(desk: Desk) -> Iterator[tuple[Guest, OpenTransaction]]:
    """Lend a transaction of a caller's own, which is rolled back unless it is committed."""
    features = desk.store.features
    if not (features.caller_transactions and features.open_transactions):
        pytest.skip("this store writes in no transaction of a caller's")
    with opened(desk) as transaction:
        yield cast(Guest, desk.store), transaction


def add_inside(
    guest: Guest, transaction: OpenTransaction, job: NewJob, ask: Ask | None = None
) -> Added:
    """Store a job in a caller's transaction."""
    return caller.write(guest, transaction.connection, lambda: guest.add_steps(job, ask))


def _use(
    guest: Guest, transaction: OpenTransaction, work: Callable[[Store], StopRow | None]
) -> StopRow | None:
    return caller.use(guest, transaction.connection, "stop", work, ready=lambda: None)
