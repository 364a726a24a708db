"""A run takes a seeded tenth of what is sampled, and all of it when told."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.sampling import is_drawn

PLUGIN = Path(__file__).parents[1] / "sampling.py"
NAMES = [f"tests/test_it.py::test_it[{n}]" for n in range(2000)]

TESTS = """
import pytest

@pytest.mark.sampled
@pytest.mark.parametrize("n", range(300))
def test_sampled(n): pass

def test_always(): pass

def test_sized(sized):
    print("size", sized(200, 60))
"""


def drawn(seed: int) -> set[str]:
    return {name for name in NAMES if is_drawn(name, seed)}


def test_a_seed_draws_the_same_tenth_again_and_another_seed_another() -> None:
    assert drawn(1) == drawn(1)
    assert 120 <= len(drawn(1)) <= 280
    assert len(drawn(1) & drawn(2)) < 60
    # Run after run, every test has its turn.
    some = NAMES[:100]
    assert all(any(is_drawn(name, seed) for seed in range(150)) for name in some)


@pytest.fixture
def project(tmp_path: Path) -> Path:
    shutil.copy(PLUGIN, tmp_path / "conftest.py")
    (tmp_path / "pytest.ini").write_text("[pytest]\nmarkers =\n    sampled\n    sized\n")
    (tmp_path / "test_it.py").write_text(TESTS)
    return tmp_path


def run(project: Path, *options: str) -> str:
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", "-s", *options],
        cwd=project,
        env={**os.environ, "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"},
        capture_output=True,
        text=True,
        check=True,
    )
    return done.stdout


def test_a_run_takes_a_part_and_prints_the_seed_that_repeats_it(project: Path) -> None:
    seed = 7
    expected = sum(is_drawn(f"test_it.py::test_sampled[{n}]", seed) for n in range(300))
    output = run(project, "--sample-seed", str(seed))
    assert "sampled tests: a tenth, --sample-seed 7" in output
    assert f"{expected + 2} passed, {300 - expected} deselected" in output
    assert "size 60" in output


def test_the_whole_runs_everything_that_a_run_leaves_out(project: Path) -> None:
    output = run(project, "--whole", "-m", "sampled or sized")
    assert "301 passed, 1 deselected" in output
    assert "size 200" in output


def test_a_test_that_is_named_runs_whatever_is_drawn(project: Path) -> None:
    left_out = next(n for n in range(300) if not is_drawn(f"test_it.py::test_sampled[{n}]", 7))
    output = run(project, "--sample-seed", "7", f"test_it.py::test_sampled[{left_out}]")
    assert "1 passed" in output
