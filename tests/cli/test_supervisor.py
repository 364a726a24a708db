"""Children are kept running, end when they must, and leave nothing behind."""

import asyncio
import os
import sys
import time
from collections.abc import Callable
from dataclasses import replace
from datetime import timedelta
from pathlib import Path

import pytest

from tests.cli.test_apart import children_of
from tests.processes import is_alive
from ulak.cli import supervisor as supervision
from ulak.cli.supervisor import Child, Supervisor, pause_after

PATIENCE_S = 120

REGISTER = "import os, signal, socket, sys, time; socket.socket(fileno=0).send(b'r')\n"


def child(code: str, *arguments: object) -> Child:
    """A child that says it is registered and then does what a test wants."""
    command = (sys.executable, "-S", "-c", REGISTER + code, *map(str, arguments))
    return Child("painter-1", command)


async def until(condition: Callable[[], object]) -> None:
    deadline = time.monotonic() + PATIENCE_S
    while not condition():
        assert time.monotonic() < deadline, "it did not happen"
        await asyncio.sleep(0.01)


def supervise(
    made: Supervisor, meanwhile: Callable[[], object], then: Callable[[], object] | None = None
) -> None:
    """Run a supervisor until something has happened, stop it, and see that nobody is left."""

    async def run() -> None:
        running = asyncio.create_task(made.run())
        await until(meanwhile)
        (then or made.stop)()
        await asyncio.wait_for(running, PATIENCE_S)

    before = children_of(os.getpid())
    asyncio.run(run())
    assert made.running == 0
    assert children_of(os.getpid()) == before, "a child was not reaped"


def pid_in(path: Path) -> int:
    return int(path.read_text())


def test_a_pause_doubles_up_to_half_a_minute():
    assert [pause_after(ends) for ends in (1, 2, 3, 6, 7, 8, 2000)] == [
        0.5, 1.0, 2.0, 16.0, 30.0, 30.0, 30.0,
    ]  # fmt: skip


def test_children_are_ready_when_each_has_registered(tmp_path):
    mute = Child("mute-1", (sys.executable, "-S", "-c", "import time; time.sleep(600)"))
    made = Supervisor([child("time.sleep(600)")], drain=timedelta())
    assert made.unready() == "painter-1 has not registered yet"
    supervise(made, lambda: made.unready() is None)
    assert made.unready() == "the workers drain"
    assert made.unclean() is None
    made = Supervisor([child("time.sleep(600)"), mute], drain=timedelta())
    supervise(made, lambda: made.unready() == "mute-1 has not registered yet")


@pytest.mark.shows("E-83", "E-58")
def test_a_child_that_reports_no_renewal_any_more_is_named():
    """Broken by readiness that believes a child for ever which has registered once."""
    silent = replace(child("time.sleep(600)"), lease=0.05)
    made = Supervisor([silent], drain=timedelta())
    supervise(made, lambda: "painter-1 has renewed its lease of 0.05 s" in str(made.unready()))
    # One that goes on to report is ready, however old its first report is.
    code = "import socket, time; line = socket.socket(fileno=0)\n"
    code += "while True: line.send(b'r'); time.sleep(0.01)"
    again = Child("painter-1", (sys.executable, "-S", "-c", code), lease=1.5)
    made = Supervisor([again], drain=timedelta())
    (life,) = made._lives
    seen: set[float | None] = set()
    supervise(made, lambda: seen.add(life.renewed_at) or (len(seen) > 20 and not made.unready()))


def test_a_child_that_ends_by_itself_is_started_again(tmp_path, monkeypatch, caplog):
    monkeypatch.setattr(supervision, "FIRST_PAUSE_S", 0.01)
    code = "n = int(time.monotonic_ns()); open(sys.argv[1] + f'/{n}', 'x'); sys.exit(7)"
    made = Supervisor([child(code, tmp_path)], drain=timedelta(seconds=1))
    supervise(made, lambda: len(list(tmp_path.iterdir())) > supervision.KEEPS_ENDING)
    ends = [record for record in caplog.records if record.message == "a child has ended"]
    assert [(record.child, record.why) for record in ends[:2]] == [("painter-1", "exit code 7")] * 2
    assert [record.again_in_s for record in ends[:3]] == [0.01, 0.02, 0.04]


