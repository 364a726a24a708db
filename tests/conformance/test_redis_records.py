"""Redis keeps every promise about idempotency records that the other stores keep."""

from typing import Any

import pytest

from tests.conformance.stores import redis_records
from ulak.testing.conformance import (  # noqa: F401 - pytest collects the classes from here
    Reopen,
    TestAwkwardRecords,
    TestRecordRaces,
    TestRecords,
)

pytestmark = pytest.mark.shows("I-58")


@pytest.fixture
def reopen(redis_url: str) -> Reopen:
    factory: Any = redis_records
    return Reopen(factory, redis_url)
