"""A test that needs user namespaces is skipped where there are none, and nowhere else."""

import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

PLUGIN = Path(__file__).parents[1] / "user_namespaces.py"

TESTS = """
import pytest

@pytest.mark.needs_user_namespaces
@pytest.mark.parametrize("number", [1, 2])
def test_with_namespaces(number): pass

def test_without(): pass

@pytest.mark.skip(reason="another")
def test_of_another_reason(): pass
"""


@pytest.fixture
def project() -> Iterator[Path]:
    """A project of its own, with the plugin under test."""
    # Not pytest's own directory: the user that the look drops to may not enter that one.
    directory = Path(tempfile.mkdtemp(prefix="ulak-test-"))
    directory.chmod(0o755)
    shutil.copy(PLUGIN, directory / "conftest.py")
    (directory / "pytest.ini").write_text("[pytest]\nmarkers =\n    needs_user_namespaces\n")
    (directory / "test_it.py").write_text(TESTS)
    yield directory
    shutil.rmtree(directory)


def run(project: Path, *options: str, kernel_says: int) -> str:
    """Run its tests where `unshare` ends with this status."""
    (project / "bin").mkdir()
    program = project / "bin" / "unshare"
    program.write_text(f"#!/bin/sh\nexit {kernel_says}\n")
    program.chmod(0o755)
    return subprocess.run(
        [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", *options],
        cwd=project,
        env={
            **os.environ,
            "PATH": f"{program.parent}:{os.environ['PATH']}",
            "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1",
        },
        capture_output=True,
        text=True,
        check=False,
    ).stdout


@pytest.mark.parametrize("options", [(), ("-p", "xdist", "-n", "2")], ids=["one process", "xdist"])
def test_without_user_namespaces_marked_tests_are_skipped_and_counted(
    project: Path, options: tuple[str, ...]
) -> None:
    printed = run(project, *options, kernel_says=1)
    assert "2 tests skipped: this machine makes no user namespaces (allow user names" in printed
    assert "1 passed, 3 skipped" in printed


def test_where_user_namespaces_can_be_had_every_marked_test_runs(project: Path) -> None:
    printed = run(project, kernel_says=0)
    assert "3 passed, 1 skipped" in printed
    assert "no user namespaces" not in printed
