"""Stages' own transactions: a change that is committed in one is written as by `commit`."""

from __future__ import annotations

from typing import Any, cast

import pytest

from ulak.core.change import Committed, LeaseLost
from ulak.core.outcome import Finished, Left
from ulak.errors import WriteRefused
from ulak.store.protocol import Store
from ulak.store.transaction import StageStore, StageTransaction
from ulak.testing.conformance.desk import Desk, Suite, snapshot


class TestStageTransactions(Suite):
    """A store may let stages write rows of their own with their moves, if it says so."""

    @pytest.fixture
    def desk(self, store: Store) -> Desk:
        if not store.features.stage_transactions:
            pytest.skip("this store has no transaction to share")
        return Desk(store)

    @pytest.mark.shows("E-36")
    def test_a_change_is_written_whole(self, desk: Desk) -> None:
        (row, plain) = desk.leased(2)
        rung: list[str] = []
        desk.store.on_commit(lambda: rung.append("ring"))
        spawned, beside = desk.new(), desk.new()
        (written,) = desk.write(desk.end(plain, Finished(Left(b"1", spawns=(beside,)))))
        rung.clear()
        change = desk.end(row, Finished(Left(b"1", spawns=(spawned,))))
        assert begin(desk).commit(change) == Committed()
        assert desk.job(row.id)._replace(id=written.id) == written
        assert desk.kinds(row.id) == desk.kinds(plain.id)
        assert [r.data for r in desk.store.find_results(row.id)] == [b"1"]
        assert desk.job(spawned.row.id) == spawned.row
        assert sum(count.jobs for count in desk.store.counts()) == len(desk.jobs()) == 4
        assert desk.store.find_commits([change]) == [True]
        assert rung

    @pytest.mark.shows("E-36", "E-18")
    def test_a_moved_token_refuses_the_change(self, desk: Desk) -> None:
        (row,) = desk.leased(1)
        change, late = desk.end(row), desk.end(row)
        desk.write(change)
        before = snapshot(desk, [row.id])
        assert begin(desk).commit(late) == LeaseLost()
        assert snapshot(desk, [row.id]) == before

    @pytest.mark.shows("E-36")
    def test_what_is_asked_meanwhile_comes_with_the_receipt(self, desk: Desk) -> None:
        (row,) = desk.leased(1)
        desk.ask(row)
        receipt = begin(desk).commit(desk.end(row))
        assert isinstance(receipt, Committed)
        assert [request.kind for request in receipt.requests] == ["cancel"]

    @pytest.mark.shows("E-36")
    def test_data_that_cannot_be_stored_is_refused_and_ends_it(self, desk: Desk) -> None:
        (row,) = desk.leased(1)
        before = snapshot(desk, [row.id])
        change = desk.end(row)
        bad = change._replace(row=change.row._replace(state=cast(Any, None)))
        with pytest.raises(WriteRefused):
            begin(desk).commit(bad)
        assert snapshot(desk, [row.id]) == before
        assert begin(desk).commit(change) == Committed()

    @pytest.mark.shows("E-36")
    def test_rolling_back_twice_is_nothing(self, desk: Desk) -> None:
        (row,) = desk.leased(1)
        stage = begin(desk)
        stage.roll_back()
        stage.roll_back()
        assert desk.finish(row).leased_by is None

    @pytest.mark.shows("E-36")
    def test_several_are_open_beside_each_other(self, desk: Desk) -> None:
        rows = desk.leased(3)
        stages = [begin(desk) for _ in rows]
        assert len({id(stage.connection) for stage in stages}) == 3
        for row, stage in zip(rows, stages, strict=True):
            assert stage.commit(desk.end(row)) == Committed()


def begin(desk: Desk) -> StageTransaction:
    """Begin a transaction of a stage."""
    return cast(StageStore, desk.store).begin_stage()
