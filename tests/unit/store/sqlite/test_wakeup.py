"""Processes of one machine wake each other by a FIFO; whatever becomes of it, nobody is harmed."""

import os
import resource
import stat
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

import ulak
from tests.scenario.doubles import SOON, eventually, settings
from ulak.store.sqlite import SqliteStore, wakeup
from ulak.store.sqlite import store as store_module
from ulak.store.sqlite.wakeup import Wakeup
from ulak.testing import faults

NEVER_MS = 600_000


@pytest.fixture
def fifo(path: Path) -> Path:
    return path.with_name(".jobs.db.wakeup")


def engine_of(path: str | Path) -> ulak.Engine:
    flow: ulak.Flow[Any] = ulak.Flow("ring", ulak.Lifecycle("due", {"due": ["done"]}))
    flow.stage("due")(lambda run: None)
    return ulak.Engine(SqliteStore(path), flows=[flow])


def submit(path: str) -> None:
    with engine_of(path) as engine:
        engine.submit(engine.inspect.flows[0], {})


@contextmanager
def listening(path: Path) -> Iterator[tuple[Wakeup, list[None]]]:
    """Listen as another process would, and collect what is heard."""
    heard: list[None] = []
    listener = Wakeup(path, lambda: heard.append(None) or True)  # type: ignore[func-returns-value]
    listener.listen()
    try:
        yield listener, heard
    finally:
        listener.close()


def must_hear(listener: Wakeup, heard: list[None]) -> None:
    """Ring until it is heard: a listener rests for a moment now and then."""
    before = len(heard) + 3  # what it has looked at by itself since it began to listen

    def ring() -> bool:
        listener.ring()
        return len(heard) > before

    eventually(ring)


def open_files() -> int:
    return len(os.listdir("/proc/self/fd"))


