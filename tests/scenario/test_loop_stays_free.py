"""No store is waited for on an event loop, and nothing counts descriptors by `select`."""

import asyncio
import re
import subprocess
import sys
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

import ulak
from tests import loop_watch
from tests.scenario.doubles import engine_on, settings, store_of
from ulak.core.job import Request
from ulak.errors import BadInput
from ulak.ids import from_text

LONG = timedelta(seconds=120)


def busy_flows() -> tuple[ulak.Flow[Any], ulak.Flow[Any]]:
    async def child(run: ulak.Run[Any]) -> None: ...

    async def pay(key: str) -> str:
        return key

    children: ulak.Flow[Any] = ulak.Flow.steps("children", child, dedup=ulak.Dedup())

    async def on_loop(run: ulak.Run[Any]) -> list[str]:
        run.progress(0.5)
        run.emit("told", 1)
        await run.once("pay", pay)
        return run.spawn(children, [1, 2])

    def on_thread(run: ulak.Run[Any]) -> str:
        return run.once("again", lambda key: key)

    return ulak.Flow.steps("busy", on_loop, ("plain", on_thread)), children


@pytest.mark.shows("E-86")
def test_no_verb_of_a_store_runs_on_the_loop_of_a_worker(jobs_url: str) -> None:
    flow, children = busy_flows()
    engine = engine_on(store_of(jobs_url), flow, children)
    engine.schedules.add("often", children, {"n": 1}, every=timedelta(seconds=1))

    @engine.outbox.publish
    async def publish(message: ulak.Message) -> None: ...

    async def use() -> None:
        async with engine.lifespan(workers=True, settings=settings())(None):
            done = await engine.aio.submit(flow)
            many = await engine.aio.submit_many(children, range(3))
            for job in (done, *many):
                assert (await engine.aio.wait(job.id, timeout=LONG)).state == "done"
            assert (await engine.aio.wait(asked.id, timeout=LONG)).state == "cancelled"
            late = await engine.aio.submit(flow, after=timedelta(hours=1))
            await engine.aio.cancel(late.id, actor="ada")
            await engine.aio.inspect.why(late.id)
            assert await engine.aio.inspect.verify() == []

    with engine:
        asked = engine.submit(flow)
        # A request that waits for a job which is claimed next.
        cancel = Request(from_text(asked.id), "cancel", "", "ada", None, None, 0)
        engine.store.request(cancel)
    with loop_watch.watching() as found:
        asyncio.run(use())
    assert found == []


@pytest.mark.shows("E-86")
def test_the_watch_itself_sees_a_verb_on_a_loop() -> None:
    engine = ulak.connect("memory://")

    async def look() -> None:
        engine.inspect.counts()  # what a test calls itself is its own
        asyncio.get_running_loop().call_soon(engine.inspect.counts)
        await asyncio.sleep(0)

    with engine, loop_watch.watching() as found:
        asyncio.run(look())
    assert len(found) == 1
    assert found[0].startswith("counts by engine/")


@pytest.mark.shows("E-86")
def test_a_worker_that_would_stop_the_loop_with_its_drain_is_refused() -> None:
    engine = ulak.connect("memory://")

    async def work() -> None:
        with pytest.raises(BadInput, match=r"engine\.lifespan"), engine.working():
            raise AssertionError("it would have stopped the loop")

    asyncio.run(work())


MANY = """
import os, resource, sys, time
from datetime import timedelta

soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
resource.setrlimit(resource.RLIMIT_NOFILE, (min(4096, hard), hard))
kept = [os.open("/dev/null", os.O_RDONLY) for _ in range(1100)]
assert max(kept) > 1023

import ulak
from tests.scenario import isolated

url = sys.argv[1]
engine = ulak.connect(url)

@engine.job
async def double(n: int) -> int:
    return 2 * n

@engine.job
def halve(n: int) -> int:
    return n // 2

engine.add(isolated.square.flow)
with engine:
    if url.startswith("postgresql"):
        deadline = time.monotonic() + 120
        while not engine.store._listener.is_well:
            assert time.monotonic() < deadline, "the ring is not heard"
            time.sleep(0.01)
    with engine.working():
        for call, result in ((double.bind(2), 4), (halve.bind(8), 4)):
            job = engine.wait(engine.submit(call).id, timeout=timedelta(seconds=120))
            assert engine.result(job.id) == result
        job = engine.wait(engine.submit(isolated.square, 3).id, timeout=timedelta(seconds=120))
        assert engine.result(job.id)[0] == 9
    if url.startswith("postgresql"):
        assert engine.store._listener._thread.is_alive()
print("all is well")
"""


@pytest.mark.shows("E-86")
def test_a_process_with_more_than_a_thousand_descriptors_works(shared_url: str) -> None:
    child = subprocess.run(
        [sys.executable, "-c", MANY, shared_url], capture_output=True, text=True, timeout=300
    )
    assert child.returncode == 0, child.stderr
    assert child.stdout.endswith("all is well\n")


@pytest.mark.shows("E-86")
def test_nothing_uses_select() -> None:
    users = [
        str(path)
        for path in Path(ulak.__file__).parent.rglob("*.py")
        if re.search(r"\bselect\.select\(|from select import", path.read_text())
    ]
    assert users == []
