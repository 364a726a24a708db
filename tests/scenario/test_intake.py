"""Submitting: on a loop, in a crowd, alone, when there is too much, when nobody answers."""

import asyncio
import threading
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from typing import Any

import pytest

import ulak
from tests.scenario.doubles import Double, engine_on, eventually, store_of
from ulak.engine.engine import Engine
from ulak.engine.intake import MOST_BYTES, MOST_JOBS
from ulak.errors import BadInput, Contended, Overloaded, StoreError, UnknownOutcome, WriteRefused
from ulak.ids import from_text
from ulak.store.memory import MemoryStore
from ulak.store.protocol import LARGEST_BATCH

LIFE = ulak.Lifecycle("go", {"go": ["done"]})


def plain_flow() -> ulak.Flow[Any]:
    flow: ulak.Flow[Any] = ulak.Flow("plain", LIFE)

    @flow.stage("go")
    async def go(run: ulak.Run[Any]) -> None: ...

    return flow


class Gate:
    """Holds up the first `add` until it is let go."""

    def __init__(self, store: Double) -> None:
        self.entered, self.open = threading.Event(), threading.Event()
        self.sizes: list[int] = []
        self.threads: list[str] = []
        store.before["add"] = self.pass_through

    def pass_through(self, jobs: Any) -> None:
        self.sizes.append(len(jobs))
        self.threads.append(threading.current_thread().name)
        if not self.entered.is_set():
            self.entered.set()
            assert self.open.wait(120)


@pytest.mark.shows("E-32")
def test_a_submit_on_a_running_loop_is_refused_and_says_what_to_use() -> None:
    flow = plain_flow()
    engine = engine_on(MemoryStore(), flow)

    async def main() -> None:
        for verb in (engine.submit, engine.submit_many):
            with pytest.raises(BadInput) as refusal:
                verb(flow, [1])
            assert f"engine.aio.{verb.__name__}" in str(refusal.value)
            assert "run.spawn" in str(refusal.value)
        assert (await engine.aio.submit(flow, 1)).state == "go"

    with engine:
        asyncio.run(main())
        assert [count.jobs for count in engine.inspect.counts()] == [1]


@pytest.mark.shows("E-32")
def test_a_crowd_of_submits_shares_commits_and_each_gets_its_own_answer(jobs_url: str) -> None:
    store, flow = Double(store_of(jobs_url)), plain_flow()
    gate = Gate(store)
    with engine_on(store, flow) as engine, ThreadPoolExecutor(41) as pool:
        first = pool.submit(engine.submit, flow, "first")
        assert gate.entered.wait(120)
        others = [pool.submit(engine.submit, flow, n) for n in range(40)]
        eventually(lambda: engine.kernel.intake._jobs == 40)
        gate.open.set()
        ids = [future.result(120).id for future in (first, *others)]
        assert len(set(ids)) == 41
        assert gate.sizes == [1, 40]
        assert [engine.inspect.payload(i) for i in ids] == ["first", *range(40)]


@pytest.mark.shows("E-32")
def test_concurrent_submits_of_a_loop_share_commits() -> None:
    store, flow = Double(MemoryStore()), plain_flow()
    gate = Gate(store)

    async def main() -> list[Any]:
        submits = asyncio.gather(*(engine.aio.submit(flow, n) for n in range(1201)))
        while engine.kernel.intake._jobs + sum(gate.sizes) < 1201:
            await asyncio.sleep(0.001)
        gate.open.set()
        return await submits

    with engine_on(store, flow) as engine:
        jobs = asyncio.run(main())
        assert len({job.id for job in jobs}) == 1201
        assert sum(gate.sizes) == 1201
        assert max(gate.sizes) <= LARGEST_BATCH
        assert len(gate.sizes) <= 5


@pytest.mark.shows("E-32")
def test_a_lone_submit_commits_on_its_own_thread() -> None:
    store, flow = Double(MemoryStore()), plain_flow()
    gate = Gate(store)
    gate.open.set()
    with engine_on(store, flow) as engine:
        for n in range(3):
            engine.submit(flow, n)
        assert gate.threads == [threading.current_thread().name] * 3


