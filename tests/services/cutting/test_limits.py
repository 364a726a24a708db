"""How many requests a principal may make in a minute (C-11), by the rules (C-12)."""

from __future__ import annotations

from typing import Any

import pytest

from tests.services.cutting.desk import Desk
from ulak.services.cutting.routes import PREFIX

NOON_MS = 1_800_000_000_000 - 1_800_000_000_000 % 60_000


def guard_of(desk: Desk) -> Any:
    """Return the guard of the desk's process, with a clock that stands at noon."""
    assert desk.apps[PREFIX] is not None
    found = next(iter(desk.engine.kernel.shared.values()))
    found.clock_ms = lambda: NOON_MS
    return found


def count_passed(desk: Desk, method: str, path: str, most: int, **options: Any) -> int:
    """Ask until it is refused for the limit; return how often it was not."""
    for passed in range(most + 1):
        told = desk.send(method, path, **options)
        if told.status_code == 429:
            return passed
    raise AssertionError(f"{most + 1} requests were let through")


@pytest.mark.shows("C-11", "C-12")
def test_the_rules_limit_reads_and_writes_of_each_principal_apart(desk):
    guard = guard_of(desk)
    guard.refresh()
    limits = {group: n for group, n in guard.limits.items() if n}
    assert limits == {"cutting/reads": 600, "cutting/writes": 120}
    reset = {"method": "POST", "path": "/jobs/worker/reset", "most": 120}
    assert count_passed(desk, **reset) == 120
    told = desk.send("POST", "/jobs/worker/reset")
    assert told.headers["Retry-After"] == "60"
    assert told.json()["error"]["code"] == "E_RATE_LIMITED"
    assert told.json()["reason"] == "RATE_LIMITED"
    # What is counted for writes is not for reads, nor for anybody else.
    assert desk.send("GET", "/jobs").status_code == 200
    assert desk.send("POST", "/customers", {"name": "Ada", "phone": "0555 123 45 67"},
                     who="operator").status_code == 201  # fmt: skip


@pytest.mark.shows("C-11")
def test_the_limits_are_those_of_the_file_at_both_addresses_together(open_desk):
    desk = open_desk(rateLimits={"readsPerMinute": 4, "writesPerMinute": 2})
    guard = guard_of(desk)
    passed = [desk.send("GET", "/jobs", prefix=at).status_code for at in (PREFIX, "") * 3]
    assert passed == [200] * 4 + [429] * 2
    page = desk.send("GET", "/page/none", who="admin")
    assert page.status_code == 429, "the page is a read too"
    assert desk.refuse("POST", "/jobs", {}) == (422, "E_VALIDATION")
    assert desk.refuse("POST", "/customers", {}) == (422, "E_VALIDATION")
    assert desk.refuse("POST", "/customers", {}) == (429, "E_RATE_LIMITED")
    desk.change(rateLimits={"readsPerMinute": 6, "writesPerMinute": 0})
    guard.refresh()
    assert [desk.send("GET", "/jobs").status_code for _ in range(3)] == [200, 200, 429]
    assert desk.refuse("POST", "/customers", {}) == (422, "E_VALIDATION"), "0 is no limit"
    guard.clock_ms = lambda: NOON_MS + 60_000
    assert desk.send("GET", "/jobs").status_code == 200
