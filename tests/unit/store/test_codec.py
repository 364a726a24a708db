"""Values keep what they are on their way through JSON, defaults included."""

from dataclasses import dataclass, field
from typing import Any

import msgspec
import pytest

from ulak.store import codec


@dataclass
class Line:
    part: str
    quantity: int = 1


@dataclass
class Order:
    number: int
    note: str = "none"
    lines: list[Line] = field(default_factory=list)
    by_part: dict[str, Line] = field(default_factory=dict)
    first: Line | None = None


@dataclass(frozen=True)
class Frozen:
    number: int
    note: str = "none"


@dataclass(slots=True)
class Slotted:
    number: int
    note: str = "none"


class Envelope(msgspec.Struct):
    order: Order
    copies: int = 1


ORDER = Order(7, lines=[Line("bolt")], by_part={"bolt": Line("bolt")}, first=Line("nut"))
PLAIN = {
    "number": 7, "lines": [{"part": "bolt"}], "by_part": {"bolt": {"part": "bolt"}},
    "first": {"part": "nut"},
}  # fmt: skip


@pytest.mark.parametrize(
    ("plain", "value"),
    [
        ({"number": 7}, Order(7)),
        (PLAIN, ORDER),
        ({"number": 7}, Frozen(7)),
        ({"number": 7}, Slotted(7)),
        ({"order": {"number": 7}}, Envelope(Order(7))),
    ],
)
def test_a_default_that_was_left_out_is_written_like_one_that_was_said(
    plain: dict[str, Any], value: Any
) -> None:
    """Broken by msgspec alone, which leaves such a default to the class and out of the JSON."""
    converted = codec.convert(plain, type(value))
    assert converted == value
    assert codec.canonical(converted) == codec.canonical(value)
    assert codec.encode(converted) == codec.encode(value)
    stored = msgspec.json.encode(plain)
    assert codec.encode(codec.decode(stored, type(value))) == codec.encode(value)


def test_lists_of_such_values_are_written_whole_too() -> None:
    converted = codec.convert([{"part": "bolt"}], list[Line])
    assert codec.encode(converted) == codec.encode([Line("bolt")])
