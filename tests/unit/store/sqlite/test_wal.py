"""The WAL stays short, and its length is known."""

import sqlite3
from collections.abc import Iterator
from pathlib import Path

import pytest

from ulak.store.sqlite import SqliteStore, migrations
from ulak.store.sqlite.store import has_wal_reset_bug

LIMIT = 256 * 1024


@pytest.fixture
def small(path: Path) -> Iterator[SqliteStore]:
    """A store that brings its WAL home early."""
    store = SqliteStore(path, checkpoint_bytes=LIMIT)
    store.open()
    yield store
    store.close()


def write(store: SqliteStore, times: int) -> int:
    """Write some pages each time; answer the longest that the WAL was."""
    longest = 0
    for n in range(times):
        # Another text each time: SQLite writes no page that stays the same.
        store.register(f"w{n % 10}", lease_us=1, lanes=["any"], about=f"{n:05}" * 4000)
        longest = max(longest, store.wal_size())
    return longest


@pytest.mark.shows("E-54")
def test_checkpoints_keep_the_wal_bounded(small: SqliteStore) -> None:
    longest = write(small, 200)
    assert LIMIT / 2 < longest < LIMIT * 2


@pytest.mark.shows("E-54")
def test_automatic_checkpoints_are_off(small: SqliteStore) -> None:
    assert small._writer.db.execute("PRAGMA wal_autocheckpoint").fetchone() == (0,)


def test_the_wal_grows_while_a_reader_stands_in_it_and_shrinks_afterwards(
    small: SqliteStore, path: Path
) -> None:
    write(small, 5)
    reader = sqlite3.connect(path, isolation_level=None)
    reader.execute("BEGIN")
    reader.execute("SELECT count(*) FROM workers").fetchone()
    assert write(small, 60) > LIMIT * 2
    reader.execute("COMMIT")
    reader.close()

    write(small, 20)
    assert small.wal_size() < LIMIT * 2


def test_the_size_counts_what_is_in_use(small: SqliteStore, path: Path) -> None:
    write(small, 3)
    db = sqlite3.connect(path)
    _, frames, _ = db.execute("PRAGMA wal_checkpoint(PASSIVE)").fetchone()
    page = db.execute("PRAGMA page_size").fetchone()[0]
    db.close()
    assert small.wal_size() == frames * (page + 24)


def test_closing_brings_the_wal_home(path: Path) -> None:
    store = SqliteStore(path)
    store.open()
    write(store, 3)
    store.close()
    store.close()
    left = path.with_name(path.name + "-wal")
    assert not left.exists() or left.stat().st_size == 0


@pytest.mark.shows("E-54")
@pytest.mark.parametrize(
    ("version", "bad"),
    [
        ((3, 6, 23), False),
        ((3, 7, 0), True),
        ((3, 40, 1), True),
        ((3, 44, 6), False),
        ((3, 50, 6), True),
        ((3, 50, 7), False),
        ((3, 51, 2), True),
        ((3, 51, 3), False),
    ],
)
def test_the_version_tells_whether_sqlite_may_lose_pages(
    version: tuple[int, int, int], bad: bool
) -> None:
    assert has_wal_reset_bug(version) is bad


@pytest.mark.shows("E-54")
def test_what_doctor_shows_names_the_version_and_the_wal(store: SqliteStore) -> None:
    about = store.about()
    assert about["sqlite"] == sqlite3.sqlite_version
    assert about["wal_reset_bug"] is has_wal_reset_bug(sqlite3.sqlite_version_info)
    assert about["synchronous"] == "FULL"
    assert about["schema"] == migrations.NEWEST
    assert about["wal_bytes"] == store.wal_size() > 0
    assert store._writer.db.execute("PRAGMA synchronous").fetchone() == (2,)
