"""`make test-pythons`: run the tests on every Python that is found, then check what is installed.

ARGS="--python 3.12" takes one version, ARGS="--step tests" one step; both may be repeated.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterable, Sequence
from pathlib import Path
from time import perf_counter
from typing import NamedTuple
from xml.etree import ElementTree

from scripts.pythons.extras import check_extras
from scripts.pythons.interpreters import ROOT, Python, find_pythons, list_missing, make_environment
from scripts.pythons.lock import check_lock

STEPS = ("tests", "extras", "lock")
TESTS = ("tests/unit", "tests/conformance", "tests/cli")
# The suite takes longest on PostgreSQL, whose driver and server are the same on every Python;
# what the units and the commands ask of it is run.
DESELECTED = "not (conformance and (postgres or pooled))"


def main() -> int:
    """Run the steps; return 1 when one of them has failed, else 0."""
    parser = argparse.ArgumentParser(prog="make test-pythons", description=__doc__)
    parser.add_argument("--python", action="append", metavar="3.X", help="only this version")
    parser.add_argument("--step", action="append", choices=STEPS, help="only this step")
    options = parser.parse_args()
    steps = options.step or STEPS
    found = find_pythons(os.environ)
    pythons = [python for python in found if not options.python or python.minor in options.python]
    if not pythons:
        names = ", ".join(python.minor for python in found)
        print(f"Python {', '.join(options.python)} was not found; there are {names}")
        return 1
    rows: list[Row] = []
    failed = False
    with tempfile.TemporaryDirectory(prefix="ulak-pythons-") as folder:
        scratch = Path(folder)
        if "tests" in steps:
            rows = [_test(python, scratch) for python in pythons]
            failed |= any(row.failed for row in rows)
        if "extras" in steps:
            newest = pythons[-1]
            title = f"the wheel and its extras, Python {newest.name}"
            failed |= _print_findings(title, check_extras(newest, scratch))
        if "lock" in steps:
            failed |= _print_findings("requirements.lock", check_lock(scratch))
    _print_rows(rows)
    for minor in list_missing(found):
        print(f"Python {minor} was not found: nothing was tested on it")
    return int(failed)


class Row(NamedTuple):
    """How the tests went on one Python."""

    python: str
    passed: int
    failed: int
    skipped: int
    seconds: float


def _test(python: Python, scratch: Path) -> Row:
    """Run the tests in the environment of a Python; one that cannot be made counts as failed."""
    print(f"Python {python.name}: {python.path}", flush=True)
    begun = perf_counter()
    try:
        inside = make_environment(python)
    except subprocess.CalledProcessError as error:
        print(f"its environment could not be made: {error}", flush=True)
        return Row(python.name, 0, 1, 0, perf_counter() - begun)
    report = scratch / f"{python.name}.xml"
    command = [inside, "-m", "pytest", "-q", "-n", "auto", "-p", "no:cacheprovider"]
    command += ["-k", DESELECTED, f"--junitxml={report}", *TESTS]
    begun = perf_counter()
    # A child of a test that looks for a program of this environment finds it first.
    path = f"{inside.parent}{os.pathsep}{os.environ.get('PATH', '')}"
    done = subprocess.run(command, cwd=ROOT, env={**os.environ, "PATH": path}, check=False)
    seconds = perf_counter() - begun
    passed, failed, skipped = _read_counts(report)
    # pytest can fail without a failed test: nothing was collected, a plugin has refused.
    return Row(python.name, passed, failed or int(done.returncode != 0), skipped, seconds)


def _read_counts(report: Path) -> tuple[int, int, int]:
    """Return how many tests of a report of pytest passed, failed and were skipped."""
    if not report.is_file():
        return 0, 0, 0
    suites = ElementTree.parse(report).getroot()  # noqa: S314 - written by our own pytest
    tests, failures, errors, skipped = (
        sum(int(suite.get(name, 0)) for suite in suites)
        for name in ("tests", "failures", "errors", "skipped")
    )
    return tests - failures - errors - skipped, failures + errors, skipped


def _print_findings(title: str, findings: Iterable[tuple[str, str]]) -> bool:
    """Print what was checked and what is wrong with it; return whether anything is."""
    print(f"\n{title}")
    failed = False
    try:
        for subject, wrong in findings:
            print(f"  {subject:24} {wrong or 'ok'}", flush=True)
            failed |= bool(wrong)
    except subprocess.CalledProcessError as error:
        print(f"  the rest was not checked: {error}", flush=True)
        failed = True
    return failed


def _print_rows(rows: Sequence[Row]) -> None:
    if rows:
        print(f"\n{'Python':10} {'passed':>8} {'failed':>8} {'skipped':>8} {'seconds':>8}")
    for row in rows:
        counts = f"{row.passed:8} {row.failed:8} {row.skipped:8} {row.seconds:8.0f}"
        print(f"{row.python:10} {counts}")


if __name__ == "__main__":
    sys.exit(main())
