"""`make` asks for servers and a browser where they are used, and says what it does."""

import os
import pty
import re
import shutil
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
SCRIPT = "scripts/servers.sh"


def run_make(*arguments: str) -> str:
    """Run `make` and return what it prints."""
    done = subprocess.run(
        ["/usr/bin/make", *arguments], cwd=ROOT, capture_output=True, text=True, check=True
    )
    return done.stdout


def commands_of(target: str) -> str:
    """What `make` would run for a target."""
    return run_make("--dry-run", target)


@pytest.mark.parametrize("target", ["test", "test-pythons", "soak", "bench", "figures"])
def test_what_starts_servers_makes_sure_of_them_first(target: str) -> None:
    commands = commands_of(target)
    assert SCRIPT in commands
    assert commands.index(SCRIPT) < commands.index("python -m ")


def test_a_soak_of_hours_is_the_long_one_alone() -> None:
    assert "bench.soak.hours" not in commands_of("soak")
    commands = run_make("--dry-run", "soak", "HOURS=2", "STORE=sqlite")
    assert "-m bench.soak.hours --hours 2 --store sqlite" in commands
    assert "pytest" not in commands


@pytest.mark.parametrize("target", ["run", "setup", "check", "fmt", "lock"])
def test_what_starts_no_server_installs_none(target: str) -> None:
    assert SCRIPT not in commands_of(target)


@pytest.mark.parametrize(
    ("target", "is_needed"),
    [("test", True), ("test-pythons", True), ("run", False), ("check", False)],
)
def test_the_libraries_of_the_second_engine_are_made_sure_of_where_they_are_used(
    target: str, is_needed: bool
) -> None:
    assert ("scripts/weasyprint.sh" in commands_of(target)) is is_needed


def test_a_soak_asks_prometheus_anew_and_makes_sure_of_it_first() -> None:
    commands = commands_of("soak")
    first = commands.index("scripts/prometheus.sh")
    assert first < commands.index("-m tests.tools.prometheus_cases")
    assert "prometheus" not in commands_of("test")


def test_nothing_is_said_when_the_libraries_of_the_second_engine_are_there() -> None:
    done = subprocess.run(
        ["/bin/bash", "scripts/weasyprint.sh"], cwd=ROOT, capture_output=True, text=True, check=True
    )
    assert (done.stdout, done.stderr) == ("", "")


def test_nothing_is_said_and_nothing_changed_when_the_servers_are_there() -> None:
    done = subprocess.run(
        ["/bin/bash", SCRIPT], cwd=ROOT, capture_output=True, text=True, check=True
    )
    assert (done.stdout, done.stderr) == ("", "")


def test_help_lists_every_target_that_says_what_it_does() -> None:
    described = re.findall(r"^([^\s:]+):.*## ", (ROOT / "Makefile").read_text(), re.M)
    assert "test-pythons" in described
    listed = [line.split()[1] for line in run_make("help").splitlines()]
    assert listed == described


# --- a machine on which nothing can be installed ----------------------------------


