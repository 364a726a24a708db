"""The file of an open store is deleted or replaced: nothing is acknowledged any more."""

import os
import sqlite3
import time
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

import ulak
from tests.scenario.doubles import eventually, settings
from ulak.errors import StoreError
from ulak.store.sqlite import SqliteStore
from ulak.store.sqlite import files as files_of
from ulak.testing.conformance import Desk

LOST = "was deleted or replaced while .* was open: nothing is acknowledged any more"


@pytest.fixture(autouse=True)
def look_always(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(files_of, "LOOK_AT_FILES_EVERY_S", 0.0)


@pytest.fixture
def desk(path: Path) -> Iterator[Desk]:
    store = SqliteStore(path)
    store.open()
    yield Desk(store)
    store.close()


def lose(path: Path, how: str) -> None:
    if how == "deleted":
        path.unlink()
    elif how == "replaced":
        with closing(sqlite3.connect(path.with_name("other.db"))) as other:
            other.execute("CREATE TABLE other (n INTEGER)")
        os.replace(path.with_name("other.db"), path)
    else:
        path.with_name(path.name + how).unlink()


@pytest.mark.shows("E-82")
@pytest.mark.parametrize("how", ["deleted", "replaced", "-wal", "-shm"])
def test_a_store_whose_file_is_lost_acknowledges_nothing(desk: Desk, path: Path, how: str) -> None:
    store = desk.store
    desk.hire("w")
    desk.submit_many(2)
    (claim,) = desk.claim("w", 1)
    change, new = desk.end(claim.row), desk.new()
    with closing(sqlite3.connect(path)) as theirs:
        lose(path, how)
        verbs: list[Callable[[], Any]] = [
            lambda: store.add([new]),
            lambda: desk.claim("w", 1),
            lambda: store.commit([change]),
            lambda: store.find_commits([change]),
            lambda: store.renew("w", lease_us=1),
            lambda: store.find_job(claim.row.id),
            store.changed_elsewhere,
            lambda: store.begin().commit(),
            lambda: store.reading().__enter__(),
            lambda: store.find_driver(theirs),
        ]
        for verb in verbs:
            with pytest.raises(StoreError, match=LOST):
                verb()


@pytest.mark.shows("E-82")
def test_a_file_that_is_put_back_is_used_again(desk: Desk, path: Path) -> None:
    away = path.with_name("away.db")
    path.rename(away)
    with pytest.raises(StoreError, match=LOST):
        desk.submit()
    away.rename(path)
    assert desk.submit().state


@pytest.mark.shows("E-82")
def test_closing_a_lost_store_harms_nothing_of_the_new_one(path: Path) -> None:
    lost, new = SqliteStore(path), SqliteStore(path)
    lost.open()
    Desk(lost).submit()
    for name in ("", "-wal", "-shm"):
        path.with_name(path.name + name).unlink()
    new.open()
    desk = Desk(new)
    desk.submit_many(3)
    lost.close()
    assert len(desk.jobs()) == 3
    desk.submit()
    new.close()
    again = SqliteStore(path)
    again.open()
    assert len(Desk(again).jobs()) == 4
    again.close()


@pytest.mark.shows("E-82")
def test_a_worker_and_a_submit_say_that_the_file_is_lost(
    path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    flow: ulak.Flow[Any] = ulak.Flow("idle", ulak.Lifecycle("due", {"due": ["done"]}))
    flow.stage("due")(lambda run: None)
    engine = ulak.Engine(SqliteStore(path), flows=[flow])
    engine.kernel.submit_timeout_s = 0.2
    with engine, engine.working(settings()):
        path.unlink()
        with pytest.raises(ulak.UnknownOutcome):
            engine.submit(flow, {})
        eventually(lambda: said(caplog, "ulak.worker") and said(caplog, "ulak.intake"))
        with pytest.raises(StoreError, match=LOST):
            engine.store.workers()


def said(caplog: pytest.LogCaptureFixture, logger: str) -> bool:
    return any(
        "was deleted or replaced" in str(getattr(record, "error", ""))
        for record in caplog.records
        if record.name == logger
    )


@pytest.mark.shows("E-82")
def test_a_lost_file_is_noticed_as_often_as_stores_look(
    desk: Desk, path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.undo()
    assert files_of.LOOK_AT_FILES_EVERY_S <= 5, "within seconds"
    path.unlink()

    def is_refused() -> bool:
        try:
            desk.submit()
        except StoreError:
            return True
        return False

    eventually(is_refused)
    with pytest.raises(StoreError, match=LOST):
        desk.submit()


def test_the_files_are_looked_at_now_and_then(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(files_of, "LOOK_AT_FILES_EVERY_S", 60.0)
    for name in ("", "-wal", "-shm"):
        path.with_name(path.name + name).touch()
    files, now = files_of.Files(path), time.monotonic()
    monkeypatch.setattr(time, "monotonic", lambda: now)
    files.check()
    path.unlink()
    files.check()
    now += 61
    for _ in range(2):
        with pytest.raises(StoreError, match=LOST):
            files.check()
