"""Publishing on either database; a process is closed when its test has ended."""

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.services.publishing.site import Site, make_publishing


@pytest.fixture(params=["sqlite", "postgres"])
def url(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[str]:
    if request.param == "sqlite":
        yield f"sqlite:///{tmp_path / 'publishing.db'}"
        return
    with request.getfixturevalue("databases").lend(make_publishing) as url:
        yield url


@pytest.fixture
def open_site(url: str) -> Iterator[Callable[..., Site]]:
    """Start another process on the same database; options are settings."""
    made: list[Site] = []

    def start(**settings: object) -> Site:
        made.append(Site(url, **settings))
        return made[-1]

    yield start
    for site in made:
        site.engine.close()


@pytest.fixture
def site(open_site: Callable[..., Site]) -> Site:
    return open_site()
