"""`make` asks for servers where they are used, and nowhere else."""

import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
SCRIPT = "scripts/servers.sh"


def commands_of(target: str) -> str:
    """What `make` would run for a target."""
    done = subprocess.run(
        ["/usr/bin/make", "--dry-run", target], cwd=ROOT, capture_output=True, text=True, check=True
    )
    return done.stdout


@pytest.mark.parametrize("target", ["test", "soak", "bench", "figures"])
def test_what_starts_servers_makes_sure_of_them_first(target: str) -> None:
    commands = commands_of(target)
    assert SCRIPT in commands
    assert commands.index(SCRIPT) < commands.index("python -m ")


@pytest.mark.parametrize("target", ["run", "setup", "check", "fmt", "lock"])
def test_what_starts_no_server_installs_none(target: str) -> None:
    assert SCRIPT not in commands_of(target)


@pytest.mark.parametrize(
    ("target", "is_needed"), [("test", True), ("run", False), ("check", False)]
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
