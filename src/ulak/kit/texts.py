"""Texts: those that every file and database can keep, and numbers as people write them."""

from __future__ import annotations

import re
from collections.abc import Iterable
from decimal import Decimal, InvalidOperation
from typing import Final

__all__ = [
    "exact", "must_be_writable", "number_text", "printable", "range_text", "read_number",
]  # fmt: skip

# What XML 1.0 has no place for, which workbooks are made of; PostgreSQL has none for NUL.
_UNWRITABLE: Final = re.compile(r"[^\t\n\r\x20-\uD7FF\uE000-\uFFFD\U00010000-\U0010FFFF]")


def must_be_writable(text: str) -> str:
    """Return a text that databases, XML documents and workbooks can keep. Raises `ValueError`: it
    holds a character that one of them has no place for.

    That is stricter than `ulak.kit.bodies.storable`, which lets control characters through, and it
    needs no web framework: workers check what goes into files.
    """
    if found := _UNWRITABLE.search(text):
        raise ValueError(f"it holds the character U+{ord(found[0]):04X}, which no file can keep")
    return text


def printable(text: str) -> str:
    """Return a text for people: a space in the place of every other white space, and U+FFFD in that
    of every other character that is not to be seen."""
    return "".join(c if c.isprintable() else " " if c.isspace() else "\ufffd" for c in text)


def exact(value: float) -> Decimal:
    """Return a number of JSON as it was written: 33.3335 is that, not the binary number nearest to
    it."""
    return Decimal(repr(value))


def number_text(value: float | Decimal) -> str:
    """Return the canonical decimal text of a number: `18` of 18.0, never with an exponent."""
    text = f"{value if isinstance(value, Decimal) else exact(value):f}"
    return text.rstrip("0").rstrip(".") if "." in text else text


def read_number(value: object) -> Decimal | None:
    """Return the number that a cell or a text of another program is, also one with a decimal comma.
    None: it is no number, or has ten digits before the point."""
    try:
        number = Decimal(str(value).strip().replace(",", "."))
    except InvalidOperation:
        return None
    return number if number.is_finite() and -(10**9) < number < 10**9 else None


def range_text(numbers: Iterable[int]) -> str:
    """Return ascending numbers as people write them: `1-3, 7`."""
    spans: list[list[int]] = []
    for number in numbers:
        if spans and number == spans[-1][-1] + 1:
            spans[-1][1:] = [number]
        else:
            spans.append([number])
    return ", ".join("-".join(map(str, span)) for span in spans)
