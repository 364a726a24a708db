"""Another program holds the database for a while: whoever submits and whoever works only waits."""

import sqlite3
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

import ulak
from tests.scenario.doubles import SOON, engine_on, eventually, kinds, settings
from ulak.errors import StoreError
from ulak.store.sqlite import SqliteStore, writer
from ulak.store.waiting import WouldWait


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
        assert engine.verify() == []


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