@pytest.mark.shows("E-35")
@pytest.mark.parametrize("by", ["jobs", "bytes"])
def test_too_much_waiting_is_refused_with_a_time_to_come_back(by: str) -> None:
    store, flow = Double(MemoryStore()), plain_flow()
    gate = Gate(store)
    with engine_on(store, flow) as engine, ThreadPoolExecutor(1) as pool:
        first = pool.submit(engine.submit, flow, "first")
        assert gate.entered.wait(120)
        if by == "jobs":
            parts = [[engine.kernel.prepare(flow, 1)] * LARGEST_BATCH] * (
                MOST_JOBS // LARGEST_BATCH
            )
        else:
            parts = [[engine.kernel.prepare(flow, "x" * (MOST_BYTES // 16 - 2))]] * 16
        waiting = [engine.kernel.intake.offer(part) for part in parts]
        with pytest.raises(Overloaded) as refusal:
            engine.submit(flow, "one more")
        assert refusal.value.retry_after == timedelta(seconds=2)
        assert refusal.value.code == "overloaded"
        gate.open.set()
        first.result(120)
        for answer in waiting:
            answer.result(120)
        assert engine.submit(flow, "again").created


@pytest.mark.shows("E-35")
@pytest.mark.parametrize("how", ["plain", "aio"])
def test_a_submit_that_nobody_answers_is_unknown_and_names_its_job(how: str) -> None:
    store, flow = Double(MemoryStore()), plain_flow()
    gate = Gate(store)
    engine = engine_on(store, flow, submit_timeout=timedelta(seconds=0.2))
    with engine, ThreadPoolExecutor(1) as pool:
        first = pool.submit(engine.submit, flow, "first")
        assert gate.entered.wait(120)

        def submit() -> None:
            if how == "plain":
                engine.submit(flow, "second")
            else:
                asyncio.run(engine.aio.submit(flow, "second"))

        with pytest.raises(UnknownOutcome) as unknown:
            submit()
        assert unknown.value.code == "unknown-outcome"
        assert unknown.value.job_id in str(unknown.value)
        gate.open.set()
        first.result(120)
        if how == "plain":
            # Nobody waited, and it was stored all the same: that is why it was unknown.
            eventually(lambda: store.find_job(from_text(unknown.value.job_id)))


@pytest.mark.shows("E-35", "E-20")
@pytest.mark.parametrize("written", [True, False])
def test_a_broken_connection_during_a_submit_makes_one_job(written: bool) -> None:
    store, flow, breaks = Double(MemoryStore()), plain_flow(), [2]

    def break_off(*_: object) -> None:
        if breaks[0] > 0:
            breaks[0] -= 1
            raise StoreError("gone")

    (store.after if written else store.before)["add"] = break_off
    with engine_on(store, flow) as engine:
        job = engine.submit(flow, 1)
        assert job.created
        assert [count.jobs for count in engine.inspect.counts()] == [1]
        breaks[0] = 1
        again = asyncio.run(engine.aio.submit(flow, 1))
        assert again.created
        assert [count.jobs for count in engine.inspect.counts()] == [2]
        assert engine.inspect.verify() == []


@pytest.mark.shows("E-35")
def test_a_store_that_stays_away_makes_the_outcome_unknown() -> None:
    store, flow = Double(MemoryStore()), plain_flow()

    def fail(*_: object) -> None:
        raise StoreError("gone for good")

    store.before["add"] = fail
    with (
        engine_on(store, flow, submit_timeout=timedelta(seconds=0.2)) as engine,
        pytest.raises(UnknownOutcome),
    ):
        engine.submit(flow, 1)


@pytest.mark.shows("E-35", "E-19")
@pytest.mark.parametrize("error", [WriteRefused("not this"), RuntimeError("a bug in the store")])
def test_a_refused_payload_in_a_shared_batch_fails_only_its_caller(error: Exception) -> None:
    store, flow = Double(MemoryStore()), plain_flow()
    gate = Gate(store)

    def refuse(jobs: Any) -> None:
        gate.pass_through(jobs)
        if any(job.payload.data == b'"bad"' for job in jobs):
            raise error

    store.before["add"] = refuse
    with engine_on(store, flow) as engine, ThreadPoolExecutor(9) as pool:
        first = pool.submit(engine.submit, flow, "first")
        assert gate.entered.wait(120)
        said = ["bad" if n == 3 else n for n in range(8)]
        others = [pool.submit(engine.submit, flow, payload) for payload in said]
        eventually(lambda: engine.kernel.intake._jobs == 8)
        gate.open.set()
        first.result(120)
        for payload, future in zip(said, others, strict=True):
            if payload == "bad":
                with pytest.raises(type(error)):
                    future.result(120)
            else:
                assert future.result(120).created


@pytest.mark.shows("E-34")
def test_a_submit_that_somebody_else_blocks_delays_nobody() -> None:
    store, flow, held = Double(MemoryStore()), plain_flow(), ["bad", "worse"]
    gate = Gate(store)

    def block(jobs: Any) -> None:
        gate.pass_through(jobs)
        if any(job.payload.data == b'"%s"' % name.encode() for job in jobs for name in held):
            raise Contended("somebody has its key")

    store.before["add"] = block
    with engine_on(store, flow) as engine, ThreadPoolExecutor(41) as pool:
        first = pool.submit(engine.submit, flow, "first")
        assert gate.entered.wait(120)
        others = [pool.submit(engine.submit, flow, n) for n in range(38)]
        bad, worse = (pool.submit(engine.submit, flow, name) for name in ("bad", "worse"))
        eventually(lambda: engine.kernel.intake._jobs == 40)
        gate.open.set()
        for future in (first, *others):
            assert future.result(120).created
        assert gate.sizes[1] == 40
        # Nobody's thread but that of the blocked ones tries them again, and ever more seldom.
        seen = len(gate.sizes)
        eventually(lambda: len(gate.sizes) > seen + 2)
        assert engine.submit(flow, "meanwhile").created
        assert {"ulak-intake-aside"} == set(gate.threads[seen:]) - {"MainThread"}
        assert not bad.done()
        held.remove("bad")
        assert bad.result(120).created
        assert not worse.done()
        # One that comes alone is blocked as well, and goes on when the other does.
        alone = pool.submit(engine.submit, flow, "worse")
        eventually(lambda: engine.kernel.intake._jobs >= 1)
        held.clear()
        assert alone.result(120).created
        assert worse.result(120).created
        eventually(lambda: engine.kernel.intake._jobs == engine.kernel.intake._bytes == 0)
        assert sum(count.jobs for count in engine.inspect.counts()) == 43


@pytest.mark.shows("E-34")
@pytest.mark.parametrize("how", ["plain", "aio", "in a crowd"])
def test_a_submit_that_stays_blocked_is_given_up_in_time(how: str) -> None:
    store, flow = Double(MemoryStore()), plain_flow()

    def block(jobs: Any) -> None:
        if any(job.payload.data == b'"bad"' for job in jobs):
            raise Contended("somebody has its key")

    def submit(engine: Engine) -> None:
        if how == "plain":
            engine.submit(flow, "bad")
        elif how == "aio":
            asyncio.run(engine.aio.submit(flow, "bad"))
        else:
            engine.submit_many(flow, ["good", "bad"])

    store.before["add"] = block
    others = set(threading.enumerate())
    with engine_on(store, flow, submit_timeout=timedelta(seconds=2)) as engine:
        with pytest.raises(UnknownOutcome):
            submit(engine)
        eventually(lambda: engine.kernel.intake._jobs == 0)
        assert engine.submit(flow, "good").created
    own = set(threading.enumerate()) - others
    assert not any(thread.name.startswith("ulak-intake") for thread in own)


@pytest.mark.shows("E-34")
def test_a_crowd_that_is_blocked_as_a_whole_is_not_parted_to_the_last() -> None:
    store, flow, tries = Double(MemoryStore()), plain_flow(), list[int]()
    gate = Gate(store)

    def block(jobs: Any) -> None:
        gate.pass_through(jobs)
        tries.append(len(jobs))
        if len(tries) <= 40:
            raise Contended("somebody has the table")

    with engine_on(store, flow) as engine, ThreadPoolExecutor(200) as pool:
        store.before["add"] = gate.pass_through
        first = pool.submit(engine.submit, flow, "first")
        assert gate.entered.wait(120)
        others = [engine.kernel.intake.offer([engine.kernel.prepare(flow, n)]) for n in range(200)]
        store.before["add"] = block
        gate.open.set()
        first.result(120)
        assert all(other.result(120)[0].created for other in others)
        assert len(tries) < 120
        assert max(tries[40:]) > 20, "when it is over, they go together"


@pytest.mark.shows("E-32")
def test_a_caller_that_gives_up_harms_nobody_else() -> None:
    store, flow = Double(MemoryStore()), plain_flow()
    gate = Gate(store)

    async def main() -> None:
        first = asyncio.create_task(engine.aio.submit(flow, "first"))
        await asyncio.to_thread(gate.entered.wait, 20)
        gone = asyncio.create_task(engine.aio.submit(flow, "gone"))
        stays = asyncio.create_task(engine.aio.submit(flow, "stays"))
        await asyncio.sleep(0.01)
        first.cancel()
        gone.cancel()
        await asyncio.gather(first, gone, return_exceptions=True)
        gate.open.set()
        assert (await asyncio.wait_for(stays, 20)).created
        assert (await asyncio.wait_for(engine.aio.submit(flow, "later"), 20)).created

    with engine_on(store, flow) as engine:
        asyncio.run(main())
        stored = sorted(str(engine.inspect.payload(job.id)) for job in engine.jobs())
        # The first was being written when its caller left; the second was not yet.
        assert stored == ["first", "later", "stays"]


@pytest.mark.shows("E-32")
def test_a_closed_engine_stores_what_it_accepted_and_may_be_opened_again(shared_url: str) -> None:
    flow = plain_flow()
    engine = engine_on(store_of(shared_url), flow)
    with engine, ThreadPoolExecutor(8) as pool:
        list(pool.map(lambda n: engine.submit(flow, n), range(8)))
    with engine, ThreadPoolExecutor(8) as pool:
        list(pool.map(lambda n: engine.submit(flow, n), range(8)))
        assert sum(count.jobs for count in engine.inspect.counts()) == 16
        asyncio.run(engine.worker().run(until_idle=True))
        assert {job.state for job in engine.jobs()} == {"done"}
