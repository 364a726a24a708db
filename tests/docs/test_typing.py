"""Types carry through: what a payload, a result, a decision or an argument is, mypy knows.

`typing/right.py` asserts what must be understood; `typing/wrong.py` marks the lines that must
be refused. Both are checked in one run, since starting mypy is most of its cost.
"""

import re
import subprocess
import sys
from pathlib import Path

import pytest

HERE = Path(__file__).parent / "typing"


@pytest.fixture(scope="module")
def errors(tmp_path_factory: pytest.TempPathFactory) -> dict[str, dict[int, str]]:
    """What mypy --strict says, by file and line."""
    cache = tmp_path_factory.mktemp("mypy")
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
    found: dict[str, dict[int, str]] = {"right.py": {}, "wrong.py": {}}
    for line in child.stdout.splitlines():
        if match := re.match(r".*?(\w+\.py):(\d+): error: (.*)", line):
            name, number, message = match.groups()
            found[name].setdefault(int(number), message)
    return found


@pytest.mark.shows("E-15")
def test_payloads_results_decisions_and_arguments_are_typed(
    errors: dict[str, dict[int, str]],
) -> None:
    assert errors["right.py"] == {}


@pytest.mark.shows("E-15")
def test_a_wrong_payload_result_or_argument_is_refused(
    errors: dict[str, dict[int, str]],
) -> None:
    program = (HERE / "wrong.py").read_text(encoding="utf-8")
    wrong = {n for n, line in enumerate(program.splitlines(), 1) if "# wrong" in line}
    assert set(errors["wrong.py"]) == wrong, errors["wrong.py"]
