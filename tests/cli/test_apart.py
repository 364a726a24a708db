"""`ulak up` keeps children for the queues that a program wants apart, as processes of their own."""

import os
import signal
import sys
import time
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.cli.test_up import PATIENCE_S, address, greeting, logged_in, running, until
from tests.processes import is_alive

PENDING = ("SigPnd", "ShdPnd")
SOON = timedelta(seconds=PATIENCE_S)

OFFICE = """
import asyncio
import logging
import os
import pathlib
import time

import ulak

engine = ulak.connect("sqlite:///office.db")


@engine.job
def write() -> int:
    return os.getpid()


@engine.job(queue="browser")
def print_page() -> int:
    logging.getLogger("office").warning("a page is printed")
    return os.getpid()


@engine.job(queue="browser")
async def wait_for(name: str) -> int:
    pathlib.Path(f"begun-{os.getpid()}").touch()
    while not pathlib.Path(name).exists():
        await asyncio.sleep(0.02)
    return os.getpid()


@engine.job(queue="browser")
def ignore_everything() -> None:
    pathlib.Path(f"begun-{os.getpid()}").touch()
    time.sleep(600)


engine.flow_control.apart("browser")
"""


class Office:
    """The program, and what its processes do."""

    def __init__(self, folder: Path, shop: Any, program: Any) -> None:
        self.folder = folder
        self.start = shop.start
        self.program = program

    def submit(self, name: str, *arguments: Any) -> str:
        return self.program.engine.submit(getattr(self.program, name), *arguments).id

    def result(self, job: str) -> Any:
        self.program.engine.wait(job, timeout=SOON)
        return self.program.engine.result(job)

    def begun(self) -> int:
        """The process in which a stage has begun, as soon as one has."""
        until(lambda: list(self.folder.glob("begun-*")))
        return int(next(self.folder.glob("begun-*")).name.partition("-")[2])


@pytest.fixture
def office(shop, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Office]:
    (tmp_path / "office.py").write_text(OFFICE)
    monkeypatch.delitem(sys.modules, "office", raising=False)
    import office as program

    monkeypatch.setitem(sys.modules, "office", program)
    with program.engine:
        yield Office(tmp_path, shop, program)


def children_of(pid: int) -> set[int]:
    """The processes that another one has started and not reaped."""
    found = set()
    for entry in Path("/proc").glob("[0-9]*/stat"):
        try:
            fields = entry.read_text().rpartition(")")[2].split()
        except OSError:
            continue
        if int(fields[1]) == pid:
            found.add(int(entry.parent.name))
    return found


def has_heard(pid: int) -> bool:
    """Whether every signal that was sent to a process has been delivered."""
    status = Path(f"/proc/{pid}/status").read_text()
    return all(not int(status.partition(f"{kind}:")[2].split()[0], 16) for kind in PENDING)


def unready(base: str) -> str | None:
    answer = httpx.get(f"{base}/health/ready")
    return answer.json()["detail"] if answer.status_code == 503 else None


def test_a_queue_apart_is_served_by_another_process_and_everything_else_by_this_one(office):
    jobs = office.submit("write"), office.submit("print_page")
    with running(office, "up", "office:engine", "--port", "0") as process:
        said = greeting(process)
        here, there = map(office.result, jobs)
        assert here == process.pid
        assert there in children_of(process.pid)
        base = address(said)
        until(lambda: unready(base) is None)
        children = children_of(process.pid)
        process.send_signal(signal.SIGTERM)
        out, err = process.communicate(timeout=PATIENCE_S)
    assert process.returncode == 0, err
    assert "queues    idempotency-cleanup, write" in said
    assert "apart     browser (in 1 child)" in said
    assert "draining; 1 worker may take 30 s" in out
    assert out.count("drained") == 1
    assert "a page is printed child=browser-1" in err
    assert not any(map(is_alive, children))
    assert office.program.engine.store.workers() == []


