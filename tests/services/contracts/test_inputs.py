"""What a caller may send, and how everything else is refused: cleanly, and without a trace."""

from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.services.contracts.house import TENANT, House

PATH = "/v1/contract/transition"
BODY: dict[str, Any] = {
    "idempotency_key": "k", "tenant_id": TENANT, "subject_ref": {"type": "order", "id": "1"},
    "from": "pending", "to": "paid",
}  # fmt: skip
HALF = "\ud800"


@pytest.fixture
def url(tmp_path: Any) -> str:
    """On one database: nothing of this gets there."""
    return f"sqlite:///{tmp_path / 'contracts.db'}"


def without(name: str) -> dict[str, Any]:
    return {key: value for key, value in BODY.items() if key != name}


@pytest.mark.shows("I-1")
@pytest.mark.parametrize("key", [None, "", " ", "\t "], ids=["null", "empty", "blank", "tab"])
def test_without_a_key_nothing_happens(house: House, key: str | None) -> None:
    for body in (BODY | {"idempotency_key": key}, {"idempotency_key": key, "nonsense": 1}):
        answer = house.post(PATH, body)
        assert (answer.status_code, answer.json()["code"]) == (400, "idempotency_key_required")
    assert house.post(PATH, content=b"no json").json()["code"] == "idempotency_key_required"
    assert house.post(PATH, [1]).json()["code"] == "idempotency_key_required"
    assert house.subject() is None


@pytest.mark.shows("I-5", "I-28")
@pytest.mark.parametrize(
    ("key", "header", "code"),
    [
        ("a b", None, "idempotency_key_invalid"),
        ("ü", None, "idempotency_key_invalid"),
        (HALF, None, "idempotency_key_invalid"),
        ("x" * 256, None, "idempotency_key_invalid"),
        (7, None, "idempotency_key_invalid"),
        ({}, None, "idempotency_key_invalid"),
        ("k", "other", "idempotency_key_conflict"),
    ],
    ids=["space", "no-ascii", "half", "long", "number", "object", "two"],
)
def test_what_is_no_key_is_refused(house: House, key: Any, header: str | None, code: str) -> None:
    headers = {} if header is None else {"Idempotency-Key": header}
    answer = house.post(PATH, BODY | {"idempotency_key": key}, headers=headers)
    assert (answer.status_code, answer.json()["code"]) == (400, code)
    assert house.subject() is None


def test_the_caller_is_known_before_anything_is_read(house: House) -> None:
    assert house.post(PATH, content=b"no json", who=None).status_code == 401
    assert house.post(PATH, content=b"no json", who="viewer").status_code == 403
    assert house.post("/v1/proof/record", content=b"no json", who="viewer").status_code == 403
    answer = house.ask("POST", PATH, json=BODY, who=None, headers={"X-HOS-API-KEY": "service"})
    assert answer.status_code == 200
    # It is a header of this service; elsewhere it means nothing.
    assert house.get("/jobs", who=None, headers={"X-HOS-API-KEY": "service"}).status_code == 401
    token = {"Authorization": "Token service"}
    assert house.ask("POST", PATH, json=BODY, who=None, headers=token).content == answer.content


@pytest.mark.parametrize("who", ["acme-service", "service"])
def test_a_key_acts_for_its_own_tenant_or_for_all(house: House, who: str) -> None:
    mine = house.post(PATH, BODY, who=who)
    assert mine.status_code == 200
    other = house.post(PATH, BODY | {"tenant_id": "other"}, who=who)
    assert other.status_code == (403 if who == "acme-service" else 200)
    record = {"tenant_id": "other", "kind": "x"}
    assert house.post("/v1/proof/record", record, who=who).status_code == other.status_code
    question = {**without("idempotency_key"), "tenant_id": "other"}
    asked = house.post("/v1/contract/can-transition", question, who=who)
    assert asked.status_code == other.status_code


