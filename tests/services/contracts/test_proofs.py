"""Proofs: what they hold, that they stay, how they are chained, and that there is one per key."""

import json
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from hashlib import sha256
from typing import Any

import pytest

from tests.services.contracts.house import TENANT, House, backdoor
from ulak.clock import ManualClock
from ulak.services.contracts.ledger import SCHEMA, Ledger
from ulak.services.contracts.requests import Transition
from ulak.store.records import RecordId
from ulak.tables import Tables

RECORD = "/v1/proof/record"


def record_of(key: str) -> RecordId:
    return RecordId(TENANT, "contract.transition", key)


@pytest.mark.shows("I-43")
def test_a_proof_holds_who_did_what_where_and_why(house: House) -> None:
    house.move("first", from_="pending", to="paid")
    house.move(
        "k", to="cancelled", actor_id=12, source="pazar", request_id="r-9", meta={"why": "x"},
        attrs=[1],
    )  # fmt: skip
    newest, first = house.proofs()
    assert newest.pop("occurred_at") > first["occurred_at"]
    assert newest.pop("hash") != newest["prev_hash"]
    assert newest.pop("prev_hash") == first["hash"]
    assert newest.pop("proof_id") > first["proof_id"]
    assert newest == {
        "tenant_id": TENANT, "actor_id": "12", "source": "pazar", "kind": "status_change",
        "subject_type": "order", "subject_id": "1", "from": "paid", "to": "cancelled",
        "payload": {"version": 2, "meta": {"why": "x"}, "attrs": [1]}, "request_id": "r-9",
        "idempotency_key": "k", "contract_version": "2025-12-28",
    }  # fmt: skip
    assert (first["actor_id"], first["source"]) == (None, "key:shop")


COPY = (
    "INSERT OR REPLACE INTO hos_proofs SELECT proof_id + {more}, occurred_at, tenant_id, actor_id, "
    "source, {kind}, subject_type, subject_id, from_status, to_status, payload, request_id, "
    "idempotency_key, request_hash, contract_version, prev_hash, hash FROM hos_proofs"
)
KEPT = [
    "UPDATE {schema}.hos_proofs SET actor_id = 'x'",
    "UPDATE {schema}.hos_proofs SET actor_id = actor_id WHERE proof_id = 1",
    "DELETE FROM {schema}.hos_proofs",
]


@pytest.mark.shows("I-44")
@pytest.mark.parametrize(
    ("url", "statement"),
    [
        *(("sqlite", statement) for statement in KEPT),
        ("sqlite", COPY.format(more=0, kind="'other'")),
        ("sqlite", COPY.format(more=1, kind="kind")),
        ("sqlite", "UPDATE OR REPLACE hos_proofs SET proof_id = 7"),
        *(("postgres", statement) for statement in KEPT),
        ("postgres", "TRUNCATE {schema}.hos_proofs"),
    ],
    indirect=["url"],
)
def test_the_database_itself_keeps_proofs_as_they_are(house: House, statement: str) -> None:
    house.move("k", from_="pending", to="paid")
    before = house.proofs()
    with backdoor(house.url) as (db, schema, _), pytest.raises(Exception, match="only appended"):
        db.execute(statement.format(schema=schema))
    assert house.proofs() == before


@pytest.mark.shows("I-45")
def test_a_hash_covers_the_content_and_the_hash_before_it(house: House) -> None:
    house.move("a", from_="pending", to="paid")
    house.move("b", tenant_id="other", from_="pending", to="paid")
    house.move("c", to="cancelled")
    columns = [
        "proof_id", "occurred_at", "tenant_id", "actor_id", "source", "kind", "subject_type",
        "subject_id", "from_status", "to_status", "payload", "request_id", "idempotency_key",
        "request_hash", "contract_version", "prev_hash", "hash",
    ]  # fmt: skip
    last: dict[str, str] = {}
    for *covered, hash in house.sql(
        f"SELECT {', '.join(columns)} FROM {{schema}}.hos_proofs ORDER BY proof_id"  # noqa: S608
    ):
        text = json.dumps(covered, separators=(",", ":"))
        assert hash == sha256(text.encode()).hexdigest()
        assert covered[-1] == last.get(covered[2], "0" * 64)
        last[covered[2]] = hash
    assert last.keys() == {TENANT, "other"}


def tamper(house: House, *statements: str) -> None:
    """Do what somebody does who owns the database."""
    if house.url.startswith("sqlite"):
        triggers = house.sql("SELECT name, sql FROM sqlite_master WHERE type = 'trigger'")
        before = [f"DROP TRIGGER {name}" for name, _ in triggers]
        after = [sql for _, sql in triggers]
    else:
        before, after = ["SET session_replication_role = replica"], []
    with backdoor(house.url) as (db, schema, _):
        for statement in (*before, *statements, *after):
            db.execute(statement.replace("{schema}", schema))
        db.commit()


