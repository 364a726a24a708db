"""The harness for tests of flows: the real worker, a clock that is turned, no sleeping."""

import asyncio
import doctest
import subprocess
import sys
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

import ulak
from ulak import Backoff, Flow, Goto, Lifecycle
from ulak.testing import Harness, faults, harness

HOUR = timedelta(hours=1)


def flaky(failures: int, *delays: timedelta) -> Flow[Any]:
    """A flow whose stage fails so often, and remembers when it was run."""
    flow: Flow[Any] = Flow(
        "flaky", Lifecycle("new", {"new": ["done"]}), retry=Backoff(delays=delays)
    )

    @flow.stage("new")
    def work(run: Any) -> None:
        run.emit("tried", run.attempt)
        if run.attempt <= failures:
            raise RuntimeError("not yet")

    return flow


@pytest.mark.shows("E-61")
@pytest.mark.parametrize("where", ["memory", "sqlite"])
def test_days_pass_in_a_moment_and_everything_happens_at_its_own_time(
    where: str, tmp_path: Path
) -> None:
    flow = flaky(2, HOUR, 2 * HOUR)
    path = None if where == "memory" else tmp_path / "jobs.db"
    began = time.monotonic()
    with Harness(flow, path=path) as h:
        start = h.now
        job = h.run(flow)
        assert (job.state, h.why(job.id).code) == ("new", "delayed")
        h.advance(days=3)
        assert h.now == start + timedelta(days=3)
        tries = [event.at - start for event in h.trail(job.id)[1:]]
        assert tries == [timedelta(0), HOUR, 3 * HOUR]
        assert h.states(job.id) == ["new", "done"]
        assert [message.topic for message in h.sent] == ["tried"]
        assert h.unfinished() == []
    assert time.monotonic() - began < 60


@pytest.mark.shows("E-61")
def test_nothing_runs_before_it_is_let(tmp_path: Path) -> None:
    flow = flaky(0)
    with Harness(flow) as h:
        job = h.submit(flow, after=HOUR)
        h.run_until_idle()
        assert h.job(job.id).state == "new"
        h.advance(minutes=59, seconds=59)
        assert [j.id for j in h.unfinished()] == [job.id]
        h.advance(seconds=1)
        assert h.job(job.id).state == "done"


@pytest.mark.shows("E-61")
def test_running_until_idle_follows_a_job_through_every_stage_and_its_children() -> None:
    flow: Flow[Any] = Flow("chain", Lifecycle("a", {"a": ["b"], "b": ["c"], "c": ["done"]}))

    @flow.stage("a")
    def a(run: Any) -> None:
        if run.payload["depth"]:
            run.spawn(flow, [{"depth": run.payload["depth"] - 1}] * 2)

    @flow.stage("b")
    async def b(run: Any) -> None: ...

    @flow.stage("c")
    def c(run: Any) -> Any:
        return Goto("done", result=run.payload["depth"])

    with Harness(flow) as h:
        h.run(flow, {"depth": 4})
        assert len(h.engine.jobs(limit=100)) == 31
        assert h.unfinished() == []
        assert h.verify() == []


@pytest.mark.shows("E-61")
def test_a_program_s_engine_is_tested_without_its_store() -> None:
    engine = ulak.connect("sqlite:////nowhere/at/all.db")
    published: list[Any] = []

    class Client:
        name = "the worker's own"

    @engine.resource(Client)
    @asynccontextmanager
    async def client() -> AsyncIterator[Client]:
        yield Client()

    engine.outbox.publish(published.append)
    flow: Flow[Any] = engine.add(Flow("asks", Lifecycle("new", {"new": ["done"]})))

    @flow.stage("new")
    async def work(run: Any) -> Any:
        run.emit("topic", 1)
        return run.resource(Client).name

    @engine.job
    def plain(a: int, b: int) -> int:
        return a + b

    with Harness.of(engine) as h:
        assert h.result(h.run(flow).id) == "the worker's own"
        assert h.result(h.run(plain, 1, 2).id) == 3
        assert [message.topic for message in published] == ["topic"]


@pytest.mark.shows("E-61")
def test_the_harness_may_be_used_from_a_coroutine() -> None:
    flow = flaky(0)

    async def story() -> str:
        with Harness(flow) as h:
            job = await h.engine.aio.submit(flow, {})
            h.run_until_idle()
            return h.job(job.id).state

    assert asyncio.run(story()) == "done"


def test_a_flow_that_wakes_itself_for_ever_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(harness, "MOST_MOMENTS", 5)
    flow = flaky(10**6, *[timedelta(seconds=1)] * 100)
    with Harness(flow) as h:
        h.submit(flow)
        with pytest.raises(RuntimeError, match="some flow wakes itself for ever"):
            h.advance(days=1)


def test_what_goes_wrong_in_the_worker_is_raised_to_the_test() -> None:
    flow = flaky(0)
    with Harness(flow) as h:

        @h.engine.resource(int)
        @asynccontextmanager
        async def broken() -> AsyncIterator[int]:
            raise RuntimeError("no such client")
            yield 1

        with pytest.raises(RuntimeError, match="no such client"):
            h.run(flow)


def test_the_example_in_the_docstring_runs() -> None:
    assert doctest.testmod(harness).failed == 0
    assert doctest.testmod(harness).attempted > 0


def test_the_harness_needs_nothing_but_the_engine() -> None:
    program = (
        "import sys, ulak.testing\n"
        "heavy = {'pytest', 'hypothesis', 'fastapi', 'typer', 'sqlite3'} & set(sys.modules)\n"
        "assert not heavy, heavy\n"
    )
    subprocess.run([sys.executable, "-c", program], check=True)


@pytest.mark.shows("E-61")
def test_a_child_dies_at_the_nth_passing_and_tells_what_it_said_before(tmp_path: Path) -> None:
    ended = faults.run(submit_three, tmp_path / "jobs.db", kill_at="add.after", nth=2)
    assert ended.killed
    assert ended.lines == ("accepted",)
    whole = faults.run(submit_three, tmp_path / "other.db")
    assert (whole.code, whole.lines) == (0, ("accepted",) * 3)


def test_a_harness_is_in_one_place() -> None:
    with pytest.raises(ulak.BadInput, match="a path or a url, not both"):
        Harness(path="jobs.db", url="memory://")


def submit_three(path: str) -> None:
    """Run in a child."""
    flow = flaky(0)
    with Harness(flow, path=path) as h:
        for _ in range(3):
            h.submit(flow)
            print("accepted", flush=True)  # noqa: T201 - the child's only way to tell