def test_a_key_of_one_tenant_need_not_say_which(house: House) -> None:
    body = without("tenant_id")
    first = house.post(PATH, body, who="acme-service")
    assert (first.status_code, first.json()["ok"]) == (200, True), first.text
    again = house.post(PATH, BODY, who="acme-service")
    assert (again.content, again.headers["Idempotent-Replayed"]) == (first.content, "true")
    assert house.subject(tenant="acme")["status"] == "paid"
    foreign = body | {"subject_ref": {"type": "order", "id": "1", "tenant_id": "other"}}
    answer = house.post(PATH, foreign, who="acme-service")
    assert (answer.status_code, answer.json()["code"]) == (422, "tenant_mismatch")
    question = {"subject_ref": {"type": "order", "id": "1"}, "to": "cancelled"}
    assert house.post("/v1/contract/can-transition", question, who="acme-service").json()["allowed"]
    assert house.post("/v1/proof/record", {"kind": "x"}, who="acme-service").status_code == 200
    assert {proof["tenant_id"] for proof in house.proofs()} == {"acme"}
    nobodys = house.post(PATH, body | {"idempotency_key": "other"}, who="service")
    assert (nobodys.status_code, "tenant_id: it is missing" in nobodys.text) == (400, True)


@pytest.mark.shows("I-29")
@pytest.mark.parametrize("path", [PATH, "/v1/proof/record"])
def test_who_may_not_ask_is_told_that_it_is_no_replay(house: House, path: str) -> None:
    for who, status in ((None, 401), ("viewer", 403)):
        answer = house.post(path, BODY, who=who, headers={"Idempotency-Key": "k"})
        assert answer.status_code == status
        assert answer.headers["Idempotency-Key"] == "k"
        assert answer.headers["Idempotent-Replayed"] == "false"


def test_two_tenants_in_one_request_are_refused(house: House) -> None:
    ref = {"type": "order", "id": "1", "tenant_id": "other"}
    answer = house.post(PATH, BODY | {"subject_ref": ref})
    assert (answer.status_code, answer.json()["code"]) == (422, "tenant_mismatch")
    assert house.post(PATH, BODY | {"subject_ref": ref | {"tenant_id": TENANT}}).json()["ok"]
    seven = {"tenant_id": 7, "subject_ref": {"type": "order", "id": 1, "tenant_id": "7"}}
    assert house.post(PATH, BODY | seven | {"idempotency_key": "7"}).json()["ok"]


WRONG: dict[str, Any] = {
    "no-tenant": without("tenant_id"),
    "no-subject": without("subject_ref"),
    "no-type": BODY | {"subject_ref": {"id": "1"}},
    "no-id": BODY | {"subject_ref": {"type": "order"}},
    "no-target": without("to"),
    "unknown-member": BODY | {"expected_versoin": 3},
    "unknown-member-of-subject": BODY | {"subject_ref": {"type": "order", "id": "1", "x": 1}},
    "two-targets": BODY | {"to_status": "cancelled"},
    "two-types": BODY | {"subject_type": "payment"},
    "two-ids": BODY | {"subject_id": "2"},
    "two-statuses": BODY | {"ctx": {"from": "paid"}},
    "context-that-is-no-object": BODY | {"ctx": []},
    "context-with-a-strange-status": BODY | {"ctx": {"from": 7}},
    "tenant-true": BODY | {"tenant_id": True},
    "tenant-fraction": BODY | {"tenant_id": 1.5},
    "tenant-blank": BODY | {"tenant_id": " "},
    "tenant-list": BODY | {"tenant_id": []},
    "tenant-long": BODY | {"tenant_id": "x" * 201},
    "tenant-digits": BODY | {"tenant_id": 10**300},
    "tenant-nul": BODY | {"tenant_id": "a\0b"},
    "tenant-half": BODY | {"tenant_id": HALF},
    "id-nul": BODY | {"subject_ref": {"type": "order", "id": "\0"}},
    "type-half": BODY | {"subject_ref": {"type": HALF, "id": "1"}},
    "type-long": BODY | {"subject_ref": {"type": "x" * 101, "id": "1"}},
    "target-number": BODY | {"to": 1},
    "target-nul": BODY | {"to": "paid\0"},
    "version-text": BODY | {"expected_version": "1"},
    "version-negative": BODY | {"expected_version": -1},
    "version-huge": BODY | {"expected_version": 2**63},
    "version-fraction": BODY | {"expected_version": 1.0},
    "actor-nul": BODY | {"actor_id": "\0"},
    "source-half": BODY | {"source": HALF},
    "source-object": BODY | {"source": {}},
    "request-long": BODY | {"request_id": "x" * 201},
    "contract-nul": BODY | {"contract_version": "\0"},
    "meta-large": BODY | {"meta": "x" * 300_000},
}


