"""What the stories share: each is told on memory and on a SQLite file."""

from pathlib import Path

import pytest


@pytest.fixture(params=["memory", "sqlite"])
def jobs_file(request: pytest.FixtureRequest, tmp_path: Path) -> Path | None:
    """The file of the store, None for the one in memory; for `Harness(path=...)`."""
    return None if request.param == "memory" else tmp_path / "jobs.db"
