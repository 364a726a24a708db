"""A store in a fresh file, on a clock that stands still."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from ulak.clock import ManualClock
from ulak.store.sqlite import SqliteStore


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "jobs.db"


@pytest.fixture
def store(path: Path) -> Iterator[SqliteStore]:
    store = SqliteStore(path, clock=ManualClock())
    store.open()
    yield store
    store.close()
