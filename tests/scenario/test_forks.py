"""A program forks with its engine open, as gunicorn --preload and multiprocessing do."""

import asyncio
import os
import signal
import sys
import threading
import traceback
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import Any

import psycopg
import pytest

import ulak
from tests.conformance.stores import make_schema
from tests.databases import Databases
from tests.scenario.doubles import eventually
from ulak.idempotency import Answer, Asked, Guard, Scope
from ulak.store import processes
from ulak.testing import faults

PATIENCE = timedelta(seconds=100)


def engine_of(url: str) -> ulak.Engine:
    flow: ulak.Flow[Any] = ulak.Flow("forked", ulak.Lifecycle("due", {"due": ["done"]}))
    flow.stage("due")(lambda run: os.getpid())
    return ulak.connect(url, flows=[flow])


def fork(work: Callable[[], Any]) -> int:
    """Do this in a child, and end it as its work ends."""
    if pid := os.fork():
        return pid
    code = 1
    try:
        work()
        code = 0
    finally:
        if code:
            traceback.print_exc()
        sys.stderr.flush()
        os._exit(code)


def ended(pids: list[int]) -> list[int]:
    return [os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) for pid in pids]


# --- what children of the tests do: each is a program of its own ------------------


def submit_from_children_beside_a_worker(url: str) -> None:
    """Children use the engine in the middle of everything, and the parent goes on."""
    engine = engine_of(url)
    (flow,) = engine.inspect.flows
    going = threading.Event()

    def keep_submitting() -> None:
        while not going.wait(0.001):
            engine.submit(flow, {})

    def submit_and_wait() -> None:
        for _ in range(3):
            job = engine.submit(flow, {})
            assert engine.wait(job.id, timeout=PATIENCE).state == "done"
            assert engine.result(job.id) == os.getppid(), "the worker is the parent's"
        engine.close()

    with engine, engine.working():
        busy = threading.Thread(target=keep_submitting)
        busy.start()
        children = [fork(submit_and_wait) for _ in range(4)]
        codes = ended(children)
        going.set()
        busy.join()
        assert codes == [0] * 4
        last = engine.submit(flow, {})
        assert engine.wait(last.id, timeout=PATIENCE).state == "done"
        assert engine.inspect.verify() == []


def work_in_children(url: str) -> None:
    """The parent opens and submits, its children work, as with gunicorn --preload."""
    engine = engine_of(url)
    (flow,) = engine.inspect.flows
    first = engine.submit(flow, {})
    read, write = os.pipe()

    def work() -> None:
        with engine.working():
            os.close(write)
            os.read(read, 1)

    children = [fork(work) for _ in range(2)]
    jobs = [first, *engine.submit_many(flow, [{}] * 20)]
    for job in jobs:
        assert engine.wait(job.id, timeout=PATIENCE).state == "done"
        assert engine.result(job.id) in children
    os.close(write)
    assert ended(children) == [0, 0]
    assert engine.inspect.verify() == []
    engine.close()


def outlive_the_parent(url: str) -> None:
    """What a child commits stays, when its parent has closed the store and ended."""
    engine = engine_of(url)
    (flow,) = engine.inspect.flows
    engine.submit(flow, {})
    read, write = os.pipe()
    to_parent, from_child = os.pipe()

    def go_on_alone() -> None:
        engine.submit(flow, {})
        os.write(from_child, b"!")
        os.close(write)
        os.read(read, 1)  # until the parent has closed
        engine.submit_many(flow, [{}] * 10)
        os._exit(0)  # nothing is brought home

    child = fork(go_on_alone)
    os.read(to_parent, 1)
    engine.close()
    os.close(write)
    assert ended([child]) == [0]
    with engine_of(url) as again:
        assert len(again.jobs()) == 12
        assert again.inspect.verify() == []


def guard_in_children(url: str) -> None:
    """A guard that has threads and connections of the parent begins anew in each child."""
    engine = engine_of(url)
    with engine:
        guard = Guard(engine.store)

        async def answer(key: str) -> list[bool]:
            """Return which of two requests with this key were answered before."""
            replayed = []
            for mode in ("transactional", "lease"):
                begun = await guard.aio.begin(Asked(Scope(mode, mode=mode), key, request_hash="x"))
                replayed.append(isinstance(begun, Answer))
                if not isinstance(begun, Answer):
                    await guard.aio.settle(begun, Answer())
            return replayed

        def answer_again() -> None:
            assert asyncio.run(answer(str(os.getpid()))) == [False, False]
            assert asyncio.run(answer("parent")) == [True, True]

        assert asyncio.run(answer("parent")) == [False, False]
        assert ended([fork(answer_again) for _ in range(2)]) == [0, 0]
        assert asyncio.run(answer("later")) == [False, False]


