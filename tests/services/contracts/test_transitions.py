"""Transitions over HTTP: what is allowed, what is refused, and what a repetition gets."""

import json
from collections.abc import Callable
from typing import Any

import pytest

from tests.services.contracts.house import TENANT, House
from ulak.services.contracts import tables
from ulak.services.contracts.requests import Transition
from ulak.services.contracts.tables import Versions, versions_in_force

OPEN_AGAIN = {
    "version": "2026-06-01",
    "types": {
        "order": {
            "initial": "pending",
            "moves": {"pending": ["cancelled"], "cancelled": ["pending"]},
            "terminal": [],
        }
    },
}

BY_ALIASES = (
    '{"tenant_id": "acme", "subject_type": "Order", "subject_id": 1, "to_status": "PAID", '
    '"from": "Pending", "idempotency_key": "a", "meta": {"b": 1.50, "a": 1}}'
)
AT_ANOTHER_TIME = (
    '{"meta":{"a":1,"b":1.50},"from":"PENDING","to":"paid","request_id":7,"attempt":3,'
    '"sent_at":"now","subject_ref":{"tenant_id":"acme","id":"1","type":"ORDER"},'
    '"tenant_id":"acme","source":null}'
)


def with_a_later_version() -> Versions:
    """As if an operator had added a version and made it active."""
    shipped = versions_in_force({})
    later = tables.read(json.dumps(OPEN_AGAIN), "later.json")
    return Versions({**shipped.known, later.name: later}, later)


def reason(answer: Any) -> tuple[int, str]:
    return answer.status_code, answer.json()["reason"]


@pytest.mark.shows("I-2", "I-35")
def test_a_transition_changes_the_subject_and_leaves_one_proof(house: House) -> None:
    answer = house.move("k1", from_="pending", to="paid")
    assert answer.status_code == 200
    assert answer.headers["content-type"] == "application/json"
    (proof,) = house.proofs()
    assert answer.text == (
        '{"ok":true,"from":"pending","to":"paid","contract_version":"2025-12-28",'
        f'"proof_id":{proof["proof_id"]},"version":1,"changed":true}}'
    )
    subject = house.subject()
    assert (subject["status"], subject["version"]) == ("paid", 1)
    assert subject["last_proof_id"] == proof["proof_id"]
    again = house.move("k1", from_="pending", to="paid")
    assert (again.status_code, again.content) == (200, answer.content)


@pytest.mark.shows("I-3", "I-4")
def test_a_replay_after_a_restart_has_the_same_bytes_and_no_effect(
    house: House, open_house: Callable[..., House]
) -> None:
    first = house.move("k1", from_="pending", to="paid")
    house.move("k2", to="cancelled")
    before = house.subject(), house.proofs()
    house.close()
    other = open_house()
    again = other.move("k1", from_="pending", to="paid")
    assert (again.status_code, again.content) == (200, first.content)
    assert (other.subject(), other.proofs()) == before


@pytest.mark.shows("I-29")
def test_every_answer_names_its_key_and_whether_it_is_a_replay(house: House) -> None:
    marks = ("Idempotency-Key", "Idempotent-Replayed")
    for replayed in ("false", "true"):
        done = house.move("k1", from_="pending", to="paid")
        refused = house.move("k2", to="pending")
        assert [done.headers[name] for name in marks] == ["k1", replayed]
        assert [refused.headers[name] for name in marks] == ["k2", replayed]
    wrong = house.move("k1", from_="pending", to="cancelled")
    assert wrong.status_code == 422
    assert [wrong.headers[name] for name in marks] == ["k1", "false"]
    bad = house.post("/v1/contract/transition", content=b"{", headers={"Idempotency-Key": "k3"})
    assert bad.status_code == 400
    assert [bad.headers[name] for name in marks] == ["k3", "false"]


@pytest.mark.shows("I-34")
def test_checks_come_in_the_one_order(house: House) -> None:
    unknown = {"type": "unicorn", "id": "1"}
    assert reason(house.move("a", subject_ref=unknown, from_="pending", to="pending")) == (
        422, "unknown_subject_type",
    )  # fmt: skip
    house.move("b", from_="pending", to="cancelled")
    same = house.move("c", to="cancelled")
    assert (same.status_code, same.json()["changed"]) == (200, False)
    assert reason(house.move("d", to="paid")) == (422, "terminal_state")
    assert reason(house.move("e", to="nonsense")) == (422, "terminal_state")
    other = {"type": "reservation", "id": "1"}
    house.move("f", subject_ref=other, from_="pending", to="confirmed")
    assert reason(house.move("g", subject_ref=other, to="completed")) == (
        422, "invalid_transition",
    )  # fmt: skip
    assert len(house.proofs()) == 2


