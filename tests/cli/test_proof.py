"""`ulak proof verify` and `ulak contracts tables`, by the entry points that ulak declares."""

import tomllib
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.cli.installed import Site
from tests.services.contracts.house import House
from tests.services.contracts.test_proofs import tamper
from ulak.service import installed

PYPROJECT = Path(__file__).parents[2] / "pyproject.toml"


@pytest.fixture
def contracts(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    """The service, also where ulak was installed before it had all of it."""
    declared = tomllib.loads(PYPROJECT.read_text())["project"]["entry-points"]
    lines = [
        f"[{group}]\n"
        + "".join(
            f"{name} = {value}\n" for name, value in points.items() if name not in installed(group)
        )
        for group, points in declared.items()
    ]
    site.install("ulak-as-declared", "".join(lines))
    monkeypatch.setenv("ULAK_SERVICE", "contracts")
    monkeypatch.setenv("ULAK_STORE", "sqlite:///contracts.db")


@pytest.fixture
def house(contracts: None, tmp_path: Path) -> Iterator[House]:
    made = House(f"sqlite:///{tmp_path / 'contracts.db'}")
    made.move("a", from_="pending", to="paid")
    made.move("b", tenant_id="other", from_="pending", to="paid")
    made.move("c", to="cancelled")
    yield made
    made.close()


@pytest.mark.shows("I-45")
def test_verify_says_that_every_chain_is_whole(house: House, run) -> None:
    answer = run("proof", "verify")
    assert (answer.code, answer.out) == (0, "3 proofs of 2 tenants: every chain is whole\n")
    document = run("proof", "verify", "--json").document
    assert document == {"tenants": 2, "proofs": 3, "broken": []}


@pytest.mark.shows("I-45")
def test_verify_reports_the_first_broken_link_and_fails(house: House, run) -> None:
    tamper(house, "UPDATE {schema}.hos_proofs SET actor_id = 'eve' WHERE proof_id IN (1, 3)")
    answer = run("proof", "verify")
    assert answer.code == 1
    assert "its content is not what was hashed" in answer.out
    told = run("proof", "verify", "--json")
    assert told.code == 1
    (broken,) = told.document["broken"]
    assert (broken["tenant_id"], broken["proof_id"]) == ("acme", 1)


def test_nothing_to_verify_is_no_fault(contracts: None, run) -> None:
    assert run("proof", "verify").out == "0 proofs of 0 tenants: every chain is whole\n"


def test_the_tables_in_force_are_listed(contracts: None, run, monkeypatch) -> None:
    answer = run("contracts", "tables")
    assert answer.code == 0
    assert "2025-12-28 (active)" in answer.out
    assert "checked_in, cancelled" in answer.out
    document = run("contracts", "tables", "--json").document
    assert document["active"] == "2025-12-28"
    assert document["versions"]["2025-12-28"]["payment"]["terminal"] == [
        "cancelled", "failed", "paid",
    ]  # fmt: skip
    monkeypatch.setenv("HOS_CONTRACT_VERSION", "1999")
    refused = run("contracts", "tables")
    assert (refused.code, refused.out) == (1, "")
    assert "known are 2025-12-28" in refused.err
    assert "known are 2025-12-28" in run("up", "--service", "contracts").err


def test_the_service_is_refused_on_a_store_that_forgets(contracts: None, run, monkeypatch) -> None:
    monkeypatch.setenv("ULAK_STORE", "memory://")
    answer = run("up")
    assert answer.code == 1
    assert "contracts cannot be kept in the memory store" in answer.err
