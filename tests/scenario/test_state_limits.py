"""A limited state: never more than n jobs of a key stand in it, whoever runs them and dies."""

import signal
import subprocess
import threading
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from datetime import timedelta
from functools import partial
from pathlib import Path
from typing import Any

import pytest

import ulak
from tests.scenario import program
from tests.scenario.doubles import SOON, eventually
from ulak.core.job import JobRow
from ulak.ids import from_text
from ulak.store.protocol import JobFilter, Store
from ulak.testing import Harness

LEASE_S = 2.0
KILLS = 3
LIFE = ulak.Lifecycle("raw", {"raw": ["baking"], "baking": ["done"]})


def standing(store: Store) -> list[JobRow]:
    """Read the jobs in the limited state, by one query of the table."""
    return store.list_jobs(JobFilter(flow="oven", state="baking"), limit=100)


class Poller:
    """Counts the jobs of each key in the state every 10 ms."""

    def __init__(self, store: Store) -> None:
        self.most: Counter[str | None] = Counter()
        self.looks = 0
        self._store = store
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._poll)

    def _poll(self) -> None:
        while not self._stop.wait(0.01):
            self.most |= Counter(row.keys for row in standing(self._store))
            self.looks += 1

    def __enter__(self) -> "Poller":
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._thread.join()


@contextmanager
def workers(url: str, folder: Path) -> Iterator[list[subprocess.Popen[bytes]]]:
    """Start workers that end with the test, whoever of them is killed meanwhile."""
    started = [program.start(url, folder, LEASE_S) for _ in range(3)]
    try:
        yield started
    finally:
        for worker in started:
            if worker.poll() is None:
                worker.terminate()
        for worker in started:
            worker.wait(120)


def find_victim(
    store: Store, started: list[subprocess.Popen[bytes]]
) -> tuple[JobRow, subprocess.Popen[bytes]]:
    """Wait until the state is full, and return a job in it and the living worker that runs it."""
    found: list[tuple[JobRow, subprocess.Popen[bytes]]] = []

    def look() -> bool:
        rows, alive = standing(store), [w for w in started if w.poll() is None]
        found[:] = [(r, w) for r in rows for w in alive if f"-{w.pid}-" in (r.leased_by or "")]
        return len(rows) == 4 and bool(found)

    eventually(look)
    return found[0]


@pytest.mark.shows("E-65", "E-29")
def test_no_more_than_its_limit_stand_in_a_state_while_workers_in_it_are_killed(
    shared_url: str, tmp_path: Path
) -> None:
    (tmp_path / "hold").touch()
    with program.engine_at(shared_url) as engine:
        loaves = [{"key": "ab"[n % 2]} for n in range(10)]
        jobs = engine.submit_many(program.oven_flow, loaves)
        with workers(shared_url, tmp_path) as started, Poller(engine.store) as poller:
            for _ in range(KILLS):
                row, victim = find_victim(engine.store, started)
                victim.kill()
                assert victim.wait(120) == -signal.SIGKILL
                started.append(program.start(shared_url, tmp_path, LEASE_S))
                eventually(partial(_has_lapsed, engine, row))
            (tmp_path / "hold").unlink()
            ends = [engine.wait(job.id, timeout=SOON).state for job in jobs]
        assert ends == ["done"] * 10
        assert poller.looks > 0
        assert set(poller.most.values()) == {2}
        assert all(slot.job_id is None for slot in engine.store.slots())
        assert engine.inspect.verify() == []


def _has_lapsed(engine: ulak.Engine, before: JobRow) -> bool:
    row = engine.store.find_job(before.id)
    assert row is not None
    assert row.state == "baking"
    return row.lapses > before.lapses


def oven(*, of: Any = "state", n: int = 1, undone: list[str] | None = None) -> ulak.Flow[Any]:
    flow: ulak.Flow[Any] = ulak.Flow("oven", LIFE, retry=ulak.Backoff(delays=[timedelta(hours=1)]))

    @flow.stage("raw", during="baking", limit=ulak.Limit(n, of=of))
    def bake(run: ulak.Run[Any]) -> Any:
        if run.payload == "hold":
            return ulak.Hold("look", "a person must look")
        if run.payload == "later" and run.attempt == 1:
            raise RuntimeError("not hot yet")
        return None

    return flow


@pytest.mark.shows("E-65", "E-3")
def test_a_job_that_waits_for_its_retry_keeps_the_next_one_out(jobs_url: str) -> None:
    flow = oven()
    with Harness(flow, url=jobs_url) as harness:
        first = harness.engine.submit(flow, "later", priority=0)
        second = harness.engine.submit(flow, "now")
        harness.run_until_idle()
        assert harness.engine.get(first.id).state == "baking"
        assert harness.engine.get(second.id).state == "raw"
        why = harness.engine.inspect.why(second.id)
        assert (why.code, why.facts["limit"]) == ("parked", "oven/raw")
        assert "1 of them may stand in its state" in why.sentence
        harness.advance(hours=2)
        assert harness.engine.get(first.id).state == "done"
        assert harness.engine.get(second.id).state == "done"
        assert harness.verify() == []


