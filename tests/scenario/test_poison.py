"""A job that kills whoever runs it is held in the end, and takes none of its neighbours along."""

import asyncio
import os
import signal
import time
from datetime import timedelta

import pytest

import ulak
from ulak.ids import from_text
from ulak.testing import faults

NEIGHBOURS = 399
MAX_LAPSES = 4
LEASE = timedelta(seconds=1)


def crowd() -> ulak.Flow[str]:
    async def work(run: ulak.Run[str]) -> None:
        if run.payload == "poison":
            os.kill(os.getpid(), signal.SIGKILL)
        await asyncio.sleep(0.005)

    return ulak.Flow.steps("crowd", work, max_lapses=MAX_LAPSES, retry=0)


def engine_at(url: str, flow: ulak.Flow[str]) -> ulak.Engine:
    return ulak.connect(url, flows=[flow])


def work(url: str) -> None:
    """Be a worker until nothing is left to do now; runs in a child."""
    with engine_at(url, crowd()) as engine:
        settings = ulak.WorkerSettings(lease=LEASE)
        asyncio.run(engine.worker(settings).run(until_idle=True))


@pytest.mark.shows("E-27")
def test_a_poisonous_job_fails_none_of_its_neighbours_and_its_crash_loop_ends(
    shared_url: str,
) -> None:
    flow = crowd()
    with engine_at(shared_url, flow) as engine:
        payloads = ["honest"] * NEIGHBOURS
        payloads.insert(NEIGHBOURS // 2, "poison")
        jobs = engine.submit_many(flow, payloads)
        poison = jobs.pop(NEIGHBOURS // 2)
        deaths = 0
        while (ended := faults.run(work, shared_url)).killed:
            deaths += 1
            assert deaths <= MAX_LAPSES
            # A lease that was renewed at the last moment has lapsed too.
            time.sleep(1.5 * LEASE.total_seconds())
        assert ended.code == 0, ended.errors
        assert deaths == MAX_LAPSES
        held = engine.get(poison.id)
        assert (held.role, held.code) == ("held", "worker-died")
        for job in jobs:
            now = engine.get(job.id)
            assert (now.state, now.attempt) == ("done", 0)
            lapses = [e.kind for e in engine.store.trail(from_text(job.id))].count("lapsed")
            assert lapses < MAX_LAPSES
        assert engine.inspect.verify() == []