def script(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(f"#!/bin/bash\n{text}\n")
    path.chmod(0o755)


@pytest.fixture
def machine(tmp_path: Path) -> Path:
    """A copy of the project that has a .venv, and scripts of which the browser's fails."""
    shutil.copy(ROOT / "Makefile", tmp_path)
    for name in ("setup", "servers", "weasyprint"):
        script(tmp_path / "scripts" / f"{name}.sh", "exit 0")
    script(tmp_path / "scripts" / "browser.sh", "echo no browser can be installed >&2; exit 1")
    for name in ("python", "ruff", "codespell", "mypy", "lint-imports", "ulak"):
        script(tmp_path / ".venv" / "bin" / name, f'echo ran {name} "$@"')
    for name in ("requirements.lock", "pyproject.toml"):
        (tmp_path / name).touch()
    return tmp_path


def make(folder: Path, target: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        ["/usr/bin/make", target], cwd=folder, capture_output=True, text=True, timeout=60
    )


def test_run_starts_without_a_browser_and_says_what_that_costs(machine: Path) -> None:
    done = make(machine, "run")
    assert done.returncode == 0
    assert "no browser can be installed" in done.stderr
    assert "run: starting without Chromium: PDF jobs fail until 'make browser'" in done.stdout
    assert "ran ulak up examples.demo:engine --service pdf" in done.stdout


def test_run_says_nothing_of_the_kind_where_the_browser_is_there(machine: Path) -> None:
    script(machine / "scripts" / "browser.sh", "exit 0")
    done = make(machine, "run")
    assert "without Chromium" not in done.stdout
    assert "ran ulak up" in done.stdout


def test_a_signal_to_make_run_reaches_ulak(machine: Path) -> None:
    script(
        machine / ".venv" / "bin" / "ulak",
        "trap 'echo drained; exit 0' TERM; echo started; while true; do sleep 0.05; done",
    )
    with subprocess.Popen(
        ["/usr/bin/make", "run"], cwd=machine, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL,
        text=True,
    ) as running:  # fmt: skip
        assert running.stdout is not None
        while "started" not in next(running.stdout):
            pass
        running.terminate()
        # Nobody but ulak holds the pipe open: it ends when ulak has ended.
        assert "drained" in running.stdout.read()


@pytest.mark.parametrize("target", ["test", "browser", "bench"])
def test_what_needs_the_browser_fails_where_it_cannot_be_had(machine: Path, target: str) -> None:
    done = make(machine, target)
    assert done.returncode != 0
    assert "ran python" not in done.stdout


# --- setup ------------------------------------------------------------------------

LOCK = """\
first==1.0 \\
    --hash=sha256:00
second==2.0 ; sys_platform == "win32" \\
    --hash=sha256:00
third-one==3.0 \\
    --hash=sha256:00
fourth==4.0 \\
    --hash=sha256:00
"""
PIP = """\
case "$*" in
    *--version*) exit 1 ;;
    *--require-hashes*)
        echo 'Ignoring second: markers do not match your environment'
        echo 'Collecting first==1.0 (from -r requirements.lock (line 1))'
        echo '  Downloading first-1.0-py3-none-any.whl (1 kB)'
        echo 'Requirement already satisfied: third-one==3.0 in ./site-packages'
        echo 'Processing /wheels/fourth-4.0-py3-none-any.whl (from -r requirements.lock (line 7))'
        echo 'Installing collected packages: first'
        echo 'Successfully installed first-1.0'
        exit ${PIP_FAILS:-0} ;;
esac"""
"""How pip speaks, and as much of Python as the script asks for."""


@pytest.fixture
def clone(tmp_path: Path) -> Path:
    """What `make setup` works on, with a Python whose pip only speaks."""
    (tmp_path / "scripts").mkdir()
    shutil.copy(ROOT / "scripts" / "setup.sh", tmp_path / "scripts")
    (tmp_path / "requirements.lock").write_text(LOCK)
    script(tmp_path / "pip", PIP)
    script(
        tmp_path / "python",
        'if [ "$2" = venv ]; then mkdir -p .venv/bin; cp pip .venv/bin/python; fi',
    )
    return tmp_path


def setup(clone: Path, **more: str) -> dict[str, object]:
    return {
        "args": ["/bin/bash", "scripts/setup.sh"], "cwd": clone,
        "env": {**os.environ, "PYTHON": str(clone / "python"), **more},
    }  # fmt: skip


def test_setup_says_each_step_on_a_line_and_nothing_else_of_pip(clone: Path) -> None:
    done = subprocess.run(**setup(clone), capture_output=True, text=True, check=True)
    assert done.stdout.splitlines() == [
        "setup: downloading 4 packages into .venv; with the next step about two minutes",
        "setup: installing 3 packages",
        "setup: done; '. .venv/bin/activate' puts ulak on your path",
    ]


def test_setup_counts_packages_in_place_at_a_terminal(clone: Path) -> None:
    ours, theirs = pty.openpty()
    with subprocess.Popen(**setup(clone), stdout=theirs) as process:
        os.close(theirs)
        shown = b""
        try:
            while chunk := os.read(ours, 4096):
                shown += chunk
        except OSError:  # the other end is closed
            pass
    os.close(ours)
    assert process.returncode == 0
    assert b"\rsetup: 1 of 3  first " in shown
    assert b"\rsetup: 2 of 3  third-one " in shown
    assert b"\rsetup: 3 of 3  fourth " in shown
    assert b"Downloading" not in shown


def test_a_pip_that_fails_fails_the_setup(clone: Path) -> None:
    done = subprocess.run(**setup(clone, PIP_FAILS="3"), capture_output=True, text=True)
    assert done.returncode == 3
    assert "done" not in done.stdout
