"""JSON is read as the standard has it, and refused where it says two things."""

import json
from decimal import Decimal

import pytest

from ulak.strict_json import read_json


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
