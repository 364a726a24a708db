"""`make` asks for servers where they are used, and nowhere else."""

import re
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