def test_a_commit_of_another_process_wakes_a_worker_that_does_not_look(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(wakeup, "RENEW_MS", NEVER_MS)
    asleep = settings(poll=600.0, glance=600.0, lease=600.0)
    with engine_of(path) as engine, engine.working(asleep):
        for n in range(1, 4):
            assert faults.run(submit, path).code == 0
            eventually(lambda n=n: [job.state for job in engine.jobs()] == ["done"] * n)


def test_a_listener_hears_although_another_has_just_made_the_fifo(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(wakeup, "RENEW_MS", NEVER_MS)
    make = os.mkfifo

    def make_second(name: bytes) -> None:
        make(name)
        make(name)  # fails, as it does when another was faster

    monkeypatch.setattr(os, "mkfifo", make_second)
    with listening(path) as (listener, heard):
        must_hear(listener, heard)


def test_a_ring_wakes_every_listener(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(wakeup, "RENEW_MS", NEVER_MS)
    with listening(path) as (one, by_one), listening(path) as (_, by_two):
        must_hear(one, by_one)
        must_hear(one, by_two)


@pytest.mark.shows("E-79")
def test_a_move_that_makes_nothing_due_wakes_those_who_wait_in_another_process(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Broken by a ring that only tells of jobs that may be due."""
    monkeypatch.setattr(wakeup, "RENEW_MS", NEVER_MS)
    rung = threading.Event()
    with engine_of(path) as engine:
        for _ in range(3):
            engine.submit(engine.inspect.flows[0], {})
        stop = engine.store.on_move(rung.set)
        for _ in range(3):
            rung.clear()
            assert faults.run(cancel_one, path).code == 0
            assert rung.wait(120)
        stop()
        assert not engine.store._watchers


def cancel_one(path: str) -> None:
    with engine_of(path) as engine:
        job = next(job for job in engine.jobs() if not job.is_final)
        engine.cancel(job.id, actor="ada")


def test_where_nobody_waits_nobody_listens_to_moves(path: Path) -> None:
    moved = path.with_name(".jobs.db.moved")
    with engine_of(path) as engine, engine.working(settings()):
        job = engine.submit(engine.inspect.flows[0], {})
        eventually(lambda: engine.get(job.id).is_final)
        assert not moved.exists()
        stop = engine.store.on_move(lambda: None)
        eventually(moved.is_fifo)
        wakeup_of = engine.store._wakeup
        eventually(lambda: wakeup_of._moved.fd is not None)
        stop()

        def ring_until_it_is_closed() -> bool:
            wakeup_of.ring()
            return wakeup_of._due.fd is not None and wakeup_of._moved.fd is None

        eventually(ring_until_it_is_closed)


@pytest.mark.parametrize("what", ["file", "folder", "nothing"])
def test_a_worker_looks_by_itself_where_there_is_no_fifo(
    path: Path, fifo: Path, what: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    if what == "file":
        fifo.write_text("mine")
    elif what == "folder":
        fifo.mkdir()
    else:
        monkeypatch.setattr(store_module, "IS_KNOWN", False)
    with engine_of(path) as engine, engine.working(settings()):
        assert faults.run(submit, path).code == 0
        eventually(lambda: [job.state for job in engine.jobs()] == ["done"])
    if what == "file":
        assert fifo.read_text() == "mine"


def test_a_fifo_that_was_deleted_is_made_again(
    path: Path, fifo: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(wakeup, "RENEW_MS", 10)
    with listening(path) as (listener, heard):
        eventually(fifo.exists)
        assert stat.S_ISFIFO(fifo.stat().st_mode)
        fifo.unlink()
        listener.ring()
        eventually(fifo.exists)
        monkeypatch.setattr(wakeup, "RENEW_MS", NEVER_MS)
        must_hear(listener, heard)


def test_a_ring_that_nobody_hears_is_nothing(path: Path, fifo: Path) -> None:
    with listening(path) as (listener, _):
        eventually(fifo.exists)
    assert fifo.exists(), "another process may listen"
    listener.ring()
    fifo.unlink()
    listener.ring()
    assert not fifo.exists()


def test_a_listener_finds_what_was_committed_in_the_silence_after_a_ring_in_vain(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(wakeup, "RENEW_MS", NEVER_MS)
    with listening(path) as (_, heard):
        eventually(lambda: len(heard) == 2)  # when it began, and when the silence was over


def test_a_program_that_only_submits_does_not_listen(path: Path) -> None:
    before = threading.active_count()
    with engine_of(path) as engine:
        job = engine.submit(engine.inspect.flows[0], {})
        assert threading.active_count() == before
        with engine.working(settings()):
            assert engine.wait(job.id, timeout=SOON).state == "done"
            assert "ulak-wakeup" in {thread.name for thread in threading.enumerate()}


def test_no_descriptor_is_left_open(path: Path) -> None:
    def live() -> None:
        with engine_of(path) as engine:
            for _ in range(20):
                engine.submit(engine.inspect.flows[0], {})

    live()
    before, threads = open_files(), threading.active_count()
    for _ in range(3):
        live()
    assert (open_files(), threading.active_count()) == (before, threads)


def work_among_many_files(path: str) -> None:
    """Everything that this process opens has a number above 1023."""
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (4096, most))
    while os.open(os.devnull, os.O_RDONLY) < 1100:
        pass
    wakeup.RENEW_MS = NEVER_MS
    with engine_of(path) as engine, engine.working(settings()):
        job = engine.submit(engine.inspect.flows[0], {})
        assert engine.wait(job.id, timeout=SOON).state == "done"
    with listening(Path(path)) as (listener, heard):
        must_hear(listener, heard)


@pytest.mark.shows("E-86")
def test_descriptors_above_1023_are_listened_to(path: Path) -> None:
    ended = faults.run(work_among_many_files, path, timeout_s=200)
    assert ended.code == 0, ended.errors


def test_whoever_copies_the_files_of_the_database_does_not_meet_the_fifo(
    path: Path, fifo: Path
) -> None:
    with engine_of(path), listening(path):
        eventually(fifo.is_fifo)
        files = list(path.parent.glob("jobs.db*"))
        assert path in files
        assert all(file.is_file() for file in files)
