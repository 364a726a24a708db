"""A process that dies in the middle of a write leaves all of it or nothing."""

from pathlib import Path

import pytest

from ulak.clock import ManualClock
from ulak.core.change import Committed
from ulak.store.sqlite import SqliteStore
from ulak.testing import faults
from ulak.testing.conformance import Desk
from ulak.testing.conformance.desk import snapshot


def opened(path: str) -> Desk:
    store = SqliteStore(path, clock=ManualClock())
    store.open()
    return Desk(store)


def submit_three(path: str) -> None:
    opened(path).submit_many(3, dedup_key=None)


def claim_all(path: str) -> None:
    desk = opened(path)
    desk.hire("w")
    desk.claim("w", 3)


def commit_all(path: str) -> None:
    desk = opened(path)
    rows = [row for row in desk.jobs() if row.leased_by == "w"]
    desk.store.commit([desk.emit(row, "key") for row in rows])


@pytest.mark.shows("E-17", "E-54")
@pytest.mark.parametrize(
    ("moment", "written"), [("before", False), ("inside", False), ("after", True)]
)
@pytest.mark.parametrize("kind", ["add", "claim", "commit"])
def test_a_killed_write_is_whole_or_absent(
    path: Path, kind: str, moment: str, written: bool
) -> None:
    works = {"add": submit_three, "claim": claim_all, "commit": commit_all}
    for step in ("add", "claim", "commit"):
        if step == kind:
            break
        assert faults.run(works[step], str(path)).code == 0
    desk = opened(str(path))
    ids = [row.id for row in desk.jobs()]
    before = snapshot(desk, ids)
    ended = faults.run(works[kind], str(path), kill_at=f"{kind}.{moment}")
    assert ended.killed, ended.errors

    rows = desk.jobs()
    if not written:
        assert snapshot(desk, ids) == before
    elif kind == "add":
        assert [desk.kinds(row.id) for row in rows] == [["submitted"]] * 3
        assert sum(count.jobs for count in desk.store.counts()) == 3
    elif kind == "claim":
        assert [row.leased_by for row in rows] == ["w"] * 3
    else:
        assert [row.state for row in rows] == ["second"] * 3
        assert [desk.kinds(row.id) for row in rows] == [["submitted", "moved"]] * 3
        assert [len(desk.store.scan_messages(row.id)) for row in rows] == [1] * 3
    assert desk.store.scan_orphans() == []
    desk.store.close()


@pytest.mark.shows("E-20")
def test_what_was_committed_before_the_death_is_answered_as_committed(path: Path) -> None:
    for work in (submit_three, claim_all):
        assert faults.run(work, str(path)).code == 0
    desk = opened(str(path))
    changes = [desk.end(row) for row in desk.jobs()]
    assert desk.store.find_commits(changes) == [False] * 3
    desk.store.commit(changes)
    again = opened(str(path))
    assert again.store.find_commits(changes) == [True] * 3
    assert all(isinstance(receipt, Committed) for receipt in again.store.commit(changes))
    assert [again.kinds(row.id) for row in again.jobs()] == [["submitted", "moved"]] * 3
    again.store.close()
    desk.store.close()
