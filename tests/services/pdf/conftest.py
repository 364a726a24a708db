"""PDF rendering on either database, without a browser unless a test opens one."""

from collections.abc import Callable, Iterator
from datetime import timedelta
from pathlib import Path

import pytest
from hypothesis import is_hypothesis_test

from tests.services.pdf.desk import Desk, make_tables
from ulak.services.pdf.browser import warm
from ulak.services.pdf.weasy import pool as weasy_pool

AMPLE = timedelta(seconds=240)


def pytest_itemcollected(item: pytest.Item) -> None:
    """Show a property with all its examples on SQLite, and repeat it on PostgreSQL now and then."""
    if not isinstance(item, pytest.Function) or not hasattr(item, "callspec"):
        return
    if is_hypothesis_test(item.obj) and "postgres" in item.callspec.params.values():
        item.add_marker("sampled")


@pytest.fixture(autouse=True)
def ample_launch(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let browsers take their time to start: a machine that is busy may need it."""
    for module in (warm, weasy_pool):
        monkeypatch.setattr(module, "LAUNCH_TIMEOUT", AMPLE)


@pytest.fixture
def sqlite_url(tmp_path: Path) -> str:
    # Whether a power cut loses the last commits is not what these tests ask.
    return f"sqlite:///{tmp_path / 'pdf.db'}?synchronous=NORMAL"


@pytest.fixture(params=["sqlite", "postgres"])
def pdf_url(request: pytest.FixtureRequest, sqlite_url: str) -> Iterator[str]:
    if request.param == "sqlite":
        yield sqlite_url
        return
    with request.getfixturevalue("databases").lend(make_tables) as url:
        yield url


@pytest.fixture
def open_desk(pdf_url: str, tmp_path: Path) -> Iterator[Callable[..., Desk]]:
    """Start another process on the same store and the same artifacts."""
    made: list[Desk] = []

    def start(**options: object) -> Desk:
        made.append(Desk(pdf_url, tmp_path / "artifacts", **options))
        return made[-1]

    yield start
    for desk in made:
        desk.close()


@pytest.fixture
def desk(open_desk: Callable[..., Desk]) -> Desk:
    return open_desk()


@pytest.fixture
def sqlite_desk(sqlite_url: str, tmp_path: Path) -> Iterator[Desk]:
    """One on SQLite, for what does not depend on the database."""
    made = Desk(sqlite_url, tmp_path / "artifacts")
    yield made
    made.close()