def test_one_that_keeps_ending_is_named_until_its_successor_has_settled(tmp_path, monkeypatch):
    monkeypatch.setattr(supervision, "FIRST_PAUSE_S", 0.01)
    monkeypatch.setattr(supervision, "SETTLED_S", 0.5)
    mended = tmp_path / "mended"
    made = Supervisor(
        [child("time.sleep(600 if os.path.exists(sys.argv[1]) else 0)", mended)], drain=timedelta()
    )
    said = []

    def is_named() -> bool:
        if (complaint := made.unready()) and "keeps ending" in complaint:
            said.append(complaint)
            mended.touch()
        return bool(said) and made.unready() is None

    supervise(made, is_named)
    assert said[0] == "painter-1 keeps ending: 3 times, the last time by exit code 0"


def test_a_command_that_cannot_be_started_is_tried_again(monkeypatch, caplog):
    monkeypatch.setattr(supervision, "FIRST_PAUSE_S", 0.01)
    made = Supervisor([Child("lost-1", ("/no/such/program",))], drain=timedelta())
    supervise(made, lambda: "keeps ending" in (made.unready() or ""))
    assert "No such file" in caplog.records[0].why


def test_a_child_that_ignores_what_it_is_told_is_killed(tmp_path, monkeypatch):
    monkeypatch.setattr(supervision, "MARGIN_S", 0.2)
    deaf = "signal.signal(signal.SIGTERM, signal.SIG_IGN); open(sys.argv[1], 'x'); time.sleep(600)"
    made = Supervisor([child(deaf, tmp_path / "deaf")], drain=timedelta())
    supervise(made, (tmp_path / "deaf").exists)
    assert made.unclean() == "painter-1 did not stop in time and was killed"


def test_hurrying_interrupts_a_child_that_would_drain_for_long(tmp_path):
    slow = (
        "signal.signal(signal.SIGTERM, lambda *_: None)\n"
        "signal.signal(signal.SIGINT, lambda *_: os._exit(0))\n"
        "open(sys.argv[1], 'x')\n"
        "while True: time.sleep(600)"
    )
    made = Supervisor([child(slow, tmp_path / "slow")], drain=timedelta(hours=1))
    supervise(made, (tmp_path / "slow").exists, made.hurry)
    assert made.unclean() is None


@pytest.mark.parametrize("ending", ["os.kill(os.getpid(), signal.SIGSEGV)", "time.sleep(600)"])
def test_what_a_child_has_started_goes_with_it(tmp_path, ending):
    written = tmp_path / "grandchild"
    code = (
        "pid = os.fork()\n"
        "if pid == 0: signal.signal(signal.SIGTERM, signal.SIG_IGN); time.sleep(600)\n"
        "open(sys.argv[1] + '.part', 'x').write(str(pid))\n"
        f"os.rename(sys.argv[1] + '.part', sys.argv[1])\n{ending}"
    )
    made = Supervisor([child(code, written)], drain=timedelta())
    supervise(made, written.exists)
    deadline = time.monotonic() + PATIENCE_S
    while is_alive(pid_in(written)):
        assert time.monotonic() < deadline
        time.sleep(0.01)


def test_one_that_is_stopped_before_it_runs_starts_nothing():
    made = Supervisor([child("time.sleep(600)")], drain=timedelta())
    made.stop()
    supervise(made, lambda: True)


def test_a_supervisor_that_fails_says_so_and_leaves_nobody(tmp_path, monkeypatch):
    made = Supervisor(
        [child("open(sys.argv[1], 'x'); time.sleep(600)", tmp_path / "up")], drain=timedelta()
    )

    async def break_down(*_):
        await until((tmp_path / "up").exists)
        raise RuntimeError("a bug of ours")

    monkeypatch.setattr(supervision, "_first", break_down)
    with pytest.raises(RuntimeError, match="a bug of ours"):
        asyncio.run(made.run())