def test_workers_work_in_children_and_this_process_only_serves(office):
    jobs = [office.submit("write") for _ in range(3)]
    with running(office, "up", "office:engine", "--port", "0", "--workers", "2") as process:
        said = greeting(process)
        pids = set(map(office.result, jobs))
        until(lambda: unready(address(said)) is None)
        children = children_of(process.pid)
        assert len(children) == 3
        assert pids < children
        assert len(office.program.engine.store.workers()) == 3
        process.send_signal(signal.SIGINT)
        process.communicate(timeout=PATIENCE_S)
    assert process.returncode == 0
    assert not any(map(is_alive, children))


@pytest.mark.shows("E-83", "E-58")
def test_readiness_looks_at_the_age_of_each_childs_lease(office):
    """Broken by a parent that believes a child for ever which has registered once."""
    command = ("up", "office:engine", "--port", "0", "--workers", "1", "--lease", "1.5")
    with running(office, *command) as process:
        base = address(greeting(process))
        until(lambda: unready(base) is None)
        pid = office.result(office.submit("write"))
        os.kill(pid, signal.SIGSTOP)
        until(lambda: "worker-1 has renewed its lease of 1.5 s" in (unready(base) or ""))
        os.kill(pid, signal.SIGCONT)
        until(lambda: unready(base) is None)
        assert is_alive(pid)
        process.send_signal(signal.SIGTERM)
        process.communicate(timeout=PATIENCE_S)
    assert process.returncode == 0


@pytest.mark.shows("E-27")
def test_a_child_that_is_killed_has_a_successor_that_does_its_job(office):
    job = office.submit("wait_for", "done")
    with running(office, "up", "office:engine", "--port", "0", "--lease", "1") as process:
        base = address(greeting(process))
        victim = office.begun()
        until(lambda: unready(base) is None)
        os.kill(victim, signal.SIGKILL)
        (office.folder / "done").touch()
        successor = office.result(job)
        assert successor != victim
        assert successor in children_of(process.pid)
        assert unready(base) is None, "one end is no reason to send people away"
        process.send_signal(signal.SIGTERM)
        _, err = process.communicate(timeout=PATIENCE_S)
    assert process.returncode == 0
    assert "a child has ended child=browser-1 why=signal SIGKILL again_in_s=0.5" in err


def test_a_child_that_cannot_start_is_tried_again_and_readiness_names_it(office):
    with (office.folder / "office.py").open("a") as program:
        program.write('import sys\nif "--child" in sys.argv: raise RuntimeError("no display")\n')
    job = office.submit("write")
    with running(office, "up", "office:engine", "--port", "0") as process:
        said = greeting(process)
        base = address(said)
        assert "browser-1 has not registered yet" in unready(base)
        office.result(job)
        until(lambda: "browser-1 keeps ending: 3 times" in unready(base))
        assert "exit code 1" in unready(base)
        with logged_in(said) as browser:
            assert browser.get("/jobs").status_code == 200
        process.send_signal(signal.SIGTERM)
        _, err = process.communicate(timeout=PATIENCE_S)
    assert process.returncode == 0
    assert "office cannot be imported: RuntimeError: no display" in err
    pauses = [line.rpartition("=")[2] for line in err.splitlines() if "again_in_s" in line]
    assert pauses[:3] == ["0.5", "1.0", "2.0"]


@pytest.mark.shows("E-40")
def test_a_drain_lets_the_stages_of_children_end(office):
    job = office.submit("wait_for", "done")
    with running(office, "up", "office:engine", "--port", "0") as process:
        base = address(greeting(process))
        office.begun()
        process.send_signal(signal.SIGTERM)
        until(lambda: unready(base) is not None)
        (office.folder / "done").touch()
        process.communicate(timeout=PATIENCE_S)
    assert process.returncode == 0
    assert office.program.engine.get(job).state == "done"
    assert [event.kind for event in office.program.engine.inspect.trail(job)] == [
        "submitted",
        "moved",
    ]


@pytest.mark.shows("E-40")
def test_a_second_interrupt_hurries_the_children_too(office):
    job = office.submit("wait_for", "never")
    with running(office, "up", "office:engine", "--port", "0", "--drain", "500") as process:
        base = address(greeting(process))
        child = office.begun()
        os.killpg(process.pid, signal.SIGINT)
        until(lambda: unready(base) is not None)
        assert is_alive(child)
        os.killpg(process.pid, signal.SIGINT)
        process.communicate(timeout=PATIENCE_S)
    assert process.returncode == 0
    assert not is_alive(child)
    left = office.program.engine.get(job)
    assert (left.role, left.leased_by, left.attempt) == ("ready", None, 0)