@pytest.mark.shows("I-45")
@pytest.mark.parametrize(
    ("statement", "broken", "sentence"),
    [
        ("UPDATE {schema}.hos_proofs SET actor_id = 'eve' WHERE proof_id = 2", 2, "its content"),
        ("UPDATE {schema}.hos_proofs SET payload = '{\"version\": 1}' WHERE proof_id = 2", 2,
         "its content"),
        ("UPDATE {schema}.hos_proofs SET occurred_at = 1 WHERE proof_id = 1", 1, "its content"),
        ("UPDATE {schema}.hos_proofs SET proof_id = 9 WHERE proof_id = 3", 9, "its content"),
        ("DELETE FROM {schema}.hos_proofs WHERE proof_id = 1", 2, "does not follow the beginning"),
        ("DELETE FROM {schema}.hos_proofs WHERE proof_id = 2", 3, "does not follow proof 1"),
        ("DELETE FROM {schema}.hos_proofs WHERE proof_id = 3", 2, "ends with proof 3"),
        ("DELETE FROM {schema}.hos_proofs WHERE tenant_id = 'acme'", None, "ends with proof 3"),
        ("DELETE FROM {schema}.hos_proof_heads WHERE tenant_id = 'acme'", 3, "head of the chain"),
        ("UPDATE {schema}.hos_proof_heads SET hash = 'x' WHERE tenant_id = 'acme'", 3,
         "has another hash"),
        ("UPDATE {schema}.hos_proof_heads SET proof_id = 2 WHERE tenant_id = 'acme'", 3,
         "ends with proof 2"),
        ("UPDATE {schema}.hos_contract_subjects SET status = 'paid' WHERE tenant_id = 'acme'", 2,
         'order 1 stands in "paid" at version 2, and this proof left it in "cancelled" at'),
        ("UPDATE {schema}.hos_contract_subjects SET version = 7 WHERE tenant_id = 'acme'", 2,
         "stands in \"cancelled\" at version 7, and"),
        ("UPDATE {schema}.hos_contract_subjects SET proof_id = 1 WHERE tenant_id = 'acme'", 2,
         "names proof 1 as its last"),
        ("UPDATE {schema}.hos_contract_subjects SET id = '9' WHERE tenant_id = 'acme'", 1,
         "the subject that it changed is gone"),
        ("DELETE FROM {schema}.hos_contract_subjects WHERE tenant_id = 'acme'", 1,
         "the subject that it changed is gone"),
        ("INSERT INTO {schema}.hos_contract_subjects VALUES ('acme', 'o', '8', 'paid', 1, 9, 0, 0)",
         None, "no proof says how"),
    ],
    ids=["actor", "payload", "time", "number", "first", "middle", "last", "all", "head", "hash",
         "end", "status", "version", "proof", "renamed", "gone", "made up"],
)  # fmt: skip
def test_the_first_broken_link_is_found(
    house: House, statement: str, broken: int | None, sentence: str
) -> None:
    house.move("a", from_="pending", to="paid")
    house.move("b", to="cancelled")
    house.post(RECORD, {"tenant_id": TENANT, "kind": "refund"})
    house.move("d", tenant_id="other", from_="pending", to="paid")
    numbers = {proof["proof_id"] for proof in house.proofs()}
    assert numbers == {1, 2, 3, 4}, "the statements name them"
    whole = house.contracts.verify()
    assert (whole.tenants, whole.proofs, whole.broken) == (2, 4, ())
    tamper(house, statement)
    report = house.contracts.verify()
    assert [(b.tenant_id, b.proof_id) for b in report.broken] == [(TENANT, broken)]
    assert sentence in report.broken[0].sentence


@pytest.mark.shows("I-45")
def test_subjects_are_compared_with_the_chain_of_every_tenant_and_in_pages(
    house: House, monkeypatch: pytest.MonkeyPatch
) -> None:
    for subject in "12345":
        house.move(f"k{subject}", subject_ref={"type": "order", "id": subject}, from_="pending",
                   to="paid")  # fmt: skip
    house.move("other", tenant_id="other", from_="pending", to="paid")
    # It has begun, and has not changed: it has no proof, and needs none.
    house.move("vain", subject_ref={"type": "order", "id": "6"}, from_="pending", to="nowhere")
    monkeypatch.setattr("ulak.services.contracts.ledger.PAGE", 2)
    assert house.contracts.verify().broken == ()
    house.sql("UPDATE {schema}.hos_contract_subjects SET status = 'lost' WHERE id IN ('1', '5')")
    report = house.contracts.verify()
    assert [broken.tenant_id for broken in report.broken] == [TENANT, "other"]
    assert "order 1 stands in" in report.broken[0].sentence
    # The links and the head were cut off to the same length: the chain alone would be whole.
    tamper(
        house,
        "UPDATE {schema}.hos_contract_subjects SET status = 'paid'",
        "DELETE FROM {schema}.hos_proofs WHERE tenant_id = 'other'",
        "DELETE FROM {schema}.hos_proof_heads WHERE tenant_id = 'other'",
    )
    (broken,) = house.contracts.verify().broken
    assert (broken.tenant_id, broken.proof_id) == ("other", None)
    assert "no proof says how it came there" in broken.sentence


