"""Stages with a process of their own: its death touches that job only."""

import os
from pathlib import Path
from typing import Any

import pytest

from tests.scenario import isolated
from tests.scenario.doubles import SOON, codes, engine_on, eventually, kinds, settings, store_of
from ulak.engine.engine import Engine
from ulak.ids import from_text


def engine_at(url: str) -> Engine:
    return engine_on(store_of(url), *isolated.engine.inspect.flows)


def payload(tmp_path: Path) -> dict[str, Any]:
    return {"ledger": str(tmp_path / "ledger"), "until": str(tmp_path / "until")}


def lines(tmp_path: Path) -> list[str]:
    path = tmp_path / "ledger"
    return path.read_text().splitlines() if path.exists() else []


@pytest.mark.shows("E-38")
def test_a_timeout_kills_its_own_child_and_no_neighbour(jobs_url: str, tmp_path: Path) -> None:
    with engine_at(jobs_url) as engine, engine.working(settings(processes=2)):
        neighbour = engine.submit(isolated.patient, payload(tmp_path))
        eventually(lambda: len(lines(tmp_path)) == 1)
        for _ in range(20):  # on a slow machine the time may be over before the child has begun
            hasty = engine.submit(isolated.hasty, payload(tmp_path))
            end = engine.wait(hasty.id, timeout=SOON)
            assert (end.state, end.code) == ("failed", "timeout")
            if len(lines(tmp_path)) == 2:
                break
        assert engine.get(neighbour.id).leased_by is not None
        (tmp_path / "until").touch()
        assert engine.wait(neighbour.id, timeout=SOON).state == "done"
        pids = {int(line.split()[1]) for line in lines(tmp_path)}
        assert len(pids) == 2
        assert engine.result(neighbour.id) in pids
        for pid in pids:
            with pytest.raises(ProcessLookupError):
                os.kill(pid, 0)


@pytest.mark.shows("E-37", "E-13", "E-38")
def test_a_child_may_use_its_run_and_its_death_is_a_failed_attempt(tmp_path: Path) -> None:
    with engine_at("memory://") as engine:
        sent: list[Any] = []
        engine.outbox.publish(sent.append)
        with engine.working(settings()):
            job = engine.submit(isolated.everything, payload(tmp_path))
            assert engine.wait(job.id, timeout=SOON).state == "done"
            result = engine.result(job.id)
            children = [engine.wait(i, timeout=SOON).state for i in result["ids"]]
            eventually(lambda: sent)
        key = f"{job.id}/1/pay"
        assert lines(tmp_path) == [f"effect {key}", "crash 1"], "once: not again after the crash"
        assert result["first"] == key.upper()
        assert "must open its own" in result["resource"]
        assert result["cancelled"] is False
        assert children == ["done", "done"]
        assert [m.topic for m in sent] == ["paid"]
        assert kinds(engine, job) == ["submitted", "noted", "retry", "moved"]
        assert codes(engine, job)[2] == "process-died"
        assert engine.inspect.verify() == []


@pytest.mark.shows("E-38", "E-8")
def test_a_job_function_runs_in_a_child_and_tells_how_it_ended(tmp_path: Path) -> None:
    with engine_at("memory://") as engine, engine.working(settings()):
        engine.submit(isolated.square.bind(4))
        good = engine.submit(isolated.square, 7)
        bad = engine.submit(isolated.fail, "no\x00good")
        gone = engine.submit(isolated.leave, 3)
        assert engine.wait(good.id, timeout=SOON).state == "done"
        squared, pid = engine.result(good.id)
        assert squared == 49
        assert pid != os.getpid()
        end = engine.wait(bad.id, timeout=SOON)
        assert (end.state, end.code) == ("failed", "raised")
        last = engine.inspect.trail(bad.id)[-1]
        assert last.message == "ValueError: no\ufffdgood"
        assert "isolated.py" in last.details["traceback"]
        end = engine.wait(gone.id, timeout=SOON)
        assert (end.state, end.code) == ("failed", "process-died")
        assert "code 3" in (engine.inspect.trail(gone.id)[-1].message or "")


@pytest.mark.shows("E-39")
def test_a_cancel_kills_the_child(tmp_path: Path) -> None:
    with engine_at("memory://") as engine, engine.working(settings()):
        job = engine.submit(isolated.patient, payload(tmp_path))
        eventually(lambda: lines(tmp_path))
        engine.cancel(job.id, actor="operator")
        # It would sleep for longer than anybody waits here.
        assert engine.wait(job.id, timeout=SOON).state == "cancelled"
        with pytest.raises(ProcessLookupError):
            os.kill(int(lines(tmp_path)[0].split()[1]), 0)


@pytest.mark.shows("E-40")
def test_a_drain_kills_children_that_do_not_stop_and_spends_no_attempt(tmp_path: Path) -> None:
    with engine_at("memory://") as engine:
        job = engine.submit(isolated.patient, payload(tmp_path))
        with engine.working(settings(drain=0.3)):
            eventually(lambda: lines(tmp_path))
        assert kinds(engine, job) == ["submitted", "given-back"]
        row = engine.store.find_job(from_text(job.id))
        assert row is not None
        assert (row.attempt, row.leased_by) == (0, None)


@pytest.mark.shows("E-38")
def test_a_stage_that_a_child_cannot_find_fails_with_a_sentence(tmp_path: Path) -> None:
    with engine_at("memory://") as engine, engine.working(settings()):
        job = engine.submit(isolated.lost)
        end = engine.wait(job.id, timeout=SOON)
        assert (end.state, end.code) == ("failed", "process-died")
        assert "cannot find tests.scenario.isolated.overwritten" in (
            engine.inspect.trail(job.id)[-1].message or ""
        )
