"""Texts: what every file can keep, and numbers as people write them."""

from decimal import Decimal

import pytest

from ulak.kit.texts import (
    exact,
    must_be_writable,
    number_text,
    printable,
    range_text,
    read_number,
)


def test_a_text_of_any_language_is_writable() -> None:
    for text in ("", "a\tb\r\n", "Ağaç", "\U0001f6aa", "\x7f\x85", "\ue000\ufffd"):
        assert must_be_writable(text) == text


@pytest.mark.parametrize("bad", ["\x00", "\x1f", "\x0b", "\ud800", "\ufffe", "\uffff"])
def test_what_a_file_cannot_hold_is_named(bad: str) -> None:
    with pytest.raises(ValueError, match=rf"U\+{ord(bad):04X}"):
        must_be_writable(f"a{bad}b")


def test_what_is_not_to_be_seen_has_a_stand_in() -> None:
    assert printable("Ağaç\t<b>\n\x00\u202e\U0001f6aa") == "Ağaç <b> \ufffd\ufffd\U0001f6aa"


@pytest.mark.parametrize(
    ("numbers", "text"),
    [([], ""), ([3], "3"), ([1, 2, 3, 7], "1-3, 7"), ([1, 3, 4, 6, 7, 8], "1, 3-4, 6-8")],
)
def test_numbers_in_a_row_are_a_range(numbers: list[int], text: str) -> None:
    assert range_text(numbers) == text


def test_a_number_is_exactly_what_was_written() -> None:
    assert exact(33.3335) == Decimal("33.3335")
    assert exact(0.1) + exact(0.2) == exact(0.3)
    assert exact(5) == 5


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (18, "18"), (18.0, "18"), (Decimal("18.500"), "18.5"), (100, "100"), (1e2, "100"),
        (Decimal("1E+2"), "100"), (0.0001, "0.0001"), (1e-7, "0.0000001"), (0.0, "0"),
        (-2.50, "-2.5"),
    ],
)  # fmt: skip
def test_a_number_has_one_text(value: float | Decimal, text: str) -> None:
    assert number_text(value) == text


@pytest.mark.parametrize(
    ("value", "number"),
    [
        (7, 7), (0.5, Decimal("0.5")), (" 1,5 ", Decimal("1.5")), ("-3", -3), ("1e3", 1000),
        (None, None), ("", None), ("many", None), (True, None), ("NaN", None), ("inf", None),
        (10**9, None), ("-1e9", None), ("1e999", None), ("1e999999999", None),
    ],
)  # fmt: skip
def test_a_number_of_others_is_read_or_is_none(value: object, number: Decimal | None) -> None:
    assert read_number(value) == number
