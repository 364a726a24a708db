"""Keys: what is one, in the header, in the body, or in both."""

import pytest

from ulak.errors import BadInput, BadKey
from ulak.idempotency import read_key
from ulak.idempotency.key import CONFLICT, INVALID, REQUIRED

VISIBLE = "".join(map(chr, range(0x21, 0x7F)))


def code_of(lines: list[str], in_body: object = None, *, required: bool = True) -> str:
    """The code by which a key is refused."""
    with pytest.raises(BadKey) as raised:
        read_key(lines, in_body, required=required)
    assert isinstance(raised.value, BadInput)
    return raised.value.code


@pytest.mark.shows("I-5")
@pytest.mark.parametrize(
    "key",
    [
        "x",
        "pazar:proof:status_change:123",
        "8e03978e-40d5-43e8-bc93-6894a57f9324",
        "k" * 255,
        VISIBLE,
        "a;b=1",
        'ab"c',
        '"unterminated',
    ],
)
def test_any_visible_text_of_at_most_255_characters_is_a_key(key: str) -> None:
    assert read_key([key]) == key
    assert read_key([], key) == key


@pytest.mark.shows("I-5")
@pytest.mark.parametrize(
    "key", ["k" * 256, "two words", "tab\there", "müşteri", "a\x7fb", "a\nb", "\xa0key", "a\0b"]
)
def test_anything_else_is_invalid(key: str) -> None:
    assert code_of([key]) == INVALID
    assert code_of([], key) == INVALID


@pytest.mark.shows("I-5")
@pytest.mark.parametrize("key", [7, 1.5, True, ["key"], {"key": 1}])
def test_a_key_of_the_body_that_is_no_text_is_invalid(key: object) -> None:
    assert code_of([], key) == INVALID


@pytest.mark.shows("I-1")
@pytest.mark.parametrize("lines", [[], [""], ["   "], ['""'], ['"  "'], ["\t"]])
@pytest.mark.parametrize("in_body", [None, "", "  "])
def test_a_key_that_is_missing_null_empty_or_blank_is_required(
    lines: list[str], in_body: str | None
) -> None:
    assert code_of(lines, in_body) == REQUIRED


@pytest.mark.shows("I-27")
def test_where_a_key_is_optional_none_is_no_key_and_a_blank_one_is_a_mistake() -> None:
    assert read_key([], required=False) is None
    assert read_key(["order-1"], required=False) == "order-1"
    assert code_of([" "], required=False) == REQUIRED
    assert code_of([], "", required=False) == REQUIRED


@pytest.mark.shows("I-28")
@pytest.mark.parametrize(
    ("line", "key"),
    [
        ('"order-1"', "order-1"),
        ('  "order-1" ', "order-1"),
        (" order-1\t", "order-1"),
        (r'"a\"b\\c"', r"a\"b\c".replace(r"\"", '"')),
        ('"order-1";v=1', "order-1"),
        ('"order-1" ; v', "order-1"),
        (f'"{"k" * 255}"', "k" * 255),
    ],
)
def test_the_quoted_and_the_bare_form_mean_the_same_key(line: str, key: str) -> None:
    assert read_key([line]) == key
    assert read_key([line], key) == key


@pytest.mark.shows("I-28", "I-5")
@pytest.mark.parametrize("line", ['"two words"', f'"{"k" * 256}"', '"müşteri"', '"a", "b"'])
def test_what_is_between_the_quotes_must_be_a_key_too(line: str) -> None:
    assert code_of([line]) == INVALID


@pytest.mark.shows("I-28")
@pytest.mark.parametrize("second", ["order-1", '"order-1"', "order-2", ""])
def test_two_header_lines_are_a_conflict_whatever_they_say(second: str) -> None:
    assert code_of(["order-1", second]) == CONFLICT


@pytest.mark.shows("I-28")
def test_a_header_and_a_body_that_differ_are_a_conflict() -> None:
    assert code_of(["order-1"], "order-2") == CONFLICT
    # In the body the quotes would be part of the key.
    assert code_of(["order-1"], '"order-1"') == CONFLICT
    assert read_key(["order-1"], "order-1") == "order-1"
    assert read_key(["order-1"], None) == "order-1"
