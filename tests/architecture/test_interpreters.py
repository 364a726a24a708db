"""`make test-pythons` finds the Pythons of a machine, wherever they are."""

from pathlib import Path

import pytest

from scripts.pythons import interpreters
from scripts.pythons.interpreters import Python, find_pythons, list_missing


def write_python(path: Path, version: tuple[int, int, int], *, usable: bool = True) -> None:
    """Write a program that answers as an interpreter of a version does."""
    path.parent.mkdir(parents=True, exist_ok=True)
    answer = f'["{path}", {list(version)}, {str(usable).lower()}]'
    path.write_text(f"#!/bin/sh\necho '{answer}'\n")
    path.chmod(0o755)


@pytest.fixture
def environ(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> dict[str, str]:
    """A machine without any Python but the one that runs this, which is an old one here."""
    own = tmp_path / "own" / "python3"
    write_python(own, (3, 9, 1))
    monkeypatch.setattr(interpreters.sys, "_base_executable", str(own))
    return {"PATH": f"{tmp_path / 'bin'}", "HOME": str(tmp_path)}


def test_each_minor_version_is_found_once_with_its_newest_patch(
    environ: dict[str, str], tmp_path: Path
) -> None:
    write_python(tmp_path / "bin" / "python3", (3, 11, 2))
    write_python(tmp_path / "bin" / "python3.10", (3, 10, 9))
    newer = tmp_path / ".pyenv" / "versions" / "3.11.7" / "bin" / "python3"
    write_python(newer, (3, 11, 7))
    other = tmp_path / ".pyenv" / "versions" / "3.13.0" / "bin" / "python3"
    write_python(other, (3, 13, 0))
    found = find_pythons(environ)
    assert found == [Python(newer, (3, 11, 7)), Python(other, (3, 13, 0))]
    assert [python.minor for python in found] == ["3.11", "3.13"]
    assert list_missing(found) == ["3.12"]


def test_the_folder_of_pyenv_may_be_named(environ: dict[str, str], tmp_path: Path) -> None:
    path = tmp_path / "elsewhere" / "versions" / "3.12.1" / "bin" / "python3"
    write_python(path, (3, 12, 1))
    assert find_pythons(environ) == []
    assert find_pythons({**environ, "PYENV_ROOT": str(tmp_path / "elsewhere")}) == [
        Python(path, (3, 12, 1))
    ]


def test_what_answers_badly_is_no_python(environ: dict[str, str], tmp_path: Path) -> None:
    write_python(tmp_path / "bin" / "python3.12", (3, 12, 1), usable=False)
    shim = tmp_path / "bin" / "python3.13"  # a version that pyenv has and nobody has chosen
    shim.write_text("#!/bin/sh\necho 'command not found' >&2\nexit 127\n")
    shim.chmod(0o755)
    (tmp_path / "bin" / "python3-config").write_text("no program at all")
    assert find_pythons(environ) == []


def test_the_python_that_runs_this_is_found() -> None:
    (found,) = find_pythons({})
    assert found.version == interpreters.sys.version_info[:3]
