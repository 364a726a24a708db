"""The fixtures of the conformance suite, over every store that ulak ships."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.conformance.places import place_of
from tests.conformance.stores import STORES
from ulak.store.protocol import Store

pytest.register_assert_rewrite("ulak.testing.conformance")

from ulak.testing.conformance import Reopen  # noqa: E402 - after the line that explains its asserts


@pytest.fixture(params=STORES)
def reopen(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Reopen]:
    with place_of(request.param, request, tmp_path) as where:
        yield Reopen(STORES[request.param], where)


@pytest.fixture
def store(reopen: Reopen) -> Iterator[Store]:
    opened = reopen()
    opened.open()
    yield opened
    opened.close()
