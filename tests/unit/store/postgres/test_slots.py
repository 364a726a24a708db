"""A claim locks the slots that it may give, and leaves the others to other workers."""

from collections.abc import Mapping
from typing import Any

import pytest

from ulak.store.postgres import PostgresStore, slots
from ulak.testing.conformance.desk import Desk
from ulak.testing.conformance.flows import KEYED, TIGHT


@pytest.mark.shows("E-65")
def test_a_claim_locks_no_more_slots_than_it_has_places(
    store: PostgresStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    desk, locked, find_free = Desk(store), list[Mapping[str, int]](), slots.find_free

    def noted(db: Any, wanted: Mapping[str, int]) -> Any:
        locked.append({limit: number for limit, number in wanted.items() if number})
        return find_free(db, wanted)

    desk.declare(TIGHT)
    desk.submit_many(5, TIGHT)
    desk.hire("w")
    monkeypatch.setattr(slots, "find_free", noted)
    assert len(desk.look("w", 1, (TIGHT,)).claims) == 1
    assert [sum(each.values()) for each in locked] == [1]


@pytest.mark.shows("E-65")
def test_a_key_without_slots_has_as_many_places_as_its_limit(store: PostgresStore) -> None:
    desk = Desk(store)
    desk.declare(TIGHT, KEYED)
    (tight,), (keyed,) = TIGHT.table.limits, KEYED.table.limits
    limits = [tight, f"{keyed}/new", "gone/only/new"]
    places = store._read(lambda db: slots.free_places(db, limits))
    assert places == {tight: 2, f"{keyed}/new": 2, "gone/only/new": 0}