def test_long_chains_are_verified_in_pages(house: House, monkeypatch: pytest.MonkeyPatch) -> None:
    for number in range(6):
        house.post(RECORD, {"tenant_id": TENANT, "kind": "n", "payload": number})
    for page in (2, 3, 4, 100):
        monkeypatch.setattr("ulak.services.contracts.ledger.PAGE", page)
        report = house.contracts.verify()
        assert (report.proofs, report.broken) == (6, ())
    tamper(house, "UPDATE {schema}.hos_proofs SET actor_id = 'eve' WHERE proof_id = 5")
    monkeypatch.setattr("ulak.services.contracts.ledger.PAGE", 2)
    assert [b.proof_id for b in house.contracts.verify().broken] == [5]


@pytest.mark.shows("I-46")
@pytest.mark.parametrize("how", ["forgotten", "expired"])
def test_a_lost_record_yields_no_second_proof_and_the_same_bytes(
    open_house: Callable[..., House], how: str
) -> None:
    clock = ManualClock()
    house = open_house(clock=clock)
    first = house.move("a", from_="pending", to="paid", meta={"x": 1})
    house.move("b", to="cancelled")
    before = house.subject(), house.proofs()
    if how == "forgotten":
        assert house.engine.store.forget_record(record_of("a"), actor="ada", note="")
    else:
        clock.advance(timedelta(days=8))
        assert house.engine.store.clean_records(10) == 2
    again = house.move("a", from_="pending", to="paid", meta={"x": 1})
    assert (again.status_code, again.content) == (200, first.content)
    assert again.headers["Idempotent-Replayed"] == "true"
    assert (house.subject(), house.proofs()) == before
    # The record is there again, so the next is answered from it.
    assert house.engine.store.find_records([record_of("a")])[0] is not None
    assert house.move("a", from_="pending", to="paid", meta={"x": 1}).content == first.content


@pytest.mark.shows("I-46", "I-7")
def test_a_lost_record_does_not_free_the_key_for_something_else(house: House) -> None:
    house.move("a", from_="pending", to="paid")
    house.engine.store.forget_record(record_of("a"), actor="ada", note="")
    for other in ({"to": "cancelled"}, {"subject_ref": {"type": "order", "id": "2"}}):
        answer = house.move("a", **{"from_": "pending", "to": "paid", **other})
        assert (answer.status_code, answer.json()["code"]) == (422, "idempotency_key_reused")
    assert len(house.proofs()) == 1
    assert house.subject(id="2") is None


@pytest.mark.shows("I-46")
def test_of_many_who_ask_after_the_record_was_lost_nobody_changes_anything(
    house: House, open_house: Callable[..., House]
) -> None:
    first = house.move("a", from_="pending", to="paid")
    house.engine.store.forget_record(record_of("a"), actor="ada", note="")
    houses = [house, open_house()]
    with ThreadPoolExecutor(8) as threads:
        answers = list(
            threads.map(lambda n: houses[n % 2].move("a", from_="pending", to="paid"), range(16))
        )
    assert {answer.content for answer in answers if answer.status_code == 200} == {first.content}
    assert {answer.status_code for answer in answers} <= {200, 409, 503}
    assert len(house.proofs()) == 1


@pytest.mark.shows("I-46")
@pytest.mark.parametrize("url", ["postgres"], indirect=True)
def test_two_transactions_cannot_both_append_under_one_key(
    open_house: Callable[..., House],
) -> None:
    """The unique index is the law, also where no record is: the second waits, then yields.

    A file of SQLite has one writer: there are no two transactions.
    """
    house, other = open_house(), open_house()
    house.contracts.find_subject("", "", "")
    asked = Transition(TENANT, "order", "1", "paid", key="a")
    draft = asked.draft(status="pending", version=1, contract_version="x")
    database = Tables(house.engine, SCHEMA).database
    with ThreadPoolExecutor(1) as thread:
        with house.engine.transaction() as connection:
            ledger = Ledger(database, connection, 1)
            made = ledger.append(draft)
            subject = ledger.create_subject(TENANT, "order", "1", status="pending")
            assert made is not None
            ledger.move_subject(subject, made, status="paid")

            def second() -> Any:
                with other.engine.transaction() as connection:
                    return Ledger(database, connection, 2).append(draft)

            waiting = thread.submit(second)
        assert waiting.result(timeout=120) is None
    assert [proof["hash"] for proof in house.proofs()] == [made.hash]
    assert house.contracts.verify().broken == ()


