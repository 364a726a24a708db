"""A claim is written and its answer lost: the jobs are leased, and nobody knows of them."""

from typing import Any

import pytest

import ulak
from tests.scenario.doubles import SOON, Double, engine_on, settings, store_of
from ulak.errors import StoreError


@pytest.mark.shows("E-24")
def test_jobs_of_a_claim_that_got_no_answer_are_given_back_and_run(jobs_url: str) -> None:
    async def work(run: ulak.Run[Any]) -> int:
        return run.attempt

    flow: ulak.Flow[Any] = ulak.Flow.steps("works", work)
    store = Double(store_of(jobs_url))

    def lose_the_first_answer(claimed: Any) -> None:
        if claimed.claims:
            del store.after["claim"]
            raise StoreError("the connection broke")

    with engine_on(store, flow) as engine:
        jobs = engine.submit_many(flow, range(5))
        store.after["claim"] = lose_the_first_answer
        with engine.working(settings(lease=60)):
            for job in jobs:
                assert engine.wait(job.id, timeout=SOON).state == "done"
        assert store.calls["leased"] == 1
        for job in jobs:
            assert engine.result(job.id) == 1, "no attempt was spent"
            assert [e.kind for e in engine.trail(job.id)] == ["submitted", "given-back", "moved"]
        assert engine.verify() == []
