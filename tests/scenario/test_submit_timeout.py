"""A submit ends within `submit_timeout`, also a lone one, whatever the store waits for."""

import asyncio
import sqlite3
from pathlib import Path
from typing import Any

import psycopg
import pytest

import ulak
from tests.scenario.doubles import Double, engine_on, eventually, in_time, store_of
from ulak.engine.engine import Engine
from ulak.errors import StoreError, UnknownOutcome
from ulak.store.postgres import timeouts
from ulak.store.sqlite import writer
from ulak.store.sqlite.files import LockFile
from ulak.testing.servers import Postgres

SHORT_S = 0.5
WAITING = """
    SELECT FROM pg_stat_activity WHERE application_name = 'ulak' AND wait_event = 'relation'
"""
FLOW: ulak.Flow[Any] = ulak.Flow("kept", ulak.Lifecycle("new", {"new": ["done"]}))


@FLOW.stage("new")
def keep(run: ulak.Run[Any]) -> None:
    """Never run here."""


@pytest.fixture
def url(own_url: str, monkeypatch: pytest.MonkeyPatch) -> str:
    """An empty database. Its clients have more patience than a test has."""
    monkeypatch.setattr(timeouts, "PROBE_AFTER_S", 600.0)
    return f"{own_url}?connect_timeout=600"


def submit_in_vain(engine: Engine) -> str:
    """Submit a job that is not acknowledged, and return its id."""
    usual, engine.kernel.submit_timeout_s = engine.kernel.submit_timeout_s, SHORT_S
    error = in_time(lambda: engine.submit(FLOW, 1))
    engine.kernel.submit_timeout_s = usual
    assert isinstance(error, UnknownOutcome), error
    return error.job_id


def is_stored(engine: Engine, job_id: str) -> bool:
    try:
        return engine.get(job_id).id == job_id
    except (LookupError, StoreError):
        return False


@pytest.mark.shows("E-83", "E-35")
@pytest.mark.parametrize("connected", [True, False])
def test_a_lone_submit_to_a_stopped_server_ends_in_time(
    connected: bool, server: Postgres, url: str
) -> None:
    """With a connection at hand, which does not answer, and with one to be opened."""
    with engine_on(store_of(url), FLOW) as engine:
        engine.submit(FLOW, 0)
        if not connected:
            sessions = engine.store._db
            for session in sessions._idle:
                session.connection.close()
            sessions._idle.clear()
        with server.frozen():
            first, second = submit_in_vain(engine), submit_in_vain(engine)
        assert first != second
        # Whether the first was stored is not known; what comes later is.
        eventually(lambda: in_time(lambda: engine.submit(FLOW, 2)) is None)


@pytest.mark.shows("E-83", "E-35", "E-84")
def test_a_lone_submit_beside_a_locked_table_ends_in_time_and_leaves_no_session_behind(
    url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(timeouts, "LOCK_TIMEOUT_MS", 300)
    with (
        engine_on(store_of(url), FLOW) as engine,
        psycopg.connect(url) as holder,
        psycopg.connect(url, autocommit=True) as admin,
    ):
        engine.submit(FLOW, 0)
        holder.execute("LOCK TABLE ulak.jobs IN ACCESS EXCLUSIVE MODE")
        for _ in range(3):
            submit_in_vain(engine)
        # Each goes on waiting in the server otherwise, when its client has long left.
        eventually(lambda: not admin.execute(WAITING).fetchall())
        holder.rollback()
        eventually(lambda: in_time(lambda: engine.submit(FLOW, 2)) is None)


@pytest.mark.shows("E-83", "E-35")
def test_a_lone_submit_beside_a_held_lock_file_ends_in_time_and_is_stored_later(
    tmp_path: Path,
) -> None:
    with engine_on(store_of(f"sqlite:///{tmp_path}/jobs.db"), FLOW) as engine:
        engine.submit(FLOW, 0)
        held = LockFile(tmp_path / "jobs.db.lock")
        assert held.try_acquire()
        try:
            job_id, another = submit_in_vain(engine), submit_in_vain(engine)
        finally:
            held.release()
        eventually(lambda: is_stored(engine, job_id))
        assert job_id != another
        assert in_time(lambda: engine.submit(FLOW, 2)) is None


@pytest.mark.shows("E-83", "E-35")
def test_a_lone_submit_beside_a_writer_without_the_lock_file_ends_in_time(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(writer, "BUSY_TIMEOUT_S", 600.0)
    with engine_on(store_of(f"sqlite:///{tmp_path}/jobs.db"), FLOW) as engine:
        engine.submit(FLOW, 0)
        shell = sqlite3.connect(tmp_path / "jobs.db", isolation_level=None)
        shell.execute("BEGIN IMMEDIATE")
        job_id = submit_in_vain(engine)
        shell.execute("ROLLBACK")
        shell.close()
        assert not is_stored(engine, job_id)
        assert in_time(lambda: engine.submit(FLOW, 2)) is None


@pytest.mark.shows("E-83", "E-35")
@pytest.mark.parametrize("way", ["threads", "loop"])
def test_a_timeout_of_submit_many_names_every_job_of_the_call(way: str) -> None:
    """The first five hundred are stored and their ids would be lost with the call."""
    store = Double(store_of("memory://"))
    engine = engine_on(store, FLOW)

    def fail_after_the_first(jobs: object) -> None:
        if store.calls["add"] > 1:
            raise StoreError("the disk is gone")

    def hurry(answer: object) -> None:
        engine.kernel.submit_timeout_s = SHORT_S

    def submit() -> None:
        if way == "threads":
            engine.submit_many(FLOW, range(1200))
        else:
            asyncio.run(engine.aio.submit_many(FLOW, range(1200)))

    store.before["add"] = fail_after_the_first
    store.after["add"] = hurry
    with engine:
        with pytest.raises(UnknownOutcome) as unknown:
            submit()
        named = unknown.value.job_ids
        assert len(set(named)) == 1200
        assert [is_stored(engine, job_id) for job_id in named] == [True] * 500 + [False] * 700
        assert unknown.value.job_id == named[500], "the first whose fate is not known"
        assert "1200 jobs" in str(unknown.value)