@pytest.mark.shows("I-47")
def test_a_recorded_proof_is_one_per_key(house: House) -> None:
    body = {"tenant_id": TENANT, "kind": "refund", "payload": {"amount": "1.50"}}
    first = house.post(RECORD, body | {"idempotency_key": "k", "request_id": "r1"})
    (proof,) = house.proofs()
    assert (first.status_code, first.json()) == (200, {"proof_id": proof["proof_id"]})
    assert first.headers["Idempotent-Replayed"] == "false"
    again = house.post(RECORD, body | {"request_id": 2}, headers={"Idempotency-Key": "k"})
    assert (again.content, again.headers["Idempotent-Replayed"]) == (first.content, "true")
    other = house.post(RECORD, body | {"idempotency_key": "k", "payload": {"amount": "2"}})
    assert (other.status_code, other.json()["code"]) == (422, "idempotency_key_reused")
    kind = house.post(RECORD, body | {"idempotency_key": "k", "kind": "receipt"})
    assert kind.json()["proof_id"] > proof["proof_id"]
    assert (proof["kind"], proof["payload"], proof["request_id"]) == (
        "refund",
        body["payload"],
        "r1",
    )


@pytest.mark.shows("I-47")
def test_without_a_key_the_content_is_the_key(house: House) -> None:
    body = {"tenant_id": TENANT, "kind": "refund", "payload": {"amount": 1, "of": [1, 2]}}
    first = house.post(RECORD, body)
    assert first.headers["Idempotency-Key"].startswith("sha256:")
    turned = {"payload": {"of": [1, 2], "amount": 1}, "kind": "refund", "tenant_id": TENANT}
    again = house.post(RECORD, turned | {"request_id": "r2"})
    assert (again.json(), again.headers["Idempotent-Replayed"]) == (first.json(), "true")
    other = house.post(RECORD, body | {"payload": {"amount": 1, "of": [2, 1]}})
    assert other.json() != first.json()
    assert other.headers["Idempotent-Replayed"] == "false"


def test_many_who_record_the_same_make_one_proof(house: House, open_house: Any) -> None:
    houses = [house, open_house()]
    house.contracts.find_subject("", "", "")
    body = {"tenant_id": TENANT, "kind": "refund", "idempotency_key": "k"}
    with ThreadPoolExecutor(8) as threads:
        answers = list(threads.map(lambda n: houses[n % 2].post(RECORD, body), range(16)))
    assert {answer.text for answer in answers} == {answers[0].text}
    assert [a.headers["Idempotent-Replayed"] for a in answers].count("false") == 1
    assert len(house.proofs()) == 1


def test_only_transitions_leave_proofs_of_status_changes(house: House) -> None:
    for kind in ("status_change", "Status_Change"):
        answer = house.post(RECORD, {"tenant_id": TENANT, "kind": kind})
        assert (answer.status_code, answer.json()["code"]) == (422, "reserved_kind")


@pytest.mark.shows("I-47")
def test_proofs_are_listed_newest_first_in_pages(house: House) -> None:
    for number in range(5):
        ref = {"type": "order", "id": number % 2}
        body = {"tenant_id": TENANT, "kind": f"kind-{number % 2}", "payload": number}
        house.post(RECORD, body | {"subject_ref": ref})
    house.post(RECORD, {"tenant_id": "other", "kind": "kind-0", "payload": "foreign"})
    seen: list[Any] = []
    path = "/v1/proof?limit=2"
    while path:
        page = house.get(path).json()
        seen += [proof["payload"] for proof in page["items"]]
        path = f"/v1/proof?limit=2&cursor={page['next']}" if page["next"] else ""
    assert seen == ["foreign", 4, 3, 2, 1, 0]
    assert [p["payload"] for p in house.proofs(kind="kind-1")] == [3, 1]
    assert [p["payload"] for p in house.proofs(subject_type="ORDER", subject_id=0)] == [4, 2, 0]
    assert [p["payload"] for p in house.proofs(tenant_id="other")] == ["foreign"]
    mine = house.get("/v1/proof", who="acme-service").json()["items"]
    assert [p["payload"] for p in mine] == [4, 3, 2, 1, 0]
    assert house.get("/v1/proof?tenant_id=other", who="acme-service").json()["items"] == []


@pytest.mark.shows("I-47")
def test_a_page_has_fifty_proofs_unless_asked_for_others(house: House) -> None:
    for number in range(51):
        house.post(RECORD, {"tenant_id": TENANT, "kind": "n", "payload": number})
    assert len(house.proofs()) == 50
    assert len(house.proofs(limit=200)) == 51
    assert len(house.proofs(limit=1)) == 1
