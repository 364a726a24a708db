"""JSON is read as the standard has it, and refused where it says two things."""

import json
from decimal import Decimal

import pytest

from ulak.strict_json import canonical_json, read_json


def test_a_document_is_read_from_text_and_from_bytes() -> None:
    said = {"a": [1, 2.5, None, True], "ö": {}}
    text = json.dumps(said, ensure_ascii=False)
    assert read_json(text) == said
    assert read_json(text.encode()) == said


@pytest.mark.parametrize("text", ["NaN", "[Infinity]", '{"a": -Infinity}'])
def test_what_is_no_number_of_json_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="is no number of JSON"):
        read_json(text)


@pytest.mark.parametrize("text", ['{"a": 1, "a": 1}', '[{"b": {"a": 1, "\\u0061": 2}}]'])
def test_a_member_that_is_there_twice_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="a member is there twice"):
        read_json(text)


def test_bytes_are_utf_8_and_nothing_else() -> None:
    with pytest.raises(UnicodeDecodeError):
        read_json('{"a": 1}'.encode("utf-16"))


def test_numbers_can_be_kept_to_the_digit() -> None:
    said = read_json('{"a": 1.10, "b": 12345678901234567890123}', number=Decimal)
    assert [str(number) for number in said.values()] == ["1.10", "12345678901234567890123"]


def test_a_document_has_one_canonical_text() -> None:
    text = '{"a":[1,2.5,null,true,"ğ"],"b":{"c":18,"d":-3}}'
    for said in (
        {"b": {"d": -3.0, "c": 18.0}, "a": [1, 2.50, None, True, "ğ"]},
        {"a": (1.0, 2.5, None, True, "ğ"), "b": {"c": 18, "d": -3}},
        json.loads(text),
    ):
        assert canonical_json(said) == text
    assert canonical_json(2.0**60) == "1.152921504606847e+18"
    assert canonical_json(True) == "true"


@pytest.mark.parametrize("bad", [float("nan"), [float("inf")], {"a": object()}])
def test_what_is_no_document_has_no_canonical_text(bad: object) -> None:
    with pytest.raises((ValueError, TypeError)):
        canonical_json(bad)
