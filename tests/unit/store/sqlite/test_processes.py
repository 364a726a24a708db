"""Several processes write one file: nobody starves, and nobody hears of a lock."""

import ctypes
import fcntl
import os
import signal
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from ulak.store.protocol import ClaimRequest, Want
from ulak.store.sqlite import SqliteStore
from ulak.testing import faults

WRITES = 300
LEASE_US = 30_000_000

# SQLite's own waiting let a writer wait 1.8 s here; in turn it waits a few milliseconds. The bound
# leaves room for a machine that is busy with other tests, and tries for one that stands still.
LONGEST_WAIT_S = 1.0
TRIES = 5


def write_and_measure(path: str, name: str) -> None:
    store = SqliteStore(path)
    store.open()
    slowest = 0.0
    for _ in range(WRITES):
        began = time.perf_counter()
        store.register(name, lease_us=LEASE_US, lanes=["any"], about="")
        slowest = max(slowest, time.perf_counter() - began)
    store.close()
    print(slowest)  # noqa: T201 - a child tells its parent


@pytest.mark.shows("E-54")
def test_writers_of_several_processes_queue_on_the_lock_file(path: Path) -> None:
    def longest_wait() -> float:
        with ThreadPoolExecutor(3) as threads:
            names = ("w0", "w1", "w2")
            runs = [threads.submit(faults.run, write_and_measure, str(path), n) for n in names]
            ended = [run.result() for run in runs]
        assert [e.code for e in ended] == [0, 0, 0], [e.errors for e in ended]
        return max(float(e.lines[-1]) for e in ended)

    assert any(longest_wait() < LONGEST_WAIT_S for _ in range(TRIES))
    store = SqliteStore(path)
    store.open()
    assert [w.id for w in store.workers()] == ["w0", "w1", "w2"]
    store.close()


def register_once(path: str) -> None:
    store = SqliteStore(path)
    store.open()
    store.register("there", lease_us=LEASE_US, lanes=["any"], about="")
    store.close()


def test_a_commit_of_another_process_is_noticed_and_ones_own_is_not(
    store: SqliteStore, path: Path
) -> None:
    store.changed_elsewhere()
    store.register("here", lease_us=LEASE_US, lanes=["any"], about="")
    assert not store.changed_elsewhere()

    assert faults.run(register_once, str(path)).code == 0
    assert store.changed_elsewhere()
    assert not store.changed_elsewhere()

    assert faults.run(register_once, str(path)).code == 0
    store.claim(ClaimRequest("here", (Want(("any",), 1),)))
    assert store.changed_elsewhere(), "a write of one's own must not hide it"


@pytest.mark.shows("E-54")
def test_nobody_writes_or_checkpoints_while_another_holds_the_lock_file(
    store: SqliteStore, path: Path
) -> None:
    with path.with_name("jobs.db.lock").open("rb+") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        writer = threading.Thread(target=register, args=(store,))
        writer.start()
        writer.join(0.1)
        assert writer.is_alive()
        assert store.workers() == [], "readers do not wait"
        fcntl.flock(lock, fcntl.LOCK_UN)
        writer.join()
    assert [w.id for w in store.workers()] == ["w"]


def register(store: SqliteStore) -> None:
    store.register("w", lease_us=LEASE_US, lanes=["any"], about="")


def die_with_a_child(path: str, pid_file: str, how: str) -> None:
    """Fork a child that lives on, and be killed in the middle of a write."""
    store = SqliteStore(path)
    store.open()
    register(store)
    # By C itself no hook of Python runs in the child, as with a library that forks.
    fork = os.fork if how == "python" else ctypes.PyDLL(None).fork
    if (child := fork()) == 0:
        signal.pause()
    Path(pid_file).write_text(str(child))
    if how == "transaction":
        store.begin()
    else:
        register(store)
    os.kill(os.getpid(), signal.SIGKILL)


@pytest.mark.shows("E-82")
@pytest.mark.parametrize(
    ("how", "kill_at", "nth"),
    [("python", "register.inside", 2), ("c", "register.inside", 2), ("transaction", None, 1)],
)
def test_a_killed_writer_whose_child_lives_on_blocks_nobody(
    path: Path, tmp_path: Path, how: str, kill_at: str | None, nth: int
) -> None:
    pid_file = tmp_path / "pid"
    ended = faults.run(die_with_a_child, path, pid_file, how, kill_at=kill_at, nth=nth)
    child = int(pid_file.read_text())
    try:
        assert ended.killed, ended.errors
        # In a process of its own: one that waits for a lock cannot be ended here.
        written = faults.run(write_both_ways, str(path))
        assert written.code == 0, written.errors
    finally:
        os.kill(child, signal.SIGKILL)


def write_both_ways(path: str) -> None:
    store = SqliteStore(path)
    store.open()
    store.begin(patience_ms=60_000).commit()
    register(store)
    store.close()
