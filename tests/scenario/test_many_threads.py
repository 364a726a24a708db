"""A thousand threads use one engine, and so do several event loops of one process."""

import asyncio
import resource
import threading
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from typing import Any

import pytest

import ulak
from tests import loop_watch
from tests.scenario.doubles import SOON, engine_on, settings, store_of
from ulak.testing import faults

THREADS = 1000
LOOPS = 8
JOBS_PER_LOOP = 10
# What most systems give a process that asks for no more.
DESCRIPTORS = 1024


def noop() -> ulak.Flow[Any]:
    async def due(run: ulak.Run[Any]) -> Any:
        return run.payload

    return ulak.Flow.steps("noop", due)


def use_from_a_thousand_threads(url: str) -> None:
    """Submit and read from all of them at the same moment; this is a program of its own."""
    resource.setrlimit(resource.RLIMIT_NOFILE, (DESCRIPTORS, DESCRIPTORS))
    flow = noop()
    engine = engine_on(store_of(url), flow, submit_timeout=timedelta(minutes=5))
    is_begun, failures = threading.Event(), list[BaseException]()
    read: list[int] = []

    def use(n: int) -> None:
        try:
            is_begun.wait()
            job = engine.submit(flow, n)
            assert engine.get(job.id).state == "due"
            assert engine.jobs(limit=5)
            read.append(engine.inspect.payload(job.id))
        except BaseException as error:  # noqa: BLE001 - raised again by the test
            failures.append(error)

    with engine:
        threads = [threading.Thread(target=use, args=(n,)) for n in range(THREADS)]
        for thread in threads:
            thread.start()
        is_begun.set()
        for thread in threads:
            thread.join()
        if failures:
            raise failures[0]
        assert sorted(read) == list(range(THREADS))
        assert [count.jobs for count in engine.inspect.counts()] == [THREADS]


@pytest.mark.shows("E-86")
def test_a_thousand_threads_submit_and_read_on_one_engine(jobs_url: str) -> None:
    ended = faults.run(use_from_a_thousand_threads, jobs_url, timeout_s=300)
    assert ended.code == 0, ended.errors


@pytest.mark.shows("E-86")
def test_several_loops_of_one_process_share_an_engine(jobs_url: str) -> None:
    flow = noop()
    engine = engine_on(store_of(jobs_url), flow, submit_timeout=timedelta(minutes=5))

    async def use(first: int) -> list[Any]:
        numbers = range(first, first + JOBS_PER_LOOP)
        jobs = await asyncio.gather(*(engine.aio.submit(flow, n) for n in numbers))
        ended = await asyncio.gather(*(engine.aio.wait(job.id, timeout=SOON) for job in jobs))
        assert {job.state for job in ended} == {"done"}
        return [await engine.aio.result(job.id) for job in jobs]

    def use_on_a_loop(n: int) -> list[Any]:
        return asyncio.run(use(n * JOBS_PER_LOOP))

    with engine, loop_watch.watching() as found:
        with engine.working(settings()), ThreadPoolExecutor(LOOPS) as pool:
            results = [n for many in pool.map(use_on_a_loop, range(LOOPS)) for n in many]
        assert results == list(range(LOOPS * JOBS_PER_LOOP))
        assert engine.inspect.verify() == []
    assert found == []


@pytest.mark.shows("E-84", "E-86")
def test_a_loop_that_was_closed_with_a_wait_under_way_harms_nobody(jobs_url: str) -> None:
    flow = noop()
    with engine_on(store_of(jobs_url), flow) as engine:
        job = engine.submit(flow, 1)
        loop = asyncio.new_event_loop()
        task = loop.create_task(engine.aio.wait(job.id))
        loop.run_until_complete(asyncio.sleep(0.05))
        for left in asyncio.all_tasks(loop):
            left._log_destroy_pending = False  # type: ignore[attr-defined] # left on purpose
        loop.close()
        assert not task.done()

        assert engine.submit(flow, 2).created
        asyncio.run(engine.worker(settings()).run(until_idle=True))
        assert engine.get(job.id).state == "done"