@pytest.mark.shows("I-17")
def test_a_refusal_is_kept_and_told_again_though_the_subject_has_moved(house: House) -> None:
    payment = {"type": "reservation", "id": "1"}
    house.move("a", subject_ref=payment, from_="pending", to="confirmed")
    refused = house.move("b", subject_ref=payment, to="completed")
    assert refused.json() == {
        "ok": False, "reason": "invalid_transition", "from": "confirmed", "to": "completed",
        "contract_version": "2025-12-28", "proof_id": None,
    }  # fmt: skip
    house.move("c", subject_ref=payment, to="checked_in")
    again = house.move("b", subject_ref=payment, to="completed")
    assert (again.status_code, again.content) == (422, refused.content)
    assert again.headers["Idempotent-Replayed"] == "true"


def test_a_stale_status_or_version_is_refused_and_that_is_kept(house: House) -> None:
    house.move("a", from_="pending", to="paid")
    stale = house.move("b", from_="pending", to="cancelled")
    assert reason(stale) == (409, "stale_status")
    assert stale.json()["from"] == "paid"
    assert reason(house.move("c", to="cancelled", expected_version=0)) == (409, "stale_version")
    assert house.move("d", to="cancelled", expected_version=1).json()["version"] == 2
    assert reason(house.move("c", to="cancelled", expected_version=0)) == (409, "stale_version")


@pytest.mark.shows("I-36")
@pytest.mark.parametrize("status", ["paid", "cancelled"])
def test_a_target_that_is_reached_already_changes_nothing(house: House, status: str) -> None:
    first = house.move("a", from_="pending", to=status).json()
    again = house.move("b", from_="pending", to=status)
    assert again.status_code == 200
    assert again.json() == {
        "ok": True, "from": status, "to": status, "contract_version": "2025-12-28",
        "proof_id": first["proof_id"], "version": 1, "changed": False,
    }  # fmt: skip
    assert len(house.proofs()) == 1


@pytest.mark.shows("I-36", "I-39")
def test_a_subject_may_be_created_where_it_begins_without_a_proof(house: House) -> None:
    answer = house.move("a", from_="pending", to="pending").json()
    assert (answer["changed"], answer["proof_id"], answer["version"]) == (False, None, 0)
    assert house.subject()["status"] == "pending"
    assert house.proofs() == []


@pytest.mark.shows("I-39")
def test_an_event_that_overtook_the_creation_of_its_subject_succeeds_later(house: House) -> None:
    for from_ in ({}, {"from_": "paid"}):
        early = house.move("late", to="cancelled", **from_)
        assert reason(early) == (404, "subject_not_found")
        assert early.json()["ok"] is False
        assert early.json()["retryable"] is True
        assert house.subject() is None
    house.move("first", from_="pending", to="paid")
    assert house.move("late", from_="paid", to="cancelled").json()["changed"] is True


@pytest.mark.shows("I-39")
def test_a_refused_request_creates_no_subject(house: House) -> None:
    assert reason(house.move("a", from_="pending", to="nonsense")) == (422, "invalid_transition")
    assert house.subject() is None


@pytest.mark.shows("I-40")
def test_a_replay_has_the_version_of_the_first_execution(
    house: House, open_house: Callable[..., House]
) -> None:
    first = house.move("a", from_="pending", to="cancelled")
    refused = house.move("b", to="pending")
    house.close()
    later = open_house(versions=with_a_later_version())
    assert later.move("a", from_="pending", to="cancelled").content == first.content
    assert later.move("b", to="pending").content == refused.content
    fresh = later.move("c", to="pending").json()
    assert (fresh["ok"], fresh["contract_version"]) == (True, "2026-06-01")


@pytest.mark.shows("I-40")
def test_a_request_may_pin_a_version(open_house: Callable[..., House]) -> None:
    house = open_house(versions=with_a_later_version())
    pinned = house.move("a", from_="pending", to="paid", contract_version="2025-12-28").json()
    assert (pinned["ok"], pinned["contract_version"]) == (True, "2025-12-28")
    assert reason(house.move("b", to="cancelled")) == (422, "invalid_transition")


def test_a_pinned_version_that_nobody_knows_is_refused_and_the_key_stays_free(
    house: House,
) -> None:
    answer = house.move("a", from_="pending", to="paid", contract_version="1999")
    assert (answer.status_code, answer.json()["code"]) == (422, "unknown_contract_version")
    assert "2025-12-28" in answer.json()["detail"]
    assert house.move("a", from_="pending", to="paid").status_code == 200