@pytest.mark.shows("E-65")
def test_a_released_job_enters_the_state_again_by_its_stage(jobs_url: str) -> None:
    flow = oven()
    with Harness(flow, url=jobs_url) as harness:
        job = harness.engine.submit(flow, "hold")
        harness.run_until_idle()
        harness.engine.release(job.id, actor="ada")
        harness.run_until_idle()
        moves = [(e.from_state, e.to_state) for e in harness.engine.inspect.trail(job.id)]
        assert moves == [
            (None, "raw"), ("raw", "baking"), ("baking", "held"), ("held", "raw"),
            ("raw", "baking"), ("baking", "held"),
        ]  # fmt: skip
        assert harness.verify() == []


@pytest.mark.shows("E-65")
def test_an_engine_gives_slots_to_jobs_that_stand_there_when_it_opens(shared_url: str) -> None:
    with Harness(oven(of="run", n=3), url=shared_url) as harness:
        (before,) = harness.engine.inspect.flows
        jobs = [harness.engine.submit(before, "later") for _ in range(3)]
        harness.run_until_idle()
        late = harness.engine.submit(before, "now", after=timedelta(minutes=5))
        assert len(standing(harness.engine.store)) == 3
        clock = harness.clock
    with Harness(oven(n=2), url=shared_url, clock=clock) as harness:
        store = harness.engine.store
        assert [s.of_state for s in store.slots("oven/raw") if s.job_id is not None] == [1] * 3
        harness.advance(minutes=6)
        assert harness.engine.get(late.id).state == "raw"
        assert harness.verify() == []
        harness.advance(hours=2)
        assert {harness.engine.get(job.id).state for job in [*jobs, late]} == {"done"}
        assert all(slot.job_id is None for slot in store.slots())
        assert harness.verify() == []


@pytest.mark.shows("E-65")
def test_an_operator_gives_one_key_another_limit(jobs_url: str) -> None:
    flow: ulak.Flow[Any] = ulak.Flow("oven", LIFE)
    limit = ulak.Limit(1, key=str, of="state")

    @flow.stage("raw", during="baking", limit=limit)
    def bake(run: ulak.Run[Any]) -> ulak.RetryLater:
        return ulak.RetryLater(timedelta(hours=1))

    with Harness(flow, url=jobs_url) as harness:
        control = harness.engine.flow_control
        made = control.set_limit("oven/raw", 2, key="E", actor="ada", note="two ovens")
        assert (made.name, made.key, made.n, made.declared, made.actor) == (
            "oven/raw", "E", 2, 1, "ada",
        )  # fmt: skip
        assert [(limit.key, limit.n) for limit in control.limits()] == [(None, 1), ("E", 2)]
        for key in "EEEFF":
            harness.engine.submit(flow, key)
        harness.run_until_idle()
        counted = Counter(row.keys for row in standing(harness.engine.store))
        assert sorted(counted.values()) == [1, 2]
        assert harness.verify() == []
        control.set_limit("oven/raw", None, key="E", actor="ada")
        assert [(limit.key, limit.n) for limit in control.limits()] == [(None, 1)]
        with pytest.raises(ulak.BadInput, match="not empty"):
            control.set_limit("oven/raw", 2, key="", actor="ada")
        with pytest.raises(ulak.UlakError, match='no limit "oven/none"'):
            control.set_limit("oven/none", 2, key="E", actor="ada")


@pytest.mark.shows("E-65", "E-87")
def test_an_act_in_the_callers_transaction_frees_the_slot_with_it(shared_url: str) -> None:
    flow = oven()
    with Harness(flow, url=shared_url) as harness:
        engine = harness.engine
        first = engine.submit(flow, "later", priority=0)
        harness.run_until_idle()
        second = engine.submit(flow, "now")
        harness.run_until_idle()
        with suppress(LookupError), engine.transaction() as connection:
            engine.cancel(first.id, actor="ada", connection=connection)
            raise LookupError("no such order")
        assert [slot.job_id for slot in engine.store.slots("oven/raw")] == [from_text(first.id)]
        assert engine.get(second.id).parked_on == "oven/raw"
        with engine.transaction() as connection:
            engine.cancel(first.id, actor="ada", connection=connection)
        assert [slot.job_id for slot in engine.store.slots("oven/raw")] == [None]
        harness.run_until_idle()
        assert engine.get(second.id).state == "done"
        assert harness.verify() == []


@pytest.mark.shows("E-65")
def test_a_limit_without_keys_has_none_to_set() -> None:
    with Harness(oven()) as harness, pytest.raises(ulak.BadInput, match="has no keys"):
        harness.engine.flow_control.set_limit("oven/raw", 2, key="E", actor="ada")
