"""Features: what a store says that it can, it can, and what it denies it does not."""

from __future__ import annotations

import pytest

from ulak.testing.conformance.desk import Desk, Reopen, Suite, is_noticed


class TestFeatures(Suite):
    """The engine decides by these flags what it refuses, so none of them may be wrong."""

    @pytest.mark.shows("E-57")
    def test_a_store_names_itself_and_says_what_a_power_cut_may_cost(self, desk: Desk) -> None:
        features = desk.store.features
        assert features.name
        assert len(features.durability.split()) > 2

    @pytest.mark.shows("E-57")
    def test_what_was_committed_is_there_again_exactly_if_the_store_is_durable(
        self, desk: Desk, reopen: Reopen
    ) -> None:
        row = desk.submit()
        desk.store.close()
        again = reopen()
        again.open()
        try:
            assert again.find_job(row.id) == (row if desk.store.features.durable else None)
        finally:
            again.close()

    @pytest.mark.shows("E-57")
    def test_another_opening_sees_what_was_committed_exactly_if_the_store_is_shared(
        self, desk: Desk, reopen: Reopen
    ) -> None:
        other = reopen()
        other.open()
        try:
            row = desk.submit()
            assert other.find_job(row.id) == (row if desk.store.features.shared else None)
            assert is_noticed(other) == desk.store.features.shared
        finally:
            other.close()
