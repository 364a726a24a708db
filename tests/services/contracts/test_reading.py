"""Questions, subjects, versions, and how the process is."""

from typing import Any

import pytest

import ulak.web
from tests.services.contracts.house import TENANT, House
from tests.web.people import Known
from ulak.errors import StoreError
from ulak.service import attach
from ulak.services.contracts import service
from ulak.settings import Settings

PATH = "/v1/contract/can-transition"


def told(house: House, **members: Any) -> tuple[bool, str | None]:
    answer = house.post(PATH, {name.rstrip("_"): value for name, value in members.items()})
    assert answer.status_code == 200, answer.text
    assert answer.json()["contract_version"] == "2025-12-28"
    assert answer.json().keys() == {"allowed", "reason", "contract_version"}
    return answer.json()["allowed"], answer.json()["reason"]


@pytest.mark.shows("I-41")
def test_a_question_is_judged_by_the_table_and_writes_nothing(house: House) -> None:
    assert told(house, subject_type="Order", from_="Pending", to="paid") == (True, None)
    assert told(house, subject_type="order", from_="paid", to="paid") == (True, None)
    assert told(house, subject_type="order", from_="paid", to="pending") == (
        False, "invalid_transition",
    )  # fmt: skip
    assert told(house, subject_type="order", from_="cancelled", to="paid") == (
        False, "terminal_state",
    )  # fmt: skip
    assert told(house, subject_type="unicorn", from_="a", to="b") == (
        False, "unknown_subject_type",
    )  # fmt: skip
    assert house.sql("SELECT count(*) FROM {schema}.idempotency_records") == [(0,)]
    assert house.post(PATH, {"subject_type": "order", "to": "paid"}).status_code == 400


@pytest.mark.shows("I-41")
def test_a_question_about_a_subject_is_judged_by_where_it_stands(house: House) -> None:
    about: dict[str, Any] = {"tenant_id": TENANT, "subject_ref": {"type": "order", "id": 1}}
    assert told(house, **about, to="paid") == (False, "subject_not_found")
    assert told(house, **about, from_="pending", to="paid") == (True, None)
    assert house.subject() is None
    house.move("a", from_="pending", to="paid")
    assert told(house, **about, to="cancelled") == (True, None)
    assert told(house, **about, from_="pending", to="cancelled") == (False, "stale_status")
    assert told(house, **about, expected_version=7, to="cancelled") == (False, "stale_version")
    assert house.subject()["version"] == 1
    assert len(house.proofs()) == 1
    unknown = house.post(PATH, {**about, "to": "paid", "contract_version": "1999"})
    assert unknown.json()["code"] == "unknown_contract_version"


@pytest.mark.shows("I-42")
def test_versions_and_their_tables_are_listed(house: House) -> None:
    answer = house.get("/v1/contract", who="viewer").json()
    assert answer["active"] == "2025-12-28"
    assert answer["versions"]["2025-12-28"]["order"] == {
        "initial": "pending",
        "moves": {"pending": ["paid", "cancelled"], "paid": ["cancelled"]},
        "terminal": ["cancelled"],
    }
    assert house.get("/v1/contract", who=None).status_code == 401


@pytest.mark.shows("I-42")
def test_a_subject_is_shown_to_its_own_tenant(house: House) -> None:
    proof = house.move("a", from_="pending", to="paid").json()["proof_id"]
    path = "/v1/contract/subjects/ORDER/1"
    mine = house.get(path, who="acme-service")
    assert mine.status_code == 200
    document = mine.json()
    assert document.pop("created_at") == document.pop("updated_at")
    assert document == {
        "tenant_id": TENANT, "type": "order", "id": "1", "status": "paid", "version": 1,
        "last_proof_id": proof,
    }  # fmt: skip
    assert house.get(f"{path}?tenant_id=acme", who="acme-service").status_code == 200
    house.move("b", tenant_id="other", from_="pending", to="paid")
    assert house.get(f"{path}?tenant_id=other").status_code == 200
    foreign = house.get(f"{path}?tenant_id=other", who="acme-service")
    absent = house.get("/v1/contract/subjects/order/2", who="acme-service")
    assert foreign.status_code == absent.status_code == 404
    assert foreign.json()["code"] == absent.json()["code"] == "not-found"


def test_an_id_may_have_slashes(house: House) -> None:
    ref = {"type": "order", "id": "2026/17 ü"}
    house.move("a", subject_ref=ref, from_="pending", to="paid")
    assert house.subject(id="2026/17%20%C3%BC")["status"] == "paid"


def test_the_process_tells_how_it_is(
    house: House, monkeypatch: pytest.MonkeyPatch
) -> None:  # fmt: skip
    for path in ("/v1/health", "/v1/ready"):
        answer = house.get(path, who=None)
        assert (answer.status_code, answer.json()) == (200, {"ok": True})

    def down() -> None:
        raise StoreError("the database is away")

    monkeypatch.setattr(house.engine.store, "workers", down)
    assert house.get("/v1/health", who=None).status_code == 200
    answer = house.get("/v1/ready", who=None)
    assert (answer.status_code, answer.json()["retryable"]) == (503, True)


@pytest.mark.shows("I-9")
def test_without_its_store_nothing_is_done(
    house: House, monkeypatch: pytest.MonkeyPatch
) -> None:  # fmt: skip
    def down(*_: Any, **__: Any) -> None:
        raise StoreError("the database is away")

    for when in ("before", "after"):
        with monkeypatch.context() as patch:
            patch.setattr(house.engine.store, "begin", down)
            patch.setattr(house.engine.store, "reading", down)
            answer = house.move(when, from_="pending", to="paid")
            assert (answer.status_code, answer.json()["code"]) == (
                503, "idempotency_store_unavailable",
            )  # fmt: skip
            proof = house.post("/v1/proof/record", {"tenant_id": TENANT, "kind": "x"})
            assert proof.json()["code"] == "idempotency_store_unavailable"
            assert house.get("/v1/proof").status_code == 503
        assert house.proofs() == []


@pytest.mark.shows("I-9")
def test_while_nobody_can_be_looked_up_nothing_is_done_either(
    house: House, monkeypatch: pytest.MonkeyPatch
) -> None:
    def down(*_: Any) -> None:
        raise StoreError("the database is away")

    with monkeypatch.context() as patch:
        patch.setattr(Known, "authenticate", down)
        for path in ("/v1/contract/transition", "/v1/proof/record"):
            answer = house.post(path, {}, headers={"Idempotency-Key": "k"})
            assert (answer.status_code, answer.json()["code"]) == (
                503, "idempotency_store_unavailable",
            )  # fmt: skip
            assert (answer.json()["retryable"], answer.headers["Retry-After"]) == (True, "1")
            assert answer.headers["Idempotency-Key"] == "k"
        assert house.get("/v1/proof").json()["code"] == "store-error"


def test_the_service_serves_what_it_documents(house: House) -> None:
    attach(service, house.engine, Settings())
    app = ulak.web.app(house.engine, identity=Known(), services=[service])
    document = app.openapi()
    body = document["paths"]["/v1/contract/transition"]["post"]["requestBody"]
    example = body["content"]["application/json"]["example"]
    answer = house.post("/v1/contract/transition", example)
    assert answer.json()["ok"] is True
    for path, method in (("/v1/proof/record", "post"), (PATH, "post")):
        media = document["paths"][path][method]["requestBody"]["content"]["application/json"]
        assert house.post(path, media["example"]).status_code == 200
        assert "$ref" not in str(media)
