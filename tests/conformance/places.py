"""Where a store under test keeps what it stores: a file, or a database of its own."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.conformance.stores import make_schema


@contextmanager
def place_of(name: str, request: pytest.FixtureRequest, folder: Path) -> Iterator[str]:
    """Return what the factory of the store of this name is called with."""
    if name == "redis":
        yield request.getfixturevalue("redis_url")
        return
    if name not in ("postgres", "pooled"):
        yield str(folder / "jobs.db")
        return
    with request.getfixturevalue("databases").lend(make_schema) as url:
        if name == "pooled":
            url = request.getfixturevalue("pooler_server").url(url.rpartition("/")[2])
        yield url
