"""Which requirements of docs/spec/ do the tests show?

A test says so by the marker `shows` with their ids. Ids that no spec defines stop the run
before it starts; at the end stands, per id, whether it was shown or failed.
"""

import re
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path

import pytest

SPECS = Path(__file__).parents[1] / "docs" / "spec"
MOST_IDS = 3

KIND = r"(?:P-P|A-P|[CPAISRE]-)"
# A requirement is defined where its id opens a line, a list item or a table row ...
DEFINED = re.compile(rf"^\s*(?:[-*]\s+)?(?:\|\s*)?(?:\*\*)?({KIND}\d+)\b")
# ... except that publishing.md runs several on a line.
INLINE = re.compile(r"(?<=[.\]] )(S-\d+)(?= )")

PROPERTY = "shows"


def defined_ids() -> set[str]:
    """Every requirement id that docs/spec/ defines."""
    ids: set[str] = set()
    for spec in SPECS.glob("*.md"):
        for line in spec.read_text(encoding="utf-8").splitlines():
            if found := DEFINED.match(line):
                ids.add(found.group(1))
            ids.update(INLINE.findall(line))
    return ids


def ids_of(item: pytest.Item) -> list[str]:
    """The ids that the markers of a test, its class and its module name, each once."""
    return list(dict.fromkeys(name for mark in item.iter_markers("shows") for name in mark.args))


def mistakes(item: pytest.Item, known: set[str]) -> Iterator[str]:
    """What is wrong with the `shows` markers of a test, a sentence each."""
    ids = ids_of(item)
    if not ids and item.get_closest_marker("shows"):
        yield f"{item.nodeid}: shows() names no requirement"
    if len(ids) > MOST_IDS:
        yield f"{item.nodeid}: shows {len(ids)} requirements, {MOST_IDS} at most; split the test"
    for unknown in (name for name in ids if name not in known):
        yield f"{item.nodeid}: shows {unknown!r}, which no file of docs/spec/ defines"


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--shows", action="store_true", help="print every requirement that was shown or failed"
    )


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    known = defined_ids()
    wrong = [sentence for item in items for sentence in mistakes(item, known)]
    if wrong:
        raise pytest.UsageError(*wrong)
    for item in items:
        # Properties travel with the report, so this works under xdist as well.
        item.user_properties.extend((PROPERTY, name) for name in ids_of(item))


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    passed: dict[str, set[str]] = defaultdict(set)
    failed: dict[str, set[str]] = defaultdict(set)
    skipped: dict[str, set[str]] = defaultdict(set)
    places = {"passed": passed, "failed": failed, "error": failed, "xfailed": failed}
    for outcome, reports in terminalreporter.stats.items():
        place = places.get(outcome, skipped)
        for report in reports:
            for name, value in getattr(report, "user_properties", ()):
                # Setup and teardown of a test that passed are filed under "" by pytest.
                if name == PROPERTY and outcome:
                    place[value].add(report.nodeid)

    shown = sorted(passed.keys() - failed.keys(), key=_by_number)
    unproven = sorted(skipped.keys() - passed.keys() - failed.keys(), key=_by_number)
    if not (shown or failed or unproven):
        return
    terminalreporter.section("requirements")
    terminalreporter.line(
        f"{len(shown)} shown, {len(failed)} failed, {len(unproven)} only in skipped tests"
    )
    if terminalreporter.config.getoption("--shows"):
        for name in shown:
            terminalreporter.line(f"{name} shown by {_tests(passed[name])}")
        for name in unproven:
            terminalreporter.line(f"{name} not shown: skipped {_tests(skipped[name])}")
    for name in sorted(failed, key=_by_number):
        terminalreporter.line(f"{name} FAILED in {_tests(failed[name])}")


def _by_number(name: str) -> tuple[str, int]:
    kind, number = re.fullmatch(r"(.*?)(\d+)", name).groups()
    return kind, int(number)


def _tests(nodeids: set[str]) -> str:
    return ", ".join(sorted(nodeids))
