"""A worker's places: never more stages in a pool than it has places."""

import pytest

import ulak
from ulak.core.job import lane_before
from ulak.engine.claim_loop import Pools
from ulak.store.protocol import Want


async def on_the_loop(run: ulak.Run[str]) -> None: ...


def in_a_thread(run: ulak.Run[str]) -> None: ...


@pytest.mark.shows("E-22")
def test_a_place_is_exchanged_only_for_one_that_is_free() -> None:
    flow = ulak.Flow.steps("two", on_the_loop, in_a_thread)
    pools = Pools([flow], ulak.WorkerSettings(loop=2, threads=1))
    lanes = {pools.find(lane): lane for lane in sorted(flow.table.lanes)}
    for _ in range(2):
        assert pools.take(lanes["loop"]) == "loop"
    assert pools.change("loop", lanes["thread"]) == "thread"
    assert pools.change("loop", lanes["thread"]) is None
    # One place of the loop is free again, and the one of the threads is taken.
    served = (lane_before(lanes["loop"]), lanes["loop"])
    assert [(want.lanes, want.places) for want in pools.wants()] == [(served, 1)]
    assert pools.wants(looks_back=False) == (Want((lanes["loop"],), 1),)
    pools.give_back("thread")
    assert pools.change("loop", lanes["thread"]) == "thread"


@pytest.mark.shows("E-22", "E-56")
def test_no_more_is_wanted_at_once_than_a_store_gives_best() -> None:
    flow = ulak.Flow.steps("two", on_the_loop, in_a_thread)
    pools = Pools([flow], ulak.WorkerSettings(loop=250, threads=16), most=100)
    wants = pools.wants(looks_back=False)
    assert sorted(want.places for want in wants) == [16, 100]
    assert pools.is_saturated(wants, 100), "there may be more for the other 150"
