"""How jobs stand: due, delayed, parked and leased are counted apart, and so are the last ends."""

from __future__ import annotations

from collections import Counter
from datetime import timedelta
from typing import Any

import pytest

from ulak.clock import SECOND, to_datetime
from ulak.core.backlog import MOST_COUNTED, MOST_ENDS, RATE_OVER_US, add_up
from ulak.core.flow import Flow
from ulak.core.outcome import Cancel, Held
from ulak.store.protocol import LARGEST_BATCH
from ulak.testing.conformance.desk import Desk, Suite
from ulak.testing.conformance.flows import BUSY, KEYED, LINE, METERED, RATED, SHARED, TIGHT


class TestStanding(Suite):
    """What is counted is what there is, and a count that is not exact says so."""

    @pytest.mark.shows("E-74")
    def test_nothing_stands_in_an_empty_store(self, desk: Desk) -> None:
        standing = desk.store.count_standing()
        assert standing == (desk.now, [], {}, {}, [], {})

    @pytest.mark.shows("E-74", "E-2")
    def test_due_delayed_leased_and_ended_jobs_are_counted_apart(self, desk: Desk) -> None:
        desk.hire("w", lease=timedelta(days=1))
        desk.submit_many(2, BUSY)
        desk.claim("w", 1, BUSY)
        for priority in range(4):
            desk.submit(LINE, priority=priority)
            desk.submit_many(2, LINE, priority=priority, after=10)
        desk.claim("w", 3)
        assert _counted(desk) == Counter({
            ("busy", "due"): 1, ("busy", "leased"): 1,
            ("line", "due"): 1, ("line", "delayed"): 8, ("line", "leased"): 3,
        })  # fmt: skip
        desk.turn(seconds=10)
        assert _counted(desk)["line", "due"] == 9

    @pytest.mark.shows("E-74")
    @pytest.mark.parametrize("flow", [KEYED, RATED, METERED])
    def test_parked_jobs_are_counted_whatever_they_wait_for(
        self, desk: Desk, flow: Flow[Any]
    ) -> None:
        if not desk.store.features.flow_control:
            pytest.skip("this store has no flow control")
        desk.declare(TIGHT, flow)
        desk.store.pause("key", "paused", until=None, actor="ada", note="")
        for key in ("a", "b", "paused"):
            for _ in range(12):
                desk.submit_keyed(key, flow)
        desk.submit_many(5, TIGHT)
        desk.hire("w")
        desk.look("w", 100, (flow, TIGHT))
        jobs = [row for row in desk.jobs() if row.flow == flow.name]
        parked = sum(row.parked_on is not None for row in jobs)
        leased = sum(row.leased_by is not None for row in jobs)
        assert parked
        assert leased
        counted = _counted(desk)
        assert (counted[flow.name, "parked"], counted[flow.name, "leased"]) == (parked, leased)
        assert counted[flow.name, "due"] == 36 - parked - leased
        assert (counted["tight", "parked"], counted["tight", "leased"]) == (3, 2)

    @pytest.mark.shows("E-74")
    def test_the_tenants_of_a_fair_flow_are_counted_together(self, desk: Desk) -> None:
        for n in range(30):
            desk.submit(SHARED, tenant=f"tenant {n}", after=None if n % 3 else 60)
        assert _counted(desk) == Counter({("shared", "due"): 20, ("shared", "delayed"): 10})

    @pytest.mark.shows("E-74")
    def test_it_is_known_since_when_the_oldest_is_due(self, desk: Desk) -> None:
        began = desk.now
        desk.submit(LINE, priority=3, after=5)
        desk.submit(LINE, priority=0, after=50)
        desk.turn(seconds=4)
        assert desk.store.count_standing().oldest_due == {}
        desk.turn(seconds=4)
        row = desk.submit(LINE)
        desk.submit(BUSY)
        assert desk.store.count_standing().oldest_due == {
            row.lane: began + 5 * SECOND,
            desk.jobs()[-1].lane: desk.now,
        }

    @pytest.mark.shows("E-74")
    def test_it_is_known_since_when_the_oldest_is_leased(self, desk: Desk) -> None:
        desk.hire("w", lease=timedelta(days=1))
        desk.submit_many(3, BUSY)
        desk.turn(seconds=5)
        began, (first,) = desk.now, desk.claim("w", 1, BUSY)
        desk.turn(seconds=5)
        later, (second,) = desk.now, desk.claim("w", 1, BUSY)
        (row,) = add_up(desk.store.count_standing(), {})
        assert (row.leased, row.oldest_leased) == (2, to_datetime(began))
        desk.finish(first.row, flow=BUSY)
        (row,) = add_up(desk.store.count_standing(), {})
        assert (row.leased, row.oldest_leased) == (1, to_datetime(later))
        desk.finish(second.row, flow=BUSY)
        (row,) = add_up(desk.store.count_standing(), {})
        assert (row.leased, row.oldest_leased) == (0, None)

    @pytest.mark.shows("E-74")
    def test_ends_of_the_last_minute_are_counted_by_flow_and_role(self, desk: Desk) -> None:
        old, held, done, gone = desk.leased(4, BUSY)
        desk.finish(old, flow=BUSY)
        desk.turn(microseconds=RATE_OVER_US)
        desk.write(desk.end(held, Held("odd", "look"), flow=BUSY))
        began = desk.now
        desk.finish(done, flow=BUSY)
        desk.write(desk.act(desk.submit(LINE), Cancel("ada")))
        desk.turn(seconds=5)
        desk.finish(gone, flow=BUSY)
        ends = sorted(desk.store.count_standing().ends)
        assert ends == [("busy", "done", 2, began), ("line", "cancelled", 1, began)]
        assert len(ends) < MOST_ENDS

    @pytest.mark.shows("E-74")
    def test_a_kind_is_counted_exactly_up_to_a_bound_and_then_at_least(self, desk: Desk) -> None:
        for _ in range(MOST_COUNTED // LARGEST_BATCH):
            desk.submit_many(LARGEST_BATCH, LINE)
        desk.submit(LINE, after=10)
        desk.submit(BUSY)
        for due in (MOST_COUNTED, MOST_COUNTED + 1):
            standing = desk.store.count_standing()
            busy, line = add_up(standing, {})
            assert (line.due, line.delayed, line.at_least) == (due, 1, frozenset())
            assert (busy.due, busy.at_least) == (1, frozenset())
            desk.submit(LINE)
        # One kind of a flow is the rest of its jobs, however many; it was not counted so far.
        busy, line = add_up(standing._replace(totals={}), {})
        assert line.at_least == {"due"}
        assert line.due <= MOST_COUNTED
        assert (line.delayed, busy.due, busy.at_least) == (1, 1, frozenset())


def _counted(desk: Desk) -> Counter[tuple[str, str]]:
    """Count by flow and kind."""
    standing = desk.store.count_standing()
    found: Counter[tuple[str, str]] = Counter()
    for row in add_up(standing, {}):
        for kind in ("due", "delayed", "parked", "leased"):
            found[row.flow, kind] += getattr(row, kind)
    return found
