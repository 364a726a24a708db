"""The `shows` marker refuses what it cannot vouch for and reports what it saw."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

PLUGIN = Path(__file__).parents[1] / "shows.py"


@pytest.fixture
def project(tmp_path: Path) -> Path:
    """A project of its own, with three requirements and the plugin under test."""
    (tmp_path / "docs" / "spec").mkdir(parents=True)
    (tmp_path / "docs" / "spec" / "engine.md").write_text(
        "- E-1 One.\n- E-2 Two, unlike E-9.\n| E-3 | Three |\n- **C-4 [O]** Four.\n"
    )
    (tmp_path / "tests").mkdir()
    shutil.copy(PLUGIN, tmp_path / "tests" / "conftest.py")
    (tmp_path / "pytest.ini").write_text("[pytest]\nmarkers =\n    shows(*ids)\n")
    return tmp_path


def run(project: Path, tests: str, *options: str) -> subprocess.CompletedProcess[str]:
    """Run pytest on the tests, where `@shows` stands for the marker."""
    # The marker has a short name here, so that a search for it finds real claims only.
    header = "import pytest\nshows = pytest.mark.shows\n"
    (project / "tests" / "test_it.py").write_text(header + tests)
    return subprocess.run(
        [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", "tests", *options],
        cwd=project,
        env={**os.environ, "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"},
        capture_output=True,
        text=True,
        check=False,
    )


@pytest.mark.parametrize(
    ("ids", "complaint"),
    [
        ('"E-9"', "shows 'E-9', which no file of docs/spec/ defines"),
        ('"E-1", "E-2", "E-3", "C-4"', "shows 4 requirements, 3 at most"),
        ("", "shows() names no requirement"),
    ],
)
def test_a_marker_that_cannot_be_vouched_for_stops_the_run(
    project: Path, ids: str, complaint: str
) -> None:
    done = run(project, f"@shows({ids})\ndef test_a(): pass\n")
    assert done.returncode == pytest.ExitCode.USAGE_ERROR
    assert complaint in done.stdout + done.stderr


MIXED = """
@shows("E-1", "E-2")
def test_good(): pass

@shows("E-2")
def test_bad(): assert False

@shows("E-3")
def test_absent(): pytest.skip("not here")

@shows("C-4")
class TestClass:
    def test_inherits(self): pass
"""


@pytest.mark.parametrize("options", [(), ("-p", "xdist", "-n", "2")], ids=["one process", "xdist"])
def test_an_id_is_shown_only_when_no_test_of_it_failed(
    project: Path, options: tuple[str, ...]
) -> None:
    printed = run(project, MIXED, *options).stdout
    assert "2 shown, 1 failed, 1 only in skipped tests" in printed
    assert "E-2 FAILED in tests/test_it.py::test_bad" in printed
    assert "E-1 shown" not in printed


def test_the_long_form_names_every_id_with_its_tests(project: Path) -> None:
    printed = run(project, MIXED, "--shows").stdout
    assert "E-1 shown by tests/test_it.py::test_good" in printed
    assert "C-4 shown by tests/test_it.py::TestClass::test_inherits" in printed
    assert "E-3 not shown: skipped tests/test_it.py::test_absent" in printed
