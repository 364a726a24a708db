"""Tests marked `needs_user_namespaces` are skipped where the kernel gives none, and counted.

The kernel refuses them in a chroot and in many containers. The product's own look decides, once for
each process of the run; where it finds them, every marked test runs.
"""

import os

import pytest

from ulak.services.pdf.ground import NAMESPACES, UNPRIVILEGED, has_user_namespaces

MARKER = "needs_user_namespaces"
REASON = "this machine makes no user namespaces"


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    marked = [item for item in items if item.get_closest_marker(MARKER)]
    if not marked or has_user_namespaces(UNPRIVILEGED if os.geteuid() == 0 else None):
        return
    for item in marked:
        item.add_marker(pytest.mark.skip(reason=REASON))
        # Properties travel with the report, so this works under xdist as well.
        item.user_properties.append((MARKER, REASON))


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    skipped = [
        report
        for report in terminalreporter.stats.get("skipped", [])
        if (MARKER, REASON) in [tuple(each) for each in report.user_properties]
    ]
    if skipped:
        terminalreporter.section("user namespaces")
        many = "1 test" if len(skipped) == 1 else f"{len(skipped)} tests"
        terminalreporter.line(f"{many} skipped: {REASON} ({NAMESPACES})")
