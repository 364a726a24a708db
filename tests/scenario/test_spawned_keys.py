"""A stage that spawns a job whose dedup key is held is told who holds it."""

import asyncio
from datetime import timedelta
from typing import Any

import pytest

import ulak
from tests.scenario.doubles import engine_on, settings, store_of
from ulak.errors import BadInput
from ulak.store.protocol import JobFilter


def child_flow() -> ulak.Flow[Any]:
    async def work(run: ulak.Run[Any]) -> None: ...

    return ulak.Flow.steps("child", work, dedup=ulak.Dedup())


@pytest.mark.shows("E-13", "E-30")
@pytest.mark.parametrize("where", ["loop", "thread"])
def test_a_spawned_job_whose_key_is_held_is_its_holder(jobs_url: str, where: str) -> None:
    child = child_flow()

    def spawn(run: ulak.Run[Any]) -> list[str]:
        return run.spawn(child, ["held", "free", "free"])

    async def spawn_on_loop(run: ulak.Run[Any]) -> list[str]:
        return spawn(run)

    parent: ulak.Flow[Any] = ulak.Flow.steps(
        "parent", ("spawning", spawn_on_loop if where == "loop" else spawn)
    )
    with engine_on(store_of(jobs_url), parent, child) as engine:
        held = engine.submit(child, "held", after=timedelta(hours=1))
        job = engine.submit(parent)
        asyncio.run(engine.worker(settings()).run(until_idle=True))
        first, second, third = engine.result(job.id)
        assert first == held.id
        assert second == third != held.id
        assert engine.get(second).state == "done"
        assert len(engine.store.list_jobs(JobFilter(flow="child"))) == 2
        assert engine.inspect.verify() == []


@pytest.mark.shows("E-32")
def test_many_jobs_of_a_function_are_submitted_at_once(jobs_url: str) -> None:
    engine = ulak.connect(jobs_url)

    @engine.job
    def add(a: int, b: int = 1) -> int:
        return a + b

    @engine.job
    def other(a: int) -> int:
        return a

    with engine:
        jobs = engine.submit_many(add, [1, 2, add.bind(3, b=4)], tenant="acme")
        jobs += asyncio.run(engine.aio.submit_many(add, [5, add.bind(6, 7)]))
        asyncio.run(engine.worker(settings()).run(until_idle=True))
        assert [engine.result(job.id) for job in jobs] == [2, 3, 7, 6, 13]
        assert [job.tenant for job in jobs] == ["acme"] * 3 + [""] * 2
        with pytest.raises(BadInput, match="other was bound"):
            engine.submit_many(add, [other.bind(1)])
        with pytest.raises(BadInput, match="no flow and no job function"):
            engine.submit_many("add", [1])  # type: ignore[call-overload]
        with pytest.raises(BadInput, match="add"):
            engine.submit_many(add, [(1, 2), add.bind()])
