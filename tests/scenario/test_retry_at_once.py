"""A retry that is due at once is still counted, also where its worker keeps the job meanwhile."""

from datetime import timedelta

import pytest

from tests.scenario.doubles import SOON, engine_on, settings, store_of
from ulak import Backoff, Flow, Lifecycle, Run


@pytest.mark.shows("P-15")
@pytest.mark.parametrize("via", [None, "failed"])
def test_retries_without_delay_come_to_an_end(jobs_url: str, via: str | None) -> None:
    seen: list[int] = []
    flow: Flow[dict[str, int]] = Flow(
        "hasty",
        Lifecycle("queued", {"queued": ["running"], "running": ["done"]}),
        payload=dict,
        retry=Backoff(2, first=timedelta(0)),
        retry_via=via,
    )

    @flow.stage("queued", during="running")
    async def work(run: Run[dict[str, int]]) -> None:
        seen.append(run.attempt)
        raise RuntimeError("again")

    with engine_on(store_of(jobs_url), flow) as engine:
        job = engine.submit(flow, {})
        with engine.working(settings()):
            assert engine.wait(job.id, timeout=SOON).state == "failed"
        assert engine.inspect.verify() == []
    assert seen == [1, 2, 3]
