"""Fingerprints: the same request, however it is written, and no other."""

import json
import random
import re
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ulak.idempotency import fingerprint

JSON = "application/json"
ASKED: dict[str, Any] = {
    "method": "POST", "path": "/v1/orders/7/pay", "query": "a=1&b=2", "actor": "ada",
    "media_type": JSON, "body": b'{"amount":1,"lines":[1,2],"to":{"name":"eve","no":7}}',
}  # fmt: skip

VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(st.characters(codec="utf-8")),
    lambda inner: st.lists(inner, max_size=4)
    | st.dictionaries(st.text(st.characters(codec="utf-8"), max_size=5), inner, max_size=4),
    max_leaves=20,
)  # fmt: skip


def digest(**facts: Any) -> str:
    return fingerprint(**(ASKED | facts))


def of(body: bytes | str, **facts: Any) -> str:
    return digest(body=body if isinstance(body, bytes) else body.encode(), **facts)


def shuffled(value: Any, draw: random.Random) -> Any:
    """The same value with the members of its objects in another order."""
    if isinstance(value, dict):
        members = list(value.items())
        draw.shuffle(members)
        return {name: shuffled(member, draw) for name, member in members}
    if isinstance(value, list):
        return [shuffled(member, draw) for member in value]
    return value


@pytest.mark.shows("I-11")
def test_it_is_a_sha_256_in_lower_case_hex() -> None:
    assert re.fullmatch(r"[0-9a-f]{64}", digest())
    assert digest() == digest()


@pytest.mark.shows("I-11", "I-13")
@pytest.mark.parametrize(
    "other",
    [
        {"method": "PATCH"}, {"path": "/v1/orders/8/pay"}, {"path": "/V1/orders/7/pay"},
        {"query": "a=1&b=3"}, {"query": ""}, {"query": "a=1&b=2&b=2"}, {"actor": "eve"},
        {"actor": ""},
    ],
    ids=str,
)  # fmt: skip
def test_method_path_query_and_actor_count(other: dict[str, Any]) -> None:
    assert digest(**other) != digest()


@pytest.mark.shows("I-11")
@pytest.mark.parametrize(
    "same", [{"query": "b=2&a=1"}, {"method": "post"}, {"query": "a=%31&b=2"}], ids=str
)
def test_the_order_of_the_query_does_not_count(same: dict[str, Any]) -> None:
    assert digest(**same) == digest()


@pytest.mark.shows("I-11")
def test_bytes_of_a_query_that_are_no_text_count() -> None:
    assert digest(query="a=%ff") != digest(query="a=%fe")


@pytest.mark.shows("I-11")
def test_no_part_can_be_taken_for_another() -> None:
    assert digest(path="/a", actor="b") != digest(path="/ab", actor="")
    assert digest(actor='x","json"]\n', body=b"1") != digest(actor="x", body=b'"json"]\n1')
    assert of("", media_type="a/b\0c") != of("c", media_type="a/b")


@pytest.mark.shows("I-11")
@given(VALUES, st.randoms(use_true_random=False), st.sampled_from([None, 1, "\t"]))
def test_the_order_of_members_and_white_space_do_not_count(
    value: Any, draw: random.Random, indent: Any
) -> None:
    tight = json.dumps(value, ensure_ascii=False, separators=(",", ":"))
    loose = json.dumps(shuffled(value, draw), ensure_ascii=True, indent=indent)
    assert of(tight) == of(f"\n {loose}\r\n")


@pytest.mark.shows("I-11")
@given(VALUES, VALUES)
def test_two_values_that_differ_have_two_digests(one: Any, other: Any) -> None:
    # As they are written, so that 1, 1.0 and true are three.
    same = json.dumps(one, sort_keys=True) == json.dumps(other, sort_keys=True)
    assert (of(json.dumps([one])) == of(json.dumps([other]))) is same


@pytest.mark.shows("I-11")
@pytest.mark.parametrize(
    ("one", "other"),
    [
        ("1", "1.0"), ("1", '"1"'), ("1", "true"), ("0", "false"), ("null", '"null"'),
        ("[1,2]", "[2,1]"), ("[]", "{}"), ("{}", "null"), ("[[],[]]", "[[[]]]"), ('""', "[]"),
        ("1e2", "100"), ("0.1", "0.10"), ("10000000000000000001", "10000000000000000002"),
        ("0.10000000000000000001", "0.1"), ('{"a":{"b":1}}', '{"a":{},"b":1}'), ('"a"', '"A"'),
        ('"a,b"', '["a","b"]'), ('{"a":1}', '{"a":1,"b":null}'),
    ],
)  # fmt: skip
def test_another_value_is_another_request(one: str, other: str) -> None:
    assert of(one) != of(other)


