"""Programs that a job needs, real ones."""

import asyncio
import subprocess
import sys
import time
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from tests.processes import await_gone, await_text
from ulak.kit.programs import Program, plain_environment

STUBBORN = """
import os, signal, subprocess, sys, time
signal.signal(signal.SIGTERM, signal.SIG_IGN)
child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])
with open(os.path.join(os.path.dirname(sys.argv[1]), "pids.tmp"), "w") as file:
    file.write(f"{os.getpid()} {child.pid}")
print("begun", flush=True)
os.rename(file.name, file.name.removesuffix(".tmp"))
time.sleep(600)
"""
"""A program that heeds nothing, and has started another one; `pids` lies beside its argument."""


def make_program(text: str, *arguments: str, limit_s: float = 60, tail: int = 4096) -> Program:
    command = [sys.executable, "-I", "-c", text, *arguments]
    limit = timedelta(seconds=limit_s)
    return Program(command, limit=limit, environment=plain_environment("OPTI"), tail=tail)


def test_a_program_gets_its_arguments_as_they_are_and_no_secrets(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for name in ("ULAK_SECRET", "DATABASE_URL", "OPTI_HOME", "LC_ALL"):
        monkeypatch.setenv(name, "C")
    text = "import os, sys; print(sys.argv[1:], sorted(os.environ)); print(sys.stdin.read())"
    program = make_program(text, "$(id)", "a b")
    assert asyncio.run(program.run()) == "ended with 0"
    assert program.code == 0
    assert program.output.startswith("['$(id)', 'a b']")
    assert "'LC_ALL', " in program.output
    assert "'OPTI_HOME', 'PATH'" in program.output
    assert "SECRET" not in program.output
    assert "DATABASE" not in program.output


def test_the_end_of_what_it_writes_is_kept() -> None:
    program = make_program(r"import os; os.write(2, b'x' * 50_000 + b'\0\xff end')", tail=100)
    assert asyncio.run(program.run()) == "ended with 0"
    assert program.output == "x" * 94 + "\ufffd\ufffd end"


def test_what_cannot_be_started_raises_nothing(tmp_path: Path) -> None:
    program = Program([str(tmp_path)], limit=timedelta(seconds=1), environment={})
    assert asyncio.run(program.run()).startswith("cannot be started: ")
    assert program.code is None


def test_when_its_time_is_over_it_is_ended_with_all_that_it_has_started(tmp_path: Path) -> None:
    program = make_program(STUBBORN, str(tmp_path / "x"), limit_s=1)
    assert asyncio.run(program.run()) == "took more than 1 s"
    assert program.code is None
    assert program.output == "begun\n"
    await_gone(*map(int, (tmp_path / "pids").read_text().split()), within_s=5)


def test_what_it_leaves_behind_is_ended_with_it() -> None:
    program = make_program("""if True:
        import subprocess, sys
        child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])
        print(child.pid)
    """)
    began = time.monotonic()
    assert asyncio.run(program.run()) == "ended with 0"
    # Its output is still open there: nobody waits for that.
    assert time.monotonic() - began < 30
    await_gone(int(program.output), within_s=5)


@pytest.mark.shows("C-38")
def test_it_dies_with_the_process_that_runs_it(tmp_path: Path) -> None:
    text = (
        "import asyncio, sys; from tests.unit.kit.test_programs import STUBBORN, make_program;"
        "asyncio.run(make_program(STUBBORN, sys.argv[1]).run())"
    )
    worker = subprocess.Popen([sys.executable, "-c", text, str(tmp_path / "x")])
    try:
        pids = [int(pid) for pid in await_text(tmp_path / "pids").split()]
    finally:
        worker.kill()
        worker.wait()
    await_gone(*pids, within_s=5)


def test_nothing_stays_open(tmp_path: Path) -> None:
    async def run() -> None:
        before = len(list(Path("/proc/self/fd").iterdir()))
        for _ in range(3):
            await make_program("").run()
            await Program([str(tmp_path)], limit=timedelta(seconds=1), environment={}).run()
        assert len(list(Path("/proc/self/fd").iterdir())) <= before + 1

    asyncio.run(run())


class Notes(list[tuple[str, str, dict[str, Any]]]):
    """Stands for a run: keeps its notes."""

    def note(self, kind: str, message: str = "", /, **details: object) -> None:
        self.append((kind, message, details))


def test_how_it_has_ended_is_a_note_of_the_run_also_when_that_is_cancelled(tmp_path: Path) -> None:
    notes: Any = Notes()
    program = make_program("print('hello'); raise SystemExit(3)")
    told = asyncio.run(program.run_noted(notes, "letters.printer", "the printer", tray=2))
    assert told == "the printer ended with 3"
    ((kind, message, details),) = notes
    assert (kind, message) == ("letters.printer", told)
    assert details.pop("seconds") > 0
    assert details == {"tray": 2, "exit_code": 3, "output": "hello\n"}

    async def cancel() -> None:
        program = make_program(STUBBORN, str(tmp_path / "x"))
        task = asyncio.create_task(program.run_noted(notes, "letters.printer", "the printer"))
        await asyncio.to_thread(await_text, tmp_path / "pids")
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

    asyncio.run(cancel())
    assert notes[1][1] == "the printer was ended with its run"
    assert notes[1][2]["exit_code"] is None
    assert notes[1][2]["output"] == "begun\n"