def test_whoever_stops_all_processes_at_once_does_not_hurry_the_children(office):
    job = office.submit("wait_for", "done")
    with running(office, "up", "office:engine", "--port", "0", "--drain", "500") as process:
        base = address(greeting(process))
        child = office.begun()
        for _ in range(3):
            os.kill(child, signal.SIGTERM)
            until(lambda: has_heard(child))
        process.send_signal(signal.SIGTERM)
        until(lambda: unready(base) is not None)
        assert is_alive(child)
        (office.folder / "done").touch()
        process.communicate(timeout=PATIENCE_S)
    assert process.returncode == 0
    assert [event.kind for event in office.program.engine.inspect.trail(job)] == [
        "submitted",
        "moved",
    ]


def test_a_stage_of_a_child_that_will_not_stop_is_told_of_and_ends_with_it(office):
    office.submit("ignore_everything")
    with running(office, "up", "office:engine", "--port", "0", "--drain", "0.2") as process:
        greeting(process)
        child = office.begun()
        process.send_signal(signal.SIGTERM)
        _, err = process.communicate(timeout=PATIENCE_S)
    assert process.returncode == 1
    assert "error: browser-1 did not end well: exit code 1" in err
    assert not is_alive(child)


def test_no_child_outlives_a_parent_that_is_killed(office):
    office.submit("ignore_everything")
    with running(office, "up", "office:engine", "--port", "0", "--workers", "1") as process:
        base = address(greeting(process))
        office.begun()
        until(lambda: unready(base) is None)
        children = children_of(process.pid)
        assert len(children) == 2
        process.kill()
        process.wait()
        deadline = time.monotonic() + 5
        while any(map(is_alive, children)):
            assert time.monotonic() < deadline
            time.sleep(0.02)


def test_a_third_signal_ends_everything_at_once(office):
    office.submit("wait_for", "never")
    with running(office, "up", "office:engine", "--port", "0", "--drain", "500") as process:
        base = address(greeting(process))
        child = office.begun()
        os.kill(child, signal.SIGSTOP)  # it hears nothing any more
        process.send_signal(signal.SIGTERM)
        until(lambda: unready(base) is not None)
        process.send_signal(signal.SIGTERM)
        while "hurrying" not in process.stdout.readline():
            pass
        process.send_signal(signal.SIGTERM)
        process.wait(PATIENCE_S)
        until(lambda: not is_alive(child))
    assert process.returncode == -signal.SIGTERM


def test_a_worker_that_is_started_by_hand_serves_what_it_is_told(office):
    job = office.submit("print_page")
    with running(office, "worker", "office:engine") as process:
        assert office.result(job) == process.pid
        process.send_signal(signal.SIGTERM)
        process.communicate(timeout=PATIENCE_S)


def test_nobody_types_what_is_for_children(shop):
    answer = shop.run("worker", "shop:engine", "--child", "browser-1")
    assert answer.code == 1
    assert "--child is how `ulak up` starts its children" in answer.err


@pytest.mark.shows("E-57")
def test_children_are_refused_where_they_would_see_no_jobs(run, tmp_path: Path):
    (tmp_path / "brief.py").write_text(
        'import ulak\nengine = ulak.connect("memory://")\n@engine.job\ndef do() -> None: ...\n'
    )
    answer = run("up", "brief:engine", "--workers", "1", "--port", "0")
    assert answer.code == 1
    assert "ulak up cannot serve queues by children on the memory store" in answer.err


def test_a_queue_that_nobody_is_in_cannot_be_served_apart(run, tmp_path: Path):
    (tmp_path / "slip.py").write_text(
        'import ulak\nengine = ulak.connect("sqlite:///slip.db")\n'
        '@engine.job\ndef do() -> None: ...\nengine.flow_control.apart("browsr")\n'
    )
    answer = run("up", "slip:engine", "--port", "0")
    assert answer.code == 1
    assert 'no stage is in the queue "browsr"; queues are "do"' in answer.err
