"""Whose fault it was: the data's for ever, or the database's for now; nothing is written."""

import sqlite3
from pathlib import Path
from typing import Any

import pytest

from ulak.core.job import JobRow, Payload
from ulak.errors import StoreError, WriteRefused
from ulak.store.sqlite import SqliteStore, writer
from ulak.testing.conformance import Desk

WRONG: dict[str, Any] = {
    "an unpaired surrogate": {"submitter": "\ud800"},
    "an integer that is too large": {"created_at": 2**63},
    "a text for a number": {"version": "one"},
    "nothing where something must be": {"state": None},
    "a priority that there is not": {"priority": 7},
    "an id that is too short": {"id": b"short"},
}


@pytest.mark.shows("E-19")
@pytest.mark.parametrize("what", WRONG)
def test_data_that_cannot_be_stored_is_refused_and_nothing_is_written(
    store: SqliteStore, what: str
) -> None:
    desk = Desk(store)
    good, bad = desk.new(), desk.new()
    with pytest.raises(WriteRefused):
        store.add([good, bad._replace(row=bad.row._replace(**WRONG[what]))])
    assert desk.jobs() == []
    assert store.counts() == []
    assert desk.submit().state == "first", "the store goes on"


@pytest.mark.shows("E-19")
def test_a_value_that_is_too_big_is_refused(store: SqliteStore) -> None:
    store._writer.db.setlimit(sqlite3.SQLITE_LIMIT_LENGTH, 100_000)
    desk = Desk(store)
    job = desk.new()
    with pytest.raises(WriteRefused):
        store.add([job._replace(payload=Payload(bytes(200_000), 1))])
    assert desk.jobs() == []


@pytest.mark.shows("E-17")
def test_a_change_that_cannot_be_stored_takes_its_batch_with_it(store: SqliteStore) -> None:
    desk = Desk(store)
    first, second = desk.leased(2)
    before = desk.jobs()
    wrong = desk.end(second)
    events = (wrong.events[0]._replace(message="\ud800"),)
    with pytest.raises(WriteRefused):
        store.commit([desk.end(first), wrong._replace(events=events)])
    assert desk.jobs() == before
    assert desk.kinds(first.id) == ["submitted"]


def test_a_database_that_somebody_else_has_locked_is_not_the_fault_of_the_data(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(writer, "BUSY_TIMEOUT_S", 0.01)
    store = SqliteStore(path)
    store.open()
    other = sqlite3.connect(path, isolation_level=None)
    other.execute("BEGIN IMMEDIATE")
    with pytest.raises(StoreError, match="locked") as caught:
        store.register("w", lease_us=1, lanes=[], about="")
    assert not isinstance(caught.value, WriteRefused)
    other.execute("ROLLBACK")
    other.close()
    store.register("w", lease_us=1, lanes=[], about="")
    store.close()


def test_a_full_disk_is_not_the_fault_of_the_data(store: SqliteStore) -> None:
    db = store._writer.db
    pages = db.execute("PRAGMA page_count").fetchone()[0]
    db.execute(f"PRAGMA max_page_count = {pages}").fetchone()
    desk = Desk(store)
    with pytest.raises(StoreError, match="full") as caught:
        desk.submit_many(200)
    assert not isinstance(caught.value, WriteRefused)
    db.execute("PRAGMA max_page_count = 1000000").fetchone()
    assert desk.jobs() == []
    desk.submit_many(200)


def test_a_closed_store_says_so(path: Path) -> None:
    store = SqliteStore(path)
    with pytest.raises(StoreError, match=r"not open; call open\(\) first"):
        store.counts()
    store.open()
    store.close()
    with pytest.raises(StoreError, match="not open"):
        store.fold_counts()


def test_a_row_that_no_update_expected_is_written_the_slow_way(store: SqliteStore) -> None:
    """The counters stay true when a change does not say which state it leaves."""
    desk = Desk(store)
    row = desk.leased(1)[0]
    change = desk.end(row)._replace(moved_from=None)
    moved: JobRow = desk.write(change)[0]
    assert [(c.state, c.jobs) for c in store.counts()] == [(moved.state, 1)]


def test_a_file_that_is_no_database_is_not_touched(path: Path) -> None:
    path.write_bytes(b"dear diary, " * 1000)
    with pytest.raises(StoreError, match="not a database"):
        SqliteStore(path).open()
    assert path.read_bytes() == b"dear diary, " * 1000


def test_a_folder_that_is_not_there_is_named(tmp_path: Path) -> None:
    with pytest.raises(StoreError, match=r"nowhere/jobs\.db cannot be opened"):
        SqliteStore(tmp_path / "nowhere" / "jobs.db").open()