@pytest.mark.shows("I-18")
@pytest.mark.parametrize("body", WRONG.values(), ids=WRONG)
def test_what_cannot_be_used_is_refused_and_the_key_stays_free(house: House, body: Any) -> None:
    answer = house.post(PATH, body)
    assert (answer.status_code, answer.json()["code"]) == (400, "bad-request"), answer.text
    assert answer.headers["content-type"] == "application/problem+json"
    assert house.post(PATH, BODY).json()["changed"] is True


@pytest.mark.parametrize(
    "content",
    [
        b"", b"null", b"[]", b'"x"', b"\xff", b"{", b'{"to": NaN}', b'{"a": 1, "a": 2}',
        b'{"meta": {"a": 1, "a": 2}}', b'{"meta": Infinity}', b"[" * 200_000,
        b'{"meta": ' + b"[" * 200_000, b'{"expected_version": ' + b"9" * 5000 + b"}",
        b'{"meta": "' + b"\x01" + b'"}', b"\xef\xbb\xbf{}",
        b'{"meta": "\\ud800"}',
    ],
    ids=[
        "empty", "null", "array", "text", "no-utf8", "half", "nan", "twice", "twice-inside",
        "infinity", "deep", "deep-inside", "digits", "control", "mark",
        "half-a-character",
    ],
)  # fmt: skip
@pytest.mark.parametrize("path", [PATH, "/v1/contract/can-transition", "/v1/proof/record"])
def test_what_is_no_json_is_refused(house: House, path: str, content: bytes) -> None:
    answer = house.post(path, content=content, headers={"Idempotency-Key": "k"})
    assert answer.status_code == 400, answer.text
    assert answer.headers["content-type"] == "application/problem+json"


def test_what_is_kept_as_it_was_written_may_hold_anything(house: House) -> None:
    meta = b'{"nul":"\\u0000","n":1e999,"big":123456789012345678901234567890}'
    body = (
        b'{"tenant_id":"acme","subject_type":"order","subject_id":"1","from":"pending",'
        b'"to":"paid","meta":' + meta + b"}"
    )
    answer = house.post(PATH, content=body, headers={"Idempotency-Key": "k"})
    assert answer.status_code == 200, answer.text
    assert meta in house.get("/v1/proof").content
    assert house.contracts.verify().broken == ()


@pytest.mark.parametrize(
    ("path", "status"),
    [
        ("/v1/contract/subjects/order/%00?tenant_id=a", 422),
        ("/v1/contract/subjects/%00/1?tenant_id=a", 422),
        ("/v1/contract/subjects/order/1?tenant_id=%00", 422),
        ("/v1/contract/subjects/order/%ed%a0%80?tenant_id=a", 404),
        ("/v1/contract/subjects/order/" + "x" * 300 + "?tenant_id=a", 422),
        ("/v1/contract/subjects/order/1", 400),
        ("/v1/contract/subjects/order/1?tenant_id=a&nonsense=1", 422),
        ("/v1/proof?limit=0", 422),
        ("/v1/proof?limit=201", 422),
        ("/v1/proof?limit=x", 422),
        ("/v1/proof?subject_id=%00", 422),
        ("/v1/proof?kind=%00", 422),
        ("/v1/proof?nonsense=1", 422),
        ("/v1/proof?cursor=x", 400),
        ("/v1/proof?cursor=%C3%BC", 400),
        ("/v1/proof?cursor=cHJvb2Y6OTk5OTk5OTk5OTk5OTk5OTk5OTk5OTk5", 400),
        ("/v1/proof?cursor=", 400),
    ],
)
def test_a_bad_question_is_refused(house: House, path: str, status: int) -> None:
    assert house.get(path).status_code == status


@settings(
    max_examples=150, deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)  # fmt: skip
@given(
    st.dictionaries(
        st.sampled_from([*BODY, "to_status", "subject_type", "subject_id", "ctx", "meta",
                         "expected_version", "actor_id", "contract_version", "kind", "payload"]),
        st.recursive(
            st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(),
            lambda inner: st.lists(inner, max_size=3)
            | st.dictionaries(st.sampled_from(["type", "id", "from", "x"]), inner, max_size=3),
            max_leaves=5,
        ),
    ),
    st.sampled_from([PATH, "/v1/contract/can-transition", "/v1/proof/record"]),
)  # fmt: skip
def test_nothing_that_is_sent_is_a_fault_of_ours(
    house: House, changes: dict[str, Any], path: str
) -> None:
    answer = house.post(path, BODY | changes)
    assert answer.status_code < 500, answer.text
