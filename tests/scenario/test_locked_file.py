"""Another program holds the database for a while: whoever submits and whoever works only waits."""

import sqlite3
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

import ulak
from tests.scenario.doubles import SOON, engine_on, eventually, in_time, kinds, settings
from ulak.errors import StoreError
from ulak.store.processes import StoreAway, WouldWait
from ulak.store.protocol import ClaimRequest, Want
from ulak.store.sqlite import SqliteStore, writer
from ulak.store.sqlite.files import LockFile

LEASE_US = 30_000_000


@pytest.mark.shows("E-21")
def test_a_lock_of_somebody_else_is_waited_for_and_never_shown(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(writer, "BUSY_TIMEOUT_S", 0.01)
    path, started, go_on = tmp_path / "jobs.db", threading.Event(), threading.Event()

    def work(run: ulak.Run[Any]) -> str:
        started.set()
        assert go_on.wait(120)
        return "worked"

    flow: ulak.Flow[Any] = ulak.Flow.steps("patient", work)
    store = Refusals(path)
    with engine_on(store, flow) as engine, ThreadPoolExecutor(1) as pool:
        first = engine.submit(flow)
        with engine.working(settings()):
            assert started.wait(120)
            # A shell, say, in a transaction of its own, for longer than SQLite itself waits.
            other = sqlite3.connect(path, isolation_level=None)
            other.execute("BEGIN IMMEDIATE")
            go_on.set()
            second = pool.submit(engine.submit, flow)
            eventually(lambda: store.refused == {"add", "commit"})
            other.execute("ROLLBACK")
            other.close()
            for job in (first, second.result(120)):
                assert engine.wait(job.id, timeout=SOON).state == "done"
                assert kinds(engine, job) == ["submitted", "moved"]
        assert engine.inspect.verify() == []


class Refusals(SqliteStore):
    """Remembers which verbs found the database locked."""

    def __init__(self, path: Path) -> None:
        super().__init__(path)
        self.refused: set[str] = set()

    def add(self, jobs: Any) -> Any:
        return self._remember("add", super().add, jobs)

    def commit(self, changes: Any) -> Any:
        return self._remember("commit", super().commit, changes)

    def _remember(self, verb: str, write: Any, what: Any) -> Any:
        try:
            return write(what)
        except WouldWait:
            raise  # not asked yet: a thread that may wait does so next
        except StoreError as error:
            self.refused.add(verb if "locked" in str(error) else str(error))
            raise


VERBS: dict[str, Callable[[SqliteStore], object]] = {
    "add": lambda store: store.add([]),
    "commit": lambda store: store.commit([]),
    "claim": lambda store: store.claim(ClaimRequest("w", (Want(("any",), 1),))),
    "register": lambda store: store.register("w", lease_us=LEASE_US, lanes=["any"], about=""),
    "renew": lambda store: store.renew("w", lease_us=LEASE_US),
    "unregister": lambda store: store.unregister("w"),
    "fold": lambda store: store.fold_counts(),
    "take": lambda store: store.hold_messages([], hold_us=LEASE_US),
    "clean": lambda store: store.clean_records(limit=1),
    "begin": lambda store: store.begin(),
    "migrate": lambda store: store.migrate(),
    "migrate another": lambda store: SqliteStore(store.path).migrate(),
    "open another": lambda store: SqliteStore(store.path).open(),
}


@pytest.mark.shows("E-83")
def test_every_verb_that_writes_ends_beside_a_held_lock_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Broken by a verb that waits for the file lock in the kernel, which knows no limit."""
    monkeypatch.setattr(writer, "TURN_TIMEOUT_S", 0.01)
    store = SqliteStore(tmp_path / "jobs.db")
    store.open()
    held = LockFile(tmp_path / "jobs.db.lock")
    assert held.try_acquire()
    try:
        for verb, call in VERBS.items():
            error = in_time(lambda call=call: call(store))
            assert isinstance(error, StoreAway), f"{verb}: {error!r}"
            assert "another process has been writing" in str(error)
        assert store.workers() == [], "readers do not wait"
        waiting = [t for t in threading.enumerate() if t.name == "ulak-lock-file"]
        assert len(waiting) <= 3, "one for each store that was opened, however many verbs gave up"
    finally:
        held.release()
    monkeypatch.undo()
    for thread in waiting:
        thread.join(120)
        assert not thread.is_alive(), "a place in the queue that nobody wants is given back"
    store.begin().commit()
    assert store.migrate() == (store.newest_schema, store.newest_schema)
    store.close()


@pytest.mark.shows("E-83")
def test_a_store_is_closed_beside_a_held_lock_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = SqliteStore(tmp_path / "jobs.db")
    store.open()
    monkeypatch.setattr(writer, "TURN_TIMEOUT_S", 0.01)
    held = LockFile(tmp_path / "jobs.db.lock")
    assert held.try_acquire()
    try:
        assert in_time(store.close) is None
    finally:
        held.release()


@pytest.mark.shows("E-83", "E-58")
def test_a_worker_beside_a_stopped_writer_is_not_ready_and_goes_on_after_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path, started, go_on = tmp_path / "jobs.db", threading.Event(), threading.Event()
    sent: list[Any] = []

    def work(run: ulak.Run[Any]) -> str:
        started.set()
        assert go_on.wait(120)
        run.emit("worked", 1)
        return "worked"

    flow: ulak.Flow[Any] = ulak.Flow.steps("patient", work)
    with engine_on(SqliteStore(path), flow) as engine:
        engine.outbox.publish(sent.append)
        first = engine.submit(flow)
        with engine.working(settings(lease=1.5)) as worker:
            assert started.wait(120)
            monkeypatch.setattr(writer, "TURN_TIMEOUT_S", 0.05)
            held = LockFile(tmp_path / "jobs.db.lock")
            eventually(held.try_acquire)
            go_on.set()
            eventually(lambda: "lease" in (worker.unready() or ""))
            assert isinstance(
                in_time(lambda: engine.flow_control.pause(flow="patient", actor="ada")), StoreError
            )
            held.release()
            eventually(lambda: worker.unready() is None)
            second = engine.submit(flow)
            for job in (first, second):
                assert engine.wait(job.id, timeout=SOON).state == "done"
            eventually(lambda: len(sent) == 2)
            assert not worker.has_ended
        assert engine.inspect.verify() == []
