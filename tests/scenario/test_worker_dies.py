"""A worker is killed with -9: another takes its jobs over, and nothing is counted twice."""

import signal
from pathlib import Path

import pytest

from tests.processes import is_alive
from tests.scenario import program
from tests.scenario.doubles import SOON, eventually, kinds


@pytest.mark.shows("E-27")
def test_the_jobs_of_a_killed_worker_are_run_by_another(shared_url: str, tmp_path: Path) -> None:
    (tmp_path / "hold").touch()
    with program.engine_at(shared_url) as engine:
        jobs = engine.submit_many(program.loop_flow, [1] * 3)
        jobs.append(engine.submit(program.thread_flow, 1))
        victim = program.start(shared_url, tmp_path, 2.0)
        eventually(lambda: len(program.ledger(tmp_path)) == 4)
        victim.kill()
        assert victim.wait(120) == -signal.SIGKILL
        (tmp_path / "hold").unlink()
        rescuer = program.start(shared_url, tmp_path, 2.0)
        try:
            for job in jobs:
                end = engine.wait(job.id, timeout=SOON)
                assert (end.state, end.attempt, end.leased_by) == ("done", 0, None)
                assert kinds(engine, job) == ["submitted", "lapsed", "moved"]
                lapsed, moved = engine.inspect.trail(job.id)[1:]
                assert f"-{victim.pid}-" in (lapsed.worker or "")
                assert f"-{rescuer.pid}-" in (moved.worker or "")
        finally:
            rescuer.terminate()
            assert rescuer.wait(120) == 0
        assert engine.inspect.verify() == []


@pytest.mark.shows("E-29", "E-27")
def test_a_slot_is_free_again_when_its_worker_was_killed(
    shared_url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(program.FOLDER, str(tmp_path))
    (tmp_path / "hold").touch()
    with program.engine_at(shared_url) as engine:
        jobs = engine.submit_many(program.narrow_flow, [1] * 4)
        victim = program.start(shared_url, tmp_path, 2.0)
        eventually(lambda: len(program.ledger(tmp_path)) == 2)
        assert sum(slot.job_id is not None for slot in engine.store.slots()) == 2
        victim.kill()
        victim.wait(120)
        (tmp_path / "hold").unlink()
        rescuer = program.start(shared_url, tmp_path, 2.0)
        try:
            for job in jobs:
                assert engine.wait(job.id, timeout=SOON).state == "done"
        finally:
            rescuer.terminate()
            assert rescuer.wait(120) == 0
        assert all(slot.job_id is None for slot in engine.store.slots())
        assert engine.inspect.verify() == []


@pytest.mark.shows("E-38")
def test_a_child_does_not_outlive_a_worker_that_was_killed(shared_url: str, tmp_path: Path) -> None:
    (tmp_path / "hold").touch()
    with program.engine_at(shared_url) as engine:
        engine.submit(program.isolated_flow, "x")
        victim = program.start(shared_url, tmp_path, 2.0)
        eventually(lambda: program.ledger(tmp_path))
        child = int(program.ledger(tmp_path)[0].split()[2])
        victim.kill()
        victim.wait(120)
        eventually(lambda: not is_alive(child))
