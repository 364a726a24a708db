"""One pool of a worker is full while another has room: nobody waits for a poll."""

import threading
from datetime import timedelta

import pytest

import ulak

NEVER = timedelta(hours=1)


@pytest.mark.shows("E-23")
def test_a_job_is_claimed_as_soon_as_a_place_of_its_pool_is_free() -> None:
    engine = ulak.connect("memory://")
    running = threading.Semaphore(0)
    go_on = threading.Event()

    @engine.job
    def plain(n: int) -> int:
        running.release()
        go_on.wait(120)
        return n

    @engine.job
    async def on_the_loop(n: int) -> int:
        return n

    settings = ulak.WorkerSettings(threads=1, poll=NEVER, glance=NEVER)
    with engine, engine.working(settings):
        jobs = [engine.submit(plain, n) for n in range(4)]
        assert running.acquire(timeout=120)
        beside = engine.submit(on_the_loop, 1)
        assert engine.wait(beside.id, timeout=timedelta(seconds=30)).state == "done"
        go_on.set()
        for job in jobs:
            assert engine.wait(job.id, timeout=timedelta(seconds=30)).state == "done"