@pytest.mark.shows("I-11")
@pytest.mark.parametrize(
    ("one", "same"),
    [
        ('"\\u00e9\\/\\u0041"', '"é/A"'), ('"\\ud83e\\uddf5"', '"🧵"'),
        ('{"é":1,"z":2,"🧵":3}', '{"🧵":3,"z":2,"\\u00e9":1}'),
    ],
)  # fmt: skip
def test_the_way_a_text_is_written_does_not_count(one: str, same: str) -> None:
    assert of(one) == of(same)


@pytest.mark.shows("I-11")
def test_a_huge_number_costs_nothing_and_loses_no_digit() -> None:
    assert of("9" * 100_000) != of("9" * 99_999 + "8")
    assert of("1e999999999") != of("1e999999998")


@pytest.mark.shows("I-11")
@pytest.mark.parametrize("depth", [50, 150, 900, 100_000])
def test_deep_nesting_has_the_same_digest_however_deep_the_caller_is(depth: int) -> None:
    body = "[" * depth + "]" * depth

    def deeper(calls: int) -> str:
        return of(body) if calls == 0 else deeper(calls - 1)

    assert deeper(300) == of(body) != of("[" * (depth + 1) + "]" * (depth + 1))


@pytest.mark.shows("I-11")
@pytest.mark.parametrize(
    ("one", "other"),
    [
        ('{"a":1,"a":2}', '{"a":2,"a":1}'), ('{"a":1,"a":2}', '{"a":2}'),
        ('[{"a":1,"a":1}]', '[{"a":1}]'), ("{", "{ "), ("NaN", "Infinity"), ("", " "),
        ("\ufeff1", "1"),
    ],
)  # fmt: skip
def test_what_is_no_json_or_says_a_member_twice_counts_by_its_bytes(one: str, other: str) -> None:
    assert of(one) == of(one)
    assert of(one) != of(other)


@pytest.mark.shows("I-12")
def test_what_changes_from_attempt_to_attempt_does_not_count() -> None:
    first = {"amount": 1, "idempotency_key": "k", "request_id": "r-1", "attempt": 1, "sent_at": 1}
    again = {"sent_at": "2026-01-01", "attempt": 2, "request_id": "r-2", "amount": 1}
    assert of(json.dumps(first)) == of(json.dumps(again)) == of('{"amount":1}')
    assert of(json.dumps(first | {"amount": 2})) != of(json.dumps(first))


@pytest.mark.shows("I-12")
def test_inside_of_the_body_the_same_names_are_what_is_asked() -> None:
    assert of('{"to":{"attempt":1}}') != of('{"to":{"attempt":2}}')
    assert of('[{"attempt":1}]') != of('[{"attempt":2}]')


@pytest.mark.shows("I-14")
def test_only_the_members_that_are_named_count() -> None:
    named = {"fields": ("amount", "to")}
    assert of('{"amount":1,"note":"x"}', **named) == of('{"note":"y","amount":1}', **named)
    assert of('{"amount":1}', **named) != of('{"amount":2}', **named)
    assert of('{"amount":1}', **named) != of('{"amount":1,"to":null}', **named)
    assert of('{"attempt":1}', fields=("attempt",)) != of('{"attempt":2}', fields=("attempt",))
    assert of('{"amount":1}', fields=()) == of('{"amount":2}', fields=())


@pytest.mark.shows("I-15")
def test_another_body_counts_by_its_bytes_and_its_media_type() -> None:
    assert of(b"\xff\0", media_type="image/png") == of(b"\xff\0", media_type="Image/PNG; q=1")
    assert of(b"\xff\0", media_type="image/png") != of(b"\xff\1", media_type="image/png")
    assert of(b"\xff\0", media_type="image/png") != of(b"\xff\0", media_type="image/gif")
    assert of("{ }", media_type="text/plain") != of("{}", media_type="text/plain")
    assert of("1", media_type="text/plain") != of("1")


@pytest.mark.shows("I-11")
def test_every_media_type_of_json_is_json() -> None:
    for media_type in ("application/json; charset=utf-8", "APPLICATION/JSON", "application/a+json"):
        assert of('{"b":1,"a":2}', media_type=media_type) == of('{ "a": 2, "b": 1 }')