def fork_in_a_transaction(url: str) -> None:
    """A child that was cut off in the middle of a transaction is told so."""
    processes.QUIET_WITHIN_S = 0.05
    engine = engine_of(url)
    (flow,) = engine.inspect.flows
    engine.submit(flow, {})
    transaction = engine.store.begin()  # type: ignore[attr-defined]
    transaction.connection.execute("CREATE TABLE mine (n INTEGER)")

    def submit() -> None:
        with pytest.raises(ulak.StoreError, match="forked in the middle of a transaction"):
            engine.submit(flow, {})

    assert ended([fork(submit)]) == [0]
    transaction.connection.execute("INSERT INTO mine VALUES (1)")
    transaction.commit()
    assert engine.submit(flow, {}).created
    with engine.store.reading() as db:  # type: ignore[attr-defined]
        assert db.execute("SELECT count(*) FROM mine").fetchone() == (1,)
    engine.close()


def copy_memory(url: str) -> None:
    engine = engine_of(url)
    (flow,) = engine.inspect.flows

    def work() -> None:
        with engine.working():
            for job in [*engine.jobs(), engine.submit(flow, {})]:
                assert engine.wait(job.id, timeout=PATIENCE).state == "done"

    going = threading.Event()
    with engine:
        busy = threading.Thread(target=lambda: [engine.jobs() for _ in iter(going.is_set, True)])
        busy.start()
        engine.submit(flow, {})
        assert ended([fork(work) for _ in range(4)]) == [0] * 4
        going.set()
        busy.join()
        assert [job.state for job in engine.jobs()] == ["due"]


def die_with_a_living_child(url: str) -> None:
    """The sessions of a killed parent end, whatever its child does."""
    engine = engine_of(url)
    (flow,) = engine.inspect.flows
    engine.submit(flow, {})
    child = fork(signal.pause)
    print(child, flush=True)  # noqa: T201 - it tells the test
    os.kill(os.getpid(), signal.SIGKILL)


# --- tests ----------------------------------------------------------------------


def run(function: Callable[[str], None], url: str) -> tuple[str, ...]:
    """Run a function of this file in a process of its own, since it forks with its threads."""
    ended = faults.run(function, url, timeout_s=200)
    assert ended.code == 0, ended.errors
    return ended.lines


@pytest.mark.shows("E-82")
@pytest.mark.parametrize(
    "function",
    [submit_from_children_beside_a_worker, work_in_children, outlive_the_parent, guard_in_children],
)
def test_an_engine_is_used_on_both_sides_of_a_fork(
    shared_url: str, function: Callable[[str], None]
) -> None:
    run(function, shared_url)


@pytest.mark.shows("E-82")
def test_a_child_of_an_open_transaction_is_refused_and_harms_nobody(tmp_path: Path) -> None:
    run(fork_in_a_transaction, f"sqlite:///{tmp_path}/jobs.db")


@pytest.mark.shows("E-82")
def test_a_child_keeps_no_session_of_a_killed_parent(databases: Databases) -> None:
    with databases.lend(make_schema) as url, psycopg.connect(url, autocommit=True) as db:
        sessions = "SELECT count(*) FROM pg_stat_activity WHERE application_name = 'ulak'"
        ended = faults.run(die_with_a_living_child, url, timeout_s=200)
        try:
            assert ended.killed, ended.errors
            eventually(lambda: db.execute(sessions).fetchone() == (0,))
        finally:
            os.kill(int(ended.lines[-1]), signal.SIGKILL)


@pytest.mark.shows("E-82")
def test_a_child_in_memory_has_a_copy_of_its_own() -> None:
    run(copy_memory, "memory://")


@pytest.mark.shows("E-82", "E-20")
def test_a_child_makes_other_commit_ids_than_its_parent() -> None:
    engine, (read, write) = engine_of("memory://"), os.pipe()
    child = fork(lambda: os.write(write, engine.kernel.new_commit_id()))
    assert ended([child]) == [0]
    assert os.read(read, 16) != engine.kernel.new_commit_id()
    for end in (read, write):
        os.close(end)
