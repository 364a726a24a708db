"""Publishing on either database; a process is closed when its test has ended."""

from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack
from pathlib import Path

import pytest

from bench.publishing.blog import Blog, Stores
from tests.services.publishing.plays import APART, BESIDE
from tests.services.publishing.plays import VARIABLES as PLAYED
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


@pytest.fixture
def store() -> str:
    """In which kind of database a whole blog is."""
    return "sqlite"


@pytest.fixture
def way() -> str:
    """Whether the queue of a whole blog is beside the posts, or apart from them."""
    return BESIDE


@pytest.fixture
def variables() -> Mapping[str, str]:
    """The settings of a whole blog."""
    return PLAYED


@pytest.fixture
def blog(
    request: pytest.FixtureRequest,
    tmp_path: Path,
    store: str,
    way: str,
    variables: Mapping[str, str],
) -> Iterator[Blog]:
    """Every part of publishing as a process of its own, none of them started."""
    names = ("queue", "posts", "users") if way == APART else ("queue",)
    with ExitStack() as stack:
        if store == "sqlite":
            urls = [f"sqlite:///{tmp_path / name}.db" for name in names]
        else:
            databases = request.getfixturevalue("databases")
            urls = [stack.enter_context(databases.lend(make_publishing)) for _ in names]
        yield stack.enter_context(Blog(tmp_path, Stores(*urls), variables=variables))