@pytest.mark.shows("I-7")
def test_a_key_is_for_one_request(house: House) -> None:
    first = house.move("a", from_="pending", to="paid")
    for other in (
        {"to": "cancelled"}, {"subject_ref": {"type": "order", "id": "2"}}, {"meta": {"x": 1}},
        {"actor_id": "u1"}, {"expected_version": 0},
    ):  # fmt: skip
        answer = house.move("a", **{"from_": "pending", "to": "paid", **other})
        assert (answer.status_code, answer.json()["code"]) == (422, "idempotency_key_reused")
    assert house.move("a", from_="pending", to="paid").content == first.content


@pytest.mark.shows("I-12", "I-28")
@pytest.mark.parametrize("written", [BY_ALIASES, AT_ANOTHER_TIME], ids=["aliases", "later"])
def test_however_it_is_written_the_same_request_is_the_same(house: House, written: str) -> None:
    body = (
        b'{"tenant_id":"acme","subject_ref":{"type":"order","id":"1"},"from":"pending",'
        b'"to":"paid","meta":{"a":1,"b":1.50},"idempotency_key":"a","request_id":"r1"}'
    )
    path = "/v1/contract/transition"
    first = house.post(path, content=body)
    again = house.post(path, content=written.encode(), headers={"Idempotency-Key": '"a"'})
    assert (again.status_code, again.content) == (200, first.content)
    assert again.headers["Idempotent-Replayed"] == "true"
    other = house.post(path, content=body.replace(b"1.50", b"1.5"))
    assert other.json()["code"] == "idempotency_key_reused"
    assert house.proofs()[0]["request_id"] == "r1"


def test_the_status_it_is_believed_to_have_may_stand_in_the_context(house: House) -> None:
    assert house.move("a", to="paid", ctx={"from": "Pending", "why": "x"}).status_code == 200
    assert reason(house.move("b", to="cancelled", ctx={"from": "pending"})) == (
        409, "stale_status",
    )  # fmt: skip
    (proof,) = house.proofs()
    assert proof["payload"] == {"version": 1, "ctx": {"from": "Pending", "why": "x"}}


@pytest.mark.shows("I-11")
@pytest.mark.parametrize(
    ("first", "again"),
    [
        ({"from": "pending"}, {"ctx": {"from": "Pending"}}),
        ({"ctx": {"from": "pending"}}, {"from": "pending"}),
        ({"from": "pending", "ctx": {"why": "x"}}, {"ctx": {"why": "x", "from": "pending"}}),
    ],
    ids=["then-in-the-context", "first-in-the-context", "beside-others"],
)
def test_the_status_is_the_same_wherever_it_stands(house: House, first: Any, again: Any) -> None:
    told = house.move("a", to="paid", **first)
    assert told.json()["changed"] is True
    repeated = house.move("a", to="paid", **again)
    assert (repeated.status_code, repeated.content) == (200, told.content)
    assert repeated.headers["Idempotent-Replayed"] == "true"
    other = house.move("a", to="paid", ctx={"from": "pending", "why": "another"})
    assert other.json()["code"] == "idempotency_key_reused"
    house.sql("DELETE FROM {schema}.idempotency_records")
    rebuilt = house.move("a", to="paid", **again)
    assert (rebuilt.content, rebuilt.headers["Idempotent-Replayed"]) == (told.content, "true")


@pytest.mark.shows("I-2", "E-90")
def test_what_an_earlier_release_answered_is_told_again(
    house: House, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its fingerprint told `ctx.from` from `from`."""
    asked = {"to": "paid", "ctx": {"from": "pending"}}
    with monkeypatch.context() as before:
        before.setattr(Transition, "request_hash", Transition.former_hash)
        told = house.move("a", **asked)
    for _ in range(2):  # by its record, then by its proof
        again = house.move("a", **asked)
        assert (again.content, again.headers["Idempotent-Replayed"]) == (told.content, "true")
        house.sql("DELETE FROM {schema}.idempotency_records")
    assert len(house.proofs()) == 1


@pytest.mark.shows("I-6")
def test_the_same_key_and_subject_of_another_tenant_are_others(house: House) -> None:
    for tenant in (TENANT, "other", 7):
        answer = house.move("a", tenant_id=tenant, from_="pending", to="paid")
        assert answer.headers["Idempotent-Replayed"] == "false"
    house.move("b", tenant_id="other", to="cancelled")
    assert house.subject()["status"] == "paid"
    assert house.subject(tenant="7")["status"] == "paid"
    assert house.subject(tenant="other")["status"] == "cancelled"
