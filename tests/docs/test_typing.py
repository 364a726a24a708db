"""Types carry through: mypy and pyright know what a payload, result, decision or argument is.

`typing/right.py` asserts what must be understood; `typing/wrong.py` marks the lines that must
be refused. Each checker sees both in one run, since starting it is most of its cost.
"""

import json
import re
import subprocess
import sys
from pathlib import Path

import pytest

HERE = Path(__file__).parent / "typing"

Errors = dict[str, dict[int, str]]  # by file and line


@pytest.fixture(scope="module", params=["mypy", "pyright"])
def errors(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Errors:
    if request.param == "mypy":
        return errors_of_mypy(tmp_path_factory.mktemp("mypy"))
    return errors_of_pyright()


@pytest.mark.shows("E-15", "E-79")
def test_payloads_results_decisions_and_arguments_are_typed(errors: Errors) -> None:
    assert errors["right.py"] == {}


@pytest.mark.shows("E-15", "E-79")
def test_a_wrong_payload_result_or_argument_is_refused(errors: Errors) -> None:
    program = (HERE / "wrong.py").read_text(encoding="utf-8")
    wrong = {n for n, line in enumerate(program.splitlines(), 1) if "# wrong" in line}
    assert set(errors["wrong.py"]) == wrong, errors["wrong.py"]


def errors_of_mypy(cache: Path) -> Errors:
    """What mypy --strict says."""
    child = subprocess.run(
        [
            sys.executable, "-m", "mypy", "--strict", "--python-version", "3.11",
            "--config-file", "", "--cache-dir", str(cache), "--no-pretty", "--hide-error-context",
            str(HERE / "right.py"), str(HERE / "wrong.py"),
        ],
        capture_output=True,
        text=True,
    )  # fmt: skip
    assert child.stderr == ""
    found: Errors = {"right.py": {}, "wrong.py": {}}
    for line in child.stdout.splitlines():
        if match := re.match(r".*?(\w+\.py):(\d+): error: (.*)", line):
            name, number, message = match.groups()
            found[name].setdefault(int(number), message)
    return found


def errors_of_pyright() -> Errors:
    """What pyright says in its standard mode, which `typing/pyrightconfig.json` chooses.

    basedpyright is pyright with node in a wheel; left alone it would use a stricter mode of
    its own, and a user's pyright would not.
    """
    child = subprocess.run(
        [
            sys.executable, "-m", "basedpyright", "--project", str(HERE),
            "--pythonpath", sys.executable, "--outputjson",
        ],
        capture_output=True,
        text=True,
    )  # fmt: skip
    assert child.returncode in (0, 1), child.stdout + child.stderr  # more: it could not check
    report = json.loads(child.stdout)
    assert report["summary"]["filesAnalyzed"] == 2
    found: Errors = {"right.py": {}, "wrong.py": {}}
    for said in report["generalDiagnostics"]:
        if said["severity"] == "error":
            line = said["range"]["start"]["line"] + 1  # it counts from nought
            found[Path(said["file"]).name].setdefault(line, said["message"])
    return found
