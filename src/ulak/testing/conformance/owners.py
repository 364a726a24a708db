"""Owners: in a flow that keeps them, whoever submits a job or repeats its submit owns it."""

from __future__ import annotations

from functools import partial
from typing import Any

import pytest

from ulak.clock import SECOND
from ulak.core.admission import StopRow
from ulak.core.job import JobRow
from ulak.core.outcome import Finished, Left
from ulak.store.protocol import Added, JobFilter
from ulak.testing.conformance.desk import Desk, Suite, at_once, patiently
from ulak.testing.conformance.flows import LINE, OWNED, SHARED
from ulak.testing.conformance.stops import add_inside, calling


class TestOwners(Suite):
    """A job is found by any of its owners."""

    @pytest.mark.shows("E-75")
    @pytest.mark.parametrize("key", [None, "k"])
    def test_the_submitter_owns_the_job(self, desk: Desk, key: str | None) -> None:
        row = desk.submit(OWNED, submitter="ada", dedup_key=key)
        assert desk.store.find_owners(row.id) == ["ada"]
        assert _owned_by(desk, "ada") == [row.id]
        assert _owned_by(desk, "bob") == []

    @pytest.mark.shows("E-75")
    def test_every_job_of_a_batch_has_its_own(self, desk: Desk) -> None:
        jobs = [desk.new(OWNED, submitter=name) for name in ("ada", "bob", "", "ada")]
        desk.store.add(jobs)
        owners = [desk.store.find_owners(job.row.id) for job in jobs]
        assert owners == [["ada"], ["bob"], [], ["ada"]]
        assert _owned_by(desk, "ada") == [jobs[3].row.id, jobs[0].row.id]

    @pytest.mark.shows("E-75")
    def test_a_flow_without_owners_keeps_none(self, desk: Desk) -> None:
        row = desk.submit(LINE, submitter="ada", dedup_key="k")
        assert desk.store.add([desk.new(LINE, submitter="bob", dedup_key="k")]) == [
            Added(row, False)
        ]
        assert desk.store.find_owners(row.id) == []
        assert _owned_by(desk, "ada") == []

    @pytest.mark.shows("E-75")
    def test_a_repeat_of_a_known_job_adds_its_submitter_once(self, desk: Desk) -> None:
        first = desk.submit(OWNED, submitter="bob", dedup_key="k")
        for _ in range(2):
            repeat = desk.new(OWNED, submitter="ada", dedup_key="k")
            assert desk.store.add([repeat]) == [Added(first, False)]
        assert desk.store.add([desk.new(OWNED, dedup_key="k")]) == [Added(first, False)]
        assert desk.store.find_owners(first.id) == ["ada", "bob"]
        assert _owned_by(desk, "ada") == _owned_by(desk, "bob") == [first.id]
        assert desk.store.scan_orphans() == []

    @pytest.mark.shows("E-75")
    def test_repeats_and_new_jobs_of_one_batch_have_their_owners(self, desk: Desk) -> None:
        first = desk.submit(OWNED, submitter="ada", dedup_key="k")
        repeat = desk.new(OWNED, submitter="bob", dedup_key="k")
        new = desk.new(OWNED, submitter="cyd", dedup_key="l")
        again = desk.new(OWNED, submitter="dan", dedup_key="l")
        other = desk.new(SHARED, submitter="eve")
        added = desk.store.add([repeat, new, again, other])
        assert [one.created for one in added] == [False, True, False, True]
        assert desk.store.find_owners(first.id) == ["ada", "bob"]
        assert desk.store.find_owners(new.row.id) == ["cyd", "dan"]
        assert desk.store.find_owners(other.row.id) == []

    @pytest.mark.shows("E-75")
    def test_an_add_whose_answer_was_lost_is_repeated_without_harm(self, desk: Desk) -> None:
        job = desk.new(OWNED, submitter="ada")
        for _ in range(2):
            assert desk.store.add([job]) == [Added(job.row, True)]
        assert desk.store.find_owners(job.row.id) == ["ada"]

    @pytest.mark.shows("E-75", "E-73")
    def test_a_job_that_a_stop_keeps_out_has_no_owner_and_a_repeat_has(self, desk: Desk) -> None:
        if not desk.store.features.flow_control:
            pytest.skip("this store has no flow control")
        first = desk.submit(OWNED, submitter="ada", dedup_key="k")
        desk.store.stop_accepting(StopRow("owned", "*", 1, "ada", None, desk.now))
        repeat = desk.new(OWNED, submitter="bob", dedup_key="k")
        out = desk.new(OWNED, submitter="bob", dedup_key="l")
        for batch in ([repeat], [out], [repeat, out]):
            desk.store.add(batch)
        assert desk.store.find_owners(first.id) == ["ada", "bob"]
        assert _owned_by(desk, "bob") == [first.id]
        assert desk.store.scan_orphans() == []

    @pytest.mark.shows("E-75")
    def test_spawned_jobs_have_owners_too(self, desk: Desk) -> None:
        first = desk.submit(OWNED, submitter="ada", dedup_key="k")
        (parent,) = desk.leased(1)
        new = desk.new(OWNED, submitter="bob")
        repeat = desk.new(OWNED, submitter="cyd", dedup_key="k")
        desk.write(desk.end(parent, Finished(Left(spawns=(new, repeat)))))
        assert desk.store.find_owners(new.row.id) == ["bob"]
        assert desk.store.find_owners(first.id) == ["ada", "cyd"]

    @pytest.mark.shows("E-75")
    def test_owners_go_with_their_job(self, desk: Desk) -> None:
        row = desk.leased(1, OWNED)[0]
        owned = desk.submit(OWNED, submitter="ada", dedup_key="k")
        desk.store.add([desk.new(OWNED, submitter="bob", dedup_key="k")])
        desk.finish(desk.lease(OWNED), flow=OWNED)
        desk.finish(row, flow=OWNED)
        desk.turn(hours=1)
        assert desk.store.prune(before=desk.now, limit=9) == 2
        assert desk.store.find_owners(owned.id) == []
        assert _owned_by(desk, "ada") == []
        assert desk.store.scan_orphans() == []

    @pytest.mark.shows("E-75")
    def test_two_who_repeat_a_submit_at_once_both_own_the_job(self, desk: Desk) -> None:
        first = desk.submit(OWNED, submitter="ada", dedup_key="k")
        names = [f"owner {n}" for n in range(4)]
        # Each of them twice: the same row is written by two at once as well.
        at_once(*[partial(self._repeat, desk, name) for name in names * 2])
        assert desk.store.find_owners(first.id) == ["ada", *names]

    @pytest.mark.shows("E-75")
    def test_an_owner_is_added_without_a_submit_once(self, desk: Desk) -> None:
        row = desk.submit(OWNED, submitter="bob")
        for owner in ("ada", "bob", "ada"):
            desk.turn(seconds=1)
            desk.store.add_owner(row.id, owner)
        assert desk.store.find_owners(row.id) == ["bob", "ada"]
        assert _owned_by(desk, "ada") == _owned_by(desk, "bob") == [row.id]
        desk.store.add_owner(b"\x00" * 16, "ada")
        assert desk.store.find_owners(b"\x00" * 16) == []
        assert desk.store.scan_orphans() == []

    @pytest.mark.shows("E-75")
    def test_who_owned_a_job_before_owns_it_since_then(self, desk: Desk) -> None:
        rows = [desk.submit(OWNED, submitter="bob") for _ in range(2)]
        at = desk.now
        desk.turn(seconds=9)
        desk.store.add_owner(rows[1].id, "ada")
        for since in (at - SECOND, at - 2 * SECOND, at):
            desk.store.add_owner(rows[0].id, "ada", since=since)
        desk.store.add_owner(rows[0].id, "ada")
        owned = [(at + 9 * SECOND, rows[1].id), (at - 2 * SECOND, rows[0].id)]
        assert desk.store.find_owned("ada") == owned
        assert desk.store.find_owners(rows[0].id) == ["ada", "bob"]
        desk.store.add_owner(b"\x00" * 16, "ada", since=at)
        assert desk.store.find_owned("ada") == owned

    @pytest.mark.shows("E-75")
    def test_the_jobs_of_an_owner_are_listed_by_when_they_became_one(self, desk: Desk) -> None:
        rows = [desk.submit(OWNED, submitter="bob") for _ in range(4)]
        began = desk.now
        for n in (2, 0, 3, 1):
            desk.turn(seconds=1)
            desk.store.add_owner(rows[n].id, "ada")
        last, *rest = [
            (began + s * SECOND, rows[n].id) for s, n in ((4, 1), (3, 3), (2, 0), (1, 2))
        ]
        assert desk.store.find_owned("ada", limit=1) == [last]
        assert desk.store.find_owned("ada", before=last, limit=2) == rest[:2]
        assert desk.store.find_owned("ada", before=rest[1]) == rest[2:]
        # Of one moment, by id: the greatest first.
        bobs = sorted((row.id for row in rows), reverse=True)
        assert [job_id for _, job_id in desk.store.find_owned("bob")] == bobs
        assert desk.store.find_owned("eve") == []

    @staticmethod
    def _repeat(desk: Desk, name: str) -> list[Added]:
        return patiently(desk.store.add, [desk.new(OWNED, submitter=name, dedup_key="k")])

    # --- callers' transactions --------------------------------------------------

    @pytest.mark.shows("E-75", "E-33")
    @pytest.mark.parametrize("key", [None, "k"])
    def test_the_submitter_owns_a_job_of_a_callers_transaction(
        self, desk: Desk, key: str | None
    ) -> None:
        with calling(desk) as (guest, transaction):
            job = desk.new(OWNED, submitter="ada", dedup_key=key)
            assert add_inside(guest, transaction, job).created
            transaction.roll_back()
        assert _owned_by(desk, "ada") == []
        with calling(desk) as (guest, transaction):
            job = desk.new(OWNED, submitter="ada", dedup_key=key)
            assert add_inside(guest, transaction, job).created
            transaction.commit()
        assert _owned_by(desk, "ada") == [job.row.id]
        assert desk.store.scan_orphans() == []

    @pytest.mark.shows("E-75", "E-33")
    @pytest.mark.parametrize("is_stopped", [False, True])
    def test_a_repeat_in_a_callers_transaction_adds_an_owner_with_it(
        self, desk: Desk, is_stopped: bool
    ) -> None:
        first = desk.submit(OWNED, submitter="ada", dedup_key="k")
        if is_stopped and desk.store.features.flow_control:
            desk.store.stop_accepting(StopRow("owned", "*", 1, "ada", None, desk.now))
        for is_kept in (False, True):
            with calling(desk) as (guest, transaction):
                repeat = desk.new(OWNED, submitter="bob", dedup_key="k")
                assert add_inside(guest, transaction, repeat) == Added(first, False)
                if is_kept:
                    transaction.commit()
            assert desk.store.find_owners(first.id) == (["ada", "bob"] if is_kept else ["ada"])

    # --- lists ------------------------------------------------------------------

    @pytest.mark.shows("E-75")
    def test_the_jobs_of_an_owner_are_listed_in_pages_with_every_other_condition(
        self, desk: Desk
    ) -> None:
        mine = [self._shared(desk, n) for n in range(6)]
        desk.submit_many(3, OWNED, submitter="bob")
        ids = [row.id for row in mine][::-1]
        page = desk.store.list_jobs(JobFilter(owner="ada"), limit=4)
        assert [row.id for row in page] == ids[:4]
        page = desk.store.list_jobs(JobFilter(owner="ada"), after=ids[3], limit=4)
        assert [row.id for row in page] == ids[4:]
        assert desk.store.count_jobs(JobFilter(owner="ada")) == 6
        assert desk.store.count_jobs(JobFilter(owner="ada"), after=ids[3]) == 2
        where = JobFilter(owner="ada", tenant="acme", flow="owned", role="ready")
        assert [row.id for row in desk.store.list_jobs(where)] == ids[1::2]

    @staticmethod
    def _shared(desk: Desk, n: int) -> JobRow:
        """Submit a job of bob's, and have ada repeat it."""
        facts: dict[str, Any] = {"tenant": "acme" if n % 2 == 0 else "", "dedup_key": str(n)}
        row = desk.submit(OWNED, submitter="bob", **facts)
        desk.store.add([desk.new(OWNED, submitter="ada", **facts)])
        return row


def _owned_by(desk: Desk, owner: str) -> list[bytes]:
    return [row.id for row in desk.store.list_jobs(JobFilter(owner=owner))]
