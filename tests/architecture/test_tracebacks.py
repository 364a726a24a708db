"""A test that fails is told of, even when Python fails to parse the source of its traceback."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

PLUGIN = Path(__file__).parents[1] / "tracebacks.py"

TESTS = """
import ast
import gc

import pytest

@pytest.fixture(autouse=True)
def parsed_while_garbage_is_collected(monkeypatch):
    parse = ast.parse

    def fail_if_garbage_is_collected(*args, **options):
        if gc.isenabled():
            raise SystemError("AST constructor recursion depth mismatch (before=74, after=63)")
        return parse(*args, **options)

    monkeypatch.setattr(ast, "parse", fail_if_garbage_is_collected)

def test_bad():
    assert "what was found" == "what was wanted"

@pytest.mark.xfail(strict=True)
def test_known_to_fail():
    assert False

def test_good():
    assert gc.isenabled()
"""


def test_a_traceback_that_cannot_be_parsed_at_once_does_not_end_the_run(tmp_path: Path) -> None:
    shutil.copy(PLUGIN, tmp_path / "conftest.py")
    (tmp_path / "test_it.py").write_text(TESTS)
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", "--rootdir", tmp_path, tmp_path],
        env={**os.environ, "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == pytest.ExitCode.TESTS_FAILED, done.stdout
    assert "1 failed, 1 passed, 1 xfailed" in done.stdout
    assert "AssertionError: assert 'what was found' == 'what was wanted'" in done.stdout
