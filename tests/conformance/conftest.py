"""The fixtures of the conformance suite, over every store that ulak ships."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.conformance.places import place_of
from tests.conformance.stores import STORES
from ulak.store.protocol import Store

pytest.register_assert_rewrite("ulak.testing.conformance")

from ulak.testing.conformance import Reopen  # noqa: E402 - after the line that explains its asserts

# A pooler changes the connection: whose it is from one transaction to the next, what is prepared on
# it, what it hears. These classes depend on that, and `test_reference.py` sends every statement
# unprepared. The other tests show the same rules as on a direct connection: a tenth of them runs
# through the pooler.
OF_CONNECTIONS = frozenset(
    {
        "TestFeatures",
        "TestLoopTransactions",
        "TestOpenTransactions",
        "TestPartedTransactions",
        "TestProcesses",
        "TestRaces",
        "TestRecordRaces",
        "TestStageTransactions",
        "TestSteeredProcesses",
    }
)


def pytest_itemcollected(item: pytest.Item) -> None:
    if not isinstance(item, pytest.Function) or item.cls is None or not hasattr(item, "callspec"):
        return
    if item.callspec.params.get("reopen") == "redis" and item.cls.__name__ in NOT_YET_ON_REDIS:
        item.add_marker(pytest.mark.skip(reason="the store on Redis keeps no records yet"))
    if item.callspec.params.get("reopen") == "pooled" and item.cls.__name__ not in OF_CONNECTIONS:
        item.add_marker("sampled")


# What the store on Redis has not got yet: `docs/decisions/0024-jobs-on-redis.md`.
NOT_YET_ON_REDIS = frozenset({"TestAwkwardRecords", "TestRecordRaces", "TestRecords"})


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
