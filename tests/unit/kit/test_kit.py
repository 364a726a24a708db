"""What services use besides the engine."""

import json
from datetime import UTC, datetime
from importlib.metadata import EntryPoint

import pytest
from pydantic import BaseModel

import ulak
from ulak import service
from ulak.clock import ManualClock
from ulak.engine.engine import Engine
from ulak.errors import BadInput
from ulak.kit import FaultPoint
from ulak.kit.bodies import describe_body
from ulak.kit.clock import now, to_instant
from ulak.kit.ids import from_text, new_id, new_secret_id
from ulak.store.memory import MemoryStore
from ulak.testing import faults

NOON = datetime(2026, 1, 31, 12, tzinfo=UTC)


@pytest.fixture
def engine() -> ulak.Engine:
    return Engine(MemoryStore(ManualClock(NOON)))


def test_the_time_of_a_service_is_that_of_the_store(engine: ulak.Engine) -> None:
    assert now(engine) == NOON
    begin = to_instant(NOON) // 1000
    assert int.from_bytes(from_text(new_id(engine))[:6], "big") == begin
    assert len({new_id(engine) for _ in range(100)}) == 100


def test_a_secret_id_tells_nothing_of_the_time() -> None:
    assert from_text(new_secret_id())[6] >> 4 == 4


@pytest.mark.shows("E-69")
def test_a_point_of_a_service_is_passed_by_its_own_name() -> None:
    stamped = FaultPoint("letters.stamped")
    with faults.traced() as passed:
        stamped()
    assert passed == ["letters.stamped"]


@pytest.mark.shows("E-69")
@pytest.mark.parametrize("name", ["stamped", "Letters.stamped", "commit.inside", "letters.", ""])
def test_a_point_of_a_service_is_not_taken_for_one_of_a_store(name: str) -> None:
    with pytest.raises(BadInput, match=r"as letters\.stamped"):
        FaultPoint(name)


class Address(BaseModel):
    """Where a letter goes."""

    street: str


class Letter(BaseModel):
    """A letter."""

    to: Address
    copies: list[Address] = []


@pytest.mark.shows("E-69")
def test_the_body_of_a_route_is_described_without_names_of_another_document() -> None:
    body = describe_body(Letter)["requestBody"]
    assert body["required"] is True
    described = body["content"]["application/json"]["schema"]
    assert "$" not in json.dumps(described)
    fields = described["properties"]
    assert fields["to"]["properties"].keys() == {"street"}
    assert fields["copies"]["items"] == fields["to"]


@pytest.mark.shows("E-69")
def test_two_packages_that_bring_one_service_are_both_named(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    found = [EntryPoint("letters", "json:loads", "ulak.services") for _ in range(2)]
    monkeypatch.setattr(service, "installed", lambda: {"letters": found})
    with pytest.raises(BadInput, match='both bring the service "letters"; uninstall one'):
        service.get_service("letters")
